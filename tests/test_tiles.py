"""Row tiles of one class, runs of columns, and the jit helpers that kernels share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

import triton
import triton.language as tl

from otdd_flash_kernels.tiles import (
    column_bias,
    column_runs,
    pure_tiles,
    reduce_scores,
    with_steps,
)

DEVICES: list = ["cpu"]
if torch.cuda.is_available():
    DEVICES = [pytest.param("cuda", marks=pytest.mark.gpu)]
COUNTS = st.lists(st.integers(0, 70), min_size=1, max_size=12).filter(any)


def check(counts: list[int], height: int) -> torch.Tensor:
    labels = torch.repeat_interleave(torch.arange(len(counts)), torch.tensor(counts))
    tiles = pure_tiles(labels, len(counts), height)
    assert tiles.dtype == torch.int32 and tiles.is_contiguous() and tiles.shape[1] == 3
    covered = 0
    for start, end, klass in tiles.tolist():
        # in order, without gap or overlap, never empty, never across a seam
        assert start == covered and 0 < end - start <= height
        assert (labels[start:end] == klass).all()
        covered = end
    assert covered == len(labels)
    # as few as label purity allows
    assert len(tiles) == sum(-(-count // height) for count in counts)
    return tiles


@settings(max_examples=60, deadline=None)
@given(counts=COUNTS, height=st.sampled_from([1, 2, 32, 128]))
def test_tiles_partition_the_rows(counts, height):
    check(counts, height)


@pytest.mark.parametrize("count", [1, 31, 32, 33, 64, 65])
def test_seams_at_and_beside_a_multiple_of_the_height(count):
    check([count, 1, count], 32)


def test_as_many_classes_as_rows():
    tiles = check([1] * 50, 32)
    assert tiles[:, 2].tolist() == list(range(50))


def test_empty_classes_have_no_tile():
    assert check([0, 0, 5, 0, 3, 0], 4)[:, 2].tolist() == [2, 2, 4]


def extents(n: int, d: int, seed: int) -> torch.Tensor:  # (n,) int32, 0 to d with both ends
    drawn = torch.randint(0, d + 1, (n,), generator=torch.Generator().manual_seed(seed))
    drawn[seed % n], drawn[seed // 7 % n] = 0, d
    return drawn.to(torch.int32)


@settings(max_examples=60, deadline=None)
@given(
    counts=COUNTS,
    height=st.sampled_from([1, 2, 32, 128]),
    depth=st.sampled_from([16, 32, 128]),
    d=st.integers(1, 300),
    seed=st.integers(0, 1000),
)
def test_steps_reach_every_row_and_no_farther(counts, height, depth, d, seed):
    tiles, n = check(counts, height), sum(counts)
    extent = extents(n, d, seed)
    table = with_steps(tiles, extent, depth, -(-d // depth))
    assert table.dtype == torch.int32 and table.is_contiguous()
    # the same tiles, each once, the longest first
    assert sorted(row[:3] for row in table.tolist()) == tiles.tolist()
    assert (table[1:, 3] <= table[:-1, 3]).all()
    covered = torch.zeros(n, dtype=torch.int64)
    for start, end, _, steps in table.tolist():
        covered[start:end] += 1
        farthest = int(extent[start:end].max())
        assert 1 <= steps <= -(-d // depth)
        assert (steps - 1) * depth < max(farthest, 1) <= steps * depth
    assert (covered == 1).all()


def test_tiles_of_dense_rows_take_all_steps_in_order():
    tiles = check([40, 0, 33], 32)
    table = with_steps(tiles, None, 64, 7)
    assert table.dtype == torch.int32 and table.is_contiguous()
    assert torch.equal(table[:, :3], tiles)
    assert (table[:, 3] == 7).all()


def needs(begin: int, end: int, extent, width: int, depth: int, steps: int) -> list[int]:
    """Return the steps of each tile of a span, the plain way."""
    tiles = [range(j, min(j + width, end)) for j in range(begin, end, width)]
    if extent is None:
        return [steps] * len(tiles)
    return [max(1, max(-(-int(extent[j]) // depth) for j in tile)) for tile in tiles]


@settings(max_examples=100, deadline=None)
@given(
    counts=COUNTS,
    width=st.sampled_from([1, 4, 32, 128]),
    depth=st.sampled_from([16, 32]),
    d=st.integers(1, 200),
    parts=st.sampled_from([1, 2, 3, 7, 1000]),
    dense=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_runs_cover_every_column_once_in_order(counts, width, depth, d, parts, dense, seed):
    ends = torch.tensor([0, *counts]).cumsum(0).tolist()
    spans = list(zip(ends[:-1], ends[1:], strict=True))
    steps = -(-d // depth)
    extent = None if dense else extents(ends[-1], d, seed)
    runs, seams = column_runs(spans, extent, width, depth, steps, parts)
    assert runs.dtype == seams.dtype == torch.int32 and runs.shape[1] == 3
    # segments are spans of runs: in order, without gap or overlap
    assert seams[0] == 0 and seams[-1] == len(runs) and (seams[1:] >= seams[:-1]).all()
    segments = [runs[a:b].tolist() for a, b in zip(seams[:-1], seams[1:], strict=True)]
    for begin, end in spans:
        if begin == end:
            assert segments.pop(0) == []
            continue
        need = needs(begin, end, extent, width, depth, steps)
        left = list(need)
        covered, pieces = begin, 0
        while covered < end:
            segment, pieces, work = segments.pop(0), pieces + 1, 0
            assert segment
            for (first, last, length), following in zip(segment, [*segment[1:], None], strict=True):
                assert first == covered and first < last <= end and (first - begin) % width == 0
                tiles = -(-(last - first) // width)
                # no tile reads less or more than it needs, and equal neighbours are one run
                assert left[:tiles] == [length] * tiles
                assert following is None or following[2] != length
                del left[:tiles]
                covered, work = last, work + tiles * length
            # of about equal work: off by a tile at most
            assert work < sum(need) / parts + max(need) + 1e-6
        assert pieces <= min(parts, len(need))
        assert parts < 1000 or not dense or pieces == len(need)
    assert not segments


@triton.jit
def bias_kernel(u, label_cost, column_labels, out, first, end, COLUMNS: tl.constexpr):
    index = first + tl.arange(0, COLUMNS)
    bias = column_bias(u, label_cost, column_labels, index, end)
    tl.store(out + tl.arange(0, COLUMNS), bias)


@pytest.mark.parametrize("device", DEVICES)
def test_column_bias_ends_with_the_run(device):
    u = torch.arange(20, dtype=torch.float32, device=device)
    u[6] = -torch.inf
    label_cost = torch.tensor([0.5, 100.0, 0.25], device=device)
    labels = torch.tensor([0, 2] * 10, dtype=torch.int32, device=device)
    # nothing is read beyond the end, not even of a label that is out of range
    labels[9:] = 1 << 30
    out = torch.full((16,), torch.nan, device=device)
    bias_kernel[(1,)](u, label_cost, labels, out, 4, 9, COLUMNS=16)
    assert out.tolist() == [3.5, 4.75, -torch.inf, 6.75, 7.5] + [-torch.inf] * 11


@triton.jit
def reduce_kernel(
    scores,  # (TILES, ROWS, COLUMNS)
    shifts,  # (TILES, ROWS)
    out,  # (3, ROWS)
    MODE: tl.constexpr,
    TILES: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    moment = tl.zeros((ROWS,), tl.float32)
    for t in range(TILES):
        place = (t * ROWS + rows[:, None]) * COLUMNS + columns[None, :]
        shift = tl.load(shifts + t * ROWS + rows)
        top, total, moment = reduce_scores(tl.load(scores + place), shift, top, total, moment, MODE)
    tl.store(out + rows, top)
    tl.store(out + ROWS + rows, total)
    tl.store(out + 2 * ROWS + rows, moment)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_reduction_over_tiles_that_may_hold_nothing(mode, device):
    nothing = -torch.inf
    generator = torch.Generator().manual_seed(3)
    scores = 3 * torch.randn((4, 8, 16), generator=generator)  # TILES, ROWS, COLUMNS
    shifts = 2 * torch.randn((4, 8), generator=generator)
    scores[:, 0] = nothing
    scores[:3, 1], scores[1:, 2], scores[1:3, 3] = nothing, nothing, nothing
    scores[:, 4, ::3] = nothing
    out = torch.full((3, 8), torch.nan, device=device)
    reduce_kernel[(1,)](
        scores.to(device), shifts.to(device), out, MODE=mode, TILES=4, ROWS=8, COLUMNS=16
    )
    top, total, moment = out.double().cpu()
    shifted = scores.double() + shifts.double()[:, :, None]
    true = shifted.transpose(0, 1).reshape(8, 64)
    rounding = 2.0**-24 * float(true[true.isfinite()].abs().max())
    torch.testing.assert_close(top, true.amax(1), rtol=0, atol=rounding)
    if mode == 1:
        return
    assert total[0] == 0 and (mode == 0 or moment[0] == 0)
    # base-2 scores: two roundings of a score move a sum by so much of itself
    logarithm = torch.logsumexp(true * torch.log(torch.tensor(2.0).double()), 1).exp().log2()
    torch.testing.assert_close((top + total.log2())[1:], logarithm[1:], rtol=0, atol=4 * rounding)
    if mode == 2:
        weights = torch.exp2(true[1:] - logarithm[1:, None])
        mean = (weights * true[1:].clamp(min=-1e300)).sum(1)
        torch.testing.assert_close((top + moment / total)[1:], mean, rtol=0, atol=8 * rounding)
