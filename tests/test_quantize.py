"""Quantised and centred clouds: exact where they say so, honest about the rest."""

from __future__ import annotations

import math

import pytest
import torch
from clouds import KINDS, pair_of, points, squared_distances, unlabelled
from hypothesis import given, settings
from hypothesis import strategies as st

from otdd_flash_kernels import quantize as module
from otdd_flash_kernels import reference
from otdd_flash_kernels.quantize import LEVELS, centre, quantize

DIMENSIONS = [1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 65, 784]
# kinds whose values lie on a grid of integers: their costs are exact numbers
INTEGRAL = ("uint8", "integers", "int64")


def cost(clouds) -> torch.Tensor:
    return reference.cost_matrix(unlabelled(*clouds))


def radius(clouds) -> torch.Tensor:  # (n, m) how far a distance may have moved
    rows, columns = clouds
    return rows.residual.sqrt()[:, None] + columns.residual.sqrt()


def assert_within_residual(clouds, x, y) -> None:
    true, r = squared_distances(x, y), radius(clouds)
    bound = 2 * true.sqrt() * r + r.square()
    # float64 itself: norms, dot products and folded columns are each rounded a few times
    rounding = 32 * 2.0**-53 * float(true.max()) + 1e-300
    assert ((cost(clouds) - true).abs() <= bound + rounding).all()


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("kind", INTEGRAL)
def test_integer_costs_are_exact(kind, d):
    x, y = points(kind, 17, d, 1), points(kind, 13, d, 2)
    true = squared_distances(x, y)
    clouds = quantize(x, y)
    assert torch.equal(cost(clouds), true)
    assert all(float(c.residual.max()) == 0 and c.step == 1 for c in clouds)
    assert clouds[0].data.shape[0] == (2 if kind == "int64" else 1)
    assert torch.equal(cost(quantize(x, y, slices=2)), true)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_pixels_over_255_take_one_slice_and_move_by_their_own_rounding(d):
    x, y = points("pixels", 17, d, 1), points("pixels", 13, d, 2)
    clouds = quantize(x, y)
    assert clouds[0].data.shape[0] == 1
    # a float32 in [0, 1] is off its k/255 by at most 2^-25, and so is the lowest one
    assert float(clouds[0].residual.max()) <= d * (2 * 2.0**-25) ** 2
    assert_within_residual(clouds, x, y)


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("d", [1, 2, 16, 17, 33, 784])
@pytest.mark.parametrize("kind", KINDS)
def test_cost_moves_by_no_more_than_the_residuals_allow(kind, d, slices):
    x, y = points(kind, 11, d, 3), points(kind, 7, d, 4)
    clouds = quantize(x, y, slices=slices)
    exact = {"uint8": 1, "integers": 1, "pixels": 1, "int64": 2}.get(kind, 3)
    assert all(c.data.shape[0] == min(slices, exact) for c in clouds)
    assert all(c.data.shape[2] % 16 == 0 for c in clouds)
    assert_within_residual(clouds, x, y)


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("kind", ["fp16", "fp32", "fp64"])
def test_reported_residual_is_the_distance_to_the_stored_point(kind, slices):
    x, y = points(kind, 23, 5, 5), points(kind, 19, 5, 6)
    both = torch.cat([x, y]).double()
    middle = (both.amin(0) + both.amax(0)) / 2
    for given_points, cloud in zip((x, y), quantize(x, y, slices=slices), strict=True):
        stored = middle + cloud.step * cloud.dense()[:, :5]
        moved = (given_points.double() - stored).square().sum(1)
        # the middle is rounded in float64: 1e-16 of coordinates that move by `step`
        assert torch.allclose(cloud.residual, moved, rtol=1e-6, atol=(1e-15 * cloud.step) ** 2)
        assert float(cloud.residual.max()) <= 5 * (cloud.step / 2) ** 2 * (1 + 1e-9)
        widest = float((both.amax(0) - both.amin(0)).max())
        assert cloud.step == pytest.approx(widest / (2 * LEVELS[slices]), rel=1e-12)


def test_each_further_slice_moves_points_less():
    x, y = points("fp32", 40, 9, 7), points("fp32", 30, 9, 8)
    one, two, three = (float(quantize(x, y, slices=s)[0].residual.max()) for s in (1, 2, 3))
    assert three < two / 1e3 < one / 1e6


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_the_ends_of_the_range_do_not_wrap(slices):
    x = torch.tensor([[0.0], [1.0], [0.3]])
    rows, columns = quantize(x, x.clone(), slices=slices)
    q = rows.dense()[:, 0]
    assert (float(q.min()), float(q.max())) == (-LEVELS[slices], LEVELS[slices])
    assert torch.equal(q, columns.dense()[:, 0])


@pytest.mark.parametrize("values", [2, 17, 100, 256])
@pytest.mark.parametrize("lowest", [0, 900])
def test_bytes_of_low_contrast_sit_around_zero(lowest, values):
    # far from it their norms would dwarf the distances: 4 * 128^2 against 4 for binary images
    x = lowest + points("int64", 9, 4, 33) % values
    rows, columns = quantize(x, x.flip(0))
    assert rows.data.shape[0] == 1
    assert int(rows.data.int().abs().max()) <= values // 2
    assert torch.equal(cost((rows, columns)), squared_distances(x, x.flip(0)))


@pytest.mark.parametrize("span", [254, 255, 256, 65277, 65278, 65279])
def test_widest_integer_ranges(span):
    x = torch.tensor([[0], [span], [span // 3]]) - 7
    clouds = quantize(x, x.flip(0))
    assert_within_residual(clouds, x, x.flip(0))
    exact = span <= 2 * LEVELS[2]
    assert (float(clouds[0].residual.max()) == 0) is exact
    assert clouds[0].data.shape[0] == (1 if span <= 255 else 2)


def test_integers_too_wide_for_two_slices_say_how_far_they_moved():
    x = torch.tensor([[0, 5], [1_000_000, 7], [333_333, 6]])
    clouds = quantize(x, x.flip(0))
    assert float(clouds[0].residual.max()) > 0
    assert_within_residual(clouds, x, x.flip(0))


@pytest.mark.parametrize("slices", [1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_stored_points_are_at_distance_zero_of_themselves(kind, slices):
    x = points(kind, 9, 17, 9)
    for y in (x.clone(), x):
        c = cost(quantize(x, y, slices=slices))
        assert float(c.diagonal().abs().max()) == 0
        assert torch.equal(c, c.mT)


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_norms_of_digits_are_exact(slices, monkeypatch):
    # three rows at a time, the last two alone
    monkeypatch.setattr(module, "DIGIT_ENTRIES", 3 * 784)
    x = points("fp64", 11, 784, 9)
    for cloud in quantize(x, x.flip(1), slices=slices):
        # sums of squares are whole numbers far below 2^53, and a root is rounded once
        squares = cloud.data.long().square().sum(2).amax(1).tolist()
        assert cloud.slice_norms == [math.sqrt(square) for square in squares]


@pytest.mark.parametrize("kind", KINDS)
def test_swapping_the_clouds_transposes_the_cost(kind):
    x, y = points(kind, 9, 17, 10), points(kind, 12, 17, 11)
    x[:, 3], y[:, 5] = 1, 0
    assert torch.equal(cost(quantize(x, y)), cost(quantize(y, x)).mT)
    pair = pair_of(x, y)
    assert torch.equal(reference.cost_matrix(pair.transposed), reference.cost_matrix(pair).mT)


@pytest.mark.parametrize("kind", ["integers", "int64", "fp64"])
def test_a_common_shift_changes_nothing(kind):
    x, y = points(kind, 9, 17, 12), points(kind, 12, 17, 13)
    if kind == "fp64":
        # multiples of 2^-30, so that adding 1000 loses no bit
        x, y = ((p * 2**30).round() / 2**30 for p in (x, y))
    plain, shifted = quantize(x, y), quantize(x + 1000, y + 1000)
    assert torch.equal(plain[0].data, shifted[0].data)
    assert torch.equal(plain[1].data, shifted[1].data)
    assert torch.equal(cost(plain), cost(shifted))
    torch.testing.assert_close(
        cost(centre(x, y)), cost(centre(x + 1000, y + 1000)), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["fp16", "fp32", "fp64"])
def test_offset_1000_cancels_nothing(kind):
    # the given values, rounded to their dtype at 1000, are the truth
    x, y = (1000 + points(kind, 20, 8, seed) for seed in (14, 15))
    assert_within_residual(quantize(x, y), x, y)
    true = squared_distances(x, y)
    assert float((cost(centre(x, y)) - true).abs().max()) <= 32 * 2.0**-53 * float(true.max())
    # no grid is taken for exact that moves a point farther than two slices do
    both = torch.cat([x, y]).double()
    step = float((both.amax(0) - both.amin(0)).max()) / (2 * LEVELS[2])
    for cloud in quantize(x, y):
        assert float(cloud.residual.max()) <= 8 * (step / 2) ** 2


def test_non_contiguous_clouds_equal_contiguous_ones():
    x, y = points("fp32", 12, 18, 16), points("fp32", 10, 18, 17)
    wide = (x.mT.contiguous().mT, y.mT.contiguous().mT)
    assert not wide[0].is_contiguous()
    assert torch.equal(cost(quantize(*wide)), cost(quantize(x, y)))
    assert torch.equal(cost(centre(*wide)), cost(centre(x, y)))
    half = (x[:, ::2], y[:, ::2])
    copies = tuple(p.contiguous() for p in half)
    assert torch.equal(cost(quantize(*half)), cost(quantize(*copies)))
    for views in ((x[::3], y[1::2]), (x.mT[:, :10], y.mT)):
        copies = tuple(p.contiguous() for p in views)
        assert torch.equal(cost(quantize(*views)), cost(quantize(*copies)))


@pytest.mark.parametrize("make", [quantize, centre])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["x", "y", "both equal", "both differ", "all"])
def test_constant_columns_fold_exactly(where, kind, make):
    x, y = points(kind, 9, 20, 18), points(kind, 7, 20, 19)
    chosen = slice(None) if where == "all" else slice(2, 8)
    if where != "y":
        x[:, chosen] = x[0, chosen].clone()
    if where != "x":
        y[:, chosen] = x[0, chosen].clone() if where == "both equal" else y[0, chosen].clone()
    clouds = make(x, y)
    assert_within_residual(clouds, x, y)
    kept = 0 if where == "all" else 14
    width = {quantize: 16, centre: max(1, kept)}[make]
    assert clouds[0].data.shape[-1] == width
    if kept == 0:
        assert all(float(c.residual.abs().max()) == 0 for c in clouds)


def test_one_point_each_is_all_constant_and_exact():
    # float32 cannot even tell their squared norms apart (2.6e11 and spacing 16384)
    x, y = torch.tensor([[512695.0]]), torch.tensor([[512804.0]])
    for clouds in (quantize(x, y), centre(x, y)):
        assert float(cost(clouds)) == 11881
    more = torch.tensor([[512695.0], [512804.0]])
    for clouds in (quantize(more, more.clone()), centre(more, more.clone())):
        assert cost(clouds).tolist() == [[0, 11881], [11881, 0]]


@pytest.mark.parametrize("make", [quantize, centre])
def test_unsigned_bytes_do_not_wrap(make):
    x, y = torch.tensor([[0], [255]], dtype=torch.uint8), torch.tensor([[255]], dtype=torch.uint8)
    assert cost(make(x, y)).tolist() == [[65025], [0]]
    assert cost(make(x, x.clone())).tolist() == [[0, 65025], [65025, 0]]


@pytest.mark.parametrize("make", [quantize, centre])
def test_half_precision_pixels_do_not_overflow(make):
    x = torch.zeros((3, 784), dtype=torch.float16)
    x[1], x[2, ::2] = 255, 255
    y = x.flip(0)
    assert torch.equal(cost(make(x, y)), squared_distances(x, y))
    assert float(cost(make(x, y)).max()) == 784 * 65025


@pytest.mark.parametrize("make", [quantize, centre])
@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.int8, torch.int16, torch.int32, torch.bfloat16]
)
def test_other_dtypes(dtype, make):
    x, y = ((points("fp32", 9, 5, seed) * 3).to(dtype) for seed in (20, 21))
    assert_within_residual(make(x, y), x, y)


def test_mixed_dtypes_share_one_grid():
    x = points("uint8", 9, 5, 22)
    y = points("pixels", 7, 5, 23)
    clouds = quantize(x, y)
    # integers and k/255 lie on one grid of 1/255 steps, 65,025 of them
    assert clouds[0].step == clouds[1].step == 1 / 255
    assert_within_residual(clouds, x, y)
    # float16 rounds k/255 to 11 bits: its own exact values are the truth
    half = quantize(y.half(), points("pixels", 5, 5, 24).half())
    assert_within_residual(half, y.half(), points("pixels", 5, 5, 24).half())


@pytest.mark.parametrize("make", [quantize, centre])
@pytest.mark.parametrize("kind", KINDS)
def test_identical_points_have_zero_cost(kind, make):
    x = points(kind, 1, 6, 25).repeat(5, 1)
    clouds = make(x, x[:3].clone())
    assert float(cost(clouds).abs().max()) == 0
    assert clouds[0].data.shape[-1] == (16 if make is quantize else 1)


def test_a_range_of_a_few_ulps_is_not_lost():
    # the middle of such a range is no float64: it must not push points off the grid
    third = 0.1 + 0.2
    x = torch.tensor([[third], [0.3]], dtype=torch.float64)
    assert_within_residual(quantize(x, x.flip(0)), x, x.flip(0))
    far = 1e15 + points("fp64", 6, 3, 26)
    assert_within_residual(quantize(far, far.flip(0)), far, far.flip(0))


@pytest.mark.parametrize("rows_per_chunk", [1, 7])
@pytest.mark.parametrize("kind", ["uint8", "fp32"])
def test_chunks_do_not_show(kind, rows_per_chunk, monkeypatch):
    x, y = points(kind, 15, 20, 27), points(kind, 14, 20, 28)
    x[:, 2], y[:, 4] = 1, 0
    whole = (*quantize(x, y), *centre(x, y))
    monkeypatch.setattr(module, "CHUNK_ENTRIES", 20 * rows_per_chunk)
    for one, two in zip(whole, (*quantize(x, y), *centre(x, y)), strict=True):
        for part in ("data", "bias", "residual"):
            assert torch.equal(getattr(one, part), getattr(two, part))


@pytest.mark.parametrize(
    ("kind", "d", "dtype"),
    [
        ("uint8", 784, torch.float32),
        ("uint8", 1024, torch.float32),
        # 1025 products of 2^14 no longer fit the 24 bits of float32
        ("uint8", 1025, torch.float64),
        ("int64", 3, torch.float64),
        ("fp16", 3, torch.float64),
        ("fp32", 3, torch.float64),
        ("fp64", 3, torch.float64),
    ],
)
def test_centred_clouds_keep_every_digit(kind, d, dtype):
    x, y = points(kind, 5, d, 29), points(kind, 4, d, 30)
    clouds = centre(x, y)
    assert clouds[0].data.dtype == clouds[1].data.dtype == dtype
    true = squared_distances(x, y)
    if kind in INTEGRAL:
        assert torch.equal(cost(clouds), true)
    assert float((cost(clouds) - true).abs().max()) <= 32 * 2.0**-53 * float(true.max())
    assert float(clouds[0].residual.abs().max()) == 0


def test_extreme_bytes_are_exact_in_float32_products():
    x = torch.zeros((2, 1024), dtype=torch.uint8)
    x[1] = 255
    rows, columns = centre(x, x.flip(0))
    products = rows.data @ columns.data.mT
    assert torch.equal(products.double(), rows.data.double() @ columns.data.double().mT)


def test_refusals_say_what_arrived():
    x = torch.zeros(3, 4)
    with pytest.raises(ValueError, match="slices is 4, expected 1, 2 or 3"):
        quantize(x, x, slices=4)
    for make in (quantize, centre):
        with pytest.raises(ValueError, match=r"\(3, 4\) and \(3, 5\)"):
            make(x, torch.zeros(3, 5))
        with pytest.raises(ValueError, match=r"\(3,\)"):
            make(x[:, 0], x)
    pair = pair_of(points("uint8", 3, 4, 31), points("uint8", 2, 4, 32))
    with pytest.raises(ValueError, match="both clouds must be quantised"):
        unlabelled(pair.rows, centre(x, x)[1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("kind", KINDS)
def test_a_gpu_stores_the_same_integers(kind):
    x, y = points(kind, 33, 17, 34), points(kind, 31, 17, 35)
    for here, there in zip(quantize(x, y), quantize(x.cuda(), y.cuda()), strict=True):
        assert torch.equal(here.data, there.data.cpu())
        torch.testing.assert_close(here.bias, there.bias.cpu(), rtol=1e-14, atol=0)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 9),
    m=st.integers(1, 9),
    d=st.integers(1, 40),
    kind=st.sampled_from(KINDS),
    slices=st.sampled_from([None, 1, 2, 3]),
    exponent=st.integers(-20, 20),
    offset=st.sampled_from([0.0, 1.0, -1000.0, 2.0**20]),
    seed=st.integers(0, 2**31),
)
def test_any_clouds_stay_within_their_residuals(n, m, d, kind, slices, exponent, offset, seed):
    x, y = points(kind, n, d, seed), points(kind, m, d, seed + 1)
    if kind in ("fp32", "fp64"):
        x, y = x * 2.0**exponent + offset, y * 2.0**exponent + offset
    clouds = quantize(x, y, slices=slices)
    assert_within_residual(clouds, x, y)
    assert (cost(clouds) >= -1e-12 * float(cost(clouds).max())).all()
