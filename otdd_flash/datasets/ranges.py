"""Ranges of pixels: images of 0 to 16 lie far from images of 0 to 255 only for being darker."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otdd_flash.checks import WIDER
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.samples import CHUNK

# images use nearly all of their scale: a range less than half as wide is of another one
APART = 2.0


def told_ranges(
    found: Sequence[tuple[RawDataset, Tensor]],  # images (n, ...) of each dataset
    cosine: bool,  # whether samples are going to be divided by their norms, and scales with them
) -> list[tuple[RawDataset, Tensor]]:
    """Say so where the pixels of a dataset have another range than the widest one; one pass."""
    ranges = [_range(points) for _, points in found]
    widths = [high - low for low, high in ranges]
    first = max(range(len(found)), key=widths.__getitem__)
    bytes_there = found[first][1].dtype == torch.uint8
    out = []
    for (raw, points), (low, high), width in zip(found, ranges, widths, strict=True):
        narrow = not cosine and width * APART < widths[first]
        shifted = (low < 0) != (ranges[first][0] < 0)
        if width > 0 and (narrow or shifted):
            if shifted:
                way = "shift and scale both to one range first"
            elif bytes_there and points.is_floating_point() and high <= 1:
                way = "bring both to 0 to 1 with normalize='unit' (--normalize unit)"
            else:
                way = (
                    "scale both to one range first, or divide samples by their norms with "
                    "cosine=True (--cosine)"
                )
            raw = raw.noted(
                f"pixels are {low:.6g} to {high:.6g}, those of {found[first][0].name} "
                f"{ranges[first][0]:.6g} to {ranges[first][1]:.6g}, and are compared as they are: "
                f"{way}"
            )
        out.append((raw, points))
    return out


def _range(points: Tensor) -> tuple[float, float]:
    """Return the least and the greatest value."""
    low, high = float("inf"), float("-inf")
    for part in points.split(CHUNK):
        # torch has no extremes of the unsigned integers that numpy calls uint16 to uint64
        ends = part.to(WIDER.get(part.dtype, part.dtype)).aminmax()
        low, high = min(low, float(ends.min)), max(high, float(ends.max))
    return low, high
