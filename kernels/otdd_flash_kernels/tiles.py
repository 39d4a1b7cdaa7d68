"""Row tiles that hold one class each, and the jit helpers that kernels share."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


def pure_tiles(
    labels: Tensor,  # (n,) int64, sorted
    classes: int,
    height: int,  # rows of a tile
) -> Tensor:  # (tiles, 3) int32: first row, end row, class
    """Cut sorted rows into tiles of at most ``height`` rows that never cross a class seam."""
    counts = torch.bincount(labels, minlength=classes)
    ends = torch.cumsum(counts, 0)
    per_class = (counts + height - 1) // height
    klass = torch.repeat_interleave(torch.arange(classes, device=labels.device), per_class)
    before = torch.cumsum(per_class, 0) - per_class
    index = torch.arange(len(klass), device=labels.device) - before[klass]
    start = (ends - counts)[klass] + index * height
    end = torch.minimum(start + height, ends[klass])
    return torch.stack([start, end, klass], dim=1).to(torch.int32).contiguous()


@triton.jit
def running_maximum(
    top,  # (BM,) maximum so far
    score,  # (BM, BN)
):
    """Return the new row maximum and the same with -inf replaced by 0, to subtract safely."""
    higher = tl.maximum(top, tl.max(score, 1))
    return higher, tl.where(higher == float("-inf"), 0.0, higher)
