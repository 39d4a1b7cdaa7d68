"""``otdd explain``: why two datasets are far apart."""

from __future__ import annotations

from typing import Any

import click

from otdd_flash.cli.announce import announce_long
from otdd_flash.cli.confidence import show
from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.loading import drive, load_pair, on_stderr
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
from otdd_flash.cli.sources import dataset_options

EPILOG = """\b
Examples:
  otdd explain mnist-mini fashion-mnist-mini --normalize unit --max-samples 500
  otdd explain mnist-mini fashion-mnist-mini --max-samples 300 --plot why.png --json
  otdd explain mnist fashion-mnist --normalize unit --output why.npz --report why.html

Datasets are names, files, folders and more: see `otdd datasets --help`.

\b
bits: the entropy of where a class goes, 0 for one target class. of <P, C>: the share of the cost
of the plan. The parts of the squared distance add up to it exactly.
"""


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="TGT")
@click.option(
    "--pairs",
    type=click.IntRange(min=0),
    default=20,
    show_default=True,
    metavar="N",
    help="Sample pairs that pay most, to list.",
)
@dataset_options
@distance_options
@machine_options
@file_option("--output", "FILE.npz", "Write all of it, a number for each sample included")
@file_option("--plot", "FILE.png", "Write a picture (png, pdf or svg)")
@report_option
@talk_options
@debug_option
def explain(**options: Any) -> None:
    """Say which classes, samples, features and labels make the distance from SRC to TGT."""
    check_files(options)
    settings = settings_of(options)
    check_device(settings.device)
    bars, tell = on_stderr(options)
    src, tgt = load_pair(options, bars, tell)
    announce_long([(src, tgt)], settings, tell, 1.5)

    from otdd_flash.many.explanations import explain_steps
    from otdd_flash.pictures.portraits import plot_explanation
    from otdd_flash.report import write_report
    from otdd_flash.results import save
    from otdd_flash.tables import explanation_text

    found, warned = drive(explain_steps(src, tgt, settings, pairs=options["pairs"]), bars)
    try:
        if options["output"] is not None:
            save(found, options["output"])
        if options["plot"] is not None:
            plot_explanation(found, options["plot"], src, tgt)
        if options["report"] is not None:
            write_report(found, options["report"], src, tgt)
    finally:
        show(found, options["as_json"], explanation_text, warned)
