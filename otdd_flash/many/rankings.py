"""Sources ordered by their distance to a target: ``otdd_flash.rank``."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence

import numpy as np

from otdd_flash.checks import shown
from otdd_flash.confidence import Confidence
from otdd_flash.errors import SettingsError
from otdd_flash.inputs import check_datasets, given_or_default
from otdd_flash.many.findings import RankedSource, Ranking
from otdd_flash.many.pairs import pair_steps, unique_names
from otdd_flash.ops import resolve_devices
from otdd_flash.settings import OTDDSettings
from otdd_flash.timing import device_names, versions
from otdd_flash.types import LabelledDataset, Progress, finish

FEWEST = 3  # sources from which a correlation is given


def rank(
    target: LabelledDataset,
    sources: Sequence[LabelledDataset],
    settings: OTDDSettings | None = None,
    *,
    scores: Mapping[str, float] | None = None,
    confidence: Confidence | None = None,
    devices: Sequence[str] | str | None = None,
) -> Ranking:
    """Return the sources ordered by their distance to the target, nearest first.

    Args:
        target: what one wants to transfer to.
        sources: candidates, one or more, of the target's number of features.
        settings: as for :func:`distance`; a relative epsilon is a share of the mean cost averaged
            over the sources, so that one eps serves them all. None: the defaults.
        scores: what was measured after transfer, by the name of the source; for three sources and
            more the correlations with the distance are given.
        confidence: resamples for an interval of each distance, and the noise floor of the target.
        devices: that share the sources: "all" GPUs, or names; None: the settings' device alone.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError: input that cannot be used.

    Warns:
        ConvergenceWarning: sources whose marginal error is above ``tol``.

    Memory: all datasets on the device, and what one distance takes.
    """
    return finish(
        rank_steps(target, sources, settings, scores=scores, confidence=confidence, devices=devices)
    )


def rank_steps(
    target: LabelledDataset,
    sources: Sequence[LabelledDataset],
    settings: OTDDSettings | None = None,
    *,
    scores: Mapping[str, float] | None = None,
    confidence: Confidence | None = None,
    devices: Sequence[str] | str | None = None,
) -> Generator[Progress, None, Ranking]:
    """Compute as :func:`rank` does, yielding progress to whoever shows it."""
    settings = given_or_default(settings, OTDDSettings)
    confidence = given_or_default(confidence, Confidence)
    check_datasets(sources)
    check_datasets([target])
    if not sources:
        raise SettingsError("no sources arrived; rank needs one or more")
    machines = resolve_devices(devices, settings.device)
    names = unique_names(sources)
    known = {} if scores is None else check_scores(scores, names)
    last = len(sources)
    found = yield from pair_steps(
        [*sources, target],
        [*names, target.name],
        [(k, last) for k in range(last)],
        settings,
        confidence,
        devices=machines,
        floors=[last] if confidence.noise_floor else [],
    )
    ranked = sorted(
        (
            RankedSource(names[k], found.prepared[k].summary, value, known.get(names[k]))
            for (k, _), value in found.values.items()
        ),
        key=lambda source: source.value.squared,
    )
    pearson, spearman = correlations([s for s in ranked if s.score is not None])
    return Ranking(
        target=found.prepared[last].summary,
        sources=tuple(ranked),
        pearson=pearson,
        spearman=spearman,
        epsilon=found.epsilon,
        seed=confidence.seed,
        noise_floor=found.noise_floor,
        settings=settings,
        seconds=found.seconds,
        device=device_names(machines),
        versions=versions("scipy"),
        notes=found.notes,
    )


def check_scores(scores: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Return the scores as floats.

    Raises:
        SettingsError: a name that is no source, or a score that is not a finite number.
    """
    strange = [name for name in scores if name not in names]
    if strange:
        raise SettingsError(
            f"scores for {', '.join(map(shown, strange[:5]))}, which are no sources; the sources "
            f"are {', '.join(names)}"
        )
    out = {}
    for name, score in scores.items():
        try:
            out[name] = float(score)
        except (TypeError, ValueError):
            out[name] = math.nan
        if not math.isfinite(out[name]):
            raise SettingsError(f"the score of {name} is {shown(score)}, expected a finite number")
    return out


Correlation = tuple[float, float] | None


def correlations(
    sources: Sequence[RankedSource],  # all with a score
) -> tuple[Correlation, Correlation]:  # Pearson's and Spearman's, each with its p-value
    """Return the correlations of distance and score, None for fewer than three or equal values."""
    from scipy import stats

    x = np.array([s.value.distance for s in sources])
    y = np.array([s.score for s in sources], dtype=float)
    if len(sources) < FEWEST or not np.ptp(x) or not np.ptp(y):
        return None, None
    linear, by_rank = stats.pearsonr(x, y), stats.spearmanr(x, y)
    return (
        (float(linear.statistic), float(linear.pvalue)),
        (float(by_rank.statistic), float(by_rank.pvalue)),
    )
