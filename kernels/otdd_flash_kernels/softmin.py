r"""The streamed softmin over all columns, for tiles of rows of one class.

.. math::
    softmin_i = -eps \log \sum_j \exp((h_j - C_{ij}) / eps)

In base 2 the score of a pair is ``dot_ij * slope + u_j - w_j``: the integer dot product of the
slices, the column bias ``u`` (potential and squared norm), and the label cost of the tile's class,
a vector over the columns. C is never stored. The row bias is added after the reduction, in
float64. ``slope`` is rounded to float32 once and eps moved with it (by 6e-8 at most), so that the
scores hold no other rounding of the cost than their own last bit.

Sources: online softmax, Milakov and Gimelshein 2018; FlashSinkhorn, arXiv 2602.03067, section 3.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from otdd_flash_kernels.launch import launch_for
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.tiles import pure_tiles, running_maximum

SOFT, HARD, MEAN = 0, 1, 2


@triton.jit
def softmin_kernel(
    rows,  # descriptor (slices * n, d) int8
    columns,  # descriptor (slices * m, d) int8
    u,  # (m,) float32 column bias, base 2
    label_cost,  # (Vx, Vy) float32, base 2
    column_labels,  # (m,) int32
    tiles,  # (tiles, 3) int32
    seams,  # (segments + 1,) int32 column spans, reduced apart
    out_top,  # (segments, n) float32 row maxima
    out_sum,  # (segments, n) float32 sums relative to the maxima
    out_mean,  # (segments, n) float32 sums times score minus maximum
    n,
    m,
    d,
    slope,  # base-2 score of one unit of the dot product
    n_columns_classes,
    SLICES: tl.constexpr,
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Reduce one row tile over the columns of one segment."""
    tile = tl.program_id(0)
    segment = tl.program_id(1)
    first_row = tl.load(tiles + tile * 3)
    end_row = tl.load(tiles + tile * 3 + 1)
    klass = tl.load(tiles + tile * 3 + 2)
    begin = tl.load(seams + segment)
    end = tl.load(seams + segment + 1)

    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    moment = tl.zeros((BM,), tl.float32)
    for j in range(begin, end, BN):
        dots = tl.zeros((BM, BN), tl.float32)  # [BM, BN]
        for s in tl.static_range(SLICES):
            for t in tl.static_range(SLICES):
                part = tl.zeros((BM, BN), tl.int32)
                for k in range(0, d, BK):
                    left = rows.load([s * n + first_row, k])  # [BM, BK]
                    right = columns.load([t * m + j, k])  # [BN, BK]
                    part = tl.dot(left, right.T, part, out_dtype=tl.int32)
                dots += part.to(tl.float32) * (256.0 ** (s + t))
        index = j + tl.arange(0, BN)
        inside = index < end
        bias = tl.load(u + index, mask=inside, other=float("-inf"))
        label = tl.load(column_labels + index, mask=inside, other=0)
        bias -= tl.load(label_cost + klass.to(tl.int64) * n_columns_classes + label)
        score = dots * slope + bias[None, :]
        higher, shift = running_maximum(top, score)
        if MODE != 1:
            weights = tl.exp2(score - shift[:, None])
            rescale = tl.exp2(top - shift)
            if MODE == 2:
                # the moment is kept relative to the maximum, which just rose
                drop = tl.where(top == float("-inf"), 0.0, top - shift)
                moment = rescale * (moment + total * drop)
                finite = tl.where(weights > 0, score - shift[:, None], 0.0)
                moment += tl.sum(weights * finite, 1)
            total = total * rescale + tl.sum(weights, 1)
        top = higher

    row = first_row + tl.arange(0, BM)
    place = segment.to(tl.int64) * n + row
    tl.store(out_top + place, top, mask=row < end_row)
    if MODE != 1:
        tl.store(out_sum + place, total, mask=row < end_row)
    if MODE == 2:
        tl.store(out_mean + place, moment, mask=row < end_row)


class TritonCost:
    """The operators of one direction of a pair, on the device of its clouds.

    Memory: O(n + m) floats for each call; the clouds themselves are not copied.
    """

    def __init__(self, pair: CostPair) -> None:
        if not pair.rows.quantized:
            raise ValueError("Triton kernels read quantised clouds; call quantize() first")
        self.pair = pair
        self.device = pair.rows.data.device
        self.launch = launch_for(self.device)
        slices, _, self._d = pair.rows.data.shape
        self._slices = slices
        self._check_integer_range()
        launch = self.launch
        self._tiles = pure_tiles(pair.row_labels, pair.label_cost.shape[0], launch.tile_rows)
        self._column_labels = pair.column_labels.to(torch.int32)
        self._row_bias = pair.rows.bias * pair.scale
        self._column_bias = pair.columns.bias * pair.scale
        self._whole = torch.tensor([0, pair.columns.n], dtype=torch.int32, device=self.device)
        self._by_class = torch.tensor(pair.column_seams, dtype=torch.int32, device=self.device)

        def describe(data: Tensor, height: int) -> TensorDescriptor:
            flat = data.reshape(-1, self._d)
            return TensorDescriptor.from_tensor(flat, [height, launch.tile_depth])

        self._rows = describe(pair.rows.data, launch.tile_rows)
        self._columns = describe(pair.columns.data, launch.tile_columns)

    def _check_integer_range(self) -> None:
        """Refuse clouds whose int32 dot products could overflow (d above 131,072 at worst)."""

        def largest(data: Tensor) -> float:
            best = 0.0
            for part in data:
                for chunk in part.split(8192):
                    best = max(best, float(chunk.float().square().sum(1).max()))
            return best

        worst = math.sqrt(largest(self.pair.rows.data) * largest(self.pair.columns.data))
        if worst >= 2**31:
            raise ValueError(
                f"dot products reach {worst:.3g}, beyond 32-bit integers, at d = {self._d}; "
                "reduce the dimension (an encoder, smaller images)"
            )

    def _run(self, h: Tensor, eps: float, mode: int, seams: Tensor) -> tuple[Tensor, ...]:
        """Return tops, sums and moments (segments, n) in base 2, and the eps they are for."""
        pair, launch = self.pair, self.launch
        slope = np.float32(2.0 * pair.scale / (eps * math.log(2.0)))
        exact_eps = 2.0 * pair.scale / (float(slope) * math.log(2.0)) if slope > 0 else eps
        unit = 1.0 / (exact_eps * math.log(2.0))
        n, m = pair.shape
        shape = (len(seams) - 1, n)
        top = torch.empty(shape, dtype=torch.float32, device=self.device)
        total = torch.empty_like(top) if mode != HARD else top
        moment = torch.empty_like(top) if mode == MEAN else top
        softmin_kernel[(len(self._tiles), len(seams) - 1)](
            self._rows,
            self._columns,
            ((h - self._column_bias) * unit).float(),
            (pair.label_cost * unit).float(),
            self._column_labels,
            self._tiles,
            seams,
            top,
            total,
            moment,
            n,
            m,
            self._d,
            float(slope),
            pair.label_cost.shape[1],
            SLICES=self._slices,
            MODE=mode,
            BM=launch.tile_rows,
            BN=launch.tile_columns,
            BK=launch.tile_depth,
            num_warps=launch.warps,
            num_stages=launch.stages,
        )
        return top.double(), total.double(), moment.double(), torch.tensor(1.0 / unit)

    def _softmin(self, h: Tensor, eps: float, seams: Tensor) -> Tensor:  # (segments, n)
        top, total, _, unit = self._run(h, eps, SOFT, seams)
        return (top + total.log2()) * -float(unit) + self._row_bias

    def softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n,) softmin over the columns, h (m,) float64."""
        return self._softmin(h, eps, self._whole)[0]

    def softmin_mean(self, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the (n,) softmin and the (n,) mean of ``h_j - C_ij`` under its weights."""
        top, total, moment, unit = self._run(h, eps, MEAN, self._whole)
        mean = (moment / total + top)[0] * float(unit) - self._row_bias
        return (top + total.log2())[0] * -float(unit) + self._row_bias, mean

    def hardmin(self, g: Tensor) -> Tensor:
        """Return the (n,) c-transform ``min_j C_ij - g_j``."""
        # any eps gives the minimum; one near the cost's size keeps the scores near 1
        span = float(self._column_bias.max() + self._row_bias.max() + self.pair.label_cost.max())
        top, _, _, unit = self._run(g, max(span, 1e-30), HARD, self._whole)
        return top[0] * -float(unit) + self._row_bias

    def class_softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n, Vy) softmin over the columns of each class; +inf where there is none."""
        return self._softmin(h, eps, self._by_class).mT
