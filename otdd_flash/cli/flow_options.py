"""Options of flows: what moves and how, and the folder of a run."""

from __future__ import annotations

from pathlib import Path

import click

from otdd_flash.cli.options import file_option, group, report_option, talk_options
from otdd_flash.cli.params import Box

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
    file_option("--animate", "FILE.gif", "Write a film of the kept steps"),
    report_option,
    talk_options,
)
