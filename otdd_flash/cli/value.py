"""``otdd value``: how foreign each sample is to a target."""

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
    settings_of,
    talk_options,
)
from otdd_flash.cli.sources import dataset_options

EPILOG = """\b
Examples:
  otdd value mnist-mini fashion-mnist-mini --max-samples 300 --normalize unit
  otdd value digits mnist-mini --image-size 8 --cosine --output values.csv
  otdd value mnist kmnist --split test --output values.csv --plot worst.png

Datasets are names, files, folders and more: see `otdd datasets --help`.

\b
value: what more weight at a sample adds to the distance; higher is more foreign. It is the sum of
  features    how foreign the sample looks, whatever its label
  class_part  the price of its class, the same for all of it
  label       how ill its label fits: sort by this to find wrong labels
row counts all samples of SRC from 0, also where --max-samples draws some of them.
TGT should be samples whose labels one trusts, such as a validation set.
"""


@click.command(epilog=EPILOG)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="TGT")
@dataset_options
@distance_options
@machine_options
@file_option("--output", "FILE.csv", "Write a line a sample (csv), or the whole result (npz)")
@file_option("--plot", "FILE.png", "Write a picture (png, pdf or svg)")
@talk_options
@debug_option
def value(**options: Any) -> None:
    """Value the samples of SRC by the distance to TGT, after LAVA (Just et al., ICLR 2023)."""
    output = options["output"]
    check_files(options, output=(".csv", ".npz"))
    settings = settings_of(options)
    check_device(settings.device)
    bars, tell = on_stderr(options)
    src, tgt = load_pair(options, bars, tell)
    announce_long([(src, tgt)], settings, tell, 2)

    from otdd_flash.findings_io import values_csv
    from otdd_flash.many.valuation import value_steps
    from otdd_flash.pictures.portraits import plot_values
    from otdd_flash.results import save
    from otdd_flash.tables import values_text

    found, warned = drive(value_steps(src, tgt, settings), bars)
    try:
        if output is not None:
            (values_csv if output.suffix.lower() == ".csv" else save)(found, output)
        if options["plot"] is not None:
            plot_values(found, options["plot"], src)
    finally:
        show(found, options["as_json"], values_text, warned)
