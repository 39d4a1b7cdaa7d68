"""Intervals against converged resamples and the central limit theorem; noise floors."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
import truth
from problems import dataset

import otdd_flash as otdd
from otdd_flash import Confidence, LabelledDataset, OTDDSettings
from otdd_flash.confidence import Draws
from otdd_flash.cost import Margin
from otdd_flash.noise import halves
from otdd_flash.results import load_result, save, summary, to_json

SETTINGS = OTDDSettings(epsilon="5%", device="cpu")


def margin(weights: torch.Tensor) -> Margin:
    n = len(weights)
    return Margin(torch.zeros(n, dtype=torch.int64), weights, torch.arange(n))


def resampled(data: LabelledDataset, stream: int, k: int, seed: int) -> LabelledDataset:
    """Return a dataset with the weights of a resample."""
    side = margin(data.weights)
    weights = Draws(side, seed, stream).draw(k, side)
    return LabelledDataset(data.points, data.labels, weights=weights)


@pytest.mark.parametrize("budget", [None, 64 << 20])
def test_resampled_values_are_those_of_converged_solves(budget):
    """With the cost stored, and made for what was drawn: the smallest budget stores nothing."""
    x, y = dataset(60, 3, 0), dataset(50, 3, 1, weighted=True)
    settings = dataclasses.replace(SETTINGS, lambda_y=0, tol=1e-8, memory_budget=budget)
    found = otdd.distance(x, y, settings=settings, confidence=Confidence(bootstrap=12, seed=3))
    values = []
    for k in range(12):
        a, b = resampled(x, 0, k, 3), resampled(y, 1, k, 3)
        # the truth takes weights > 0
        a, b = (d.subset((d.weights > 0).nonzero()[:, 0]) for d in (a, b))
        values.append(truth.divergence(a, b, found.epsilon, labels=False))
    exact, interval = np.array(values), found.interval
    assert interval is not None and interval.resamples == 12 and interval.seed == 3
    # one update of each potential leaves a few percent of what resampling moves
    spread = exact.std(ddof=1)
    assert interval.deviation == pytest.approx(spread, rel=0.05)
    assert interval.mean == pytest.approx(exact.mean(), abs=0.1 * spread)
    tails = np.quantile(exact - exact.mean(), [0.025, 0.975])
    assert interval.lower - found.squared == pytest.approx(tails[0], abs=0.1 * spread)
    assert interval.upper - found.squared == pytest.approx(tails[1], abs=0.1 * spread)
    assert interval.half_width == pytest.approx((interval.upper - interval.lower) / 2)


def test_the_spread_is_that_of_the_central_limit_theorem():
    """The variance of S is that of its derivative in either sample, over the sample's size."""
    x, y = dataset(250, 2, 2), dataset(300, 2, 3)
    found = otdd.distance(x, y, settings=SETTINGS, confidence=Confidence(bootstrap=400))
    a, b = (d.weights.clone().requires_grad_() for d in (x, y))
    # laws fixed: the derivative at fixed label costs is that of the potentials
    costs = [torch.from_numpy(truth.label_cost(*p)) for p in ((x, y), (x, x), (y, y))]
    otdd.sinkhorn_divergence(
        x.points,
        y.points,
        a,
        b,
        labels=(x.labels, y.labels),
        label_cost=tuple(costs),
        epsilon=found.epsilon,
        tol=1e-8,
        device="cpu",
    ).backward()
    assert a.grad is not None and b.grad is not None
    expected = float(a.grad.var(correction=0) / 250 + b.grad.var(correction=0) / 300) ** 0.5
    assert found.interval is not None
    # a standard deviation of 400 draws is known to 1 / sqrt(800) = 3.5 %; terms of second order
    assert found.interval.deviation == pytest.approx(expected, rel=0.12)


def test_the_same_seed_draws_the_same_and_another_one_others():
    x, y = dataset(40, 2, 4), dataset(30, 2, 5)
    runs = [
        otdd.distance(x, y, settings=SETTINGS, confidence=Confidence(bootstrap=10, seed=s)).interval
        for s in (1, 1, 2)
    ]
    assert runs[0] == runs[1] and runs[0] != runs[2]


@pytest.mark.parametrize("debias", [True, False])
def test_equal_samples_and_samples_without_weight(debias):
    x = dataset(40, 2, 6)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(0))
    shuffled = LabelledDataset(x.points[order], x.labels[order])
    weights = torch.ones(40, dtype=torch.float64)
    weights[:5] = 0
    light = LabelledDataset(x.points, x.labels, weights=weights / 35)
    settings = dataclasses.replace(SETTINGS, debias=debias)
    for other in (shuffled, light):
        found = otdd.distance(x, other, settings=settings, confidence=Confidence(bootstrap=20))
        interval = found.interval
        assert interval is not None and 0 < interval.deviation < np.inf
        assert interval.lower < found.squared < interval.upper


def test_halves_are_disjoint_and_stratified():
    x = dataset(41, 2, 7, classes=4)
    first, second = halves(x, 0)
    assert abs(len(first) - len(second)) <= 1 and len(first) + len(second) == 41
    rows = {tuple(p.tolist()) for p in first.points} & {tuple(p.tolist()) for p in second.points}
    assert not rows
    for c in range(4):
        assert abs(int((first.labels == c).sum()) - int((second.labels == c).sum())) <= 1
    again = halves(x, 0)
    assert torch.equal(first.points, again[0].points)
    assert not torch.equal(first.points, halves(x, 1)[0].points)


def test_the_noise_floor_is_the_distance_of_two_halves():
    x, y = dataset(40, 2, 8), dataset(50, 2, 9)
    found = otdd.distance(x, y, settings=SETTINGS, confidence=Confidence(noise_floor=True, seed=4))
    assert len(found.noise_floor) == 2 and found.interval is None
    for data, floor in zip((x, y), found.noise_floor, strict=True):
        expected = truth.divergence(*halves(data, 4), found.epsilon)
        assert floor.n == len(data) // 2 and floor.seed == 4
        low, high = floor.squared_bounds
        assert low <= expected <= high
        # what a marginal error of 1e-3 leaves
        assert floor.squared == pytest.approx(expected, rel=1e-3)


def test_files_tables_and_json_keep_them(tmp_path):
    x, y = dataset(30, 2, 10), dataset(30, 2, 11)
    confidence = Confidence(bootstrap=10, noise_floor=True, seed=5)
    found = otdd.distance(x, y, settings=SETTINGS, confidence=confidence)
    save(found, tmp_path / "r.npz")
    back = load_result(tmp_path / "r.npz")
    assert back.interval == found.interval and back.noise_floor == found.noise_floor
    data, text = to_json(found), summary(found)
    assert data["interval"]["seed"] == 5 and len(data["noise_floor"]) == 2
    assert "+-" in text and "10 resamples, seed 5" in text and "noise      floor of" in text


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"bootstrap": 5}, "bootstrap is 5, expected 0 or an integer >= 10"),
        ({"bootstrap": -1}, "bootstrap is -1"),
        ({"bootstrap": 2.5}, "bootstrap is 2.5"),
        ({"noise_floor": 1}, "noise_floor is 1, expected True or False"),
        ({"seed": -1}, "seed is -1, expected an integer >= 0"),
    ],
)
def test_bad_settings_are_refused(keywords, message):
    with pytest.raises(otdd.SettingsError, match=message):
        Confidence(**keywords)


def test_one_sample_has_no_halves():
    one = LabelledDataset(torch.zeros(1, 2), name="lonely")
    with pytest.raises(otdd.SettingsError, match="lonely has one sample"):
        otdd.distance(one, dataset(9, 2, 12), confidence=Confidence(noise_floor=True), device="cpu")
