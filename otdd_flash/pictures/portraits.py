"""Pictures of explanations and values: where classes go, what S is made of, which samples pay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from otdd_flash.many.findings import Explanation, Values, check_samples, extremes
from otdd_flash.pictures.figures import (
    array,
    check_kind,
    drawn,
    heat_map,
    name_ticks,
    power_of_1000,
    short,
    unit_text,
)
from otdd_flash.pictures.naming import NAME
from otdd_flash.pictures.png import MASS_MAP, SOURCE_COLOUR, TARGET_COLOUR
from otdd_flash.pictures.sheets import is_coloured, is_image, sample_pictures, stacked
from otdd_flash.types import LabelledDataset

SHOWN = 8  # samples or pairs in a row of pictures
WORST = 12  # samples in a row of those of the highest values
SPLIT_COLOURS = {"features": SOURCE_COLOUR, "labels": TARGET_COLOUR, "entropy": "#999999"}


def plot_explanation(
    result: Explanation,
    path_or_figure: str | Path | Figure,
    src: LabelledDataset | None = None,  # None: no samples to show
    tgt: LabelledDataset | None = None,
) -> Figure:
    """Draw where classes go, what makes S, and which samples pay and are foreign.

    Image-shaped data show the sample pairs that pay most, and the nearest and most foreign samples
    of either side.

    Raises:
        DataError: a result of another kind, datasets that the explanation is not of.
        OSError: the file cannot be written.
    """
    check_kind(result, Explanation)
    check_samples(src, result.source)
    check_samples(tgt, result.target)
    shown = None
    if src is not None and tgt is not None and is_image(src) and is_image(tgt):
        shown = (src, tgt)
    return drawn(
        lambda figure: _draw(figure, result, shown),
        path_or_figure,
        (11.0, 4.8 if shown is None else 6.6),
        is_coloured(src) or is_coloured(tgt),
    )


def _draw(
    figure: Figure, result: Explanation, shown: tuple[LabelledDataset, LabelledDataset] | None
) -> None:
    state = "" if result.value.converged else ", NOT CONVERGED"
    figure.suptitle(
        f"{short(result.source.name, 40)} to {short(result.target.name, 40)}: distance "
        f"{result.value.distance:.5g}, eps {result.epsilon:.3g}{state}",
        fontsize=13,
    )
    ratios = (1,) if shown is None else (4.6, 1.5)
    grid = figure.add_gridspec(len(ratios), 1, height_ratios=ratios)
    above = grid[0].subgridspec(1, 2)
    axes = figure.add_subplot(above[0])
    names = [
        f"{short(name, 14)} ({bits:.1f})"
        for name, bits in zip(result.source.class_names, result.row_entropy.tolist(), strict=True)
    ]
    title = "mass moved, % of all (entropy of the row in bits)"
    values = 100 * array(result.class_mass)
    heat_map(axes, values, (names, result.target.class_names), title, MASS_MAP, "{:.1f}")
    name_ticks(axes.yaxis, names, width=NAME)
    _splits(figure.add_subplot(above[1]), result)
    if shown is not None:
        _samples(figure, grid[1].subgridspec(1, 3), result, *shown)


def _splits(axes: Axes, result: Explanation) -> None:
    """Draw what features, labels and entropy contribute to S and to its terms."""
    rows = (
        ("squared distance", result.split, 1.0),
        ("source to target", result.cross, 1.0),
        ("less half of\nsource to itself", result.source_self, -0.5),
        ("less half of\ntarget to itself", result.target_self, -0.5),
    )
    for k, (_, split, scale) in enumerate(rows):
        ends = {True: 0.0, False: 0.0}  # of the positive parts, of the negative ones
        for part, colour in SPLIT_COLOURS.items():
            value = scale * getattr(split, part)
            label = part if k == 0 else None
            axes.barh(k, value, left=ends[value >= 0], color=colour, height=0.6, label=label)
            ends[value >= 0] += value
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(range(4), labels=[name for name, _, _ in rows], fontsize=9)
    axes.invert_yaxis()
    axes.tick_params(axis="x", labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title("what the squared distance is made of", fontsize=11)
    axes.legend(fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.08), ncols=3, frameon=False)


def _samples(
    figure: Figure, grid: Any, result: Explanation, src: LabelledDataset, tgt: LabelledDataset
) -> None:
    """Draw the sample pairs that pay most, and the nearest and most foreign samples."""
    pairs = result.pairs[:SHOWN]
    if pairs:
        upper = sample_pictures(src, torch.tensor([pair.source for pair in pairs]))
        lower = sample_pictures(tgt, torch.tensor([pair.target for pair in pairs]))
        axes = figure.add_subplot(grid[0])
        _sheet(axes, stacked(upper, lower), "pairs that pay most:\nsource above target")
    sides = (
        (result.source.name, src, result.source_foreign),
        (result.target.name, tgt, result.target_foreign),
    )
    for k, (name, data, score) in enumerate(sides):
        near, far = extremes(score, SHOWN)
        sheet = stacked(sample_pictures(data, near), sample_pictures(data, far))
        axes = figure.add_subplot(grid[k + 1])
        _sheet(axes, sheet, f"{short(name, NAME)}:\nnearest above most foreign samples")


def _sheet(axes: Axes, sheet: np.ndarray, title: str) -> None:
    axes.imshow(sheet, interpolation="nearest")
    axes.axhline(len(sheet) / 2 - 0.5, color="white", linewidth=2)
    axes.set_title(title, fontsize=9.5)
    axes.set_axis_off()


def plot_values(
    result: Values,
    path_or_figure: str | Path | Figure,
    src: LabelledDataset | None = None,  # None: no samples to show
) -> Figure:
    """Draw how values are spread, and of images the most foreign and those whose label fits least.

    Raises:
        DataError: a result of another kind, a dataset that the values are not of.
        OSError: the file cannot be written.
    """
    check_kind(result, Values)
    check_samples(src, result.source)
    shown = src if src is not None and is_image(src) else None
    size = (11.0, 3.6 if shown is None else 6.4)
    return drawn(
        lambda figure: _values(figure, result, shown), path_or_figure, size, is_coloured(shown)
    )


def _values(figure: Figure, result: Values, src: LabelledDataset | None) -> None:
    state = "" if result.converged else ", NOT CONVERGED"
    names = short(result.source.name, 40), short(result.target.name, 40)
    figure.suptitle(f"{names[0]}, valued by its distance to {names[1]}{state}", fontsize=13)
    scores = (
        (result.value, SOURCE_COLOUR, "value, higher is more foreign", "most foreign"),
        (result.label, TARGET_COLOUR, "part of the label, higher fits less", "label fits least"),
    )
    ratios = (1.0,) if src is None else (3.0, 1.1, 1.1)
    grid = figure.add_gridspec(len(ratios), 2, height_ratios=ratios)
    for k, (score, colour, title, worst) in enumerate(scores):
        _spread(figure.add_subplot(grid[0, k]), array(score[~score.isnan()]), colour, title)
        if src is not None:
            _worst(figure, grid[k + 1, :].subgridspec(1, WORST), result, src, score, worst)


def _spread(axes: Axes, values: np.ndarray, colour: str, title: str) -> None:
    power = power_of_1000(values)
    axes.hist(values / 10.0**power, bins=60, color=colour)
    axes.set_yscale("log")
    axes.set_title(title + unit_text(power), fontsize=11)
    axes.set_ylabel("samples", fontsize=9)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)


def _worst(
    figure: Figure, cells: Any, result: Values, src: LabelledDataset, score: Tensor, title: str
) -> None:
    """Draw the samples of the highest scores in a row, each with its class."""
    rows = extremes(score, WORST)[1]
    pictures = sample_pictures(src, rows)
    for k, (row, picture) in enumerate(zip(rows.tolist(), pictures, strict=True)):
        axes = figure.add_subplot(cells[k])
        axes.imshow(picture, interpolation="nearest")
        axes.set(xticks=[], yticks=[])
        name = result.source.class_names[int(result.labels[row])]
        axes.set_title(short(name, 11), fontsize=8.5)
        if k == 0:
            axes.set_ylabel(title, fontsize=8.5)
