"""All distances among many datasets: ``otdd_flash.matrix``."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.confidence import Confidence
from otdd_flash.errors import SettingsError
from otdd_flash.inputs import check_datasets, given_or_default
from otdd_flash.many.findings import MatrixResult, PairValue
from otdd_flash.many.pairfolder import PairFolder, description
from otdd_flash.many.pairs import pair_steps, unique_names
from otdd_flash.many.shared import Pair
from otdd_flash.ops import resolve_devices
from otdd_flash.settings import OTDDSettings
from otdd_flash.timing import device_names, versions
from otdd_flash.types import LabelledDataset, Progress, finish


def matrix(
    datasets: Sequence[LabelledDataset],
    settings: OTDDSettings | None = None,
    *,
    confidence: Confidence | None = None,
    devices: Sequence[str] | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> MatrixResult:
    """Return the distances among all datasets, with bounds for every entry.

    Args:
        datasets: two or more, of one number of features.
        settings: as for :func:`distance`; a relative epsilon is a share of the mean cost averaged
            over all pairs, so that one eps serves them all. None: the defaults.
        confidence: resamples for an interval of each entry, and noise floors.
        devices: that share the pairs: "all" GPUs, or names; None: the settings' device alone.
        out: folder in which finished pairs are kept as the run goes.
        resume: go on with the run in ``out``; pairs that are finished are read.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError: input that cannot be used.

    Warns:
        ConvergenceWarning: pairs whose marginal error is above ``tol``.

    Memory: all datasets on the device, and what one distance takes.
    """
    return finish(
        matrix_steps(
            datasets, settings, confidence=confidence, devices=devices, out=out, resume=resume
        )
    )


def matrix_steps(
    datasets: Sequence[LabelledDataset],
    settings: OTDDSettings | None = None,
    *,
    confidence: Confidence | None = None,
    devices: Sequence[str] | str | None = None,
    out: str | Path | None = None,
    resume: bool = False,
) -> Generator[Progress, None, MatrixResult]:
    """Compute as :func:`matrix` does, yielding progress to whoever shows it."""
    settings = given_or_default(settings, OTDDSettings)
    confidence = given_or_default(confidence, Confidence)
    check_datasets(datasets)
    count = len(datasets)
    if count < 2:
        raise SettingsError(f"{count} dataset(s) arrived; a matrix needs two or more")
    if resume and out is None:
        raise SettingsError("resume without out: there is no folder to go on with")
    machines = resolve_devices(devices, settings.device)
    names = unique_names(datasets)
    store = None
    if out is not None:
        run = description(datasets, names, settings, confidence)
        store = PairFolder(out, run, resume=resume)
    pairs = [(i, j) for i in range(count) for j in range(i + 1, count)]
    floors = range(count) if confidence.noise_floor else ()
    found = yield from pair_steps(
        datasets, names, pairs, settings, confidence, devices=machines, store=store, floors=floors
    )
    values = found.values

    def entries(get: Any, kind: torch.dtype = torch.float64, diagonal: Any = 0.0) -> Tensor:
        return _symmetric(values, count, get, kind, diagonal)

    half_width = None
    if confidence.bootstrap:
        half_width = entries(lambda v: v.interval.half_width)
    return MatrixResult(
        datasets=tuple(p.summary for p in found.prepared),
        names=names,
        distance=entries(lambda v: v.distance),
        squared=entries(lambda v: v.squared),
        squared_lower=entries(lambda v: v.squared_bounds[0]),
        squared_upper=entries(lambda v: v.squared_bounds[1]),
        transport_lower=entries(lambda v: v.transport.lower),
        transport_upper=entries(lambda v: v.transport.upper),
        mean_cost=entries(lambda v: v.mean_cost),
        marginal_error=entries(lambda v: v.marginal_error),
        converged=entries(lambda v: v.converged, torch.bool, True),
        half_width=half_width,
        noise_floor=found.noise_floor,
        epsilon=found.epsilon,
        seed=confidence.seed,
        resamples=confidence.bootstrap,
        settings=settings,
        seconds=found.seconds,
        device=device_names(machines),
        versions=versions("scipy", "scikit-learn"),
        notes=found.notes,
    )


def _symmetric(
    values: dict[Pair, PairValue], count: int, get: Any, kind: torch.dtype, diagonal: Any
) -> Tensor:  # (count, count)
    out = torch.full((count, count), diagonal, dtype=kind)
    for (i, j), value in values.items():
        out[i, j] = out[j, i] = get(value)
    return out


def positions(
    result: MatrixResult,
) -> tuple[np.ndarray, float]:  # (K, 2) in units of the distance, and the stress
    """Return a plane in which the datasets lie about as far apart as they are, by MDS.

    Starts at the principal coordinates (Torgerson 1952), so that a run gives one map. The stress
    (Kruskal's stress-1) is 0 for a perfect map, and above 0.2 for a poor one.
    """
    from sklearn.manifold import smacof

    distance = result.distance.numpy()
    count = len(distance)
    if not distance.any():
        return np.zeros((count, 2)), 0.0
    centring = np.eye(count) - 1 / count
    values, vectors = np.linalg.eigh(-centring @ distance**2 @ centring / 2)
    first = vectors[:, -2:] * np.sqrt(values[-2:].clip(min=0))
    place, _ = smacof(distance, metric=True, init=first[:, ::-1], n_init=1, normalized_stress=False)
    # the largest spread runs from left to right, and the first dataset lies on the upper left
    place = place - place.mean(0)
    _, _, turn = np.linalg.svd(place, full_matrices=False)
    place = place @ turn.T
    place = place * np.where(place[0] * [-1, 1] < 0, -1.0, 1.0)
    gaps = np.linalg.norm(place[:, None] - place[None], axis=-1)
    stress = float(((gaps - distance) ** 2).sum() / (distance**2).sum()) ** 0.5
    return place, stress


def linkage(
    result: MatrixResult,
) -> np.ndarray:  # (K - 1, 4) as scipy.cluster.hierarchy.linkage gives it
    """Return the hierarchy of the datasets by average linkage."""
    from scipy.cluster import hierarchy
    from scipy.spatial.distance import squareform

    return hierarchy.linkage(squareform(result.distance.numpy(), checks=False), "average")
