r"""Newton's method in a trust region, from products with the Hessian, and out of saddles.

Each step minimises the quadratic model inside the region by conjugate gradients, which end at a
residual that shrinks with the gradient, so that the last steps converge quadratically. Where the
gradient is small, the smallest eigenvalue of the Hessian tells a minimum from a saddle; a saddle is
left along its eigenvector, the better of both ways.

Near a minimum the fall of the value drowns in its rounding; what a step gains is then taken from
the gradients at its ends, ``-(g_0 + g_1)^T s / 2``, exact up to the third order of the step.
(SciPy's `trust-ncg` judges steps by values alone and gives up where the solves behind them are
inexact; it ends at saddles, and cannot be watched between steps.)

Source: Nocedal and Wright 2006, algorithm 4.1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from typing import Any

from torch import Tensor

from otdd_flash.curvature.descent import (
    DescentResult,
    DescentState,
    NewtonSettings,
    progress_of,
    state_of,
    warn_unfinished,
)
from otdd_flash.curvature.eigenvalue import MinEigenvalue, smallest
from otdd_flash.curvature.landscape import Function, Landscape, Local, Parameters
from otdd_flash.curvature.trust_region import trust_step
from otdd_flash.types import Progress, finish

ACCEPT = 1e-4  # share of the promised gain from which a step is taken
POOR, GOOD = 0.25, 0.75  # shares below which the radius shrinks, above which it grows
NOISE = 1e-9  # gains below this share of the values are measured by gradients
FORCING = 0.5  # largest relative residual of a step's system
LEAST_RADIUS = 1e-14  # in units of the first; its inverse is the longest way out
SLOPE = 0.25  # share of the fall that negative curvature promises, from which a way out is taken


def newton_cg(
    fun: Function,
    start: Parameters,
    *,
    gtol: float = 1e-6,
    max_steps: int = 100,
    radius: float = 1.0,
    max_products: int = 200,
    escape: bool = True,
    curvature_tol: float = 1e-3,
    watch: bool = False,
    seed: int = 0,
    measure: Callable[[Any], float] | None = None,
) -> DescentResult:
    """Minimise a function that can be differentiated twice, by Newton's method in a trust region.

    Args:
        fun: function of parameters that returns one number, for example
            ``lambda w: otdd.sinkhorn_divergence(features @ w, y, tol=1e-8)``. A ``tol`` of the
            divergence that suits ``gtol``: gradients are as exact as the marginals.
        start: a tensor, or a dict of named tensors for ``torch.func.functional_call``; in float64
            for an end in float64.
        gtol: norm of the gradient to stop at.
        max_steps: steps at most, those that are refused counted.
        radius: longest first step, in units of the parameters.
        max_products: products with the Hessian at most, for one step and for one eigenvalue.
        escape: where the gradient is small, look for negative curvature and go on along it.
        curvature_tol: negative eigenvalues above this share of the largest one count as zero.
        watch: find the smallest eigenvalue after every step, for the history.
        seed: of the search for the smallest eigenvalue.
        measure: a number that the history keeps of the parameters, such as their error.

    Raises:
        DataError, SettingsError.

    Warns:
        ConvergenceWarning: no minimum was reached (without ``escape``: no stationary point).

    Memory: a few vectors of the parameters' size, and what ``fun`` takes.
    """
    settings = NewtonSettings(
        gtol, max_steps, radius, max_products, escape, curvature_tol, watch, seed
    )
    result = finish(newton_steps(Landscape(fun, start, measure), settings))
    warn_unfinished(result, settings)
    return result


def newton_steps(
    landscape: Landscape,
    settings: NewtonSettings,
    here: Local | None = None,  # where to begin; None: at the landscape's start
) -> Generator[Progress, None, DescentResult]:
    """Yield progress after each step of :func:`newton_cg`, and return its result."""
    run = _Run(landscape, settings, landscape.at_start() if here is None else here)
    yield run.progress()
    while not run.done and run.steps < settings.max_steps:
        run.step()
        yield run.progress()
    here, history = run.here, tuple(run.history)
    return DescentResult(
        point=landscape.packed(here.point),
        value=here.value,
        gradient=here.slope,
        eigenvalue=history[-1].eigenvalue,
        steps=run.steps,
        evaluations=landscape.evaluations,
        products=landscape.products,
        escapes=sum(state.kind == "escape" for state in history),
        converged=run.converged,
        history=history,
    )


class _Run:
    """The state of the method between steps."""

    def __init__(self, landscape: Landscape, settings: NewtonSettings, here: Local) -> None:
        self._landscape, self._settings = landscape, settings
        self.here = here
        self._radius = settings.radius
        self._steepest = here.slope  # largest gradient so far
        self._scale = abs(here.value)  # largest value so far
        self.steps = 0
        self.done = self.converged = False
        self.history: list[DescentState] = []
        self._note("start", 0.0)

    def _note(self, kind: str, length: float, found: MinEigenvalue | None = None) -> None:
        if found is None and self._settings.watch:
            found = least_curvature(self._landscape, self.here, self._settings)
        self.history.append(state_of(self._landscape, self.here, kind, length, found))

    def progress(self) -> Progress:
        """Return the last state as a caller shows it."""
        return progress_of("newton", self.history[-1], self.steps, self._settings.max_steps)

    def step(self) -> None:
        """Make one step, or find that there is none to make."""
        if self.here.slope <= self._settings.gtol:
            self._at_rest()
            return
        self.steps += 1
        here = self.here
        move, promised, kind = trust_step(
            here.product,
            here.gradient,
            self._radius,
            tol=min(FORCING, here.slope / self._steepest) * here.slope,
            most=self._settings.max_products,
        )
        there = self._landscape.at(here.point + move)
        share = self._gain(there, move, promised) / promised if there.finite else -math.inf
        length = float(move.norm())
        if share < POOR:
            self._radius = length / 4
        elif share > GOOD and kind != "inside":
            self._radius = 2 * self._radius
        if share > ACCEPT:
            self._move_to(there)
        else:
            kind = "refused"
        self._note(kind, length)
        self.done = self._radius < LEAST_RADIUS * self._settings.radius

    def _move_to(self, there: Local) -> None:
        self.here = there
        self._steepest = max(self._steepest, there.slope)
        self._scale = max(self._scale, abs(there.value))

    def _gain(self, there: Local, move: Tensor, promised: float) -> float:
        """Return how far the value fell."""
        fall = self.here.value - there.value
        if max(abs(fall), promised) > NOISE * self._scale:
            return fall
        return -float((self.here.gradient + there.gradient) @ move) / 2

    def _at_rest(self) -> None:
        """Tell a minimum from a saddle, and leave a saddle."""
        settings = self._settings
        if not settings.escape:
            self.done = self.converged = True
            return
        found = least_curvature(self._landscape, self.here, settings)
        if not goes_down(found, settings):
            self.done, self.converged = True, found.converged
            self._note("minimum", 0.0, found)
            return
        self.steps += 1
        ways = ways_out(self._landscape, self.here, found, settings.radius)
        if not ways:
            self.done = True
            self._note("stuck", 0.0, found)
            return
        length = min(ways, key=lambda way: way[1])[0]
        self._move_to(self._landscape.at(self.here.point + length * found.vector))
        self._note("escape", abs(length), found)


def least_curvature(landscape: Landscape, here: Local, settings: NewtonSettings) -> MinEigenvalue:
    """Return the smallest eigenvalue at a point, as exactly as its sign needs."""
    tol, most = settings.curvature_tol / 10, settings.max_products
    return smallest(here.product, landscape.layout, tol=tol, most=most, seed=settings.seed)


def goes_down(found: MinEigenvalue, settings: NewtonSettings) -> bool:
    """Say whether a smallest eigenvalue is negative by more than its error."""
    return found.value < -settings.curvature_tol * found.largest


def ways_out(
    landscape: Landscape,
    here: Local,
    found: MinEigenvalue,  # a negative one
    radius: float,  # first length tried
) -> list[tuple[float, float]]:  # signed length and value of each way that goes down
    """Follow the eigenvector both ways, to where the value falls no further.

    Shorter steps until the value falls as the curvature promises, then longer ones; a function
    without a lower bound is followed to a point far away.
    """

    def along(length: float) -> float:
        value = landscape.value(here.point + length * found.vector)
        return value if math.isfinite(value) else math.inf

    ways = []
    for length in (radius, -radius):
        value = along(length)
        while not value < here.value + SLOPE * found.value * length**2 / 2:
            length /= 2
            if abs(length) < LEAST_RADIUS * radius:
                break
            value = along(length)
        else:
            further = along(2 * length)
            while further < value and abs(length) < radius / LEAST_RADIUS:
                length, value = 2 * length, further
                further = along(2 * length)
            ways.append((length, value))
    return ways
