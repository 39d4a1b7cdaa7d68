r"""Softmins of a cost that is stored on the GPU, read once a pass at the speed of its memory.

.. math::
    softmin_i = -eps \log \sum_j \exp((h_j - C_{ij}) / eps)

Where C fits, reading 4 bytes a pair beats remaking it from points of many dimensions in several
slices. One kernel serves both axes: the stride along which it reduces is an argument.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from functools import cached_property

import torch
import triton
import triton.language as tl
from torch import Tensor

from otdd_flash_kernels.launch import current
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.quantize import Cloud
from otdd_flash_kernels.tiles import HARD, LN2, MEAN, SOFT, reduce_scores

# float64 entries of each of the four blocks that are held while C is built: 64 MB together
CHUNK_ENTRIES = 1 << 21
# outputs of a program and entries it reads at a time, along and across the contiguous axis
ALONG, ACROSS = (1, 4096), (32, 128)


@triton.jit
def stored_softmin_kernel(
    cost,  # (n, m) float32, or its transpose by its strides
    bias,  # (m,) float32 potentials, base 2
    out_top,  # (n,) float32 maxima
    out_sum,  # (n,) float32 sums relative to the maxima
    out_mean,  # (n,) float32 sums times score minus maximum
    n,
    m,
    stride,  # between outputs
    step,  # between the entries that are reduced
    scale,  # base-2 score of one unit of the cost
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    """Reduce BM outputs over all entries."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    used = row < n
    start = cost + row.to(tl.int64)[:, None] * stride
    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    moment = tl.zeros((BM,), tl.float32)
    none = tl.zeros((BM,), tl.float32)
    for j in range(0, m, BN):
        index = j + tl.arange(0, BN)
        inside = index < m
        mask = used[:, None] & inside[None, :]
        entries = tl.load(start + index.to(tl.int64)[None, :] * step, mask=mask, other=0.0)
        shift = tl.load(bias + index, mask=inside, other=float("-inf"))
        score = shift[None, :] - entries * scale
        top, total, moment = reduce_scores(score, none, top, total, moment, MODE)
    tl.store(out_top + row, top, mask=used)
    if MODE != 1:
        tl.store(out_sum + row, total, mask=used)
    if MODE == 2:
        tl.store(out_mean + row, moment, mask=used)


class StoredCost:
    """The operators of both directions of a pair whose cost is stored in float32.

    Memory: ``4 n m`` bytes, and 64 MB while it is built.
    """

    def __init__(self, pair: CostPair) -> None:
        self.pair = pair
        self.device = pair.rows.data.device

    @cached_property
    def cost(self) -> Tensor:  # (n, m) float32
        """The cost, made by the first pass: until then other costs have its memory."""
        pair = self.pair
        out = torch.empty(pair.shape, dtype=torch.float32, device=self.device)
        for columns, right in self._chunks(pair.columns):
            for rows, left in self._chunks(pair.rows):
                out[rows, columns] = pair.block(rows, columns, left, right)
        return out

    def _chunks(self, cloud: Cloud) -> Iterator[tuple[slice, Tensor]]:
        """Yield spans of points and their float64 coordinates, so short that all blocks fit."""
        height = max(1, min(CHUNK_ENTRIES // cloud.data.shape[-1], math.isqrt(CHUNK_ENTRIES)))
        for start in range(0, cloud.n, height):
            stop = min(start + height, cloud.n)
            rows = torch.arange(start, stop, device=self.device)
            yield slice(start, stop), cloud.take(rows).dense()

    @staticmethod
    def bytes_to_store(pair: CostPair) -> int:
        """Bytes that storing C takes."""
        return 4 * pair.rows.n * pair.columns.n

    def _run(
        self,
        cost: Tensor,  # (n, m), any strides
        h: Tensor,  # (m,) float64
        eps: float,
        mode: int,
    ) -> tuple[Tensor, Tensor, Tensor]:  # (n,) float64 maxima, sums, moments, base 2
        n, m = cost.shape
        top = torch.empty(n, dtype=torch.float32, device=self.device)
        total = torch.empty_like(top) if mode != HARD else top
        moment = torch.empty_like(top) if mode == MEAN else top
        height, width = ALONG if cost.stride(1) == 1 else ACROSS
        with current(self.device):
            stored_softmin_kernel[(triton.cdiv(n, height),)](
                cost,
                (h / (eps * LN2)).float(),
                top,
                total,
                moment,
                n,
                m,
                cost.stride(0),
                cost.stride(1),
                1.0 / (eps * LN2),
                MODE=mode,
                BM=height,
                BN=width,
                num_warps=4,
            )
        return top.double(), total.double(), moment.double()

    def _softmin(self, cost: Tensor, h: Tensor, eps: float) -> Tensor:
        top, total, _ = self._run(cost, h, eps, SOFT)
        return (top + total.log2()) * (-eps * LN2)

    def softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n,) softmin over the columns, h (m,) float64."""
        return self._softmin(self.cost, h, eps)

    def softmin_transposed(self, h: Tensor, eps: float) -> Tensor:
        """Return the (m,) softmin over the rows, h (n,) float64."""
        return self._softmin(self.cost.mT, h, eps)

    def softmin_mean(self, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the (n,) softmin and the (n,) mean of ``h_j - C_ij`` under its weights."""
        top, total, moment = self._run(self.cost, h, eps, MEAN)
        mean = (moment / total + top) * (eps * LN2)
        return (top + total.log2()) * (-eps * LN2), mean

    def _hardmin(self, cost: Tensor, g: Tensor) -> Tensor:
        # in base 2 of one unit of the cost the score is the cost itself
        return self._run(cost, g, 1.0 / LN2, HARD)[0].neg()

    def hardmin(self, g: Tensor) -> Tensor:
        """Return the (n,) c-transform ``min_j C_ij - g_j``."""
        return self._hardmin(self.cost, g)

    def hardmin_transposed(self, f: Tensor) -> Tensor:
        """Return the (m,) c-transform ``min_i C_ij - f_i``."""
        return self._hardmin(self.cost.mT, f)

    def class_softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n, Vy) softmin over the columns of each class; +inf where there is none."""
        seams = self.pair.column_seams
        out = torch.full(
            (self.pair.rows.n, len(seams) - 1), torch.inf, dtype=torch.float64, device=self.device
        )
        for k, (begin, end) in enumerate(zip(seams[:-1], seams[1:], strict=True)):
            if end > begin:
                out[:, k] = self._softmin(self.cost[:, begin:end], h[begin:end], eps)
        return out
