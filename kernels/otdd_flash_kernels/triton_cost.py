r"""The operators of one direction of a pair, run by the Triton kernels.

``slope`` is rounded to float32 once and eps moved with it (by 6e-8 of itself at most), so that the
scores hold no other rounding of the cost than their own last bit.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from otdd_flash_kernels.launch import (
    Kind,
    Launch,
    current,
    launch_for,
    narrow_launch_for,
    wanted_programs,
)
from otdd_flash_kernels.operands import NARROW_DIMENSION, WIDE_ALWAYS, WIDE_DIMENSION, Operands
from otdd_flash_kernels.pair import CostPair, bilinear
from otdd_flash_kernels.quantize import Cloud
from otdd_flash_kernels.softmin import softmin_kernel
from otdd_flash_kernels.softmin_narrow import TRUNCATED, softmin_narrow_kernel
from otdd_flash_kernels.softmin_slices import softmin_slices_kernel
from otdd_flash_kernels.sparsity import tail_products
from otdd_flash_kernels.tiles import HARD, LN2, MEAN, SOFT, column_runs, pure_tiles, with_steps

# of the mean squared distance: what two slices in one int32 sum may lose, less than half of what
# rounding to 16 bits does to normal points
MOST_TRUNCATED = 2e-5


class TritonCost:
    """Softmin and its kin over the columns of a pair, on the device of its clouds.

    Memory: O(n + m) floats for each call; the clouds are copied only where they are multiplied in
    float16 (see operands.py).

    Raises:
        ValueError: clouds that are not quantised, or whose 32-bit dot products could overflow.
        RuntimeError: a GPU too old for the kernels.
    """

    def __init__(self, pair: CostPair) -> None:
        if not pair.rows.quantized:
            raise ValueError("Triton kernels read quantised clouds; call quantize() first")
        self.pair = pair
        self.device = pair.rows.data.device
        self._slices, _, self._d = pair.rows.data.shape
        self.kind, self.launch = _choice(pair)
        self._wide = self.kind == "wide"
        norms = pair.rows.slice_norms, pair.columns.slice_norms
        _check_integer_range(*norms, self._d)
        self._operands = Operands.of(pair, self.launch, wide=self._wide)
        self.multiply, self._depth = self._operands.multiply, self._operands.depth
        additions = self._d // 16 if self.multiply == "float16" and not self._wide else 0
        # bounds on the error of a cost besides the last bits of its terms: by rounding, and by
        # reading a symmetric function of the points that is only near C
        self.lost = 2.0 * pair.scale * _lost(*norms, additions)
        self.truncated = _truncated(pair) if self.kind == "narrow" else 0.0
        self._row_bias = pair.rows.bias * pair.scale
        self._column_bias = pair.columns.bias * pair.scale
        self._column_labels = pair.column_labels.to(torch.int32)
        self._plan_tiles()

    def _plan_tiles(self) -> None:
        """Decide what each tile reads: the sparser side says how far its dot products go."""
        pair, launch = self.pair, self.launch
        steps = -(-self._d // self._depth)
        extents = [_mean_extent(pair.rows), _mean_extent(pair.columns)]
        by_rows = extents[0] <= extents[1]
        row_extent = pair.rows.extent if by_rows else None
        column_extent = None if by_rows or pair.columns.extent is None else pair.columns.extent
        zeros = torch.zeros((steps + 1, 1), dtype=torch.float64, device=self.device)
        self._column_tail, self._row_tail = zeros, zeros.expand(-1, pair.rows.n)
        if row_extent is not None and pair.rows.background is not None:
            self._column_tail = tail_products(pair.columns, pair.rows.background, self._depth)
        if column_extent is not None and pair.columns.background is not None:
            self._row_tail = tail_products(pair.rows, pair.columns.background, self._depth)
            column_extent = column_extent.cpu()
        tiles = pure_tiles(pair.row_labels, pair.label_cost.shape[0], launch.tile_rows)
        self._tiles = with_steps(tiles, row_extent, self._depth, steps)
        seams = pair.column_seams
        m = pair.columns.n
        most = -(-m // launch.tile_columns)
        parts = max(1, min(most, -(-wanted_programs(self.device) // len(tiles))))
        geometry = (column_extent, launch.tile_columns, self._depth, steps)
        self._whole = self._on_device(column_runs([(0, m)], *geometry, parts=parts))
        spans = list(zip(seams[:-1], seams[1:], strict=True))
        self._by_class = self._on_device(column_runs(spans, *geometry))

    def _on_device(self, tables: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        return tables[0].to(self.device), tables[1].to(self.device)

    def _run(
        self,
        h: Tensor,  # (m,) float64
        eps: float,
        mode: int,
        segments: tuple[Tensor, Tensor],
    ) -> tuple[Tensor, Tensor, Tensor, float]:  # (segments, n) tops, sums, moments; base-2 eps
        pair, launch = self.pair, self.launch
        runs, seams = segments
        slope = np.float32(2.0 * pair.scale / (eps * LN2))
        # cost of one base-2 unit of the score, for the slope as rounded
        unit = 2.0 * pair.scale / float(slope) if slope > 0 else eps * LN2
        n, m = pair.shape
        shape = (len(seams) - 1, n)
        top = torch.empty(shape, dtype=torch.float32, device=self.device)
        total = torch.empty_like(top) if mode != HARD else top
        moment = torch.empty_like(top) if mode == MEAN else top
        bias = (h - self._column_bias) / unit
        label_cost = (pair.label_cost / unit).float()
        shared = (label_cost, self._column_labels, self._tiles, runs, seams, top, total, moment)
        points = (self._operands.rows, self._operands.columns)
        sizes = (n, m, self._d, len(self._tiles), pair.label_cost.shape[1])
        options = {
            "BM": launch.tile_rows,
            "BN": launch.tile_columns,
            "BK": self._depth,
            "num_warps": launch.warps,
            "num_stages": launch.stages,
            "maxnreg": launch.registers,
        }
        grid = (len(self._tiles) * (len(seams) - 1),)
        if self.kind in ("one", "wide"):
            with current(self.device):
                softmin_kernel[grid](
                    *points,
                    (bias + float(slope) * self._column_tail).float().contiguous(),
                    (float(slope) * self._row_tail).float().contiguous(),
                    *shared,
                    *sizes,
                    float(slope),
                    MODE=mode,
                    WIDE=self._wide,
                    **options,
                )
        else:
            level = 2 * (self._slices - 1)
            arguments = (*points, bias.float(), *shared, *sizes, float(slope) * 256.0**level)
            if self.kind == "narrow":
                with current(self.device):
                    softmin_narrow_kernel[grid](*arguments, MODE=mode, **options)
            else:
                options["SLICES"] = self._slices
                with current(self.device):
                    softmin_slices_kernel[grid](*arguments, MODE=mode, **options)
        return top, total, moment, unit

    def _softmin(self, h: Tensor, eps: float, segments: tuple[Tensor, Tensor]) -> Tensor:
        """Return the base-2 log-sums (segments, n) as softmins, without the row bias."""
        top, total, _, unit = self._run(h, eps, SOFT, segments)
        return (top.double() + total.double().log2()) * -unit

    def softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n,) softmin over the columns, h (m,) float64."""
        top, total, _, unit = self._run(h, eps, SOFT, self._whole)
        merged = _Merged(top, total)
        return merged.log2() * -unit + self._row_bias

    def softmin_mean(self, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the (n,) softmin and the (n,) mean of ``h_j - C_ij`` under its weights."""
        top, total, moment, unit = self._run(h, eps, MEAN, self._whole)
        merged = _Merged(top, total)
        mean = merged.mean(moment) * unit - self._row_bias
        return merged.log2() * -unit + self._row_bias, mean

    def hardmin(self, g: Tensor) -> Tensor:
        """Return the (n,) c-transform ``min_j C_ij - g_j``."""
        # any eps gives the minimum; one near the scores' size keeps them near 1
        span = float(
            self._column_bias.max()
            + self._row_bias.max()
            + self.pair.label_cost.abs().max()
            + torch.where(torch.isfinite(g), g, 0.0).abs().max()
        )
        top, _, _, unit = self._run(g, max(span, 1e-30), HARD, self._whole)
        return top.double().amax(dim=0) * -unit + self._row_bias

    def class_softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n, Vy) softmin over the columns of each class; +inf where there is none."""
        return (self._softmin(h, eps, self._by_class) + self._row_bias).mT


class _Merged:
    """Segments of rows merged in float64: their highest maximum and sums relative to it."""

    def __init__(self, top: Tensor, total: Tensor) -> None:
        top = top.double()
        self.highest = top.amax(dim=0)
        # where a whole row has no weight, no segment has any either
        self._drop = (top - self.highest).nan_to_num(nan=0.0, neginf=0.0)
        self._scale = torch.where(top == -torch.inf, 0.0, self._drop.exp2())
        self._parts = total.double()
        self.total = (self._scale * self._parts).sum(dim=0)

    def log2(self) -> Tensor:
        """Return the base-2 logarithm of the whole sum, (n,)."""
        return self.highest + self.total.log2()

    def mean(self, moment: Tensor) -> Tensor:
        """Return the mean score, (n,) base 2, from the segments' moments below their maxima."""
        moved = self._scale * (moment.double() + self._parts * self._drop)
        return self.highest + moved.sum(dim=0) / self.total


def _choice(pair: CostPair) -> tuple[Kind, Launch]:
    """Choose how the products of slices are summed, and the launch that does it."""
    slices, _, d = pair.rows.data.shape
    device = pair.rows.data.device
    kind: Kind = "one" if slices == 1 else "slices"
    if slices == 2:
        narrow = narrow_launch_for(device) if WIDE_ALWAYS < d <= NARROW_DIMENSION else None
        if narrow is not None and _truncated(pair) <= MOST_TRUNCATED * _mean_distance(pair):
            return "narrow", narrow
        if d <= WIDE_DIMENSION:
            kind = "wide"
    return kind, launch_for(device, kind)


def _truncated(pair: CostPair) -> float:
    return 2.0 * pair.scale * TRUNCATED


def _mean_distance(pair: CostPair) -> float:
    """Return the mean cost of the points, without their classes."""
    pair = replace(pair, label_cost=torch.zeros_like(pair.label_cost))
    even = (torch.full((size,), 1.0 / size, dtype=torch.float64) for size in pair.shape)
    return float(bilinear(pair, *(weights.to(pair.rows.data.device) for weights in even)))


def _mean_extent(cloud: Cloud) -> float:
    return float("inf") if cloud.extent is None else float(cloud.extent.double().mean())


def _lost(rows: list[float], columns: list[float], additions: int) -> float:
    """Bound what sums of slices' products lose, by Cauchy-Schwarz on the norms of the slices.

    Three slices lose their lowest two levels, and sums in float32 (``additions`` of them, 0 in
    integers) one last bit an addition where they pass 2^24.
    """
    out = 0.0
    if len(rows) == 3:
        out = 256.0 * (rows[0] * columns[1] + rows[1] * columns[0]) + rows[0] * columns[0]
    if additions and len(rows) * max(rows) * max(columns) > 2**24:
        whole = [sum(256.0**s * norm for s, norm in enumerate(side)) for side in (rows, columns)]
        out += additions * 2.0**-23 * whole[0] * whole[1]
    return out


def _check_integer_range(rows: list[float], columns: list[float], d: int) -> None:
    """Refuse clouds whose int32 dot products could overflow (d above 43,690 at worst)."""
    # one accumulator holds as many products of slices as there are slices
    worst = len(rows) * max(rows) * max(columns)
    if worst >= 2**31:
        raise ValueError(
            f"dot products reach {worst:.3g}, beyond 32-bit integers, at d = {d}; "
            "reduce the dimension (an encoder, smaller images)"
        )
