r"""Values of training samples by the distance to a target: ``otdd_flash.value``.

A calibrated potential says how the distance to the target changes when sample i weighs more and all
others less (LAVA): with debiased potentials F

.. math::
    v_i = F_i - \sum_{j \ne i} a_j F_j / (1 - a_i)

higher where a sample is foreign to the target. The same with the features alone, at the same eps,
says how foreign the sample looks; the rest is what its label adds. Of the rest, the mean over a
class is the price of the class, too many of which the dataset may have; what remains is the
sample's own: how ill its label fits its features. A wrong label shows there, however usual the
sample looks.

Source: Just et al. 2023, "LAVA: data valuation without pre-specified learning algorithms",
equation 2; debiased potentials, Feydy et al. 2019.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace

import torch
from torch import Tensor

from otdd_flash.cost import check_dimensions
from otdd_flash.errors import SettingsError
from otdd_flash.inputs import given_or_default
from otdd_flash.laws.bures import LabelCost
from otdd_flash.many.findings import Values
from otdd_flash.ops import resolve_device
from otdd_flash.potentials import debiased_potentials, equal_note
from otdd_flash.prepared import Prepared, clouds_of, notes_of, prepare_pair_steps
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.divergence import Divergence, divergence_steps, warn_unconverged
from otdd_flash.timing import Laps, device_name, versions
from otdd_flash.types import LabelledDataset, Progress, finish


def value(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings | None = None,
) -> Values:
    """Return how foreign each source sample is to the target, and why.

    Args:
        src: the samples to value.
        tgt: what they are to be good for: a validation set with labels one trusts.
        settings: as for :func:`distance`; None: the defaults.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError: input that cannot be used.

    Warns:
        ConvergenceWarning: a marginal error above ``tol``.

    Memory: O(n + m) beside the points; on the CPU stored costs where they fit the budget.
    """
    return finish(value_steps(src, tgt, settings))


def value_steps(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings | None = None,
) -> Generator[Progress, None, Values]:
    """Compute as :func:`value` does, yielding progress to whoever shows it."""
    clock, settings = Laps(), given_or_default(settings, OTDDSettings)
    check_dimensions(src, tgt)
    if int((src.weights > 0).sum()) < 2:
        raise SettingsError(
            f"{src.name} has one sample of positive weight; a value compares it with others"
        )
    device = resolve_device(settings.device)
    x, y, costs = yield from prepare_pair_steps(src, tgt, settings, device)
    found = yield from _solved(x, y, costs, settings)
    whole = debiased_potentials(x, y, found)[0]
    looks, solves = torch.zeros_like(whole), [found]
    if settings.lambda_x > 0 and settings.lambda_y > 0:
        # the same eps: what differs is the label cost alone
        plain = replace(settings, lambda_y=0.0, epsilon=found.epsilon)
        solves.append((yield from _solved(x, y, costs, plain)))
        looks = debiased_potentials(x, y, solves[1])[0]
    elif settings.lambda_x > 0:
        looks = whole
    kept = x.rows
    labels, weights = src.labels.cpu()[kept], src.weights.cpu()[kept]
    rest = (whole - looks)[kept]
    by_class = _class_means(rest, labels, weights)[labels]
    parts = [whole[kept], looks[kept], by_class, rest - by_class]
    placed = [_placed(_calibrated(part, weights), kept, len(src)) for part in parts]
    return Values(
        # classes without weight have rows in the values too
        source=replace(x.summary, classes=src.classes, class_names=src.class_names),
        target=y.summary,
        value=placed[0],
        features=placed[1],
        class_part=placed[2],
        label=placed[3],
        labels=src.labels.cpu(),
        rows=src.rows,
        squared=found.value,
        squared_bounds=(found.bounds.lower, found.bounds.upper),
        marginal_error=max(s.error for s in solves),
        converged=all(s.converged for s in solves),
        epsilon=found.epsilon,
        settings=settings,
        seconds=clock.total(),
        device=device_name(device),
        versions=versions(),
        notes=notes_of([(x, y)]) + equal_note(placed[0]),
    )


def _solved(
    x: Prepared, y: Prepared, costs: LabelCost, settings: OTDDSettings
) -> Generator[Progress, None, Divergence]:
    clouds = clouds_of(x, y, costs, settings)
    found = yield from divergence_steps(clouds, settings, certify=False, keep=True)
    warn_unconverged(found, settings)
    return found


def _class_means(values: Tensor, labels: Tensor, weights: Tensor) -> Tensor:  # (V,)
    """Return the weighted mean of values over each class; 0 for a class without weight."""
    count = int(labels.max()) + 1
    mass = torch.zeros(count, dtype=torch.float64).index_add_(0, labels, weights)
    total = torch.zeros_like(mass).index_add_(0, labels, weights * values)
    return total / mass.clamp(min=torch.finfo(torch.float64).tiny)


def _calibrated(potential: Tensor, weights: Tensor) -> Tensor:  # (n,)
    """Return each potential less the mean of the others'."""
    weights = weights / weights.sum()
    return (potential - weights @ potential) / (1 - weights)


def _placed(values: Tensor, rows: Tensor, size: int) -> Tensor:
    out = torch.full((size,), torch.nan, dtype=torch.float64)
    out[rows] = values
    return out
