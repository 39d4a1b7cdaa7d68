"""``otdd cache``: what encoders returned, kept for the next command."""

from __future__ import annotations

import json
import time

import click

from otdd_flash.cli.errors import Commands, debug_option
from otdd_flash.cli.options import json_option


@click.group(cls=Commands)
@debug_option
def cache() -> None:
    """Show or empty the cache of embeddings."""


@cache.command("list")
@json_option
@debug_option
def list_(as_json: bool) -> None:
    """List the embeddings in the cache, those not used for longest first."""
    from otdd_flash.embed.cache import LIMIT, cache_folder, cached
    from otdd_flash.results import bytes_text
    from otdd_flash.tables import grid

    entries, folder = cached(), cache_folder()
    total = sum(entry.size for entry in entries)
    if as_json:
        shown = [
            {
                "file": entry.path.name,
                "bytes": entry.size,
                "used": entry.used,
                **{key: entry.about.get(key) for key in ("encoder", "dataset", "shape", "made")},
            }
            for entry in entries
        ]
        about = {"folder": str(folder), "bytes": total, "limit": LIMIT, "embeddings": shown}
        click.echo(json.dumps(about))
        return
    if entries:
        body = [
            (
                str(entry.about.get("dataset", "(damaged)")),
                str(entry.about.get("encoder", "")),
                " x ".join(f"{side:,}" for side in entry.about.get("shape", ())),
                bytes_text(entry.size),
                time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.used)),
            )
            for entry in entries
        ]
        click.echo(grid(("dataset", "encoder", "shape", "size", "last used"), body) + "\n")
    click.echo(
        f"{len(entries):,} embeddings, {bytes_text(total)} of at most {bytes_text(LIMIT)}, "
        f"in {folder}"
    )


@cache.command()
@debug_option
def clear() -> None:
    """Remove all embeddings from the cache; datasets and models stay where they are."""
    from otdd_flash.embed.cache import clear_cache
    from otdd_flash.results import bytes_text

    count, size = clear_cache()
    click.echo(f"removed {count:,} embeddings, {bytes_text(size)}")
