r"""Gradient flows of datasets: the source moves so that its distance to the target falls.

.. math::
    x_i \leftarrow x_i - h \frac{1}{a_i} \frac{\partial F}{\partial x_i}, \quad
    F = S(x, y) + \sum_i a_i V(x_i) + W(x, a)

in normalised points, S the debiased dataset distance squared at one eps.

Source: Alvarez-Melis and Fusi 2021, "Dataset dynamics via gradient flows in probability space".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.cost import check_dimensions, normalisation
from otdd_flash.digests import fingerprint
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.flows.augmented import Augmented, check_clusters
from otdd_flash.flows.checkpoint import Checkpoint, check_continues
from otdd_flash.flows.extras import extra_terms
from otdd_flash.flows.grid import Grid
from otdd_flash.flows.modes import Attached, Features, Scene, Tied
from otdd_flash.flows.optimizers import Mover
from otdd_flash.flows.settings import FlowSettings, FlowState, described, float_type
from otdd_flash.flows.terms import Evaluation, Terms, Trail
from otdd_flash.inputs import given_or_default
from otdd_flash.ops import resolve_device
from otdd_flash.prepared import prepare_steps, units
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.timing import Laps
from otdd_flash.types import LabelledDataset, finish

MODES: dict[str, type[Features]] = {
    "features": Features,
    "attached": Attached,
    "tied": Tied,
    "augmented": Augmented,
}


def flow(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: FlowSettings | None = None,
    *,
    start: Checkpoint | None = None,
) -> Flow:
    """Move a dataset towards another; iterate over the result for one state a step.

    >>> for state in flow(src, tgt, FlowSettings(mode="attached", steps=50)):
    ...     print(state.step, state.distance)

    Args:
        src: samples that move; those of weight zero stay where they are.
        tgt: samples that stay, with as many features.
        settings: how; None: the defaults of :class:`FlowSettings`.
        start: where an interrupted flow of the same datasets and settings goes on, to equal bits
            on the same device: a :meth:`Flow.checkpoint`.

    Raises:
        DataError, SettingsError, DeviceError, BudgetError: input that cannot be used; points that
            ran away to NaN.

    Memory: the points and a few copies of them, and what the divergence takes.
    """
    return Flow(src, tgt, given_or_default(settings, FlowSettings), start)


class Flow(Iterator[FlowState]):
    """An iterator over the states of a flow: see :func:`flow`.

    Between two states it can be told to :meth:`checkpoint`.
    """

    def __init__(
        self,
        src: LabelledDataset,
        tgt: LabelledDataset,
        settings: FlowSettings,
        start: Checkpoint | None = None,
    ) -> None:
        check_dimensions(src, tgt)
        self.source, self.target, self.settings = src, tgt, settings
        self.device = resolve_device(settings.divergence.device)
        if settings.mode == "augmented" and not bool((src.weights > 0).all()):
            raise DataError(
                f"{src.name}: {int((src.weights == 0).sum()):,} samples have weight zero and would "
                "get no label; drop them for mode='augmented' (--mode augmented)"
            )
        if settings.mode == "augmented" and settings.relabel == "kmeans":
            check_clusters(src, tgt)
        if start is not None:
            check_continues(start, settings, self._data)
        self.step = 0 if start is None else start.step  # of the next state
        self._start = start
        self._begun, self._between = False, False
        self._before_last: Checkpoint | None = None

    @cached_property
    def _data(self) -> dict[str, str]:
        return {"source": fingerprint(self.source), "target": fingerprint(self.target)}

    def __next__(self) -> FlowState:
        settings, k = self.settings, self.step
        if k > settings.steps:
            raise StopIteration
        laps = Laps(self.device)
        self._between = False
        if not self._begun:
            self._begin()
            self._begun = True
            laps.lap("begin")
        last, renew_laws = k == settings.steps, k % settings.laws_every == 0
        if last:
            self._before_last = self._snapshot()
        points = self._points
        costs = self._mode.costs(points, renew_laws, last)
        laps.lap("laws")
        found = self._terms.evaluate(
            points,
            costs,
            laps,
            gradient=not last,
            renew=k % settings.self_every == 0,
            mass=last or self._mode.wants_mass(renew_laws),
        )
        if self._at_rest:
            found = replace(found, value=0.0)
        hidden = self._mode.saw(found)
        v = None if last else self._gradient(points, found, renew_laws)
        laps.lap("pull")
        extra = self._extra(points, v)
        speed = 0.0 if v is None else self._speed(v)
        state = self._state(points, found, hidden, extra, speed)
        if v is not None:
            self._move(points, v)
        laps.lap("move")
        self.step += 1
        self._between = True
        return replace(state, seconds=laps.total())

    def _begin(self) -> None:
        """Bring both sides to the device, and take up a checkpoint if there is one."""
        settings, solver = self.settings, self.settings.divergence
        pair = (self.source, self.target)
        x, y = finish(prepare_steps(pair, solver, self.device))
        self._x, self._rows = x.side, x.rows
        self.classes, self._factor = x.used.class_names, x.factor
        self._mode = MODES[settings.mode](Scene(x, y, settings))
        self._mover = Mover(settings, 1.0 / x.factor)
        unit, _ = units(x, solver)
        self._terms = Terms(x.side, y.side, self._mode.target, unit, settings)
        self._labels, self._names = self.source.labels, self.source.class_names
        if self._start is not None:
            self._restore(self._start)
            self._start = None
            return
        begin = self._mode.source
        self._points = begin.to(float_type(x.side.points, y.side.points))
        costs = self._mode.costs(self._points, True, False)
        self._terms.begin(begin, costs)
        clouds = LabelledClouds(x.side, y.side, costs.xy, costs.xx, costs.yy, unit)
        self._at_rest = solver.debias and clouds.matching is not None

    def _gradient(self, points: Tensor, found: Evaluation, renew: bool) -> Tensor:
        """Return the gradient of S over the weights, in units of the points."""
        v = self._mode.gradient(points, found, renew)
        # a dataset that is the target already: rounding must not move it
        return v.zero_() if self._at_rest else v

    def _extra(self, points: Tensor, v: Tensor | None) -> float:
        """Return potential and interaction at some points, and add their gradient to ``v``."""
        features = self._mode.features(points)
        into = None if v is None else self._mode.features(v)
        return extra_terms(self.settings, features, self._x.weights, self._factor, into)

    def _speed(self, v: Tensor) -> float:
        lengths = torch.linalg.vector_norm(v, dim=1).double() * self._factor
        return float((self._x.weights @ lengths.square()).sqrt())

    def _move(self, points: Tensor, v: Tensor) -> None:
        moved = self._mover.move(points, v, self.step)
        if self._box is not None:
            self._mode.features(moved).clamp_(*self._box)
        if not bool(torch.isfinite(moved).all()):
            raise DataError(
                f"the points ran away to infinity or NaN at step {self.step}: lower step_size "
                f"({self.settings.step_size})"
            )
        self._mode.walked(points, moved)
        self._at_rest = self._at_rest and torch.equal(moved, points)
        self._points = moved

    @property
    def _whole(self) -> bool:
        """Whether points are grey levels: both datasets hold 8-bit integers."""
        return self.source.points.dtype == self.target.points.dtype == torch.uint8

    @cached_property
    def _box(self) -> tuple[float, float] | None:
        box = self.settings.box
        if box != "auto":
            assert not isinstance(box, str)
            return box
        return (0.0, 255.0) if self._whole and self.settings.mode != "tied" else None

    def _state(
        self, points: Tensor, found: Evaluation, hidden: float, extra: float, speed: float
    ) -> FlowState:
        self._read_labels(points)
        notes = []
        if not found.converged:
            notes.append("a solve stopped before its tolerance")
        # the last step has no gradient, and laws of its own
        laws_every = self.settings.laws_every if self._mode.moves_laws else 1
        for every, what in (
            (self.settings.self_every, "the self term's part of the gradient"),
            (1 if self.step == self.settings.steps else laws_every, "class laws"),
        ):
            if self.step % every:
                notes.append(f"{what}: as at step {self.step - self.step % every}")
        return FlowState(
            step=self.step,
            points=self._in_order(self._mode.features(points)),
            labels=self._labels,
            class_names=self._names,
            value=found.value,
            objective=found.value + extra,
            marginal_error=found.error,
            converged=found.converged,
            passes=found.passes,
            epsilon=self._terms.eps,
            speed=speed,
            moved=found.moved,
            label_error=hidden,
            seconds={},
            backend=found.backend,
            notes=tuple(notes),
            class_mass=found.mass,
            whole=self._whole,
        )

    def _read_labels(self, points: Tensor) -> None:
        """Read the labels of augmented particles again where this step is one to do so."""
        if not isinstance(self._mode, Augmented):
            return
        every = self.settings.relabel_every
        due = every is not None and self.step > 0 and self.step % every == 0
        if due or self.step == self.settings.steps:
            labels = self._mode.read_labels(points)
            self._labels = torch.empty_like(labels)
            self._labels[self._x.order] = labels
            self._names = self.target.class_names

    def _in_order(self, points: Tensor) -> Tensor:
        """Return moving points in the order of the source's rows; those without weight stay."""
        n = len(self.source)
        if len(points) == n:
            out = points.new_empty((n, points.shape[1]))
        else:
            pair = (self.source, self.target)
            given = normalisation(pair, self.settings.divergence.normalize)[0][0]
            out = given.to(self.device, points.dtype, copy=True)
        out[self._rows.to(self.device)[self._x.order]] = points
        return out

    def checkpoint(self) -> Checkpoint:
        """Return all that the states to come depend on; it refers to memory that does not change.

        After the last state it is that of the last state itself: from there a flow of more steps
        goes on as if it had never stopped.

        Raises:
            SettingsError: before the first state, or after a step that was interrupted.
        """
        if not self._between:
            raise SettingsError(
                "a flow has a checkpoint between two states only: after the first, and not when "
                "a step was interrupted"
            )
        return self._before_last or self._snapshot()

    def _snapshot(self) -> Checkpoint:
        terms, grid = self._terms, self._terms.grid
        tensors = {"points": self._points, "grid_low": grid.low, "grid_high": grid.high}
        for name, trail in (("cross", terms.cross), ("inner", terms.inner)):
            for age, potential in (("last", trail.last), ("before", trail.before)):
                if potential is not None:
                    tensors[f"{name}_{age}"] = potential
        if terms.inner_gap is not None:
            tensors["inner_gap"] = terms.inner_gap
        for name, buffer in self._mover.buffers.items():
            tensors[f"optimizer_{name}"] = buffer.clone()
        if isinstance(self._mode, Augmented):
            tensors["labels"] = self._labels
        tensors.update(self._mode.tensors())
        numbers = {
            "epsilon": terms.eps,
            "target_value": terms.target_value,
            "target_error": terms.target_error,
            "grid": [grid.step, grid.slices, grid.precise],
            "at_rest": self._at_rest,
            "class_names": list(self._names),
            "settings": described(self.settings),
            "data": self._data,
            "device": str(self.device),
        }
        return Checkpoint(self.step, tensors, numbers)

    def _restore(self, start: Checkpoint) -> None:
        tensors = {name: tensor.to(self.device) for name, tensor in start.tensors.items()}
        numbers, terms = start.numbers, self._terms
        self._points = tensors["points"]
        step, slices, precise = numbers["grid"]
        cut = self.device.type != "cpu"
        grid = Grid(tensors["grid_low"], tensors["grid_high"], step, slices, precise, cut)
        if cut and not slices:
            # begun on a CPU, which rounds nothing
            grid = Grid.of(self._points, self._mode.target, self.settings.divergence.slices)
        terms.set_grid(grid)
        terms.eps, terms.target_value = numbers["epsilon"], numbers["target_value"]
        terms.target_error = numbers["target_error"]
        terms.cross = Trail(tensors.get("cross_last"), tensors.get("cross_before"))
        terms.inner = Trail(tensors.get("inner_last"), tensors.get("inner_before"))
        terms.inner_gap = tensors.get("inner_gap")
        prefix = "optimizer_"
        self._mover.buffers = {
            name.removeprefix(prefix): buffer.clone()
            for name, buffer in tensors.items()
            if name.startswith(prefix)
        }
        self._labels = tensors.get("labels", self._labels)
        self._names = tuple(numbers["class_names"])
        self._at_rest = numbers["at_rest"]
        self._mode.restore(tensors)
