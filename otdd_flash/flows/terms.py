r"""The divergence and its gradient at the points of one step, from where the last step left off.

.. math::
    S = OT_{eps}(x, y) - OT_{eps}(x, x) / 2 - OT_{eps}(y, y) / 2, \quad
    \frac{1}{a_i} \frac{dS}{dx_i} = 2 u\, ((x_i - T_{xy}(x_i)) - s_i (x_i - T_{xx}(x_i)))

with T the means under the rows of the plans, u the cost of one squared unit and s the share of a
sample's mass that the self plan has, 1 at convergence. The target's self term never changes and is
solved once. A step makes as many passes as its potentials need, at least two over the cross cost
and one over the source's own, and one product with each plan.

Sources: Feydy et al. 2019 (gradients of the divergence); Alvarez-Melis and Fusi 2021 (flows).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otdd_flash.cost import Margin
from otdd_flash.flows.class_sums import ClassSums
from otdd_flash.flows.grid import Grid
from otdd_flash.flows.settings import FlowSettings
from otdd_flash.laws.bures import LabelCost
from otdd_flash.operators import CostOperator
from otdd_flash.ops import WORKSPACE_BYTES, make_operator
from otdd_flash.solver.annealing import solve_annealed
from otdd_flash.solver.certificate import class_mass
from otdd_flash.solver.clouds import absolute_epsilon, check_resolved
from otdd_flash.solver.sinkhorn import Solution, hidden_error, solve_symmetric
from otdd_flash.timing import Laps
from otdd_flash.types import finish
from otdd_flash_kernels.pair import CostPair, bilinear
from otdd_flash_kernels.quantize import Cloud


@dataclass
class Trail:
    """Potentials of the last two steps, in the order of a margin: where a solve begins."""

    last: Tensor | None = None
    before: Tensor | None = None

    def start(self, extrapolate: bool) -> Tensor | None:
        """Return where to begin, None where nothing is known."""
        if self.last is None or self.before is None or not extrapolate:
            return self.last
        return 2 * self.last - self.before

    def add(self, potential: Tensor) -> None:
        """Remember the potentials of a step."""
        self.before, self.last = self.last, potential


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What a step needs to know of the divergence at its points."""

    value: float  # S
    gap: Tensor | None  # (n, d) the gradient over 2 u, in units of the points; None: not asked for
    error: float  # largest L1 marginal error of both terms
    converged: bool
    passes: tuple[int, int]  # over the cross cost and over the source's own
    moved: float  # root mean square rounding of moving points and target, in cost units
    backend: str
    mass: Tensor | None  # (Vx, Vy) of the cross plan; None: not asked for
    inner_mass: Tensor | None  # (Vx, Vx) of the source's self plan


@dataclass(frozen=True, eq=False)
class _Inner:
    """The source's self term at a step."""

    solution: Solution
    mass: Tensor | None


class Terms:
    """The terms of the divergence between moving points and a target that stays.

    Memory: both clouds on the grid and two (n, d) floats; on a CPU one stored cost at a time where
    it fits the budget, on a GPU none.
    """

    def __init__(
        self,
        x: Margin,  # labels and weights of the moving points, in the order of their rows
        y: Margin,
        target: Tensor,  # (m, d) points of the target
        unit: float,  # cost of one squared unit of the points
        settings: FlowSettings,
    ) -> None:
        self.x, self.y, self.target, self.unit = x, y, target, unit
        self.settings, self.extrapolate = settings.divergence, settings.extrapolate
        self.reuse = settings.self_every > 1
        self.eps = 0.0
        self.target_value, self.target_error = 0.0, 0.0  # of the target's self term
        self.cross, self.inner = Trail(), Trail()
        # (n, d) what the self term takes from a gap, while a step needs it
        self.inner_gap: Tensor | None = None

    def begin(
        self,
        source: Tensor,  # (n, d) where the points begin, in the dtype they were given in
        costs: LabelCost,  # in units of the cost
    ) -> None:
        """Choose grid and eps, and solve the target's self term."""
        self.set_grid(Grid.of(source, self.target, self.settings.slices))
        pair = self._pair(self.grid.cloud(source), costs.xy)
        mean_cost = float(bilinear(pair, self.x.weights, self.y.weights))
        self.eps = absolute_epsilon(self.settings.epsilon, mean_cost)
        # as the divergence does: float32 must not hide errors near the tolerance
        on_cpu = source.device.type == "cpu"
        op = self._operator(pair)
        if on_cpu and hidden_error(op, self.eps) > self.settings.tol / 2:
            self.set_grid(replace(self.grid, precise=True))
            op = self._operator(self._pair(self.grid.cloud(source), costs.xy))
        check_resolved(op, self.eps, self.settings.tol)
        del op
        if self.settings.debias:
            y, cloud = self.y, self._target_cloud
            scale = self.unit * cloud.step**2
            op = self._operator(CostPair(cloud, cloud, scale, costs.yy, y.labels, y.labels))
            solution = self._solve_inner(op, y.weights, None)
            self.target_value, self.target_error = solution.value, solution.error

    def set_grid(self, grid: Grid) -> None:
        """Take a grid and put the target on it."""
        self.grid = grid
        self._target_cloud = grid.cloud(self.target)

    def evaluate(
        self,
        points: Tensor,  # (n, d)
        costs: LabelCost,  # in units of the cost
        laps: Laps,
        *,
        gradient: bool,
        renew: bool,  # the self term's part of the gradient; else that of the last time
        mass: bool,  # whether the plans are summed over class pairs
    ) -> Evaluation:
        """Solve both moving terms; the cost of each is freed before the next is made."""
        if not self.grid.covers(points):
            self.set_grid(self.grid.widened(points))
        cloud = self.grid.cloud(points)
        stored = self.grid.stored(points, cloud)
        x, y, eps = self.x, self.y, self.eps
        op = _with_sums(self._operator(self._pair(cloud, costs.xy)), mass)
        cross = self._solve_cross(op)
        laps.lap("solve")
        crossed = _mass_of(op, x.weights, y.weights, eps, cross) if mass else None
        gap = None
        if gradient:
            means = op.means(cross.g + eps * y.weights.log(), eps, self.target, cross.f)
            gap = means.neg_().add_(stored)
        laps.lap("gradient")
        backend = op.backend
        del op
        inner = None
        if self.settings.debias:
            inner = self._inner_term(cloud, stored, costs.xx, laps, (gradient and renew, mass))
            if gap is not None and self.inner_gap is not None:
                gap -= self.inner_gap
                if not self.reuse:
                    self.inner_gap = None
        laps.lap("gradient")
        solutions = [cross] if inner is None else [cross, inner.solution]
        halves = self.target_value + (inner.solution.value if inner else 0.0)
        return Evaluation(
            value=cross.value - halves / 2,
            gap=gap,
            error=max(self.target_error, *(s.error for s in solutions)),
            converged=all(s.converged for s in solutions),
            passes=(cross.passes, inner.solution.passes if inner else 0),
            moved=self._moved(cloud),
            backend=backend,
            mass=crossed,
            inner_mass=inner.mass if inner else None,
        )

    def _inner_term(
        self,
        cloud: Cloud,
        stored: Tensor,  # (n, d) the points of the cloud
        label_cost: Tensor,  # (Vx, Vx)
        laps: Laps,
        wanted: tuple[bool, bool],  # gradient, class mass
    ) -> _Inner:
        x, eps = self.x, self.eps
        scale = self.unit * cloud.step**2
        pair = CostPair(cloud, cloud, scale, label_cost, x.labels, x.labels)
        op = _with_sums(self._operator(pair), wanted[1])
        solution = self._solve_inner(op, x.weights, self.inner.start(self.extrapolate))
        self.inner.add((solution.f + solution.next_g) / 2)
        laps.lap("solve")
        share = ((solution.f - solution.next_g) / eps).exp()
        mass = None
        if wanted[1]:
            mass = _mass_of(op, share * x.weights, x.weights, eps, solution)
        if wanted[0]:
            h = solution.f + eps * x.weights.log()
            means = op.means(h, eps, stored, solution.f)
            self.inner_gap = means.neg_().add_(stored).mul_(share.to(means)[:, None])
        return _Inner(solution, mass)

    def _solve_cross(self, op: CostOperator) -> Solution:
        settings = self.settings
        solution = finish(
            solve_annealed(
                op,
                self.x.weights,
                self.y.weights,
                self.eps,
                tol=settings.tol,
                max_passes=settings.max_passes,
                start=self.cross.start(self.extrapolate),
            )
        )
        # the update is where the next pass would have begun
        self.cross.add(solution.next_g)
        return solution

    def _solve_inner(self, op: CostOperator, weights: Tensor, start: Tensor | None) -> Solution:
        settings = self.settings
        return finish(
            solve_symmetric(
                op,
                weights,
                self.eps,
                tol=settings.tol,
                max_passes=settings.max_passes,
                start=torch.zeros_like(weights) if start is None else start,
            )
        )

    def _pair(self, cloud: Cloud, label_cost: Tensor) -> CostPair:
        scale = self.unit * cloud.step**2
        return CostPair(cloud, self._target_cloud, scale, label_cost, self.x.labels, self.y.labels)

    def _operator(self, pair: CostPair) -> CostOperator:
        # the few passes of a step do not repay storing a cost on a GPU
        streamed = pair.rows.data.device.type == "cuda"
        return make_operator(pair, WORKSPACE_BYTES if streamed else self.settings.memory_budget)

    def _moved(self, cloud: Cloud) -> float:
        sides = ((self.x, cloud), (self.y, self._target_cloud))
        each = torch.stack([margin.weights @ c.residual for margin, c in sides])
        return float(each.sqrt().sum()) * self.unit**0.5


def _with_sums(op: CostOperator, mass: bool) -> CostOperator:
    """Return an operator that keeps the sums of a class mass where they cost nothing."""
    return ClassSums(op) if mass and op.device.type == "cuda" else op


def _mass_of(op: CostOperator, a: Tensor, b: Tensor, eps: float, solution: Solution) -> Tensor:
    return op.mass(a, eps) if isinstance(op, ClassSums) else class_mass(op, a, b, eps, solution)
