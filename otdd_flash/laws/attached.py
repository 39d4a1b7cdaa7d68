r"""Gradients through the label cost: Wasserstein distances -> class laws -> samples.

Distances pull laws by ``2 (mu - nu)`` and ``2 F (I - T)`` (see `law_pulls`). Samples have
``sqrt(w) (x - mean) = V F`` with ``V^T V = I``, so that

.. math::
    dW_2/dx_i = 2 w_i ((\mu - \nu) + (x_i - \mu)(I - T)), \quad
    dW_2/dw_i = 2 (x_i - \mu) (\mu - \nu)^T + (x_i - \mu)(I - T)(x_i - \mu)^T

Source: Alvarez-Melis and Fusi 2021, section 4 (attached labels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otdd_flash.cost import Side
from otdd_flash.errors import DataError
from otdd_flash.laws.bures import LabelCost
from otdd_flash.laws.factors import pivots
from otdd_flash.laws.gaussians import ClassLaws, class_groups
from otdd_flash.laws.law_pulls import LawPull, law_pull
from otdd_flash.laws.moments import ClassSample


def points_pull(
    points: Tensor,  # (n, d) real, on any device
    labels: Tensor,  # (n,) int64
    weights: Tensor,  # (n,) >= 0
    laws: ClassLaws,  # `class_laws` of these samples
    pull: LawPull,
) -> Tensor:  # (n, d) in the points' dtype, float64 for integers
    """Return a derivative with respect to the laws as one with respect to the samples.

    Samples of weight zero are in no law: zeros. Memory: chunks of 64 MB and three float64 copies
    of a class of at most d samples, beside the result.

    Raises:
        DataError: laws that are not those of the samples.
    """
    dtype = points.dtype if points.is_floating_point() else torch.float64
    out = torch.zeros(points.shape, dtype=dtype, device=points.device)
    for part in _class_parts(points, labels, weights, laws, pull):
        out[part.rows] = (part.weights[:, None] * part.slope).to(out)
    return out


def weights_pull(
    points: Tensor,  # (n, d)
    labels: Tensor,  # (n,) int64
    weights: Tensor,  # (n,) >= 0, sum 1
    laws: ClassLaws,  # `class_laws` of these samples
    pull: LawPull,
) -> Tensor:  # (n,) float64
    """Return a derivative with respect to the laws as one with respect to the weights.

    Laws know weights relative to those of the class, so the gradient is centred in each class:
    ``sum_i w_i g_i = 0``. Samples of weight zero get zero. Raises and memory as `points_pull`.
    """
    out = torch.zeros(points.shape[0], dtype=torch.float64, device=points.device)
    weights = weights.to(points.device, torch.float64)
    for part in _class_parts(points, labels, weights, laws, pull):
        # the slope is 2 (mean - nu) + 2 z (I - T), and of the second part z meets half
        slope = (part.offset * (part.slope + pull.means[part.label])).sum(1) / 2
        out[part.rows] = slope.to(out)
    for rows, w in class_groups(labels.to(points.device), weights, laws.classes):
        mass = w.sum()
        out[rows] = (out[rows] - (w / mass) @ out[rows]) / mass
    return out


class _Part(NamedTuple):
    """Samples of one class and how a function of the laws changes along each of them."""

    label: int
    rows: Tensor  # (k,) int64
    weights: Tensor  # (k,) float64, share of the class
    offset: Tensor  # (k, d) x - mean
    slope: Tensor  # (k, d) derivative with respect to the sample, over its weight


def _class_parts(
    points: Tensor,
    labels: Tensor,
    weights: Tensor,
    laws: ClassLaws,
    pull: LawPull,
) -> Iterator[_Part]:
    if points.ndim != 2 or points.shape[1] != laws.dimension:
        raise DataError(
            f"points have shape {tuple(points.shape)}, the laws {laws.dimension} features; "
            "expected the samples that the laws were made of"
        )
    groups = class_groups(
        labels.to(points.device), weights.to(points.device, torch.float64), laws.classes
    )
    for label, (rows, w) in enumerate(groups):
        sample = ClassSample(points, rows, w, laws.means.device)
        bend = _bend(label, sample, laws, pull)
        start = 0
        for z, share in sample.centred():
            offset = z.new_zeros(len(z), laws.dimension)
            offset[:, sample.active] = z
            place = slice(start, start + len(z))
            slope = pull.means[label] + 2.0 * bend(offset, place)
            yield _Part(label, rows[place], share / sample.total, offset, slope)
            start += len(z)


def _bend(
    label: int,
    sample: ClassSample,
    laws: ClassLaws,
    pull: LawPull,
) -> Callable[[Tensor, slice], Tensor]:
    """Return what takes offsets z (k, d) and their places in the class to ``sum_k m z (I - T)``."""
    if pull.variances is not None:
        scale = pull.variances[label]
        return lambda z, _: z * scale
    if pull.factors is None or laws.factors is None:
        return lambda z, _: torch.zeros_like(z)
    factor, half = laws.factors[label], pull.factors[label] / 2
    if sample.by_rows:
        if len(factor) != max(0, len(sample.rows) - 1):
            raise _strange(label, factor, sample)
        # rows sqrt(w) z (I - T), the factor's own turned back
        turned = sample.turned_back(half) / (sample.weights / sample.total).sqrt()[:, None]
        return lambda _, place: turned[place]
    if len(factor) > len(sample.active):
        raise _strange(label, factor, sample)
    columns = pivots(factor)
    # z = v F is v R on the pivot columns, R triangular: z (I - T) = z R^-1 (F - Q G)
    solved = torch.linalg.solve_triangular(factor[:, columns], half, upper=True)
    return lambda z, _: z[:, columns] @ solved


def _strange(label: int, factor: Tensor, sample: ClassSample) -> DataError:
    return DataError(
        f"class {label} has a factor of {len(factor)} rows for {len(sample.rows):,} samples that "
        f"vary in {len(sample.active)} features; pass the laws that class_laws gives for them"
    )


def attached_cost(
    points: tuple[Tensor, Tensor],  # (n, d) and (m, d), which may ask for gradients
    weights: tuple[Tensor, Tensor],  # (n,) and (m,), too
    sides: tuple[Side, Side],  # the values of both, by class, on the device of the laws
    laws: tuple[ClassLaws, ClassLaws],  # `class_laws` of the sides
    costs: LabelCost,  # `label_cost` of the laws
) -> LabelCost:
    """Return the label cost as a function of the samples: differentiable, the same numbers.

    Memory: both sides and their laws are kept for the backward pass.
    """
    return LabelCost(*_AttachedCost.apply(*points, *weights, (sides, laws, costs)))


class _AttachedCost(torch.autograd.Function):
    """Label costs as they are; their derivatives by `law_pull`, `points_pull`, `weights_pull`."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        *tensors, ctx.kept = inputs
        ctx.likes = [(t.shape, t.dtype, t.device) for t in tensors]
        costs: LabelCost = ctx.kept[2]
        return costs.xy.clone(), costs.xx.clone(), costs.yy.clone()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, xy: Tensor, xx: Tensor, yy: Tensor) -> tuple[Tensor | None, ...]:
        sides, laws, _ = ctx.kept
        out: list[Tensor | None] = [None] * 5
        for k, (cross, inner) in enumerate(((xy, xx), (xy.mT, yy))):
            if not (ctx.needs_input_grad[k] or ctx.needs_input_grad[2 + k]):
                continue
            pull = law_pull(laws[k], laws[1 - k], cross)
            # both laws of a pair inside the dataset move
            pull = pull + law_pull(laws[k], laws[k], inner + inner.mT)
            side: Side = sides[k]
            of_side = side.points, side.labels, side.weights, laws[k], pull
            for place, function in ((k, points_pull), (2 + k, weights_pull)):
                if ctx.needs_input_grad[place]:
                    shape, dtype, device = ctx.likes[place]
                    found = function(*of_side)
                    whole = torch.zeros(shape, dtype=found.dtype, device=found.device)
                    whole[side.order] = found
                    out[place] = whole.to(device, dtype)
        return tuple(out)
