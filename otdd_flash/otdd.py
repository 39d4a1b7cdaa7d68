r"""The optimal transport dataset distance between two labelled datasets.

.. math::
    C_{ij} = scale (\lambda_x \|x_i - y_j\|^2 + \lambda_y W_2^2[l^x_i, l^y_j])

with W2 the Wasserstein distances between the laws of the classes; the distance is the root of the
debiased Sinkhorn divergence under this cost.

Source: Alvarez-Melis and Fusi 2020, "Geometric dataset distances via optimal transport".
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Generator
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from otdd_flash.confidence import Confidence, bootstrap_steps
from otdd_flash.cost import check_dimensions
from otdd_flash.errors import SettingsError
from otdd_flash.inputs import given_or_default
from otdd_flash.losses.differentiable import attached_loss, check_differentiable
from otdd_flash.noise import check_halves, floor_steps
from otdd_flash.ops import resolve_device
from otdd_flash.prepared import Prepared, clouds_of, notes_of, prepare_pair_steps, units
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.certificate import quantization_bound
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.solver.divergence import Divergence, divergence_steps, warn_unconverged
from otdd_flash.solver.plan import Plan
from otdd_flash.timing import Laps, device_name, versions
from otdd_flash.types import LabelledDataset, NoiseFloor, OTDDResult, Progress, Transport, finish

Value = TypeVar("Value")


def distance(
    src: LabelledDataset,
    tgt: LabelledDataset,
    *,
    epsilon: float | str = "1%",
    tol: float = 1e-3,
    max_passes: int = 2000,
    lambda_x: float = 1.0,
    lambda_y: float = 1.0,
    label_distance: str = "gaussian",
    normalize: str = "none",
    convention: str = "otdd",
    debias: bool = True,
    slices: int | None = None,
    device: str = "auto",
    memory_budget: int | None = None,
    start: Tensor | None = None,
    differentiable: bool = False,
    confidence: Confidence | None = None,
    settings: OTDDSettings | None = None,
) -> OTDDResult:
    """Return the dataset distance with its bounds.

    Args:
        src: source samples with their classes.
        tgt: target samples with their classes, of the same number of features.
        epsilon: regularisation in units of the cost, or as ``"1%"`` of the mean cost.
        tol: L1 marginal error to stop at.
        max_passes: soft minima over all pairs, for each of the three solves (the last update of
            both potentials may make one or two more).
        lambda_x: weight of the squared distance between samples.
        lambda_y: weight of the squared distance between classes.
        label_distance: ``gaussian``, ``diagonal`` or ``means``.
        normalize: ``none``, ``unit`` (8-bit pixels divided by 255) or ``mnist``.
        convention: ``otdd``, or ``microsoft`` for half costs.
        debias: subtract half of what each dataset costs against itself.
        slices: int8 slices a coordinate on a GPU; None: one where that is exact, else two.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        memory_budget: bytes for a stored cost; None: half of what is free.
        start: (m,) dual potential g to begin with, from a problem nearby (``result.g``).
        differentiable: give the result a ``loss``, S as a function of the points and weights that
            ask for gradients, through the label cost too. eps counts as a constant.
        confidence: resamples for an interval of S, and the noise floor of both datasets.
        settings: ``epsilon`` to ``memory_budget`` as one object, instead of keywords.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError: input that cannot be used.

    Warns:
        ConvergenceWarning: a marginal error above ``tol`` after ``max_passes``.

    Memory: O(n + m) beside the points; on the CPU a stored cost where it fits the budget.
    """
    given = OTDDSettings(
        epsilon=epsilon,
        tol=tol,
        max_passes=max_passes,
        lambda_x=lambda_x,
        lambda_y=lambda_y,
        label_distance=label_distance,
        normalize=normalize,
        convention=convention,
        debias=debias,
        slices=slices,
        memory_budget=memory_budget,
        device=device,
    )
    if settings is not None and given != OTDDSettings():
        raise SettingsError("give settings as one object or as keywords, not both")
    return finish(
        steps(
            src,
            tgt,
            given if settings is None else given_or_default(settings, OTDDSettings),
            start=start,
            differentiable=differentiable,
            confidence=given_or_default(confidence, Confidence),
        )
    )


def steps(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings,
    *,
    start: Tensor | None = None,
    differentiable: bool = False,
    confidence: Confidence | None = None,
) -> Generator[Progress, None, OTDDResult]:
    """Compute as :func:`distance` does, yielding progress to whoever shows it."""
    clock = _Clock()
    check_dimensions(src, tgt)
    if confidence is not None and confidence.noise_floor:
        check_halves((src, tgt))
    if differentiable:
        check_differentiable(src, tgt)
    device = resolve_device(settings.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    x, y, costs = yield from clock.timed(prepare_pair_steps(src, tgt, settings, device))
    clouds = clouds_of(x, y, costs, settings)
    clock.lap("class laws")
    if start is not None:
        start = _checked_start(start, y, device)
    divergence = yield from clock.timed(
        divergence_steps(clouds, settings, start=start, keep=differentiable)
    )
    warn_unconverged(divergence, settings)
    loss = None
    if differentiable:
        loss = attached_loss(
            [x.used, y.used],
            (x.points, y.points),
            (x.laws, y.laws),
            costs,
            units(x, settings)[1],
            clouds,
            divergence,
            settings,
        )
        clock.lap("gradients")
    result = _result(x, y, clouds, divergence, settings, device, clock, loss)
    if confidence is None:
        return result
    return (yield from _confident(result, x, y, clouds, divergence, confidence, clock))


def _confident(
    result: OTDDResult,
    x: Prepared,
    y: Prepared,
    clouds: LabelledClouds,
    divergence: Divergence,
    confidence: Confidence,
    clock: _Clock,
) -> Generator[Progress, None, OTDDResult]:
    """Add the interval and the noise floors that were asked for."""
    settings = result.settings
    if confidence.bootstrap:
        found = yield from clock.timed(bootstrap_steps(clouds, divergence, settings, confidence))
        result = replace(result, interval=found)
    if confidence.noise_floor:
        floors: tuple[NoiseFloor, ...] = ()
        for side in (x, y):
            walk = floor_steps(side.dataset, divergence.epsilon, settings, confidence.seed)
            floors += ((yield from clock.timed(walk)),)
        result = replace(result, noise_floor=floors)
    return replace(result, seconds=clock.total())


class _Clock(Laps):
    """Seconds by stage, in the order in which the stages began."""

    def __init__(self) -> None:
        super().__init__()
        self._open: str | None = None

    def stage(self, stage: str) -> None:
        """Count the time since the last report to the stage that reports now, or just ended."""
        self.lap(stage if stage != "end" else self._open or "prepare")
        self._open = stage

    def timed(self, walk: Generator[Progress, None, Value]) -> Generator[Progress, None, Value]:
        """Pass on the progress of a walk, its time counted to the stages that report."""
        while True:
            try:
                state = next(walk)
            except StopIteration as done:
                self.stage("end")
                return done.value
            self.stage(state.stage)
            yield state


def _checked_start(
    start: Tensor,
    tgt: Prepared,
    device: torch.device,
) -> Tensor:  # (m',) for the rows that carry weight
    start, size = torch.as_tensor(start).detach().to("cpu", torch.float64), len(tgt.dataset)
    if start.shape != (size,) or not torch.isfinite(start[tgt.rows]).all():
        raise SettingsError(
            f"start has shape {tuple(start.shape)}, expected ({size},) finite numbers: the "
            "g of a result for the same target"
        )
    return start[tgt.rows].to(device)


def _result(
    src: Prepared,
    tgt: Prepared,
    clouds: LabelledClouds,
    divergence: Divergence,
    settings: OTDDSettings,
    device: torch.device,
    clock: _Clock,
    loss: Tensor | None,
) -> OTDDResult:
    assert divergence.transport is not None and divergence.mass is not None
    solution, transport = divergence.cross.solution, divergence.transport
    notes = list(notes_of([(src, tgt)]))
    if divergence.mean_cost <= 0:
        notes.append("all costs are zero: every sample of both datasets is the same point")
    return OTDDResult(
        source=src.summary,
        target=tgt.summary,
        distance=max(divergence.value, 0.0) ** 0.5,
        squared=divergence.value,
        squared_bounds=(divergence.bounds.lower, divergence.bounds.upper),
        transport=Transport(transport.lower, solution.value, transport.upper),
        epsilon=divergence.epsilon,
        mean_cost=divergence.mean_cost,
        marginal_error=divergence.error,
        converged=divergence.converged,
        passes=solution.passes,
        self_passes=tuple(t.solution.passes for t in divergence.selves) or (0, 0),  # type: ignore[arg-type]
        label_cost=clouds.label_cost.cpu(),
        class_mass=divergence.mass.cpu(),
        f=src.unsorted(solution.f, divergence.x),
        g=tgt.unsorted(solution.g, divergence.y),
        quantization_error=quantization_bound(transport.upper, divergence.moved),
        seconds=clock.total(),
        peak_memory_bytes=_peak_memory(device),
        # a CPU is named by both
        device=f"{device_name(device)} ({divergence.backend.removeprefix('cpu, ')})",
        settings=settings,
        versions=versions(),
        notes=tuple(notes),
        plan=Plan(
            divergence.pair,
            solution,
            divergence.epsilon,
            src.margin(divergence.x),
            tgt.margin(divergence.y),
            (len(src.dataset), len(tgt.dataset)),
            settings.memory_budget,
            divergence.classes,
        ),
        loss=loss,
    )


def _peak_memory(device: torch.device) -> int:
    """Peak of what torch allocated on a GPU in this run; of the whole process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
