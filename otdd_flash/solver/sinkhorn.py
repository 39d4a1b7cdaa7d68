r"""Alternating updates at one eps, accelerated and safeguarded.

The semi-dual ``D(g) = <a, T(g)> + <b, g>`` with ``T`` the softmin is concave, and plain Sinkhorn
``g -> T'(T(g))`` never lowers it. Anderson acceleration extrapolates the plain images, no further
than a trust radius; a step is kept only if D is at least what the plain step was sure to reach,
else the plain image is taken, the radius shrinks and extrapolation pauses. Where D is all but
linear (eps far below the cost: thousands of equal plain steps), the radius grows from step to step.
So the iteration converges whenever plain Sinkhorn does, at close to its cost in the worst case.

The marginal error is not estimated: with ``f = T(g)`` the rows of the plan are exact, and the next
update shows the columns, ``c_j = b_j exp((g_j - T'(f)_j) / eps)``.

Sources: Sinkhorn as block ascent, Peyre and Cuturi 2019, section 4; Anderson acceleration, Walker
and Ni 2011; symmetric updates of self terms, Feydy et al. 2019, equation 25.
"""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.operators import CostOperator

MEMORY = 6  # images that Anderson acceleration combines
REGULARIZATION = 1e-10  # of the trace of its normal equations
# plain steps after refused extrapolations: 1, doubled each time, halved by success
LONGEST_PAUSE = 64
REACH = 32.0  # first trust radius: longest extrapolated step, in lengths of the plain one
GROWTH = 4.0  # of the radius after a step of full length was kept; a refused step is cut by it
SHORTEST_REACH = 2.0
# marginal error of a plan that rounding hides, in units of rounding / eps: 0.043 at most over 240
# problems at eps from 1e-7 to 1e-3 of the mean cost in float32
HIDDEN = 0.05
LARGEST_ERROR = 2.0  # L1 error of a marginal of mass 1


@dataclass(frozen=True)
class Solution:
    """Potentials and the evidence for them."""

    f: Tensor  # (n,) float64
    g: Tensor  # (m,) float64
    next_g: Tensor  # (m,) the update of g from f: shows the column marginal
    value: float  # <a, f> + <b, g> - eps (mass - 1)
    passes: int
    error: float  # L1 error of the marginals of the returned (f, g), or what rounding can hide
    converged: bool  # whether it is below the tolerance


@dataclass(frozen=True)
class SolveState:
    """What a caller sees between updates."""

    passes: int
    error: float
    eps: float


Solve = Generator[SolveState, None, Solution]


def hidden_error(op: CostOperator, eps: float) -> float:
    """Return the L1 marginal error that the rounding of an operator's scores can hide."""
    return min(HIDDEN * op.noise / eps, LARGEST_ERROR)


def _told(error: float, hidden: float) -> float:
    """Return what a measured error says: no number of use where rounding hides the largest one."""
    return max(error, hidden) if hidden < LARGEST_ERROR else hidden


def excess(
    weights: Tensor,  # (m,) wanted marginal
    potential: Tensor,  # (m,)
    update: Tensor,  # (m,) softmin of the other potential
    eps: float,
) -> Tensor:  # (m,) the plan's marginal minus the wanted one; minus the gradient of the dual value
    """Return ``b_j (exp((g_j - update_j) / eps) - 1)``."""
    return weights * ((potential - update) / eps).clamp(max=700).expm1()


def length_of(
    move: Tensor,  # (m,) of a potential
    weights: Tensor,  # (m,)
) -> Tensor:  # ()
    """Return the length of a move, modulo constants."""
    return (weights @ (move - weights @ move).square()).sqrt()


class Anderson:
    """Combine the last images of a fixed-point map so that their residual is least.

    The norm is weighted by the marginal, in which the error is counted; residuals are taken modulo
    constants, which a potential is free in. O(MEMORY m) memory.
    """

    def __init__(self, weights: Tensor) -> None:
        self._weights = weights
        self._images: list[Tensor] = []
        self._residuals: list[Tensor] = []

    def forget(self) -> None:
        """Drop all images."""
        self._images.clear()
        self._residuals.clear()

    def add(self, point: Tensor, image: Tensor) -> None:
        """Remember a point's image."""
        residual = image - point
        self._images.append(image)
        self._residuals.append(residual - self._weights @ residual)
        if len(self._images) > MEMORY:
            del self._images[0], self._residuals[0]

    def extrapolate(self) -> Tensor | None:
        """Return the combined image, None while fewer than two are known."""
        if len(self._images) < 2:
            return None
        residuals = torch.stack(self._residuals)
        images = torch.stack(self._images)
        change = residuals.diff(dim=0)
        normal = (change * self._weights) @ change.mT
        scale = normal.diagonal().sum()
        normal.diagonal().add_(REGULARIZATION * scale + torch.finfo(torch.float64).tiny)
        right = (change * self._weights) @ residuals[-1]
        mix, info = torch.linalg.solve_ex(normal, right)
        step = images[-1] - mix @ images.diff(dim=0)
        usable = torch.isfinite(step).all() & (info == 0)
        return torch.where(usable, step, images[-1])


class Extrapolation:
    """When and how far to extrapolate: a refused step makes the next ones rarer and shorter."""

    def __init__(self, weights: Tensor, accelerate: bool) -> None:
        self._weights = weights
        self._anderson = Anderson(weights)
        self._accelerate = accelerate
        self._pause = 1
        self._wait = 0
        # on the device, so that no step waits for them
        self._reach = weights.new_tensor(REACH)
        self._length = weights.new_tensor(0.0)  # of the last step, in lengths of its plain one

    def next_point(
        self,
        point: Tensor,  # (m,)
        image: Tensor,  # (m,) the plain step's end
        gradient: Tensor,  # (m,) of the dual value at the point
    ) -> tuple[Tensor, bool]:
        """Return the next point and whether it was extrapolated."""
        if not self._accelerate:
            return image, False
        self._anderson.add(point, image)
        if self._wait > 0:
            self._wait -= 1
            return image, False
        step = self._anderson.extrapolate()
        if step is None:
            return image, False
        self._pause = max(1, self._pause // 2)
        full = self._length >= self._reach
        self._reach = torch.where(full, GROWTH * self._reach, self._reach)
        plain, move = image - point, step - point
        # a combination that points downhill says that the images were alike up to their noise
        move = torch.where(gradient @ move > 0, move, plain)
        unit = length_of(plain, self._weights).clamp(min=torch.finfo(plain.dtype).tiny)
        length = length_of(move, self._weights) / unit
        self._length = torch.minimum(length, self._reach)
        return point + move * (self._reach / length).clamp(max=1.0), True

    def refused(self) -> None:
        """Record that an extrapolated point was worse than the plain one."""
        self._anderson.forget()
        self._reach = (self._length / GROWTH).clamp(min=SHORTEST_REACH)
        self._length = torch.zeros_like(self._length)
        self._wait = self._pause
        # doubled, after the halving that came with the step just refused
        self._pause = min(4 * self._pause, LONGEST_PAUSE)


def solve(
    op: CostOperator,
    a: Tensor,  # (n,) float64 weights > 0
    b: Tensor,  # (m,) float64 weights > 0
    eps: float,
    *,
    tol: float,  # L1 marginal error to stop at
    max_passes: int,
    start: Tensor,  # (m,) g to begin with
    accelerate: bool = True,
    passes: int = 0,  # passes made before, counted in
) -> Solve:
    """Iterate to a marginal error below ``tol``; one pass is one softmin over all pairs.

    Yields a state after each update of both potentials; returns a :class:`Solution` whose rows are
    exact and whose column error was measured from the returned potentials.
    """
    log_a, log_b = eps * a.log(), eps * b.log()
    noise, hidden = noise_of(op, eps), hidden_error(op, eps)
    extrapolation = Extrapolation(b, accelerate)
    g, plain, extrapolated = start, start, False
    sure = -math.inf  # dual value that the plain step reaches at least
    while True:
        f = op.softmin(g + log_b, eps)
        passes += 1
        if extrapolated and float(a @ f + b @ g) < sure - noise:
            extrapolation.refused()
            g, extrapolated = plain, False
            f = op.softmin(g + log_b, eps)
            passes += 1
        image = op.softmin_transposed(f + log_a, eps)
        passes += 1
        over = excess(b, g, image, eps)
        numbers = torch.stack([over.abs().sum(), a @ f + b @ image, a @ f + b @ g])
        error, sure, value = numbers.tolist()
        yield SolveState(passes, error, eps)
        if not error >= tol or passes + 2 > max_passes:
            error = _told(error, hidden)
            return Solution(f, g, image, value, passes, error, error < tol)
        plain = image
        g, extrapolated = extrapolation.next_point(g, image, -over)


def solve_symmetric(
    op: CostOperator,
    a: Tensor,  # (n,) float64 weights > 0
    eps: float,
    *,
    tol: float,
    max_passes: int,
    start: Tensor,  # (n,) f to begin with
    accelerate: bool = True,
) -> Solve:
    """Solve the self term of a cloud by ``f <- (f + T(f)) / 2``, one pass an update.

    The returned potentials are equal; both marginals carry the returned error. The value is the
    dual one of ``(f, f)``, or of ``(f, T(f))`` where that is higher.
    """
    log_a = eps * a.log()
    noise, hidden = noise_of(op, eps), hidden_error(op, eps)
    extrapolation = Extrapolation(a, accelerate)
    f, plain, extrapolated = start, start, False
    sure, passes = -math.inf, 0
    while True:
        update = op.softmin(f + log_a, eps)
        passes += 1
        over = excess(a, f, update, eps)
        numbers = torch.stack([over.abs().sum(), a @ (f + update), 2 * (a @ f) - eps * over.sum()])
        error, floor, value = numbers.tolist()
        if extrapolated and value < sure - noise:
            extrapolation.refused()
            f, extrapolated = plain, False
            continue
        sure = floor
        yield SolveState(passes, error, eps)
        if not error >= tol or passes + 1 > max_passes:
            error = _told(error, hidden)
            # of (f, T(f)), whose mass is 1, where that of (f, f) is far from it
            value = max(value, floor)
            return Solution(f, f, update, value, passes, error, error < tol)
        plain = (f + update) / 2
        f, extrapolated = extrapolation.next_point(f, plain, -over)


def noise_of(op: CostOperator, eps: float) -> float:
    """Return the difference of dual values below which it is rounding."""
    return 1e-2 * op.noise + 1e-9 * eps
