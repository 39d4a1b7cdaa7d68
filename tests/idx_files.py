"""Small IDX files for tests."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

CODES = {"uint8": 0x08, "int16": 0x0B, "int32": 0x0C, "float32": 0x0D, "float64": 0x0E}


def idx_bytes(values: np.ndarray) -> bytes:
    """Return the content of an IDX file."""
    header = bytes([0, 0, CODES[values.dtype.name], values.ndim])
    sizes = np.array(values.shape, ">u4").tobytes()
    return header + sizes + values.astype(values.dtype.newbyteorder(">")).tobytes()


def write(path: Path, values: np.ndarray) -> Path:
    """Write an IDX file, gzipped when its name says so."""
    content = idx_bytes(values)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def small_set(n: int = 20, classes: int = 10, first: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return uint8 images (n, 28, 28), all different, and labels (n,) that cycle."""
    rng = np.random.default_rng(n)
    images = rng.integers(0, 256, (n, 28, 28), dtype=np.uint8)
    return images, (np.arange(n) % classes + first).astype(np.uint8)


def write_pair(
    folder: Path,
    images: str = "train-images-idx3-ubyte",
    labels: str = "train-labels-idx1-ubyte",
    **options: int,
) -> tuple[np.ndarray, np.ndarray]:
    """Write a small set under two names and return it."""
    x, y = small_set(**options)
    write(folder / images, x)
    write(folder / labels, y)
    return x, y
