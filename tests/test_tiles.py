"""Row tiles of one class, and the running maximum that kernels share."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

import triton  # noqa: E402
import triton.language as tl  # noqa: E402

from otdd_flash_kernels.tiles import pure_tiles, running_maximum  # noqa: E402

DEVICES: list = ["cpu"]
if torch.cuda.is_available():
    DEVICES = [pytest.param("cuda", marks=pytest.mark.gpu)]


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
@given(
    counts=st.lists(st.integers(0, 70), min_size=1, max_size=12).filter(any),
    height=st.sampled_from([1, 2, 32, 128]),
)
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


@triton.jit
def maximum_kernel(top, score, out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    rows, columns = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    tile = tl.load(score + rows[:, None] * COLUMNS + columns[None, :])
    higher, shift = running_maximum(tl.load(top + rows), tile)
    tl.store(out + rows, higher)
    tl.store(out + ROWS + rows, shift)


@pytest.mark.parametrize("device", DEVICES)
def test_running_maximum_can_be_subtracted_where_nothing_was_seen(device):
    nothing = -torch.inf
    top = torch.tensor([nothing, nothing, 2.0, 2.0], device=device)
    score = torch.full((4, 16), nothing, device=device)
    score[1, 3], score[2, 5], score[3, 5] = -7.0, 9.0, 1.0
    out = torch.full((2, 4), torch.nan, device=device)
    maximum_kernel[(1,)](top, score, out, ROWS=4, COLUMNS=16)
    assert out[0].tolist() == [nothing, -7.0, 9.0, 2.0]
    assert out[1].tolist() == [0.0, -7.0, 9.0, 2.0]
