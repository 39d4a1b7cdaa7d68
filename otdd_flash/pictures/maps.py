"""Pictures of many datasets: matrices, maps, trees, rankings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from otdd_flash.many.findings import MatrixResult, RankedSource, Ranking
from otdd_flash.many.matrices import linkage, positions
from otdd_flash.pictures.figures import (
    array,
    check_kind,
    drawn,
    faint_grid,
    heat_map,
    name_ticks,
    power_of_1000,
    short,
    unit_text,
)
from otdd_flash.pictures.naming import NAME, name_points
from otdd_flash.pictures.png import COST_MAP, SOURCE_COLOUR, TARGET_COLOUR


def plot_matrix(result: MatrixResult, path_or_figure: str | Path | Figure) -> Figure:
    """Draw the distances as a heat map, datasets in the order of their tree.

    Raises:
        DataError: a result of another kind.
        OSError: the file cannot be written.
    """
    check_kind(result, MatrixResult)
    side = 3.6 + 0.42 * min(len(result.names), 25)
    return drawn(lambda figure: _matrix(figure, result), path_or_figure, (side + 1.2, side))


def _matrix(figure: Figure, result: MatrixResult) -> None:
    order = _leaves(result)
    names = [result.names[k] for k in order]
    values = array(result.distance)[np.ix_(order, order)]
    power = power_of_1000(values)
    axes = figure.add_subplot()
    title = f"dataset distance{unit_text(power)}, eps {result.epsilon:.3g}{_state(result)}"
    heat_map(axes, values / 10.0**power, (names, names), title, COST_MAP, "{:.3g}")
    name_ticks(axes.xaxis, names, rotation=45, width=NAME)
    name_ticks(axes.yaxis, names, width=NAME)


def _leaves(result: MatrixResult) -> list[int]:
    """Return the datasets in the order of their tree."""
    from scipy.cluster import hierarchy

    return hierarchy.leaves_list(linkage(result)).tolist()


def _state(result: MatrixResult) -> str:
    return "" if bool(result.converged.all()) else ", NOT CONVERGED"


def plot_map(result: MatrixResult, path_or_figure: str | Path | Figure) -> Figure:
    """Draw the datasets in a plane in which they lie about as far apart as they are.

    Raises:
        DataError: a result of another kind.
        OSError: the file cannot be written.
    """
    check_kind(result, MatrixResult)
    return drawn(lambda figure: _map(figure, result), path_or_figure, (8.0, 6.4))


def _map(figure: Figure, result: MatrixResult) -> None:
    place, stress = positions(result)
    axes = figure.add_subplot()
    axes.scatter(place[:, 0], place[:, 1], s=36, color=SOURCE_COLOUR)
    axes.set_aspect("equal", adjustable="datalim")
    axes.margins(0.22)
    faint_grid(axes)
    axes.tick_params(labelsize=8)
    title = f"map of {len(result.names)} datasets by their distances (MDS, stress {stress:.2f})"
    axes.set_title(title + _state(result), fontsize=11)
    axes.set_xlabel("in units of the distance", fontsize=9)
    name_points(axes, place, result.names)


def plot_tree(result: MatrixResult, path_or_figure: str | Path | Figure) -> Figure:
    """Draw the hierarchy of the datasets: a joint lies at the mean distance of what it joins.

    Raises:
        DataError: a result of another kind.
        OSError: the file cannot be written.
    """
    check_kind(result, MatrixResult)
    height = 1.6 + 0.3 * len(result.names)
    return drawn(lambda figure: _tree(figure, result), path_or_figure, (8.0, height))


def _tree(figure: Figure, result: MatrixResult) -> None:
    from scipy.cluster import hierarchy

    drawing = hierarchy.dendrogram(linkage(result), no_plot=True)
    axes = figure.add_subplot()
    for heights, places in zip(drawing["dcoord"], drawing["icoord"], strict=True):
        axes.plot(heights, places, color=SOURCE_COLOUR, linewidth=1.6)
    order = _leaves(result)
    axes.set_yticks(
        [10 * k + 5 for k in range(len(order))],
        labels=[short(result.names[k], NAME) for k in order],
        fontsize=9,
    )
    axes.set_ylim(0, 10 * len(order))
    axes.set_xlim(left=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel("distance", fontsize=9)
    axes.set_title(f"datasets joined by their mean distance{_state(result)}", fontsize=11)


def plot_ranking(result: Ranking, path_or_figure: str | Path | Figure) -> Figure:
    """Draw the distances of the sources, against what was measured after transfer where known.

    Raises:
        DataError: a result of another kind.
        OSError: the file cannot be written.
    """
    check_kind(result, Ranking)
    if any(source.score is not None for source in result.sources):
        return drawn(lambda figure: _scored(figure, result), path_or_figure, (7.6, 5.6))
    height = 1.8 + 0.34 * len(result.sources)
    return drawn(lambda figure: _ranked(figure, result), path_or_figure, (8.0, height))


def _errors(sources: Sequence[RankedSource]) -> tuple[np.ndarray, str]:
    """Return what reaches below and above each distance (2, K), and what it is."""
    ends = []
    for source in sources:
        value = source.value
        low, high = value.distance_interval or value.distance_bounds
        ends.append((max(value.distance - low, 0.0), max(high - value.distance, 0.0)))
    interval = sources[0].value.interval
    kind = "bounds" if interval is None else f"{interval.level:.0%} of resamples"
    return np.array(ends).T, kind


def _ranked(figure: Figure, result: Ranking) -> None:
    axes = figure.add_subplot()
    distances = [s.value.distance for s in result.sources]
    ends, kind = _errors(result.sources)
    rows = range(len(distances))
    axes.barh(rows, distances, color=SOURCE_COLOUR, height=0.62)
    axes.errorbar(distances, rows, xerr=ends, fmt="none", ecolor="black", capsize=3, linewidth=1)
    for row, distance, reach in zip(rows, distances, ends[1], strict=True):
        axes.annotate(
            f"{distance:.4g}",
            (distance + reach, row),
            xytext=(5, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    axes.set_yticks(rows, labels=[short(s.name, NAME) for s in result.sources], fontsize=9)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(axis="x", labelsize=8)
    axes.set_xlabel(f"distance to {short(result.target.name, NAME)} ({kind})", fontsize=9)


def _scored(figure: Figure, result: Ranking) -> None:
    sources = [s for s in result.sources if s.score is not None]
    x = np.array([s.value.distance for s in sources])
    y = np.array([s.score for s in sources], dtype=float)
    ends, kind = _errors(sources)
    axes = figure.add_subplot()
    axes.errorbar(
        x, y, xerr=ends, fmt="o", color=SOURCE_COLOUR, ecolor="0.6", capsize=2, markersize=6
    )
    # what names are not to cover: the bars, and the line
    lines = [
        np.linspace(np.array([a - low, b]), np.array([a + high, b]))
        for a, b, (low, high) in zip(x, y, ends.T, strict=True)
    ]
    title = f"transfer to {short(result.target.name, NAME)}"
    if result.pearson is not None and result.spearman is not None:
        slope, at = np.polyfit(x, y, 1)
        span = np.linspace(x.min(), x.max(), 200)
        axes.plot(span, slope * span + at, color=TARGET_COLOUR, linewidth=1.4, zorder=1)
        lines.append(np.stack([span, slope * span + at], axis=1))
        title += (
            f": Pearson {result.pearson[0]:.2f} (p = {result.pearson[1]:.2g}), "
            f"Spearman {result.spearman[0]:.2f} (p = {result.spearman[1]:.2g})"
        )
    axes.set_title(title, fontsize=11)
    axes.set_xlabel(f"distance ({kind})", fontsize=9)
    axes.set_ylabel("score after transfer", fontsize=9)
    axes.margins(0.16)
    axes.tick_params(labelsize=8)
    faint_grid(axes)
    names = [s.name for s in sources]
    name_points(axes, np.stack([x, y], axis=1), names, np.concatenate(lines))
