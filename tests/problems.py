"""Random transport problems and labelled datasets, each fixed by its number."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from otdd_flash import LabelledDataset
from otdd_flash.operators import CostOperator
from otdd_flash.ops import make_operator
from otdd_flash.solver.annealing import solve_annealed
from otdd_flash.solver.sinkhorn import Solution, Solve, SolveState
from otdd_flash_kernels.pair import CostPair, bilinear
from otdd_flash_kernels.quantize import centre


@dataclass
class Problem:
    """A cost with its operators, weights and eps."""

    op: CostOperator
    a: Tensor  # (n,)
    b: Tensor  # (m,)
    eps: float
    mean: float  # of the cost


def problem(number: int) -> Problem:
    """Return a problem of 1..400 points a side, eps from 1e-4 to 1 of the mean cost.

    Overlapping, distant, bounded, clustered and 8-bit clouds in 1 to 50 dimensions, with and
    without label costs; uniform and Dirichlet weights, some nearly zero.
    """
    r = np.random.default_rng(number)

    def size() -> int:  # evenly spread, or evenly in its logarithm
        if number % 2:
            return int(np.exp(r.uniform(0, np.log(400.99))))
        return int(r.integers(1, 401))

    n, m = size(), size()
    d, kind = int(r.choice([1, 2, 3, 10, 50])), number % 5
    x, y = r.standard_normal((n, d)), r.standard_normal((m, d))
    if kind == 1:
        y = y * 0.3 + 3
    if kind == 2:
        x, y = r.uniform(size=(n, d)), r.uniform(size=(m, d)) ** 2
    if kind == 3:
        x += 4 * r.integers(0, 3, (n, 1))
        y += 4 * r.integers(0, 3, (m, 1))
    if kind == 4:
        x, y = (r.integers(0, 256, (k, d)).astype(np.uint8) for k in (n, m))

    def weights(k: int) -> Tensor:
        if r.random() < 0.5:
            return torch.full((k,), 1.0 / k, dtype=torch.float64)
        drawn = r.dirichlet(np.full(k, r.choice([0.3, 1.0, 5.0]))) + 1e-12
        return torch.from_numpy(drawn / drawn.sum())

    a, b = weights(n), weights(m)
    vx, vy = min(n, 3), min(m, 4)
    lx, ly = (torch.from_numpy(np.sort(r.integers(0, v, k))) for v, k in ((vx, n), (vy, m)))
    rows, columns = centre(torch.from_numpy(x), torch.from_numpy(y))
    size_of_cost = float(((x[:, None].astype(float) - y[None]) ** 2).sum(-1).mean())
    labels = torch.from_numpy(r.random((vx, vy))) * size_of_cost * (r.random() < 0.5)
    pair = CostPair(rows, columns, 1.0, labels, lx, ly)
    mean = float(bilinear(pair, a, b))
    return Problem(make_operator(pair), a, b, float(10 ** r.uniform(-4, 0)) * mean, mean)


def run(solving: Solve) -> tuple[Solution, list[SolveState]]:
    """Run a solve to its end; return the solution and the states on the way."""
    states = []
    while True:
        try:
            states.append(next(solving))
        except StopIteration as done:
            return done.value, states


def solve(p: Problem, **keywords: object) -> Solution:
    """Solve a problem from nothing."""
    settings = {"tol": 1e-3, "max_passes": 2000, **keywords}
    return run(solve_annealed(p.op, p.a, p.b, p.eps, **settings))[0]


NUMPY = {"uint8": np.uint8, "float16": np.float16, "float32": np.float32, "float64": float}


def dataset(
    n: int,
    d: int,
    seed: int,
    kind: str = "float64",
    classes: int = 3,
    weighted: bool = False,
    **keywords: object,
) -> LabelledDataset:
    """Return classes of different means and spreads."""
    r = np.random.default_rng(seed)
    labels = r.integers(0, classes, n)
    labels[: min(n, classes)] = np.arange(min(n, classes))
    x = (
        r.standard_normal((n, d)) * (1 + labels[:, None])
        + 3 * r.standard_normal((classes, d))[labels]
    )
    if kind == "uint8":
        x = np.clip(128 + 12 * x, 0, 255)
    w = r.dirichlet(np.full(n, 2.0)) if weighted else None
    return LabelledDataset(x.astype(NUMPY[kind]), labels, weights=w, **keywords)


def moved(source: LabelledDataset, t: np.ndarray | float) -> LabelledDataset:
    """Return the dataset with every point moved by t."""
    return LabelledDataset(
        source.points + torch.as_tensor(t), source.labels, weights=source.weights
    )
