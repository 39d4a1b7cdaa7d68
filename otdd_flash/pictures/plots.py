"""Pictures of results, drawn with matplotlib's objects: no pyplot, no global state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from otdd_flash.errors import DataError
from otdd_flash.pictures.figures import (
    array,
    check_kind,
    drawn,
    heat_map,
    power_of_1000,
    short,
    unit_text,
)
from otdd_flash.pictures.png import COST_MAP, MASS_MAP, SOURCE_COLOUR, TARGET_COLOUR
from otdd_flash.pictures.sheets import is_coloured, is_image, pair_sheet
from otdd_flash.types import DatasetSummary, LabelledDataset, OTDDResult

SIZE = (11.0, 7.8)  # inches
PAIRS = 10  # strongest class pairs shown
SAMPLES = 4  # images of each class of a pair
SCATTER = 800  # points of a dataset in the scatter


def plot_result(
    result: OTDDResult,
    path_or_figure: str | Path | Figure,
    src: LabelledDataset | None = None,  # None: no samples to show, as for a result from a file
    tgt: LabelledDataset | None = None,
) -> Figure:
    """Draw label cost, class mass and the strongest class pairs in one picture.

    Image-shaped data ((h, w), (c, h, w) or (h, w, c)) show samples of the strongest pairs, other
    data a plane of principal components and the pairs' share of mass. A path is written whole or
    not at all; a figure is drawn into and can be composed further.

    Raises:
        DataError: a result of another kind, datasets that the result is not of.
        OSError: the file cannot be written.
    """
    check_kind(result, OTDDResult)
    coloured = is_coloured(src) or is_coloured(tgt)
    return drawn(lambda figure: _draw(figure, result, src, tgt), path_or_figure, SIZE, coloured)


def _draw(
    figure: Figure, result: OTDDResult, src: LabelledDataset | None, tgt: LabelledDataset | None
) -> None:
    source, target = result.source, result.target
    state = "" if result.converged else ", NOT CONVERGED"
    figure.suptitle(
        f"{short(source.name, 40)} ({source.n:,}) to {short(target.name, 40)} ({target.n:,}): "
        f"distance {result.distance:.5g}, eps {result.epsilon:.3g}{state}",
        fontsize=13,
    )
    grid = figure.add_gridspec(2, 1, height_ratios=(5, 3.6))
    maps = grid[0].subgridspec(1, 2)
    cost, mass = array(result.label_cost), array(result.class_mass)
    axes = figure.add_subplot(maps[0])
    power = power_of_1000(cost)
    title = f"squared distance between class laws{unit_text(power)}"
    _class_map(axes, cost / 10.0**power, result, title, COST_MAP, "{:.3g}")
    axes = figure.add_subplot(maps[1])
    _class_map(axes, 100 * mass, result, "mass moved, % of all", MASS_MAP, "{:.1f}")
    pairs = strongest_pairs(mass)
    below = grid[1]
    if src is not None and tgt is not None and is_image(src) and is_image(tgt):
        _image_pairs(figure, below, result, src, tgt, pairs)
    elif src is not None and tgt is not None and src.dimension == tgt.dimension > 1:
        halves = below.subgridspec(1, 2)
        scatter(figure.add_subplot(halves[0]), result, src, tgt)
        _bars(figure.add_subplot(halves[1]), result, mass, pairs)
    else:
        _bars(figure.add_subplot(below), result, mass, pairs)


def strongest_pairs(
    mass: np.ndarray,  # (Vx, Vy) >= 0
    most: int = PAIRS,
) -> list[tuple[int, int]]:  # (source class, target class), most mass first
    """Return the class pairs that carry the most mass, leaving out 1 % of the largest and less."""
    order = np.argsort(-mass, axis=None, kind="stable")[:most]
    rows, columns = np.unravel_index(order, mass.shape)
    pairs = zip(rows.tolist(), columns.tolist(), strict=True)
    return [(row, column) for row, column in pairs if mass[row, column] > 0.01 * mass.max()]


def _class_map(
    axes: Axes, values: np.ndarray, result: OTDDResult, title: str, colours: str, number: str
) -> None:
    names = (result.source.class_names, result.target.class_names)
    heat_map(axes, values, names, title, colours, number)
    axes.set_ylabel(short(result.source.name, 30))
    axes.set_xlabel(short(result.target.name, 30))


def _image_pairs(
    figure: Figure,
    where: Any,
    result: OTDDResult,
    src: LabelledDataset,
    tgt: LabelledDataset,
    pairs: list[tuple[int, int]],
) -> None:
    """Draw samples of each pair: the source class above, the target class below."""
    columns = PAIRS // 2
    grid = where.subgridspec(2, columns)
    mass = array(result.class_mass)
    rows, others = class_ids_of(src, result.source), class_ids_of(tgt, result.target)
    for k, (row, column) in enumerate(pairs):
        axes = figure.add_subplot(grid[k // columns, k % columns])
        sheet = pair_sheet(src, rows[row], tgt, others[column], SAMPLES)
        axes.imshow(sheet, interpolation="nearest")
        axes.axhline(len(sheet) / 2 - 0.5, color="white", linewidth=2)
        title = f"{_pair(result, row, column)}\n{mass[row, column]:.1%} of the mass"
        axes.set_title(title, fontsize=8.5)
        axes.set_axis_off()


def class_ids_of(dataset: LabelledDataset, used: DatasetSummary) -> list[int]:
    """Return the dataset's ids of a result's classes, which lacks those without weight.

    Raises:
        DataError: the dataset is not the one that the result is of.
    """
    names = used.class_names
    if len(names) == dataset.classes:
        return list(range(len(names)))
    if not set(names) <= set(dataset.class_names):
        raise DataError(
            f"{dataset.name}: {dataset.classes} classes, the result has {len(names)} others; give "
            f"{used.name}, which the distance was computed of, or None"
        )
    return [dataset.class_names.index(name) for name in names]


def scatter(axes: Axes, result: OTDDResult, src: LabelledDataset, tgt: LabelledDataset) -> None:
    """Draw both datasets in the plane of their first two principal components."""
    mass = array(result.class_mass)
    ids = class_ids_of(src, result.source), class_ids_of(tgt, result.target)
    joined = [(ids[0][row], ids[1][to], mass[row, to]) for row, to in strongest_pairs(mass)]
    shown = [_thin(src), _thin(tgt)]
    both = np.concatenate([points for points, _ in shown])
    centre = both.mean(axis=0)
    _, _, directions = np.linalg.svd(both - centre, full_matrices=False)
    means = []
    for (points, labels), data, colour, marker in zip(
        shown, (src, tgt), (SOURCE_COLOUR, TARGET_COLOUR), ("o", "x"), strict=True
    ):
        plane = (points - centre) @ directions[:2].T
        name = short(data.name, 24)
        axes.scatter(
            plane[:, 0],
            plane[:, 1],
            s=9,
            c=colour,
            marker=marker,
            alpha=0.5,
            linewidths=0.8,
            label=name,
        )
        means.append({k: plane[labels == k].mean(axis=0) for k in np.unique(labels).tolist()})
    most = max((share for _, _, share in joined), default=1.0)
    for row, column, share in joined:
        if row in means[0] and column in means[1]:
            ends = np.stack([means[0][row], means[1][column]])
            width = 0.8 + 4 * share / most
            axes.plot(*ends.T, color="black", linewidth=width, alpha=0.7, solid_capstyle="round")
    axes.set_title("first two principal components, strongest pairs joined", fontsize=11)
    axes.tick_params(labelsize=8)
    axes.legend(fontsize=9, loc="best")


def _thin(dataset: LabelledDataset) -> tuple[np.ndarray, np.ndarray]:
    step = -(-len(dataset) // SCATTER)
    return array(dataset.points[::step]), dataset.labels[::step].cpu().numpy()


def _bars(axes: Axes, result: OTDDResult, mass: np.ndarray, pairs: list[tuple[int, int]]) -> None:
    """Draw the share of mass of the strongest pairs."""
    values = [100 * mass[row, column] for row, column in pairs]
    names = [_pair(result, row, column) for row, column in pairs]
    bars = axes.barh(range(len(pairs)), values, color=SOURCE_COLOUR)
    axes.bar_label(bars, fmt="%.1f", padding=3, fontsize=8)
    axes.set_yticks(range(len(pairs)), labels=names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("% of all mass")
    axes.set_title("strongest class pairs", fontsize=11)


def _pair(result: OTDDResult, row: int, column: int) -> str:
    names = result.source.class_names[row], result.target.class_names[column]
    return f"{short(names[0], 16)} → {short(names[1], 16)}"
