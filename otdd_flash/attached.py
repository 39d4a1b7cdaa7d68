r"""Gradients through the label cost: Wasserstein distances -> class laws -> samples.

With covariances ``A = F^T F`` of a source class and ``B = G^T G`` of a target class, and Q the
polar factor of ``F G^T``, the optimal map between the laws takes a row x to ``x T``,
``T = F^+ Q G``, and

.. math::
    dW_2/d\mu = 2 (\mu - \nu), \quad dW_2/dF = 2 (F - Q G) = 2 F (I - T)

Samples have ``sqrt(w) (x - mean) = V F`` with ``V^T V = I``, so that

.. math::
    dW_2/dx_i = 2 w_i ((\mu - \nu) + (x_i - \mu)(I - T)), \quad
    dW_2/dw_i = 2 (x_i - \mu) (\mu - \nu)^T + (x_i - \mu)(I - T)(x_i - \mu)^T

T acts on rows in the range of the law alone, where it is unique. Where ``F G^T`` has null singular
values on both sides the distance has a kink, and Q is the polar factor of least norm, for which a
class in a subspace that the target leaves stays in it. Nothing is divided by differences of
eigenvalues: equal laws, classes of fewer samples than features and point masses need no care.

Source: Bhatia, Jain and Lim 2019, "On the Bures-Wasserstein distance between positive definite
matrices", section 3 (the map, the gradient); Alvarez-Melis and Fusi 2021, section 4 (attached
labels).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from otdd_flash.bures import LabelCost, check_laws
from otdd_flash.cost import Side
from otdd_flash.couplings import NOISE, Couplings, decomposed
from otdd_flash.errors import DataError
from otdd_flash.factor_pairs import MEMORY_LIMIT
from otdd_flash.factors import pivots
from otdd_flash.gaussians import ClassLaws, class_groups
from otdd_flash.moments import ClassSample
from otdd_flash.polar import polar_factor
from otdd_flash_kernels.workers import spread


@dataclass(frozen=True, eq=False)
class LawPull:
    """The derivative of a number with respect to V class laws.

    For factors it is ``2 F_c sum_k m_ck (I - T_ck)``, of the shape of the factor; with respect to
    a variance ``sum_k m_ck (1 - t_k / s_c)``, s and t the standard deviations.
    """

    means: Tensor  # (V, d) float64
    variances: Tensor | None = None  # (V, d), laws of the kind "diagonal"
    factors: tuple[Tensor, ...] | None = None  # V of (rank_c, d), laws of the kind "gaussian"

    def __add__(self, other: LawPull) -> LawPull:
        """Return the derivative of a sum, with respect to the same laws."""
        variances, factors = None, None
        if self.variances is not None and other.variances is not None:
            variances = self.variances + other.variances
        if self.factors is not None and other.factors is not None:
            factors = tuple(p + q for p, q in zip(self.factors, other.factors, strict=True))
        return LawPull(self.means + other.means, variances, factors)


def law_pull(
    source: ClassLaws,  # Vx laws, which move
    target: ClassLaws,  # Vy laws of the same kind, d and device, which stay
    mass: Tensor,  # (Vx, Vy) weights of the distances, of any sign
    *,
    floor: float = NOISE,
    memory_limit: int = MEMORY_LIMIT,
    couplings: Couplings | None = None,  # of `coupled_cost` of the source with any target
) -> LawPull:
    """Return the derivative of ``sum_ck mass[c, k] W2[c, k]`` with respect to the source laws.

    In a block of one dataset against itself both sides move: pass the same laws twice and
    ``mass + mass^T``. Pairs of weight zero and of equal laws cost nothing, those whose polar
    factors were kept a product. On an accelerator directions of ``F G^T`` below ``floor``,
    relative to its largest, are followed in part.

    Raises:
        DataError: laws of different d or devices, or a mass of another shape.
        SettingsError: different kinds.
        WeightError: a class of mass zero.

    Memory: ``memory_limit`` and as much as the source factors; never (Vx, Vy, d, d).
    """
    check_laws((source, target))
    if mass.shape != (source.classes, target.classes):
        raise DataError(
            f"mass has shape {tuple(mass.shape)}, expected {(source.classes, target.classes)}: "
            "one weight a pair of classes"
        )
    mass = mass.to(source.means.device, torch.float64)
    rows = mass.sum(1)[:, None]
    # from a point between, so that a common offset costs no digits
    centre = target.means.mean(0)
    means = 2.0 * (rows * (source.means - centre) - mass @ (target.means - centre))
    if source.variances is not None and target.variances is not None:
        deviation = source.variances.sqrt()
        ratio = (mass @ target.variances.sqrt()) / deviation.where(deviation > 0, 1.0)
        return LawPull(means, rows - ratio * (deviation > 0))
    if source.factors is None or target.factors is None:
        return LawPull(means)
    pairs = _Pairs(source.factors, target.factors, mass, couplings)
    return LawPull(means, None, pairs.pulls(floor, memory_limit))


class _Pairs:
    """Pairs of factors that pull: ``2 sum_k m_ck (F_c - Q_ck G_k)``, in one order everywhere."""

    def __init__(
        self,
        sources: tuple[Tensor, ...],  # Vx of (rank_c, d)
        targets: tuple[Tensor, ...],  # Vy of (rank_k, d)
        mass: Tensor,  # (Vx, Vy)
        couplings: Couplings | None,
    ) -> None:
        self.sources, self.targets, self.mass = sources, targets, mass.tolist()
        self.couplings = couplings
        # of laws against themselves, Q_kc is the transpose of Q_ck
        self.inner = sources is targets
        weight = (mass.abs() + mass.abs().mT).triu(1) if self.inner else mass
        self.wanted: list[tuple[int, int]] = torch.nonzero(weight).tolist()
        self.out = [torch.zeros_like(factor) for factor in sources]

    def pulls(self, floor: float, memory_limit: int) -> tuple[Tensor, ...]:  # Vx of (rank_c, d)
        """Return the pulls: pairs whose Q was kept first, then the others in batches."""
        left = []
        for c, k in self.wanted:
            q = self.couplings.between(c, k, self.inner) if self.couplings else None
            if q is not None:
                self._add(c, k, q)
            elif not torch.equal(self.sources[c], self.targets[k]):
                left.append((c, k))
        d = self.sources[0].shape[1]
        rank = max(factor.shape[0] for factor in (*self.sources, *self.targets))
        step = max(1, memory_limit // (8 * max(1, rank) * (2 * d + 6 * rank)))
        for first in range(0, len(left), step):
            part = left[first : first + step]
            factors = _polar_factors([(self.sources[c], self.targets[k]) for c, k in part], floor)
            for (c, k), q in zip(part, factors, strict=True):
                self._add(c, k, q)
        return tuple(self.out)

    def _add(self, c: int, k: int, q: Tensor) -> None:
        f, g = self.sources[c], self.targets[k]
        self.out[c] += (2.0 * self.mass[c][k]) * torch.addmm(f, q, g, alpha=-1)
        if self.inner:
            self.out[k] += (2.0 * self.mass[k][c]) * torch.addmm(g, q.mT, f, alpha=-1)


def _polar_factors(
    pairs: list[tuple[Tensor, Tensor]],  # P of (r, d) and (s, d)
    floor: float,
) -> list[Tensor]:  # P of (r, s)
    if pairs[0][0].device.type == "cpu":
        return spread(lambda pair: decomposed(*pair)[0], pairs)
    pad = torch.nn.utils.rnn.pad_sequence
    f, g = (pad([pair[k] for pair in pairs], batch_first=True) for k in (0, 1))
    q = polar_factor(f @ g.mT, floor)
    return [q[p, : len(f), : len(g)] for p, (f, g) in enumerate(pairs)]


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
