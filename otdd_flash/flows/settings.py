"""Settings of a dataset flow, and what a flow yields."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.brief import Brief
from otdd_flash.checks import even, shown
from otdd_flash.errors import SettingsError
from otdd_flash.settings import (
    OTDDSettings,
    check_choice,
    check_flag,
    check_integer,
    check_number,
    is_integer,
)
from otdd_flash.types import LabelledDataset

MODES = ("features", "attached", "tied", "augmented")
OPTIMIZERS = ("gradient", "sgd", "adam")
RELABEL = ("nearest", "kmeans")
# an L1 error that moves a value by a hundredth of what it costs to halve it again
TOLERANCE = 1e-2
MOMENTUM = 0.9


@dataclass(frozen=True)
class FlowSettings:
    r"""Settings of a flow, checked on construction.

    Args:
        mode: what moves. ``features``: samples, with labels and label costs as they are.
            ``attached``: samples, and the laws of their classes with them. ``tied``: classes, by
            affine maps that take their samples along. ``augmented``: samples that carry a class
            mean and standard deviation each, from which labels are read again.
        steps: number of moves; a flow of N steps yields N + 1 states.
        step_size: of ``gradient`` and ``sgd``: multiplies the Wasserstein gradient, 0.5 is a jump
            onto the barycentric map where there are no labels. Of ``adam``: length of a move of
            one coordinate, in units of the points after ``solver.normalize``.
        optimizer: ``gradient``, ``sgd`` (with momentum) or ``adam``.
        momentum: of ``sgd``; None: 0.9.
        box: bounds ``(low, high)`` that points are projected into, in units of the points as given;
            None: none; ``"auto"``: (0, 255) where both datasets hold 8-bit integers, else none.
        solver: settings of the divergence. None: those of ``OTDDSettings`` with ``tol=1e-2``, and
            ``label_distance="diagonal"`` where the mode is ``augmented``. A relative ``epsilon`` is
            taken at the start and stays: values of one flow compare. ``slices=None`` is one int8
            slice where both datasets hold 8-bit integers: the cost then sees moving points rounded
            to whole grey levels (the points themselves are never rounded), which each state
            reports as ``moved``; else two on a GPU, and no rounding on a CPU.
        extrapolate: begin a solve at the potentials of the last two steps, drawn further; False:
            at the last ones.
        self_every: renew the part of the gradient that comes from the source's self term every so
            many steps. The value is always that of the step.
        laws_every: renew class laws, label costs and their part of the gradient every so many
            steps (``attached`` and ``tied``).
        relabel: how ``augmented`` reads labels: ``nearest`` law of the target, or ``kmeans``
            begun at the target's laws.
        relabel_every: steps between two readings of ``augmented``; None: at the last step only.
        potential: V, takes (k, d) points after ``normalize`` to (k,) values, differentiable:
            ``sum_i a_i V(x_i)`` is added to what is descended.
        interaction: takes all points (n, d) after ``normalize`` and their weights (n,) to a number,
            differentiable, for example ``sum_ij a_i a_j W(x_i - x_j)``, which is added too. It
            decides itself how to sum pairs.

    Raises:
        SettingsError: a value outside its range, or two that do not go together.
    """

    mode: str = "attached"
    steps: int = 100
    step_size: float = 0.02
    optimizer: str = "gradient"
    momentum: float | None = None
    box: tuple[float, float] | str | None = "auto"
    solver: OTDDSettings | None = None
    extrapolate: bool = True
    self_every: int = 1
    laws_every: int = 1
    relabel: str = "nearest"
    relabel_every: int | None = None
    potential: Callable[[Tensor], Tensor] | None = None
    interaction: Callable[[Tensor, Tensor], Tensor] | None = None

    def __post_init__(self) -> None:
        plain: dict[str, Any] = {}
        named = {"mode": MODES, "optimizer": OPTIMIZERS, "relabel": RELABEL}
        for key, choices in named.items():
            check_choice(key, getattr(self, key), choices)
        for key, least in (("steps", 0), ("self_every", 1), ("laws_every", 1)):
            plain[key] = check_integer(key, getattr(self, key), least)
        if self.relabel_every is not None:
            plain["relabel_every"] = check_integer("relabel_every", self.relabel_every, 1)
        plain["step_size"] = check_number("step_size", self.step_size, positive=True)
        plain["extrapolate"] = check_flag("extrapolate", self.extrapolate)
        plain["momentum"] = self._momentum()
        plain["box"] = _check_box(self.box)
        plain["solver"] = self._solver()
        for key in ("potential", "interaction"):
            if getattr(self, key) is not None and not callable(getattr(self, key)):
                raise SettingsError(
                    f"{key} is {shown(getattr(self, key))}, expected a function of torch tensors"
                )
        self._check_mode(plain["box"])
        for key, value in plain.items():
            object.__setattr__(self, key, value)

    @property
    def divergence(self) -> OTDDSettings:
        """Settings of the divergence: ``solver``, or what stands for it where none was given."""
        assert self.solver is not None
        return self.solver

    def _momentum(self) -> float | None:
        if self.optimizer != "sgd":
            if self.momentum is not None:
                raise SettingsError(
                    f"momentum is for optimizer='sgd', not {self.optimizer!r}: leave it out, or "
                    "take that one (--optimizer sgd)"
                )
            return None
        value = check_number(
            "momentum", MOMENTUM if self.momentum is None else self.momentum, positive=False
        )
        if value >= 1:
            raise SettingsError(f"momentum is {value}, expected 0 <= momentum < 1")
        return value

    def _solver(self) -> OTDDSettings:
        if self.solver is None:
            law = "diagonal" if self.mode == "augmented" else "gaussian"
            return OTDDSettings(tol=TOLERANCE, label_distance=law)
        if not isinstance(self.solver, OTDDSettings):
            raise SettingsError(f"solver is {shown(self.solver)}, expected an OTDDSettings")
        if self.solver.lambda_x == 0:
            raise SettingsError("solver.lambda_x is 0: samples would have nowhere to go")
        return self.solver

    def _check_mode(self, box: tuple[float, float] | str | None) -> None:
        """Refuse what a mode cannot do."""
        law = self.solver.label_distance if self.solver else None
        if self.mode == "augmented" and law == "gaussian":
            raise SettingsError(
                "augmented particles carry a mean and a standard deviation a feature, whose laws "
                "are not 'gaussian': set label_distance='diagonal' or 'means' in solver "
                "(--label-distance diagonal)"
            )
        if self.mode == "augmented" and self.solver and self.solver.lambda_y == 0:
            raise SettingsError(
                "solver.lambda_y is 0: augmented particles would carry nothing that labels could "
                "be read from; use mode='features' (--mode features)"
            )
        if self.mode != "augmented" and self.relabel_every is not None:
            raise SettingsError(
                "relabel_every is for mode='augmented' (--mode augmented); "
                f"{self.mode!r} keeps its labels"
            )
        if self.mode == "tied" and self.optimizer == "adam":
            raise SettingsError(
                "adam moves coordinates one by one, which is no affine map of a class: "
                "use optimizer='gradient' (--optimizer gradient) or 'sgd' with mode='tied' "
                "(--mode tied)"
            )
        if self.mode == "tied" and isinstance(box, tuple):
            raise SettingsError(
                "a projection into a box is no affine map of a class: leave box (--box) out with "
                "mode='tied' (--mode tied)"
            )


def _check_box(box: Any) -> tuple[float, float] | str | None:
    if box is None or (isinstance(box, str) and box == "auto"):
        return box
    fault = SettingsError(
        f"box is {shown(box)}, expected (low, high) with low < high, 'auto' or None"
    )
    if isinstance(box, str) or not isinstance(box, (tuple, list)) or len(box) != 2:
        raise fault
    if not all(is_integer(end) or isinstance(end, (float, np.floating)) for end in box):
        raise fault
    low, high = float(box[0]), float(box[1])
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise fault
    return low, high


@dataclass(frozen=True, eq=False, repr=False)
class FlowState(Brief):
    """A flow at one step. Holds one copy of the points and no plan, potentials or cost.

    ``value`` is S of the points at this step. ``objective`` adds potential and interaction.
    """

    step: int
    points: Tensor  # (n, d) floating, in units of the source's points and in the order of its rows
    labels: Tensor  # (n,) int64
    class_names: tuple[str, ...]  # of the labels: the source's; the target's once read again
    value: float
    objective: float
    marginal_error: float  # L1, the larger of the solves made at this step
    converged: bool
    passes: tuple[int, int]  # softmins over all pairs of the cross and of the self term
    epsilon: float  # in units of the cost, the same at every step
    speed: (
        float  # root mean square of the gradient over samples; 0 at the last step, which has none
    )
    moved: float  # root mean square distance by which the cost rounded the points, in cost units
    # at most what label costs that were bounded from earlier steps, not measured, hide of the value
    label_error: float
    seconds: dict[str, float] = field(repr=False)  # by section, and "total"
    backend: str  # what ran, for example "triton, 1 int8 slice(s)"
    notes: tuple[str, ...] = ()  # what was reused from earlier steps, solves that did not converge
    class_mass: Tensor | None = None  # (Vx, Vy) of the plan: at the last step, and where laws move
    whole: bool = False  # points are grey levels that moved: both datasets hold 8-bit integers

    @property
    def distance(self) -> float:
        """Root of the value, 0 where rounding made it negative."""
        return max(self.value, 0.0) ** 0.5

    def dataset(
        self,
        like: LabelledDataset,  # the source: its weights, sample shape and name
        *,
        name: str | None = None,
    ) -> LabelledDataset:
        """Return the points and labels of this step as a dataset.

        Grey levels that moved are rounded to 8-bit integers from 0 to 255, as both datasets had
        them: what ``normalize`` does to the result is what it did to them.
        """
        points, weights = self.points, like.weights
        if self.whole:
            points = points.round().clamp(0, 255).to(torch.uint8)
        return LabelledDataset(
            points,
            self.labels,
            # uniform ones are made anew: dividing them by their sum would change a last bit
            weights=None if even(weights) else weights,
            name=name or f"{like.name} at step {self.step}",
            class_names=self.class_names,
            sample_shape=like.sample_shape,
            provenance={**like.provenance, "flow": {"step": self.step}},
        )


def float_type(*points: Tensor) -> torch.dtype:
    """Return the dtype that moves: float32, or float64 where points need its digits."""
    narrow = (torch.uint8, torch.int8, torch.int16, torch.float16, torch.bfloat16, torch.float32)
    return torch.float32 if all(p.dtype in narrow for p in points) else torch.float64


def described(settings: FlowSettings) -> dict[str, Any]:
    """Return settings in JSON's own types; functions by their name."""
    out: dict[str, Any] = {}
    for item in fields(settings):
        value = getattr(settings, item.name)
        if isinstance(value, OTDDSettings):
            value = {inner.name: getattr(value, inner.name) for inner in fields(value)}
        elif callable(value):
            kind = value if hasattr(value, "__qualname__") else type(value)
            value = f"{kind.__module__}.{kind.__qualname__}"
        out[item.name] = list(value) if isinstance(value, tuple) else value
    return out
