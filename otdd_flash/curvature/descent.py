"""What a descent is told, what each of its steps leaves, and where it ended."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from typing import Any

from otdd_flash.brief import Brief
from otdd_flash.curvature.eigenvalue import MinEigenvalue
from otdd_flash.curvature.landscape import Landscape, Local
from otdd_flash.errors import ConvergenceWarning
from otdd_flash.settings import check_flag, check_integer, check_number
from otdd_flash.types import Progress


@dataclass(frozen=True)
class NewtonSettings:
    """Settings of :func:`newton_cg`, checked on construction.

    Raises:
        SettingsError: a value outside its range.
    """

    gtol: float = 1e-6  # norm of the gradient to stop at
    max_steps: int = 100
    radius: float = 1.0  # of the first trust region, in units of the parameters
    max_products: int = 200  # with the Hessian, for one step or eigenvalue
    escape: bool = True  # leave saddles
    curvature_tol: float = 1e-3  # negative eigenvalues above this share of the largest are zero
    watch: bool = False  # find the smallest eigenvalue after every step
    seed: int = 0  # of the search for it

    def __post_init__(self) -> None:
        for key in ("gtol", "radius", "curvature_tol"):
            check_number(key, getattr(self, key), positive=True)
        for key in ("max_steps", "max_products"):
            check_integer(key, getattr(self, key), 1)
        for key in ("escape", "watch"):
            check_flag(key, getattr(self, key))
        check_integer("seed", self.seed, 0)


@dataclass(frozen=True)
class DescentState:
    """What one step left."""

    # start, inside, boundary or curvature (how the step ended), refused, adam, escape, minimum,
    # stuck (a saddle that no way leaves)
    kind: str
    value: float
    gradient: float  # norm
    length: float  # of the step
    evaluations: int  # of the function, so far
    products: int  # with the Hessian, so far
    eigenvalue: float = math.nan  # the smallest, where it was asked for
    measure: float = math.nan  # what the caller measures of the parameters


@dataclass(frozen=True, eq=False, repr=False)
class DescentResult(Brief):
    """Where a descent ended, and the evidence for it."""

    point: Any  # like the start
    value: float
    gradient: float  # norm
    eigenvalue: float  # smallest of the Hessian there, NaN where it was not asked for
    steps: int
    evaluations: int
    products: int
    escapes: int  # saddles left on the way
    converged: bool  # gradient below gtol and, where asked for, no negative curvature left
    history: tuple[DescentState, ...]


def warn_unfinished(result: DescentResult, settings: NewtonSettings) -> None:
    """Warn of a descent that reached no minimum, and say what to do."""
    if result.converged:
        return
    spent = result.steps >= settings.max_steps
    advice = "raise max_steps" if spent else "make the function more exact (a smaller tol)"
    warnings.warn(
        f"the gradient's norm is {result.gradient:.2e} after {result.steps:,} steps, "
        f"gtol={settings.gtol:g}: {advice}, or raise gtol",
        ConvergenceWarning,
        stacklevel=3,
    )


def state_of(
    landscape: Landscape,
    here: Local,
    kind: str,
    length: float,
    found: MinEigenvalue | None,
) -> DescentState:
    """Return what the history keeps of a point."""
    return DescentState(
        kind,
        here.value,
        here.slope,
        length,
        landscape.evaluations,
        landscape.products,
        math.nan if found is None else found.value,
        landscape.measure(here.point),
    )


def progress_of(stage: str, state: DescentState, done: int, total: int) -> Progress:
    """Return a state as a caller shows it."""
    note = f"value {state.value:.3e}, gradient {state.gradient:.1e}"
    data = {key: getattr(state, key) for key in ("value", "gradient", "eigenvalue", "measure")}
    return Progress(stage, done, total, note, data)
