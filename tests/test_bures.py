"""Distances between class laws against closed forms, scipy and exact arithmetic."""

import math
from fractions import Fraction

import numpy as np
import pytest
import scipy.linalg
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from otdd_flash.errors import DataError, SettingsError, WeightError
from otdd_flash.laws import bures, factor_pairs
from otdd_flash.laws.bures import gaussian_w2, label_cost
from otdd_flash.laws.gaussians import class_laws, laws_from_moments
from otdd_flash.laws.polar import gram, polar

quick = settings(max_examples=25, deadline=None, derandomize=True)
METHODS = ["svd", "polar"]
seeds = st.integers(0, 10**6)


def laws_of(*covariances, means=None):
    covariances = torch.stack([torch.as_tensor(c, dtype=torch.float64) for c in covariances])
    v, d = covariances.shape[:2]
    means = torch.zeros(v, d) if means is None else torch.as_tensor(means)
    return laws_from_moments(torch.full((v,), 1 / v), means, covariances)


def random_data(seed, n, d, classes, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    points = torch.randn(n, d, generator=g, dtype=torch.float64)
    points = points @ torch.randn(d, d, generator=g, dtype=torch.float64) + labels[:, None]
    if dtype == torch.uint8:
        points = (points * 10 + 128).clamp(0, 250).to(torch.uint8)
    return points, labels, torch.full((n,), 1 / n, dtype=torch.float64)


def random_laws(seed, n, d, classes):
    return class_laws(*random_data(seed, n, d, classes))


def sqrtm_w2(x, y):
    """Textbook formula with scipy's matrix square root."""
    out = np.zeros((x.classes, y.classes))
    for i, (mu, a) in enumerate(zip(x.means.numpy(), x.covariances.numpy(), strict=True)):
        for j, (nu, b) in enumerate(zip(y.means.numpy(), y.covariances.numpy(), strict=True)):
            root = scipy.linalg.sqrtm(a)
            cross = scipy.linalg.sqrtm(root @ b @ root)
            out[i, j] = ((mu - nu) ** 2).sum() + np.trace(a + b - 2 * cross.real)
    return torch.from_numpy(out)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("d", [1, 2, 3, 17, 64])
def test_equals_scipy_on_well_conditioned_laws(method, d):
    x, y = random_laws(1, 40 * d + 40, d, 3), random_laws(2, 30 * d + 40, d, 4)
    found = label_cost(x, y, method=method)
    torch.testing.assert_close(found.xy, sqrtm_w2(x, y), rtol=1e-9, atol=0)
    expected = sqrtm_w2(x, x).fill_diagonal_(0)
    torch.testing.assert_close(found.xx, expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("method", METHODS)
def test_case_values(method):
    flat = [[1.0, 0.0], [0.0, 0.0]]
    tall = [[0.0, 0.0], [0.0, 4.0]]
    ones = [[1.0, 1.0], [1.0, 1.0]]
    zero = [[0.0, 0.0], [0.0, 0.0]]
    laws = laws_of(flat, tall, ones, zero)
    found = gaussian_w2(laws, laws, method=method)
    # singular values give the very numbers, products their rounding
    rel = 0 if method == "svd" else 1e-12
    assert math.isclose(found[0, 1], 5, rel_tol=rel)
    assert found[2, 2] == 0
    assert math.isclose(found[0, 3], 1, rel_tol=rel)
    one, two = laws_of([[1.0]]), laws_of([[4.0]])
    assert math.isclose(gaussian_w2(one, two, method=method), 1, rel_tol=100 * rel)
    point = laws_of(np.zeros((3, 3)), means=[[1.0, 2.0, 3.0]])
    wide = laws_of(np.diag([1.0, 2.0, 3.0]), means=[[0.0, 0.0, 1.0]])
    torch.testing.assert_close(float(gaussian_w2(point, wide, method=method)), 9.0 + 6.0)


@pytest.mark.parametrize("method", METHODS)
def test_identical_gaussians_are_exactly_zero(method):
    f = np.random.default_rng(0).normal(size=(400, 300))
    laws = laws_of(*[f.T @ f] * 10)
    assert all(block.abs().max() == 0 for block in label_cost(laws, laws, method=method))


@quick
@given(seed=seeds, n=st.integers(3, 60), d=st.integers(1, 20), method=st.sampled_from(METHODS))
def test_symmetry_and_zero_diagonal(seed, n, d, method):
    x, y = random_laws(seed, n, d, 3), random_laws(seed + 1, n + 5, d, 2)
    found = label_cost(x, y, method=method)
    swapped = gaussian_w2(y, x, method=method).mT
    if method == "svd":
        assert found.xy.equal(swapped)
    # which pairs share a batch decides how many steps they take
    torch.testing.assert_close(found.xy, swapped, rtol=1e-10, atol=0)
    for block in (found.xx, found.yy):
        assert block.equal(block.mT)
        assert block.diagonal().abs().max() == 0
    assert min(float(b.min()) for b in found) >= 0
    same = label_cost(x, x, method=method)
    assert same.xy.equal(same.xx) and same.xy.equal(same.yy)


@quick
@given(seed=seeds, n=st.integers(3, 60), d=st.integers(1, 20), method=st.sampled_from(METHODS))
def test_translation_adds_its_square(seed, n, d, method):
    # classes of one sample and of fewer samples than features are among them
    points, labels, weights = random_data(seed, n, d, 3)
    shift = torch.linspace(-3, 5, d, dtype=torch.float64)
    x, y = class_laws(points, labels, weights), class_laws(points + shift, labels, weights)
    found = gaussian_w2(x, y, method=method).diagonal()
    traces = x.covariances.diagonal(dim1=1, dim2=2).sum(1)
    assert bool(((found - shift @ shift).abs() <= 1e-12 * (1 + traces + shift @ shift)).all())


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("n", "d"), [(90, 4), (90, 60), (12, 60), (300, 60)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float64])
def test_shuffled_rows_and_renamed_classes(method, n, d, dtype):
    points, labels, weights = random_data(0, n, d, 3, dtype)
    points[:, 1:] = torch.where(torch.arange(1, d) % 3 == 0, points[:, :1], points[:, 1:])
    order = torch.randperm(n, generator=torch.Generator().manual_seed(2))
    renamed = torch.tensor([2, 0, 1])[labels]
    x = class_laws(points, labels, weights)
    y = class_laws(points[order], renamed[order], weights)
    found = gaussian_w2(x, y, method=method)[torch.arange(3), torch.tensor([2, 0, 1])]
    traces = x.covariances.diagonal(dim1=1, dim2=2).sum(1)
    assert bool((found <= 1e-12 * traces).all())


@quick
@given(seed=seeds, scale=st.floats(1e-3, 1e3), method=st.sampled_from(METHODS))
def test_scaling(seed, scale, method):
    x, y = random_laws(seed, 40, 7, 2), random_laws(seed + 1, 10, 7, 2)
    torch.testing.assert_close(
        gaussian_w2(x.scaled(scale), y.scaled(scale), method=method),
        gaussian_w2(x, y, method=method) * scale**2,
        rtol=1e-9,
        atol=0,
    )


@quick
@given(seed=seeds, method=st.sampled_from(METHODS))
def test_one_dimension(seed, method):
    x, y = random_laws(seed, 20, 1, 3), random_laws(seed + 1, 30, 1, 3)
    deviations = [law.covariances[:, 0, 0].sqrt() for law in (x, y)]
    expected = (x.means - y.means.mT) ** 2 + (deviations[0][:, None] - deviations[1]) ** 2
    # a difference of deviations near zero keeps their rounding
    torch.testing.assert_close(gaussian_w2(x, y, method=method), expected, rtol=1e-9, atol=1e-14)


@quick
@given(seed=seeds, rank=st.integers(0, 6), method=st.sampled_from(METHODS))
def test_commuting_covariances(seed, rank, method):
    rng = np.random.default_rng(seed)
    q = np.linalg.qr(rng.normal(size=(6, 6)))[0]
    a, b = rng.uniform(0.1, 4, size=(2, 6))
    a[rank:] = 0
    x, y = laws_of((q * a) @ q.T), laws_of((q * b) @ q.T)
    expected = ((np.sqrt(a) - np.sqrt(b)) ** 2).sum()
    # where A is null its rounding, u |A|, counts with its root
    atol = 1e-12 if rank == 6 else 1e-7
    assert abs(float(gaussian_w2(x, y, method=method)) - expected) <= atol


@quick
@given(seed=seeds, method=st.sampled_from(METHODS))
def test_rank_one_closed_form(seed, method):
    # B2(u u^T, v v^T) = |u|^2 + |v|^2 - 2 |u . v|
    rng = np.random.default_rng(seed)
    u, v = rng.normal(size=(2, 40))
    points = torch.from_numpy(np.stack([u, -u, v, -v]))
    w = torch.full((4,), 0.25, dtype=torch.float64)
    laws = class_laws(points, torch.tensor([0, 0, 1, 1]), w)
    found = gaussian_w2(laws, laws, method=method)[0, 1]
    assert math.isclose(found, u @ u + v @ v - 2 * abs(u @ v), rel_tol=1e-13)


@pytest.mark.parametrize("method", METHODS)
def test_disjoint_supports_add_traces(method):
    points, labels, weights = random_data(0, 200, 20, 2)
    points[labels == 0, 10:] = 0
    points[labels == 1, :10] = 0
    laws = class_laws(points, labels, weights)
    traces = laws.covariances.diagonal(dim1=1, dim2=2).sum(1)
    gap = (laws.means[0] - laws.means[1]).square().sum()
    torch.testing.assert_close(gaussian_w2(laws, laws, method=method)[0, 1], traces.sum() + gap)


def exact_b2_2x2(a, b):
    """``tr A + tr B - 2 sqrt(tr AB + 2 sqrt(det A det B))`` in 120 digits."""

    def root(value):
        scale = 10**120
        return Fraction(math.isqrt(value.numerator * scale**2 // value.denominator), scale)

    a, b = ([[Fraction(float(v)) for v in row] for row in m] for m in (a, b))
    det = [m[0][0] * m[1][1] - m[0][1] * m[1][0] for m in (a, b)]
    product = sum(a[i][k] * b[k][i] for i in range(2) for k in range(2))
    traces = sum(m[i][i] for m in (a, b) for i in range(2))
    return float(traces - 2 * root(product + 2 * root(det[0] * det[1])))


@quick
@given(seed=seeds, small=st.sampled_from([1e-4, 1e-8, 1e-11]), method=st.sampled_from(METHODS))
def test_badly_conditioned_against_exact_arithmetic(seed, small, method):
    rng = np.random.default_rng(seed)
    covariances = []
    for spectrum in ([1.0, small], [small, 2.0]):
        q = np.linalg.qr(rng.normal(size=(2, 2)))[0]
        c = (q * spectrum) @ q.T
        covariances.append((c + c.T) / 2)
    found = float(gaussian_w2(laws_of(covariances[0]), laws_of(covariances[1]), method=method))
    assert math.isclose(found, exact_b2_2x2(*covariances), rel_tol=1e-7)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("step", [1e-2, 1e-4, 1e-6])
def test_close_laws_keep_their_digits(method, step):
    # A and (I + step D) A (I + step D) with D, A diagonal: B2 = step^2 tr D^2 A
    a, d = np.array([1.0, 2.0, 3.0]), np.array([1.0, 0.5, 2.0])
    found = float(
        gaussian_w2(laws_of(np.diag(a)), laws_of(np.diag(a * (1 + step * d) ** 2)), method=method)
    )
    assert math.isclose(found, step**2 * (d**2 * a).sum(), rel_tol=1e-15 / step + 1e-12)


def test_diagonal_and_means():
    x, y = random_data(0, 60, 5, 3), random_data(1, 70, 5, 2)
    gaps = (class_laws(*x).means[:, None] - class_laws(*y).means).square().sum(2)
    a, b = (class_laws(*data, kind="means") for data in (x, y))
    torch.testing.assert_close(gaussian_w2(a, b), gaps)
    a, b = (class_laws(*data, kind="diagonal") for data in (x, y))
    deviations = a.variances.sqrt()[:, None] - b.variances.sqrt()
    found = label_cost(a, b)
    torch.testing.assert_close(found.xy, gaps + deviations.square().sum(2))
    assert found.xx.diagonal().abs().max() == 0
    # a diagonal law is the Gaussian law without correlations
    full = [laws_from_moments(law.masses, law.means, law.covariances) for law in (a, b)]
    torch.testing.assert_close(gaussian_w2(*full), found.xy, rtol=1e-12, atol=0)


def test_batches_do_not_change_values():
    x, y = random_laws(0, 60, 9, 5), random_laws(1, 50, 9, 4)
    whole = gaussian_w2(x, y, method="polar")
    torch.testing.assert_close(
        gaussian_w2(x, y, method="polar", memory_limit=1), whole, rtol=1e-10, atol=0
    )
    assert gaussian_w2(x, y, method="polar").equal(whole)


def test_unconverged_pairs_fall_back(monkeypatch):
    x, y = random_laws(0, 60, 9, 3), random_laws(1, 50, 9, 3)
    expected = gaussian_w2(x, y, method="svd")
    # one round that leaves all values below a half behind
    monkeypatch.setattr("otdd_flash.laws.polar._floors", lambda *args: [0.5])
    calls = []
    solve = factor_pairs.svd_pairs
    monkeypatch.setattr(factor_pairs, "svd_pairs", lambda *args: calls.append(1) or solve(*args))
    torch.testing.assert_close(gaussian_w2(x, y, method="polar"), expected, rtol=1e-12, atol=0)
    assert len(calls) == 9


@settings(max_examples=15, deadline=None, derandomize=True)
@given(
    seed=seeds,
    rows=st.integers(1, 30),
    columns=st.integers(1, 30),
    rank=st.integers(0, 30),
    decades=st.sampled_from([0, 3, 8, 14]),
)
def test_polar(seed, rows, columns, rank, decades):
    rng = np.random.default_rng(seed)
    rank = min(rank, rows, columns)
    u = np.linalg.qr(rng.normal(size=(3, rows, rank)))[0]
    v = np.linalg.qr(rng.normal(size=(3, columns, rank)))[0]
    s = 10.0 ** (-decades * rng.uniform(size=(3, rank)))
    m = torch.from_numpy((u * s[:, None]) @ v.swapaxes(1, 2))
    found = polar(m, torch.full((3,), min(rows, columns), dtype=torch.float64))
    assert bool(found.converged.all())
    expected = torch.from_numpy(s.sum(1))
    torch.testing.assert_close(found.nuclear, expected, rtol=1e-10, atol=1e-14)
    if decades == 0:
        q = torch.from_numpy(u @ v.swapaxes(1, 2))
        torch.testing.assert_close(found.factor, q, rtol=0, atol=1e-9)
        assert float((found.missing - (min(rows, columns) - rank)).abs().max()) < 1e-7


def test_gram_by_blocks():
    x = torch.randn(2, 90, 1030, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(gram(x), x.mT @ x, rtol=1e-13, atol=1e-12)


def test_errors():
    x = random_laws(0, 30, 3, 2)
    points, labels, weights = random_data(0, 30, 3, 2)
    with pytest.raises(SettingsError, match="expected one of auto, svd, polar"):
        gaussian_w2(x, x, method="eig")
    with pytest.raises(SettingsError, match="accuracy is 0.5, expected a number from 1e-12 to"):
        gaussian_w2(x, x, accuracy=0.5)
    with pytest.raises(SettingsError, match="gaussian and means"):
        gaussian_w2(x, class_laws(points, labels, weights, kind="means"))
    with pytest.raises(DataError, match="3 features, target has 4"):
        gaussian_w2(x, random_laws(0, 30, 4, 2))
    part = class_laws(points, labels, weights, classes=3)
    with pytest.raises(WeightError, match="target class 2 has no mass"):
        gaussian_w2(x, part)


@pytest.mark.parametrize("method", METHODS)
def test_laws_that_differ_by_their_means_alone_need_no_pair(monkeypatch, method):
    def refuse(*_):
        raise AssertionError("a pair of equal covariances was measured")

    monkeypatch.setattr(bures, "svd_pairs", refuse)
    monkeypatch.setattr(bures, "batched_pairs", refuse)
    points = torch.randn(9, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    x, y = points[:4], points[4:]
    laws = [class_laws(p, torch.arange(len(p)), torch.full((len(p),), 1 / len(p))) for p in (x, y)]
    found = label_cost(*laws, method=method)
    for block, (p, q) in zip(found, ((x, y), (x, x), (y, y)), strict=True):
        gaps = (p[:, None] - q[None]).square().sum(2)
        assert torch.allclose(block, gaps, rtol=1e-14, atol=0)
