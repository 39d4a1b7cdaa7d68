"""Squared Bures distances of many pairs of factors: singular values, or products in batches.

See `bures` for the formulas. Singular values are taken pair by pair. Batches take nuclear norms of
``F G^T`` by polar factors, or first by bands where a pair needs fewer digits than those lose; a
bound for each pair decides whether it is good enough. Close laws take ``min_Q |F - Q G|_F^2``.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from otdd_flash.laws.couplings import Couplings, decomposed
from otdd_flash.laws.nuclear import LARGEST, nuclear_norms
from otdd_flash.laws.polar import polar, polish
from otdd_flash_kernels.workers import spread

# below this share of tr A + tr B the difference of traces has lost digits: use the sum of squares
NEAR = 1e-3
# more than this of a polar factor's orthonormality missing: it is not a minimiser Q
MISSING = 1e-7
# bytes of temporaries, unless told: of polar factors, and of bands, whose kernels take one
# multiprocessor a pair and so run batches of some hundreds of pairs faster
MEMORY_LIMIT, BAND_MEMORY_LIMIT = 1 << 29, 1 << 32
# matrices of a pair that are held at a time; polar: the product, a factor and its next, what is
# inverted, and a third of that beside it
POLAR_SQUARES, BAND_SQUARES = 4.4, 3.0
# ranks are padded to a multiple of it, which products like
ALIGNED = 32
# accuracies that the squares of nuclear.py can reach, in fewer than half the products of polar
# factors; for fewer pairs than this their time does not count
BAND_ACCURACY, BAND_PAIRS = 1e-8, 1000
# the pair of two factors
BOTH = torch.tensor([[0, 1]])


def _traces(factors: list[Tensor]) -> Tensor:
    return torch.stack([factor.square().sum() for factor in factors])


def svd_pairs(
    factors: list[Tensor],
    pairs: Tensor,  # (P, 2) numbers of factors
    couplings: Couplings | None = None,  # takes the polar factors
) -> Tensor:  # (P,) B2
    """Return squared Bures distances by singular values, pair by pair, on all cores of a CPU."""
    traces = _traces(factors).tolist()

    def value(pair: list[int]) -> tuple[float, Tensor | None]:
        f, g = factors[pair[0]], factors[pair[1]]
        total = traces[pair[0]] + traces[pair[1]]
        if not (f.shape[0] and g.shape[0]):
            return total, None
        q = None
        if couplings is None:
            singular = torch.linalg.svdvals(f @ g.mT)
        else:
            q, singular = decomposed(f, g)
        found = total - 2.0 * float(singular.sum())
        return _procrustes(f, g) if found < NEAR * total else found, q

    on_cpu = factors[0].device.type == "cpu"
    found = spread(value, pairs.tolist()) if on_cpu else [value(p) for p in pairs.tolist()]
    if couplings is not None:
        for pair, (_, q) in zip(pairs, found, strict=True):
            if q is not None:
                couplings.add(pair[None], [q], torch.tensor([q.shape]))
    return torch.tensor([v for v, _ in found], dtype=torch.float64, device=factors[0].device)


def _procrustes(f: Tensor, g: Tensor) -> float:
    """``min_Q |F - Q G|_F^2``, the rounding of F and G squared away when they are close."""
    if f.shape[0] < g.shape[0]:
        f, g = g, f
    u, _, vh = torch.linalg.svd(f @ g.mT, full_matrices=False)
    return float((f - (u @ vh) @ g).square().sum())


def batched_pairs(
    factors: list[Tensor],
    pairs: Tensor,  # (P, 2) numbers of factors
    accuracy: float,
    memory_limit: int | None,  # None: MEMORY_LIMIT, BAND_MEMORY_LIMIT for bands
    couplings: Couplings | None = None,  # takes the polar factors
) -> Tensor:  # (P,) B2
    """Return squared Bures distances by products in batches, bands first where they pay.

    Memory: ``memory_limit`` and the factors once more, and what the couplings keep.
    """
    traces = _traces(factors)
    heights = torch.tensor([factor.shape[0] for factor in factors])
    values = traces.new_zeros(len(pairs))
    rank = int(heights.max())
    if not rank:
        return values
    padded = _padded(factors)
    todo = torch.arange(len(pairs))
    if couplings is None and _bands_pay(padded, len(pairs), accuracy):
        good = torch.zeros(len(pairs), dtype=torch.bool, device=values.device)
        most = BAND_MEMORY_LIMIT if memory_limit is None else memory_limit
        for rows in _batches(heights[pairs], padded.shape[2], most, BAND_SQUARES):
            batch = _Batch(padded, traces, pairs[rows], heights[pairs[rows]])
            here = rows.to(values.device)
            values[here], good[here] = _band_values(batch, accuracy)
        todo = torch.nonzero(~good)[:, 0].cpu()
    most = MEMORY_LIMIT if memory_limit is None else memory_limit
    for part in _batches(heights[pairs[todo]], padded.shape[2], most, POLAR_SQUARES):
        rows = todo[part]
        batch = _Batch(padded, traces, pairs[rows], heights[pairs[rows]])
        values[rows.to(values.device)] = _polar_values(batch, factors, accuracy, couplings)
    return values


def _bands_pay(padded: Tensor, pairs: int, accuracy: float) -> bool:
    """Say whether bands come first: the GPU's kernels, for many pairs of ranks they hold."""
    fits = padded.shape[1] <= LARGEST and padded.device.type != "cpu"
    return fits and accuracy >= BAND_ACCURACY and pairs >= BAND_PAIRS


class _Batch:
    """Pairs of like ranks: their factors, cut to the largest ranks among them."""

    def __init__(
        self,
        padded: Tensor,  # (V, rank, d)
        traces: Tensor,  # (V,)
        pairs: Tensor,  # (P, 2)
        heights: Tensor,  # (P, 2) ranks
    ) -> None:
        self.pairs, self.heights = pairs, heights
        self.i, self.j = pairs.to(padded.device).unbind(1)
        high = [_aligned(int(h)) for h in heights.amax(0)]
        self.f, self.g = padded[:, : high[0]], padded[:, : high[1]]
        self.total = traces[self.i] + traces[self.j]
        self.ranks = heights.amin(1).to(traces)

    def products(self) -> Tensor:  # (P, r, s) F G^T
        return self.f[self.i] @ self.g[self.j].mT


def _padded(factors: list[Tensor]) -> Tensor:  # (V, rank, d), the rank a multiple of ALIGNED
    rank = max(factor.shape[0] for factor in factors)
    out = factors[0].new_zeros(len(factors), _aligned(rank), factors[0].shape[1])
    for k, factor in enumerate(factors):
        out[k, : len(factor)] = factor
    return out


def _aligned(rank: int) -> int:
    return -(-rank // ALIGNED) * ALIGNED


def _batches(
    heights: Tensor,  # (P, 2) ranks of the two factors of each pair
    d: int,
    memory_limit: int,
    squares: float,  # matrices of a pair that the method holds at a time
) -> Iterator[Tensor]:  # rows of pairs, those of like ranks together
    """Yield the pairs in batches that fit the memory: each works at its own largest ranks."""
    r, s = heights.amax(1), heights.amin(1)
    order = torch.argsort(r * (d + 1) + s, descending=True, stable=True)
    while len(order):
        # the first of them is the largest
        high = _aligned(int(r[order[0]]))
        entries = high * max(2 * d + high, round(squares * high))
        step = max(1, memory_limit // (8 * max(1, entries)))
        yield order[:step]
        order = order[step:]


def _band_values(
    batch: _Batch,
    accuracy: float,
) -> tuple[Tensor, Tensor]:  # (P,) values, (P,) whether they are good enough
    norm, bound = nuclear_norms(batch.products(), batch.ranks)
    value = batch.total - 2.0 * norm
    # close laws need a minimiser Q
    return value, (bound <= accuracy * norm) & (value >= NEAR * batch.total)


def _polar_values(
    batch: _Batch, factors: list[Tensor], accuracy: float, couplings: Couplings | None
) -> Tensor:  # (P,)
    floor = None if couplings is None else couplings.floor
    found = polar(batch.products(), batch.ranks, accuracy, floor)
    if couplings is not None and bool(found.converged.all()):
        couplings.add(batch.pairs, found.factor, batch.heights)
    value = batch.total - 2.0 * found.nuclear
    near = found.converged & (value < NEAR * batch.total)
    # heights that differ leave rows of one factor that the square Q does not reach
    level = (batch.heights[:, 0] == batch.heights[:, 1]).to(near.device)
    near_polar = torch.nonzero(near & level & (found.missing < MISSING))[:, 0]
    if near_polar.shape[0]:
        q = polish(found.factor[near_polar])
        gap = batch.f[batch.i[near_polar]] - q @ batch.g[batch.j[near_polar]]
        value[near_polar] = gap.square().sum((1, 2))
        near[near_polar] = False
    # couplings are for gradients, which ask for no more digits of close laws than the bound gives
    left = ~found.converged if couplings is not None else near | ~found.converged
    for k in torch.nonzero(left)[:, 0].tolist():
        value[k] = svd_pairs([factors[m] for m in batch.pairs[k].tolist()], BOTH)[0]
    return value
