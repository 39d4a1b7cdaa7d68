"""``otdd matrix``: the distances among many datasets."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from otdd_flash.cli.announce import announce_long
from otdd_flash.cli.confidence import confidence_of, confidence_options, devices_option, show
from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.loading import drive, load_all, on_stderr
from otdd_flash.cli.options import (
    check_device,
    check_files,
    distance_options,
    machine_options,
    report_option,
    settings_of,
    talk_options,
)
from otdd_flash.cli.sources import dataset_options

if TYPE_CHECKING:
    from otdd_flash.many.findings import MatrixResult

EPILOG = """\b
Examples:
  otdd matrix mnist-mini fashion-mnist-mini --normalize unit
  otdd matrix mnist-mini fashion-mnist-mini --max-samples 500 --out sets
  otdd matrix mnist-mini fashion-mnist-mini --max-samples 500 --out sets --resume
  otdd matrix sklearn:wine sklearn:iris sklearn:breast_cancer --encoder pca:4 --report small.html
  otdd matrix mnist fashion-mnist kmnist qmnist --normalize unit --bootstrap 50 --report sets.html

Datasets are names, files, folders and more: see `otdd datasets --help`.

\b
One eps serves all pairs: a relative one is a share of the mean cost averaged over them.
DIR holds each pair as it is finished (pairs/), and at the end matrix.csv, matrix.json and
matrix.npz, heatmap.png, map.png (MDS) and tree.png (average linkage).
"""


@click.command(epilog=EPILOG)
@click.argument("names", metavar="DATASET DATASET...", nargs=-1, required=True)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Folder for pairs, tables and pictures; made if it is not there.",
)
@click.option("--resume", is_flag=True, help="Go on with the run in DIR: finished pairs are read.")
@dataset_options
@distance_options
@confidence_options
@machine_options
@devices_option
@report_option
@talk_options
@debug_option
def matrix(**options: Any) -> None:
    """Compute the distances among all DATASETs, with bounds for each."""
    names, out = options["names"], options["out"]
    if len(names) < 2:
        raise click.UsageError("a matrix needs two datasets or more")
    if options["resume"] and out is None:
        raise click.UsageError("--resume goes on with the run in a folder: give --out DIR")
    check_files(options)
    settings, confidence = settings_of(options), confidence_of(options)
    devices = check_device(settings.device, options["devices"])
    if out is not None:
        from otdd_flash.many.pairfolder import check_folder

        check_folder(out, resume=options["resume"])
    bars, tell = on_stderr(options)
    datasets = load_all(names, options, bars, tell)
    announce_long(list(combinations(datasets, 2)), settings, tell, 1 / len(devices))

    from otdd_flash.many.matrices import matrix_steps
    from otdd_flash.report import write_report
    from otdd_flash.tables import matrix_text

    steps = matrix_steps(
        datasets,
        settings,
        confidence=confidence,
        devices=options["devices"],
        out=out,
        resume=options["resume"],
    )
    found, warned = drive(steps, bars)
    try:
        if out is not None:
            _write(found, out)
        if options["report"] is not None:
            write_report(found, options["report"], *datasets)
    finally:
        # a full disk must not cost the result
        show(found, options["as_json"], matrix_text, warned)


def _write(found: MatrixResult, out: Path) -> None:
    """Write tables and pictures of a whole matrix."""
    import json

    from otdd_flash.files import written_whole
    from otdd_flash.findings_io import finding_json, matrix_csv
    from otdd_flash.pictures.maps import plot_map, plot_matrix, plot_tree
    from otdd_flash.results import save

    save(found, out / "matrix.npz")
    matrix_csv(found, out / "matrix.csv")
    with written_whole(out / "matrix.json") as file:
        file.write(json.dumps(finding_json(found), allow_nan=False).encode())
    plot_matrix(found, out / "heatmap.png")
    plot_map(found, out / "map.png")
    plot_tree(found, out / "tree.png")
