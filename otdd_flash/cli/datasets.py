"""``otdd datasets``: which datasets have a name, and where they lie."""

from __future__ import annotations

import json
from typing import Any

import click

from otdd_flash.cli.errors import debug_option
from otdd_flash.cli.options import json_option
from otdd_flash.cli.sources import SPECS, data_root_option

EPILOG = f"""\b
Examples:
  otdd datasets
  otdd datasets --json

{SPECS}"""


@click.command(epilog=EPILOG)
@data_root_option
@json_option
@debug_option
def datasets(data_root: str | None, as_json: bool) -> None:
    """List the datasets that have a name, and where their files are; nothing is downloaded."""
    from dataclasses import asdict

    from otdd_flash.datasets import known_sets, known_sklearn
    from otdd_flash.results import bytes_text
    from otdd_flash.tables import grid

    found = list(known_sets(data_root))
    if as_json:
        listed: dict[str, Any] = {
            "named": [asdict(known) for known in found],
            "sklearn": list(known_sklearn()),
        }
        click.echo(json.dumps(listed))
        return
    rows = [
        (
            known.name,
            known.split,
            bytes_text(known.size) if known.size else "-",
            known.licence or "",
            known.where,
        )
        for known in found
    ]
    click.echo(grid(("dataset", "split", "size", "licence", "where"), rows))
    click.echo(f"\nsklearn:NAME with NAME one of {', '.join(known_sklearn())}")
