"""Measure the operators, the solver, the command and other packages on one GPU.

For example ``bench_gpu.py --data-root DATA --out bench.json`` for everything, or ``--only
pass,solver``. Sections run from the most to the least important; the JSON file is rewritten after
every row, and a row that fails is recorded with its error. With ``--device cpu --tiny`` everything
that needs no GPU runs in small, with ``TRITON_INTERPRET=1`` the kernels too.
"""

from __future__ import annotations

import gc
import json
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import bench_floats
import bench_sections
import click
import torch
from bench_sections import Bench, Row
from bench_table import SHOWN, goals, line

from otdd_flash.timing import command_line, machine

SECTIONS: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "pass": bench_sections.passes,
    "solver": bench_sections.solver,
    "command": bench_sections.command,
    "floats": bench_floats.floats,
    "large": bench_sections.large,
    "small": bench_floats.small,
    "laws": bench_sections.laws,
    "peers": bench_sections.other_packages,
    "matrix": bench_sections.law_matrix,
}
# seconds that a row of a section may take: it does not begin with fewer left
NEEDED = {"peers": 40.0, "matrix": 20.0}


def run_row(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a row measured, or its error: one failure must not cost the other rows."""
    start = time.perf_counter()
    try:
        report = work()
    except Exception as error:  # noqa: BLE001
        report = {"error": f"{type(error).__name__}: {error}"[:1000]}
        traceback.print_exc()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return report | {"row_seconds": round(time.perf_counter() - start, 3)}


def gpu_of(device: torch.device) -> str | None:
    """Return name, driver and clocks of the GPU as its driver tells them."""
    if device.type != "cuda":
        return None
    asked = "--query-gpu=name,driver_version,clocks.max.sm,clocks.sm,memory.total"
    try:
        parts = ["nvidia-smi", asked, "--format=csv,noheader"]
        return subprocess.run(parts, capture_output=True, text=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        return f"{type(error).__name__}: {error}"


@click.command(help=__doc__)
@click.option("--data-root", metavar="DIR", help="Folder with the IDX files.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="JSON file to write.")
@click.option("--only", metavar="A,B", help=f"Sections: {', '.join(SECTIONS)}.  [default: all]")
@click.option("--peers/--no-peers", "others", default=True, help="Measure other packages too.")
@click.option("--device", default="cuda", show_default=True, help="cuda, cuda:1 or cpu.")
@click.option(
    "--limit", default=500.0, show_default=True, help="Seconds after which no row begins."
)
@click.option("--tiny", is_flag=True, help="Small sizes and mini data: a test of this script.")
def main(
    data_root: str | None,
    out: Path,
    only: str | None,
    others: bool,
    device: str,
    limit: float,
    tiny: bool,
) -> None:
    """Run the sections, print a line a row and write the JSON."""
    wanted = only.split(",") if only else [s for s in SECTIONS if others or s != "peers"]
    if unknown := sorted(set(wanted) - set(SECTIONS)):
        raise click.UsageError(f"unknown section {unknown[0]!r}; known: {', '.join(SECTIONS)}")
    bench = Bench(device, data_root, tiny, limit)
    packages = ("flash-sinkhorn", "geomloss", "ott-jax", "jax")
    sections: dict[str, dict[str, Any]] = {}
    report = {
        **machine(bench.device, *packages),
        "gpu": gpu_of(bench.device),
        "arguments": command_line(),
        "sections": sections,
    }
    for name in [s for s in SECTIONS if s in wanted]:
        rows = sections.setdefault(name, {})
        click.echo(f"\n== {name} ({limit - bench.left:.0f} s)")
        for title, work in SECTIONS[name](bench):
            enough = bench.left > NEEDED.get(name, 0.0)
            rows[title] = run_row(work) if enough else {"error": "skipped: out of time"}
            out.write_text(json.dumps(report, indent=1, default=str))
            click.echo(line(title, rows[title], SHOWN[name]))
    click.echo(f"\n== goals ({limit - bench.left:.0f} s)")
    for row in goals(sections):
        click.echo(row)


if __name__ == "__main__":
    main()
