r"""Conjugate gradients for the linear systems behind second derivatives.

Source: Hestenes and Stiefel 1952; singular systems, Kaasschieter 1988.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.errors import ConvergenceWarning, SettingsError
from otdd_flash.settings import check_integer, check_number

# relative residuals that the precision of the products lets conjugate gradients reach
REACHED = {torch.float64: 1e-10, torch.float32: 1e-5}
# a restart from the true residual that gains less than this says that rounding is reached
LEAST_GAIN = 0.5
# what residuals of the recurrence can gain before they part from the true ones
MOST_GAIN = 1e-12


@dataclass(frozen=True)
class CGSettings:
    """When the conjugate gradients of a product end, checked on construction.

    Raises:
        SettingsError: a value outside its range.
    """

    tol: float | None = None  # relative residual; None: 1e-10 in float64, 1e-5 in float32
    most: int = 1000  # iterations

    def __post_init__(self) -> None:
        if self.tol is not None and check_number("cg_tol", self.tol, positive=True) >= 1:
            raise SettingsError(f"cg_tol is {self.tol}, expected a number between 0 and 1")
        check_integer("cg_max", self.most, 1)


@dataclass(frozen=True)
class Solve:
    """What a linear solve did."""

    iterations: int
    residual: float  # relative, recomputed from the returned solution
    converged: bool
    spent: bool = False  # stopped by the number of iterations


def conjugate_gradients(
    apply: Callable[[Tensor], Tensor],  # symmetric, non-negative
    right: Tensor,  # (m,) float64
    mass: Tensor,  # (m,) float64 > 0, preconditioner; residuals are measured by its inverse
    *,
    tol: float,
    most: int,
    singular: bool,  # whether constants are the kernel: they are projected out
) -> tuple[Tensor, Tensor, Solve]:  # solution (m,), residual (m,), evidence
    """Solve a system by preconditioned conjugate gradients, restarted from the true residual.

    Source: Hestenes and Stiefel 1952.
    """

    def admissible(residual: Tensor) -> Tensor:
        return residual - mass * (residual.sum() / mass.sum()) if singular else residual

    def size(residual: Tensor) -> float:
        return float((residual.square() / mass).sum().sqrt())

    solution = torch.zeros_like(right)
    residual = admissible(right)
    whole = left = size(residual)
    steps = 0
    while left > tol * whole and steps < most:
        trial, estimate = solution, residual
        scaled = residual / mass
        direction, product = scaled, residual @ scaled
        enough = max(tol * whole, MOST_GAIN * left)
        while size(estimate) > enough and steps < most:
            image = admissible(apply(direction))
            curvature = direction @ image
            if not curvature > 0:
                break
            step = product / curvature
            trial = trial + step * direction
            estimate = estimate - step * image
            scaled = estimate / mass
            before, product = product, estimate @ scaled
            direction = scaled + (product / before) * direction
            steps += 1
        true = admissible(right - apply(trial))
        before_restart, now = left, size(true)
        if now < left:
            solution, residual, left = trial, true, now
        if not now < LEAST_GAIN * before_restart:
            break
    if singular:
        solution = solution - (mass @ solution) / mass.sum()
    relative = left / whole if whole > 0 else 0.0
    return solution, residual, Solve(steps, relative, relative <= tol, steps >= most)


def warn_unsolved(solve: Solve) -> None:
    """Warn of a solve that stopped before its tolerance, and say what to do."""
    if solve.converged:
        return
    advice = (
        "raise cg_max or epsilon"
        if solve.spent
        else "rounding hides smaller ones: raise cg_tol or epsilon"
    )
    warnings.warn(
        f"the relative residual of a Hessian-vector product is {solve.residual:.2e} after "
        f"{solve.iterations:,} iterations, above its tolerance: {advice}",
        ConvergenceWarning,
        stacklevel=3,
    )
