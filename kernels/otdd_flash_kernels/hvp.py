r"""A plan times a vector in one streamed pass, and the plan written in blocks of rows, in float32.

.. math::
    (W z)_i = \sum_j W_{ij} z_j, \quad W_{ij} = b_j \exp((f_i + g_j - C_{ij}) / eps)

Scores are those of softmin.py: the integer dot product, a column bias and the label cost of the
tile's class. The potentials are solved, so that no maximum is tracked: a pass is the dot products,
one exponential a pair and a sum. What takes more than one vector is multiplied by the library, in
blocks of W that the kernel of plan.py writes in float32. Clouds of one or two slices.

Source: FlashSinkhorn, arXiv 2602.03067, section 4 (streamed transport products).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from otdd_flash_kernels.launch import current, launch_for, wanted_programs
from otdd_flash_kernels.operands import Operands, add_products, described
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.plan import PlanRows, two_slices
from otdd_flash_kernels.tiles import column_bias, read_tile

# float32 entries of a block of rows: 128 MB
BLOCK_ENTRIES = 1 << 25


@triton.jit(do_not_specialize=["n", "m", "n_tiles", "n_classes", "width"])
def transport_kernel(
    rows,  # descriptor or pointer, (n, d) int8 or float16, or (2 n, d) float16, upper slice last
    columns,  # descriptor or pointer, (m, d) int8 or float16, or (2 m, d) float16
    u,  # (m,) float32 column bias, base 2
    row_shift,  # (n,) float32 added to the scores of a row, base 2
    label_cost,  # (Vx, Vy) float32, base 2
    column_labels,  # (m,) int32
    tiles,  # (tiles, 3) int32: first row, end row, class
    values,  # (m,) float32
    out,  # (parts, n) float32 sums
    n,
    m,
    d,
    n_tiles,
    n_classes,  # of the columns
    width,  # columns of a part
    slope,  # base-2 score of one unit of the dot product
    WIDE: tl.constexpr,  # two slices in float16
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Sum the weights of one row tile times the values, over one part of the columns."""
    tile = tl.program_id(0) % n_tiles
    part = tl.program_id(0) // n_tiles
    first_row, end_row, klass = read_tile(tiles, tile)
    label_cost += klass.to(tl.int64) * n_classes
    row = first_row + tl.arange(0, BM)
    # what lies beyond the tile weighs nothing, so that nothing overflows
    shift = tl.load(row_shift + row, mask=row < end_row, other=float("-inf"))
    slices: tl.constexpr = 2 if WIDE else 1
    rows = described(rows, slices * n, d, BM, BK)
    columns = described(columns, slices * m, d, BN, BK)

    total = tl.zeros((BM,), tl.float32)
    begin = part * width
    end = tl.minimum(begin + width, m)
    tl.assume(d > 0)
    # one loop of tiles and steps, so that loads of the next tile overlap this one's end
    for j in tl.range(begin, end, BN, flatten=True):
        dots = tl.zeros((BM, BN), tl.int32 if rows.dtype == tl.int8 else tl.float32)  # [BM, BN]
        for k in range(0, d, BK):
            dots = add_products(dots, rows, columns, first_row, j, k, n, m, WIDE)
        column = j + tl.arange(0, BN)
        bias = column_bias(u, label_cost, column_labels, column, end)
        weights = tl.exp2(dots.to(tl.float32) * slope + bias[None, :] + shift[:, None])
        value = tl.load(values + column, mask=column < end, other=0.0)
        total += tl.sum(weights * value[None, :], 1)
    tl.store(out + part.to(tl.int64) * n + row, total, mask=row < end_row)


class _Direction:
    """Products along the rows of a pair."""

    def __init__(
        self,
        rows: PlanRows,
        near: Tensor,  # (n,) float64 potential of the rows
        h: Tensor,  # (m,) float64 potential plus eps log weight of the columns
        eps: float,
    ) -> None:
        self._rows, self._eps = rows, eps
        self._inputs = rows.inputs(h, near, eps)

    def times(self, z: Tensor) -> Tensor:  # (m,) float64 -> (n,) float64
        """Return ``W z``, one pass."""
        # float32 holds what is left of any scale
        scale = z.abs().amax().clamp(min=torch.finfo(torch.float64).tiny)
        rows = self._rows
        launch, (n, m), tiles = rows.launch, rows.pair.shape, len(rows.tiles)
        blocks = triton.cdiv(m, launch.tile_columns)
        parts = min(blocks, triton.cdiv(wanted_programs(z.device), tiles))
        out = torch.empty((parts, n), dtype=torch.float32, device=z.device)
        with current(out.device):
            transport_kernel[(tiles * parts,)](
                *self._inputs,
                rows.tiles,
                (z / scale).float(),
                out,
                n,
                m,
                rows.d,
                tiles,
                rows.pair.label_cost.shape[1],
                triton.cdiv(blocks, parts) * launch.tile_columns,
                rows.slope(self._eps),
                maxnreg=launch.registers,
                **rows.options,
            )
        return out.sum(0, dtype=torch.float64) * scale

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their blocks of W, all in one buffer."""
        return self._rows.chunks(self._inputs, self._eps, BLOCK_ENTRIES, torch.float32)


class TritonTransport:
    """The plan of a pair on a GPU, streamed.

    Memory: one block of 128 MB while blocks are read, O(n + m) floats, and a float16 copy of the
    clouds where they are multiplied in it.

    Raises:
        ValueError: clouds that are not quantised, or of three slices.
        RuntimeError: a GPU too old for the kernels.
    """

    dtype = torch.float32

    def __init__(
        self,
        pair: CostPair,
        f: Tensor,  # (n,) float64 potential
        g: Tensor,  # (m,)
        a: Tensor,  # (n,) float64 weights > 0
        b: Tensor,  # (m,)
        eps: float,
    ) -> None:
        if not pair.rows.quantized or pair.rows.data.shape[0] > 2:
            raise ValueError("second derivatives need clouds of one or two slices")
        wide = two_slices(pair)
        launch = launch_for(pair.rows.data.device, "wide" if wide else "one")
        operands = Operands.of(pair, launch, wide=wide)
        self._a, self._b = a, b
        rows = PlanRows(pair, operands, launch)
        self._forward = _Direction(rows, f, g + eps * b.log(), eps)
        # tiles are square: both directions read the same descriptors
        assert launch.tile_rows == launch.tile_columns
        swapped = replace(operands, rows=operands.columns, columns=operands.rows)
        columns = PlanRows(pair.transposed, swapped, launch)
        self._backward = _Direction(columns, g, f + eps * a.log(), eps)

    def times(self, z: Tensor) -> Tensor:
        """Return ``P z``, one pass."""
        return self._a * self._forward.times(z)

    def times_transposed(self, z: Tensor) -> Tensor:
        """Return ``P^T z``, one pass."""
        return self._b * self._backward.times(z)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their blocks of W."""
        return self._forward.blocks()
