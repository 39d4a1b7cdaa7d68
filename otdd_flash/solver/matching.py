"""Whether two sides hold the same samples, in whatever order and under whatever class ids."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.cost import Side

# entries hashed or compared at a time: 32 MB of int64
CHUNK_ENTRIES = 1 << 22
# how far equal weights can be apart by rounding: 1/n, and a share that was divided by its sum
SAME_WEIGHT = 1e-12
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, eq=False)
class Matching:
    """Equal samples of two sides: row ``rows[i]`` of y is row i of x, class ``classes[c]`` is c."""

    rows: Tensor  # (n,) int64
    classes: Tensor  # (V,) int64


def _row_hashes(points: Tensor) -> Tensor:  # (n,) int64
    """Return a hash of each row's bits; 0.0 and -0.0 count as equal."""
    draw = torch.Generator().manual_seed(0)
    factors = torch.randint(-(2**62), 2**62, (points.shape[1],), generator=draw) * 2 + 1
    factors = factors.to(points.device)
    parts = []
    for part in points.split(max(1, CHUNK_ENTRIES // points.shape[1])):
        bits = (part + 0.0 if part.is_floating_point() else part).view(BITS[part.element_size()])
        parts.append((bits.to(torch.int64) * factors).sum(dim=1))
    return torch.cat(parts)


def _equal_rows(x: Tensor, y: Tensor, rows: Tensor) -> bool:
    step = max(1, CHUNK_ENTRIES // x.shape[1])
    return all(
        torch.equal(part, y[chosen])
        for part, chosen in zip(x.split(step), rows.split(step), strict=True)
    )


def match(x: Side, y: Side) -> Matching | None:
    """Return how the samples of x are those of y, None where they are not.

    Compared after sorting by a hash, samples and classes bit for bit, weights up to rounding.
    Samples that occur twice with different weights or classes are not matched: such datasets are
    solved like others.
    """
    if x.points.shape != y.points.shape or x.points.dtype != y.points.dtype:
        return None
    left, by_left = torch.sort(_row_hashes(x.points), stable=True)
    right, by_right = torch.sort(_row_hashes(y.points), stable=True)
    if not torch.equal(left, right):
        return None
    rows = torch.empty_like(by_left)
    rows[by_left] = by_right
    same = torch.allclose(x.weights, y.weights[rows], rtol=SAME_WEIGHT, atol=0.0)
    if not same or not _equal_rows(x.points, y.points, rows):
        return None
    labels = y.labels[rows]
    size = int(x.labels.max()) + 1
    classes = torch.full((size,), -1, dtype=torch.int64, device=labels.device)
    classes[x.labels] = labels
    one_to_one = len(torch.unique(classes)) == size and int(classes.min()) >= 0
    if not one_to_one or not torch.equal(classes[x.labels], labels):
        return None
    return Matching(rows, classes)
