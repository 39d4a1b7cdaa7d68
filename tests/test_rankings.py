"""Rankings: order, common eps, correlations by their formulas."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from problems import dataset, moved

import otdd_flash as otdd
from otdd_flash import Confidence, LabelledDataset, OTDDSettings

SETTINGS = OTDDSettings(epsilon="3%", device="cpu")


def renamed(data: LabelledDataset, name: str) -> LabelledDataset:
    return LabelledDataset(data.points, data.labels, name=name)


def sources() -> tuple[LabelledDataset, list[LabelledDataset]]:
    target = dataset(30, 2, 0)
    at = {"far": 9.0, "near": 1.0, "middle": 4.0, "equal": 0.0}
    return target, [renamed(moved(target, shift), name) for name, shift in at.items()]


def test_sources_are_ordered_by_their_distance():
    target, given = sources()
    found = otdd.rank(target, given, dataclasses.replace(SETTINGS, tol=1e-7))
    assert [s.name for s in found.sources] == ["equal", "near", "middle", "far"]
    # points and classes move by t in two dimensions: 4 t^2
    squared = [s.value.squared for s in found.sources]
    assert squared == pytest.approx([0, 4, 64, 324], rel=1e-6)
    fixed = dataclasses.replace(SETTINGS, epsilon=found.epsilon, tol=1e-7)
    alone = otdd.distance(given[0], target, settings=fixed)
    value = found.sources[3].value
    assert value.squared == pytest.approx(alone.squared, rel=1e-9)
    assert value.squared_bounds == pytest.approx(alone.squared_bounds, rel=1e-9)
    assert value.distance_bounds[0] <= value.distance <= value.distance_bounds[1]
    assert found.pearson is None and found.spearman is None


def test_correlations_with_what_was_measured():
    target, given = sources()
    scores = {"far": 0.2, "near": 0.8, "middle": 0.5, "equal": 0.7}
    found = otdd.rank(target, given, SETTINGS, scores=scores)
    x = np.array([s.value.distance for s in found.sources])
    y = np.array([scores[s.name] for s in found.sources])
    assert found.pearson is not None and found.spearman is not None
    assert found.pearson[0] == pytest.approx(np.corrcoef(x, y)[0, 1], rel=1e-12)
    # ranks of the scores from the nearest on: 3, 4, 2, 1
    assert found.spearman[0] == pytest.approx(np.corrcoef([1, 2, 3, 4], [3, 4, 2, 1])[0, 1])
    assert all(0 <= p <= 1 for _, p in (found.pearson, found.spearman))
    few = otdd.rank(target, given, SETTINGS, scores={"far": 0.2, "near": 0.8})
    assert few.pearson is None and few.sources[0].score is None
    flat = otdd.rank(target, given, SETTINGS, scores=dict.fromkeys(scores, 1.0))
    assert flat.pearson is None


def test_intervals_noise_floor_and_files(tmp_path):
    target, given = sources()
    confidence = Confidence(bootstrap=10, noise_floor=True, seed=1)
    found = otdd.rank(target, given[:2], SETTINGS, scores={"far": 1.0}, confidence=confidence)
    assert len(found.noise_floor) == 1 and found.seed == 1
    for source in found.sources:
        interval = source.value.distance_interval
        assert interval is not None and interval[0] < source.value.distance < interval[1]
    otdd.save(found, tmp_path / "r.npz")
    assert otdd.load_result(tmp_path / "r.npz") == found


def test_bad_input_is_refused():
    target, given = sources()
    for scores, message in (
        ({"mars": 1.0}, "scores for 'mars', which are no sources; the sources are far, near"),
        ({"far": float("nan")}, "score of far is nan, expected a finite number"),
        ({"far": "high"}, "score of far is 'high'"),
    ):
        with pytest.raises(otdd.SettingsError, match=message):
            otdd.rank(target, given, SETTINGS, scores=scores)
    with pytest.raises(otdd.SettingsError, match="no sources arrived"):
        otdd.rank(target, [], SETTINGS)
    with pytest.raises(otdd.DataError, match="features a sample"):
        otdd.rank(target, [dataset(9, 3, 1)], SETTINGS)
