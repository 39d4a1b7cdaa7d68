"""A picture of a dataset: samples of each class in a row."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from otdd_flash.errors import DataError
from otdd_flash.pictures.figures import drawn, short
from otdd_flash.pictures.sheets import class_sheet, is_coloured, is_image
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

    sheet = class_sheet(dataset, rows, COLUMNS)
    high, wide = sheet.shape[0] // COLUMNS, sheet.shape[1] // rows
    # a class a row: its name stands beside it
    turned = sheet.reshape(COLUMNS, high, rows, wide, 3).swapaxes(0, 2)

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        axes.imshow(turned.reshape(rows * high, COLUMNS * wide, 3), interpolation="nearest")
        for k in range(1, rows):
            axes.axhline(k * high - 0.5, color="white", linewidth=2)
        for k in range(1, COLUMNS):
            axes.axvline(k * wide - 0.5, color="white", linewidth=2)
        names = [short(name, 24) for name in dataset.class_names[:rows]]
        axes.set_yticks([high * (k + 0.5) - 0.5 for k in range(rows)], names, fontsize=9)
        axes.set_xticks([])
        axes.tick_params(length=0)
        for spine in axes.spines.values():
            spine.set_visible(False)
        shown = f" of {dataset.classes:,}" if rows < dataset.classes else ""
        axes.set_title(
            f"{short(dataset.name, 40)}: {len(dataset):,} samples, {rows}{shown} classes",
            fontsize=11,
        )

    return drawn(draw, path_or_figure, (7.5, 0.8 + 0.65 * rows * high / wide), is_coloured(dataset))
