"""Hessian-vector products of the divergence, with the evidence for them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.brief import Brief
from otdd_flash.checks import dense_points
from otdd_flash.curvature.cg import CGSettings, warn_unsolved
from otdd_flash.errors import DataError
from otdd_flash.losses.solved import SolvedDivergence, divergence_inputs
from otdd_flash.ops import resolve_device
from otdd_flash.settings import OTDDSettings, check_choice

SIDES = ("x", "y", "xy")
# marginal errors that are reached on a device at eps of 1 % of the mean cost
REACHED = {"cpu": 1e-7, "cuda": 1e-4}


@dataclass(frozen=True, eq=False, repr=False)
class HVPResult(Brief):
    """A product of the Hessian, and how exact it is.

    The product is as exact as the marginals of the plans and the residual of the linear solves.
    """

    product: Any  # (n, d) or (m, d), or both for wrt="xy"
    value: float  # S, or OT_eps where it is not debiased
    epsilon: float  # in units of the cost
    iterations: int  # of the conjugate gradients of all terms together
    residual: float  # largest relative residual of the linear solves
    marginal_error: float  # L1, the largest of the plans
    converged: bool  # both below their tolerances


def hvp(
    x: Any,  # (n, d) numbers
    y: Any,  # (m, d)
    v: Any,  # (n, d) direction of x, (m, d) of y, or a pair of both, one of which may be None
    a: Any = None,  # (n,) weights that sum to 1; None: uniform
    b: Any = None,  # (m,)
    *,
    labels: tuple[Tensor, Tensor] | None = None,  # (n,) and (m,) int64 class ids
    label_cost: tuple[Tensor, Tensor, Tensor] | None = None,  # (Vx, Vy), (Vx, Vx), (Vy, Vy)
    factor: float = 1.0,  # cost of one squared unit of the points
    epsilon: float | str = "1%",
    debias: bool = True,
    wrt: str = "x",
    tol: float | None = None,
    max_passes: int = 2000,
    cg_tol: float | None = None,
    cg_max: int = 1000,
    slices: int | None = None,
    device: str = "auto",
    memory_budget: int | None = None,
) -> HVPResult:
    r"""Return the Hessian of S in the points, times a direction.

    .. math::
        (H v)_i = \sum_k \frac{\partial^2 S}{\partial x_i\, \partial x_k} v_k

    ``wrt`` says which rows of the Hessian are wanted. A single direction moves the same points; the
    blocks between x and y take a pair, for example ``v=(None, vy), wrt="x"``.

    Args:
        x: points.
        y: points of the same dimension.
        v: direction of the points of ``wrt``, or a pair ``(vx, vy)``; None: those points stay.
        a: weights of x.
        b: weights of y.
        labels: class ids of both clouds, with ``label_cost``.
        label_cost: costs between source and target classes, inside the source, inside the target.
        factor: cost of one squared unit of the points, 1/2 for GeomLoss's convention.
        epsilon: regularisation, in units of the cost or as ``"1%"`` of its mean; what it comes to
            counts as a constant, though the mean cost moves with the points.
        debias: subtract the self terms.
        wrt: ``x``, ``y``, or ``xy`` for both parts.
        tol: L1 marginal error of the plans; products are off by a few times as much, 20 times at
            1 % of the mean cost. None: 1e-7 on the CPU, 1e-4 on a GPU, which float32 sums reach
            at 1 % of the mean cost.
        max_passes: soft minima over all pairs, for each of the three solves.
        cg_tol: relative residual of the linear solves; None: 1e-10 on the CPU, 1e-5 on a GPU, which
            is what its float32 sums reach.
        cg_max: iterations at most, for each term.
        slices: int8 slices a coordinate on a GPU. Two, the default for floats, move products by
            some 1e-4 of their size at 5 % of the mean cost and 5e-4 at 1 %; three do not, and take
            float64 sums.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` stays where x is on a GPU.
        memory_budget: bytes; None: half of what is free.

    Raises:
        DataError, LabelError, WeightError, SettingsError, DeviceError, BudgetError.

    Warns:
        ConvergenceWarning: marginals or linear solves that stopped above their tolerance.

    Memory: O((n + m) d), and plans that are stored where they fit the budget and are read faster
    than they are remade.
    """
    check_choice("wrt", wrt, SIDES)
    settings = CGSettings(cg_tol, cg_max)
    asked = OTDDSettings(
        epsilon=epsilon,
        tol=REACHED["cuda"] if tol is None else tol,
        max_passes=max_passes,
        debias=debias,
        slices=slices,
        device=device,
        memory_budget=memory_budget,
    )
    on_gpu = isinstance(x, Tensor) and x.is_cuda and device == "auto"
    if tol is None and not on_gpu:
        asked = replace(asked, tol=REACHED[resolve_device(device).type])
    tensors, constants = divergence_inputs(
        x, y, a, b, labels=labels, label_cost=label_cost, factor=factor, settings=asked
    )
    moves = _directions(v, wrt, tensors[0].shape, tensors[1].shape)
    work = SolvedDivergence(tensors, constants)
    *parts, solve = work.hessian().product(
        *moves, rows="x" in wrt, columns="y" in wrt, settings=settings
    )
    warn_unsolved(solve)
    products = [
        part.to(points.device).reshape(points.shape)
        for part, points in zip(parts, tensors[:2], strict=True)
        if part is not None
    ]
    return HVPResult(
        product=tuple(products) if wrt == "xy" else products[0],
        value=work.result.value,
        epsilon=work.result.epsilon,
        iterations=solve.iterations,
        residual=solve.residual,
        marginal_error=work.result.error,
        converged=work.result.converged and solve.converged,
    )


def _directions(
    v: Any,
    wrt: str,
    *shapes: torch.Size,  # of x and y
) -> list[Tensor | None]:  # (n, d) and (m, d)
    """Return the direction of each side, None for a side that stays.

    Raises:
        DataError: not of the shape of the points, not finite, or none at all.
    """
    if v is None:
        raise DataError("v is None, expected a direction, or a pair (vx, vy) with at most one None")
    if isinstance(v, tuple):
        halves = v
    elif wrt == "xy":
        raise DataError('v is a single direction; wrt="xy" takes a pair (vx, vy)')
    else:
        halves = (v, None) if wrt == "x" else (None, v)
    if len(halves) != 2 or all(half is None for half in halves):
        raise DataError(
            f"v is a tuple of {len(halves)}, expected a pair (vx, vy) with at most one None"
        )
    out: list[Tensor | None] = []
    for half, name, shape in zip(halves, "xy", shapes, strict=True):
        if half is not None:
            half = dense_points(half, f"direction of {name}")
            if half.shape != shape:
                raise DataError(
                    f"the direction of {name} has shape {tuple(half.shape)}, expected "
                    f"{tuple(shape)}, that of the points"
                )
            half = half.reshape(len(half), -1)
            if not bool(torch.isfinite(half).all()):
                raise DataError(f"the direction of {name} holds NaN or infinity")
        out.append(half)
    return out
