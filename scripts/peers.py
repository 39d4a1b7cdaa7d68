"""The same labelled problem solved by other packages, each checked by one float64 check.

All of them are optional imports. Every function returns what was measured as a dictionary; a
package that is missing raises ImportError, which the caller reports.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from otdd_flash.float64 import Float64Cost
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.timing import PeakMemory, seconds_of, synchronize

GOALS = (1e-2, 1e-3)
# iterations that are tried, each from nothing, to find the time to a goal
COUNTS = (20, 80, 160, 320, 640)
# a solver of some packages: from weights to potentials, P = a b exp((f + g - C) / eps)
Potentials = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class Task:
    """One problem as the packages read it: float32 points in [0, 1] and one square label cost."""

    x: Tensor  # (n, d) float32
    y: Tensor  # (m, d)
    lx: Tensor  # (n,) int64, 0..Vx-1
    ly: Tensor  # (m,) int64, Vx..Vx+Vy-1
    label_cost: Tensor  # (Vx + Vy, Vx + Vy) float32
    a: Tensor  # (n,) float32 weights
    b: Tensor  # (m,)
    eps: float
    truth: Float64Cost
    mean_cost: float

    @property
    def device(self) -> torch.device:
        """Where the points are."""
        return self.x.device

    @property
    def unlabelled(self) -> Task:
        """The same points, at the same eps, without the label cost."""
        truth = self.truth
        none = torch.zeros((1, 1), dtype=torch.float64, device=self.device)
        plain = Float64Cost(
            truth.x, truth.y, truth.row_labels, truth.column_labels, none, truth.factor
        )
        return replace(self, truth=plain)

    def left(self, f: Tensor, g: Tensor) -> float:
        """Return the larger L1 marginal error of the plan of some potentials."""
        return max(self.truth.marginal_errors(f, g, self.a, self.b, self.eps))


def make_task(
    clouds: LabelledClouds,  # 8-bit points
    eps: float,
    mean_cost: float,
) -> Task:
    """Return the cross problem of some clouds, the cost of one unit of pixels / 255 being 1."""
    x, y = clouds.x, clouds.y
    top = torch.cat([clouds.label_cost_x, clouds.label_cost], dim=1)
    bottom = torch.cat([clouds.label_cost.mT, clouds.label_cost_y], dim=1)
    return Task(
        x.points.float() / 255,
        y.points.float() / 255,
        x.labels,
        y.labels + len(clouds.label_cost_x),
        torch.cat([top, bottom]).float(),
        x.weights.float(),
        y.weights.float(),
        eps,
        Float64Cost(x.points, y.points, x.labels, y.labels, clouds.label_cost, clouds.factor),
        mean_cost,
    )


def cost_error(task: Task, solve: Potentials, columns: int = 3) -> float:
    """Return the worst error of a cost over the mean cost, as the package's last update sees it.

    With all mass on one column the potential of the rows is that column's cost up to a constant.
    """
    worst, n = 0.0, len(task.x)
    for j in torch.linspace(0, len(task.y) - 1, columns).long().tolist():
        single = torch.zeros_like(task.b)
        single[j] = 1.0
        f = solve(task.a, single)[0].double()
        gap = f - task.truth.block(slice(0, n), slice(j, j + 1))[:, 0]
        worst = max(worst, float((gap - gap.median()).abs().max()))
    return worst / task.mean_cost


def _default_run(task: Task, solve: Potentials, updates: int, calls: int = 2) -> dict[str, Any]:
    """Time a package's own schedule and check what it leaves."""
    peak = PeakMemory(task.device)
    (f, g), first = seconds_of(lambda: solve(task.a, task.b), task.device)
    seconds = first
    for _ in range(calls - 1):
        (f, g), seconds = seconds_of(lambda: solve(task.a, task.b), task.device)
    extra = peak.extra()
    return {
        "n": len(task.x),
        "first_call_seconds": first,
        "seconds": seconds,
        "marginal_updates": updates,
        "ms_per_update": 1e3 * seconds / updates,
        "marginal_error_float64": task.left(f, g),
        "extra_bytes": extra,
    }


def _times_to_goals(
    task: Task,
    run: Callable[[int], tuple[Tensor, Tensor]],  # further iterations -> potentials
    limit: float,  # seconds for one run
) -> dict[str, Any]:
    """Run with more and more iterations until both goals are met or a run would take too long."""
    tried: list[dict[str, float]] = []
    for count in COUNTS:
        if tried and tried[-1]["seconds"] * count / tried[-1]["iterations"] > limit:
            break
        (f, g), seconds = seconds_of(lambda count=count: run(count), task.device)
        tried.append({"iterations": count, "seconds": seconds, "error": task.left(f, g)})
        if tried[-1]["error"] < min(GOALS):
            break
    report: dict[str, Any] = {"runs": tried}
    for goal in GOALS:
        met = [t["seconds"] for t in tried if t["error"] < goal]
        report[f"seconds_to_{goal:g}"] = min(met) if met else None
    return report


def flash_symmetric(
    task: Task,
    *,
    labelled: bool,
    tf32: bool,
    calls: int = 2,
    limit: float = 25.0,  # seconds for the longest run to a goal; 0: default schedule only
) -> dict[str, Any]:
    """Measure flash-sinkhorn's symmetric solver: its default schedule, then more iterations."""
    from flash_sinkhorn import SamplesLoss

    task = task if labelled else task.unlabelled
    options: dict[str, Any] = {"blur": math.sqrt(task.eps), "potentials": True, "allow_tf32": tf32}
    labels: dict[str, Tensor] = {}
    if labelled:
        options |= {"label_cost_matrix": task.label_cost, "lambda_x": 1.0, "lambda_y": 1.0}
        labels = {"label_x": task.lx, "label_y": task.ly}

    def solver(**more: Any) -> Potentials:
        loss = SamplesLoss("sinkhorn", **options, **more)
        return lambda a, b: loss(a, task.x, b, task.y, **labels)

    schedule = list(SamplesLoss("sinkhorn", **options)._eps_list_for_inputs(task.x, task.y))
    # one full update at the first eps and one at the last, of both potentials each
    report = _default_run(task, solver(), 2 * (len(schedule) + 2), calls)
    report["eps_steps"] = len(schedule)
    fixed = solver(use_epsilon_scaling=False, eps=task.eps, n_iters=1)
    report["cost_error"] = cost_error(task, fixed)
    if limit > 0:

        def longer(count: int) -> tuple[Tensor, Tensor]:
            return solver(eps_list=[*schedule, *[task.eps] * count])(task.a, task.b)

        report |= _times_to_goals(task, longer, limit)
    return report


def flash_alternating(task: Task, *, tf32: bool, limit: float = 20.0) -> dict[str, Any]:
    """Measure flash-sinkhorn's alternating solver, which has no annealing and no labels."""
    from flash_sinkhorn import SamplesLoss

    task = task.unlabelled

    def solver(count: int) -> Potentials:
        loss = SamplesLoss(
            "sinkhorn",
            backend="alternating",
            use_epsilon_scaling=False,
            eps=task.eps,
            n_iters=count,
            potentials=True,
            allow_tf32=tf32,
        )
        return lambda a, b: loss(a, task.x, b, task.y)

    report = _default_run(task, solver(10), 20)
    report["cost_error"] = cost_error(task, solver(1))
    return report | _times_to_goals(task, lambda k: solver(k)(task.a, task.b), limit)


def _dense_cost(label_cost: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a cost of batches (1, n, d + 1) whose last column is the class."""

    def cost(x: Tensor, y: Tensor) -> Tensor:
        out = x.new_empty((1, x.shape[1], y.shape[1]))
        p, q = x[0, :, :-1], y[0, :, :-1]
        lp, lq = x[0, :, -1].long(), y[0, :, -1].long()
        for rows in torch.arange(len(p), device=p.device).split(1 << 12):
            block = out[0, rows[0] : rows[-1] + 1]
            torch.mm(p[rows], q.mT, out=block)
            block.mul_(-2).add_(p[rows].square().sum(1, keepdim=True)).add_(q.square().sum(1))
            block.add_(label_cost[lp[rows]][:, lq])
        return out

    return cost


def geomloss(task: Task, scaling: float, *, errors: bool = True) -> dict[str, Any]:
    """Measure GeomLoss, tensorized, with the label cost as its cost function."""
    from geomloss import SamplesLoss

    span = torch.maximum(task.x.amax(0), task.y.amax(0)) - torch.minimum(
        task.x.amin(0), task.y.amin(0)
    )
    blur, diameter = math.sqrt(task.eps), float(span.norm())
    loss = SamplesLoss(
        "sinkhorn",
        p=2,
        blur=blur,
        scaling=scaling,
        diameter=diameter,
        cost=_dense_cost(task.label_cost),
        debias=False,
        potentials=True,
        backend="tensorized",
    )
    x, y = (
        torch.cat([p, k[:, None].float()], 1) for p, k in ((task.x, task.lx), (task.y, task.ly))
    )
    steps = 2 + max(0, math.ceil(math.log(diameter / blur) / -math.log(scaling)))

    def solve(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            f, g = loss(a, x, b, y)
        return f.detach().view(-1), g.detach().view(-1)

    report = _default_run(task, solve, 2 * (steps + 2))
    report |= {"scaling": scaling, "eps_steps": steps}
    if errors:
        report["cost_error"] = cost_error(task, solve, columns=1)
    return report


def ott_stored(task: Task, threshold: float = 1e-3) -> dict[str, Any]:
    """Measure OTT-JAX's default Sinkhorn on a stored float32 cost with labels."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    from ott.geometry import geometry

    x, y = (
        torch.cat([p, k[:, None].float()], 1)[None]
        for p, k in ((task.x, task.lx), (task.y, task.ly))
    )
    dense = _dense_cost(task.label_cost)(x, y)[0]
    synchronize(task.device)
    # the same memory, no copy
    cost = jax.dlpack.from_dlpack(dense)
    return _ott(task, geometry.Geometry(cost_matrix=cost, epsilon=task.eps), threshold)


def ott_online(task: Task, threshold: float = 1e-3) -> dict[str, Any]:
    """Measure OTT-JAX's default Sinkhorn with the cost made on the fly, without labels."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    import jax
    import numpy as np
    from ott.geometry import pointcloud

    x, y = (jax.numpy.asarray(np.asarray(p.cpu())) for p in (task.x, task.y))
    cloud = pointcloud.PointCloud(x, y, epsilon=task.eps, batch_size=1024)
    return _ott(task.unlabelled, cloud, threshold)


def _ott(task: Task, geom: Any, threshold: float) -> dict[str, Any]:
    import jax
    import numpy as np
    from ott.problems.linear import linear_problem
    from ott.solvers.linear import sinkhorn

    solver = jax.jit(sinkhorn.Sinkhorn(threshold=threshold))
    problem = linear_problem.LinearProblem(geom)

    def solve() -> Any:
        return jax.block_until_ready(solver(problem))

    _, first = seconds_of(solve, task.device)
    out, seconds = seconds_of(solve, task.device)
    # its potentials hold the weights
    f, g = (
        torch.from_numpy(np.array(p)).to(task.device) - task.eps * w.log()
        for p, w in ((out.f, task.a), (out.g, task.b))
    )
    updates = 2 * int(out.n_iters)
    stats = jax.devices()[0].memory_stats() or {}
    return {
        "n": len(task.x),
        "threshold": threshold,
        "first_call_seconds": first,
        "seconds": seconds,
        "marginal_updates": updates,
        "ms_per_update": 1e3 * seconds / max(updates, 1),
        "converged": bool(out.converged),
        "marginal_error_float64": task.left(f, g),
        "peak_bytes": stats.get("peak_bytes_in_use"),
        "device": str(jax.devices()[0]),
    }
