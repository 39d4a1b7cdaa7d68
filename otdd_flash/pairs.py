"""Distances of many pairs of datasets at one eps: what belongs to a dataset is computed once.

Preparation, class laws, self term and its resamples are shared by all pairs of a dataset. They
can be, since one eps serves all pairs: a relative one is a share of the mean cost averaged over
the pairs, which moments and label costs give without a pass.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from otdd_flash.bures import LabelCost, gaussian_w2
from otdd_flash.confidence import (
    Confidence,
    Draws,
    SelfProblem,
    cross_values,
    floor_steps,
    interval,
    relabelled,
    self_problem,
    self_values,
)
from otdd_flash.cost import check_dimensions
from otdd_flash.divergence import (
    Divergence,
    LabelledClouds,
    Term,
    absolute_epsilon,
    divergence_steps,
    self_term_steps,
)
from otdd_flash.errors import ConvergenceWarning
from otdd_flash.findings import PairValue
from otdd_flash.ops import resolve_device
from otdd_flash.prepared import Prepared, clouds_of, mean_cost, prepare_steps
from otdd_flash.types import (
    Interval,
    LabelledDataset,
    NoiseFloor,
    OTDDSettings,
    Progress,
    Transport,
    parse_epsilon,
)

Pair = tuple[int, int]


class PairStore(Protocol):
    """Where finished pairs are kept, so that an interrupted run goes on."""

    def epsilon(self) -> float | None:
        """Return the eps that the run was begun with, None at its beginning."""

    def keep_epsilon(self, epsilon: float) -> None:
        """Keep the eps of the run."""

    def read(self, pair: Pair) -> PairValue | None:
        """Return a finished pair, None where it is not."""

    def keep(self, pair: Pair, value: PairValue) -> None:
        """Keep a finished pair."""


@dataclass(frozen=True, eq=False)
class PairValues:
    """The values of pairs, and what they were computed with."""

    values: dict[Pair, PairValue]
    epsilon: float
    prepared: list[Prepared]
    noise_floor: tuple[NoiseFloor, ...]
    seconds: dict[str, float]
    device: torch.device
    notes: tuple[str, ...]


def unique_names(datasets: Sequence[LabelledDataset]) -> tuple[str, ...]:
    """Return the names of datasets, those that occur again with a number."""
    seen: dict[str, int] = {}
    out: list[str] = []
    for dataset in datasets:
        name, count = dataset.name, seen.get(dataset.name, 0) + 1
        seen[name] = count
        while count > 1 and f"{name} ({count})" in out:
            count += 1
        out.append(name if count == 1 and name not in out else f"{name} ({max(count, 2)})")
    return tuple(out)


@dataclass(eq=False)
class _Shared:
    """What pairs share of their datasets, made when first asked for."""

    prepared: list[Prepared]
    settings: OTDDSettings
    confidence: Confidence
    epsilon: float = 0.0
    costs: dict[Pair, Tensor] = field(default_factory=dict)  # squared units of the points
    terms: dict[int, Term] = field(default_factory=dict)
    resampled: dict[int, np.ndarray] = field(default_factory=dict)  # self terms, (B,)

    def label_cost(self, i: int, j: int) -> Tensor:  # (Vi, Vj)
        if (i, j) not in self.costs:
            self.costs[i, j] = gaussian_w2(self.prepared[i].laws, self.prepared[j].laws)
        return self.costs[i, j]

    def clouds(self, i: int, j: int) -> LabelledClouds:
        blocks = LabelCost(*(self.label_cost(*pair) for pair in ((i, j), (i, i), (j, j))))
        return clouds_of(self.prepared[i], self.prepared[j], blocks, self.settings)

    def self_term(self, i: int) -> Generator[Progress, None, Term]:
        """Return the self term of a dataset; its cost is freed."""
        if i not in self.terms:
            clouds = self.clouds(i, i)
            parts = (clouds.x, clouds.x, clouds.label_cost_x)
            problem = clouds.fine_problem(parts, self.settings, self.epsilon)
            self.terms[i] = yield from self_term_steps(
                problem, "self term", self.epsilon, self.settings
            )
        return self.terms[i]

    def draws(self, i: int) -> Draws:
        return Draws(self.prepared[i].side, self.confidence.seed, i)

    def self_problem(self, i: int) -> SelfProblem:
        clouds = self.clouds(i, i)
        return self_problem(
            clouds.x, clouds.label_cost_x, clouds.factor, self.terms[i], self.settings
        )

    def resampled_self(self, i: int) -> Generator[Progress, None, np.ndarray]:
        if i not in self.resampled:
            total, budget = self.confidence.bootstrap, self.settings.memory_budget
            walk = self_values(self.self_problem(i), self.draws(i), self.epsilon, total, budget)
            self.resampled[i] = yield from _counted(walk, total)
        return self.resampled[i]


def _counted(
    walk: Generator[int, None, np.ndarray], total: int
) -> Generator[Progress, None, np.ndarray]:
    while True:
        try:
            done = next(walk)
        except StopIteration as end:
            return end.value
        yield Progress("bootstrap", done, total)


def pair_steps(
    datasets: Sequence[LabelledDataset],
    names: Sequence[str],  # of the datasets, all different
    pairs: Sequence[Pair],
    settings: OTDDSettings,
    confidence: Confidence,
    store: PairStore | None = None,
    floors: Sequence[int] = (),  # datasets whose noise floor is wanted
) -> Generator[Progress, None, PairValues]:
    """Compute the distances of pairs of datasets, or read those that a store has.

    Memory: all datasets on the device, and what one distance takes.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError: input that cannot be used.

    Warns:
        ConvergenceWarning: once, naming the pairs whose marginal error is above ``tol``.
    """
    clock = _Laps()
    for dataset in datasets[1:]:
        check_dimensions(datasets[0], dataset)
    device = resolve_device(settings.device)
    prepared = yield from prepare_steps(datasets, settings, device)
    clock.lap("prepare")
    shared = _Shared(prepared, settings, confidence)
    known = None if store is None else store.epsilon()
    if known is None:
        known = yield from _common_epsilon(shared, pairs)
        if store is not None:
            store.keep_epsilon(known)
    shared.epsilon = known
    shared.settings = replace(settings, epsilon=known)
    clock.lap("label costs")
    values: dict[Pair, PairValue] = {}
    for done, (i, j) in enumerate(pairs):
        label = f"{names[i]} - {names[j]}"
        yield Progress("pairs", done, len(pairs), label)
        found = None if store is None else store.read((i, j))
        if found is None:
            found = yield from relabelled(_pair(shared, i, j), "pairs", label, done, len(pairs))
            if store is not None:
                store.keep((i, j), found)
        values[i, j] = found
    yield Progress("pairs", len(pairs), len(pairs), "")
    clock.lap("pairs")
    noise: tuple[NoiseFloor, ...] = ()
    for k in floors:
        noise += ((yield from floor_steps(datasets[k], known, settings, confidence.seed)),)
    if floors:
        clock.lap("noise floor")
    notes = tuple(note for p in prepared for note in p.notes)
    _warn_unconverged(values, names, settings)
    return PairValues(values, known, prepared, noise, clock.total(), device, notes)


def _common_epsilon(shared: _Shared, pairs: Sequence[Pair]) -> Generator[Progress, None, float]:
    """Return eps in units of the cost; a relative one is of the mean cost of all pairs."""
    settings = shared.settings
    value, relative = parse_epsilon(settings.epsilon)
    if not relative:
        return value
    means = []
    for done, (i, j) in enumerate(pairs):
        yield Progress("label costs", done, len(pairs))
        x, y = shared.prepared[i], shared.prepared[j]
        means.append(mean_cost(x, y, shared.label_cost(i, j), settings))
    yield Progress("label costs", len(pairs), len(pairs))
    return absolute_epsilon(settings.epsilon, sum(means) / len(means))


def _pair(shared: _Shared, i: int, j: int) -> Generator[Progress, None, PairValue]:
    clouds = shared.clouds(i, j)
    selves: tuple[Term, Term] | None = None
    if shared.settings.debias:
        first = yield from shared.self_term(i)
        selves = (first, (yield from shared.self_term(j)))
    found = yield from divergence_steps(clouds, shared.settings, selves=selves)
    assert found.transport is not None
    between = None
    if shared.confidence.bootstrap:
        between = yield from _bootstrap(shared, found, i, j)
    solution = found.cross.solution
    return PairValue(
        squared=found.value,
        squared_bounds=(found.bounds.lower, found.bounds.upper),
        transport=Transport(found.transport.lower, solution.value, found.transport.upper),
        mean_cost=found.mean_cost,
        marginal_error=found.error,
        converged=found.converged,
        passes=solution.passes,
        interval=between,
    )


def _bootstrap(
    shared: _Shared, found: Divergence, i: int, j: int
) -> Generator[Progress, None, Interval]:
    """Return the interval of a pair; the self terms of a resample are those of all its pairs."""
    total, budget = shared.confidence.bootstrap, shared.settings.memory_budget
    walk = cross_values(found, (shared.draws(i), shared.draws(j)), total, budget)
    values = yield from _counted(walk, total)
    if shared.settings.debias:
        for k in (i, j):
            values = values - (yield from shared.resampled_self(k)) / 2
    return interval(found.value, values, shared.confidence.seed)


def _warn_unconverged(
    values: dict[Pair, PairValue], names: Sequence[str], settings: OTDDSettings
) -> None:
    worst = sorted(
        ((value.marginal_error, pair) for pair, value in values.items() if not value.converged),
        reverse=True,
    )
    if worst:
        listed = ", ".join(f"{names[i]} - {names[j]} ({error:.1e})" for error, (i, j) in worst[:3])
        warnings.warn(
            f"{len(worst)} of {len(values)} pairs ended with an L1 marginal error above "
            f"tol={settings.tol:g}: {listed}{', ...' if worst[3:] else ''}; raise max_passes or "
            "epsilon; the bounds hold",
            ConvergenceWarning,
            stacklevel=3,
        )


class _Laps:
    """Seconds by stage."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = {}
        self._begin = self._last = time.perf_counter()

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self._seconds[stage] = now - self._last
        self._last = now

    def total(self) -> dict[str, float]:
        return {**self._seconds, "total": time.perf_counter() - self._begin}
