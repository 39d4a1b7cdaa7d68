r"""The debiased Sinkhorn divergence of two weighted clouds, with or without labels.

.. math::
    S = OT_{eps}(x, y) - OT_{eps}(x, x) / 2 - OT_{eps}(y, y) / 2

Sources: Feydy et al. 2019 (debiasing, symmetric self terms); Alvarez-Melis and Fusi 2020 (labels).
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Generator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from otdd_flash.cost import Margin, Problem
from otdd_flash.errors import ConvergenceWarning, SettingsError
from otdd_flash.ops import streamed
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.annealing import solve_annealed
from otdd_flash.solver.certificate import (
    Bounds,
    RoundedPlan,
    class_mass,
    entropic_bounds,
    renumbered,
    round_plan,
    transport_bounds,
)
from otdd_flash.solver.clouds import LabelledClouds, absolute_epsilon, check_resolved, check_scale
from otdd_flash.solver.matching import Matching
from otdd_flash.solver.sinkhorn import Solution, Solve, solve_symmetric
from otdd_flash.types import Progress
from otdd_flash_kernels.pair import CostPair


@dataclass(frozen=True, eq=False)
class Term:
    """One regularised transport value with its bounds and its feasible plan."""

    solution: Solution
    bounds: Bounds
    plan: RoundedPlan
    problem: Problem | None = None  # kept where gradients are wanted, without a stored cost


@dataclass(frozen=True, eq=False)
class Divergence:
    """The three terms of S, the bounds of S and of the transport cost, and the class mass."""

    value: float
    bounds: Bounds
    cross: Term
    selves: tuple[Term, ...]  # none without debiasing
    epsilon: float
    mean_cost: float
    transport: Bounds | None  # None when not asked for
    mass: Tensor | None  # (Vx, Vy) float64
    pair: CostPair  # of the cross term
    classes: Tensor | None  # (V,) y's ids of the pair's column classes, None: they are y's own
    x: Margin  # the order of the cross term's potentials
    y: Margin
    moved: float  # root mean square distance that quantisation moved the points, in cost units
    backend: str

    @property
    def error(self) -> float:
        """Largest L1 marginal error of the terms."""
        return max(t.solution.error for t in (self.cross, *self.selves))

    @property
    def converged(self) -> bool:
        """Whether every term reached its tolerance."""
        return all(t.solution.converged for t in (self.cross, *self.selves))


def _centred(start: Tensor, problem: Problem, eps: float) -> Tensor:  # (m,)
    """Return a start without its constant, which potentials are free in.

    Raises:
        SettingsError: a spread that no potential of this problem can have.
    """
    centred = start - problem.y.weights @ start
    spread, most = float(centred.abs().max()), 1e4 * max(problem.mean_cost, eps)
    if not spread <= most:
        raise SettingsError(
            f"start spans {spread:.3g} around its mean, the mean cost is {problem.mean_cost:.3g}; "
            "expected the g of a result for a problem nearby"
        )
    return centred


def _watch(stage: str, solving: Solve, eps: float) -> Generator[Progress, None, Solution]:
    """Turn the states of a solve into progress, from before its first pass on."""
    # no error is known yet
    yield Progress(stage, 0, None, data={"error": math.nan, "eps": eps})
    while True:
        try:
            state = next(solving)
        except StopIteration as done:
            return done.value
        note = f"error {state.error:.1e}" if state.error == state.error else f"eps {state.eps:.3g}"
        yield Progress(stage, state.passes, None, note, {"error": state.error, "eps": state.eps})


def self_term_steps(
    problem: Problem,
    stage: str,
    eps: float,
    settings: OTDDSettings,
) -> Generator[Progress, None, Term]:
    """Solve the problem of a side against itself."""
    weights = problem.x.weights
    solving = solve_symmetric(
        problem.op,
        weights,
        eps,
        tol=settings.tol,
        max_passes=settings.max_passes,
        start=torch.zeros_like(weights),
    )
    return _bounded(problem, eps, (yield from _watch(stage, solving, eps)))


def _cross_term(
    problem: Problem,
    eps: float,
    settings: OTDDSettings,
    start: Tensor | None,
) -> Generator[Progress, None, Term]:
    solving = solve_annealed(
        problem.op,
        problem.x.weights,
        problem.y.weights,
        eps,
        tol=settings.tol,
        max_passes=settings.max_passes,
        start=start,
    )
    return _bounded(problem, eps, (yield from _watch("solve", solving, eps)))


def _kept(term: Term, problem: Problem) -> Term:
    """Return a term with its problem, whose cost would take the memory of the next one's."""
    return replace(term, problem=replace(problem, op=streamed(problem.op)))


def _bounded(problem: Problem, eps: float, solution: Solution) -> Term:
    plan = round_plan(problem.op, problem.x.weights, problem.y.weights, eps, solution)
    bounds = entropic_bounds(problem.op, eps, solution, plan, problem.mean_cost, problem.moved)
    return Term(solution, bounds, plan)


def divergence_steps(
    clouds: LabelledClouds,
    settings: OTDDSettings,
    *,
    start: Tensor | None = None,  # (m,) g of a problem nearby, in the order of y's rows
    selves: tuple[Term, Term] | None = None,  # the self terms if they are solved, at the same eps
    certify: bool = True,  # bounds of the unregularised cost and the class mass: three passes
    keep: bool = False,  # the terms keep their problems, for gradients
) -> Generator[Progress, None, Divergence]:
    """Solve the terms of S one after the other; each is freed before the next.

    Memory: O(n + m) floats beside the clouds, and on the CPU one stored cost where it fits.
    """
    x, y, matching = clouds.x, clouds.y, clouds.matching
    parts = (x, y, clouds.label_cost) if matching is None else (x, x, clouds.label_cost_x)
    problem = clouds.problem(*parts, settings)
    mean_cost = problem.mean_cost
    check_scale(clouds, mean_cost)
    eps = absolute_epsilon(settings.epsilon, mean_cost)
    problem = clouds.fine_problem(parts, settings, eps, problem)
    if matching is None:
        check_resolved(problem.op, eps, settings.tol)
    else:
        problem = replace(problem, y=_counterpart(problem.x, clouds, matching))
    own: tuple[Term, ...] = ()
    if matching is not None:
        # the cross term is the self term: S is 0 by definition, whatever eps and tolerance
        cross = yield from self_term_steps(problem, "solve", eps, settings)
    else:
        if settings.debias and selves is not None:
            own = selves
        elif settings.debias:
            inside = (
                ("self source", x, clouds.label_cost_x),
                ("self target", y, clouds.label_cost_y),
            )
            for stage, side, label_cost in inside:
                inner = clouds.fine_problem((side, side, label_cost), settings, eps)
                term = yield from self_term_steps(inner, stage, eps, settings)
                own += (_kept(term, inner) if keep else term,)
                # frees a stored cost before the next is made
                del inner
        warm = None if start is None else _centred(start[problem.y.order], problem, eps)
        cross = yield from _cross_term(problem, eps, settings, warm)
    cross = _kept(cross, problem) if keep else cross
    if matching is not None and settings.debias:
        own = (cross, cross)
    value, bounds = _debiased(cross, own, exact_zero=matching is not None and settings.debias)
    transport = mass = None
    if certify:
        a, b = problem.x.weights, problem.y.weights
        yield Progress("certificate", 0, 2)
        transport = transport_bounds(
            problem.op, a, b, cross.solution, cross.plan, mean_cost, problem.moved
        )
        yield Progress("certificate", 1, 2)
        mass = class_mass(problem.op, a, b, eps, cross.solution)
        mass = mass if matching is None else renumbered(mass, matching.classes)
        yield Progress("certificate", 2, 2)
    return Divergence(
        value=value,
        bounds=bounds,
        cross=cross,
        selves=own,
        epsilon=eps,
        mean_cost=mean_cost,
        transport=transport,
        mass=mass,
        pair=problem.op.pair,
        classes=None if matching is None else matching.classes,
        x=problem.x,
        y=problem.y,
        moved=problem.moved,
        backend=problem.op.backend,
    )


def _counterpart(margin: Margin, clouds: LabelledClouds, matching: Matching) -> Margin:
    """Return the margin of y's samples in the order in which a margin holds x's equal samples."""
    x, y = clouds.x, clouds.y
    place = torch.empty(int(x.order.max()) + 1, dtype=torch.int64, device=x.order.device)
    place[x.order] = torch.arange(len(x.order), device=x.order.device)
    rows = matching.rows[place[margin.order]]
    return Margin(y.labels[rows], margin.weights, y.order[rows])


def _debiased(
    cross: Term,
    selves: tuple[Term, ...],
    *,
    exact_zero: bool,
) -> tuple[float, Bounds]:
    if exact_zero:
        return 0.0, Bounds(0.0, 0.0)
    value, lower, upper = cross.solution.value, cross.bounds.lower, cross.bounds.upper
    for term in selves:
        value -= term.solution.value / 2
        lower -= term.bounds.upper / 2
        upper -= term.bounds.lower / 2
    # rounding alone can carry the value out of its bounds, which account for it
    return min(max(value, lower), upper), Bounds(lower, upper)


def warn_unconverged(result: Divergence, settings: OTDDSettings) -> None:
    """Warn of a solve that stopped before its tolerance, and say what to do."""
    if not result.converged:
        terms = (result.cross, *result.selves)
        stopped = [t.solution for t in terms if not t.solution.converged]
        limited = any(s.passes + 2 > settings.max_passes for s in stopped)
        advice = (
            f"raise max_passes or epsilon ({result.epsilon:.3g} at a mean cost of "
            f"{result.mean_cost:.3g})"
            if limited
            else "rounding at this epsilon hides smaller errors: raise epsilon or tol"
        )
        warnings.warn(
            f"the L1 marginal error is {result.error:.2e} after "
            f"{max(s.passes for s in stopped):,} passes, above tol={settings.tol:g}: {advice}; "
            "the bounds hold",
            ConvergenceWarning,
            stacklevel=3,
        )
