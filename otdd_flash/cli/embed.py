"""``otdd embed``: a dataset's features as a file that every command takes."""

from __future__ import annotations

import json
from typing import Any

import click

from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.loading import load_all, on_stderr
from otdd_flash.cli.options import check_device, device_option, file_option, talk_options
from otdd_flash.cli.sources import SPECS, dataset_options
from otdd_flash.files import check_writable

EPILOG = f"""\b
Examples:
  otdd embed photos/ --encoder torchvision:resnet18 --output photos.safetensors
  otdd embed reviews.csv --encoder sentence:all-MiniLM-L6-v2 --output reviews.safetensors
  otdd embed mnist-mini --encoder mymodule:features --output mine.safetensors
  otdd compute mine.safetensors other.safetensors

\b
mymodule.py holds def features(batch): it gets a tensor (k, ...) of samples, or a list of k
texts, and returns k rows of features.

{SPECS}"""


@click.command(epilog=EPILOG)
@click.argument("spec", metavar="DATASET")
@dataset_options
@device_option
@file_option("--output", "FILE.safetensors", "Write features, labels and names", required=True)
@talk_options
@debug_option
def embed(**options: Any) -> None:
    """Write the features of DATASET, as an encoder returns them, to a file.

    What encoders returned is kept in the user's cache too (`otdd cache`): commands that are given
    the same dataset and --encoder find it there.
    """
    output = check_writable(options["output"], "--output", (".safetensors",))
    check_device(options["device"])
    bars, tell = on_stderr(options)
    (dataset,) = load_all([options["spec"]], options, bars, tell)

    from otdd_flash.embed.written import write_dataset
    from otdd_flash.results import bytes_text

    write_dataset(dataset, output)
    size = output.stat().st_size
    found = {
        "output": str(output),
        "bytes": size,
        "samples": len(dataset),
        "features": dataset.dimension,
        "classes": dataset.classes,
        "dtype": str(dataset.points.dtype).removeprefix("torch."),
    }
    click.echo(
        json.dumps(found)
        if options["as_json"]
        else f"{output}: {len(dataset):,} samples of {dataset.dimension:,} features "
        f"({found['dtype']}) in {dataset.classes:,} classes, {bytes_text(size)}"
    )
