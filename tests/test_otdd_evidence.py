"""What the dataset distance says beside its value: flags, notes, starts, budgets, errors."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from problems import NUMPY, dataset

import otdd_flash as otdd
from otdd_flash import (
    BudgetError,
    ConvergenceWarning,
    DataError,
    LabelledDataset,
    OTDDSettings,
    SettingsError,
    WeightError,
)


def test_a_start_from_a_result_converges_at_once():
    x, y = dataset(50, 4, 15), dataset(60, 4, 16)
    cold = otdd.distance(x, y)
    warm = otdd.distance(x, y, start=cold.g)
    assert cold.passes > 4 and warm.passes == 2
    assert warm.squared == pytest.approx(cold.squared, rel=1e-12)
    with pytest.raises(SettingsError, match=r"\(60,\)"):
        otdd.distance(x, y, start=cold.f)
    with pytest.raises(SettingsError, match="finite"):
        otdd.distance(x, y, start=cold.g * float("nan"))


def test_samples_of_weight_zero_are_noted_and_have_no_potential():
    x, y = dataset(20, 3, 17), dataset(25, 3, 18)
    w = np.full(20, 1.0)
    w[[2, 11]] = 0
    heavy = LabelledDataset(x.points, x.labels, weights=w / w.sum(), name="mine")
    result = otdd.distance(heavy, y)
    dropped = otdd.distance(x.subset((heavy.weights > 0).nonzero()[:, 0]), y)
    assert result.squared == pytest.approx(dropped.squared, rel=1e-12)
    assert result.f.isnan().nonzero()[:, 0].tolist() == [2, 11]
    assert result.g.isfinite().all()
    assert any("mine: 2 samples" in note and "NaN" in note for note in result.notes)
    warm = otdd.distance(y, heavy, start=result.f)
    assert warm.passes == 2 and warm.g.isnan().sum() == 2


@pytest.mark.parametrize("kind", NUMPY)
def test_the_same_call_twice_gives_the_same_bits(kind):
    x, y = dataset(40, 5, 23, kind), dataset(30, 5, 24, kind)
    one, two = otdd.distance(x, y), otdd.distance(x, y)
    assert one.squared == two.squared and one.transport == two.transport
    assert torch.equal(one.f, two.f) and torch.equal(one.class_mass, two.class_mass)


def test_a_solve_cut_short_is_flagged():
    x, y = dataset(40, 5, 25), dataset(30, 5, 26)
    with pytest.warns(ConvergenceWarning, match="raise max_passes or epsilon") as caught:
        result = otdd.distance(x, y, max_passes=1, epsilon=0.01)
    assert f"epsilon (0.01 at a mean cost of {result.mean_cost:.3g}); " in str(caught[0].message)
    assert not result.converged and result.marginal_error >= 1e-3
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert otdd.distance(x, y).converged
    # one sample a side converges at once, but its cost has an ulp of 2, close to this epsilon
    near, far = LabelledDataset([[0.0]]), LabelledDataset([[1e8]])
    with pytest.warns(ConvergenceWarning, match="raise epsilon or tol"):
        result = otdd.distance(near, far, epsilon=10.0)
    assert not result.converged and np.isfinite(result.squared)


def test_memory_budget():
    x, y = (dataset(900, 4, k, "uint8") for k in (27, 28))
    streamed = otdd.distance(x, y, memory_budget=64 << 20)
    stored = otdd.distance(x, y, memory_budget=1 << 30)
    assert "streamed" in streamed.device and "stored" in stored.device
    assert streamed.squared == pytest.approx(stored.squared, rel=1e-9)
    assert streamed.passes == stored.passes
    with pytest.raises(BudgetError, match="MiB"):
        otdd.distance(x, y, memory_budget=(64 << 20) - 1)


def test_bad_input_says_what_arrived():
    x = dataset(10, 3, 29, name="left")
    with pytest.raises(DataError, match=r"left has 3 features.*right has 4"):
        otdd.distance(x, dataset(10, 4, 30, name="right"))
    for bad in (
        {"epsilon": 0}, {"epsilon": "-1%"}, {"epsilon": "much"}, {"epsilon": float("nan")},
        {"tol": 0.0}, {"tol": float("inf")}, {"max_passes": 0}, {"max_passes": 1.5},
        {"lambda_x": -1}, {"lambda_x": 0, "lambda_y": 0}, {"label_distance": "euclid"},
        {"convention": "geomloss"}, {"normalize": "yes"}, {"slices": 4}, {"memory_budget": 0},
    ):  # fmt: skip
        with pytest.raises(SettingsError, match=next(iter(bad))):
            otdd.distance(x, x, **bad)
    with pytest.raises(TypeError, match="epslion"):
        otdd.distance(x, x, epslion=1)
    with pytest.raises(SettingsError, match="not both"):
        otdd.distance(x, x, settings=OTDDSettings(), tol=1e-2)
    for w in ([0.5] * 10, [0.2] * 5, [-0.1] + [0.1222] * 9, [float("nan")] + [0.1] * 9):
        with pytest.raises(WeightError, match="left"):
            LabelledDataset(x.points, weights=w, name="left")
    assert otdd.distance(x, x, settings=replace(OTDDSettings(), tol=1e-2)).settings.tol == 1e-2
