"""The noise floor of a dataset: how far apart two halves of it are.

A distance of that size says no more than that both sets have as many samples.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch

from otdd_flash.errors import SettingsError
from otdd_flash.ops import resolve_device
from otdd_flash.prepared import clouds_of, prepare_pair_steps
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.divergence import divergence_steps, warn_unconverged
from otdd_flash.types import LabelledDataset, NoiseFloor, Progress

Value = TypeVar("Value")


def check_halves(datasets: Iterable[LabelledDataset]) -> None:
    """Refuse datasets of one sample, before anything is computed of them.

    Raises:
        SettingsError: naming the dataset.
    """
    for dataset in datasets:
        if int((dataset.weights > 0).sum()) < 2:
            raise SettingsError(
                f"{dataset.name} has one sample: there are no two halves for a noise floor"
            )


def halves(dataset: LabelledDataset, seed: int) -> tuple[LabelledDataset, LabelledDataset]:
    """Return two disjoint halves with the same share of each class, drawn by a seed.

    Raises:
        SettingsError: a dataset of one sample.
    """
    check_halves([dataset])
    used = (dataset.weights > 0).nonzero()[:, 0].cpu()
    shuffled = used[torch.from_numpy(np.random.default_rng(seed).permutation(len(used)))]
    labels = dataset.labels.cpu()[shuffled]
    # sorted by class, every other sample goes to one half
    dealt = shuffled[torch.argsort(labels, stable=True)]
    parts = (dealt[k::2].sort().values.to(dataset.points.device) for k in (0, 1))
    first, second = (dataset.subset(rows, half=k + 1) for k, rows in enumerate(parts))
    return first, second


def floor_steps(
    dataset: LabelledDataset,
    epsilon: float,  # in units of the cost, that of the distances to compare with
    settings: OTDDSettings,
    seed: int,
) -> Generator[Progress, None, NoiseFloor]:
    """Return the squared distance between two halves of a dataset, class laws of their own."""
    parts = halves(dataset, seed)
    device = resolve_device(settings.device)
    prepare = prepare_pair_steps(*parts, settings, device)
    x, y, costs = yield from _relabelled(prepare, dataset.name)
    clouds = clouds_of(x, y, costs, settings)
    fixed = replace(settings, epsilon=epsilon)
    solve = divergence_steps(clouds, fixed, certify=False)
    found = yield from _relabelled(solve, dataset.name)
    warn_unconverged(found, fixed)
    bounds = (found.bounds.lower, found.bounds.upper)
    return NoiseFloor(found.value, bounds, min(map(len, parts)), seed)


def _relabelled(
    walk: Generator[Progress, None, Value], name: str
) -> Generator[Progress, None, Value]:
    """Report the progress of a walk as that of the noise floor of a dataset."""
    while True:
        try:
            state = next(walk)
        except StopIteration as end:
            return end.value
        yield Progress("noise floor", 0, None, f"{name}: {state.stage} {state.note}".strip())
