r"""Entropic transport whose marginals are penalised instead of prescribed.

.. math::
    OT(a, b) &= \min_{P \ge 0} \langle P, C \rangle + eps\, KL(P \,|\, a \otimes b)
        + \rho\, KL(P 1 \,|\, a) + \rho\, KL(P^T 1 \,|\, b) \\
    &= \max_{f, g} D(f, g) = \rho \langle a, 1 - e^{-f/\rho} \rangle
        + \rho \langle b, 1 - e^{-g/\rho} \rangle
        + eps \sum_{ij} a_i b_j (1 - e^{(f_i + g_j - C_{ij}) / eps})

An update is the damped softmin ``f = s T(g)`` with ``s = rho / (rho + eps)``. Each is followed by
the best common shift ``(f + c, g - c)``, known in closed form: without it potentials would creep to
their level at the rate ``s^2``. What is left is a concave function of g modulo constants, so the
acceleration and the safeguard of the balanced solver apply as they are.

Any plan is feasible, so the plan of the potentials certifies them: after an update of f its rows
are optimal, its columns have the masses ``q_j = b_j exp((g_j - T'(f)_j) / eps)``, and the duality
gap is ``rho KL(q | b e^{-g / rho})``. The next softmin shows it at no cost.

Sources: damped updates, Chizat et al. 2018, "Scaling algorithms for unbalanced optimal transport
problems", and Sejourne et al. 2019, "Sinkhorn divergences for unbalanced optimal transport"; the
shift, Sejourne, Vialard and Peyre 2022, "Faster unbalanced optimal transport", section 3.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.operators import CostOperator
from otdd_flash.solver.annealing import RATIO, START, spread
from otdd_flash.solver.certificate import Bounds, softmin_rounding
from otdd_flash.solver.sinkhorn import Extrapolation, SolveState, excess, hidden_error, noise_of


@dataclass(frozen=True)
class UnbalancedSolution:
    """Potentials of an unbalanced problem and the evidence for them."""

    f: Tensor  # (n,) float64
    g: Tensor  # (m,) float64, the same object as f in a self term
    next_f: Tensor  # (n,) softmin of g, not damped
    next_g: Tensor  # (m,) softmin of f
    value: float  # D(f, g)
    bounds: Bounds  # of the optimum: the dual value and the plan's, widened by rounding
    passes: int
    error: float  # L1 distance of the plan's columns from their optimum for f, of the mean mass
    converged: bool  # error and duality gap are below their tolerances


UnbalancedSolve = Generator[SolveState, None, UnbalancedSolution]


@dataclass(frozen=True, eq=False)
class UnbalancedProblem:
    """A streamed cost with the weights of both sides, eps and the strength of the penalty."""

    op: CostOperator
    a: Tensor  # (n,) float64 >= 0, any positive mass
    b: Tensor  # (m,)
    eps: float
    rho: float  # in units of the cost

    @property
    def damping(self) -> float:
        """What an update multiplies a softmin by."""
        return self.rho / (self.rho + self.eps)

    @property
    def mean_mass(self) -> float:
        """The scale of masses."""
        return float(self.a.sum() + self.b.sum()) / 2

    def forward(self, g: Tensor) -> Tensor:  # (m,) -> (n,)
        """Return the softmin over the columns."""
        return self.op.softmin(g + self.eps * self.b.log(), self.eps)

    def backward(self, f: Tensor) -> Tensor:  # (n,) -> (m,)
        """Return the softmin over the rows."""
        return self.op.softmin_transposed(f + self.eps * self.a.log(), self.eps)

    def shifted(self, g: Tensor, update: Tensor) -> tuple[Tensor, Tensor]:
        """Return g and its softmin (n,) after the shift of g that is best for ``f = s T(g)``.

        It makes the masses ``<a, e^{-f / rho}>`` and ``<b, e^{-g / rho}>`` equal.
        """
        s = self.damping
        ratio = _log_mass(self.a, s * update, self.rho) - _log_mass(self.b, g, self.rho)
        shift = self.rho / (1 + s) * ratio
        return g - shift, update + shift

    def dual(
        self,
        f: Tensor,  # (n,)
        g: Tensor,  # (m,)
        mass: Tensor,  # () of the plan, minus the mass of b
    ) -> Tensor:  # ()
        """Return D(f, g) without the rounding of its large parts when rho is large."""
        a, b, rho = self.a, self.b, self.rho
        bent = rho * (a @ (-f / rho).expm1() + b @ (-g / rho).expm1())
        return -bent + self.eps * (b.sum() * (a.sum() - 1) - mass)


def _log_mass(weights: Tensor, potential: Tensor, rho: float) -> Tensor:  # ()
    return torch.logsumexp(weights.log() - potential / rho, 0)


def _relative_entropy(
    wanted: Tensor,  # (m,) masses
    exponent: Tensor,  # (m,) log of the plan's masses over the wanted ones
) -> Tensor:  # () >= 0, KL(plan's | wanted)
    exponent = exponent.clamp(max=700)
    return wanted @ (exponent * exponent.exp() - exponent.expm1())


def _finished(
    problem: UnbalancedProblem,
    potentials: tuple[Tensor, Tensor, Tensor, Tensor],  # f, g, T(g), T'(f)
    value: float,
    gap: float,
    error: float,
    passes: int,
    tol: float,
) -> UnbalancedSolution:
    op, eps, rho = problem.op, problem.eps, problem.rho
    mass = float(problem.b @ (-potentials[1] / rho).exp())
    hidden = hidden_error(op, eps)
    error = max(error, hidden * mass / problem.mean_mass)
    # Pinsker's inequality turned round: what hidden errors of the marginal add to the gap
    gap += rho * hidden**2 / 2 * mass
    slack = 3 * softmin_rounding(op, eps) * mass
    return UnbalancedSolution(
        *potentials,
        value,
        Bounds(value - slack, value + gap + slack),
        passes,
        error,
        error < tol and gap < gap_tolerance(problem, tol),
    )


def gap_tolerance(problem: UnbalancedProblem, tol: float) -> float:
    """Return the duality gap to stop at: ``tol`` of what a mean mass costs at the scale of eps."""
    return tol * min(problem.eps, problem.rho) * problem.mean_mass


def solve_unbalanced(
    problem: UnbalancedProblem,
    *,
    tol: float,
    max_passes: int,
) -> UnbalancedSolve:
    """Solve from nothing: eps falls to its value, then accelerated updates.

    Stops at an L1 error below ``tol`` of the mean mass and a gap below ``gap_tolerance``. Yields a
    state after each update of both potentials. Memory: O(n + m) beside the operators.
    """
    eps, rho, s = problem.eps, problem.rho, problem.damping
    g, passes = yield from _anneal(problem, max_passes)
    extrapolation = Extrapolation(problem.b / problem.b.sum(), accelerate=True)
    noise, enough = noise_of(problem.op, eps), gap_tolerance(problem, tol)
    plain, extrapolated, sure = g, False, -math.inf
    while True:
        g, update = problem.shifted(g, problem.forward(g))
        f = s * update
        passes += 1
        wanted = problem.b * (-g / rho).exp()
        surplus = problem.b @ (-g / rho).expm1()
        if extrapolated and float(problem.dual(f, g, surplus)) < sure - noise:
            extrapolation.refused()
            g, extrapolated = plain, False
            continue
        next_g = problem.backward(f)
        passes += 1
        image = s * next_g
        # q = wanted exp((g - image) / (s eps))
        over = excess(wanted, g, image, s * eps)
        gap = rho * _relative_entropy(wanted, (g - image) / (s * eps))
        ahead = problem.dual(f, image, problem.b @ (-image / rho).expm1())
        numbers = [over.abs().sum(), gap, ahead, problem.dual(f, g, surplus)]
        moved, lost, sure, value = torch.stack(numbers).tolist()
        error = moved / problem.mean_mass
        yield SolveState(passes, error, eps)
        if (error < tol and lost < enough) or passes + 2 > max_passes or error != error:
            return _finished(problem, (f, g, update, next_g), value, lost, error, passes, tol)
        plain = image
        g, extrapolated = extrapolation.next_point(g, image, -over)


def _anneal(
    problem: UnbalancedProblem, max_passes: int
) -> Generator[SolveState, None, tuple[Tensor, int]]:
    """Return a g to begin with and the passes made: one update of both potentials an eps."""
    g, passes = torch.zeros_like(problem.b), 0
    stage = START * spread(problem.op)
    while stage > problem.eps and passes + 4 <= max_passes:
        coarse = UnbalancedProblem(problem.op, problem.a, problem.b, stage, problem.rho)
        g, update = coarse.shifted(g, coarse.forward(g))
        g = coarse.damping * coarse.backward(coarse.damping * update)
        passes += 2
        yield SolveState(passes, float("nan"), stage)
        stage *= RATIO
    return g, passes


def solve_unbalanced_self(
    problem: UnbalancedProblem,  # both sides the same
    *,
    tol: float,
    max_passes: int,
) -> UnbalancedSolve:
    """Solve the self term of a cloud by ``f <- (f + s T(f)) / 2``, one pass an update.

    Here the shift that makes the plan's mass ``<a, e^{-f / rho}>`` is common to both potentials,
    and the gap is twice ``rho KL(q | a e^{-f / rho})``.
    """
    a, eps, rho, s = problem.a, problem.eps, problem.rho, problem.damping
    extrapolation = Extrapolation(a / a.sum(), accelerate=True)
    noise, enough = noise_of(problem.op, eps), gap_tolerance(problem, tol)
    f = torch.zeros_like(a)
    plain, extrapolated, sure, passes = f, False, -math.inf, 0
    while True:
        update = problem.forward(f)
        passes += 1
        ratio = _log_mass(a, f, rho) - torch.logsumexp(a.log() + (f - update) / eps, 0)
        shift = ratio / (1 / rho + 2 / eps)
        f, update = f + shift, update - shift
        image = s * update
        wanted = a * (-f / rho).exp()
        over = excess(wanted, f, image, s * eps)
        gap = 2 * rho * _relative_entropy(wanted, (f - image) / (s * eps))
        ahead = problem.dual(f, image, a @ (-image / rho).expm1())
        numbers = [
            over.abs().sum(),
            gap,
            ahead,
            problem.dual(f, f, a @ (-f / rho).expm1()),
        ]
        moved, lost, floor, value = torch.stack(numbers).tolist()
        if extrapolated and value < sure - noise:
            extrapolation.refused()
            f, extrapolated = plain, False
            continue
        sure, error = floor, moved / problem.mean_mass
        yield SolveState(passes, error, eps)
        if (error < tol and lost < enough) or passes + 1 > max_passes or error != error:
            return _finished(problem, (f, f, update, update), value, lost, error, passes, tol)
        plain = (f + image) / 2
        f, extrapolated = extrapolation.next_point(f, plain, -over)
