r"""The unbalanced Sinkhorn divergence of two clouds, differentiable.

.. math::
    S = OT(a, b) - OT(a, a) / 2 - OT(b, b) / 2 + eps (m_a - m_b)^2 / 2

with the masses ``m`` of the weights, which need not be one. At converged potentials

.. math::
    dOT/dx_i = \sum_j P_{ij}\, dC_{ij}/dx_i, \quad
    dOT/da_i = (\rho + eps)(1 - e^{-f_i / \rho}) + eps (m_b - 1)

Weights are free to move, so their gradients are not centred.

Source: Sejourne et al. 2019, "Sinkhorn divergences for unbalanced optimal transport", definition 6
and proposition 12.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_clouds, check_masses
from otdd_flash.cost import Margin, Side
from otdd_flash.errors import ConvergenceWarning, SettingsError
from otdd_flash.losses.derivatives import refused
from otdd_flash.ops import WORKSPACE_BYTES, device_of, streamed
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.certificate import Bounds
from otdd_flash.solver.clouds import LARGEST, LabelledClouds, check_resolved, check_scale
from otdd_flash.solver.gradient import column_pull, row_pull
from otdd_flash.solver.matching import match
from otdd_flash.solver.plan import Plan
from otdd_flash.solver.sinkhorn import Solution
from otdd_flash.solver.unbalanced import (
    UnbalancedProblem,
    UnbalancedSolution,
    solve_unbalanced,
    solve_unbalanced_self,
)
from otdd_flash.types import finish

SECOND = (
    "second derivatives of the unbalanced divergence are not known; differentiate once, or leave "
    "out reach"
)
NO_LABELS = torch.zeros((1, 1), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class UnbalancedTerm:
    """A solved term of S, and what turns its vectors into the caller's order."""

    problem: UnbalancedProblem
    solution: UnbalancedSolution
    x: Margin
    y: Margin

    def potentials(self) -> tuple[Tensor, Tensor]:
        """Return f (n,) and g (m,) in the caller's order, samples without weight too."""
        s, solution = self.problem.damping, self.solution
        return _placed(s * solution.next_f, self.x), _placed(s * solution.next_g, self.y)

    def plan(self) -> Plan:
        """Return the plan, streamed.

        With its own row marginal as weights it is a balanced plan whose potentials are softmins.
        """
        solution, problem = self.solution, self.problem
        bent = -problem.damping * solution.next_f / problem.rho
        x = Margin(self.x.labels, problem.a * bent.exp(), self.x.order)
        balanced = Solution(
            solution.next_f,
            solution.g,
            solution.next_g,
            solution.value,
            solution.passes,
            solution.error,
            solution.converged,
        )
        shape = (len(problem.a), len(problem.b))
        return Plan(problem.op.pair, balanced, problem.eps, x, self.y, shape, WORKSPACE_BYTES)


@dataclass(frozen=True, eq=False)
class UnbalancedDivergence:
    """S with its bounds, for the points as they are stored, and its terms."""

    value: float
    bounds: Bounds
    cross: UnbalancedTerm | None  # None where both sides are the same: S is 0 by definition
    selves: tuple[UnbalancedTerm, ...]  # none without debiasing

    @property
    def terms(self) -> tuple[UnbalancedTerm, ...]:
        """The terms that were solved."""
        return () if self.cross is None else (self.cross, *self.selves)


def unbalanced_divergence(
    x: Tensor,  # (n, d) numbers
    y: Tensor,  # (m, d)
    a: Tensor,  # (n,) weights >= 0 of any positive mass
    b: Tensor,  # (m,)
    rho: float,  # strength of the marginal penalties, in units of the cost
    factor: float,  # cost of one squared unit of the points
    settings: OTDDSettings,
) -> Tensor:  # () float64, on the device of x
    """Return S, differentiable in x, y, a and b, once.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError.

    Warns:
        ConvergenceWarning: a duality gap or marginal error above its tolerance.

    Memory: O((n + m) d); on the CPU a stored cost where it fits the budget.
    """
    return _Unbalanced.apply(x, y, a, b, _Work(rho, factor, settings))


def solve_terms(
    x: Tensor,
    y: Tensor,
    a: Tensor,
    b: Tensor,
    rho: float,
    factor: float,
    settings: OTDDSettings,
) -> UnbalancedDivergence:
    """Solve the terms of S one after the other, as :func:`unbalanced_divergence` does."""
    for name, value in (("blur", float(settings.epsilon)), ("reach", rho)):
        if not 1 / LARGEST <= value <= LARGEST:
            raise SettingsError(
                f"the square of {name} is {value:.3g}; expected {1 / LARGEST:.0e} to "
                f"{LARGEST:.0e}: float64 must hold its square"
            )
    points = check_clouds(x, y)
    masses = check_masses(a, len(points[0]), "a"), check_masses(b, len(points[1]), "b")
    device = device_of(x, settings.device)
    sides = [_side(p, w, device) for p, w in zip(points, masses, strict=True)]
    if settings.debias and match(*sides) is not None:
        return UnbalancedDivergence(0.0, Bounds(0.0, 0.0), None, ())
    none = NO_LABELS.to(device)
    clouds = LabelledClouds(sides[0], sides[1], none, none, none, factor)
    pairs = [(0, 1), (0, 0), (1, 1)] if settings.debias else [(0, 1)]
    terms = [_solved(clouds, sides[i], sides[j], rho, settings) for i, j in pairs]
    cross, selves = terms[0], tuple(terms[1:])
    gap = float(masses[0].sum() - masses[1].sum())
    constant = float(settings.epsilon) * gap**2 / 2 if selves else 0.0
    value, lower, upper = (
        constant + first - sum(inner) / 2
        for first, inner in (
            (cross.solution.value, [t.solution.value for t in selves]),
            (cross.solution.bounds.lower, [t.solution.bounds.upper for t in selves]),
            (cross.solution.bounds.upper, [t.solution.bounds.lower for t in selves]),
        )
    )
    found = UnbalancedDivergence(min(max(value, lower), upper), Bounds(lower, upper), cross, selves)
    _warn_unconverged(found, settings)
    return found


def _side(points: Tensor, weights: Tensor, device: torch.device) -> Side:
    """Return all samples in their order: those without weight have potentials too."""
    rows = torch.arange(len(points), device=device)
    return Side(torch.zeros_like(rows), weights.to(device), rows, points.to(device))


def _solved(
    clouds: LabelledClouds, x: Side, y: Side, rho: float, settings: OTDDSettings
) -> UnbalancedTerm:
    eps = float(settings.epsilon)
    made = clouds.fine_problem((x, y, clouds.label_cost), settings, eps)
    if x is not y:
        check_scale(clouds, made.mean_cost / float(x.weights.sum() * y.weights.sum()))
    check_resolved(made.op, eps, settings.tol, "the square of blur")
    problem = UnbalancedProblem(made.op, made.x.weights, made.y.weights, eps, rho)
    solving = solve_unbalanced_self if x is y else solve_unbalanced
    solution = finish(solving(problem, tol=settings.tol, max_passes=settings.max_passes))
    # a stored cost is freed before the next is made
    return UnbalancedTerm(replace(problem, op=streamed(made.op)), solution, made.x, made.y)


def _warn_unconverged(found: UnbalancedDivergence, settings: OTDDSettings) -> None:
    stopped = [t.solution for t in found.terms if not t.solution.converged]
    if stopped:
        limited = any(s.passes + 2 > settings.max_passes for s in stopped)
        advice = (
            "raise max_passes or blur"
            if limited
            else "rounding at this blur hides smaller errors: raise blur or tol, or pass float64 "
            "points on the CPU"
        )
        warnings.warn(
            f"the unbalanced solve stopped at a marginal error of "
            f"{max(s.error for s in stopped):.2e} (tol={settings.tol:g}) after "
            f"{max(s.passes for s in stopped):,} passes; the value is between "
            f"{found.bounds.lower:.6g} and {found.bounds.upper:.6g}: {advice}",
            ConvergenceWarning,
            stacklevel=3,
        )


def _placed(vector: Tensor, margin: Margin) -> Tensor:
    """Return a vector in the caller's order."""
    out = torch.empty_like(vector)
    out[margin.order] = vector
    return out


class _Work:
    """What the forward pass is to solve, and its solution, for the pass that saves it."""

    def __init__(self, rho: float, factor: float, settings: OTDDSettings) -> None:
        self.rho, self.factor, self.settings = rho, factor, settings
        self.tensors: tuple[Tensor, ...] = ()  # x, y, a and b, without their graphs
        self.found: UnbalancedDivergence | None = None


class _Unbalanced(torch.autograd.Function):
    """Value and envelope gradients of S."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:  # x, y, a, b, work
        *tensors, work = inputs
        x, y, a, b = work.tensors = tuple(t.detach() for t in tensors)
        work.found = solve_terms(x, y, a, b, work.rho, work.factor, work.settings)
        return torch.tensor(work.found.value, dtype=torch.float64, device=tensors[0].device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, work = inputs
        ctx.gradients = [
            _gradient(k, work).to(t.device, t.dtype).reshape(t.shape) if need else None
            for k, (need, t) in enumerate(zip(ctx.needs_input_grad, tensors, strict=False))
        ]
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        tensors = ctx.saved_tensors
        gradients = [g if g is None else refused(g, SECOND, *tensors) for g in ctx.gradients]
        return (*(g if g is None else upstream.to(g) * g for g in gradients), None)


def _gradient(
    k: int,  # x, y, a or b
    work: _Work,
) -> Tensor:
    found, rho, eps = work.found, work.rho, float(work.settings.epsilon)
    assert found is not None
    if found.cross is None:
        # nothing moves S from 0 to first order where both sides are the same
        return torch.zeros_like(work.tensors[k])
    side = k % 2
    if k < 2:
        x, y = work.tensors[:2]
        pull = (row_pull, column_pull)[side](found.cross.plan(), x, y, work.factor)
        if found.selves:
            own = work.tensors[side]
            # the derivative of half a self term, both of whose sides move, is that of its rows
            pull = pull - row_pull(found.selves[side].plan(), own, own, work.factor)
        return pull
    bent = (-found.cross.potentials()[side] / rho).exp()
    if found.selves:
        # the masses' terms of S cancel
        return (rho + eps) * ((-found.selves[side].potentials()[0] / rho).exp() - bent)
    other = work.tensors[3 - side].double().sum().to(bent.device)
    return (rho + eps) * (1 - bent) + eps * (other - 1)
