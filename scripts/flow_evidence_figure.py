"""Draw what `flow_evidence.py` found: ``flow_evidence_figure.py A.json B.json --output OUT.png``.

Above, the judge's accuracy on the moving samples by step. Below, test accuracies of networks
trained on each set; bars show the mean over seeds, lines the least and the largest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from otdd_flash.files import written_whole
from otdd_flash.pictures.png import SOURCE_COLOUR, TARGET_COLOUR, write_png

DPI = 80
# rows of `trained_on` in the order of the bars; those of the source and the target do not flow
BARS = {
    "source with its own labels": "source, its own labels",
    "source with the same labels": "source, relabelled",
    "flowed set": "flowed set",
    "a few real alone": "10 real a class",
    "flowed set, then a few real": "flowed, then 10 real a class",
    "target samples that the flow saw": "target samples the flow saw",
}
COLOURS = {"attached": SOURCE_COLOUR, "features": "#8c96a0", "augmented": TARGET_COLOUR}


def labels_of(mode: str) -> str:
    """Return which reading of the labels a mode is judged by."""
    return "read" if mode == "augmented" else "by_mass"


def draw_steps(axes: Axes, name: str, pair: dict[str, Any]) -> None:
    """Draw the judge's accuracy by step, a line a mode."""
    for mode, found in pair["modes"].items():
        rows = found["judge_accuracy_by_step"][labels_of(mode)]
        steps = [int(step) for step in rows]
        label = f"{mode} (S falls {found['fall']:.0%})"
        axes.plot(steps, list(rows.values()), "o-", color=COLOURS[mode], label=label, ms=3)
    axes.axhline(pair["judge_test_accuracy"], color="#555", lw=0.8, ls=":", label="real test data")
    axes.set(title=f"{name}, {pair['samples'][0]:,} samples", xlabel="step", ylim=(0, 1))
    axes.set_ylabel("judged as meant")
    axes.legend(fontsize=7, frameon=False, loc="lower right")


def draw_trainings(axes: Axes, pair: dict[str, Any]) -> None:
    """Draw test accuracies of networks, a group a set and a bar a mode."""
    first = next(iter(pair["modes"].values()))["trained_on"]
    rows = [row for row in BARS if row in first]
    height = 0.8 / len(pair["modes"])
    for k, (mode, found) in enumerate(pair["modes"].items()):
        values = [found["trained_on"][row] for row in rows]
        means = [value["mean"] for value in values]
        below = [v["mean"] - v["least"] for v in values]
        above = [v["largest"] - v["mean"] for v in values]
        places = [r + k * height - 0.4 + height / 2 for r in range(len(rows))]
        axes.barh(places, means, height * 0.9, color=COLOURS[mode])
        axes.errorbar(means, places, xerr=[below, above], fmt="none", ecolor="k", lw=0.8)
    axes.set_yticks(range(len(rows)), [BARS[row] for row in rows], fontsize=7)
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), xlabel="accuracy on the target's test set")


@click.command(help=__doc__)
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--output", required=True, type=click.Path(path_type=Path), help="PNG to write.")
def main(files: tuple[Path, ...], output: Path) -> None:
    """Draw all pairs of the files, one a column."""
    pairs: dict[str, Any] = {}
    for file in files:
        pairs |= json.loads(file.read_text())["pairs"]
    figure = Figure(figsize=(5.2 * len(pairs), 6.4), layout="constrained")
    axes = figure.subplots(2, len(pairs), squeeze=False)
    for k, (name, pair) in enumerate(pairs.items()):
        draw_steps(axes[0, k], name, pair)
        draw_trainings(axes[1, k], pair)
    FigureCanvasAgg(figure)
    with written_whole(output) as file:
        write_png(figure, file, DPI, True)


if __name__ == "__main__":
    main()
