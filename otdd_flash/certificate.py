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
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.ops import CostOperator
from otdd_flash.sinkhorn import Solution
from otdd_flash_kernels.pair import bilinear


@dataclass(frozen=True)
class Bounds:
    """An interval that holds a value."""

    lower: float
    upper: float


@dataclass(frozen=True)
class RoundedPlan:
    """A feasible plan made from potentials: ``F + missing_rows x missing_columns / mass``."""

    f: Tensor  # (n,) potentials of F = a b exp((f + g - C) / eps)
    g: Tensor  # (m,)
    missing_rows: Tensor  # (n,) >= 0
    missing_columns: Tensor  # (m,) >= 0
    cost: float  # <plan, C>
    entropy: float  # KL(plan | a x b), an upper bound by convexity


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
    kept_cost = float(columns @ h - rows @ mean_score)
    missing_rows, missing_columns = a - rows, b - columns
    # one mass is missing on both sides; the smaller count keeps the plan's total at most one
    mass = float(missing_rows.sum())
    kept = 1.0 - mass
    divergence = (float(rows @ f + columns @ g) - kept_cost) / eps
    cost = kept_cost
    if mass > 0 and kept > 0:
        total = float(missing_columns.sum())
        spread = missing_columns * (mass / total) if total > 0 else b * mass
        cost += float(bilinear(op.pair, missing_rows, spread)) / mass
        divergence -= kept * math.log(kept)
        for part, weights in ((missing_rows, a), (spread, b)):
            share = part / mass
            divergence += mass * float(torch.special.xlogy(share, share / weights).sum())
    return RoundedPlan(f, g, missing_rows, missing_columns, cost, divergence)


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
    moved: float,
) -> Bounds:
    """Bound the regularised value from the dual value and the rounded plan; no pass."""
    primal = plan.cost + eps * plan.entropy
    slack = op.rounding + quantization_bound(primal, moved)
    return Bounds(solution.value - slack, primal + slack)


def transport_bounds(
    op: CostOperator,
    a: Tensor,
    b: Tensor,
    solution: Solution,
    plan: RoundedPlan,
    moved: float,
) -> Bounds:
    """Bound the unregularised transport cost; two passes of hard minima."""
    f = op.hardmin(solution.g)
    g = op.hardmin_transposed(f)
    slack = op.rounding
    lower = max(float(a @ f + b @ g) - slack, 0.0)
    upper = max(plan.cost + slack, 0.0)
    return Bounds(
        max(math.sqrt(lower) - moved, 0.0) ** 2,
        (math.sqrt(upper) + moved) ** 2,
    )


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
    shares = torch.softmax(-by_class / eps, dim=1) * a[:, None]
    mass = torch.zeros(op.pair.label_cost.shape, dtype=torch.float64, device=op.device)
    return mass.index_add_(0, op.pair.row_labels, shares)
