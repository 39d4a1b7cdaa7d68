r"""The debiased divergence as a differentiable loss.

.. math::
    S = OT_{eps}(x, y) - OT_{eps}(x, x) / 2 - OT_{eps}(y, y) / 2

Gradients are those of the converged value (envelope theorem), computed with the value for the
inputs that ask for them: the backward pass scales them. Under ``create_graph=True`` they can be
differentiated once more in the points, by Hessian-vector products (see hessian_term.py).

Source: Feydy et al. 2019, "Interpolating between optimal transport and MMD using Sinkhorn
divergences".
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otdd_flash.cg import CGSettings, warn_unsolved
from otdd_flash.divergence import Divergence, LabelledClouds
from otdd_flash.errors import SettingsError
from otdd_flash.solved import Constants, SolvedDivergence, divergence_inputs
from otdd_flash.types import OTDDSettings


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
    return _Divergence.apply(*tensors, constants)


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
    return _Divergence.apply(*tensors, Constants(labels, clouds.factor, settings, (clouds, result)))


class _Divergence(torch.autograd.Function):
    """Value and envelope gradients of S."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        tensors, constants = inputs[:7], inputs[7]
        work = SolvedDivergence(tensors, constants)
        needed = ctx.needs_input_grad[:7]
        gradients = [
            work.gradient(k).to(tensor) if need else None
            for k, (need, tensor) in enumerate(zip(needed, tensors, strict=True))
        ]
        ctx.save_for_backward(*gradients, *tensors)
        ctx.hessian = work.hessian()
        return torch.tensor(work.result.value, dtype=torch.float64, device=tensors[0].device)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, tensors = ctx.saved_tensors[:7], ctx.saved_tensors[7:]
        if torch.is_grad_enabled():
            return (*_Gradient.apply(upstream, *tensors, gradients, ctx.hessian), None)
        return (*(g if g is None else upstream.to(g) * g for g in gradients), None)


class _Gradient(torch.autograd.Function):
    """The gradients of S as functions of the points."""

    @staticmethod
    def forward(ctx: Any, upstream: Tensor, *inputs: Any) -> tuple[Tensor | None, ...]:
        tensors, gradients, hessian = inputs[:7], inputs[7], inputs[8]
        ctx.set_materialize_grads(False)
        # the points, so that autograd refuses those that were changed in place meanwhile
        ctx.save_for_backward(upstream, *gradients, *tensors[:2])
        ctx.hessian = hessian
        return tuple(g if g is None else upstream.to(g) * g for g in gradients)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *moves: Tensor | None) -> tuple[Tensor | None, ...]:
        upstream, *gradients, x, y = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if any(move is not None for move in moves[2:]) or any(needed[3:8]):
            raise SettingsError(
                "second derivatives of the divergence are known in x and y only; pass weights and "
                "label costs that require no gradient (a.detach()), or do not differentiate twice"
            )
        along = None
        if needed[0]:
            along = torch.zeros_like(upstream)
            for move, gradient in zip(moves, gradients, strict=True):
                if move is not None:
                    along += (move * gradient).sum().to(along)
        if not any(needed[1:3]) or moves[0] is None and moves[1] is None:
            return (along, *(None,) * 9)
        flat = (m if m is None else m.reshape(len(m), -1) for m in moves[:2])
        settings = CGSettings()
        *outs, solve = ctx.hessian.product(
            *flat, rows=needed[1], columns=needed[2], settings=settings
        )
        warn_unsolved(solve)
        scaled = (
            h if h is None else (upstream.to(h) * h).to(p).reshape(p.shape)
            for h, p in zip(outs, (x, y), strict=True)
        )
        return (along, *scaled, *(None,) * 7)
