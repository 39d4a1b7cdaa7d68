"""Time flows of MNIST to Fashion-MNIST by section, with their memory and how far S falls.

For example ``bench_flow.py --data DATA --output bench_flow.json`` on a GPU with all 60,000 samples
a side, or ``bench_flow.py --samples 2000 --device cpu``. The long flows come first: features and
attached. Then short ones that change one setting each. Medians are of warm steps; with
``--limit`` no flow begins, and no step is made, after so many seconds.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import torch

from otdd_flash.datasets import load
from otdd_flash.flows import FlowSettings, flow
from otdd_flash.settings import OTDDSettings
from otdd_flash.timing import PeakMemory, machine
from otdd_flash.types import LabelledDataset

SECTIONS = ("laws", "solve", "gradient", "pull", "move", "total")
# steps that are not counted: the first solves from nothing, the second extrapolates from one
COLD = 3
SHORT = 15
# what short flows change: settings of the flow, settings of its divergence
VARIANTS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "features, tol 3e-2": ("features", {}, {"tol": 3e-2}),
    "features, self_every 2": ("features", {"self_every": 2}, {}),
    "features, two slices": ("features", {}, {"slices": 2}),
    "features, no extrapolation": ("features", {"extrapolate": False}, {}),
    "attached, laws_every 2": ("attached", {"laws_every": 2}, {}),
    "attached, tol 3e-2": ("attached", {}, {"tol": 3e-2}),
    "attached, diagonal laws": ("attached", {}, {"label_distance": "diagonal"}),
    "tied": ("tied", {}, {}),
    "augmented": ("augmented", {}, {"label_distance": "diagonal"}),
}


def run(
    src: LabelledDataset, tgt: LabelledDataset, settings: FlowSettings, end: float
) -> dict[str, Any]:
    """Run a flow until its end or the time's; return medians of its sections and its curve."""
    device = torch.device(settings.divergence.device)
    peak = PeakMemory(device)
    states = []
    walk = flow(src, tgt, settings)
    for state in walk:
        # a slice would keep all points
        states.append(replace(state, points=state.points.new_empty(0)))
        del state
        if time.monotonic() > end:
            break
    # the last step makes no gradient
    warm = states[COLD:-1] or states[:1]
    values = [state.value for state in states]
    return {
        "steps": len(states) - 1,
        "ms": {
            name: 1e3 * statistics.median(s.seconds.get(name, 0.0) for s in warm)
            for name in SECTIONS
        },
        "slowest_ms": 1e3 * max(s.seconds["total"] for s in warm),
        "first_ms": 1e3 * states[0].seconds["total"],
        "passes": [statistics.mean(s.passes[k] for s in warm) for k in (0, 1)],
        "marginal_error": max(s.marginal_error for s in states),
        "unconverged": sum(not s.converged for s in states),
        "moved": states[-1].moved,
        "values": values,
        "fall": 1 - values[-1] / values[0],
        "extra_bytes": peak.extra(),
        "backend": states[-1].backend,
    }


def line(name: str, report: dict[str, Any]) -> str:
    """Return one row of the table."""
    sections = "  ".join(f"{key} {report['ms'][key]:.1f}" for key in SECTIONS)
    passes = "+".join(f"{count:.1f}" for count in report["passes"])
    return (
        f"{name:<28}{report['steps']:>4} steps  ms: {sections}  passes {passes}  "
        f"extra {report['extra_bytes'] / 1e9:.2f} GB  S falls {report['fall']:.1%}"
    )


@click.command(help=__doc__)
@click.option("--data", metavar="DIR", help="Folder with the IDX files.  [default: OTDD_DATA]")
@click.option("--output", type=click.Path(path_type=Path), help="JSON file to write.")
@click.option("--samples", type=int, help="Samples a side.  [default: all; mini sets without data]")
@click.option("--steps", default=100, show_default=True, help="Of the two long flows.")
@click.option("--step-size", default=0.02, show_default=True)
@click.option("--device", default="cuda", show_default=True)
@click.option("--only", metavar="A,B", help="Flows by name, such as features or 'tied'.")
@click.option("--limit", default=90.0, show_default=True, help="Seconds for all flows.")
def main(
    data: str | None,
    output: Path | None,
    samples: int | None,
    steps: int,
    step_size: float,
    device: str,
    only: str | None,
    limit: float,
) -> None:
    """Run the flows, print a line each and write the JSON after every one."""
    data = data or os.environ.get("OTDD_DATA")
    suffix = "" if data else "-mini"
    src, tgt = (
        load(name + suffix, data_root=data, max_samples=samples)
        for name in ("mnist", "fashion-mnist")
    )
    solver = OTDDSettings(normalize="unit", tol=1e-2, device=device)
    long = {"features": ("features", {}, {}), "attached": ("attached", {}, {})}
    wanted = {**long, **VARIANTS}
    if only:
        wanted = {name: wanted[name] for name in only.split(",")}
    # kernels are compiled here, not in the first flow
    small = [load(d, max_samples=2000) for d in (src, tgt)]
    run(*small, FlowSettings(mode="attached", steps=2, solver=solver), time.monotonic() + limit)
    end = time.monotonic() + limit
    flows: dict[str, Any] = {}
    report = {**machine(torch.device(device)), "samples": [len(src), len(tgt)], "flows": flows}
    for name, (mode, changed, inner) in wanted.items():
        if time.monotonic() > end:
            click.echo(f"{name}: skipped, out of time")
            continue
        settings = FlowSettings(
            mode=mode,
            steps=steps if name in long else min(steps, SHORT),
            step_size=step_size,
            solver=replace(solver, **inner),
            **changed,
        )
        flows[name] = run(src, tgt, settings, end)
        click.echo(line(name, flows[name]))
        if output:
            output.write_text(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
