"""Shuffled linear regression: escape from saddles that a first-order method stops at.

    python scripts/shuffled_regression.py --output scripts/results/shuffled_regression.json

The responses are ``Y = X W + noise`` with the rows of Y in an unknown order; what is known of each
row of either side is which of two groups it belongs to. W is what makes ``S(X W, Y)`` least, the
divergence with a label cost that keeps the groups apart. The features are skewed, so that W has no
symmetric twin.

A start is a saddle, found without a look at the true W: the first point where Levenberg and
Marquardt's method, from normal weights, brings the gradient to zero and the Hessian has eigenvalues
of both signs. Each start is of another problem: another W, other features, other noise. A saddle of
a sample of 150 rows is found first, and from there that of all rows. From it run

- Adam that stops where the gradient is below the tolerance, as the other methods do: it stays;
- Adam that does not stop: rounding drives it off the saddle sooner or later, to either side;
- Adam with Newton's method (``otdd_flash.adam_newton``), which sees the negative eigenvalue.

Written beside the JSON file: a picture of loss, smallest eigenvalue and error of the weights.
"""

from __future__ import annotations

import json
import math
import time
import warnings
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import torch
from scipy.optimize import root
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.curvature.landscape import Landscape
from otdd_flash.timing import command_line, machine

FEATURES, RESPONSES = 3, 2
NOISE = 0.02
SHARE = 0.3  # eps, in units of the mean squared distance inside Y
APART = 10.0  # cost between the groups, in the same units
SAMPLE = 150
TRIES = 25  # random weights from which a saddle is looked for
FOUND = 0.05  # relative error of the weights that counts as the true ones


@dataclass(frozen=True, eq=False)
class Problem:
    """Features, responses in an unknown order, their groups, and the weights to be found."""

    x: Tensor  # (n, 3) float64
    y: Tensor  # (n, 2)
    groups: tuple[Tensor, Tensor]  # (n,) int64 of the rows of x and of y
    weights: Tensor  # (3, 2)
    tol: float  # of the marginals

    def loss(self, w: Tensor) -> Tensor:
        """Return S(X w, Y)."""
        size = 2 * float(self.y.var(0).sum())
        apart = APART * size * (1 - torch.eye(2, dtype=torch.float64))
        return otdd.sinkhorn_divergence(
            self.x @ w,
            self.y,
            labels=self.groups,
            label_cost=(apart, apart, apart),
            epsilon=SHARE * size,
            tol=self.tol,
            max_passes=10_000,
        )

    def error(self, w: Tensor) -> float:
        """Return the relative error of some weights."""
        return float((w - self.weights).norm() / self.weights.norm())

    def sample(self) -> Problem:
        """Return the problem of the first rows of both sides, on the CPU: it is small."""
        x, y, rows, shuffled = (t[:SAMPLE].cpu() for t in (self.x, self.y, *self.groups))
        return Problem(x, y, (rows, shuffled), self.weights.cpu(), 1e-7)


def make_problem(n: int, seed: int, device: torch.device) -> Problem:
    """Draw two groups of different centres, each with skewed features."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    group = (torch.rand(n, generator=draw) < 1 / 3).long()
    skewed = -torch.rand(n, FEATURES, generator=draw, dtype=torch.float64).log() - 1
    x = normal(2, FEATURES)[group] + skewed
    w = normal(FEATURES, RESPONSES)
    y = x @ w + NOISE * normal(n, RESPONSES)
    order = torch.randperm(n, generator=draw)
    tol = 1e-9 if device.type == "cpu" else 1e-5
    parts = (t.to(device) for t in (x, y[order], group, group[order], w))
    x, y, rows, shuffled, w = parts
    return Problem(x, y, (rows, shuffled), w, tol)


def critical_point(problem: Problem, start: Tensor, gtol: float) -> Tensor | None:
    """Bring the gradient to zero, whatever the Hessian is; None where that fails."""
    landscape = Landscape(problem.loss, start)
    known: dict[bytes, Any] = {}

    def local(p: np.ndarray) -> Any:
        key = p.tobytes()
        if key not in known:
            known.clear()
            known[key] = landscape.at(torch.from_numpy(p.copy()).to(start.device))
        return known[key]

    def hessian(p: np.ndarray) -> np.ndarray:
        unit = torch.eye(p.size, dtype=torch.float64, device=start.device)
        return np.stack([local(p).product(v).cpu().numpy() for v in unit])

    found = root(
        lambda p: local(p).gradient.cpu().numpy(),
        start.cpu().numpy().ravel(),
        jac=hessian,
        method="lm",
        # steps below what the solves resolve would be led by their errors
        options={"maxiter": 60, "xtol": problem.tol},
    )
    point = torch.from_numpy(found.x.reshape(tuple(start.shape))).to(start)
    return point if np.linalg.norm(found.fun) <= gtol else None


def find_saddle(problem: Problem, seed: int, gtol: float) -> tuple[Tensor, Tensor] | None:
    """Return the first saddle and its (6,) eigenvalues, None after too many tries."""
    draw = torch.Generator().manual_seed(seed)
    small = problem.sample()
    for _ in range(TRIES):
        start = 1.5 * torch.randn(FEATURES, RESPONSES, generator=draw, dtype=torch.float64)
        near = critical_point(small, start, 10 * gradient_tolerance(small))
        if near is None or not is_saddle(curvatures(small, near)):
            continue
        point = critical_point(problem, near.to(problem.x), gtol)
        if point is None:
            continue
        values = curvatures(problem, point)
        if is_saddle(values):
            return point, values
    return None


def curvatures(problem: Problem, point: Tensor) -> Tensor:  # (6,) on the CPU
    """Return all eigenvalues of the Hessian."""
    here = Landscape(problem.loss, point).at_start()
    unit = torch.eye(point.numel(), dtype=torch.float64, device=point.device)
    columns = torch.stack([here.product(v) for v in unit])
    return torch.linalg.eigvalsh((columns + columns.mT) / 2).cpu()


def is_saddle(values: Tensor) -> bool:
    """Say whether eigenvalues have both signs, beyond rounding."""
    least = 1e-2 * float(values.abs().max())
    return float(values[0]) < -least and float(values[-1]) > least


def adam(
    problem: Problem,
    start: Tensor,
    steps: int,
    rate: float,
    gtol: float,  # 0: never stop
) -> dict[str, Any]:
    """Run Adam alone."""
    w = start.clone().requires_grad_()
    optimizer = torch.optim.Adam([w], lr=rate)
    losses, errors = [], []
    for _ in range(steps + 1):
        optimizer.zero_grad()
        value = problem.loss(w)
        value.backward()
        losses.append(value.item())
        errors.append(problem.error(w.detach()))
        if float(w.grad.norm()) <= gtol:
            break
        optimizer.step()
    moved = float((w.detach() - start).norm() / problem.weights.norm())
    return {"steps": len(losses) - 1, "moved": moved, "error": errors[-1]} | {
        "losses": losses,
        "errors": errors,
    }


def from_saddle(problem: Problem, start: Tensor, steps: int, rate: float) -> dict[str, Any]:
    """Run all methods from one saddle."""
    gtol = gradient_tolerance(problem)
    begun = time.perf_counter()
    stopped = adam(problem, start, steps, rate, gtol)
    restless = adam(problem, start, steps, rate, 0.0)
    adam_seconds = time.perf_counter() - begun
    begun = time.perf_counter()
    result = otdd.adam_newton(
        problem.loss,
        start,
        learning_rate=rate,
        adam_steps=steps,
        check_every=10,
        gtol=gtol,
        measure=problem.error,
    )
    return {
        "start_error": problem.error(start),
        "adam": {key: stopped[key] for key in ("steps", "moved", "error")},
        "adam_that_does_not_stop": restless,
        "adam_seconds": adam_seconds,
        "seconds": time.perf_counter() - begun,
        "loss": result.value,
        "error": problem.error(result.point),
        "gradient": result.gradient,
        "eigenvalue": result.eigenvalue,
        "evaluations": result.evaluations,
        "products": result.products,
        "escapes": result.escapes,
        "converged": result.converged,
        "history": [asdict(state) for state in result.history],
    }


def gradient_tolerance(problem: Problem) -> float:
    """Return the norm of the gradient that counts as zero: what the arithmetic reaches."""
    return 1e-6 if problem.x.device.type == "cpu" else 1e-4


def draw_picture(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw loss, smallest eigenvalue and error of the weights over the steps."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    figure, (loss, eigenvalue, error) = pyplot.subplots(1, 3, figsize=(12, 3.4))
    for k, row in enumerate(rows):
        history, restless = row["history"], row["adam_that_does_not_stop"]
        steps = range(len(history))
        for axis, key in ((loss, "value"), (error, "measure")):
            axis.plot(steps, [max(s[key], 1e-12) for s in history], color="C0", lw=1)
            axis.plot(0, max(history[0][key], 1e-12), "C3.", ms=5)
        loss.plot(restless["losses"], color="0.75", lw=0.8, zorder=0)
        error.plot(restless["errors"], color="0.75", lw=0.8, zorder=0)
        seen = [(i, s["eigenvalue"]) for i, s in enumerate(history)]
        seen = [(i, v) for i, v in seen if not math.isnan(v)]
        eigenvalue.plot(*zip(*seen, strict=True), "C0.-", lw=1, ms=3)
        if k == 0:
            error.plot([], [], "C0", label="Adam, then Newton")
            error.plot([], [], "0.75", label="Adam that does not stop")
            error.plot([], [], "C3.", label="saddle: Adam stops here")
    for axis, title in ((loss, "loss S(XW, Y)"), (error, "relative error of W")):
        axis.set(title=title, yscale="log", xlabel="step")
    eigenvalue.axhline(0, color="0.5", lw=0.6)
    eigenvalue.set(title="smallest eigenvalue of the Hessian", xlabel="step")
    error.legend(fontsize=8, loc="center right")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def plain(value: Any) -> Any:
    """Return a value as JSON takes it: NaN as null."""
    if isinstance(value, dict):
        return {key: plain(v) for key, v in value.items()}
    if isinstance(value, list):
        return [plain(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@click.command(help=__doc__)
@click.option("--n", default=400, show_default=True, help="Rows of X and of Y, up to 50,000.")
@click.option("--starts", default=10, show_default=True, help="Saddles, each of another problem.")
@click.option("--adam-steps", default=300, show_default=True)
@click.option("--learning-rate", default=0.02, show_default=True)
@click.option("--seed", default=0, show_default=True, help="Of the first problem.")
@click.option("--device", default="cpu", show_default=True, help="cpu or cuda.")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file to write.")
def main(
    n: int,
    starts: int,
    adam_steps: int,
    learning_rate: float,
    seed: int,
    device: str,
    output: Path | None,
) -> None:
    """Run from saddle to saddle, print a line for each and write JSON and picture."""
    rows: list[dict[str, Any]] = []
    without: list[int] = []
    where = torch.device(device)
    while len(rows) < starts:
        problem = make_problem(n, seed, where)
        begun = time.perf_counter()
        with warnings.catch_warnings():
            # the search may stray to weights where the solves are slow
            warnings.simplefilter("ignore", otdd.ConvergenceWarning)
            found = find_saddle(problem, seed, gradient_tolerance(problem))
        searched = time.perf_counter() - begun
        if found is None:
            without.append(seed)
        else:
            row = {"seed": seed, "saddle": found[0].tolist(), "eigenvalues": found[1].tolist()}
            row |= from_saddle(problem, found[0], adam_steps, learning_rate)
            rows.append(row | {"search_seconds": searched})
            click.echo(
                f"{seed}: saddle at error {row['start_error']:.2f}, eigenvalues "
                f"{found[1][0]:.3g}..{found[1][-1]:.3g}; Adam moves by {row['adam']['moved']:.0e} "
                f"and stops; without stopping it ends at "
                f"{row['adam_that_does_not_stop']['error']:.3f}; with Newton at "
                f"{row['error']:.4f} after {row['evaluations']} evaluations, {row['products']} "
                f"products, {row['seconds']:.1f} s"
            )
        seed += 1
    summary = {
        "starts": len(rows),
        "problems_without_a_saddle": without,
        "adam_stays": sum(row["adam"]["moved"] < 1e-6 for row in rows),
        "true_weights": sum(row["error"] < FOUND for row in rows),
        "true_weights_by_adam_that_does_not_stop": sum(
            row["adam_that_does_not_stop"]["error"] < FOUND for row in rows
        ),
    }
    click.echo(json.dumps(summary))
    if output:
        report = {**machine(where), "arguments": command_line(), "summary": summary, "rows": rows}
        output.write_text(json.dumps(plain(report), default=str))
        draw_picture(rows, output.with_suffix(".png"))


if __name__ == "__main__":
    main()
