"""A small labelled dataset for tests of loaders, and how what is loaded is compared with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from otdd_flash import LabelledDataset, LoadSettings, OTDDError, load, load_together

KINDS = np.array(["emu", "ant", "cat"])


def small(n: int = 12, d: int = 4, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return points (n, d) float32 and labels (n,) 0, 1, 2, 0, ..."""
    return np.random.default_rng(seed).normal(size=(n, d)).astype(np.float32), np.arange(n) % 3


def holds(dataset: LabelledDataset, points, labels, names=None) -> None:
    """Assert that a dataset holds these points, exactly, and these classes."""
    points = torch.as_tensor(np.asarray(points)).reshape(len(labels), -1)
    assert torch.equal(dataset.points.double(), points.double())
    assert dataset.labels.tolist() == list(labels)
    if names is not None:
        assert dataset.class_names == tuple(names)


def together(*specs, **options) -> list[LabelledDataset]:
    """Load datasets into one space."""
    return load_together(specs, LoadSettings(**options))


def announced(dataset: LabelledDataset) -> str:
    """Return everything that was announced of a dataset."""
    return "; ".join(dataset.provenance.get("announced", ()))


def refused(error: type[OTDDError], message: str, spec, **options) -> None:
    """Assert that a spec is refused with a message that holds these words."""
    with pytest.raises(error) as caught:
        load(spec, **options)
    assert type(caught.value) is error
    assert message in str(caught.value), str(caught.value)


def write_images(folder: Path, images: dict[str, np.ndarray], mode: str | None = None) -> None:
    """Write images (h, w) or (h, w, c) uint8 by their paths below a folder."""
    for name, pixels in images.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels, mode).save(path)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random bytes."""
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
