"""Options that commands share, in groups."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from otdd_flash.cli.params import Box, Device, MemorySize
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
            show_default=label_distance or "gaussian; diagonal with --mode augmented",
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

# what moves and how
flow_options = group(
    click.option(
        "--mode",
        type=click.Choice(["features", "attached", "tied", "augmented"]),
        default="attached",
        show_default=True,
        help="Samples alone; samples with their class laws; whole classes by affine maps; "
        "samples with a class law each, from which labels are read again.",
    ),
    click.option(
        "--steps",
        type=click.IntRange(min=0),
        default=100,
        show_default=True,
        metavar="N",
        help="Moves; with --resume also more than the run was begun with.",
    ),
    click.option(
        "--step-size",
        type=click.FloatRange(min=0, min_open=True),
        default=0.02,
        show_default=True,
        metavar="X",
        help="Factor of the gradient, 0.5 being a jump onto the barycentric map; with adam the "
        "length of a coordinate's move.",
    ),
    click.option(
        "--optimizer",
        type=click.Choice(["gradient", "sgd", "adam"]),
        default="gradient",
        show_default=True,
        help="How points follow the gradient.",
    ),
    click.option(
        "--momentum",
        type=click.FloatRange(min=0, max=1, max_open=True),
        metavar="X",
        help="Of sgd.  [default: 0.9]",
    ),
    click.option(
        "--box",
        type=Box(),
        default="auto",
        show_default=True,
        metavar="auto|none|LOW,HIGH",
        help="Keep points between two values; auto: 0,255 where both datasets hold 8-bit integers.",
    ),
    click.option(
        "--slices",
        type=click.IntRange(1, 3),
        metavar="N",
        help="Bytes of a moving coordinate that the cost reads on a GPU.  [default: 1 for 8-bit "
        "data, else 2]",
    ),
    click.option(
        "--self-every",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Renew the self term's part of the gradient every N steps.",
    ),
    click.option(
        "--laws-every",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Renew class laws and label costs every N steps (attached, tied).",
    ),
    click.option(
        "--relabel",
        type=click.Choice(["nearest", "kmeans"]),
        default="nearest",
        show_default=True,
        help="How augmented reads labels: the nearest class law of the target, or clusters.",
    ),
    click.option(
        "--relabel-every",
        type=click.IntRange(min=1),
        metavar="N",
        help="Steps between two readings.  [default: at the end only]",
    ),
)

report_option = click.option(
    "--report",
    type=click.Path(path_type=Path),
    metavar="FILE.html",
    help="Write one web page that holds everything and needs nothing else; replaces the file.",
)

# the folder of a run
run_options = group(
    click.option(
        "--out",
        type=click.Path(path_type=Path),
        required=True,
        metavar="DIR",
        help="Folder for everything that is written; made if it is not there.",
    ),
    click.option(
        "--every",
        type=click.IntRange(min=1),
        default=10,
        show_default=True,
        metavar="N",
        help="Keep every N-th step's points, and draw it; the first and the last always.",
    ),
    click.option(
        "--checkpoint-every",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="Steps between two checkpoints: what an interrupted run repeats at most.",
    ),
    click.option("--resume", is_flag=True, help="Go on with the run in DIR, to the same bits."),
    click.option("--overwrite", is_flag=True, help="Replace the run in DIR."),
    click.option(
        "--animate",
        type=click.Path(path_type=Path),
        metavar="FILE.gif",
        help="Write a film of the kept steps; replaces the file.",
    ),
    report_option,
    click.option("--json", "as_json", is_flag=True, help="Print the summary as one JSON object."),
    click.option("--quiet", is_flag=True, help="No progress and no announcements; warnings stay."),
)

# what is shown and written
output_options = group(
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
    report_option,
    click.option("--quiet", is_flag=True, help="No progress and no announcements; warnings stay."),
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
