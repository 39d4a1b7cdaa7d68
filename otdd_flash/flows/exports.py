"""A flowed dataset as files that other tools read: npz, IDX, and a folder of Hugging Face."""

from __future__ import annotations

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np

from otdd_flash.datasets.idx import TYPES
from otdd_flash.files import written_whole
from otdd_flash.pictures.sheets import is_channels_first, is_image
from otdd_flash.types import LabelledDataset

# names by which readers of MNIST find the two files
IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
# gzip: a tenth slower to write than the fastest level, a fifth smaller
LEVEL = 4


def write_npz(path: Path, flowed: LabelledDataset, about: dict[str, Any]) -> None:
    """Write points, labels, class names and weights; ``about`` as JSON text."""
    with written_whole(path) as file:
        np.savez_compressed(
            file,
            points=flowed.points.cpu().numpy().reshape(len(flowed), *flowed.sample_shape),
            labels=flowed.labels.cpu().numpy(),
            class_names=np.array(flowed.class_names),
            weights=flowed.weights.cpu().numpy(),
            about=np.array(json.dumps(about)),
        )


def write_idx(path: Path, values: np.ndarray) -> None:
    """Write an array as a gzipped IDX file.

    Raises:
        KeyError: a dtype that IDX does not have.
    """
    codes = {np.dtype(kind).newbyteorder("="): code for code, kind in TYPES.items()}
    code = codes[values.dtype]
    header = bytes([0, 0, code, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    with (
        written_whole(path) as file,
        # no name and no time: the same values give the same file
        gzip.GzipFile("", "wb", LEVEL, file, mtime=0) as zipped,
    ):
        zipped.write(header)
        zipped.write(np.ascontiguousarray(values, TYPES[code]).data)


def write_idx_pair(folder: Path, flowed: LabelledDataset) -> None:
    """Write images and labels under the names that MNIST's have: uint8 points, or float32.

    The format has no place for weights.
    """
    folder.mkdir(exist_ok=True)
    write_idx(folder / IMAGES, _samples(flowed))
    labels = flowed.labels.cpu().numpy()
    write_idx(folder / LABELS, labels.astype(np.uint8 if flowed.classes <= 256 else np.int32))


def _samples(flowed: LabelledDataset) -> np.ndarray:  # (n, *sample shape) uint8 or float32
    points = flowed.points.cpu().numpy().reshape(len(flowed), *flowed.sample_shape)
    return points if points.dtype == np.uint8 else points.astype(np.float32)


def write_hugging_face(folder: Path, flowed: LabelledDataset) -> None:
    """Write a folder that ``datasets.load_from_disk`` reads; a folder there before is replaced.

    Columns: ``image`` for 8-bit images, ``features`` (d float32) for all else, and ``label``; no
    weights, which readers would take for a feature.
    """
    import datasets
    from PIL import Image

    label = datasets.ClassLabel(names=list(flowed.class_names))
    pictures = _samples(flowed)
    if pictures.dtype == np.uint8 and is_image(flowed):
        if is_channels_first(flowed.sample_shape):
            pictures = np.moveaxis(pictures, 1, -1)
        if pictures.ndim == 4 and pictures.shape[-1] == 1:
            pictures = pictures[..., 0]
        column: dict[str, Any] = {"image": [Image.fromarray(picture) for picture in pictures]}
        kind: dict[str, Any] = {"image": datasets.Image()}
    else:
        column = {"features": flowed.points.float().cpu().numpy()}
        value = datasets.Value("float32")
        kind = {"features": datasets.Sequence(value, length=flowed.dimension)}
    # named as all that is unfinished, so that a new run takes away what a killed one left
    temporary = folder.with_name(f".otdd-{folder.name}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    silent = datasets.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        made = datasets.Dataset.from_dict(
            {**column, "label": flowed.labels.cpu().numpy()},
            features=datasets.Features({**kind, "label": label}),
        )
        made.save_to_disk(temporary)
    finally:
        if not silent:
            datasets.enable_progress_bars()
    shutil.rmtree(folder, ignore_errors=True)
    temporary.rename(folder)
