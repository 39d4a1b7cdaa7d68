"""Time Hessian-vector products beside flash-sinkhorn's, and check both by float64 differences.

    python scripts/bench_hvp.py --output scripts/results/bench_hvp_h200_peers.json

The check shares nothing with either package: potentials solved in float64 at points moved both ways
along the direction, the gradients there, and their central difference. Every row is measured from
solved potentials on; flash-sinkhorn, an optional import, gets those of the float64 solve.
With ``--device cpu --n 300 --large 0`` it runs in small without a GPU.
"""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor

from otdd_flash.curvature.cg import CGSettings
from otdd_flash.float64 import BLOCK_ROWS, Float64Cost
from otdd_flash.losses.solved import SolvedDivergence, divergence_inputs
from otdd_flash.settings import OTDDSettings
from otdd_flash.timing import PeakMemory, command_line, machine, median_ms, seconds_of

# of the points' spread: the central difference is good to 1e-6, gradients solved to 1e-11 allow it
STEP = 1e-4
COLUMNS = (
    ("ms", "{:.2f}", "ms"),
    ("ms_next", "{:.2f}", "ms, next"),
    ("iterations", "{}", "CG"),
    ("residual", "{:.1e}", "residual"),
    ("error", "{:.1e}", "error"),
    ("extra_bytes", "{:.3g}", "extra bytes"),
    ("first_seconds", "{:.1f}", "first call s"),
)


@dataclass(frozen=True, eq=False)
class Task:
    """Two clouds, a direction of the first and what is known of them in float64."""

    x: Tensor  # (n, d) float32
    y: Tensor  # (m, d)
    v: Tensor  # (n, d)
    eps: float
    f: Tensor  # (n,) float64 potentials
    g: Tensor  # (m,)
    truth: Tensor  # (n, d) float64 product


def clouds(n: int, d: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Return two normal clouds and a direction."""
    draw = torch.Generator(device).manual_seed(0)
    x, y, v = (torch.randn((n, d), generator=draw, device=device) for _ in range(3))
    return x, y + 0.1, v


def solved(x: Tensor, y: Tensor, share: float, budget: int | None) -> SolvedDivergence:
    """Solve the cross term on the device of the points, eps a share of the mean cost."""
    device = f"cuda:{x.device.index or 0}" if x.is_cuda else "cpu"
    settings = OTDDSettings(
        epsilon=f"{100 * share}%", tol=2e-6, debias=False, device=device, memory_budget=budget
    )
    tensors, constants = divergence_inputs(
        x, y, None, None, labels=None, label_cost=None, factor=1.0, settings=settings
    )
    return SolvedDivergence(tensors, constants)


def float64_gradient(
    x: Tensor,  # (n, d) float64
    y: Tensor,  # (m, d)
    g: Tensor,  # (m,) potential to begin with
    eps: float,
    tol: float = 1e-11,
) -> tuple[Tensor, Tensor, Tensor]:  # (n, d) dOT/dx, potentials (n,) and (m,)
    """Solve in float64 by plain alternation and return the gradient of the value."""
    n, m = len(x), len(y)
    none = torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, dtype=torch.int64)
    cost = Float64Cost(x, y, none[1], none[1], none[0], 1.0)
    log_a, log_b = (-torch.tensor(float(k)).double().log() for k in (n, m))
    while True:
        f = _softmin(cost, g + eps * log_b, eps)
        image = _softmin(cost.transposed, f + eps * log_a, eps)
        error = float(((g - image) / eps).expm1().abs().mean())
        if error < tol:
            break
        g = image
    means = torch.empty_like(x)
    for rows in torch.arange(n, device=x.device).split(BLOCK_ROWS):
        plan = (f[rows, None] + g[None] - cost.block(rows, slice(0, m))).div_(eps).exp_()
        means[rows] = plan @ y / m
    return 2 * (x - means) / n, f, g


def _softmin(cost: Float64Cost, h: Tensor, eps: float) -> Tensor:
    rows = torch.arange(len(cost.x), device=h.device).split(BLOCK_ROWS)
    return torch.cat([cost.softmin(h, eps, part) for part in rows])


def make_task(n: int, d: int, share: float, device: torch.device) -> tuple[Task, SolvedDivergence]:
    """Return the problem with its float64 product."""
    x, y, v = clouds(n, d, device)
    work = solved(x, y, share, None)
    eps, order = work.result.epsilon, work.cross.y.order
    start = torch.empty(n, dtype=torch.float64, device=device)
    start[order] = work.cross.solution.g
    p, q = x.double(), y.double()
    _, f, g = float64_gradient(p, q, start, eps)
    ahead, behind = (float64_gradient(p + s * STEP * v, q, g, eps)[0] for s in (1, -1))
    return Task(x, y, v, eps, f, g, (ahead - behind) / (2 * STEP)), work


def relative(product: Tensor, truth: Tensor) -> float:
    """Return the relative error of a product."""
    return float((product.double() - truth).norm() / truth.norm())


def ours(
    work: SolvedDivergence,
    v: Tensor,
    tol: float,
    truth: Tensor | None,
) -> dict[str, Any]:
    """Measure the product from the potentials on, and one more at the same points."""
    settings, device = CGSettings(tol), v.device

    def product(hessian: Any) -> tuple[Tensor, Any]:
        out, _, solve = hessian.product(v, None, settings=settings)
        return out, solve

    peak = PeakMemory(device)
    hessian = work.hessian()
    (out, solve), first = seconds_of(lambda: product(hessian), device)
    extra = peak.extra()
    del hessian
    report = {
        "first_seconds": first,
        "extra_bytes": extra,
        "iterations": solve.iterations,
        "residual": solve.residual,
        "ms": median_ms(lambda: product(work.hessian()), device, seconds=1.0),
    }
    hessian = work.hessian()
    report["ms_next"] = median_ms(lambda: product(hessian), device, seconds=1.0)
    return report if truth is None else report | {"error": relative(out, truth)}


def flash_sinkhorn(task: Task, **options: Any) -> dict[str, Any]:
    """Measure flash-sinkhorn's product from converged potentials on."""
    from flash_sinkhorn.hvp import geomloss_to_ott_potentials, hvp_x_sqeuclid_from_potentials

    device = task.x.device
    weights = torch.full((len(task.x),), 1 / len(task.x), device=device)
    f, g = geomloss_to_ott_potentials(
        task.f.float(), task.g.float(), weights, weights, eps=task.eps
    )

    def product() -> tuple[Tensor, Any]:
        return hvp_x_sqeuclid_from_potentials(task.x, task.y, f, g, task.v, eps=task.eps, **options)

    peak = PeakMemory(device)
    (out, info), first = seconds_of(product, device)
    extra = peak.extra()
    return {
        "first_seconds": first,
        "extra_bytes": extra,
        "iterations": info.cg_iters,
        "residual": info.cg_residual / max(info.cg_initial_residual, 1e-300),
        "ms": median_ms(product, device, seconds=2.0),
        "error": relative(out, task.truth),
        "options": options,
    }


def line(title: str, row: dict[str, Any]) -> str:
    """Return one row of the table."""
    if "error_message" in row:
        return f"{title}: {row['error_message']}"
    shown = (f"{label} {text.format(row[key])}" for key, text, label in COLUMNS if key in row)
    return f"{title}: {', '.join(shown)}"


@click.command(help=__doc__)
@click.option("--output", type=click.Path(path_type=Path), help="JSON file to write.")
@click.option("--device", default="cuda", show_default=True, help="cuda, cuda:1 or cpu.")
@click.option("--n", default=20_000, show_default=True, help="Points a side of the first problem.")
@click.option("--d", default=64, show_default=True, help="Its dimension.")
@click.option("--share", default=0.05, show_default=True, help="eps, in units of the mean cost.")
@click.option("--large", default=60_000, show_default=True, help="Points at d = 784; 0: none.")
@click.option("--peers/--no-peers", "others", default=True, help="Measure flash-sinkhorn too.")
def main(
    output: Path | None, device: str, n: int, d: int, share: float, large: int, others: bool
) -> None:
    """Measure, print a line a row and write the JSON."""
    where = torch.device(device)
    rows: dict[str, Any] = {}
    report = {**machine(where, "flash-sinkhorn"), "arguments": command_line(), "rows": rows}

    def measure(title: str, work: Callable[[], dict[str, Any]]) -> None:
        start = time.perf_counter()
        try:
            row = work()
        except Exception as error:  # noqa: BLE001
            # one failure must not cost the other rows
            row = {"error_message": f"{type(error).__name__}: {error}"[:500]}
            traceback.print_exc()
        rows[title] = row | {"row_seconds": round(time.perf_counter() - start, 2)}
        click.echo(line(title, row))
        if output:
            output.write_text(json.dumps(report, indent=1, default=str))

    (task, work), seconds = seconds_of(lambda: make_task(n, d, share, where), where)
    rows["problem"] = {
        "n": n,
        "d": d,
        "eps": task.eps,
        "mean_cost": work.result.mean_cost,
        "marginal_error": work.result.error,
        "backend": work.result.backend,
        "seconds": seconds,
    }
    click.echo(f"n = m = {n:,}, d = {d}, eps {task.eps:.3g}, checked in {seconds:.1f} s")
    for tol in (1e-4, 1e-5):
        measure(f"otdd-flash, {tol:g}", partial(ours, work, task.v, tol, task.truth))
    if large:
        measure(f"otdd-flash, n = m = {large:,}, d = 784", partial(large_row, large, share, where))
    if others:
        measure("flash-sinkhorn, its defaults", partial(flash_sinkhorn, task))
        looser = partial(flash_sinkhorn, task, cg_rtol=1e-4, cg_atol=0.0)
        measure("flash-sinkhorn, 0.0001", looser)


def large_row(n: int, share: float, device: torch.device) -> dict[str, Any]:
    """Measure a product whose plan may not be stored: within 2 GB beside the points."""
    x, y, v = clouds(n, 784, device)
    work = solved(x, y, share, 1 << 30)
    return {"eps": work.result.epsilon} | ours(work, v, 1e-4, None)


if __name__ == "__main__":
    main()
