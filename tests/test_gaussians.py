"""Class laws: moments, factors, weights, merging, translation."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otdd_flash.errors import DataError, LabelError, SettingsError, WeightError
from otdd_flash.laws import gaussians, moments
from otdd_flash.laws.bures import gaussian_w2
from otdd_flash.laws.factors import factorize
from otdd_flash.laws.gaussians import class_laws, laws_from_moments, merge

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
quick = settings(max_examples=25, deadline=None, derandomize=True)


def sample(seed, n, d, classes, dtype=torch.float64):
    """Points of which each class has at least one, labels, weights of which some are zero."""
    g = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(classes), torch.randint(classes, (n,), generator=g)])
    if dtype == torch.uint8:
        points = torch.randint(0, 256, (len(labels), d), generator=g).to(torch.uint8)
    else:
        points = torch.randn(len(labels), d, generator=g, dtype=torch.float64).to(dtype)
    weights = torch.rand(len(labels), generator=g, dtype=torch.float64)
    weights[classes:][torch.rand(n, generator=g) < 0.2] = 0
    return points, labels, weights / weights.sum()


def numpy_laws(points, labels, weights):
    points, labels, weights = points.double().numpy(), labels.numpy(), weights.numpy()
    means, covs = [], []
    for c in range(labels.max() + 1):
        x, w = points[labels == c], weights[labels == c]
        keep = w > 0
        means.append(np.average(x[keep], axis=0, weights=w[keep]))
        covs.append(np.atleast_2d(np.cov(x[keep].T, aweights=w[keep], ddof=0)))
    return torch.tensor(np.array(means)), torch.tensor(np.array(covs))


@quick
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 200),
    d=st.sampled_from([1, 2, 3, 17]),
    classes=st.integers(1, 5),
    dtype=st.sampled_from([torch.uint8, torch.float16, torch.float32, torch.float64]),
    uniform=st.booleans(),
)
def test_moments_equal_numpy(seed, n, d, classes, dtype, uniform):
    points, labels, weights = sample(seed, n, d, classes, dtype)
    if uniform:
        weights = torch.full_like(weights, 1 / len(weights))
    laws = class_laws(points, labels, weights)
    means, covariances = numpy_laws(points, labels, weights)
    scale = float(points.double().abs().max()) + 1
    torch.testing.assert_close(laws.means, means, rtol=0, atol=1e-13 * scale)
    torch.testing.assert_close(laws.covariances, covariances, rtol=0, atol=1e-13 * scale**2)
    masses = torch.zeros(classes, dtype=torch.float64).index_add(0, labels, weights)
    torch.testing.assert_close(laws.masses, masses)
    diagonal = class_laws(points, labels, weights, kind="diagonal")
    expected = covariances.diagonal(dim1=1, dim2=2)
    torch.testing.assert_close(diagonal.variances, expected, rtol=0, atol=1e-13 * scale**2)
    assert class_laws(points, labels, weights, kind="means").means.equal(laws.means)


@pytest.mark.parametrize("kind", ["gaussian", "diagonal", "means"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
@pytest.mark.parametrize("d", [2, 40])
def test_integer_weights_are_duplicated_rows(kind, dtype, d):
    points, labels, _ = sample(3, 60, d, 3, dtype)
    g = torch.Generator().manual_seed(0)
    times = torch.randint(1, 4, (len(labels),), generator=g)
    one = class_laws(points, labels, times.double() / times.sum(), kind=kind)
    rows = torch.repeat_interleave(torch.arange(len(labels)), times)
    two = class_laws(
        points[rows], labels[rows], torch.full((len(rows),), 1 / len(rows)).double(), kind=kind
    )
    torch.testing.assert_close(one.masses, two.masses, rtol=1e-6, atol=0)
    torch.testing.assert_close(one.means, two.means)
    if kind != "means":
        torch.testing.assert_close(one.covariances, two.covariances, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["gaussian", "diagonal", "means"])
@pytest.mark.parametrize("d", [1, 5, 90])
def test_merge_equals_whole(kind, d):
    points, labels, weights = sample(5, 200, d, 4)
    points = points + 1000
    whole = class_laws(points, labels, weights, kind=kind)
    merged = None
    # the first part lacks all classes but 0, the middle ones hold a row or two of some
    for rows in (torch.tensor([0]), torch.arange(1, 7), torch.arange(7, len(labels))):
        part = class_laws(points[rows], labels[rows], weights[rows], kind=kind, classes=4)
        merged = part if merged is None else merge(merged, part)
    torch.testing.assert_close(merged.masses, whole.masses)
    torch.testing.assert_close(merged.means, whole.means, rtol=1e-14, atol=0)
    if kind != "means":
        torch.testing.assert_close(merged.covariances, whole.covariances, rtol=0, atol=1e-12)
    if kind == "gaussian":
        assert all(f.shape[0] <= max(d, 200) for f in merged.factors)
    w2 = gaussian_w2(merged, whole)
    assert float(w2.diagonal().abs().max()) < 1e-11 * d


def test_one_sample_and_identical_samples_are_point_masses():
    points = torch.tensor([[0.1, 0.7], [0.3, 0.3], [0.3, 0.3], [0.3, 0.3]])
    laws = class_laws(points, torch.tensor([0, 1, 1, 1]), torch.tensor([0.1, 0.2, 0.3, 0.4]))
    assert [f.shape for f in laws.factors] == [(0, 2), (0, 2)]
    assert laws.covariances.abs().max() == 0
    assert laws.means.equal(points[[0, 1]].double())


@quick
@given(seed=st.integers(0, 10**6), offset=st.sampled_from([1.0, 100.0, 1024.0, 1e6]))
def test_translation_leaves_covariances(seed, offset):
    points, labels, weights = sample(seed, 80, 6, 3)
    points = (points * 2**20).round() / 2**20  # so that points + offset is exact
    one, two = (class_laws(x, labels, weights) for x in (points, points + offset))
    torch.testing.assert_close(two.means, one.means + offset, rtol=1e-15, atol=0)
    torch.testing.assert_close(two.covariances, one.covariances, rtol=0, atol=1e-13)


@pytest.mark.parametrize("d", [3, 60])
def test_translated_or_shuffled_integers_have_the_same_bits(d):
    points, labels, _ = sample(8, 120, d, 2, torch.uint8)
    points //= 2
    weights = torch.full((len(labels),), 1 / len(labels), dtype=torch.float64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1))
    laws = class_laws(points, labels, weights)
    moved = class_laws(points + 100, labels, weights)
    shuffled = class_laws(points[order], labels[order], weights)
    for c in range(2):
        assert laws.factors[c].equal(moved.factors[c])
        if d == 3:
            assert laws.factors[c].equal(shuffled.factors[c])


@quick
@given(seed=st.integers(0, 10**6), rank=st.integers(0, 7), batched=st.booleans())
def test_factors_reveal_the_rank(seed, rank, batched):
    rng = np.random.default_rng(seed)
    f = torch.from_numpy(rng.normal(size=(3, rank, 7)) * 10.0 ** rng.integers(-6, 6, size=7))
    covariances = f.mT @ f
    scale = covariances.diagonal(dim1=1, dim2=2).sqrt()
    given = covariances.to(DEVICE if batched else "cpu")
    for factor, covariance, s in zip(
        factorize(given, batched=batched), covariances, scale, strict=True
    ):
        factor = factor.cpu()
        assert factor.shape == (rank, 7)
        gap = (factor.mT @ factor - covariance).abs()
        assert bool((gap <= 1e-13 * s[:, None] * s).all())


def test_batched_factors_equal_lapack():
    points, labels, weights = sample(1, 400, 30, 5)
    covariances = class_laws(points, labels, weights).covariances
    covariances[1, 4] = covariances[1, :, 4] = 0  # a constant feature
    covariances[2] = 0
    for one, two in zip(
        factorize(covariances.to(DEVICE), batched=True),
        factorize(covariances, batched=False),
        strict=True,
    ):
        one = one.cpu()
        # ties of the pivots are broken by rounding: rows may differ, their Gram matrix not
        assert one.shape == two.shape
        torch.testing.assert_close(one.mT @ one, two.mT @ two, rtol=0, atol=1e-14 * 30)


def test_chunks_do_not_change_laws(monkeypatch):
    points, labels, weights = sample(2, 300, 4, 2)
    pixels = sample(2, 300, 4, 2, torch.uint8)[0]
    uniform = torch.full_like(weights, 1 / len(weights))
    whole, exact = class_laws(points, labels, weights), class_laws(pixels, labels, uniform)
    monkeypatch.setattr(moments, "CHUNK_ENTRIES", 28)
    monkeypatch.setattr(moments, "EXACT_ROWS", 3)
    torch.testing.assert_close(
        class_laws(points, labels, weights).covariances, whole.covariances, rtol=0, atol=1e-14
    )
    again = class_laws(pixels, labels, uniform)
    assert all(a.equal(b) for a, b in zip(again.factors, exact.factors, strict=True))


def test_batches_of_an_accelerator_give_the_same_laws(monkeypatch):
    points, labels, weights = sample(9, 90, 20, 4)
    rows = [torch.nonzero((labels == c) & (weights > 0))[:, 0] for c in range(4)]
    rows[0] = rows[0][:5]
    device = torch.device("cpu")
    expected = [gaussians._law(points, r, weights[r], "gaussian", device) for r in rows]
    monkeypatch.setattr(gaussians, "_factored", lambda laws: laws)
    raw = [gaussians._law(points, r, weights[r], "gaussian", device) for r in rows]
    monkeypatch.undo()
    assert [law.raw for law in raw] == [r.shape[0] > 21 for r in rows]
    for one, two in zip(gaussians._factored(raw), expected, strict=True):
        assert one.shape.equal(two.shape)


def test_the_number_of_threads_does_not_matter():
    points, labels, weights = sample(9, 300, 20, 4)
    threads = torch.get_num_threads()
    found = []
    for count in (1, 3):
        torch.set_num_threads(count)
        try:
            found.append(class_laws(points, labels, weights))
            assert torch.get_num_threads() == count
        finally:
            torch.set_num_threads(threads)
    for one, two in zip(found[0].factors, found[1].factors, strict=True):
        assert one.equal(two)


def test_exact_sums_of_extreme_pixels():
    # 0 and 255 in equal parts: products of 128 * 128, more rows than float32 sums hold at once
    points = torch.tensor([0, 255], dtype=torch.uint8).repeat(20000)[:, None].repeat(1, 2)
    n = len(points)
    laws = class_laws(points, torch.zeros(n, dtype=torch.int64), torch.full((n,), 1 / n).double())
    assert laws.means.tolist() == [[127.5, 127.5]]
    torch.testing.assert_close(
        laws.covariances, torch.full((1, 2, 2), 127.5**2).double(), rtol=1e-15, atol=0
    )
    assert laws.factors[0].shape == (1, 2)


def test_scaled_and_non_contiguous():
    points, labels, weights = sample(4, 50, 6, 2)
    laws = class_laws(points, labels, weights)
    half = class_laws(points * 0.5, labels, weights)
    torch.testing.assert_close(laws.scaled(0.5).covariances, half.covariances)
    torch.testing.assert_close(laws.scaled(0.5).means, half.means)
    view = points.mT.contiguous().mT
    assert class_laws(view, labels, weights).means.equal(laws.means)
    assert class_laws(points[:, ::2], labels, weights).means.equal(laws.means[:, ::2])


def test_same_input_same_bits():
    points, labels, weights = sample(6, 500, 10, 3, torch.float32)
    one, two = (class_laws(points, labels, weights) for _ in range(2))
    assert all(a.equal(b) for a, b in zip(one.factors, two.factors, strict=True))


def test_errors_say_what_arrived():
    points, labels, weights = sample(0, 10, 2, 3)
    with pytest.raises(SettingsError, match="expected one of gaussian, diagonal, means"):
        class_laws(points, labels, weights, kind="full")
    with pytest.raises(DataError, match=r"expected \(n, d\)"):
        class_laws(points[:, 0], labels, weights)
    with pytest.raises(DataError, match="NaN"):
        class_laws(torch.full_like(points, torch.nan), labels, weights)
    with pytest.raises(LabelError, match="expected"):
        class_laws(points, labels[1:], weights)
    with pytest.raises(LabelError, match="from -1 to"):
        class_laws(points, labels - 1, weights)
    with pytest.raises(LabelError, match=r"0\.\.1"):
        class_laws(points, labels, weights, classes=2)
    with pytest.raises(WeightError, match="shape"):
        class_laws(points, labels, weights[1:])
    with pytest.raises(WeightError, match="negative"):
        class_laws(points, labels, -weights)
    with pytest.raises(WeightError, match="class 1 of 3"):
        class_laws(points, labels, weights * (labels != 1))
    laws = class_laws(points, labels, weights)
    with pytest.raises(DataError, match="cannot merge"):
        merge(laws, class_laws(points[:, :1], labels, weights))
    with pytest.raises(DataError, match="covariance 0 is not"):
        laws_from_moments(torch.ones(1), torch.zeros(1, 2), torch.tensor([[[1.0, 2], [2, 1]]]))
    with pytest.raises(DataError, match="covariances have shape"):
        laws_from_moments(torch.ones(1), torch.zeros(1, 2), torch.eye(2))
    with pytest.raises(SettingsError, match="no covariances"):
        _ = class_laws(points, labels, weights, kind="means").covariances
