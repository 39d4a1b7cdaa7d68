"""Options of resamples and noise floors, and how findings are shown."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from otdd_flash.cli.loading import say
from otdd_flash.cli.options import group
from otdd_flash.cli.params import Devices

if TYPE_CHECKING:
    from otdd_flash.confidence import Confidence


confidence_options = group(
    click.option(
        "--bootstrap",
        type=click.IntRange(min=0),
        default=0,
        metavar="B",
        help="Add an interval from B resamples of the samples, drawn by the seed, such as 50.",
    ),
    click.option(
        "--noise-floor",
        is_flag=True,
        help="Add the distance between two halves of each dataset, drawn by the seed.",
    ),
)

devices_option = click.option(
    "--devices",
    type=Devices(),
    metavar="all|cuda:0,cuda:1",
    help="GPUs that share the work, instead of --device.",
)


def confidence_of(options: dict[str, Any]) -> Confidence:
    """Return what the options ask for; the seed is that of the subsample."""
    from otdd_flash.confidence import Confidence

    return Confidence(options["bootstrap"], options["noise_floor"], options["seed"])


def show(found: Any, as_json: bool, text: Callable[[Any], str], warned: list[str]) -> None:
    """Print a finding on stdout, and its warnings on stderr."""
    from otdd_flash.findings_io import finding_json

    click.echo(json.dumps(finding_json(found), allow_nan=False) if as_json else text(found))
    sys.stdout.flush()
    for line in warned:
        say(f"Warning: not converged: {line}")
