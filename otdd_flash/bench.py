"""Timings and checks of the operators and of the solver, on any device, without peers."""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.cost import Margin, Problem, Side, make_side
from otdd_flash.datasets import load
from otdd_flash.errors import SettingsError
from otdd_flash.float64 import Float64Cost
from otdd_flash.laws.bures import label_cost
from otdd_flash.laws.gaussians import class_laws
from otdd_flash.operators import CostOperator
from otdd_flash.ops import resolve_device
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.annealing import solve_annealed
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.solver.divergence import Divergence, divergence_steps
from otdd_flash.timing import PeakMemory, machine, median_ms, seconds_of, synchronize
from otdd_flash.types import LabelledDataset, Progress, finish

NOISE = 2  # grey levels added to repeated samples, either way
NOISY_ROWS = 1 << 16  # rows that get their noise at a time
CHECKED_ROWS, CHECKED_COLUMNS = 256, 4
# samples a side unless asked, by device and whether it is to be quick
SAMPLES = {
    ("cpu", False): 2_000,
    ("cpu", True): 400,
    ("cuda", False): 60_000,
    ("cuda", True): 8_000,
}
# worst error of a cost of 8-bit images over the mean cost
COST_TOLERANCE = 1e-6
LEAST_SAMPLES = 20


def make_clouds(
    src: LabelledDataset,
    tgt: LabelledDataset,
    device: torch.device,
    *,
    factor: float = 1.0,  # cost of one squared unit of the points
) -> LabelledClouds:
    """Return both datasets on the device with the costs of their Gaussian class laws."""
    laws = [class_laws(d.points, d.labels, d.weights, device=device) for d in (src, tgt)]
    xy, xx, yy = (block * factor for block in label_cost(laws[0], laws[1]))
    x, y = (_numbered(make_side(d.points, d.labels, d.weights, device)) for d in (src, tgt))
    return LabelledClouds(x, y, xy, xx, yy, factor)


def _numbered(side: Side) -> Side:
    """Let the order of a side refer to its own rows, so that problems can be traced to them."""
    return replace(side, order=torch.arange(len(side.points), device=side.points.device))


def resized(
    clouds: LabelledClouds,
    samples: int,  # a side
    seed: int = 0,
) -> LabelledClouds:
    """Return every k-th sample of each class, or all repeated with noise of +-2 grey levels."""
    return replace(
        clouds,
        x=_resized_side(clouds.x, samples, seed),
        y=_resized_side(clouds.y, samples, seed + 1),
    )


def _resized_side(side: Side, samples: int, seed: int) -> Side:
    device, n = side.points.device, len(side.points)
    # ascending, so that the classes stay sorted
    rows = torch.arange(samples, device=device) * n // samples
    if samples <= n:
        points = side.points[rows]
    else:
        generator = torch.Generator(device).manual_seed(seed)
        points = side.points.new_empty((samples, side.points.shape[1]))
        for start in range(0, samples, NOISY_ROWS):
            part = side.points[rows[start : start + NOISY_ROWS]].to(torch.int16)
            part += torch.randint(
                -NOISE, NOISE + 1, part.shape, generator=generator, device=device, dtype=part.dtype
            )
            points[start : start + len(part)] = part.clamp_(0, 255).to(torch.uint8)
    weights = torch.full((samples,), 1.0 / samples, dtype=torch.float64, device=device)
    return Side(side.labels[rows], weights, torch.arange(samples, device=device), points)


def truth_of(clouds: LabelledClouds, x: Margin, y: Margin) -> Float64Cost:
    """Return the float64 cost between the sides of some clouds, in the order of the margins."""
    return Float64Cost(
        clouds.x.points[x.order],
        clouds.y.points[y.order],
        x.labels,
        y.labels,
        clouds.label_cost,
        clouds.factor,
    )


def potentials_after_two_passes(
    op: CostOperator,
    a: Tensor,  # (n,) weights
    b: Tensor,  # (m,)
    eps: float,
) -> tuple[Tensor, Tensor]:  # f plus eps log a, g plus eps log b: what the next passes read
    """Return arguments of softmins as a solver has them."""
    h = op.softmin(eps * b.log(), eps) + eps * a.log()
    return h, op.softmin_transposed(h, eps) + eps * b.log()


def operator_errors(
    op: CostOperator,
    truth: Float64Cost,
    h: tuple[Tensor, Tensor],  # (n,) and (m,) arguments of the softmins
    eps: float,
    mean_cost: float,
    *,
    rows: int = CHECKED_ROWS,
    columns: int = CHECKED_COLUMNS,
) -> dict[str, float]:
    """Return the worst errors of costs and of softmins, both directions, over the mean cost.

    A softmin over one column of finite weight is that column's cost as the kernel sees it.
    """
    cost = softmin = 0.0
    sides = ((op.softmin, truth, h[1]), (op.softmin_transposed, truth.transposed, h[0]))
    for apply, exact, argument in sides:
        n, m = len(exact.x), len(exact.y)
        i = torch.linspace(0, n - 1, min(rows, n), device=op.device).long()
        found = apply(argument, eps)[i]
        gap = (found - exact.softmin(argument, eps, i)).abs()
        softmin = max(softmin, float(gap.max()))
        for j in torch.linspace(0, m - 1, min(columns, m)).long().tolist():
            single = torch.full_like(argument, -torch.inf)
            single[j] = 0.0
            column = exact.block(slice(0, n), slice(j, j + 1))[:, 0]
            cost = max(cost, float((apply(single, eps) - column).abs().max()))
    return {"cost_error": cost / mean_cost, "softmin_error": softmin / mean_cost}


def pass_report(problem: Problem, truth: Float64Cost, eps: float) -> dict[str, Any]:
    """Time one softmin in each direction and check it."""
    op, device = problem.op, problem.op.device
    h = potentials_after_two_passes(op, problem.x.weights, problem.y.weights, eps)
    forward = median_ms(lambda: op.softmin(h[1], eps), device)
    backward = median_ms(lambda: op.softmin_transposed(h[0], eps), device)
    return {
        "backend": op.backend,
        "ms": forward,
        "ms_transposed": backward,
        "pairs_per_second": len(h[0]) * len(h[1]) / (1e-3 * (forward + backward) / 2),
        **operator_errors(op, truth, h, eps, problem.mean_cost),
    }


def cross_report(
    problem: Problem,
    truth: Float64Cost | None,  # to recheck the marginal error with
    eps: float,
    tol: float,
    max_passes: int = 5000,
) -> dict[str, Any]:
    """Time the solve of the cross term from nothing and recheck its marginal error."""
    op, a, b = problem.op, problem.x.weights, problem.y.weights
    # kernels are compiled before
    potentials_after_two_passes(op, a, b, eps)
    solving = solve_annealed(op, a, b, eps, tol=tol, max_passes=max_passes)
    solution, seconds = seconds_of(lambda: finish(solving), op.device)
    report: dict[str, Any] = {
        "backend": op.backend,
        "epsilon": eps,
        "tol": tol,
        "passes": solution.passes,
        "seconds": seconds,
        "ms_per_pass": 1e3 * seconds / solution.passes,
        "value": solution.value,
        "marginal_error": solution.error,
    }
    if truth is not None:
        errors = truth.marginal_errors(solution.f, solution.g, a, b, eps)
        report["marginal_error_float64"] = max(errors)
    return report


def divergence_report(
    clouds: LabelledClouds,
    settings: OTDDSettings,
) -> Generator[Progress, None, tuple[dict[str, Any], Divergence]]:
    """Time the whole debiased divergence with its certificate, and measure its memory."""
    device = clouds.x.points.device
    peak = PeakMemory(device)
    synchronize(device)
    start = time.perf_counter()
    result: Divergence = yield from divergence_steps(clouds, settings)
    synchronize(device)
    seconds = time.perf_counter() - start
    report = {
        "backend": result.backend,
        "seconds": seconds,
        "extra_bytes": peak.extra(),
        "epsilon": result.epsilon,
        "mean_cost": result.mean_cost,
        "squared": result.value,
        "squared_bounds": [result.bounds.lower, result.bounds.upper],
        "bounds_hold": result.bounds.lower <= result.value <= result.bounds.upper,
        "marginal_error": result.error,
        "converged": result.converged,
        "passes": result.cross.solution.passes,
        "self_passes": [term.solution.passes for term in result.selves],
    }
    return report, result


def bench_steps(
    *,
    device: str = "auto",
    samples: int | None = None,  # a side; None: as many as suit the device
    quick: bool = False,
) -> Generator[Progress, None, dict[str, Any]]:
    """Time and check this machine on the embedded samples, repeated with noise where needed.

    Raises:
        DeviceError, SettingsError: a device that is not there; fewer samples than classes.
    """
    where = resolve_device(device)
    samples = SAMPLES[where.type, quick] if samples is None else samples
    if samples < LEAST_SAMPLES:
        raise SettingsError(f"samples is {samples}, expected {LEAST_SAMPLES} or more")
    settings = OTDDSettings(device=device)
    yield Progress("class laws", 0, 1)
    src, tgt = load("mnist-mini"), load("fashion-mnist-mini")
    made, law_seconds = seconds_of(lambda: make_clouds(src, tgt, where, factor=1 / 255**2), where)
    clouds = resized(made, samples)
    del made
    yield Progress("class laws", 1, 1)
    yield Progress("pass", 0, 1)
    problem = clouds.problem(clouds.x, clouds.y, clouds.label_cost, settings)
    truth = truth_of(clouds, problem.x, problem.y)
    passes = pass_report(problem, truth, 0.01 * problem.mean_cost)
    yield Progress("pass", 1, 1)
    # a stored cost is freed before the divergence makes its own
    del problem, truth
    solve, result = yield from divergence_report(clouds, settings)
    yield Progress("check", 0, 1)
    solution, bounds = result.cross.solution, result.cross.bounds
    weights = result.x.weights, result.y.weights
    truth = truth_of(clouds, result.x, result.y)
    left = max(truth.marginal_errors(solution.f, solution.g, *weights, result.epsilon))
    value = truth.semidual(solution.g, *weights, result.epsilon)
    yield Progress("check", 1, 1)
    checks = {
        "cost_error": passes["cost_error"] <= COST_TOLERANCE,
        "marginal_error": left <= 1.05 * settings.tol,
        "bounds": solve["bounds_hold"] and bounds.lower <= value <= bounds.upper,
    }
    return {
        **machine(where),
        "data": f"{src.name}, {tgt.name}",
        "samples": samples,
        "dimension": src.dimension,
        "classes": [src.classes, tgt.classes],
        "class_laws_seconds": law_seconds,
        "pass": passes,
        "solve": solve | {"marginal_error_float64": left, "value_float64": value},
        "checks": checks,
    }
