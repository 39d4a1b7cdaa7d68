"""The sections of ``bench_gpu.py`` on normal points: streamed in slices, stored, few dimensions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from bench_sections import Bench, Row

from otdd_flash.bench import pass_report, potentials_after_two_passes
from otdd_flash.cost import Margin, Problem
from otdd_flash.float64 import Float64Cost
from otdd_flash.operators import CostOperator, StoredOperator, TritonOperator
from otdd_flash.timing import PeakMemory, median_ms, seconds_of
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.quantize import quantize


def float_problem(
    n: int,
    d: int,
    device: torch.device,
    *,
    slices: int | None = None,
    stored: bool = False,
    classes: int = 10,
) -> tuple[Problem, Float64Cost]:
    """Return a problem of normal points, by the kernels of a GPU, and its float64 cost."""
    generator = torch.Generator(device).manual_seed(0)
    x, y = (torch.randn((n, d), generator=generator, device=device) for _ in range(2))
    y += 0.1
    labels = torch.arange(n, device=device) * classes // n
    costs = torch.rand((classes, classes), generator=generator, device=device).double() * (d / 5)
    rows, columns = quantize(x, y, slices=slices)
    pair = CostPair(rows, columns, rows.step**2, costs, labels, labels)
    op: CostOperator = StoredOperator(pair) if stored else TritonOperator(pair)
    weights = torch.full((n,), 1.0 / n, dtype=torch.float64, device=device)
    margin = Margin(labels, weights, torch.arange(n, device=device))
    moved = sum(float(cloud.residual.mean()) ** 0.5 for cloud in (rows, columns))
    truth = Float64Cost(x, y, labels, labels, costs, 1.0)
    return Problem(op, margin, margin, moved), truth


def floats(bench: Bench) -> Iterator[Row]:
    """Time normal points in 512 dimensions: streamed in two and three slices, and stored."""
    n, d = (120, 32) if bench.tiny else (60_000, 512)
    g: list[torch.Tensor] = []  # an optimal potential, from the first row

    def row(slices: int, stored: bool) -> dict[str, Any]:
        peak = PeakMemory(bench.device)
        (problem, truth), seconds = seconds_of(
            lambda: float_problem(n, d, bench.device, slices=slices, stored=stored), bench.device
        )
        eps, a, b = 0.01 * problem.mean_cost, problem.x.weights, problem.y.weights
        report = {"prepare_seconds": seconds} | pass_report(problem, truth, eps)
        report |= {"peak_bytes": peak.total(), "moved": problem.moved}
        if not g:
            h = potentials_after_two_passes(problem.op, a, b, eps)[1]
            for _ in range(20):
                f = problem.op.softmin(h, eps)
                h = problem.op.softmin_transposed(f + eps * a.log(), eps) + eps * b.log()
            g.append(h - eps * b.log())
        value = float(a @ problem.op.softmin(g[0] + eps * b.log(), eps) + b @ g[0])
        exact = truth.semidual(g[0], a, b, eps)
        report["value_error"] = abs(value - exact) / abs(exact)
        if stored:
            report["bytes_per_second"] = 4 * n * n / (1e-3 * report["ms"])
            report["bytes_per_second_transposed"] = 4 * n * n / (1e-3 * report["ms_transposed"])
            report |= copy_bandwidth()
        return report

    def copy_bandwidth() -> dict[str, Any]:
        size = (1 << 20) if bench.tiny else (4 << 30)
        source = torch.ones(size, dtype=torch.uint8, device=bench.device)
        target = torch.empty_like(source)
        ms = median_ms(lambda: target.copy_(source), bench.device)
        return {"copy_bytes_per_second": 2 * size / (1e-3 * ms)}

    yield f"d = {d}, 2 slices", lambda: row(2, False)
    yield f"d = {d}, 3 slices", lambda: row(3, False)
    yield f"d = {d}, stored, 2 slices", lambda: row(2, True)
    yield f"d = {d}, stored, 3 slices", lambda: row(3, True)


def small(bench: Bench) -> Iterator[Row]:
    """Time normal points in few dimensions."""

    def row(d: int) -> dict[str, Any]:
        n = 150 if bench.tiny else 60_000
        problem, truth = float_problem(n, d, bench.device)
        return pass_report(problem, truth, 0.01 * problem.mean_cost) | {"moved": problem.moved}

    for d in (3, 16, 64):
        yield f"d = {d}", lambda d=d: row(d)
