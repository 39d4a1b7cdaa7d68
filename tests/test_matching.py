"""Equal samples in another order or under other class names are at distance 0, exactly."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import otdd_flash as otdd
from otdd_flash.cost import make_side
from otdd_flash.solver.matching import match

CPU = torch.device("cpu")


def arrays(n: int = 55, d: int = 3, seed: int = 518):
    draw = np.random.default_rng(seed)
    return draw.normal(size=(n, d)), draw.integers(0, 3, n), draw.permutation(n)


@pytest.mark.parametrize("epsilon", ["1%", 1e-3, 10.0])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.uint8])
def test_permuted_and_renamed_copies_are_at_zero(dtype, epsilon):
    x, labels, order = arrays()
    x = (20 * x).astype(dtype)
    names = np.array(["c", "a", "b"])
    source = otdd.LabelledDataset(x, labels, name="source")
    target = otdd.LabelledDataset(x[order], names[labels[order]], name="target")
    result = otdd.distance(source, target, epsilon=epsilon, device="cpu")
    assert result.squared == 0.0 and result.squared_bounds == (0.0, 0.0)
    # class 0 is called c, which is the target's third
    shares = result.class_mass / result.class_mass.sum()
    expected = torch.zeros(3, 3, dtype=torch.float64)
    for k, name in ((0, 2), (1, 0), (2, 1)):
        expected[k, name] = float((labels == k).mean())
    if epsilon != 10.0:
        torch.testing.assert_close(shares, expected, rtol=0, atol=2e-2)
    # the plan's own rows miss the weights by the marginal error; the result's are the weights
    gap = (result.plan.class_mass() - result.class_mass).abs().sum()
    assert float(gap) <= result.marginal_error + 1e-12
    if epsilon == 1e-3:
        matches, _ = result.plan.top_matches(1)
        assert (x[order][matches[:, 0]] == x).all()


def test_gradients_of_a_permuted_copy_vanish():
    x, _, order = arrays()
    points = torch.tensor(x, requires_grad=True)
    moved = torch.tensor(x[order], requires_grad=True)
    value = otdd.sinkhorn_divergence(points, moved, epsilon=0.1, device="cpu")
    value.backward()
    assert value.item() == 0.0 and not points.grad.any()
    # sums over columns and over rows round apart
    assert float(moved.grad.abs().max()) < 1e-15


def side(x, labels, weights=None):
    data = otdd.LabelledDataset(x, labels, weights=weights)
    return make_side(data.points, data.labels, data.weights, CPU)


def test_what_differs_is_not_matched():
    x, labels, order = arrays()
    whole = side(x, labels)
    assert match(whole, side(x[order], labels[order])) is not None
    other = x.copy()
    other[7, 1] = np.nextafter(other[7, 1], 9)
    assert match(whole, side(other, labels)) is None
    swapped = labels.copy()
    first = int(np.flatnonzero(labels != labels[0])[0])
    swapped[[0, first]] = swapped[[first, 0]]
    assert match(whole, side(x, swapped)) is None
    weights = np.full(55, 1 / 55)
    weights[:2] = [0.5 / 55, 1.5 / 55]
    assert match(whole, side(x, labels, weights)) is None
    assert match(whole, side(x[:54], labels[:54])) is None
    assert match(whole, side(x.astype(np.float32), labels)) is None


def test_signs_of_zero_do_not_matter():
    x = np.array([[0.0, 1.0], [2.0, -0.0]])
    assert match(side(x, [0, 1]), side(np.abs(x)[::-1].copy(), [1, 0])) is not None


@pytest.mark.parametrize("scale", [1e80, 1e150, 1e-160, 1e-300])
def test_costs_that_float64_cannot_square_are_refused(scale):
    x, labels, _ = arrays()
    pair = [otdd.LabelledDataset(x[rows] * scale, labels[rows]) for rows in (slice(30), slice(55))]
    with pytest.raises(otdd.DataError, match=r"mean cost.*scale the points"):
        otdd.distance(*pair, device="cpu")


def test_a_start_is_free_of_its_constant_and_of_nonsense():
    x, labels, _ = arrays()
    source, target = otdd.LabelledDataset(x), otdd.LabelledDataset(x[:20] + 1)
    settings = {"device": "cpu", "tol": 1e-9}
    plain = otdd.distance(source, target, **settings)
    for shift in (0.0, 1e6, 1e14):
        again = otdd.distance(source, target, start=plain.g + shift, **settings)
        assert plain.squared_bounds[0] <= again.squared <= plain.squared_bounds[1]
        assert again.squared_bounds[0] <= again.squared_bounds[1]
    with pytest.raises(otdd.SettingsError, match="start spans"):
        otdd.distance(source, target, start=torch.linspace(-1e9, 1e9, 20), **settings)
    with pytest.raises(otdd.SettingsError, match="in units of the cost"):
        otdd.distance(source, target, epsilon=5e-324, device="cpu")


@pytest.mark.parametrize("kept", [30, 300, 700])
def test_a_copy_of_a_subsample_is_at_zero(kept):
    # the subsample's weights are shares of a sum, the copy's are 1/n: some ulp apart
    whole = otdd.load("mnist-mini")
    part = otdd.load(whole, max_samples=kept, seed=0)
    order = torch.randperm(kept, generator=torch.Generator().manual_seed(0))
    copy = otdd.LabelledDataset(part.points[order], part.labels[order])
    result = otdd.distance(part, copy, device="cpu")
    assert result.squared == 0.0 and result.squared_bounds == (0.0, 0.0)
    # weights that are apart by more than rounding are others
    shares = copy.weights * torch.linspace(1 - 1e-10, 1 + 1e-10, kept, dtype=torch.float64)
    other = otdd.LabelledDataset(copy.points, copy.labels, weights=shares / shares.sum())
    assert match(*(make_side(d.points, d.labels, d.weights, CPU) for d in (part, other))) is None
