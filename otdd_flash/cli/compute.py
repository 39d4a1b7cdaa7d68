"""``otdd compute``: the distance between two datasets."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from otdd_flash.cli.announce import announce_long
from otdd_flash.cli.confidence import confidence_of, confidence_options
from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.loading import drive, load_pair, on_stderr, say
from otdd_flash.cli.options import (
    check_device,
    check_files,
    distance_options,
    file_option,
    machine_options,
    report_option,
    settings_of,
    talk_options,
)
from otdd_flash.cli.sources import SPECS, dataset_options

if TYPE_CHECKING:
    from otdd_flash.types import LabelledDataset, OTDDResult

EPILOG = f"""\b
Examples:
  otdd compute mnist-mini fashion-mnist-mini --normalize unit --plot otdd.png
  otdd compute mnist-mini fashion-mnist-mini --normalize unit --report otdd.html
  otdd compute mnist fashion-mnist --max-samples 5000 --epsilon 0.1 --normalize unit
  otdd compute mnist kmnist --split test --label-distance diagonal --json > otdd.json
  otdd compute mnist fashion-mnist --device cuda:0 --output otdd.npz
  otdd compute mnist-mini fashion-mnist-mini --bootstrap 50 --noise-floor
  otdd compute mnist fashion-mnist --convention microsoft --normalize mnist
  otdd compute old.csv new.csv --label species
  otdd compute photos cifar10 --image-size 32 --normalize unit
  otdd compute sklearn:wine sklearn:breast_cancer --encoder pca:5

{SPECS}
\b
stdout holds only the result; progress, announcements and warnings go to stderr.
A solve that stops before its tolerance is reported on stderr and as converged: false,
its bounds hold all the same, and the exit code stays 0.
"""


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="TGT")
@dataset_options
@distance_options
@confidence_options
@machine_options
@file_option("--output", "FILE.npz", "Write the whole result, dual potentials included")
@file_option("--plot", "FILE.png", "Write a picture of the result (png, pdf or svg)")
@report_option
@talk_options
@debug_option
def compute(**options: Any) -> None:
    """Compute the optimal transport dataset distance between SRC and TGT.

    SRC and TGT are names, files, folders or datasets of the hub, as listed below; mnist-mini and
    fashion-mnist-mini come with the package and need no download. The cost of moving a sample x
    of class c to a sample y of class k is ||x - y||^2 + W2[c, k], with W2 the squared
    Wasserstein distance between the two classes.
    """
    # what fails at once goes first: paths before torch is imported, settings before data is read
    check_files(options)
    settings, confidence = settings_of(options), confidence_of(options)
    check_device(settings.device)
    bars, tell = on_stderr(options)
    src, tgt = load_pair(options, bars, tell)
    announce_long([(src, tgt)], settings, tell)

    from otdd_flash.otdd import steps

    result, warned = drive(steps(src, tgt, settings, confidence=confidence), bars)
    try:
        _write(result, src, tgt, options)
    finally:
        # a full disk must not cost the result
        _print(result, options["as_json"])
    for text in warned:
        say(f"Warning: not converged: {text}")


def _write(
    result: OTDDResult, src: LabelledDataset, tgt: LabelledDataset, options: dict[str, Any]
) -> None:
    if options["output"] is not None:
        from otdd_flash.results import save

        save(result, options["output"])
    if options["plot"] is not None:
        from otdd_flash.pictures.plots import plot_result

        plot_result(result, options["plot"], src, tgt)
    if options["report"] is not None:
        from otdd_flash.report import write_report

        write_report(result, options["report"], src, tgt)


def _print(result: OTDDResult, as_json: bool) -> None:
    from otdd_flash.results import summary, to_json

    if as_json:
        click.echo(json.dumps(to_json(result), allow_nan=False))
    else:
        click.echo(summary(result))
    sys.stdout.flush()
