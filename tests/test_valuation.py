"""Values of samples: the parts against potentials solved alone, and what they find."""

from __future__ import annotations

import csv
import dataclasses

import pytest
import torch
import truth
from fakes import reread
from problems import dataset

import otdd_flash as otdd
from otdd_flash import LabelledDataset, OTDDSettings
from otdd_flash.findings_io import values_csv
from otdd_flash.tables import values_text

EXACT = OTDDSettings(epsilon=2.0, device="cpu", tol=1e-10)


def potential(x: LabelledDataset, y: LabelledDataset, labels: bool) -> torch.Tensor:  # (n,)
    """Return the dense debiased potential of x, modulo a constant."""
    fs = []
    for other in (y, x):
        cost = truth.cost_matrix(x, other, truth.label_cost(x, other) if labels else 0.0)
        solved = truth.sinkhorn(cost, truth.weights(x), truth.weights(other), 2.0)
        # where the plan is all but diagonal only f + g is known of a self problem, and f = g
        fs.append(torch.from_numpy((solved.f + solved.g) / 2 if other is x else solved.f))
    return fs[0] - fs[1]


@pytest.mark.parametrize("weighted", [False, True])
def test_values_are_calibrated_debiased_potentials(weighted):
    x, y = dataset(15, 3, 0, weighted=weighted), dataset(18, 3, 1)
    found = otdd.value(x, y, EXACT)
    for got, labels in ((found.value, True), (found.features, False)):
        f, a = potential(x, y, labels), x.weights
        for i in range(15):
            others = [j for j in range(15) if j != i]
            mean = float(a[others] @ f[others] / a[others].sum())
            assert float(got[i]) == pytest.approx(float(f[i]) - mean, rel=1e-6, abs=1e-6)
    total = found.features + found.class_part + found.label
    torch.testing.assert_close(total, found.value)
    weight = 1 - x.weights
    for c in range(3):
        chosen = x.labels == c
        # before the calibration of each sample, the label's part has mean 0 in every class
        raw = (found.label * weight)[chosen]
        assert float(x.weights[chosen] @ raw) == pytest.approx(0, abs=1e-9)


def test_without_labels_or_features_in_the_cost_the_other_part_is_all():
    x, y = dataset(15, 3, 2), dataset(18, 3, 3)
    looks = otdd.value(x, y, dataclasses.replace(EXACT, lambda_y=0.0))
    assert torch.equal(looks.value, looks.features)
    assert not looks.label.any() and not looks.class_part.any()
    names = otdd.value(x, y, dataclasses.replace(EXACT, lambda_x=0.0))
    assert not names.features.any() and names.class_part.any()


def flips_found(n: int, train: LabelledDataset, target: LabelledDataset, seed: int) -> dict:
    """Return the share of 10 % flipped labels among the worst 20 % by each part of the value."""
    draw = torch.Generator().manual_seed(seed)
    wrong = torch.randperm(n, generator=draw)[: n // 10]
    labels = train.labels.clone()
    labels[wrong] = (labels[wrong] + torch.randint(1, 10, (n // 10,), generator=draw)) % 10
    settings = OTDDSettings(normalize="unit", device="cpu")
    found = otdd.value(LabelledDataset(train.points, labels), target, settings)
    out = {}
    for part in ("value", "features", "label"):
        worst = getattr(found, part).argsort(descending=True)[: n // 5]
        out[part] = len(set(worst.tolist()) & set(wrong.tolist())) / (n // 10)
    return out


def test_flipped_labels_are_found_among_the_embedded_digits():
    mini = otdd.load("mnist-mini")
    rows = torch.randperm(2000, generator=torch.Generator().manual_seed(0))
    found = flips_found(1000, mini.subset(rows[:1000]), mini.subset(rows[1000:]), 0)
    # a random order finds 0.2, as do the features alone, which do not know the labels
    assert found["label"] >= 0.8
    assert found["features"] < 0.4


@pytest.mark.full
def test_flipped_labels_are_found_among_2000_of_mnist(full_data_root):
    train = otdd.load("mnist", data_root=full_data_root, max_samples=2000)
    target = otdd.load("mnist", data_root=full_data_root, split="test", max_samples=2000)
    assert flips_found(2000, train, target, 0)["label"] >= 0.8


def test_noise_is_foreign_by_its_features():
    mini = otdd.load("mnist-mini", max_samples=600)
    draw = torch.Generator().manual_seed(0)
    points = mini.points.clone()
    points[:20] = torch.randint(0, 256, (20, 784), generator=draw, dtype=torch.uint8)
    noisy = LabelledDataset(points[:300], mini.labels[:300])
    settings = OTDDSettings(normalize="unit", device="cpu")
    found = otdd.value(noisy, mini.subset(torch.arange(300, 600)), settings)
    for part in (found.value, found.features):
        assert set(part.argsort(descending=True)[:20].tolist()) == set(range(20))


def test_samples_without_weight_have_no_value():
    x, y = dataset(15, 3, 4), dataset(18, 3, 5)
    w = torch.ones(15, dtype=torch.float64)
    w[3] = 0
    found = otdd.value(LabelledDataset(x.points, x.labels, weights=w / 14), y, EXACT)
    kept = [k for k in range(15) if k != 3]
    alone = otdd.value(LabelledDataset(x.points[kept], x.labels[kept]), y, EXACT)
    for part in ("value", "features", "class_part", "label"):
        assert getattr(found, part)[3].isnan()
        torch.testing.assert_close(getattr(found, part)[kept], getattr(alone, part))


def test_a_class_without_weight_keeps_its_name(tmp_path):
    x, y = dataset(15, 3, 4), dataset(18, 3, 5)
    names = [("ant", "bee", "cat")[k % 3] for k in range(15)]
    w = torch.tensor([0.0, 0.1, 0.1] * 5, dtype=torch.float64)
    found = otdd.value(LabelledDataset(x.points, names, weights=w), y, EXACT)
    values_csv(found, tmp_path / "v.csv")
    with open(tmp_path / "v.csv", newline="") as file:
        assert [row["class"] for row in csv.DictReader(file)] == names
    assert "bee" in values_text(found) and "ant" not in values_text(found)


def test_values_of_the_same_samples_are_0_and_say_so():
    x, y = dataset(15, 3, 4), dataset(18, 3, 5)
    found = otdd.value(x, x, EXACT)
    assert not found.value.any() and "all values are 0" in found.notes[0]
    assert "all values are 0" in otdd.explain(x, x, EXACT).notes[0]
    assert not otdd.explain(x, y, EXACT).notes
    assert not otdd.value(x, y, EXACT).notes


def test_files_keep_values(tmp_path):
    found = otdd.value(dataset(9, 2, 6), dataset(8, 2, 7), EXACT)
    back = reread(found, tmp_path / "v.npz")
    assert isinstance(back, otdd.Values) and back.labels.dtype == torch.int64


def test_bad_input_is_refused():
    x = dataset(9, 2, 8)
    with pytest.raises(otdd.SettingsError, match="one sample of positive weight"):
        otdd.value(x.subset(torch.tensor([0])), x, EXACT)
    with pytest.raises(otdd.DataError, match="features a sample"):
        otdd.value(x, dataset(9, 3, 9), EXACT)
