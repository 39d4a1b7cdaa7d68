r"""Bounds that hold for any potentials, converged or not.

Lower bound of the transport cost: the c-transforms of g are feasible for the unregularised dual,
so ``<a, g^c> + <b, g^cc> <= OT``. Upper bound: the plan of the potentials is scaled down until no
marginal is exceeded and the missing mass is added as a rank-one plan, which makes it feasible, so
its cost is at least OT. The same plan with its entropy bounds the regularised value from above,
the dual value bounds it from below.

Everything is streamed: four passes, O(n + m) memory. Bounds are widened by the rounding of the
arithmetic and by the distance that quantisation moved the points, so they hold for the points as
they were given.

Sources: rounding to the transport polytope, Altschuler, Weed and Rigollet 2017, algorithm 2;
c-transforms, Peyre and Cuturi 2019, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.operators import CostOperator
from otdd_flash.solver.sinkhorn import Solution
from otdd_flash_kernels.pair import CostPair, bilinear

# last bits that a sum of exponentials can lose; eps times that is what a softmin loses
SUM_ROUNDING = 16
# entries of softmins by class that become mass at once, on a GPU and inside a CPU's cache
SHARE_ENTRIES = (1 << 25, 1 << 18)


@dataclass(frozen=True)
class Bounds:
    """An interval that holds a value."""

    lower: float
    upper: float


@dataclass(frozen=True)
class RoundedPlan:
    """What a feasible plan made from potentials costs."""

    cost: float  # <plan, C>
    entropy: float  # KL(plan | a x b), an upper bound by convexity
    rounding: float  # bound on the rounding error of the cost, and of cost plus eps entropy


def softmin_rounding(op: CostOperator, eps: float) -> float:
    """Bound the rounding error of a softmin: of its scores, and of its sum of exponentials."""
    return op.rounding + SUM_ROUNDING * op.unit * eps


def round_plan(
    op: CostOperator,
    a: Tensor,  # (n,) weights > 0
    b: Tensor,  # (m,)
    eps: float,
    solution: Solution,
) -> RoundedPlan:
    """Make the plan of a solution feasible; one pass.

    The rows of a cross solution are exact already; those of a symmetric one miss what its columns
    miss. Either way scaling each column by ``min(1, b / c)`` is lowering g to its update.
    """
    symmetric = solution.f is solution.g
    g = torch.minimum(solution.g, solution.next_g)
    f = g if symmetric else solution.f
    h = g + eps * b.log()
    update, mean_score = op.softmin_mean(h, eps)
    rows = a * ((f - update) / eps).clamp(max=0).exp()
    columns = rows if symmetric else b * ((g - solution.next_g) / eps).exp()
    # sums over rows and over columns differ by rounding: potentials enter relative to their mean,
    # so that such a difference costs their spread, not their size
    centre = float(columns @ h) / max(float(columns.sum()), torch.finfo(h.dtype).tiny)
    kept_cost = float(columns @ (h - centre) - rows @ (mean_score - centre))
    spread = float(columns @ (h - centre).abs())
    rounding = softmin_rounding(op, eps)
    relative = math.expm1(min(2 * rounding / eps, 700.0))
    rounding += 2 * relative * spread
    missing_rows, missing_columns = a - rows, b - columns
    # the same mass is missing on both sides, up to rounding
    mass, total = float(missing_rows.sum()), float(missing_columns.sum())
    shares = (
        missing_rows / mass if mass > 0 else a,
        missing_columns / total if total > 0 else b,
    )
    average = float(bilinear(op.pair, *shares))
    cost = kept_cost + mass * average
    rounding += abs(mass - total) * max(average, 0.0)
    divergence = (float(rows @ (f + centre) + columns @ (g - centre)) - kept_cost) / eps
    kept = 1.0 - mass
    divergence -= kept * math.log(kept) if kept > 0 else 0.0
    for share, weights in zip(shares, (a, b), strict=True):
        divergence += mass * float(torch.special.xlogy(share, share / weights).sum())
    return RoundedPlan(cost, divergence, rounding)


def quantization_bound(
    value: float,  # an upper bound of the transport value of the stored points
    moved: float,  # root mean square distance points moved, of both sides together, in cost units
) -> float:
    """Return how far the value of the given points can be from that of the stored ones.

    Moving the points changes the root of a quadratic cost by ``moved`` at most (the triangle
    inequality in the space of square-integrable functions of a plan).
    """
    return 2 * math.sqrt(max(value, 0.0)) * moved + 3 * moved**2


def entropic_bounds(
    op: CostOperator,
    eps: float,
    solution: Solution,
    plan: RoundedPlan,
    mean_cost: float,  # what the plan a x b costs
    moved: float,
) -> Bounds:
    """Bound the regularised value from the dual value and the rounded plan; no pass."""
    primal = min(plan.cost + eps * plan.entropy + plan.rounding, mean_cost + op.rounding)
    slack = quantization_bound(primal, moved)
    # a symmetric value reads the mass of its plan, whose rounding is twice that of a potential
    return Bounds(solution.value - 3 * softmin_rounding(op, eps) - slack, primal + slack)


def transport_bounds(
    op: CostOperator,
    a: Tensor,
    b: Tensor,
    solution: Solution,
    plan: RoundedPlan,
    mean_cost: float,  # what the plan a x b costs
    moved: float,
) -> Bounds:
    """Bound the unregularised transport cost; two passes of hard minima."""
    f = op.hardmin(solution.g)
    g = op.hardmin_transposed(f)
    lower = max(float(a @ f + b @ g) - op.rounding, 0.0)
    upper = max(min(plan.cost + plan.rounding, mean_cost + op.rounding), 0.0)
    return Bounds(
        max(math.sqrt(lower) - moved, 0.0) ** 2,
        (math.sqrt(upper) + moved) ** 2,
    )


def renumbered(
    mass: Tensor,  # (Vx, V)
    classes: Tensor,  # (V,) other ids of the columns' classes
) -> Tensor:  # (Vx, V)
    """Return a class mass with its columns under other class ids."""
    out = torch.empty_like(mass)
    out[:, classes] = mass
    return out


def class_mass(
    op: CostOperator,
    a: Tensor,  # (n,) weights > 0
    b: Tensor,  # (m,)
    eps: float,
    solution: Solution,
) -> Tensor:  # (Vx, Vy) float64, sums to 1, rows are the source's class masses
    """Sum the plan over class pairs; one pass.

    The rows of the plan are exact, so each is shared among the target's classes as the softmins
    over them say.
    """
    by_class = op.class_softmin(solution.g + eps * b.log(), eps)
    return shared_mass(op.pair, by_class, a, eps)


def shared_mass(
    pair: CostPair,
    by_class: Tensor,  # (n, Vy) softmins over the columns of each class
    a: Tensor,  # (n,) weights > 0
    eps: float,
) -> Tensor:  # (Vx, Vy) float64
    """Share the mass of each row among the classes of the columns as their softmins say."""
    out = torch.zeros_like(pair.label_cost, dtype=torch.float64)
    for shares, labels in _shares(pair, by_class, a, eps):
        # rows are sorted by class: sums in the same order every time, which scattered adds have not
        classes, counts = torch.unique_consecutive(labels, return_counts=True)
        sums = torch.stack([part.sum(0) for part in shares.split(counts.tolist())])
        out.index_add_(0, classes, sums)
    return out


def label_part(
    op: CostOperator,
    a: Tensor,  # (n,) weights > 0
    b: Tensor,  # (m,)
    eps: float,
    solution: Solution,
) -> float:
    """Return what label costs contribute to ``<P, C>``, as the class mass would; one pass."""
    by_class = op.class_softmin(solution.g + eps * b.log(), eps)
    label_cost = op.pair.label_cost
    return sum(
        float(shares.mul_(label_cost[labels]).sum())
        for shares, labels in _shares(op.pair, by_class, a, eps)
    )


def _shares(
    pair: CostPair,
    by_class: Tensor,  # (n, Vy)
    a: Tensor,  # (n,)
    eps: float,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the mass of some rows by column class (k, Vy), and their classes (k,)."""
    height = max(1, SHARE_ENTRIES[by_class.device.type == "cpu"] // by_class.shape[1])
    parts = (part.split(height) for part in (by_class, a, pair.row_labels))
    for softmins, weights, labels in zip(*parts, strict=True):
        yield torch.softmax(softmins / -eps, dim=1).mul_(weights[:, None]), labels
