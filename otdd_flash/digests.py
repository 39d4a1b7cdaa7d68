"""What a run that goes on compares: digests of its data, and settings that differ."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch

from otdd_flash.types import LabelledDataset


def array_digest(
    array: np.ndarray,  # any shape and dtype
) -> str:
    """Return the sha256 of an array's dtype, shape and values."""
    digest = hashlib.sha256(f"{array.dtype.str} {array.shape}".encode())
    digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def fingerprint(dataset: LabelledDataset) -> str:
    """Return a sha256 of points, labels, their names and weights."""
    points = dataset.points
    # numpy has no bfloat16; float32 holds the same values
    parts = (
        points.float() if points.dtype == torch.bfloat16 else points,
        dataset.labels,
        dataset.weights,
    )
    digests = [array_digest(part.cpu().numpy()) for part in parts]
    return array_digest(np.array([*digests, *dataset.class_names]))


def differences(old: dict[str, Any], new: dict[str, Any], prefix: str = "") -> list[str]:
    """Name what differs between two sets of settings, as "key: old, now new"."""
    out = []
    for key in sorted({*old, *new}):
        before, now = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            out += differences(before, now, f"{prefix}{key}.")
        elif None in (before, now) and isinstance(before or now, dict):
            out.append(f"{prefix}{key} {'is new' if before is None else 'is not there now'}")
        elif before != now and key == "sha256":
            out.append(f"{prefix}{key} differs (points, labels, names or weights)")
        elif before != now:
            out.append(f"{prefix}{key} was {before!r}, now {now!r}")
    return out
