"""Names beside points that cover neither points nor each other, where there is room."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from otdd_flash.pictures.figures import short

NAME = 24  # characters of a dataset's name
LABELLED = 40  # points that get their names
# where a name can go: towards x and y, in units of the gap to its point
AROUND = ((1, 0), (-1, 0), (0, 1), (0, -1), (1, 1), (-1, 1), (1, -1), (-1, -1))
GAPS = (6.0, 16.0, 30.0)  # in points; a name beyond the first is joined to its point


def name_points(
    axes: Axes,
    place: np.ndarray,  # (K, 2) in the axes' own units
    names: Sequence[str],
    lines: np.ndarray | None = None,  # (J, 2) places on lines that names should not cover either
) -> None:
    """Write names beside points; each in turn takes the place that covers least of what is there.

    The axes must have their limits: they are drawn once to know the sizes of the names.
    """
    figure = axes.figure
    assert isinstance(figure, Figure)
    kept = list(zip(place, names, strict=True))[:LABELLED]
    labels = [
        axes.annotate(
            short(name, NAME),
            xy=(float(x), float(y)),
            xytext=(0, 0),
            textcoords="offset points",
            fontsize=8.5,
            ha="center",
            va="center",
            # readable on lines
            path_effects=[withStroke(linewidth=3, foreground="white")],
        )
        for (x, y), name in kept
    ]
    figure.draw_without_rendering()
    scale = figure.dpi / 72
    points = axes.transData.transform(place)
    lined = points[:0] if lines is None else axes.transData.transform(lines)
    frame = np.asarray(axes.get_window_extent().extents)
    taken: list[np.ndarray] = []
    for label, point in zip(labels, points, strict=False):
        extent = label.get_window_extent()
        size = np.array([extent.width, extent.height])
        options = [
            (gap, np.array(way) * (size / 2 + gap * scale)) for gap in GAPS for way in AROUND
        ]
        covered = [
            _covered(_box(point + move, size), (points, lined), taken, frame) + 0.01 * gap
            for gap, move in options
        ]
        gap, move = options[int(np.argmin(covered))]
        taken.append(_box(point + move, size))
        offset = (float(move[0] / scale), float(move[1] / scale))
        label.set_position(offset)
        if gap > GAPS[0]:
            axes.annotate(
                "",
                xy=label.xy,
                xytext=offset,
                textcoords="offset points",
                arrowprops={
                    "arrowstyle": "-",
                    "color": "black",
                    "alpha": 0.4,
                    "linewidth": 0.6,
                    "shrinkA": 6,
                },
                zorder=0,
            )


def _box(centre: np.ndarray, size: np.ndarray) -> np.ndarray:  # x0, y0, x1, y1
    return np.concatenate([centre - size / 2, centre + size / 2])


def _covered(
    box: np.ndarray,
    drawn: tuple[np.ndarray, np.ndarray],  # (K, 2) points, (J, 2) places on lines
    taken: list[np.ndarray],
    frame: np.ndarray,
) -> float:
    """Return how much a name would cover: what is drawn, other names, what is outside the frame."""
    points, lined = (((p > box[:2] - 4) & (p < box[2:] + 4)).all(1).sum() for p in drawn)
    shared = 0.0
    for other in taken:
        width = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2]) + 2
        shared += float(np.prod(width.clip(min=0)) / np.prod(box[2:] - box[:2]))
    outside = np.maximum(frame[:2] - box[:2], 0).sum() + np.maximum(box[2:] - frame[2:], 0).sum()
    return float(points) + 0.1 * float(lined) + 4 * shared + float(outside)
