"""Adam far from a minimum, Newton's method near it, and out of saddles on the way.

Adam descends while the Hessian has negative eigenvalues, which are looked for every few steps;
where the smallest is positive Newton's method takes over and converges quadratically. A point
without gradient but with negative curvature is a saddle: the first one is left along its
eigenvector both ways, each is followed to its end, and the lower end counts.

Sources: Kingma and Ba 2015; the switch by the smallest eigenvalue, FlashSinkhorn, arXiv 2602.03067.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

import torch

from otdd_flash.curvature.descent import (
    DescentResult,
    DescentState,
    NewtonSettings,
    progress_of,
    state_of,
    warn_unfinished,
)
from otdd_flash.curvature.eigenvalue import MinEigenvalue
from otdd_flash.curvature.landscape import Function, Landscape, Local, Parameters
from otdd_flash.curvature.newton import goes_down, least_curvature, newton_steps, ways_out
from otdd_flash.settings import check_integer, check_number
from otdd_flash.types import Progress, finish


@dataclass(frozen=True)
class AdamSettings:
    """Settings of the first phase, checked on construction.

    Raises:
        SettingsError: a value outside its range.
    """

    learning_rate: float = 1e-2
    max_steps: int = 1000
    check_every: int = 20  # steps between two looks at the smallest eigenvalue

    def __post_init__(self) -> None:
        check_number("learning_rate", self.learning_rate, positive=True)
        for key, name in (("max_steps", "adam_steps"), ("check_every", "check_every")):
            check_integer(name, getattr(self, key), 1)


def adam_newton(
    fun: Function,
    start: Parameters,
    *,
    learning_rate: float = 1e-2,
    adam_steps: int = 1000,
    check_every: int = 20,
    gtol: float = 1e-6,
    max_steps: int = 100,
    radius: float = 1.0,
    curvature_tol: float = 1e-3,
    seed: int = 0,
    measure: Callable[[Any], float] | None = None,
) -> DescentResult:
    """Minimise a function by Adam and then by Newton's method, leaving saddles both ways.

    Args:
        fun: function of parameters that returns one number, as for
            :func:`~otdd_flash.newton_cg`.
        start: a tensor, or a dict of named tensors; a saddle is as good as any.
        learning_rate: of Adam.
        adam_steps: of Adam at most, then Newton's method begins anyway: it descends too.
        check_every: steps of Adam between two looks at the smallest eigenvalue.
        gtol: norm of the gradient to stop at.
        max_steps: of Newton's method.
        radius: first length tried out of a saddle, and of Newton's first step.
        curvature_tol: negative eigenvalues above this share of the largest one count as zero.
        seed: of the search for the smallest eigenvalue.
        measure: a number that the history keeps of the parameters, such as their error.

    Returns:
        The lower end, with the history of the way to it.

    Raises:
        DataError, SettingsError.

    Warns:
        ConvergenceWarning: no minimum was reached.
    """
    adam = AdamSettings(learning_rate, adam_steps, check_every)
    newton = NewtonSettings(
        gtol=gtol, max_steps=max_steps, radius=radius, curvature_tol=curvature_tol, seed=seed
    )
    result = finish(adam_newton_steps(Landscape(fun, start, measure), adam, newton))
    warn_unfinished(result, newton)
    return result


def adam_newton_steps(
    landscape: Landscape,
    adam: AdamSettings,
    newton: NewtonSettings,
) -> Generator[Progress, None, DescentResult]:
    """Yield progress after each step of :func:`adam_newton`, and return its result."""
    here, history, saddle = yield from _adam(landscape, adam, newton, landscape.at_start())
    if saddle is None:
        ends = [(yield from _from_here(landscape, newton, here, history))]
    else:
        ends = []
        for length, _ in ways_out(landscape, here, saddle, newton.radius):
            there = landscape.at(here.point + length * saddle.vector)
            left = state_of(landscape, there, "escape", abs(length), saddle)
            yield progress_of("adam", left, len(history), adam.max_steps)
            branch = yield from _adam(landscape, adam, newton, there)
            way = [*history, left, *branch[1][1:]]
            ends.append((yield from _from_here(landscape, newton, branch[0], way)))
    if not ends:
        # no way goes down: what is left is the saddle itself
        ends = [(yield from _from_here(landscape, newton, here, history))]
    best = min(ends, key=lambda end: end.value)
    return replace(best, evaluations=landscape.evaluations, products=landscape.products)


def _adam(
    landscape: Landscape,
    adam: AdamSettings,
    newton: NewtonSettings,
    here: Local,
) -> Generator[Progress, None, tuple[Local, list[DescentState], MinEigenvalue | None]]:
    """Descend until the Hessian is positive or the gradient zero; say if that is a saddle."""
    point = here.point.clone().requires_grad_()
    optimizer = torch.optim.Adam([point], lr=adam.learning_rate)
    history = [state_of(landscape, here, "start", 0.0, None)]
    for step in range(adam.max_steps + 1):
        resting = here.slope <= newton.gtol
        if resting or step % adam.check_every == 0:
            found = least_curvature(landscape, here, newton)
            history[-1] = replace(history[-1], eigenvalue=found.value, products=landscape.products)
            down = goes_down(found, newton)
            if resting or not down:
                return here, history, found if down else None
        if step == adam.max_steps:
            break
        point.grad = here.gradient
        optimizer.step()
        before, here = here.point, landscape.at(point.detach().clone())
        length = float((here.point - before).norm())
        history.append(state_of(landscape, here, "adam", length, None))
        yield progress_of("adam", history[-1], step + 1, adam.max_steps)
    return here, history, None


def _from_here(
    landscape: Landscape,
    newton: NewtonSettings,
    here: Local,
    history: list[DescentState],  # of the way to it
) -> Generator[Progress, None, DescentResult]:
    """End with Newton's method."""
    end = yield from newton_steps(landscape, newton, here)
    whole = (*history, *end.history[1:])
    return replace(
        end,
        steps=len(history) - 1 + end.steps,
        escapes=sum(state.kind == "escape" for state in whole),
        eigenvalue=whole[-1].eigenvalue,
        history=whole,
    )
