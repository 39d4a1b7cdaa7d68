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

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from otdd_flash.errors import DataError, SettingsError, WeightError
from otdd_flash.laws.couplings import Couplings
from otdd_flash.laws.factor_pairs import batched_pairs, svd_pairs
from otdd_flash.laws.gaussians import ClassLaws
from otdd_flash.laws.polar import ACCURACY
from otdd_flash.settings import check_choice

METHODS = ("auto", "svd", "polar")
# accuracy where the full one would take minutes: this many pairs times their ranks cubed
FAST_ACCURACY, FAST_WORK = 1e-7, 1e13


class LabelCost(NamedTuple):
    """Squared Wasserstein distances between and within the classes of two datasets."""

    xy: Tensor  # (Vx, Vy) float64
    xx: Tensor  # (Vx, Vx) float64, symmetric, zero diagonal
    yy: Tensor  # (Vy, Vy) float64, symmetric, zero diagonal


class CoupledCost(NamedTuple):
    """Squared Wasserstein distances from the classes of one dataset, and what made them."""

    xy: Tensor  # (Vx, Vy) float64
    xx: Tensor  # (Vx, Vx) float64, symmetric, zero diagonal
    couplings: Couplings
    gaps: tuple[Tensor, Tensor]  # of both, what the means contribute; of every pair


def gaussian_w2(
    source: ClassLaws,  # Vx laws
    target: ClassLaws,  # Vy laws of the same kind, d and device
    *,
    method: str = "auto",
    accuracy: float | None = None,
    memory_limit: int | None = None,
) -> Tensor:  # (Vx, Vy) float64, squared units of the points
    """Return the squared 2-Wasserstein distances between all laws of two datasets.

    "gaussian": ``|mu - nu|^2 + B2(A, B)``; "diagonal": ``|mu - nu|^2 + |sqrt var - sqrt var'|^2``;
    "means": ``|mu - nu|^2``. Exactly zero for equal laws, symmetric, never negative.

    Args:
        source: laws of the rows.
        target: laws of the columns.
        method: "svd" (singular values pair by pair), "polar" (batched products), or "auto":
            polar on a GPU, svd on the CPU.
        accuracy: share of ``|F G^T|_*`` by which values of the polar method may be off, 1e-12 to
            1e-2, held by a bound for each pair; None: `usual_accuracy`.
        memory_limit: bytes of temporaries of the polar method; None: 512 MB, and 4 GB for a
            thousand pairs and more on a GPU where the accuracy is 1e-8 or coarser.

    Raises:
        DataError: laws of different d or devices.
        SettingsError: different kinds, unknown method, an accuracy outside 1e-12 to 1e-2.
        WeightError: a class of mass zero.

    Memory: one pair at a time (svd), or ``memory_limit`` and the factors once more (polar); never
    (Vx, Vy, d, d).
    Source: Dowson and Landau 1982; Olkin and Pukelsheim 1982; Bhatia, Jain and Lim 2019,
    "On the Bures-Wasserstein distance between positive definite matrices", theorem 1.
    """
    return _blocks((source, target), ((0, 1),), method, accuracy, memory_limit)[0]


def label_cost(
    source: ClassLaws,  # Vx laws
    target: ClassLaws,  # Vy laws
    *,
    method: str = "auto",
    accuracy: float | None = None,
    memory_limit: int | None = None,
) -> LabelCost:
    """Return the distances between source and target classes and within either.

    As `gaussian_w2`, errors and memory too. Laws that occur more than once, in either dataset, are
    computed once: the three blocks of a dataset against itself are the same bits.
    """
    wanted = ((0, 1), (0, 0), (1, 1))
    return LabelCost(*_blocks((source, target), wanted, method, accuracy, memory_limit))


def coupled_cost(
    source: ClassLaws,  # Vx laws
    target: ClassLaws,  # Vy laws
    *,
    accuracy: float,
    floor: float,
    keep_limit: int,
    memory_limit: int | None = None,
    due: tuple[Tensor, Tensor] | None = None,
) -> CoupledCost:
    """Return the distances from the source's classes, and the polar factors for their gradient.

    As `gaussian_w2`, errors too. Memory: as there, and ``keep_limit`` bytes that stay: of the
    polar factors no more are kept.

    Args:
        source: laws of the rows.
        target: laws of the columns.
        accuracy: as for `gaussian_w2`.
        floor: on an accelerator, directions of ``F G^T`` that the polar factors follow, relative
            to its largest.
        keep_limit: bytes of polar factors.
        memory_limit: bytes of temporaries of the polar method; None: 512 MB.
        due: (Vx, Vy) and (Vx, Vx) bool, pairs to measure; of the others the entry is NaN. None:
            all of them.
    """
    couplings = Couplings(floor, keep_limit)
    wanted = ((0, 1), (0, 0))
    xy, xx = _parts((source, target), wanted, "auto", accuracy, memory_limit, couplings, due)
    return CoupledCost(xy[0] + xy[1], xx[0] + xx[1], couplings, (xy[0], xx[0]))


def usual_accuracy(source: ClassLaws, target: ClassLaws) -> float:
    """Return the accuracy that distances have unless told: 1e-10, 1e-7 where that takes minutes."""
    if source.factors is None or target.factors is None:
        return ACCURACY
    work = 1.0
    for factors in (source.factors, target.factors):
        work *= sum(factor.shape[0] ** 1.5 for factor in factors)
    return FAST_ACCURACY if work > FAST_WORK else ACCURACY


def accuracy_notes(source: ClassLaws, target: ClassLaws) -> list[str]:
    """Return what a result says of label costs that are less exact than usual."""
    accuracy = usual_accuracy(source, target)
    # the CPU takes singular values
    if accuracy == ACCURACY or source.means.device.type == "cpu":
        return []
    return [
        f"label costs of {source.classes:,} x {target.classes:,} classes: |F G^T|_* to "
        f"{accuracy:g} of its size, by a bound for each pair"
    ]


def _blocks(
    laws: tuple[ClassLaws, ClassLaws],
    wanted: Sequence[tuple[int, int]],
    method: str,
    accuracy: float | None,
    memory_limit: int | None,
) -> list[Tensor]:
    parts = _parts(laws, wanted, method, accuracy, memory_limit)
    return [gap.add_(part) for gap, part in parts]


def _parts(
    laws: tuple[ClassLaws, ClassLaws],
    wanted: Sequence[tuple[int, int]],
    method: str,
    accuracy: float | None,
    memory_limit: int | None,
    couplings: Couplings | None = None,
    due: Sequence[Tensor] | None = None,  # bool, of the shape of each block; None: all pairs
) -> list[tuple[Tensor, Tensor]]:
    """Return what means and what covariances contribute to each block."""
    check_laws(laws)
    accuracy = usual_accuracy(*laws) if accuracy is None else accuracy
    check_choice("method", method, METHODS)
    if not 1e-12 <= accuracy <= 1e-2:
        raise SettingsError(f"accuracy is {accuracy!r}, expected a number from 1e-12 to 1e-2")
    means = [_gaps(laws[i].means, laws[j].means) for i, j in wanted]
    none = [(gap, gap.new_zeros(())) for gap in means]
    spreads = [law.variances for law in laws]
    if spreads[0] is not None and spreads[1] is not None:
        deviations = [s.sqrt() for s in spreads if s is not None]
        gaps = [_gaps(deviations[i], deviations[j]) for i, j in wanted]
        return list(zip(means, gaps, strict=True))
    if laws[0].factors is None or laws[1].factors is None:
        return none
    factors, ids = _numbered([*laws[0].factors, *laws[1].factors])
    side = (ids[: laws[0].classes], ids[laws[0].classes :])
    if couplings is not None:
        couplings.name(side)
    if len(factors) == 1 and due is None:
        # of one sample each, say: laws that differ by their means alone
        return none
    codes = []
    for i, j in wanted:
        a, b = np.broadcast_arrays(side[i][:, None], side[j][None, :])
        codes.append(np.minimum(a, b) * len(factors) + np.maximum(a, b))
    every = np.concatenate([c.ravel() for c in codes])
    chosen = None if due is None else torch.cat([d.flatten() for d in due])
    code, inverse = np.unique(
        every if chosen is None else every[chosen.cpu().numpy()], return_inverse=True
    )
    pairs = np.stack(np.divmod(code, len(factors)), axis=1)
    apart = pairs[:, 0] != pairs[:, 1]
    values = means[0].new_zeros(len(pairs))
    if apart.any():
        numbers = torch.from_numpy(pairs[apart])
        if method == "polar" or (method == "auto" and values.device.type != "cpu"):
            found = batched_pairs(factors, numbers, accuracy, memory_limit, couplings)
        else:
            found = svd_pairs(factors, numbers, couplings)
        values[torch.from_numpy(apart).to(values.device)] = found
    each = values[torch.from_numpy(inverse.ravel()).to(values.device)]
    if chosen is not None:
        whole = values.new_full((len(every),), torch.nan)
        whole[chosen.to(values.device)] = each
        each = whole
    parts = each.split([c.size for c in codes])
    return [(gap, part.view(gap.shape)) for gap, part in zip(means, parts, strict=True)]


def _gaps(x: Tensor, y: Tensor) -> Tensor:  # (V, d), (W, d) -> (V, W)
    """Squared distances from differences: exactly zero, without cancellation."""
    # on a CPU inside the cache
    step = max(1, (1 << (20 if y.device.type == "cpu" else 22)) // max(1, y.numel()))
    out = x.new_empty((x.shape[0], y.shape[0]))
    for found, rows in zip(out.split(step), x.split(step), strict=True):
        torch.sum((rows[:, None] - y[None]).square_(), 2, out=found)
    return out


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
