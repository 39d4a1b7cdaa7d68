"""Bounds that hold for every result, converged or not, against exact and dense optima."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from truth import cost_matrix, exact, label_cost, sinkhorn, weights

import otdd_flash as otdd
from otdd_flash import ConvergenceWarning, LabelledDataset, OTDDResult

KINDS = ("float64", "float32", "float16", "uint8", "grid")


def side(
    r: np.random.Generator,
    n: int,
    d: int,
    kind: str,
    classes: int,
    shape: str,  # "spread", "duplicates", "one point"
    weighted: str,  # "uniform", "dirichlet", "zeros"
) -> LabelledDataset:
    if kind == "uint8":
        x = r.integers(0, 256, (n, d)).astype(np.uint8)
    elif kind == "grid":
        x = r.integers(-2, 3, (n, d)).astype(np.float64)
    else:
        x = (r.standard_normal((n, d)) + r.standard_normal(d)).astype(kind)
    if shape != "spread":
        x = x[r.integers(0, max(1, n // 3), n)] if shape == "duplicates" else x[[0] * n]
    w = np.full(n, 1.0 / n)
    if weighted != "uniform":
        w = r.dirichlet(np.full(n, 0.5)) + 1e-9
        if weighted == "zeros":
            w[r.random(n) < 0.3] = 0
            w[0] += 1e-3
    return LabelledDataset(x, r.integers(0, classes, n), weights=w / w.sum())


def used(dataset: LabelledDataset) -> LabelledDataset:
    """Return the samples that carry weight, and their classes."""
    return dataset.subset((dataset.weights > 0).nonzero()[:, 0])


def distance(x: LabelledDataset, y: LabelledDataset, **keywords: object) -> OTDDResult:
    """Return a distance whether or not it converged."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        return otdd.distance(x, y, **keywords)


problems = {
    "seed": st.integers(0, 2**32 - 1),
    "n": st.integers(1, 12),
    "m": st.integers(1, 12),
    "d": st.integers(1, 4),
    "kinds": st.tuples(st.sampled_from(KINDS), st.sampled_from(KINDS)),
    "shapes": st.tuples(*[st.sampled_from(("spread", "spread", "duplicates", "one point"))] * 2),
    "weighted": st.tuples(*[st.sampled_from(("uniform", "dirichlet", "zeros"))] * 2),
    "passes": st.sampled_from((1, 2, 3, 4, 5, 8, 2000)),
    "classes": st.integers(1, 3),
}
usual = settings(
    max_examples=250, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)


def drawn(seed, n, m, d, kinds, shapes, weighted, classes) -> tuple[LabelledDataset, ...]:
    r = np.random.default_rng(seed)
    return tuple(
        side(r, k, d, kind, classes, shape, w)
        for k, kind, shape, w in zip((n, m), kinds, shapes, weighted, strict=True)
    )


@usual
@given(**problems, log_eps=st.floats(-12, 3))
@example(0, 12, 12, 3, ("uint8", "uint8"), ("spread",) * 2, ("uniform",) * 2, 2000, 2, -9.0)
@example(1, 12, 1, 1, ("grid", "grid"), ("one point",) * 2, ("uniform",) * 2, 1, 1, -12.0)
@example(2, 9, 11, 4, ("uint8", "uint8"), ("duplicates",) * 2, ("zeros",) * 2, 1, 3, -6.0)
def test_exact_cost_lies_within_the_bounds(
    seed, n, m, d, kinds, shapes, weighted, passes, classes, log_eps
):
    x, y = drawn(seed, n, m, d, kinds, shapes, weighted, classes)
    result = distance(x, y, epsilon=f"{100 * 10.0**log_eps}%", max_passes=passes)
    p, q = used(x), used(y)
    cost = cost_matrix(p, q, label_cost(p, q))
    true = exact(cost, weights(p), weights(q))
    # rounding of the exact solver and of the label costs, which both are float64
    noise = 1e-11 * (cost.max() + result.mean_cost) + 1e-300
    assert 0 <= result.transport.lower <= true + noise
    assert true - noise <= result.transport.upper <= result.mean_cost * (1 + 1e-5) + noise
    assert all(math.isfinite(v) for v in (result.squared, *result.squared_bounds))
    assert result.squared_bounds[0] <= result.squared_bounds[1]
    assert result.converged == (result.marginal_error < 1e-3)
    assert float(result.class_mass.sum()) == pytest.approx(1.0, abs=1e-6)


@usual
@given(**problems, log_eps=st.floats(-1, 2), debias=st.booleans())
def test_true_divergence_lies_within_the_bounds(
    seed, n, m, d, kinds, shapes, weighted, passes, classes, log_eps, debias
):
    x, y = drawn(seed, n, m, d, kinds, shapes, weighted, classes)
    result = distance(x, y, epsilon=f"{100 * 10.0**log_eps}%", max_passes=passes, debias=debias)
    p, q = used(x), used(y)
    eps, size, true = result.epsilon, 0.0, []
    for left, right in ((p, q), (p, p), (q, q)):
        cost = cost_matrix(left, right, label_cost(left, right))
        size = max(size, float(cost.max()))
        true.append(sinkhorn(cost, weights(left), weights(right), eps).value)
    divergence = true[0] - (true[1] + true[2]) / 2 if debias else true[0]
    # the truth stops at an L1 error of 1e-12; label costs of flat classes err by 1e-8 of their size
    noise = 1e-10 * (size + eps)
    low, high = result.squared_bounds
    assert low - noise <= divergence <= high + noise
    assert low - noise <= result.squared <= high + noise
    # the dual value of any potentials is a lower bound of the regularised value
    rounding = 1e-5 * size if {"uint8"} == set(kinds) else 1e-12 * size
    assert result.transport.entropic <= true[0] + noise + rounding
    if result.converged:
        assert abs(result.transport.entropic - true[0]) <= high - low + noise
        assert abs(result.squared - divergence) <= 1e-3 * (result.mean_cost + eps) + noise


@pytest.mark.parametrize("n", [1, 2, 17, 64])
@pytest.mark.parametrize("epsilon", ["0.01%", "1%", "100%"])
def test_assignment_of_equal_clouds_lies_within_the_bounds(n, epsilon):
    r = np.random.default_rng(n)
    x, y = (LabelledDataset(r.standard_normal((n, 5)), r.integers(0, 3, n)) for _ in range(2))
    result = distance(x, y, epsilon=epsilon, max_passes=5000)
    cost = cost_matrix(x, y, result.label_cost.numpy())
    true = float(cost[linear_sum_assignment(cost)].mean())
    noise = 1e-12 * cost.max()
    assert result.transport.lower - noise <= true <= result.transport.upper + noise
    if result.converged:
        # entropy of at most log n spreads the plan; rounding adds the error times the costs
        gap = result.epsilon * math.log(n) + 2e-3 * cost.max() + noise
        assert result.transport.upper - result.transport.lower <= 2 * gap


def test_bounds_close_as_the_solve_goes_on():
    r = np.random.default_rng(5)
    x, y = (LabelledDataset(r.standard_normal((60, 6)) + k, r.integers(0, 4, 60)) for k in (0, 1))
    widths, mean = [], 0.0
    for tol in (1e-1, 1e-3, 1e-6, 1e-9):
        result = distance(x, y, epsilon="5%", tol=tol)
        (low, high), mean = result.squared_bounds, result.mean_cost
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < 1e-7 * mean


@pytest.mark.parametrize("epsilon", ["1%", "10%"])
def test_bounds_of_bytes_stay_close_in_float32(epsilon):
    r = np.random.default_rng(8)
    x, y = (
        LabelledDataset(r.integers(0, 256, (80, 784)).astype(np.uint8), r.integers(0, 3, 80))
        for _ in range(2)
    )
    result = distance(x, y, epsilon=epsilon)
    assert result.converged
    low, high = result.squared_bounds
    assert high - low < 2e-3 * result.mean_cost
    assert low <= result.squared <= high


def test_a_plan_of_no_mass_is_still_a_plan():
    # after one pass at a tiny eps every column of the plan can hold too much or nothing at all
    x = LabelledDataset(torch.tensor([[0.0], [0.0], [100.0]]))
    y = LabelledDataset(torch.tensor([[1.0], [50.0], [99.0]]))
    for passes in (1, 2, 3):
        result = distance(x, y, epsilon=1e-3, max_passes=passes)
        assert not result.converged
        assert result.transport.upper >= exact(cost_matrix(x, y), weights(x), weights(y)) - 1e-9
