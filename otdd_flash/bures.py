"""Squared 2-Wasserstein distances between class laws: the label cost.

With covariances ``A = F^T F`` and ``B = G^T G`` the squared Bures distance is

``B2(A, B) = tr A + tr B - 2 tr (A^1/2 B A^1/2)^1/2``
``         = tr A + tr B - 2 |F G^T|_* = min_Q |F - Q G|_F^2``

over Q with orthonormal columns (rows of F >= rows of G). The nuclear norm of ``F G^T`` has error
``u |F| |G|``; eigenvalues of ``A^1/2 B A^1/2`` would have it under a square root. Close laws use
the last form, a sum of squares. The minimiser Q is the polar factor of ``F G^T``; ``F^+ Q G`` is
the optimal map between the laws.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from otdd_flash.errors import DataError, SettingsError, WeightError
from otdd_flash.gaussians import ClassLaws
from otdd_flash.polar import ACCURACY, polar, polish
from otdd_flash_kernels.workers import spread

METHODS = ("auto", "svd", "polar")
# below this share of tr A + tr B the difference of traces has lost digits: use the sum of squares
NEAR = 1e-3
# more than this of a polar factor's orthonormality missing: it is not a minimiser Q
MISSING = 1e-7
# bytes of temporaries of the polar method
MEMORY_LIMIT = 1 << 29
# ranks are padded to a multiple of it, which products like
ALIGNED = 32
# the pair of two factors
BOTH = torch.tensor([[0, 1]])


class LabelCost(NamedTuple):
    """Squared Wasserstein distances between and within the classes of two datasets."""

    xy: Tensor  # (Vx, Vy) float64
    xx: Tensor  # (Vx, Vx) float64, symmetric, zero diagonal
    yy: Tensor  # (Vy, Vy) float64, symmetric, zero diagonal


def gaussian_w2(
    source: ClassLaws,  # Vx laws
    target: ClassLaws,  # Vy laws of the same kind, d and device
    *,
    method: str = "auto",
    accuracy: float = ACCURACY,
    memory_limit: int = MEMORY_LIMIT,
) -> Tensor:  # (Vx, Vy) float64, squared units of the points
    """Return the squared 2-Wasserstein distances between all laws of two datasets.

    "gaussian": ``|mu - nu|^2 + B2(A, B)``; "diagonal": ``|mu - nu|^2 + |sqrt var - sqrt var'|^2``;
    "means": ``|mu - nu|^2``. Exactly zero for equal laws, symmetric, never negative.

    Args:
        source: laws of the rows.
        target: laws of the columns.
        method: "svd" (singular values pair by pair), "polar" (batched products), or "auto":
            polar on an accelerator, svd on the CPU.
        accuracy: share of ``|F G^T|_*`` by which batched values may be off, 1e-12 to 1e-2.
        memory_limit: bytes of temporaries of the polar method.

    Raises:
        DataError: laws of different d or devices.
        SettingsError: different kinds, unknown method, an accuracy outside 1e-12 to 1e-2.
        WeightError: a class of mass zero.

    Memory: one pair at a time (svd) or ``memory_limit`` (polar); never (Vx, Vy, d, d).
    Source: Dowson and Landau 1982; Olkin and Pukelsheim 1982; Bhatia, Jain and Lim 2019,
    "On the Bures-Wasserstein distance between positive definite matrices", theorem 1.
    """
    return _blocks((source, target), ((0, 1),), method, accuracy, memory_limit)[0]


def label_cost(
    source: ClassLaws,  # Vx laws
    target: ClassLaws,  # Vy laws
    *,
    method: str = "auto",
    accuracy: float = ACCURACY,
    memory_limit: int = MEMORY_LIMIT,
) -> LabelCost:
    """Return the distances between source and target classes and within either.

    As `gaussian_w2`, errors and memory too. Laws that occur more than once, in either dataset, are
    computed once: the three blocks of a dataset against itself are the same bits.
    """
    wanted = ((0, 1), (0, 0), (1, 1))
    return LabelCost(*_blocks((source, target), wanted, method, accuracy, memory_limit))


def _blocks(
    laws: tuple[ClassLaws, ClassLaws],
    wanted: Sequence[tuple[int, int]],
    method: str,
    accuracy: float,
    memory_limit: int,
) -> list[Tensor]:
    check_laws(laws)
    if method not in METHODS:
        raise SettingsError(f"method is {method!r}, expected one of {', '.join(METHODS)}")
    if not 1e-12 <= accuracy <= 1e-2:
        raise SettingsError(f"accuracy is {accuracy!r}, expected a number from 1e-12 to 1e-2")
    out = [_mean_gaps(laws[i].means, laws[j].means) for i, j in wanted]
    spreads = [law.variances for law in laws]
    if spreads[0] is not None and spreads[1] is not None:
        deviations = [s.sqrt() for s in spreads if s is not None]
        gaps = [_mean_gaps(deviations[i], deviations[j]) for i, j in wanted]
        return [o + g for o, g in zip(out, gaps, strict=True)]
    if laws[0].factors is None or laws[1].factors is None:
        return out
    factors, ids = _numbered([*laws[0].factors, *laws[1].factors])
    side = (ids[: laws[0].classes], ids[laws[0].classes :])
    codes = []
    for i, j in wanted:
        a, b = np.broadcast_arrays(side[i][:, None], side[j][None, :])
        codes.append(np.minimum(a, b) * len(factors) + np.maximum(a, b))
    code, inverse = np.unique(np.concatenate([c.ravel() for c in codes]), return_inverse=True)
    pairs = np.stack(np.divmod(code, len(factors)), axis=1)
    apart = pairs[:, 0] != pairs[:, 1]
    values = out[0].new_zeros(len(pairs))
    if apart.any():
        chosen = torch.from_numpy(pairs[apart])
        if method == "polar" or (method == "auto" and out[0].device.type != "cpu"):
            found = _polar_pairs(factors, chosen, accuracy, memory_limit)
        else:
            found = _svd_pairs(factors, chosen)
        values[torch.from_numpy(apart).to(values.device)] = found
    each = values[torch.from_numpy(inverse.ravel()).to(values.device)]
    parts = each.split([c.size for c in codes])
    return [o + part.view(o.shape) for o, part in zip(out, parts, strict=True)]


def _mean_gaps(x: Tensor, y: Tensor) -> Tensor:
    """Squared distances from differences: exactly zero, without cancellation."""
    step = max(1, (1 << 22) // max(1, y.numel()))
    return torch.cat([(rows[:, None] - y[None]).square().sum(2) for rows in x.split(step)])


def _numbered(factors: list[Tensor]) -> tuple[list[Tensor], np.ndarray]:
    """Return the different factors, in an order of their own, and the number of each one given.

    The order depends on the entries alone, so that swapping the datasets changes no bit.
    """
    probes = torch.stack([_probe(factor) for factor in factors]).tolist()
    keys = [(factor.shape[0], *probe) for factor, probe in zip(factors, probes, strict=True)]
    groups: dict[tuple[float, ...], list[int]] = {}
    distinct: list[Tensor] = []
    ids = np.zeros(len(factors), dtype=np.int64)
    for k in sorted(range(len(factors)), key=keys.__getitem__):
        group = groups.setdefault(keys[k], [])
        same = [i for i in group if torch.equal(factors[k], distinct[i])]
        if not same:
            group.append(len(distinct))
            distinct.append(factors[k])
        ids[k] = same[0] if same else group[-1]
    return distinct, ids


def _probe(factor: Tensor) -> Tensor:
    flat = factor.reshape(-1)
    entries = flat[:: max(1, flat.shape[0] // 32)][:32]
    return torch.nn.functional.pad(entries, (0, 32 - entries.shape[0]))


def _traces(factors: list[Tensor]) -> Tensor:
    return torch.stack([factor.square().sum() for factor in factors])


def _svd_pairs(
    factors: list[Tensor],
    pairs: Tensor,  # (P, 2) numbers of factors
) -> Tensor:  # (P,) B2
    traces = _traces(factors).tolist()

    def value(pair: list[int]) -> float:
        f, g = factors[pair[0]], factors[pair[1]]
        total = traces[pair[0]] + traces[pair[1]]
        if not (f.shape[0] and g.shape[0]):
            return total
        found = total - 2.0 * float(torch.linalg.svdvals(f @ g.mT).sum())
        return _procrustes(f, g) if found < NEAR * total else found

    on_cpu = factors[0].device.type == "cpu"
    values = spread(value, pairs.tolist()) if on_cpu else [value(p) for p in pairs.tolist()]
    return torch.tensor(values, dtype=torch.float64, device=factors[0].device)


def _procrustes(f: Tensor, g: Tensor) -> float:
    """``min_Q |F - Q G|_F^2``, the rounding of F and G squared away when they are close."""
    if f.shape[0] < g.shape[0]:
        f, g = g, f
    u, _, vh = torch.linalg.svd(f @ g.mT, full_matrices=False)
    return float((f - (u @ vh) @ g).square().sum())


def _polar_pairs(
    factors: list[Tensor],
    pairs: Tensor,  # (P, 2) numbers of factors
    accuracy: float,
    memory_limit: int,
) -> Tensor:  # (P,) B2
    traces = _traces(factors)
    heights = torch.tensor([factor.shape[0] for factor in factors])
    values = traces.new_zeros(len(pairs))
    if not int(heights.max()):
        return values
    padded = _padded(factors)
    for part in _batches(heights[pairs], padded.shape[2], memory_limit):
        chosen = pairs[part]
        values[part.to(values.device)] = _polar_batch(factors, padded, traces, chosen, accuracy)
    return values


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
) -> Iterator[Tensor]:  # rows of pairs, those of like ranks together
    """Yield the pairs in batches that fit the memory: each works at its own largest ranks."""
    r, s = heights.amax(1), heights.amin(1)
    order = torch.argsort(r * (d + 1) + s, descending=True, stable=True)
    while len(order):
        # the first of them is the largest
        high = _aligned(int(r[order[0]]))
        entries = high * max(2 * d + high, 5 * high)
        step = max(1, memory_limit // (8 * max(1, entries)))
        yield order[:step]
        order = order[step:]


def _polar_batch(
    factors: list[Tensor],
    padded: Tensor,  # (V, rank, d)
    traces: Tensor,  # (V,)
    pairs: Tensor,  # (P, 2)
    accuracy: float,
) -> Tensor:  # (P,)
    heights = torch.tensor([[len(factors[k]) for k in pair] for pair in pairs.tolist()])
    i, j = pairs.to(padded.device).unbind(1)
    high = [_aligned(int(h)) for h in heights.amax(0)]
    f, g = padded[:, : high[0]], padded[:, : high[1]]
    found = polar(f[i] @ g[j].mT, heights.amin(1).to(traces), accuracy)
    total = traces[i] + traces[j]
    value = total - 2.0 * found.nuclear
    near = found.converged & (value < NEAR * total)
    # heights that differ leave rows of one factor that the square Q does not reach
    level = (heights[:, 0] == heights[:, 1]).to(near.device)
    near_polar = torch.nonzero(near & level & (found.missing < MISSING))[:, 0]
    if near_polar.shape[0]:
        q = polish(found.factor[near_polar])
        gap = f[i[near_polar]] - q @ g[j[near_polar]]
        value[near_polar] = gap.square().sum((1, 2))
        near[near_polar] = False
    for k in torch.nonzero(near | ~found.converged)[:, 0].tolist():
        value[k] = _svd_pairs([factors[m] for m in pairs[k].tolist()], BOTH)[0]
    return value


def check_laws(laws: tuple[ClassLaws, ClassLaws]) -> None:
    """Refuse laws between which there is no distance.

    Raises:
        DataError, SettingsError, WeightError: see `gaussian_w2`.
    """
    first, second = laws
    if first.kind != second.kind:
        raise SettingsError(f"laws are {first.kind} and {second.kind}; make both of one kind")
    if first.dimension != second.dimension:
        raise DataError(f"source has {first.dimension} features, target has {second.dimension}")
    if first.means.device != second.means.device:
        raise DataError(
            f"source laws are on {first.means.device}, target laws on {second.means.device}; "
            "compute both on one device"
        )
    for name, law in (("source", first), ("target", second)):
        empty = torch.nonzero(law.masses <= 0)[:, 0].tolist()
        if empty:
            raise WeightError(f"{name} class {empty[0]} has no mass, so it has no law; drop it")
