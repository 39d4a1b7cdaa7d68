r"""Means under the rows of the plan: the plan row chunk by row chunk, times a matrix.

.. math::
    mean_i = \sum_j w_{ij} V_j / \sum_j w_{ij}, \quad w_{ij} = \exp((h_j - C_{ij} + s_i) / eps)

with ``s`` near the softmin of ``h``, so that the weights of a row are near a distribution. A chunk
of weights is written in float16 and multiplied by the library's matrix product with float32 sums;
a column of ones in V gives the denominator, so that the rounding of the weights (2^-11 each, of
either sign) averages out instead of moving the mean. Clouds of one or two slices.

Source: FlashSinkhorn, arXiv 2602.03067, section 4 (streamed transport products).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from otdd_flash_kernels.launch import Launch, current, plan_launch_for
from otdd_flash_kernels.operands import Operands, add_products, described
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.tiles import LN2, column_bias, pure_tiles, read_tile

# weights of one chunk: 128 MB of float16
CHUNK_ENTRIES = 1 << 26
# values that are scaled at a time: 64 MB of float32
VALUE_ENTRIES = 1 << 24
# a weight of 1 is stored as 2^10, so that float16 reaches down to 2^-34 of it
WEIGHT_SHIFT = 10.0


# m stays: rows of weights that begin at aligned addresses are written in wider pieces
@triton.jit(do_not_specialize=["tiles", "first", "n", "n_blocks", "n_classes"])
def plan_kernel(
    rows,  # descriptor or pointer, (n, d) int8 or float16, or (2 n, d) float16, upper slice last
    columns,  # descriptor or pointer, (m, d) int8 or float16, or (2 m, d) float16
    u,  # (m,) float32 column bias, base 2
    row_shift,  # (n,) float32 added to the scores of a row, base 2
    label_cost,  # (Vx, Vy) float32, base 2
    column_labels,  # (m,) int32
    tiles,  # (tiles, 3) int32: first row, end row, class
    out,  # (chunk rows, m) float16 or float32 weights
    first,  # row of the chunk's first weights
    n,
    m,
    d,
    n_blocks,  # column blocks
    n_classes,  # of the columns
    slope,  # base-2 score of one unit of the dot product
    WIDE: tl.constexpr,  # two slices in float16
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Write the weights of one row tile and one column block."""
    tile = tl.program_id(0) // n_blocks
    j = (tl.program_id(0) % n_blocks) * BN
    first_row, end_row, klass = read_tile(tiles, tile)
    slices: tl.constexpr = 2 if WIDE else 1
    rows = described(rows, slices * n, d, BM, BK)
    columns = described(columns, slices * m, d, BN, BK)
    dots = tl.zeros((BM, BN), tl.int32 if rows.dtype == tl.int8 else tl.float32)  # [BM, BN]
    for k in range(0, d, BK):
        dots = add_products(dots, rows, columns, first_row, j, k, n, m, WIDE)
    row = first_row + tl.arange(0, BM)
    column = j + tl.arange(0, BN)
    label_cost += klass.to(tl.int64) * n_classes
    bias = column_bias(u, label_cost, column_labels, column, m)
    shift = tl.load(row_shift + row, mask=row < end_row, other=float("-inf"))
    weights = tl.exp2(dots.to(tl.float32) * slope + bias[None, :] + shift[:, None])
    place = (row - first).to(tl.int64)[:, None] * m + column[None, :]
    mask = (row < end_row)[:, None] & (column < m)[None, :]
    # nothing overflows where the shift is the softmin; a far shift must not give infinity
    tl.store(out + place, tl.minimum(weights, 65504.0).to(out.dtype.element_ty), mask=mask)


class PlanRows:
    """What kernels of plans read of a pair, and chunks of weights as `plan_kernel` writes them."""

    def __init__(self, pair: CostPair, operands: Operands, launch: Launch) -> None:
        self.pair, self.launch = pair, launch
        self.d = pair.rows.data.shape[2]
        self.tiles = pure_tiles(pair.row_labels, pair.label_cost.shape[0], launch.tile_rows)
        self._bounds: list[list[int]] = self.tiles[:, :2].tolist()
        self._points = operands.rows, operands.columns
        self._column_labels = pair.column_labels.to(torch.int32)
        self.options = {
            "WIDE": two_slices(pair),
            "BM": launch.tile_rows,
            "BN": launch.tile_columns,
            "BK": operands.depth,
            "num_warps": launch.warps,
            "num_stages": launch.stages,
        }

    def inputs(
        self,
        h: Tensor,  # (m,) float64 potential plus eps log weight of the columns
        near: Tensor,  # (n,) float64 potential of the rows
        eps: float,
        lift: float = 0.0,  # weights are written times 2^lift
    ) -> tuple[Any, ...]:
        """Return the first arguments of a kernel: points, biases in base 2, labels."""
        pair, unit = self.pair, eps * LN2
        return (
            *self._points,
            ((h - pair.columns.bias * pair.scale) / unit).float(),
            ((near - pair.rows.bias * pair.scale) / unit + lift).float(),
            (pair.label_cost / unit).float(),
            self._column_labels,
        )

    def slope(self, eps: float) -> float:
        """Return the base-2 score of one unit of the dot product."""
        return 2.0 * self.pair.scale / (eps * LN2)

    def chunks(
        self,
        inputs: tuple[Any, ...],
        eps: float,
        entries: int,  # of a chunk, or one tile of rows where that is more
        dtype: torch.dtype,
    ) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their (rows, m) weights, all in one buffer."""
        launch, (n, m) = self.launch, self.pair.shape
        height = max(launch.tile_rows, entries // m)
        out = torch.empty((min(n, height), m), dtype=dtype, device=self.tiles.device)
        blocks = triton.cdiv(m, launch.tile_columns)
        for begin, end in chunks_of_tiles(self._bounds, height):
            first, last = self._bounds[begin][0], self._bounds[end - 1][1]
            with current(out.device):
                plan_kernel[((end - begin) * blocks,)](
                    *inputs,
                    self.tiles[begin:end].contiguous(),
                    out,
                    first,
                    n,
                    m,
                    self.d,
                    blocks,
                    self.pair.label_cost.shape[1],
                    self.slope(eps),
                    **self.options,
                )
            yield slice(first, last), out[: last - first]


class TritonPlan:
    """Means under the rows of the plan of a pair.

    Memory: 128 MB of weights (one tile of rows where that is more), the result in float32, one or
    two float16 copies of the values, and one of the clouds where they are multiplied in it.

    Raises:
        ValueError: clouds that are not quantised, or of three slices.
    """

    def __init__(self, pair: CostPair) -> None:
        if not pair.rows.quantized or pair.rows.data.shape[0] > 2:
            raise ValueError("streamed plans need clouds of one or two slices")
        wide = two_slices(pair)
        launch = plan_launch_for(pair.rows.data.device, "wide" if wide else "one")
        self._operands = Operands.of(pair, launch, wide=wide)
        self._rows = PlanRows(pair, self._operands, launch)

    def means(
        self,
        h: Tensor,  # (m,) float64 potential plus eps log weight
        eps: float,
        values: Tensor,  # (m, k)
        near: Tensor,  # (n,) float64 softmin of h, or the row potential
    ) -> Tensor:  # (n, k) float32
        """Return the mean of ``values`` under each row's weights."""
        scale = _power_of_two(values)
        parts = _halves(values, scale)
        inputs = self._rows.inputs(h, near, eps, WEIGHT_SHIFT)
        out = torch.empty((len(near), values.shape[1]), dtype=torch.float32, device=near.device)
        for rows, weights in self._rows.chunks(inputs, eps, CHUNK_ENTRIES, torch.float16):
            product = _product(weights, parts[0])
            for part in parts[1:]:
                product += _product(weights, part)
            mass = product[:, -1:] / scale
            torch.div(product[:, : values.shape[1]], mass, out=out[rows])
        return out


def two_slices(pair: CostPair) -> bool:
    """Say whether the points of a pair are two slices, multiplied in float16."""
    return pair.rows.data.shape[0] == 2


def chunks_of_tiles(
    bounds: list[list[int]],  # first and end row of each tile
    height: int,
) -> list[tuple[int, int]]:
    """Group consecutive tiles into chunks of at most ``height`` rows."""
    chunks, begin = [], 0
    for tile in range(1, len(bounds) + 1):
        if tile == len(bounds) or bounds[tile][1] - bounds[begin][0] > height:
            chunks.append((begin, tile))
            begin = tile
    return chunks


def _power_of_two(values: Tensor) -> float:
    """Return a scale above all magnitudes, by which dividing rounds nothing."""
    if values.dtype == torch.uint8:
        return 256.0
    largest = float(torch.stack([v.abs().max() for v in values.split(1 << 14)]).max())
    return 2.0 ** math.ceil(math.log2(largest)) if largest > 0 else 1.0


def _halves(values: Tensor, scale: float) -> Tensor:  # (1 or 2, m, width)
    """Return float16 parts of values / scale (22 bits), with zeros and a column of ones.

    Grey levels are whole in the first. Memory: the parts and chunks of 64 MB.
    """
    m, k = values.shape
    width = -(-(k + 1) // 8) * 8
    count = 1 if values.dtype == torch.uint8 else 2
    parts = torch.zeros((count, m, width), dtype=torch.float16, device=values.device)
    step = max(1, VALUE_ENTRIES // max(1, k))
    for first in range(0, m, step):
        here = slice(first, first + step)
        scaled = values[here].float() / scale
        parts[0, here, :k] = scaled
        if count == 2:
            parts[1, here, :k] = scaled - parts[0, here, :k].float()
    parts[0, :, -1] = 1.0
    return parts if count == 2 and bool(parts[1].any()) else parts[:1]


def _product(weights: Tensor, part: Tensor) -> Tensor:
    """Multiply in float16 with float32 sums, which is what comes back."""
    if weights.device.type == "cpu":
        return weights.float() @ part.float()
    return torch.mm(weights, part, out_dtype=torch.float32)
