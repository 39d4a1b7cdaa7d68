"""The sections of ``bench_gpu.py``: each yields titles and what to run for them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import peers
import torch
from bench_laws import many, real

from otdd_flash.bench import (
    cross_report,
    divergence_report,
    make_clouds,
    operator_errors,
    pass_report,
    resized,
    truth_of,
)
from otdd_flash.cost import Problem
from otdd_flash.datasets import load
from otdd_flash.ops import WORKSPACE_BYTES
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.timing import Clock, PeakMemory, seconds_of
from otdd_flash.types import finish

Row = tuple[str, Callable[[], dict[str, Any]]]
# the two regularisations: the default, and 0.1 with half costs, pixels in [0, 1]
CASES = (("eps 1%", 1.0, "1%"), ("eps 0.1, half costs", 0.5, 0.1))

# seconds after which a block of many laws stops, and without which it does not begin
LAW_SECONDS = 100.0


class Bench:
    """What the sections share: the device, the data, the sizes and the time left."""

    def __init__(self, device: str, data_root: str | None, tiny: bool, limit: float) -> None:
        self.device = torch.device(device)
        self.data_root = data_root
        self.tiny = tiny
        self.end = time.monotonic() + limit
        self.sizes = (100, 200) if tiny else (5_000, 20_000, 60_000)
        self.large = (300,) if tiny else (250_000, 1_000_000)
        self.n = self.sizes[-1]
        self.names = ("mnist-mini", "fashion-mnist-mini") if tiny else ("mnist", "fashion-mnist")

    @property
    def left(self) -> float:
        """Seconds until no further row is begun."""
        return self.end - time.monotonic()

    @cached_property
    def full(self) -> LabelledClouds:
        """Both datasets with costs of pixels in [0, 1]."""
        src, tgt = (load(name, data_root=self.data_root) for name in self.names)
        clouds = make_clouds(src, tgt, self.device, factor=1 / 255**2)
        return resized(clouds, self.n) if len(src) > self.n else clouds

    def clouds(self, samples: int, scale: float = 1.0) -> LabelledClouds:
        """Return the datasets at a size, the cost scaled."""
        clouds = self.full if samples == self.n else resized(self.full, samples)
        blocks = (clouds.label_cost, clouds.label_cost_x, clouds.label_cost_y)
        return LabelledClouds(
            clouds.x, clouds.y, *(b * scale for b in blocks), factor=clouds.factor * scale
        )


def cross(clouds: LabelledClouds, budget: int | None) -> Problem:
    """Return the problem between the two sides."""
    settings = OTDDSettings(memory_budget=budget)
    return clouds.problem(clouds.x, clouds.y, clouds.label_cost, settings)


def passes(bench: Bench) -> Iterator[Row]:
    """Time one streamed pass at the sizes that other packages can do."""

    def row(n: int) -> dict[str, Any]:
        clouds = bench.clouds(n)
        problem = cross(clouds, WORKSPACE_BYTES)
        return pass_report(
            problem, truth_of(clouds, problem.x, problem.y), 0.01 * problem.mean_cost
        )

    for n in bench.sizes[::-1]:
        yield f"n = m = {n:,}", lambda n=n: row(n)


def large(bench: Bench) -> Iterator[Row]:
    """Time three passes at sizes that only streaming can do, with the memory of all of it."""

    def row(n: int) -> dict[str, Any]:
        peak = PeakMemory(bench.device)
        clouds = bench.clouds(n)
        problem, seconds = seconds_of(lambda: cross(clouds, WORKSPACE_BYTES), bench.device)
        op, eps = problem.op, 0.01 * problem.mean_cost
        log_a, log_b = eps * problem.x.weights.log(), eps * problem.y.weights.log()
        f, first = seconds_of(lambda: op.softmin(log_b, eps), bench.device)
        g, second = seconds_of(lambda: op.softmin_transposed(f + log_a, eps), bench.device)
        _, third = seconds_of(lambda: op.softmin(g + log_b, eps), bench.device)
        total = peak.total()
        truth = truth_of(clouds, problem.x, problem.y)
        checks = operator_errors(
            op, truth, (f + log_a, g + log_b), eps, problem.mean_cost, rows=64, columns=1
        )
        return {
            "backend": op.backend,
            "prepare_seconds": seconds,
            "three_passes_seconds": first + second + third,
            "pass_seconds": [first, second, third],
            "peak_bytes": total,
            **checks,
        }

    for n in bench.large:
        yield f"n = m = {n:,}", lambda n=n: row(n)


def solver(bench: Bench) -> Iterator[Row]:
    """Solve the cross term to two errors, and the whole divergence twice at two budgets."""

    def term(scale: float, epsilon: float | str, tol: float) -> dict[str, Any]:
        clouds = bench.clouds(bench.n, scale)
        problem, seconds = seconds_of(lambda: cross(clouds, None), bench.device)
        eps = 0.01 * problem.mean_cost if epsilon == "1%" else float(epsilon)
        report = cross_report(problem, truth_of(clouds, problem.x, problem.y), eps, tol)
        return {"prepare_seconds": seconds, **report}

    def whole(scale: float, epsilon: float | str, budget: int | None) -> dict[str, Any]:
        clouds = bench.clouds(bench.n, scale)
        settings = OTDDSettings(epsilon=epsilon, max_passes=5000, memory_budget=budget)
        first = finish(divergence_report(clouds, settings))[0]["seconds"]
        return {"first_call_seconds": first} | finish(divergence_report(clouds, settings))[0]

    for name, scale, epsilon in CASES:
        case = (scale, epsilon)
        yield f"{name}: S, default budget", lambda case=case: whole(*case, None)
        yield f"{name}: S, 1 GB", lambda case=case: whole(*case, 10**9)
        for tol in peers.GOALS:
            yield f"{name}: cross to {tol:g}", lambda case=case, tol=tol: term(*case, tol)


def command(bench: Bench) -> Iterator[Row]:
    """Run the command from process start to printed JSON, kernel cache cold and warm."""
    cache = tempfile.TemporaryDirectory()
    parts = [sys.executable, "-m", "otdd_flash", "compute", *bench.names, "--normalize", "unit"]
    parts += ["--json", "--quiet", "--device", str(bench.device)]
    parts += ["--data-root", bench.data_root] if bench.data_root else []
    parts += ["--max-samples", str(bench.n)] if bench.tiny else []

    def row() -> dict[str, Any]:
        start = time.perf_counter()
        environment = os.environ | {"TRITON_CACHE_DIR": cache.name}
        done = subprocess.run(parts, env=environment, capture_output=True, text=True, timeout=150)
        wall = time.perf_counter() - start
        if done.returncode:
            raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}")
        result = json.loads(done.stdout)
        names = "squared squared_bounds converged marginal_error passes peak_memory_bytes device"
        kept = {name: result[name] for name in names.split()}
        outside = wall - result["seconds"]["total"]
        return {"seconds": wall, "outside_seconds": outside, "stages": result["seconds"], **kept}

    for name in ("cold kernel cache", "warm kernel cache", "warm kernel cache, again"):
        yield name, row
    cache.cleanup()


def laws(bench: Bench) -> Iterator[Row]:
    """Time class laws and label costs of real data."""

    def row() -> dict[str, Any]:
        clock = Clock(bench.device)
        report = real(clock, bench.data_root, bench.n, "auto", False, bench.names)
        seconds = clock.seconds["class laws"] + clock.seconds["label cost"]
        return {"seconds": seconds, "stages": clock.seconds, **report}

    yield f"2 x {bench.n:,} x 784", row


def law_matrix(bench: Bench) -> Iterator[Row]:
    """Time label costs of many random laws."""
    classes, d = (6, 8) if bench.tiny else (1_000, 512)

    def row(samples: int) -> dict[str, Any]:
        if not bench.tiny and bench.left < LAW_SECONDS:
            return {"error": f"skipped: needs {LAW_SECONDS:.0f} s"}
        clock, peak = Clock(bench.device), PeakMemory(bench.device)
        report = many(clock, classes, d, 0.0, "auto", 3, samples, time_limit=LAW_SECONDS)
        seconds = report["seconds_extrapolated"]
        return {"seconds": seconds, "stages": clock.seconds, "peak_bytes": peak.total(), **report}

    for samples in (100 * d // 512, 2 * d):
        title = f"{classes:,} x {classes:,} classes of {samples:,} samples, d = {d}"
        yield title, lambda samples=samples: row(samples)


def other_packages(bench: Bench) -> Iterator[Row]:
    """Time other packages on the same problem at the default eps, the quick ones first."""

    def task(n: int) -> peers.Task:
        clouds = bench.clouds(n)
        mean = cross(clouds, WORKSPACE_BYTES).mean_cost
        return peers.make_task(clouds, 0.01 * mean, mean)

    low, mid, top = bench.sizes[0], bench.sizes[-2], bench.sizes[-1]
    flash = peers.flash_symmetric
    yield (
        f"flash-sinkhorn symmetric, labels, TF32, {top:,}",
        lambda: flash(task(top), labelled=True, tf32=True),
    )
    yield f"GeomLoss scaling 0.5, {mid:,}", lambda: peers.geomloss(task(mid), 0.5)
    yield f"GeomLoss scaling 0.9, {mid:,}", lambda: peers.geomloss(task(mid), 0.9)
    yield f"GeomLoss scaling 0.5, {top:,}", lambda: peers.geomloss(task(top), 0.5, errors=False)
    yield (
        f"flash-sinkhorn symmetric, labels, fp32, {mid:,}",
        lambda: flash(task(mid), labelled=True, tf32=False, limit=8.0),
    )
    for n in bench.sizes:
        yield f"OTT-JAX stored, labels, {n:,}", lambda n=n: peers.ott_stored(task(n))
    yield f"OTT-JAX online, no labels, {low:,}", lambda: peers.ott_online(task(low))
    yield (
        f"flash-sinkhorn symmetric, labels, fp32, {top:,}",
        lambda: flash(task(top), labelled=True, tf32=False, calls=1, limit=0.0),
    )
    yield (
        f"flash-sinkhorn symmetric, no labels, TF32, {top:,}",
        lambda: flash(task(top), labelled=False, tf32=True, limit=8.0),
    )
    yield (
        f"flash-sinkhorn alternating, no labels, TF32, {top:,}",
        lambda: peers.flash_alternating(task(top), tf32=True),
    )
    yield (
        f"flash-sinkhorn alternating, no labels, fp32, {mid:,}",
        lambda: peers.flash_alternating(task(mid), tf32=False, limit=8.0),
    )
