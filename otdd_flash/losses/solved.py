"""A solved divergence of what a caller passed: gradients and second derivatives in its order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import check_clouds, check_points, check_weights, shown
from otdd_flash.cost import make_side
from otdd_flash.curvature.hessian import Hessian
from otdd_flash.errors import LabelError
from otdd_flash.ops import WORKSPACE_BYTES, device_of
from otdd_flash.settings import OTDDSettings, check_number
from otdd_flash.solver.certificate import renumbered
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.solver.divergence import Divergence, Term, divergence_steps, warn_unconverged
from otdd_flash.solver.gradient import column_potential, column_pull, row_potential, row_pull
from otdd_flash.solver.plan import Plan
from otdd_flash.types import finish

# asymmetry of a label cost that passes for rounding, of its largest entry
SYMMETRIC = 1e-5
NONE = torch.zeros((1, 1), dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Constants:
    """What is not differentiated."""

    labels: tuple[Tensor, ...]
    factor: float
    settings: OTDDSettings
    solved: tuple[LabelledClouds, Divergence] | None = None  # if it is solved already


def divergence_inputs(
    x: Any,
    y: Any,
    a: Any,
    b: Any,
    *,
    labels: tuple[Tensor, Tensor] | None,
    label_cost: tuple[Tensor, Tensor, Tensor] | None,
    factor: float,
    settings: OTDDSettings,
) -> tuple[tuple[Tensor, ...], Constants]:
    """Return what gradients flow to (x, y, a, b and three label costs) and what is constant.

    Raises:
        DataError, WeightError, SettingsError, LabelError.
    """
    points = [
        p if isinstance(p, Tensor) and p.ndim else check_points(p, name)
        for p, name in ((x, "x"), (y, "y"))
    ]
    weights = [
        w if isinstance(w, Tensor) else check_weights(w, len(p), name)
        for w, p, name in ((a, points[0], "a"), (b, points[1], "b"))
    ]
    factor = check_number("factor", factor, positive=True)
    if (labels is None) != (label_cost is None):
        raise LabelError("labels and label_cost go together: give both, or neither")
    if labels is None or label_cost is None:
        ids: tuple[Tensor, ...] = tuple(torch.zeros(len(p), dtype=torch.int64) for p in points)
        costs: tuple[Tensor, ...] = (NONE, NONE, NONE)
    else:
        ids = _tensors(labels, "labels", "the class ids of x and y")
        costs = _tensors(label_cost, "label_cost", "costs (Vx, Vy), (Vx, Vx), (Vy, Vy)")
    return (*points, *weights, *costs), Constants(ids, factor, settings)


def _tensors(values: Any, name: str, what: str) -> tuple[Tensor, ...]:
    """Return two class ids, or three label costs, as tensors."""
    count = 2 if name == "labels" else 3
    if not isinstance(values, (tuple, list)) or len(values) != count:
        raise LabelError(f"{name} is {shown(values)}, expected a tuple of {count}: {what}")
    try:
        return tuple(torch.as_tensor(value) for value in values)
    except (TypeError, ValueError, RuntimeError) as error:
        raise LabelError(
            f"{name} is {shown(values)}, not numbers ({error}); expected a tuple of {count}: {what}"
        ) from error


def _check_label_costs(costs: list[Tensor], debias: bool) -> None:
    """Refuse label costs of other shapes than (Vx, Vy), (Vx, Vx), (Vy, Vy), or not finite.

    Self terms are solved by updates that take the costs inside a cloud as symmetric.
    """
    classes = [len(block) if block.ndim else 0 for block in costs[1:]]
    for block, sides in zip(costs, ((0, 1), (0, 0), (1, 1)), strict=True):
        want = tuple(classes[k] for k in sides)
        if tuple(block.shape) != want or not bool(torch.isfinite(block).all()):
            raise LabelError(
                f"a label cost has shape {tuple(block.shape)}, expected {want}, finite: "
                "(Vx, Vy), (Vx, Vx), (Vy, Vy)"
            )
    for block, name in zip(costs[1:], "xy", strict=True):
        gap = float((block - block.mT).abs().max())
        if debias and gap > SYMMETRIC * float(block.abs().max()):
            raise LabelError(
                f"the label cost inside {name} differs from its transpose by up to {gap:.3g}, "
                "expected it to be symmetric: pass (cost + cost.mT) / 2, or debias=False"
            )


def _check_ids(ids: Tensor, n: int, classes: int, name: str) -> None:
    """Refuse class ids that are not (n,) int64 from 0 to classes - 1."""
    want = f"expected ({n},) int64 ids below {classes}"
    if ids.shape != (n,) or ids.dtype != torch.int64:
        raise LabelError(f"labels of {name} are {ids.dtype} {tuple(ids.shape)}, {want}")
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or high >= classes:
        raise LabelError(f"labels of {name} run from {low} to {high}, {want}")


class SolvedDivergence:
    """A solved divergence and the gradients of its inputs, in the caller's order of rows."""

    def __init__(self, tensors: tuple[Tensor, ...], constants: Constants) -> None:
        x, y, a, b, *costs = tensors
        self.constants = constants
        points = check_clouds(x, y)
        self.shapes = x.shape, y.shape
        self.points = points
        self.weights = check_weights(a, len(x), "a"), check_weights(b, len(y), "b")
        _check_label_costs(costs, constants.settings.debias)
        for ids, p, cost, name in zip(constants.labels, points, costs[1:], "xy", strict=True):
            _check_ids(ids, len(p), len(cost), name)
        self.clouds, self.result = constants.solved or self._solve(costs)
        sizes = len(x), len(y)
        self.cross = self._plan(self.result.cross, (0, 1), sizes)
        self.inner = [
            self._plan(term, (k, k), (sizes[k], sizes[k]))
            for k, term in enumerate(self.result.selves)
        ]

    def _solve(self, costs: list[Tensor]) -> tuple[LabelledClouds, Divergence]:
        constants, first = self.constants, self.points[0]
        settings = constants.settings
        device = device_of(first, settings.device)
        sides = [
            make_side(p, ids.to(p.device), w.to(p.device), device)
            for p, ids, w in zip(self.points, constants.labels, self.weights, strict=True)
        ]
        xy, xx, yy = (c.detach().to(device, torch.float64) for c in costs)
        clouds = LabelledClouds(sides[0], sides[1], xy, xx, yy, constants.factor)
        result = finish(divergence_steps(clouds, settings, certify=False, keep=True))
        warn_unconverged(result, settings)
        return clouds, result

    def _plan(self, term: Term, sides: tuple[int, int], sizes: tuple[int, int]) -> Plan:
        problem = term.problem
        assert problem is not None
        x, y = ((problem.x, problem.y)[k] for k in sides)
        classes = self.result.classes if sides[1] else None
        # a gradient reads the plan once or twice: storing the cost would not pay
        return Plan(
            problem.op.pair,
            term.solution,
            self.result.epsilon,
            x,
            y,
            sizes,
            WORKSPACE_BYTES,
            classes,
        )

    def hessian(self) -> Hessian:
        """Return the second derivatives, without the operators that solved the first ones."""
        budget = self.constants.settings.memory_budget
        share = None if budget is None else budget // (1 + len(self.inner))
        cross, *inner = (replace(p, memory_budget=share) for p in (self.cross, *self.inner))
        return Hessian(cross, tuple(inner), self.constants.factor, *self.points)

    def gradient(self, k: int) -> Tensor:
        """Return the gradient of input k: x, y, a, b, or the label cost xy, xx or yy."""
        x, y = self.points
        unit = self.constants.factor
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
        return row_pull(self.inner[k], self.points[k], self.points[k], self.constants.factor)

    def _inner_potential(self, k: int) -> Tensor:
        return row_potential(self.inner[k])
