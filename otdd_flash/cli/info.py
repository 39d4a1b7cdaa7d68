"""``otdd info``: what a dataset holds."""

from __future__ import annotations

import json
import sys
from typing import Any

import click

from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.loading import load_all, on_stderr
from otdd_flash.cli.options import (
    check_device,
    check_files,
    device_option,
    file_option,
    talk_options,
)
from otdd_flash.cli.sources import SPECS, dataset_options

# classes that are listed
MOST = 50
EPILOG = f"""\b
Examples:
  otdd info mnist-mini --plot samples.png
  otdd info sklearn:wine --scale none
  otdd info sklearn:diabetes --labels quantiles:4 --json

{SPECS}"""


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="DATASET")
@dataset_options
@device_option
@file_option("--plot", "FILE.png", "Write a picture of samples of each class (png, pdf or svg)")
@talk_options
@debug_option
def info(**options: Any) -> None:
    """Show the samples, features, classes and values of DATASET, as distances would see them."""
    check_files(options)
    check_device(options["device"])
    bars, tell = on_stderr(options)
    (dataset,) = load_all([options["spec"]], options, bars, tell)

    from otdd_flash.datasets import description

    found = description(dataset)
    try:
        if options["plot"] is not None:
            from otdd_flash.pictures.gallery import plot_samples

            plot_samples(dataset, options["plot"])
    finally:
        click.echo(json.dumps(found, allow_nan=False) if options["as_json"] else text(found))
        sys.stdout.flush()


def text(found: dict[str, Any]) -> str:
    """Return a description for people."""
    from otdd_flash.results import bytes_text
    from otdd_flash.tables import grid

    shape = " x ".join(map(str, found["sample_shape"]))
    low, high = found["range"]
    source = found["provenance"].get("source", "")
    rows = [
        ("dataset", found["name"]),
        ("source", str(source)),
        ("samples", f"{found['samples']:,} of {found['features']:,} features ({shape})"),
        ("values", f"{found['dtype']}, {low:.6g} to {high:.6g}, {bytes_text(found['bytes'])}"),
        ("mean", f"{found['mean']:.6g}, standard deviation {found['deviation']:.6g}"),
        ("classes", f"{len(found['classes']):,}"),
    ]
    lines = [f"{name:<11}{value}" for name, value in rows if value]
    counts = list(found["classes"].items())
    body = [(name, f"{n:,}", f"{n / found['samples']:.1%}") for name, n in counts[:MOST]]
    lines += ["", grid(("class", "samples", "share"), body)]
    if len(counts) > MOST:
        lines.append(f"and {len(counts) - MOST:,} more classes (--json lists all)")
    return "\n".join(lines)
