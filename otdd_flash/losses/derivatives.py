r"""The divergence, its gradient and its Hessian's products as functions that autograd knows.

.. math::
    dS = \langle \nabla S, (dx, dy, da, db, dL) \rangle, \quad
    d(\nabla_{x, y} S) = H (dx, dy)

Each is the derivative of the one before. The product is linear in its direction and H symmetric, so
that it is its own derivative there; what is not known (second derivatives in weights and label
costs, third ones) refuses when it is asked for, and is never taken for zero.

Source: `curvature.hessian_term` for the products.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otdd_flash.curvature.cg import CGSettings, warn_unsolved
from otdd_flash.curvature.hessian import Hessian
from otdd_flash.errors import SettingsError
from otdd_flash.losses.solved import Constants, SolvedDivergence

INPUTS = 7  # x, y, a, b and the label costs xy, xx, yy
SECOND = (
    "second derivatives of the divergence are known in x and y only; pass weights and label costs "
    "that require no gradient (a.detach()), or do not differentiate twice"
)
THIRD = (
    "third derivatives of the divergence are not known; differentiate twice at most, or take "
    "differences of otdd_flash.hvp"
)
BATCH = (
    "the divergence of a batch is not solved at once, as torch.func.vmap asks; loop over it, or "
    "use otdd_flash.SamplesLoss, which takes batches (B, n, d)"
)
FORWARD = (
    "forward-mode derivatives of the divergence are not known (torch.func.jvp, jacfwd, hessian); "
    "use reverse mode twice, torch.func.jacrev(torch.func.jacrev(f)), or otdd_flash.hvp"
)


def differentiable_value(
    tensors: tuple[Tensor, ...],  # x, y, a, b and the label costs xy, xx, yy
    constants: Constants,
) -> Tensor:  # () float64, on the device of x
    """Return S, differentiable in its tensors, and twice in x and y.

    Memory: O((n + m) d); the graph keeps the potentials and the points as the kernels read them.

    Raises:
        DataError, LabelError, WeightError, SettingsError, DeviceError, BudgetError.
    """
    return _Value.apply(*tensors, _Work(constants))


class _Work:
    """What the forward pass is to solve, and its solution, for the pass that saves it."""

    def __init__(self, constants: Constants) -> None:
        self.constants = constants
        self.solved: SolvedDivergence | None = None


@dataclass(frozen=True, eq=False)
class _Known:
    """What is known of the value's derivatives."""

    gradients: tuple[Tensor | None, ...]  # in the inputs' shapes and dtypes, None: not asked for
    hessian: Hessian


class _BackwardOnly(torch.autograd.Function):
    """Backward mode alone, one problem at a time."""

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise SettingsError(FORWARD)

    @staticmethod
    def vmap(*_: Any) -> None:
        raise SettingsError(BATCH)


class _Value(_BackwardOnly):
    """S of its inputs; the gradients that are asked for are computed with it."""

    @staticmethod
    def forward(*inputs: Any) -> Tensor:  # tensors, work
        *tensors, work = inputs
        work.solved = SolvedDivergence(tuple(tensors), work.constants)
        value = work.solved.result.value
        return torch.tensor(value, dtype=torch.float64, device=tensors[0].device)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        *tensors, work = inputs
        gradients = tuple(
            work.solved.gradient(k).to(tensor.device, tensor.dtype) if need else None
            for k, (need, tensor) in enumerate(zip(ctx.needs_input_grad, tensors, strict=False))
        )
        ctx.known = _Known(gradients, work.solved.hessian())
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        gradients, tensors = ctx.known.gradients, ctx.saved_tensors
        if torch.is_grad_enabled():
            fixed = (refused(t, SECOND) for t in tensors[2:])
            gradients = _Gradient.apply(*tensors[:2], *fixed, ctx.known)
        return (*(g if g is None else upstream.to(g) * g for g in gradients), None)


class _Gradient(_BackwardOnly):
    """The gradients of S, as functions of the points."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor | None, ...]:  # tensors, known
        return tuple(g if g is None else g.clone() for g in inputs[-1].gradients)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *tensors, ctx.known = inputs
        ctx.set_materialize_grads(False)
        # autograd refuses points that were changed in place meanwhile
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *moves: Tensor | None) -> tuple[Tensor | None, ...]:
        if any(move is not None for move in moves[2:]):
            raise SettingsError(SECOND)
        tensors, needed = ctx.saved_tensors, ctx.needs_input_grad[:2]
        fixed = (refused(t, THIRD) for t in tensors)
        parts = _Product.apply(*moves[:2], *fixed, ctx.known.hessian, needed)
        return (*parts, *(None,) * (INPUTS - 1))


class _Product(torch.autograd.Function):
    """The Hessian of S in the points times a direction of both clouds."""

    @staticmethod
    def forward(*inputs: Any) -> tuple[Tensor | None, ...]:
        left, right, x, y, *_, hessian, (rows, columns) = inputs
        if left is None and right is None:
            return None, None
        flat = (m if m is None else m.reshape(len(m), -1) for m in (left, right))
        *parts, solve = hessian.product(*flat, rows=rows, columns=columns, settings=CGSettings())
        warn_unsolved(solve)
        return tuple(
            part if part is None else part.to(p.device, p.dtype).reshape(p.shape)
            for part, p in zip(parts, (x, y), strict=True)
        )

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        _, _, *tensors, ctx.hessian, _ = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *moves: Tensor | None) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[:2]
        parts = _Product.apply(*moves, *ctx.saved_tensors, ctx.hessian, needed)
        return (*parts, *(None,) * (INPUTS + 2))

    @staticmethod
    def vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[Any, Any]:
        """Return the products of a batch of directions, one after the other."""
        if any(dim is not None for dim in in_dims[2 : 2 + INPUTS]):
            raise SettingsError(BATCH)
        found = [
            _Product.apply(
                *(
                    move if dim is None else move.select(dim, k)
                    for move, dim in zip(inputs[:2], in_dims[:2], strict=True)
                ),
                *inputs[2:],
            )
            for k in range(info.batch_size)
        ]
        sides = zip(*found, strict=True)
        parts = [None if side[0] is None else torch.stack(side) for side in sides]
        return tuple(parts), tuple(None if part is None else 0 for part in parts)


class _Refused(torch.autograd.Function):
    """A value whose derivatives in any of its inputs are refused."""

    generate_vmap_rule = True

    @staticmethod
    def forward(message: str, value: Tensor, *inputs: Tensor) -> Tensor:
        return value.view_as(value)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.message = inputs[0]

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> None:
        raise SettingsError(ctx.message)


def refused(value: Tensor, message: str, *inputs: Tensor) -> Tensor:
    """Return a value that raises where a derivative in it, or in other inputs, is asked for."""
    return _Refused.apply(message, value, *inputs)
