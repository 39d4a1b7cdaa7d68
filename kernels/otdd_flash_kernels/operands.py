"""How kernels read points: as int8 or float16, through descriptors made on the host or by them.

Descriptors of the host are read by the hardware's tensor copies. Chips without those (8.x) make
descriptors of pointers in the kernel, which compile to ordinary asynchronous loads.

Chips whose tensor cores are poor at int8 multiply the same slices in float16: sums of products of
8-bit integers are exact in float32 up to 2^24, for any points of up to 1024 coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from otdd_flash_kernels.launch import Launch
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.quantize import Cloud, widened

# up to this many dimensions two slices are multiplied in float16 and summed in one float32: always,
# and where they are not summed in one int32 (see softmin_narrow.py), which needs one step
WIDE_ALWAYS, WIDE_DIMENSION, NARROW_DIMENSION = 32, 64, 128


@triton.jit
def described(
    points,  # descriptor or pointer, (height, d)
    height,
    d,
    ROWS: tl.constexpr,
    BK: tl.constexpr,
):
    """Return a descriptor of blocks of ROWS points and BK coordinates."""
    if isinstance(points, tl.tensor):
        return tl.make_tensor_descriptor(points, [height, d], [d, 1], [ROWS, BK])
    else:
        return points


@triton.jit
def add_products(
    dots,  # (BM, BN) int32 or float32 sums
    rows,  # descriptor (n, d), or (2 n, d), the upper slice last
    columns,  # descriptor (m, d) or (2 m, d)
    i,  # first row
    j,  # first column
    k,  # first coordinate
    n,
    m,
    WIDE: tl.constexpr,  # two slices, all four products of which go into one sum
):
    """Add the products of one step of coordinates."""
    left = rows.load([i, k])  # [BM, BK]
    right = columns.load([j, k])  # [BN, BK]
    if WIDE:
        left_up = rows.load([n + i, k])
        right_up = columns.load([m + j, k])
        dots = tl.dot(left, right.T, dots, out_dtype=dots.dtype)
        dots = tl.dot(left, right_up.T, dots, out_dtype=dots.dtype)
        dots = tl.dot(left_up, right.T, dots, out_dtype=dots.dtype)
        dots = tl.dot(left_up, right_up.T, dots, out_dtype=dots.dtype)
    else:
        dots = tl.dot(left, right.T, dots, out_dtype=dots.dtype)
    return dots


@dataclass(frozen=True)
class Operands:
    """The points of a pair as kernels read them.

    Memory: nothing for int8; in float16 copies of twice the clouds' bytes.
    """

    rows: TensorDescriptor | Tensor
    columns: TensorDescriptor | Tensor
    multiply: str  # "int8" or "float16"
    depth: int  # coordinates of a step

    @staticmethod
    def of(pair: CostPair, launch: Launch, *, wide: bool) -> Operands:
        """Return the operands of a launch, of two slices in one float32 sum if ``wide``."""
        half = wide or launch.multiply == "float16"
        itemsize = 2 if half else 1
        d = pair.rows.data.shape[-1]
        deepest = max(16, launch.tile_depth // (itemsize * (2 if wide else 1)))
        # no step deeper than the points
        depth = min(deepest, max(32 // itemsize, triton.next_power_of_2(d)))

        def points(cloud: Cloud, height: int) -> TensorDescriptor | Tensor:
            data = cloud.data
            if half:
                data = widened(cloud) if wide else cloud.halves
            flat = data.reshape(-1, d)
            if not launch.host_descriptors:
                return flat
            return TensorDescriptor.from_tensor(flat, [height, depth])

        return Operands(
            rows=points(pair.rows, launch.tile_rows),
            columns=points(pair.columns, launch.tile_columns),
            multiply="float16" if half else "int8",
            depth=depth,
        )
