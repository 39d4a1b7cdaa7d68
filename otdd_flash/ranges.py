"""Ranges of pixels: images of 0 to 16 lie far from images of 0 to 255 only for being darker."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from otdd_flash.checks import WIDER
from otdd_flash.samples import CHUNK

# images use nearly all of their scale: a range less than half as wide is of another one
APART = 2.0


def range_notes(
    found: Sequence[tuple[str, Tensor]],  # name and images (n, ...) of each dataset
    cosine: bool,  # whether samples are divided by their norms, and scales with them
) -> list[str]:
    """Say where pixels have another range than the widest one, "" where they have not; one pass."""
    if len(found) < 2:
        return [""] * len(found)
    ranges = [_range(points) for _, points in found]
    widths = [high - low for low, high in ranges]
    first = max(range(len(found)), key=widths.__getitem__)
    least, most = ranges[first]
    bytes_there = found[first][1].dtype == torch.uint8
    out = []
    for (_, points), (low, high), width in zip(found, ranges, widths, strict=True):
        narrow = not cosine and width * APART < widths[first]
        shifted = (low < 0) != (least < 0)
        if width <= 0 or not (narrow or shifted):
            out.append("")
            continue
        if shifted:
            way = "shift and scale both to one range first"
        elif bytes_there and points.is_floating_point() and high <= 1:
            way = "bring both to 0 to 1 with normalize='unit' (--normalize unit)"
        else:
            way = (
                "scale both to one range first, or divide samples by their norms with "
                "cosine=True (--cosine)"
            )
        out.append(
            f"pixels are {low:.6g} to {high:.6g}, those of {found[first][0]} {least:.6g} to "
            f"{most:.6g}, and are compared as they are: {way}"
        )
    return out


def _range(points: Tensor) -> tuple[float, float]:
    """Return the least and the greatest value."""
    low, high = float("inf"), float("-inf")
    for part in points.split(CHUNK):
        # torch has no extremes of the unsigned integers that numpy calls uint16 to uint64
        ends = part.to(WIDER.get(part.dtype, part.dtype)).aminmax()
        low, high = min(low, float(ends.min)), max(high, float(ends.max))
    return low, high
