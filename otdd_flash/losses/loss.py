r"""The debiased divergence as a differentiable loss.

.. math::
    S = OT_{eps}(x, y) - OT_{eps}(x, x) / 2 - OT_{eps}(y, y) / 2

Gradients are those of the converged value (envelope theorem), computed with the value for the
inputs that ask for them: the backward pass scales them. Under ``create_graph=True`` they can be
differentiated once more in the points, by Hessian-vector products (see derivatives.py).

Source: Feydy et al. 2019, "Interpolating between optimal transport and MMD using Sinkhorn
divergences".
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from otdd_flash.losses.derivatives import differentiable_value
from otdd_flash.losses.solved import Constants, divergence_inputs
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.solver.divergence import Divergence


def sinkhorn_divergence(
    x: Any,  # (n, d) numbers
    y: Any,  # (m, d)
    a: Any = None,  # (n,) weights that sum to 1; None: uniform
    b: Any = None,  # (m,)
    *,
    labels: tuple[Tensor, Tensor] | None = None,  # (n,) and (m,) int64 class ids
    label_cost: tuple[Tensor, Tensor, Tensor] | None = None,  # (Vx, Vy), (Vx, Vx), (Vy, Vy)
    factor: float = 1.0,  # cost of one squared unit of the points
    epsilon: float | str = "1%",
    tol: float = 1e-3,
    max_passes: int = 2000,
    debias: bool = True,
    slices: int | None = None,
    device: str = "auto",
    memory_budget: int | None = None,
) -> Tensor:  # () float64, on the device of x
    """Return S, differentiable in x, y, a, b and the label costs, and twice in x and y.

    Args:
        x: points; a tensor that asks for a gradient gets one.
        y: points of the same dimension.
        a: weights of x; their gradient is centred.
        b: weights of y.
        labels: class ids of both clouds, with ``label_cost``.
        label_cost: costs between source and target classes, inside the source, inside the target.
        factor: cost of one squared unit of the points, 1/2 for GeomLoss's convention.
        epsilon: regularisation, in units of the cost or as ``"1%"`` of its mean; what it comes to
            counts as a constant in gradients, though the mean cost moves with the points.
        tol: L1 marginal error to stop at; gradients are as exact as the marginals.
        max_passes: soft minima over all pairs, for each of the three solves.
        debias: subtract the self terms.
        slices: int8 slices a coordinate on a GPU; None: one where that is exact, else two.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` stays where x is on a GPU.
        memory_budget: bytes; None: half of what is free.

    Raises:
        DataError, LabelError, WeightError, SettingsError, DeviceError, BudgetError.

    Warns:
        ConvergenceWarning: a marginal error above ``tol`` after ``max_passes``.

    Memory: O((n + m) d); on the CPU a stored cost where it fits the budget. The graph keeps the
    potentials and the points as the kernels read them.
    """
    settings = OTDDSettings(
        epsilon=epsilon,
        tol=tol,
        max_passes=max_passes,
        debias=debias,
        slices=slices,
        device=device,
        memory_budget=memory_budget,
    )
    return divergence_loss(
        x, y, a, b, labels=labels, label_cost=label_cost, factor=factor, settings=settings
    )


def divergence_loss(
    x: Any,  # (n, d) numbers
    y: Any,  # (m, d)
    a: Any,  # (n,) weights that sum to 1; None: uniform
    b: Any,  # (m,)
    *,
    labels: tuple[Tensor, Tensor] | None = None,
    label_cost: tuple[Tensor, Tensor, Tensor] | None = None,
    factor: float,
    settings: OTDDSettings,
) -> Tensor:  # () float64, on the device of x
    """Return S as :func:`sinkhorn_divergence` does, its settings as one object."""
    tensors, constants = divergence_inputs(
        x, y, a, b, labels=labels, label_cost=label_cost, factor=factor, settings=settings
    )
    return differentiable_value(tensors, constants)


def solved_loss(
    tensors: tuple[Tensor, ...],  # x, y, a, b and the label costs xy, xx, yy
    labels: tuple[Tensor, Tensor],  # (n,) and (m,) int64
    clouds: LabelledClouds,  # of the values of the tensors
    result: Divergence,  # solved with keep=True
    settings: OTDDSettings,
) -> Tensor:  # () float64
    """Return S of a problem that is solved as a function of its inputs.

    Raises:
        DataError, LabelError, WeightError: tensors of other shapes.
    """
    constants = Constants(labels, clouds.factor, settings, (clouds, result))
    return differentiable_value(tensors, constants)
