"""Distances of many pairs of datasets at one eps: what belongs to a dataset is computed once.

Preparation, class laws, self term and its resamples are shared by all pairs of a dataset. They
can be, since one eps serves all pairs: a relative one is a share of the mean cost averaged over
the pairs, which moments and label costs give without a pass.
"""

from __future__ import annotations

import warnings
from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch

from otdd_flash.confidence import Confidence
from otdd_flash.cost import check_dimensions
from otdd_flash.errors import ConvergenceWarning
from otdd_flash.many.crew import Piece, crew_steps
from otdd_flash.many.findings import PairValue
from otdd_flash.many.shared import Pair, Shared
from otdd_flash.noise import check_halves, floor_steps
from otdd_flash.prepared import Prepared, mean_cost, notes_of, prepare_steps
from otdd_flash.settings import OTDDSettings, parse_epsilon
from otdd_flash.solver.clouds import absolute_epsilon
from otdd_flash.timing import Laps
from otdd_flash.types import LabelledDataset, NoiseFloor, Progress


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


def pair_steps(
    datasets: Sequence[LabelledDataset],
    names: Sequence[str],  # of the datasets, all different
    pairs: Sequence[Pair],
    settings: OTDDSettings,
    confidence: Confidence,
    *,
    devices: Sequence[torch.device],  # that share the work
    store: PairStore | None = None,
    floors: Sequence[int] = (),  # datasets whose noise floor is wanted
) -> Generator[Progress, None, PairValues]:
    """Compute the distances of pairs of datasets, or read those that a store has.

    Memory: all datasets on each device, and what one distance takes.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError: input that cannot be used.

    Warns:
        ConvergenceWarning: once, naming the pairs whose marginal error is above ``tol``.
    """
    clock = Laps()
    for dataset in datasets[1:]:
        check_dimensions(datasets[0], dataset)
    check_halves(datasets[k] for k in floors)
    prepared = yield from prepare_steps(datasets, settings, devices[0])
    clock.lap("prepare")
    shared = Shared(prepared, settings, confidence)
    known = None if store is None else store.epsilon()
    if known is None:
        known = yield from _common_epsilon(shared, pairs)
        if store is not None:
            store.keep_epsilon(known)
    shared.epsilon = known
    shared.settings = replace(settings, epsilon=known)
    clock.lap("label costs")
    values = yield from _values(shared, names, pairs, devices, store, clock)
    noise: tuple[NoiseFloor, ...] = ()
    on_first = replace(settings, device=str(devices[0]))
    for k in floors:
        noise += ((yield from floor_steps(datasets[k], known, on_first, confidence.seed)),)
    if floors:
        clock.lap("noise floor")
    notes = notes_of((prepared[i], prepared[j]) for i, j in pairs)
    _warn_unconverged(values, names, settings)
    return PairValues(values, known, prepared, noise, clock.total(), notes)


def _values(
    shared: Shared,
    names: Sequence[str],
    pairs: Sequence[Pair],
    devices: Sequence[torch.device],
    store: PairStore | None,
    clock: Laps,
) -> Generator[Progress, None, dict[Pair, PairValue]]:
    """Return what a store has, and compute the rest: self terms first, then pairs."""
    read = {} if store is None else {pair: store.read(pair) for pair in pairs}
    values = {pair: value for pair, value in read.items() if value is not None}
    missing = [pair for pair in pairs if pair not in values]
    parts = [shared, *(shared.on(device) for device in devices[1:])]

    def alone(k: int) -> Piece:
        return names[k], lambda place: parts[place].self_steps(k)

    def between(pair: Pair) -> Piece:
        def work(place: int) -> Generator[Progress, None, None]:
            values[pair] = yield from parts[place].pair_steps(*pair)
            if store is not None:
                store.keep(pair, values[pair])

        return f"{names[pair[0]]} - {names[pair[1]]}", work

    if shared.settings.debias:
        needed = sorted({k for pair in missing for k in pair})
        yield from crew_steps("self terms", [alone(k) for k in needed], devices)
        clock.lap("self terms")
    yield from crew_steps("pairs", [between(pair) for pair in missing], devices)
    clock.lap("pairs")
    return {pair: values[pair] for pair in pairs}


def _common_epsilon(shared: Shared, pairs: Sequence[Pair]) -> Generator[Progress, None, float]:
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
