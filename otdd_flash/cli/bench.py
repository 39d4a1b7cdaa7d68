"""``otdd bench``: how fast this machine is, and whether it computes what it should."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.options import check_device, device_option, json_option
from otdd_flash.cli.progress import Bars, wanted

EPILOG = """\b
Examples:
  otdd bench                               # this machine: a GPU if any
  otdd bench --quick --device cpu          # seconds
  otdd bench --samples 20000 --json > bench.json

\b
The data are the embedded samples of MNIST and Fashion-MNIST, repeated with noise of two grey
levels where more are asked for. Everything is compared with float64: costs, the error of the
marginals, the bounds. The exit code is 1 when a check fails.
"""


@click.command(epilog=EPILOG)
@device_option
@click.option(
    "--samples",
    type=click.IntRange(min=20),
    metavar="N",
    help="Samples a side.  [default: 2,000 on a CPU, 60,000 on a GPU]",
)
@click.option("--quick", is_flag=True, help="Fewer samples: 400 on a CPU, 8,000 on a GPU.")
@json_option
@click.option("--quiet", is_flag=True, help="No progress.")
@debug_option
def bench(device: str, samples: int | None, quick: bool, as_json: bool, quiet: bool) -> None:
    """Time one pass and one distance on this machine, and check them against float64."""
    check_device(device)

    from otdd_flash.bench import bench_steps

    report = Bars(wanted(quiet)).drive(bench_steps(device=device, samples=samples, quick=quick))
    click.echo(json.dumps(report, allow_nan=False) if as_json else table(report))
    if not all(report["checks"].values()):
        failed = ", ".join(name for name, holds in report["checks"].items() if not holds)
        click.echo(f"Warning: failed against float64: {failed}", err=True)
        sys.exit(1)


def table(report: dict[str, Any]) -> str:
    """Return what was measured, for people."""
    n, one, solve = report["samples"], report["pass"], report["solve"]
    versions = report["versions"]
    named = ("otdd-flash", "torch", "triton")
    low, high = solve["squared_bounds"]
    own = " + ".join(str(count) for count in solve["self_passes"])
    rows = [
        ("device", report["device"] if report["capability"] else _cpu(report)),
        ("operators", solve["backend"]),
        ("versions", ", ".join(f"{name} {versions[name]}" for name in named)),
        ("data", f"{report['data']}: {n:,} x {n:,} samples, d = {report['dimension']}"),
        ("class laws", f"{report['class_laws_seconds']:.3f} s"),
        (
            "one pass",
            f"{one['ms']:.3g} ms, {one['ms_transposed']:.3g} ms transposed: "
            f"{one['pairs_per_second'] / 1e9:.3g} billion pairs a second",
        ),
        (
            "distance",
            f"{solve['seconds']:.3g} s, certificate included; {solve['passes']} passes "
            f"(self terms {own})",
        ),
        ("squared", f"{solve['squared']:.7g} (debiased), between {low:.7g} and {high:.7g}"),
        (
            "float64",
            f"cost error {one['cost_error']:.1e}, softmin error {one['softmin_error']:.1e} of the "
            f"mean cost, marginal error {solve['marginal_error_float64']:.1e}",
        ),
    ]
    if solve["extra_bytes"]:
        rows.append(("memory", f"{solve['extra_bytes'] / 1e9:.2f} GB beside the points"))
    verdicts = (f"{name} {'ok' if ok else 'FAILS'}" for name, ok in report["checks"].items())
    rows.append(("checks", ", ".join(verdicts).replace("_", " ")))
    return "\n".join(f"{name:<12}{text}" for name, text in rows)


def _cpu(report: dict[str, Any]) -> str:
    return f"{report['device']}, {report['threads']} thread(s)"
