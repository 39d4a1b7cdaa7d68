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
import time
from collections.abc import Generator

import torch
from torch import Tensor

from otdd_flash.bures import LabelCost, label_cost
from otdd_flash.certificate import quantization_bound
from otdd_flash.cost import Margin, Side, check_dimensions, make_side, normalisation
from otdd_flash.divergence import (
    Divergence,
    LabelledClouds,
    divergence_steps,
    warn_unconverged,
)
from otdd_flash.errors import SettingsError
from otdd_flash.gaussians import class_laws
from otdd_flash.ops import free_memory, resolve_device
from otdd_flash.plan import Plan
from otdd_flash.sinkhorn import finish
from otdd_flash.timing import versions
from otdd_flash.types import (
    DatasetSummary,
    LabelledDataset,
    OTDDResult,
    OTDDSettings,
    Progress,
    Transport,
)

# seconds for one entry of the cost, as `scripts/bench_cpu.py` and `scripts/bench_gpu.py` measure
CPU_ENTRY, CPU_PRODUCT, GPU_PRODUCT = 0.7e-9, 2e-11, 2.5e-15
USUAL_PASSES = 40


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
        settings: all of the above but ``start`` as one object, instead of keywords.

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
    return finish(steps(src, tgt, settings or given, start=start))


def steps(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings,
    *,
    start: Tensor | None = None,
) -> Generator[Progress, None, OTDDResult]:
    """Compute as :func:`distance` does, yielding progress to whoever shows it."""
    clock = _Clock()
    check_dimensions(src, tgt)
    device = resolve_device(settings.device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    used = [_weighted(dataset) for dataset in (src, tgt)]
    yield Progress("prepare", 0, 1)
    x_points, y_points, factor = normalisation(used[0], used[1], settings.normalize)
    x = make_side(x_points, used[0].labels, used[0].weights, device)
    y = make_side(y_points, used[1].labels, used[1].weights, device)
    yield Progress("prepare", 1, 1)
    clock.lap("prepare")
    costs = yield from _label_costs((x, y), factor, settings)
    unit = settings.cost_scale * settings.lambda_x * factor**2
    clouds = LabelledClouds(x, y, costs.xy, costs.xx, costs.yy, unit)
    clock.lap("class laws")
    if start is not None:
        start = _checked_start(start, tgt, used[1], device)
    walk = divergence_steps(clouds, settings, start=start)
    while True:
        try:
            state = next(walk)
        except StopIteration as done:
            divergence: Divergence = done.value
            break
        clock.stage(state.stage)
        yield state
    clock.stage("end")
    warn_unconverged(divergence, settings)
    return _result(src, tgt, used, clouds, divergence, settings, device, clock)


class _Clock:
    """Seconds by stage, in the order in which the stages began."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._begin = self._last = time.perf_counter()
        self._open: str | None = None

    def lap(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def stage(self, stage: str) -> None:
        """Count the time since the last report to the stage that reports now, or just ended."""
        self.lap(stage if stage != "end" else self._open or "prepare")
        self._open = stage

    def total(self) -> float:
        return time.perf_counter() - self._begin


def _weighted(dataset: LabelledDataset) -> LabelledDataset:
    """Drop samples of weight zero, and the classes that only they have."""
    positive = dataset.weights > 0
    return dataset if bool(positive.all()) else dataset.subset(positive.nonzero()[:, 0])


def _label_costs(
    sides: tuple[Side, Side],
    factor: float,
    settings: OTDDSettings,
) -> Generator[Progress, None, LabelCost]:
    """Return the label costs in units of the cost."""
    yield Progress("class laws", 0, 3)
    laws = []
    for k, side in enumerate(sides):
        laws.append(
            class_laws(side.points, side.labels, side.weights, kind=settings.label_distance)
        )
        yield Progress("class laws", k + 1, 3)
    costs = label_cost(laws[0], laws[1])
    yield Progress("class laws", 3, 3)
    unit = settings.cost_scale * settings.lambda_y * factor**2
    return LabelCost(*(block * unit for block in costs))


def _checked_start(
    start: Tensor,
    tgt: LabelledDataset,
    used: LabelledDataset,
    device: torch.device,
) -> Tensor:  # (m',) for the rows that carry weight
    start = torch.as_tensor(start).detach().to("cpu", torch.float64)
    if start.shape != (len(tgt),) or not torch.isfinite(start[_rows_of(tgt, used)]).all():
        raise SettingsError(
            f"start has shape {tuple(start.shape)}, expected ({len(tgt)},) finite numbers: the "
            "g of a result for the same target"
        )
    return start[_rows_of(tgt, used)].to(device)


def _rows_of(dataset: LabelledDataset, used: LabelledDataset) -> Tensor:
    """Return the rows of the dataset that carry weight."""
    if used is dataset:
        return torch.arange(len(dataset))
    return (dataset.weights > 0).nonzero()[:, 0].cpu()


def _in_dataset(margin: Margin, dataset: LabelledDataset, used: LabelledDataset) -> Margin:
    """Return a margin whose order counts all rows of the dataset, those without weight too."""
    rows = _rows_of(dataset, used).to(margin.order.device)
    return Margin(margin.labels, margin.weights, rows[margin.order])


def _unsorted(
    potential: Tensor,  # (n',) in the order of the margin
    margin: Margin,  # in the dataset
    size: int,
) -> Tensor:  # (n,) in the caller's order, NaN where a sample has weight zero
    out = torch.full((size,), torch.nan, dtype=torch.float64)
    out[margin.order.cpu()] = potential.cpu()
    return out


def _result(
    src: LabelledDataset,
    tgt: LabelledDataset,
    used: list[LabelledDataset],
    clouds: LabelledClouds,
    divergence: Divergence,
    settings: OTDDSettings,
    device: torch.device,
    clock: _Clock,
) -> OTDDResult:
    assert divergence.transport is not None and divergence.mass is not None
    solution, transport = divergence.cross.solution, divergence.transport
    x, y = (
        _in_dataset(margin, dataset, kept)
        for margin, dataset, kept in zip(
            (divergence.x, divergence.y), (src, tgt), used, strict=True
        )
    )
    notes = [
        f"{dataset.name}: {len(dataset) - len(kept):,} samples of weight zero carry no mass; "
        "their potentials are NaN"
        for dataset, kept in zip((src, tgt), used, strict=True)
        if kept is not dataset
    ]
    if divergence.mean_cost <= 0:
        notes.append("all costs are zero: every sample of both datasets is the same point")
    return OTDDResult(
        source=_summary(src, used[0]),
        target=_summary(tgt, used[1]),
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
        f=_unsorted(solution.f, x, len(src)),
        g=_unsorted(solution.g, y, len(tgt)),
        quantization_error=quantization_bound(transport.upper, divergence.moved),
        seconds={**clock.seconds, "total": clock.total()},
        peak_memory_bytes=_peak_memory(device),
        device=f"{_device_name(device)} ({divergence.backend})",
        settings=settings,
        versions=versions(),
        notes=tuple(notes),
        plan=Plan(
            divergence.pair,
            solution,
            divergence.epsilon,
            x,
            y,
            (len(src), len(tgt)),
            settings.memory_budget,
            divergence.classes,
        ),
    )


def _summary(dataset: LabelledDataset, used: LabelledDataset) -> DatasetSummary:
    return DatasetSummary(
        dataset.name,
        len(dataset),
        dataset.dimension,
        used.classes,
        used.class_names,
        dataset.provenance,
    )


def _device_name(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else f"{device} {torch.cuda.get_device_name(device)}"


def _peak_memory(device: torch.device) -> int:
    """Peak of what torch allocated on a GPU in this run; of the whole process on the CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def estimate_seconds(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings,
) -> float:
    """Estimate the seconds that a run takes, from its sizes and the usual number of passes.

    Rough by a factor of two either way; a small eps can take several times the passes.
    """
    device = resolve_device(settings.device)
    n, m, d = len(src), len(tgt), src.dimension
    pairs = float(n * m) * USUAL_PASSES
    pairs += (n * n + m * m) * 5.0 * settings.debias
    if device.type == "cuda":
        return 5.0 + pairs * (d + 300) * GPU_PRODUCT
    budget = settings.memory_budget or free_memory(device) // 2
    small = src.points.dtype == tgt.points.dtype == torch.uint8
    stored = n * m * (4 if small else 8) <= budget
    products = (n * m + (n * n + m * m) * settings.debias) if stored else pairs
    return 2.0 + (pairs * CPU_ENTRY + products * d * CPU_PRODUCT) * (1.0 if small else 2.0)
