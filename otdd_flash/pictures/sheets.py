"""Samples of image-shaped datasets side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from otdd_flash.samples.decoding import layout
from otdd_flash.types import LabelledDataset


def is_image(dataset: LabelledDataset) -> bool:
    """Tell whether a sample is (h, w), (c, h, w) or (h, w, c) with 1, 3 or 4 channels c."""
    return layout(dataset.sample_shape) is not None


def is_channels_first(shape: Sequence[int]) -> bool:
    """Tell whether a sample of an image is (c, h, w)."""
    found = layout(shape)
    return found is not None and found[0] == "chw"


def is_coloured(dataset: LabelledDataset | None) -> bool:
    """Tell whether a sample has colours."""
    shape = dataset.sample_shape if dataset is not None and is_image(dataset) else ()
    return len(shape) == 3 and 1 not in (shape[0], shape[2])


def white_level(dataset: LabelledDataset) -> float:
    """Return the byte that is shown white: 255, or the largest where all are below half of that.

    Some images come in levels of 0 to 16, or of 0 and 1.
    """
    largest = int(dataset.points.max())
    return float(largest) if 0 < largest < 128 else 255.0


def sample_pictures(
    dataset: LabelledDataset,
    rows: Tensor,  # (k,) int64
) -> np.ndarray:  # (k, h, w, 3) float in [0, 1]
    """Return some samples as pictures, grey or coloured.

    Bytes are black at 0 and white at the `white_level`; other numbers are black at the least of
    those that are shown, and white at the largest.
    """
    chosen = dataset.points[rows.to(dataset.points.device)].detach().cpu()
    pictures = chosen.double().numpy().reshape(len(rows), *dataset.sample_shape)
    if pictures.ndim == 3:
        pictures = pictures[..., None]
    elif is_channels_first(dataset.sample_shape):
        pictures = np.moveaxis(pictures, 1, -1)
    if dataset.points.dtype == torch.uint8:
        pictures = pictures / white_level(dataset)
    else:
        low, high = pictures.min(), pictures.max()
        pictures = (pictures - low) / (high - low) if high > low else 0 * pictures
    # one channel is spread over three; an alpha channel is left out
    return np.broadcast_to(pictures[..., :3], (*pictures.shape[:3], 3))


def _images(
    dataset: LabelledDataset,
    label: int,
    count: int,
) -> np.ndarray:  # (count, h, w, 3) float in [0, 1]; white where the class has too few samples
    """Return the first samples of a class as pictures."""
    rows = (dataset.labels == label).nonzero().reshape(-1)[:count]
    pictures = sample_pictures(dataset, rows)
    shown = np.ones((count, *pictures.shape[1:]))
    shown[: len(rows)] = pictures
    return shown


def pair_sheet(
    src: LabelledDataset,
    row: int,  # class of src
    tgt: LabelledDataset,
    column: int,  # class of tgt
    count: int,
) -> np.ndarray:  # (2 side, count * side, 3) float in [0, 1]
    """Return ``count`` samples of a source class above as many of a target class."""
    return stacked(_images(src, row, count), _images(tgt, column, count))


def stacked(
    upper: np.ndarray,  # (k, h, w, 3)
    lower: np.ndarray,  # (k, h', w', 3)
) -> np.ndarray:  # (2 side, k side, 3)
    """Return pictures side by side above as many others, on squares of one size."""
    side = max(*upper.shape[1:3], *lower.shape[1:3])
    tiles = np.concatenate([_fit(upper, side), _fit(lower, side)])
    return tiles.reshape(2, len(upper), side, side, 3).swapaxes(1, 2).reshape(2 * side, -1, 3)


def _fit(pictures: np.ndarray, side: int) -> np.ndarray:
    """Enlarge pictures by a whole factor and centre them on white squares of ``side``."""
    factor = max(1, side // max(pictures.shape[1:3]))
    pictures = pictures.repeat(factor, axis=1).repeat(factor, axis=2)
    squares = np.ones((len(pictures), side, side, 3))
    top, left = ((side - extent) // 2 for extent in pictures.shape[1:3])
    squares[:, top : top + pictures.shape[1], left : left + pictures.shape[2]] = pictures
    return squares


def class_sheet(
    dataset: LabelledDataset,
    classes: int,  # at most
    count: int,  # samples of each
) -> np.ndarray:  # (count h, classes w, 3) float in [0, 1]
    """Return the first samples of the first classes, a class a column."""
    columns = range(min(dataset.classes, classes))
    return np.concatenate(
        [np.concatenate(list(_images(dataset, c, count))) for c in columns], axis=1
    )
