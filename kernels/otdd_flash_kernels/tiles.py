"""Row tiles that hold one class each, runs of columns, and the jit helpers that kernels share."""

from __future__ import annotations

import math

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

# modes of the reductions over scores, and of `reduce_scores`
SOFT, HARD, MEAN = 0, 1, 2
# scores are in base 2
LN2 = math.log(2.0)


def pure_tiles(
    labels: Tensor,  # (n,) int64, sorted
    classes: int,
    height: int,  # rows of a tile
) -> Tensor:  # (tiles, 3) int32: first row, end row, class
    """Cut sorted rows into tiles of at most ``height`` rows that never cross a class seam."""
    counts = torch.bincount(labels, minlength=classes).cpu().numpy()
    ends = counts.cumsum()
    per_class = -(-counts // height)
    klass = np.repeat(np.arange(classes), per_class)
    index = np.arange(len(klass)) - (per_class.cumsum() - per_class)[klass]
    start = (ends - counts)[klass] + index * height
    end = np.minimum(start + height, ends[klass])
    table = np.stack([start, end, klass], axis=1).astype(np.int32)
    return torch.from_numpy(table).to(labels.device)


def with_steps(
    tiles: Tensor,  # (tiles, 3) int32
    extent: Tensor | None,  # (n,) int32 columns that each row needs, None: all
    depth: int,
    steps: int,  # of a tile that needs all columns
) -> Tensor:  # (tiles, 4) int32: and the steps of `depth` columns that the tile needs
    """Note how many steps of the dot product each tile needs, the longest tiles first."""
    if extent is None:
        need = torch.full((len(tiles),), steps, dtype=torch.int32, device=tiles.device)
        return torch.cat([tiles, need[:, None]], dim=1).contiguous()
    owner = torch.repeat_interleave(
        torch.arange(len(tiles), device=tiles.device), (tiles[:, 1] - tiles[:, 0]).long()
    )
    longest = torch.zeros(len(tiles), dtype=torch.int32, device=tiles.device)
    longest.scatter_reduce_(0, owner, extent, "amax")
    need = ((longest + depth - 1) // depth).clamp(min=1)
    order = torch.argsort(need, descending=True, stable=True)
    return torch.cat([tiles, need[:, None]], dim=1)[order].contiguous()


def column_runs(
    spans: list[tuple[int, int]],  # columns that are reduced apart from one another
    extent: Tensor | None,  # (m,) int32 on the CPU
    width: int,
    depth: int,
    steps: int,
    parts: int = 1,  # pieces of about equal work that a span is cut into
) -> tuple[Tensor, Tensor]:  # (runs, 3) int32: first, end, steps; (segments + 1,) int32 into them
    """Cut spans of columns into segments, and those into runs of tiles with the same steps."""
    runs, seams = [np.zeros((0, 3), dtype=np.int64)], [np.zeros(1, dtype=np.int64)]
    count = 0
    for begin, end in spans:
        starts = np.arange(begin, end, width)
        if not len(starts):
            seams.append(np.array([count]))
            continue
        needs = np.full(len(starts), steps)
        if extent is not None:
            widest = np.maximum.reduceat(extent[begin:end].numpy(), starts - begin)
            needs = np.maximum(1, -(-widest.astype(np.int64) // depth))
        # a piece ends with the tile that completes its share of the work
        done = needs.cumsum()
        cuts = 1 + np.searchsorted(done, done[-1] / parts * np.arange(1, parts))
        cuts = np.unique(np.append(cuts[cuts < len(starts)], len(starts)))
        firsts = np.unique(np.concatenate([[0], cuts[:-1], 1 + np.flatnonzero(np.diff(needs))]))
        lasts = np.append(starts[firsts[1:]], end)
        runs.append(np.stack([starts[firsts], lasts, needs[firsts]], axis=1))
        seams.append(count + np.searchsorted(firsts, cuts))
        count += len(firsts)
    table = np.concatenate(runs).astype(np.int32)
    return torch.from_numpy(table), torch.from_numpy(np.concatenate(seams).astype(np.int32))


@triton.jit
def read_tile(
    tiles,  # (tiles, 3) int32 of `pure_tiles`
    tile,
):
    """Return the first row, end row and class of a tile."""
    place = tiles + tile * 3
    return tl.load(place), tl.load(place + 1), tl.load(place + 2)


@triton.jit
def own_tile(
    tiles,  # (tiles, 4) int32: first row, end row, class, steps
    n_tiles,
):
    """Return the first row, end row, class and steps of a program's tile, and its segment."""
    tile = tl.program_id(0) % n_tiles
    segment = tl.program_id(0) // n_tiles
    first_row = tl.load(tiles + tile * 4)
    end_row = tl.load(tiles + tile * 4 + 1)
    klass = tl.load(tiles + tile * 4 + 2)
    steps = tl.load(tiles + tile * 4 + 3)
    return first_row, end_row, klass, steps, segment


@triton.jit
def column_bias(
    u,  # (m,) float32 bias of the columns, base 2
    label_cost,  # (Vy,) float32 label costs of the tile's class, base 2
    column_labels,  # (m,) int32
    index,  # (BN,) columns of the tile
    end,  # first column that is not of the run
):
    """Return the (BN,) bias of a tile's columns; -inf beyond the end."""
    inside = index < end
    bias = tl.load(u + index, mask=inside, other=float("-inf"))
    label = tl.load(column_labels + index, mask=inside, other=0)
    return bias - tl.load(label_cost + label)


@triton.jit
def reduce_scores(
    score,  # (BM, BN) scores, base 2, without the rows' own shift
    row_shift,  # (BM,) added to all scores of a row of this tile
    top,  # (BM,) maximum so far
    total,  # (BM,) sum so far, relative to 2^top
    moment,  # (BM,) sum of weight times (score - top) so far
    MODE: tl.constexpr,  # 0 sum, 1 maximum only, 2 sum and moment
):
    """Fold a tile of scores into the running maximum, sum and moment of its rows."""
    higher = tl.maximum(top, tl.max(score, 1) + row_shift)
    shift = tl.where(higher == float("-inf"), 0.0, higher)
    if MODE != 1:
        relative = score - (shift - row_shift)[:, None]
        weights = tl.exp2(relative)
        rescale = tl.exp2(top - shift)
        if MODE == 2:
            # the moment is kept relative to the maximum, which just rose
            drop = tl.where(top == float("-inf"), 0.0, top - shift)
            moment = rescale * (moment + total * drop)
            moment += tl.sum(weights * tl.where(weights > 0, relative, 0.0), 1)
        total = total * rescale + tl.sum(weights, 1)
    return higher, total, moment


@triton.jit
def store_reduced(
    out_top,  # (segments, n) float32
    out_sum,  # (segments, n) float32
    out_mean,  # (segments, n) float32
    top,  # (BM,) maxima of a tile's rows
    total,  # (BM,) sums relative to them
    moment,  # (BM,) sums of weight times (score - top)
    segment,
    row,  # (BM,) rows of the tile
    end_row,
    n,
    MODE: tl.constexpr,  # 0 sum, 1 maximum only, 2 sum and moment
):
    """Write what `reduce_scores` made of a tile's rows in a segment."""
    place = segment.to(tl.int64) * n + row
    tl.store(out_top + place, top, mask=row < end_row)
    if MODE != 1:
        tl.store(out_sum + place, total, mask=row < end_row)
    if MODE == 2:
        tl.store(out_mean + place, moment, mask=row < end_row)
