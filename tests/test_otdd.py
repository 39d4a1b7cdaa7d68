"""The dataset distance through its public interface: oracles, invariances, conventions, flags."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from problems import NUMPY, dataset, moved
from truth import cost_matrix, divergence, label_cost, weights

import otdd_flash as otdd
from otdd_flash import ConvergenceWarning, LabelledDataset


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("epsilon", ["5%", "50%"])
@pytest.mark.parametrize("debias", [True, False])
def test_equals_its_definition_in_dense_float64(weighted, epsilon, debias):
    x, y = dataset(30, 4, 0, weighted=weighted), dataset(25, 4, 1, classes=5, weighted=weighted)
    result = otdd.distance(x, y, epsilon=epsilon, tol=1e-8, debias=debias)
    np.testing.assert_allclose(result.label_cost.numpy(), label_cost(x, y), rtol=1e-11)
    cost = cost_matrix(x, y, label_cost(x, y))
    assert result.mean_cost == pytest.approx(weights(x) @ cost @ weights(y), rel=1e-12)
    assert result.epsilon == pytest.approx(float(epsilon[:-1]) / 100 * result.mean_cost, rel=1e-12)
    true = divergence(x, y, result.epsilon, debias=debias)
    assert result.squared == pytest.approx(true, abs=1e-9 * result.mean_cost)
    assert result.squared_bounds[0] <= true <= result.squared_bounds[1]


@pytest.mark.parametrize("epsilon", ["0.1%", "1%", "100%", 0.1, 1e3])
@pytest.mark.parametrize("classes", [1, 4, 20])
def test_translation_counts_twice_with_gaussian_labels(classes, epsilon):
    # with 20 classes of 20 samples every class is one sample, a point mass
    x = dataset(20 if classes == 20 else 40, 5, 3, classes=classes)
    t = np.array([1.0, -2.0, 0.5, 0.0, 3.0])
    result = otdd.distance(x, moved(x, t), epsilon=epsilon, tol=1e-6, max_passes=5000)
    assert result.squared == pytest.approx(
        2 * t @ t, abs=1e-7 * (result.mean_cost + result.epsilon)
    )
    low, high = result.squared_bounds
    assert low - 1e-12 <= 2 * t @ t <= high + 1e-12


def test_few_samples_in_many_dimensions_translate():
    r = np.random.default_rng(0)
    x = r.standard_normal((20, 784))
    x[:, 100:] = 0.5
    source = LabelledDataset(x, np.arange(20) // 5)
    t = np.zeros(784)
    t[:3] = 1.0, 2.0, -2.0
    result = otdd.distance(source, moved(source, t), tol=1e-6)
    assert result.squared == pytest.approx(18.0, abs=1e-7 * result.mean_cost)


@pytest.mark.parametrize("kind", NUMPY)
@pytest.mark.parametrize("epsilon", ["0.01%", "1%", "100%", 1e-9])
def test_the_same_data_is_at_distance_zero_exactly(kind, epsilon):
    x = dataset(40, 6, 5, kind)
    y = LabelledDataset(x.points.clone(), x.labels.numpy().copy())
    for label_distance in ("gaussian", "diagonal", "means"):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            result = otdd.distance(x, y, epsilon=epsilon, label_distance=label_distance)
        assert result.squared == 0.0 and result.distance == 0.0
        assert result.squared_bounds == (0.0, 0.0)
        assert result.transport.lower == 0.0


@pytest.mark.parametrize("kind", NUMPY)
@pytest.mark.parametrize("label_distance", ["gaussian", "diagonal", "means"])
def test_shuffled_rows_and_renamed_classes_are_at_distance_zero(kind, label_distance):
    x = dataset(60, 6, 6, kind)
    order = np.random.default_rng(1).permutation(60)
    for names in ([0, 1, 2], [7, 3, 40], ["seven", "three", "forty"]):
        y = LabelledDataset(x.points[order], [names[k] for k in x.labels[order].tolist()])
        for epsilon in ("1%", "20%"):
            result = otdd.distance(x, y, epsilon=epsilon, label_distance=label_distance)
            assert abs(result.squared) < 1e-6 * result.mean_cost


@pytest.mark.parametrize("kind", NUMPY)
def test_symmetry(kind):
    x, y = dataset(50, 5, 7, kind), dataset(40, 5, 8, kind, classes=4, weighted=True)
    one, two = (otdd.distance(p, q, tol=3e-5) for p, q in ((x, y), (y, x)))
    assert one.squared == pytest.approx(two.squared, abs=1e-6 * one.mean_cost)
    assert one.mean_cost == pytest.approx(two.mean_cost, rel=1e-12)
    torch.testing.assert_close(one.label_cost, two.label_cost.mT, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(one.class_mass, two.class_mass.mT, rtol=0, atol=1e-4)


def test_gaps_in_labels_mean_nothing():
    r = np.random.default_rng(2)
    x, y = r.standard_normal((2, 3)), r.standard_normal((5, 3))
    gaps = otdd.distance(LabelledDataset(x, [4, 3]), LabelledDataset(y, [4, 3, 2, 0, 1]))
    none = otdd.distance(LabelledDataset(x, [1, 0]), LabelledDataset(y, [4, 3, 2, 0, 1]))
    assert np.isfinite(gaps.squared) and gaps.squared == none.squared
    assert gaps.source.class_names == ("3", "4")


def test_the_convention_of_microsoft_is_half_the_cost():
    x, y = dataset(30, 4, 9), dataset(35, 4, 10)
    half = otdd.distance(x, y, epsilon=0.7, convention="microsoft", tol=1e-8)
    full = otdd.distance(x, y, epsilon=1.4, tol=1e-8)
    assert half.squared == pytest.approx(full.squared / 2, rel=1e-9)
    torch.testing.assert_close(half.label_cost, full.label_cost / 2, rtol=1e-14, atol=0)
    weighed = otdd.distance(x, y, epsilon=0.7, lambda_x=0.5, lambda_y=0.5, tol=1e-8)
    assert half.squared == pytest.approx(weighed.squared, rel=1e-12)


@pytest.mark.parametrize("lambdas", [(1.0, 0.0), (0.0, 1.0), (0.3, 5.0)])
@pytest.mark.parametrize("label_distance", ["gaussian", "diagonal", "means"])
def test_both_parts_of_the_cost_are_weighted(lambdas, label_distance):
    x, y = dataset(20, 3, 11), dataset(20, 3, 12)
    unit = otdd.distance(x, y, label_distance=label_distance).label_cost
    result = otdd.distance(
        x, y, lambda_x=lambdas[0], lambda_y=lambdas[1], label_distance=label_distance
    )
    torch.testing.assert_close(result.label_cost, lambdas[1] * unit, rtol=1e-14, atol=0)
    squared = cost_matrix(x, y)
    labels = unit.numpy()[np.ix_(x.labels.numpy(), y.labels.numpy())]
    mean = (lambdas[0] * squared + lambdas[1] * labels).mean()
    assert result.mean_cost == pytest.approx(mean, rel=1e-12)
    assert result.converged


def test_potentials_and_class_mass_are_in_the_callers_order():
    x, y = dataset(50, 4, 13, weighted=True), dataset(45, 4, 14, classes=4)
    result = otdd.distance(x, y, epsilon="3%", tol=1e-9)
    value = x.weights @ result.f + y.weights @ result.g
    assert float(value) == pytest.approx(result.transport.entropic, rel=1e-12)
    cost = torch.from_numpy(cost_matrix(x, y, result.label_cost.numpy()))
    score = (result.f[:, None] + result.g[None] - cost) / result.epsilon
    plan = x.weights[:, None] * y.weights[None] * score.exp()
    assert float((plan.sum(0) - y.weights).abs().sum()) < 1e-8
    rows, columns = (torch.nn.functional.one_hot(t.labels).double() for t in (x, y))
    torch.testing.assert_close(result.class_mass, rows.mT @ plan @ columns, rtol=0, atol=1e-9)
    torch.testing.assert_close(result.class_mass.sum(1), rows.mT @ x.weights, rtol=0, atol=1e-9)


@pytest.mark.parametrize(
    "n, m, classes", [(1, 1, 1), (1, 30, 1), (30, 1, 5), (5, 30, 5), (9, 9, 1)]
)
def test_few_samples_and_classes(n, m, classes):
    x, y = dataset(n, 3, 19, classes=min(n, classes)), dataset(m, 3, 20, classes=min(m, 4))
    result = otdd.distance(x, y, epsilon="20%", tol=1e-8)
    true = divergence(x, y, result.epsilon)
    assert result.squared == pytest.approx(true, abs=1e-9 * result.mean_cost)
    assert result.class_mass.shape == result.label_cost.shape == (x.classes, y.classes)


def test_a_large_common_offset_loses_nothing():
    x, y = dataset(30, 4, 21), dataset(30, 4, 22)
    near = otdd.distance(x, y)
    far = otdd.distance(moved(x, 1e6), moved(y, 1e6))
    # coordinates near 1e6 are rounded to 1e-10
    assert far.squared == pytest.approx(near.squared, rel=1e-8)
    same = otdd.distance(moved(x, 1e6), moved(x, 1e6))
    assert same.squared == 0.0
