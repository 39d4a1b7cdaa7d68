r"""From nothing to potentials near the solution: eps falls from the cost's spread to its value.

At each eps one over-relaxed update of both potentials, ``f <- f + omega (T(g) - f)``. The change of
the dual value is known in closed form from the update alone,

.. math::
    \Delta D(\omega) = \sum_i a_i (\omega \delta_i - eps\, r_i (e^{\omega \delta_i / eps} - 1)),
    \quad \delta = T(g) - f, \quad r = e^{-\delta / eps}

so a factor that would lower it is replaced by 1 at no cost. The factor grows as eps falls, and is 1
where the second update of the eps before was short: plain updates converge fast there.

Sources: eps-scaling, Schmitzer 2019; over-relaxed Sinkhorn, Thibault et al. 2021, Lehmann et al.
2021.
"""

from __future__ import annotations

from collections.abc import Generator

import torch
from torch import Tensor

from otdd_flash.operators import CostOperator
from otdd_flash.solver.sinkhorn import Solve, SolveState, length_of, solve

START = 0.4  # first eps, in units of the spread of the doubly centred cost
RATIO = 0.7  # of successive eps
OMEGA = 1.5  # over-relaxation where eps is far below the spread
QUICK = 0.4  # second update of an eps, in lengths of the first: plain updates converge at once
SAMPLE = 512  # rows and columns from which the spread is taken


def spread(op: CostOperator) -> float:
    """Return the standard deviation of the doubly centred cost, on evenly spaced rows and columns.

    Parts of the cost that depend on one side alone are taken up by the potentials at once; what is
    left sets the scale at which annealing starts.
    """
    pair = op.pair
    i = torch.linspace(0, pair.rows.n - 1, min(SAMPLE, pair.rows.n), device=op.device).long()
    j = torch.linspace(0, pair.columns.n - 1, min(SAMPLE, pair.columns.n), device=op.device).long()
    dots = pair.rows.take(i).dense() @ pair.columns.take(j).dense().mT
    block = pair.label_cost[pair.row_labels[i]][:, pair.column_labels[j]] - 2 * pair.scale * dots
    block = block - block.mean(0) - block.mean(1, keepdim=True) + block.mean()
    return float(block.square().mean().sqrt())


def over_relaxed(
    potential: Tensor,  # (n,)
    update: Tensor,  # (n,) softmin of the other potential
    weights: Tensor,  # (n,)
    eps: float,
    omega: float,
) -> Tensor:  # (n,)
    """Return the over-relaxed potential, or the plain update where that would lower the dual."""
    delta = update - potential
    # r (exp(omega delta / eps) - 1), without overflow for large delta
    gained = ((omega - 1) * delta / eps).exp() - (-delta / eps).exp()
    change = (weights * (omega * delta - eps * gained)).sum()
    return torch.where(change >= 0, potential + omega * delta, update)


def anneal(
    op: CostOperator,
    a: Tensor,  # (n,) float64 weights > 0
    b: Tensor,  # (m,)
    eps: float,
    *,
    max_passes: int,
    omega: float = OMEGA,
) -> Generator[SolveState, None, tuple[Tensor, int]]:
    """Return a g (m,) to begin with at ``eps`` and the passes made; yields a state an eps."""
    log_a, log_b = a.log(), b.log()
    f, g = torch.zeros_like(a), torch.zeros_like(b)
    first = stage = START * spread(op)
    passes, quick = 0, True
    while stage > eps and passes + 4 <= max_passes:
        factor = 1.0 if quick else 1.0 + (omega - 1.0) * (1.0 - (stage / first) ** 2)
        image = op.softmin(g + stage * log_b, stage)
        moved = length_of(image - f, a)
        f = over_relaxed(f, image, a, stage, factor)
        image = op.softmin_transposed(f + stage * log_a, stage)
        quick = bool(length_of(image - g, b) < QUICK * moved)
        g = over_relaxed(g, image, b, stage, factor)
        passes += 2
        yield SolveState(passes, float("nan"), stage)
        stage *= RATIO
    return g, passes


def solve_annealed(
    op: CostOperator,
    a: Tensor,
    b: Tensor,
    eps: float,
    *,
    tol: float,
    max_passes: int,
    start: Tensor | None = None,  # (m,) g of a problem nearby: no annealing then
    accelerate: bool = True,
) -> Solve:
    """Solve from nothing by annealing, or from a warm start; see :func:`sinkhorn.solve`."""
    passes = 0
    if start is None:
        start, passes = yield from anneal(
            op, a, b, eps, max_passes=max_passes, omega=OMEGA if accelerate else 1.0
        )
    solution = yield from solve(
        op,
        a,
        b,
        eps,
        tol=tol,
        max_passes=max_passes,
        start=start,
        accelerate=accelerate,
        passes=passes,
    )
    return solution
