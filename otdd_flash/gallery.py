"""A picture of a dataset: samples of each class in a row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from otdd_flash.errors import DataError
from otdd_flash.figures import drawn, short
from otdd_flash.sheets import is_coloured, is_image, sample_pictures
from otdd_flash.types import LabelledDataset

COLUMNS = 10  # samples of a class
ROWS = 25  # classes; of more, the first ones


def plot_samples(dataset: LabelledDataset, path_or_figure: str | Path | Figure) -> Figure:
    """Draw the first samples of each class.

    Raises:
        DataError: samples that are no images.
        OSError: the file cannot be written.
    """
    if not is_image(dataset):
        raise DataError(
            f"{dataset.name}: samples of shape {dataset.sample_shape} are no images and cannot be "
            "drawn; leave the picture out"
        )
    rows = min(dataset.classes, ROWS)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        sheet = _sheet(dataset, rows)
        axes.imshow(sheet, interpolation="nearest")
        side = len(sheet) / rows
        names = [short(name, 24) for name in dataset.class_names[:rows]]
        axes.set_yticks([side * (k + 0.5) - 0.5 for k in range(rows)], names, fontsize=9)
        axes.set_xticks([])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        shown = f" of {dataset.classes:,}" if rows < dataset.classes else ""
        axes.set_title(
            f"{short(dataset.name, 40)}: {len(dataset):,} samples, {rows}{shown} classes",
            fontsize=11,
        )

    return drawn(draw, path_or_figure, (7.5, 0.8 + 0.6 * rows), is_coloured(dataset))


def _sheet(
    dataset: LabelledDataset,
    classes: int,  # how many of them, the first ones
) -> np.ndarray:  # (classes side, COLUMNS side, 3) float in [0, 1]
    """Return samples of each class side by side, white where it has too few."""
    rows = [(dataset.labels == k).nonzero().reshape(-1)[:COLUMNS] for k in range(classes)]
    # at once: floats have one scale
    pictures = sample_pictures(dataset, torch.cat(rows))
    height, width = pictures.shape[1:3]
    # squares, a pixel apart: images may be wide or tall
    side = max(height, width) + 1
    sheet = np.ones((classes, COLUMNS, side, side, 3))
    top, left = (side - height) // 2, (side - width) // 2
    at = [(k, column) for k, chosen in enumerate(rows) for column in range(len(chosen))]
    for (k, column), picture in zip(at, pictures, strict=True):
        sheet[k, column, top : top + height, left : left + width] = picture
    return sheet.swapaxes(1, 2).reshape(classes * side, COLUMNS * side, 3)
