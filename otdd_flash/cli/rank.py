"""``otdd rank``: which sources are nearest to a target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from otdd_flash.cli.announce import announce_long
from otdd_flash.cli.confidence import confidence_of, confidence_options, devices_option, show
from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.loading import drive, load_all, on_stderr
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
  otdd rank mnist-mini --sources fashion-mnist-mini --max-samples 300 --normalize unit
  otdd rank mnist --sources fashion-mnist kmnist qmnist --normalize unit --bootstrap 50
  otdd rank new.csv --sources old.csv older.csv --label species
  otdd rank mnist --sources fashion-mnist kmnist qmnist --transfer scores.csv --plot rank.png

Datasets are names, files, folders and more: see `otdd datasets --help`.

\b
scores.csv has the name of a source and its score after transfer a line; from three on the
correlations with the distance are given. One eps serves all sources: a relative one is a share of
the mean cost averaged over them.
"""


@click.command(epilog=EPILOG)
@click.argument("target", metavar="TARGET")
@click.option("--sources", multiple=True, metavar="DATASET...", help="The sources to order.")
@click.argument("more", metavar="", nargs=-1)
@click.option(
    "--transfer",
    type=click.Path(path_type=Path),
    metavar="SCORES.csv",
    help="What was measured after transfer from each source.",
)
@dataset_options
@distance_options
@confidence_options
@machine_options
@devices_option
@file_option("--output", "FILE.npz", "Write the whole result")
@file_option("--plot", "FILE.png", "Write a picture (png, pdf or svg)")
@talk_options
@debug_option
def rank(**options: Any) -> None:
    """Order sources by their distance to TARGET, nearest first."""
    # an option takes one value: the names that follow it arrive as arguments
    names = [*options["sources"], *options["more"]]
    if not names:
        raise click.UsageError("no sources: give --sources DATASET...")
    check_files(options)
    settings, confidence = settings_of(options), confidence_of(options)
    devices = check_device(settings.device, options["devices"])

    from otdd_flash.findings_io import read_scores
    from otdd_flash.tables import ranking_text

    scores = None if options["transfer"] is None else read_scores(options["transfer"])
    bars, tell = on_stderr(options)
    target, *sources = load_all([options["target"], *names], options, bars, tell)
    announce_long([(s, target) for s in sources], settings, tell, 1 / len(devices))

    from otdd_flash.many.rankings import rank_steps
    from otdd_flash.pictures.maps import plot_ranking
    from otdd_flash.results import save

    steps = rank_steps(
        target,
        sources,
        settings,
        scores=scores,
        confidence=confidence,
        devices=options["devices"],
    )
    found, warned = drive(steps, bars)
    try:
        if options["output"] is not None:
            save(found, options["output"])
        if options["plot"] is not None:
            plot_ranking(found, options["plot"])
    finally:
        show(found, options["as_json"], ranking_text, warned)
