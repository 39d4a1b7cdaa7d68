"""Options that commands share, in groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from otdd_flash.cli.params import Device, MemorySize
from otdd_flash.files import check_writable

if TYPE_CHECKING:
    import torch

    from otdd_flash.settings import OTDDSettings

Command = TypeVar("Command", bound=Callable[..., Any])
# endings of the files that commands write
SUFFIXES = {
    "output": (".npz",),
    "plot": (".png", ".pdf", ".svg"),
    "report": (".html", ".htm"),
    "animate": (".gif",),
}


def group(*options: Callable[[Any], Any]) -> Callable[[Command], Command]:
    """Return a decorator that adds options; help shows them in the order given."""

    def add(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return add


def file_option(
    name: str, metavar: str, text: str, required: bool = False
) -> Callable[[Command], Command]:
    """Return an option for a file that is replaced."""
    return click.option(
        name,
        type=click.Path(path_type=Path),
        required=required,
        metavar=metavar,
        help=f"{text}; replaces the file.",
    )


def distance_group(
    tol: float,
    label_distance: str | None,  # None: the command chooses
) -> Callable[[Command], Command]:
    """Return the options of what is computed, and how exactly, with a command's defaults."""
    return group(
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
            default=tol,
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
            default=label_distance,
            # click puts a text in brackets
            show_default=True if label_distance else "gaussian; diagonal with --mode augmented",
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


distance_options = distance_group(1e-3, "gaussian")

# where it is computed
device_option = click.option(
    "--device",
    type=Device(),
    default="auto",
    show_default=True,
    metavar="auto|cpu|cuda|cuda:N",
    help="Where to compute; auto takes a GPU that runs the kernels, else the CPU.",
)
machine_options = group(
    device_option,
    click.option(
        "--memory-budget",
        type=MemorySize(),
        metavar="SIZE",
        help="Memory to use, such as 800MB or 1GiB.  [default: half of what is free]",
    ),
)

# what is shown and written
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON object instead of text."
)
talk_options = group(
    json_option,
    click.option("--quiet", is_flag=True, help="No progress and no announcements; warnings stay."),
)
report_option = file_option(
    "--report", "FILE.html", "Write one web page that holds everything and needs nothing else"
)


def check_files(
    options: dict[str, Any],
    **other: tuple[str, ...],  # endings that a command takes beside or instead of the usual ones
) -> None:
    """Raise SettingsError now if a file that is asked for could not be written later."""
    out = options.get("out")
    for name, suffixes in {**SUFFIXES, **other}.items():
        path = options.get(name)
        if path is None:
            continue
        # the run's own folder is made later
        if out is not None and path.parent.resolve() == out.resolve() and not out.exists():
            path = out.parent / path.name
        check_writable(path, f"--{name}", suffixes)


def settings_of(options: dict[str, Any]) -> OTDDSettings:
    """Return the settings that the options of a distance and of the machine give."""
    from otdd_flash.settings import OTDDSettings

    names = (
        "epsilon tol max_passes lambda_x lambda_y label_distance normalize convention "
        "memory_budget device"
    )
    kept = {name: options[name] for name in names.split()}
    return OTDDSettings(**kept, debias=not options["no_debias"])


def check_device(device: str, devices: str | tuple[str, ...] | None = None) -> list[torch.device]:
    """Return what computes; raise DeviceError now if it is not there."""
    from otdd_flash.ops import resolve_devices

    return resolve_devices(devices, device)
