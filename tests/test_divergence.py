"""The divergence of unlabelled clouds: closed forms, invariances, degenerate and extreme clouds."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from problems import dataset
from torch import Tensor
from truth import cost_matrix, divergence, exact, weights

import otdd_flash as otdd
from otdd_flash import ConvergenceWarning, LabelledDataset

DTYPES = {
    "uint8": torch.uint8,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
}


def value(x: object, y: object, *args: object, **keywords: object) -> float:
    """Return S, converged or not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return float(otdd.sinkhorn_divergence(x, y, *args, **keywords))


def translated(kind: str, n: int, d: int, offset: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return X, X + t in the same dtype, and t."""
    draw = torch.Generator().manual_seed(d + n)
    if kind == "uint8":
        x = torch.randint(50, 200, (n, d), generator=draw)
        t = torch.randint(-50, 50, (d,), generator=draw)
        return x.to(torch.uint8), (x + t).to(torch.uint8), t.double()
    x = (torch.randn((n, d), generator=draw, dtype=torch.float64) + offset).to(DTYPES[kind])
    t = 2 * torch.randn(d, generator=draw, dtype=torch.float64)
    return x, (x.double() + t).to(x.dtype), t


def rounding_of_points(x: Tensor, y: Tensor, t: Tensor) -> float:
    """Return how far S can be from |t|^2 because X + t was rounded to its dtype.

    The root of S moves by at most the root mean square distance that the points moved.
    """
    moved = float((y.double() - x.double() - t).square().sum(1).mean().sqrt())
    return 2 * float(t.norm()) * moved + moved**2


@pytest.mark.parametrize("d", [1, 3, 17, 784])
@pytest.mark.parametrize(
    "kind, offset",
    [("uint8", 0), *[(k, o) for k in ("fp16", "fp32", "fp64") for o in (0, 1000)]],
)
@pytest.mark.parametrize("eps", [1e-3, 1e-1, 10.0])
def test_translation_adds_its_square(kind, offset, eps, d):
    x, y, t = translated(kind, 12, d, offset)
    data = LabelledDataset(x), LabelledDataset(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        result = otdd.distance(*data, epsilon=eps, lambda_y=0.0, tol=1e-6)
    true, moved = float(t @ t), rounding_of_points(x, y, t)
    low, high = result.squared_bounds
    # the bounds are for the given points
    assert low - moved <= true * (1 + 1e-13)
    assert true * (1 - 1e-13) <= high + moved
    # values converge with the square of the marginal error; float32 leaves 1e-7 of the cost
    assert abs(result.squared - true) <= 1e-7 * (result.mean_cost + eps) + moved
    assert result.distance == pytest.approx(max(result.squared, 0.0) ** 0.5)


@pytest.mark.parametrize("d", [1, 2, 3, 15, 16, 17, 31, 32, 33, 64, 65])
@pytest.mark.parametrize("n", [1, 2, 127, 129])
def test_translation_in_every_shape(n, d):
    x, y, t = translated("fp64", n, d, 0.0)
    true = float(t @ t)
    assert value(x, y, epsilon="10%", tol=1e-6) == pytest.approx(true, abs=1e-6 * (true + 2 * d))


@pytest.mark.parametrize("n, m", [(1, 129), (127, 2), (129, 127), (2, 1)])
@pytest.mark.parametrize("d", [1, 16, 33])
def test_rectangular_problems_equal_the_dense_truth(n, m, d):
    draw = torch.Generator().manual_seed(n + m + d)
    x, y = (torch.randn((k, d), generator=draw, dtype=torch.float64) for k in (n, m))
    data = LabelledDataset(x), LabelledDataset(y)
    eps = 0.2 * d
    true = divergence(*data, eps, labels=False)
    assert value(x, y, epsilon=eps, tol=1e-8) == pytest.approx(true, abs=1e-9 * d)


@pytest.mark.parametrize("kind", DTYPES)
def test_large_eps_leaves_the_distance_of_the_means(kind):
    draw = torch.Generator().manual_seed(2)
    x, y = (torch.randint(0, 256, (k, 6), generator=draw).to(DTYPES[kind]) for k in (30, 20))
    apart = (x.double().mean(0) - y.double().mean(0)).square().sum()
    mean = float(cost_matrix(LabelledDataset(x), LabelledDataset(y)).mean())
    # S differs by O(cost^2 / eps), and float32 exponentials lose 6e-8 of eps
    for share in (1e2, 1e4):
        lost = 4e-7 * share if kind == "uint8" else 1e-12 * share
        got = value(x, y, epsilon=share * mean, tol=1e-7)
        assert abs(got - float(apart)) <= (2 / share + lost) * mean


def test_duplicates_are_weights():
    y, third = [[5.0]], [1 / 3, 2 / 3]
    apart = value([[0.0], [1.0], [1.0]], y, epsilon=0.3, tol=1e-10)
    together = value([[0.0], [1.0]], y, third, epsilon=0.3, tol=1e-10)
    assert apart == pytest.approx(18.909475, abs=5e-7)
    assert together == pytest.approx(apart, abs=1e-12)


def test_close_distant_points_do_not_cancel():
    x = torch.full((1, 1), 512695.0)
    y = torch.full((1, 1), 512804.0)
    assert value(x, y) == pytest.approx(11881.0, rel=1e-14)
    draw = torch.Generator().manual_seed(0)
    z = torch.randn((50, 8), generator=draw, dtype=torch.float64)
    assert value(z + 1000, z + 1001) == pytest.approx(8.0, rel=1e-6)
    assert value(z + 1e6, z + 1e6 + 1) == pytest.approx(8.0, rel=1e-6)


@pytest.mark.parametrize("n, m", [(1, 1), (5, 5), (5, 3)])
@pytest.mark.parametrize("epsilon", ["1%", 1e-9, 1.0])
def test_identical_points_are_at_distance_zero(n, m, epsilon):
    x, y = torch.full((n, 4), 3.25), torch.full((m, 4), 3.25)
    assert abs(value(x, y, epsilon=epsilon)) < 1e-15


def test_small_clouds_are_never_negative():
    draw = torch.Generator().manual_seed(4)
    for dtype in (torch.float32, torch.float64):
        x = (0.01 * torch.randn((50, 160), generator=draw, dtype=torch.float64)).to(dtype)
        for epsilon in ("1%", "10%", 1e-4, 0.1):
            got = value(x, x + 0.01, epsilon=epsilon)
            assert got == pytest.approx(0.016, rel=1e-5)
            assert value(x, x, epsilon=epsilon) == 0.0


def test_eps_sweep_ends_at_the_exact_value_or_flagged():
    draw = torch.Generator().manual_seed(6)
    x, y = (torch.rand((40, 2), generator=draw, dtype=torch.float64) for _ in range(2))
    data = LabelledDataset(x), LabelledDataset(y)
    true = exact(cost_matrix(*data), weights(data[0]), weights(data[1]))
    for eps in (1e-1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            result = otdd.distance(*data, epsilon=eps, lambda_y=0.0, max_passes=3000)
        flagged = any(issubclass(w.category, ConvergenceWarning) for w in caught)
        assert flagged != result.converged
        assert np.isfinite([result.squared, result.transport.entropic]).all()
        assert result.transport.lower <= true <= result.transport.upper
        if result.converged:
            # entropy is at most log n, and self terms at eps at most that
            assert abs(result.squared - true) <= 2 * eps * np.log(40) + 1e-3 * true


def test_zero_weights_are_dropped_points():
    x, y = torch.tensor([[0.0], [1.0], [9.0]]), torch.tensor([[2.0], [3.0]])
    with_zero = value(x, y, [0.5, 0.5, 0.0], epsilon=1e-2, tol=1e-9)
    assert with_zero == pytest.approx(4.0, rel=1e-6)
    assert with_zero == value(x[:2], y, epsilon=1e-2, tol=1e-9)


def test_bytes_and_halves_do_not_wrap_or_overflow():
    zeros = torch.zeros((1, 1), dtype=torch.uint8)
    # scores of bytes are float32: their last bit
    assert value(zeros, zeros + 255) == pytest.approx(65025.0, rel=2.0**-23)
    x = torch.zeros((3, 784), dtype=torch.float16)
    assert value(x, x + 255) == pytest.approx(784 * 65025.0, rel=1e-12)


def test_non_contiguous_clouds_equal_contiguous_ones():
    draw = torch.Generator().manual_seed(7)
    z = torch.randn((6, 30), generator=draw, dtype=torch.float64)
    wide = torch.randn((25, 12), generator=draw, dtype=torch.float64)
    got = value(z.T, wide[:, ::2], epsilon="5%")
    assert got == value(z.T.contiguous(), wide[:, ::2].contiguous(), epsilon="5%")
    assert got == value(z.T.numpy(), wide.numpy()[:, ::2], epsilon="5%")


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 2**32 - 1),
    n=st.integers(1, 20),
    m=st.integers(1, 20),
    d=st.integers(1, 5),
    log_scale=st.floats(-6, 6),
)
def test_symmetry_permutation_scaling_and_sign(seed, n, m, d, log_scale):
    r = np.random.default_rng(seed)
    x, y = r.standard_normal((n, d)), r.standard_normal((m, d)) + r.standard_normal(d)
    a, b = (w / w.sum() for w in (r.random(n) + 0.1, r.random(m) + 0.1))
    keywords = {"epsilon": "20%", "tol": 1e-8}
    got = value(x, y, a, b, **keywords)
    # converged to 1e-8, the value to about its square; the rest is rounding
    close = 1e-9 * (1 + d)
    assert got >= -close
    assert value(y, x, b, a, **keywords) == pytest.approx(got, abs=close)
    order = r.permutation(n)
    assert value(x[order], y, a[order], b, **keywords) == pytest.approx(got, abs=close)
    scale = 10.0**log_scale
    scaled = value(scale * x, scale * y, a, b, **keywords)
    assert scaled / scale**2 == pytest.approx(got, abs=10 * close)


def test_bytes_are_solved_in_float64_where_float32_would_hide_the_error():
    draw = torch.Generator().manual_seed(5)
    x, y = (torch.randint(0, 256, (40, 64), generator=draw, dtype=torch.uint8) for _ in range(2))
    settings = {"epsilon": "0.01%", "tol": 1e-6, "max_passes": 20000, "device": "cpu"}
    bytes_ = otdd.distance(otdd.LabelledDataset(x), otdd.LabelledDataset(y), **settings)
    floats = otdd.distance(
        otdd.LabelledDataset(x.double()), otdd.LabelledDataset(y.double()), **settings
    )
    assert bytes_.converged and floats.converged
    assert bytes_.squared == pytest.approx(floats.squared, rel=1e-9)


def test_an_epsilon_that_no_arithmetic_resolves_is_refused():
    x, y = (LabelledDataset(k + np.random.default_rng(k).standard_normal((9, 3))) for k in (0, 1))
    tiny = otdd.OTDDSettings(epsilon=1e-100, device="cpu")
    plain = {"epsilon": 1e-100, "device": "cpu"}
    for refused in (
        lambda: otdd.distance(x, y, settings=tiny),
        lambda: otdd.sinkhorn_divergence(x.points, y.points, **plain),
        lambda: otdd.matrix([x, y], tiny),
        lambda: list(otdd.flow(x, y, otdd.FlowSettings(steps=1, solver=tiny))),
    ):
        with pytest.raises(otdd.SettingsError, match="^epsilon is 1e-100, far below") as caught:
            refused()
    with pytest.raises(otdd.SettingsError, match="the square of blur is 1e-100, far below"):
        otdd.SamplesLoss(blur=1e-50, reach=1.0)(x.points, y.points)
    # what the message says to give works, a last digit of it aside
    least = float(str(caught.value).split("expected ")[1].split(" or more")[0])
    assert otdd.distance(x, y, epsilon=2 * least, device="cpu", max_passes=20_000).converged


def test_where_rounding_hides_the_largest_error_that_error_is_told():
    x = dataset(30, 4, 0)
    for epsilon in (1e-100, 1e-20):
        with pytest.warns(ConvergenceWarning, match="marginal error is 2.00e.00"):
            same = otdd.distance(x, x, epsilon=epsilon, max_passes=50, device="cpu")
        assert same.squared == 0.0 and same.marginal_error == 2.0 and not same.converged
        # one sample's mass moved by rounding costs no more than the product of the marginals
        assert abs(same.transport.entropic) <= same.mean_cost
        assert 0.0 <= same.transport.upper <= 1.01 * same.mean_cost
