r"""The debiased divergence as a differentiable loss.

.. math::
    S = OT_{eps}(x, y) - OT_{eps}(x, x) / 2 - OT_{eps}(y, y) / 2

Gradients are those of the converged value (envelope theorem), computed with the value for the
inputs that ask for them: the backward pass scales them.

Source: Feydy et al. 2019, "Interpolating between optimal transport and MMD using Sinkhorn
divergences".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from otdd_flash.certificate import renumbered
from otdd_flash.checks import check_points, check_weights
from otdd_flash.cost import make_side
from otdd_flash.divergence import (
    Divergence,
    LabelledClouds,
    Term,
    divergence_steps,
    warn_unconverged,
)
from otdd_flash.errors import DataError, LabelError, SettingsError
from otdd_flash.gradient import column_potential, column_pull, row_potential, row_pull
from otdd_flash.ops import resolve_device
from otdd_flash.plan import Plan
from otdd_flash.sinkhorn import finish
from otdd_flash.types import OTDDSettings

NONE = torch.zeros((1, 1), dtype=torch.float64)


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
    """Return S, differentiable in x, y, a, b and the label costs.

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

    Memory: O((n + m) d); on the CPU a stored cost where it fits the budget.
    """
    points = [
        p if isinstance(p, Tensor) and p.ndim else check_points(p, name)
        for p, name in ((x, "x"), (y, "y"))
    ]
    weights = [
        w if isinstance(w, Tensor) else check_weights(w, len(p), name)
        for w, p, name in ((a, points[0], "a"), (b, points[1], "b"))
    ]
    if not (math.isfinite(factor) and factor > 0):
        raise SettingsError(f"factor is {factor}, expected a finite number > 0")
    if (labels is None) != (label_cost is None):
        raise LabelError("labels and label_cost go together: give both, or neither")
    ids = labels or tuple(torch.zeros(len(p), dtype=torch.int64) for p in points)
    costs = tuple(torch.as_tensor(c) for c in label_cost or (NONE, NONE, NONE))
    asked = OTDDSettings(
        epsilon=epsilon,
        tol=tol,
        max_passes=max_passes,
        debias=debias,
        slices=slices,
        device=device,
        memory_budget=memory_budget,
    )
    fixed = _Fixed(tuple(torch.as_tensor(i) for i in ids), factor, asked)
    return _Divergence.apply(*points, *weights, *costs, fixed)


@dataclass(frozen=True, eq=False)
class _Fixed:
    """What is not differentiated."""

    labels: tuple[Tensor, ...]
    factor: float
    settings: OTDDSettings


class _Divergence(torch.autograd.Function):
    """Value and envelope gradients of S."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        tensors, fixed = inputs[:7], inputs[7]
        work = _Work(tensors, fixed)
        needed = ctx.needs_input_grad[:7]
        gradients = [
            work.gradient(k).to(tensor) if need else None
            for k, (need, tensor) in enumerate(zip(needed, tensors, strict=True))
        ]
        ctx.save_for_backward(*gradients)
        return torch.tensor(work.result.value, dtype=torch.float64, device=tensors[0].device)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        scaled = [g if g is None else upstream.to(g) * g for g in ctx.saved_tensors]
        return (*scaled, None)


class _Work:
    """A solved divergence and the gradients of its inputs, in the caller's order of rows."""

    def __init__(self, tensors: tuple[Tensor, ...], fixed: _Fixed) -> None:
        x, y, a, b, *costs = tensors
        self.fixed = fixed
        points = check_points(x, "x"), check_points(y, "y")
        if points[0].shape[1] != points[1].shape[1]:
            raise DataError(
                f"x has {points[0].shape[1]} features, y has {points[1].shape[1]}: "
                "bring both to one feature space"
            )
        self.shapes = x.shape, y.shape
        self.points = points
        self.weights = check_weights(a, len(x), "a"), check_weights(b, len(y), "b")
        for block, shape in zip(costs, ((0, 1), (0, 0), (1, 1)), strict=True):
            want = tuple(len(costs[1 + k]) for k in shape)
            if tuple(block.shape) != want or not bool(torch.isfinite(block).all()):
                raise LabelError(
                    f"a label cost has shape {tuple(block.shape)}, expected {want}, finite: "
                    "(Vx, Vy), (Vx, Vx), (Vy, Vy)"
                )
        for ids, p, cost, name in zip(
            fixed.labels, points, (costs[1], costs[2]), "xy", strict=True
        ):
            wrong = ids.shape != (len(p),) or ids.dtype != torch.int64
            if wrong or int(ids.min()) < 0 or int(ids.max()) >= len(cost):
                raise LabelError(
                    f"labels of {name} have shape {tuple(ids.shape)} and values "
                    f"{int(ids.min())}..{int(ids.max())}; expected ({len(p)},) int64 ids below "
                    f"{len(cost)}"
                )
        device = x.device if x.is_cuda and fixed.settings.device == "auto" else None
        self.device = device or resolve_device(fixed.settings.device)
        sides = [
            make_side(p, ids.to(p.device), w.to(p.device), self.device)
            for p, ids, w in zip(points, fixed.labels, self.weights, strict=True)
        ]
        xy, xx, yy = (c.detach().to(self.device, torch.float64) for c in costs)
        self.clouds = LabelledClouds(sides[0], sides[1], xy, xx, yy, fixed.factor)
        self.result: Divergence = finish(
            divergence_steps(self.clouds, fixed.settings, certify=False, keep=True)
        )
        warn_unconverged(self.result, fixed.settings)

        sizes = len(x), len(y)
        self.cross = self._plan(self.result.cross, (0, 1), sizes)
        self.inner = [
            self._plan(term, (k, k), (sizes[k], sizes[k]))
            for k, term in enumerate(self.result.selves)
        ]

    def _plan(self, term: Term, sides: tuple[int, int], sizes: tuple[int, int]) -> Plan:
        problem = term.problem
        assert problem is not None
        x, y = ((problem.x, problem.y)[k] for k in sides)
        budget = self.fixed.settings.memory_budget
        classes = self.result.classes if sides[1] else None
        return Plan(
            problem.op.pair, term.solution, self.result.epsilon, x, y, sizes, budget, classes
        )

    def gradient(self, k: int) -> Tensor:
        """Return the gradient of input k: x, y, a, b, or the label cost xy, xx or yy."""
        x, y = self.points
        unit = self.fixed.factor
        # the derivative of half a self term, both of whose sides move, is that of its rows alone
        if k == 0:
            return self._debiased(row_pull(self.cross, x, y, unit), 0, self._inner_pull)
        if k == 1:
            return self._debiased(column_pull(self.cross, x, y, unit), 1, self._inner_pull)
        if k == 2:
            return self._debiased(row_potential(self.cross), 0, self._inner_potential)
        if k == 3:
            return self._debiased(column_potential(self.cross), 1, self._inner_potential)
        if k == 4:
            return self.cross.class_mass()
        size = (self.clouds.label_cost_x, self.clouds.label_cost_y)[k - 5]
        if not self.inner:
            return torch.zeros_like(size)
        mass = self.inner[k - 5].class_mass()
        if k == 6 and self.result.classes is not None:
            # the rows of a matched pair are numbered as x's classes
            mass = renumbered(mass.mT, self.result.classes).mT
        return mass / -2

    def _debiased(self, value: Tensor, k: int, inner: Callable[[int], Tensor]) -> Tensor:
        return (value - inner(k) if self.inner else value).reshape(
            self.shapes[k] if value.ndim == 2 else value.shape
        )

    def _inner_pull(self, k: int) -> Tensor:
        return row_pull(self.inner[k], self.points[k], self.points[k], self.fixed.factor)

    def _inner_potential(self, k: int) -> Tensor:
        return row_potential(self.inner[k])
