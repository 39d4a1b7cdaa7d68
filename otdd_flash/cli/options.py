"""Options that commands share, in groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from otdd_flash.cli.params import Device, MemorySize
from otdd_flash.files import check_writable

if TYPE_CHECKING:
    from otdd_flash.types import OTDDSettings

Command = TypeVar("Command", bound=Callable[..., Any])
PLOT_SUFFIXES = (".png", ".pdf", ".svg")


def _group(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds options; help shows them in the order given."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


# which samples of which datasets
dataset_options = _group(
    click.option(
        "--split",
        default="train",
        show_default=True,
        metavar="NAME",
        help="Split of both datasets, such as train or test.",
    ),
    click.option(
        "--max-samples",
        type=click.IntRange(min=1),
        metavar="N",
        help="Keep at most N samples a side, stratified by class.  [default: all]",
    ),
    click.option(
        "--seed",
        type=click.IntRange(min=0),
        default=0,
        show_default=True,
        metavar="N",
        help="Seed of the subsample; one dataset gives one sample on both sides.",
    ),
    click.option(
        "--data-root",
        type=click.Path(),
        metavar="DIR",
        help="Folder with dataset files, searched before OTDD_DATA and the caches.",
    ),
)

# what is computed, and how exactly
distance_options = _group(
    click.option(
        "--epsilon",
        default="1%",
        show_default=True,
        metavar="EPS",
        help="Entropic regularisation: 0.1 in units of the cost, 1% of its mean.",
    ),
    click.option(
        "--tol",
        type=click.FloatRange(min=0, min_open=True),
        default=1e-3,
        show_default=True,
        metavar="X",
        help="Stop at this L1 error of the marginals.",
    ),
    click.option(
        "--max-passes",
        type=click.IntRange(min=1),
        default=2000,
        show_default=True,
        metavar="N",
        help="Passes over the cost after which each solve gives up.",
    ),
    click.option(
        "--lambda-x",
        type=click.FloatRange(min=0),
        default=1.0,
        show_default=True,
        metavar="X",
        help="Weight of the feature cost ||x - y||^2.",
    ),
    click.option(
        "--lambda-y",
        type=click.FloatRange(min=0),
        default=1.0,
        show_default=True,
        metavar="X",
        help="Weight of the label cost W2[class of x, class of y].",
    ),
    click.option(
        "--label-distance",
        type=click.Choice(["gaussian", "diagonal", "means"]),
        default="gaussian",
        show_default=True,
        help="Laws of the classes: their covariances, variances or means.",
    ),
    click.option(
        "--normalize",
        type=click.Choice(["none", "unit", "mnist"]),
        default="none",
        show_default=True,
        help="Points as stored, uint8 divided by 255, or standardised with MNIST's numbers.",
    ),
    click.option(
        "--convention",
        type=click.Choice(["otdd", "microsoft"]),
        default="otdd",
        show_default=True,
        help="microsoft: half costs; squared is then the value of microsoft/otdd.",
    ),
    click.option("--no-debias", is_flag=True, help="Do not subtract the two self terms."),
)

# where it is computed
machine_options = _group(
    click.option(
        "--device",
        type=Device(),
        default="auto",
        show_default=True,
        metavar="auto|cpu|cuda|cuda:N",
        help="Where to compute; auto takes a GPU that runs the kernels, else the CPU.",
    ),
    click.option(
        "--memory-budget",
        type=MemorySize(),
        metavar="SIZE",
        help="Memory to use, such as 800MB or 1GiB.  [default: half of what is free]",
    ),
)

# what is shown and written
output_options = _group(
    click.option(
        "--json", "as_json", is_flag=True, help="Print one JSON object instead of the table."
    ),
    click.option(
        "--output",
        type=click.Path(path_type=Path),
        metavar="FILE.npz",
        help="Write the whole result, dual potentials included; replaces the file.",
    ),
    click.option(
        "--plot",
        type=click.Path(path_type=Path),
        metavar="FILE.png",
        help="Write a picture of the result (png, pdf or svg); replaces the file.",
    ),
    click.option("--quiet", is_flag=True, help="No progress and no announcements; warnings stay."),
)


def check_files(options: dict[str, Any]) -> None:
    """Raise SettingsError now if ``--output`` or ``--plot`` could not be written later."""
    if options["output"] is not None:
        check_writable(options["output"], "--output", (".npz",))
    if options["plot"] is not None:
        check_writable(options["plot"], "--plot", PLOT_SUFFIXES)


def settings_of(options: dict[str, Any]) -> OTDDSettings:
    """Return the settings that the options of a distance and of the machine give."""
    from otdd_flash.types import OTDDSettings

    names = (
        "epsilon tol max_passes lambda_x lambda_y label_distance normalize convention "
        "memory_budget device"
    )
    kept = {name: options[name] for name in names.split()}
    return OTDDSettings(**kept, debias=not options["no_debias"])


def check_device(device: str) -> None:
    """Raise DeviceError now if the device is not there."""
    from otdd_flash.ops import resolve_device

    resolve_device(device)
