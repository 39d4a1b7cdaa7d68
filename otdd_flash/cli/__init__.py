"""The ``otdd`` command; torch is imported by the commands, not by ``otdd --help``."""

from __future__ import annotations

import click

from otdd_flash.cli.bench import bench
from otdd_flash.cli.cache import cache
from otdd_flash.cli.compute import compute
from otdd_flash.cli.datasets import datasets
from otdd_flash.cli.embed import embed
from otdd_flash.cli.errors import Commands, debug_option
from otdd_flash.cli.explain import explain
from otdd_flash.cli.flow import flow
from otdd_flash.cli.info import info
from otdd_flash.cli.matrix import matrix
from otdd_flash.cli.rank import rank
from otdd_flash.cli.value import value


def _show_version(context: click.Context, _: click.Parameter, wanted: bool) -> None:
    if not wanted or context.resilient_parsing:
        return
    from importlib.metadata import PackageNotFoundError, version

    try:
        number = version("otdd-flash")
    except PackageNotFoundError:
        number = "(not installed)"
    click.echo(f"otdd-flash {number}")
    context.exit()


@click.group("otdd", cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@debug_option
def main() -> None:
    """Optimal transport distances between labelled datasets, with certified values.

    Bad input ends in one line on stderr and exit code 2, Ctrl-C in exit code 130.
    """


main.add_command(compute)
main.add_command(matrix)
main.add_command(explain)
main.add_command(value)
main.add_command(rank)
main.add_command(flow)
main.add_command(datasets)
main.add_command(info)
main.add_command(embed)
main.add_command(cache)
main.add_command(bench)
