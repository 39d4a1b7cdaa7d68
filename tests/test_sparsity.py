"""Columns ordered by use: nothing moves, and extents and tail products are what they say."""

from __future__ import annotations

import pytest
import torch
from clouds import SPARSE, points, sparse_pair, sparse_points, unlabelled
from hypothesis import given, settings
from hypothesis import strategies as st

from otdd_flash_kernels import reference
from otdd_flash_kernels.pair import bilinear
from otdd_flash_kernels.quantize import Cloud, quantize
from otdd_flash_kernels.sparsity import LEAST_SHARE, order_columns, tail_products

# which clouds have too little background to be worth an order
LEFT_ALONE = ("dense", "one value in the middle")


def extent_of(cloud: Cloud) -> torch.Tensor:
    """Return the extents row by row, the plain way."""
    assert cloud.background is not None
    out = []
    for row in cloud.data[0] != cloud.background:
        used = row.nonzero()[:, 0]
        out.append(int(used[-1]) + 1 if len(used) else 0)
    return torch.tensor(out, dtype=torch.int32)


def check(before: tuple[Cloud, Cloud], after: tuple[Cloud, Cloud]) -> None:
    pair, ordered = unlabelled(*before), unlabelled(*after)
    assert torch.equal(reference.cost_matrix(pair), reference.cost_matrix(ordered))
    generator = torch.Generator().manual_seed(1)
    u, v = (torch.rand(c.n, generator=generator, dtype=torch.float64) for c in before)
    torch.testing.assert_close(bilinear(pair, u, v), bilinear(ordered, u, v), rtol=1e-13, atol=0)
    for old, new in zip(before, after, strict=True):
        assert new.data.shape == old.data.shape and new.data.is_contiguous()
        # the same columns, and the other fields untouched
        assert torch.equal(new.data[0].sort(1).values, old.data[0].sort(1).values)
        assert torch.equal(new.bias, old.bias) and torch.equal(new.residual, old.residual)
        assert new.step == old.step
        assert new.background is not None and new.extent is not None
        assert new.extent.dtype == torch.int32 and new.background.dtype == torch.int8
        assert torch.equal(new.extent, extent_of(new))
    # the columns of one of the two are in the order of their use
    orders = [(c.data[0] != c.background).sum(0) for c in after]
    assert any((use[1:] <= use[:-1]).all() for use in orders)


@pytest.mark.parametrize("second", SPARSE)
@pytest.mark.parametrize("first", SPARSE)
@pytest.mark.parametrize("d", [3, 16, 100])
def test_costs_are_equal_to_the_last_bit(first, second, d):
    clouds = quantize(sparse_points(first, 33, d, 1), sparse_points(second, 29, d, 2))
    ordered = order_columns(*clouds)
    if d == 100:
        assert (ordered[0] is clouds[0]) is (first in LEFT_ALONE and second in LEFT_ALONE)
    if ordered[0] is clouds[0]:
        assert ordered[1] is clouds[1]
    else:
        check(clouds, ordered)


@pytest.mark.parametrize("kind", ["black", "white"])
def test_a_cloud_with_itself_stays_one_object(kind):
    x = sparse_points(kind, 33, 50, 3)
    rows, columns = order_columns(*quantize(x, x))
    assert rows is columns and rows.extent is not None
    assert rows.extent.min() == 0
    check(quantize(x, x), (rows, columns))


def test_few_columns_are_used_by_many_rows():
    # what the order is for: most rows end long before the last column
    x, y = sparse_points("black", 300, 200, 4), sparse_points("dense", 20, 200, 5)
    unordered = quantize(x, y)[0].data[0]
    last = torch.arange(1, unordered.shape[1] + 1) * (unordered != unordered.amin(0))
    for rows, columns in (order_columns(*quantize(x, y)), order_columns(*quantize(y, x))[::-1]):
        assert rows.extent is not None and columns.extent is not None
        assert rows.extent.double().mean() < 0.6 * last.amax(1).double().mean()
        assert columns.extent.min() > unordered.shape[1] - 20


def test_columns_choose_their_backgrounds_one_by_one():
    # black and white columns in turn: either value for all would be no background of half of them
    x = sparse_points("black", 50, 40, 13)
    x[:, ::2] = 255 - x[:, ::2]
    rows, columns = order_columns(*quantize(x, sparse_points("dense", 20, 40, 14)))
    assert rows.extent is not None and columns.extent is not None
    assert rows.extent.double().mean() < 0.7 * 40
    assert torch.equal(rows.extent, extent_of(rows))


@pytest.mark.parametrize("kind", ["fp32", "int64"])
def test_clouds_of_several_slices_are_left_alone(kind):
    clouds = quantize(
        points(kind, 9, 20, 6) * (points("fp32", 9, 20, 7) > 1), points(kind, 9, 20, 8)
    )
    assert clouds[0].data.shape[0] == 2
    ordered = order_columns(*clouds)
    assert ordered[0] is clouds[0] and ordered[1] is clouds[1]


@pytest.mark.parametrize(("used", "left"), [(74, False), (76, True)])
def test_the_least_share_of_background(used, left):
    # so many of 100 rows are used in each of 16 columns, none of which is padding
    assert LEAST_SHARE == 0.25
    x = torch.zeros((100, 16), dtype=torch.uint8)
    x[:used] = torch.randint(1, 200, (used, 16), generator=torch.Generator().manual_seed(9))
    clouds = quantize(x, sparse_points("dense", 5, 16, 10))
    assert (order_columns(*clouds)[0] is clouds[0]) is left


@pytest.mark.parametrize("d", [32767, 32768, 40000])
def test_extents_of_very_wide_clouds(d):
    data = torch.zeros((1, 3, d), dtype=torch.int8)
    data[0, 0], data[0, 1, 5] = 7, -3
    data[0, 2, -1] = 9
    bias = data[0].double().square().sum(1)
    cloud = Cloud(data, bias, 1.0, torch.zeros(3))
    ordered, _ = order_columns(cloud, cloud)
    assert ordered.extent is not None
    assert torch.equal(ordered.extent, extent_of(ordered))
    assert int(ordered.extent.max()) == d


def test_more_rows_than_one_chunk():
    # extents go by 2^14 rows, backgrounds and tails by 2^16
    n = (1 << 16) + 3
    x = torch.zeros((n, 16), dtype=torch.uint8)
    x[-1] = torch.arange(1, 17)
    x[1 << 14] = 1
    x[5, 3], x[6, 4] = 9, 255
    y = x[-5:].clone()
    y[0] = 200
    rows, columns = order_columns(*quantize(x, y))
    assert rows.background is not None and rows.extent is not None
    assert columns.background is not None
    used = rows.data[0] != rows.background
    assert torch.equal(rows.extent, (used * torch.arange(1, 17)).amax(1).int())
    assert int(used.sum()) == 34
    tails = tail_products(rows, columns.background, 16)
    assert torch.equal(tails[0], (rows.data[0].double() @ columns.background.double()))


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 40),
    d=st.integers(1, 300),
    depth=st.sampled_from([16, 32, 64, 128]),
    extreme=st.booleans(),
    seed=st.integers(0, 2**31),
)
def test_tail_products_are_exact(n, d, depth, extreme, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(shape):
        drawn = torch.randint(-128, 128, shape, generator=generator, dtype=torch.int8)
        return torch.where(drawn < 0, -128, 127).to(torch.int8) if extreme else drawn

    data, background = draw((1, n, d)), draw((d,))
    cloud = Cloud(data, torch.zeros(n).double(), 1.0, torch.zeros(n).double())
    tails = tail_products(cloud, background, depth)
    assert tails.dtype == torch.float64 and tails.shape == (-(-d // depth) + 1, n)
    products = data[0].long() * background.long()
    for k, tail in enumerate(tails):
        assert torch.equal(tail.long(), products[:, k * depth :].sum(1))
    assert (tails[-1] == 0).all()


def test_tail_products_of_the_lowest_bytes():
    # 128 products of 2^14 a step, 2^31 in all: float32 sums hold a step, float64 the whole
    data = torch.full((1, 2, 131072), -128, dtype=torch.int8)
    cloud = Cloud(data, torch.zeros(2).double(), 1.0, torch.zeros(2).double())
    tails = tail_products(cloud, data[0, 0], 128)
    assert tails[0].tolist() == [2.0**31] * 2 and tails[-2].tolist() == [2.0**21] * 2


def test_taken_rows_keep_their_extents():
    pair = sparse_pair(sparse_points("black", 40, 60, 11), sparse_points("white", 30, 60, 12))
    for cloud, labels in ((pair.rows, pair.row_labels), (pair.columns, pair.column_labels)):
        assert cloud.extent is not None
        assert torch.equal(cloud.extent, extent_of(cloud))
        for k in labels.unique():
            chosen = cloud.extent[labels == k]
            assert (chosen[1:] >= chosen[:-1]).all()
