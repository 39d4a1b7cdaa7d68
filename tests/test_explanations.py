"""Explanations against dense float64 plans: splits, shares, entropies, who pays."""

from __future__ import annotations

import dataclasses
import json
import warnings

import numpy as np
import pytest
import scipy.special
import torch
import truth
from fakes import reread
from problems import dataset

import otdd_flash as otdd
from otdd_flash import LabelledDataset, OTDDSettings
from otdd_flash.findings_io import finding_json
from otdd_flash.many import explanations
from otdd_flash.many.explanations import entropies
from otdd_flash.solver import certificate

# the truth is a converged plan; what is left of the marginals shows in every number
EXACT = OTDDSettings(epsilon=2.0, device="cpu", tol=1e-9)


def dense(x: LabelledDataset, y: LabelledDataset, eps: float):
    """Return the cost's two parts and the solved problem."""
    features = truth.cost_matrix(x, y)
    labels = truth.cost_matrix(x, y, truth.label_cost(x, y)) - features
    solved = truth.sinkhorn(features + labels, truth.weights(x), truth.weights(y), eps)
    return features, labels, solved


@pytest.mark.parametrize("kind", ["float64", "uint8"])
def test_splits_are_exact_and_add_up_to_s(kind):
    x, y = dataset(20, 3, 0, kind=kind), dataset(25, 3, 1, kind=kind, weighted=True)
    # float32 sums of 8-bit points: 1e-7 of the costs
    close = {"rel": 1e-7 if kind == "float64" else 1e-5, "abs": 1e-6 if kind == "uint8" else 1e-9}
    eps = 2.0 if kind == "float64" else 200.0
    found = otdd.explain(x, y, dataclasses.replace(EXACT, epsilon=eps))
    total = np.zeros(3)
    for scale, part, pair in (
        (1.0, found.cross, (x, y)),
        (-0.5, found.source_self, (x, x)),
        (-0.5, found.target_self, (y, y)),
    ):
        features, labels, solved = dense(*pair, eps)
        expected = [(solved.plan * c).sum() for c in (features, labels)]
        expected.append(solved.value - sum(expected))
        got = [part.features, part.labels, part.entropy]
        assert got == pytest.approx(expected, **close)
        assert part.total == pytest.approx(solved.value, **close)
        total += scale * np.array(expected)
    got = [found.split.features, found.split.labels, found.split.entropy]
    assert got == pytest.approx(list(total), rel=1e-5, abs=1e-4 if kind == "uint8" else 1e-8)
    assert found.split.total == pytest.approx(found.value.squared, rel=1e-12)
    # the entropy of a plan is eps KL(P | a x b)
    a, b = truth.weights(x), truth.weights(y)
    plan = dense(x, y, eps)[2].plan
    kl = float((plan * np.log(plan / (a[:, None] * b))).sum())
    assert found.cross.entropy == pytest.approx(eps * kl, rel=1e-4)


# of one sample each, too; blocks that end inside of classes
@pytest.mark.parametrize("entries", [1 << 18, 50])
@pytest.mark.parametrize("classes", [(3, 4), (20, 25), (1, 25)])
def test_classes_and_samples_pay_what_the_dense_plan_says(monkeypatch, classes, entries):
    monkeypatch.setattr(certificate, "SHARE_ENTRIES", (entries, entries))
    monkeypatch.setattr(explanations, "ENTROPY_ENTRIES", entries)
    # classes of many datasets are far apart
    eps = 2.0 if classes == (3, 4) else 500.0
    x, y = (
        dataset(n, 3, n, classes=c, weighted=w)
        for n, c, w in zip((20, 25), classes, (False, True), strict=True)
    )
    found = otdd.explain(x, y, dataclasses.replace(EXACT, epsilon=eps), pairs=7)
    features, labels, solved = dense(x, y, eps)
    cost, plan = features + labels, solved.plan
    paid = plan * cost
    one = [np.eye(d.classes)[d.labels.numpy()] for d in (x, y)]
    np.testing.assert_allclose(found.class_mass, one[0].T @ plan @ one[1], rtol=1e-6)
    np.testing.assert_allclose(found.class_cost, one[0].T @ paid @ one[1] / paid.sum(), rtol=1e-6)
    np.testing.assert_allclose(found.source_cost, paid.sum(1) / plan.sum(1), rtol=1e-7)
    np.testing.assert_allclose(found.target_cost, paid.sum(0) / plan.sum(0), rtol=1e-7)
    assert float(found.class_cost.sum()) == pytest.approx(1.0, rel=1e-12)
    mass = one[0].T @ plan @ one[1]
    for got, part in ((found.row_entropy, mass), (found.column_entropy, mass.T)):
        share = part / part.sum(1, keepdims=True)
        np.testing.assert_allclose(got, scipy.special.entr(share).sum(1) / np.log(2), atol=1e-6)
    assert found.cross.labels == pytest.approx(float((plan * labels).sum()), rel=1e-6, abs=1e-9)
    _, inside, solved = dense(y, y, eps)
    assert found.target_self.labels == pytest.approx((solved.plan * inside).sum(), rel=1e-6)
    order = np.argsort(-paid, axis=None)[:7]
    assert [(p.source, p.target) for p in found.pairs] == [divmod(k, 25) for k in order.tolist()]
    for pair in found.pairs:
        i, j = pair.source, pair.target
        assert pair.mass == pytest.approx(plan[i, j], rel=1e-6)
        assert pair.cost == pytest.approx(cost[i, j], rel=1e-9)
        assert pair.share == pytest.approx(paid[i, j] / paid.sum(), rel=1e-6)
        assert (pair.source_class, pair.target_class) == (int(x.labels[i]), int(y.labels[j]))


def test_foreign_samples_raise_s_when_they_weigh_more():
    x, y = dataset(12, 2, 4), dataset(15, 2, 5)
    settings = dataclasses.replace(EXACT, lambda_y=0, tol=1e-11)
    found = otdd.explain(x, y, settings)
    step = 1e-5
    for i in (0, 5):
        values = []
        for sign in (1, -1):
            w = x.weights * (1 - sign * step)
            w[i] += sign * step
            other = LabelledDataset(x.points, x.labels, weights=w)
            values.append(otdd.distance(other, y, settings=settings).squared)
        change = (values[0] - values[1]) / (2 * step)
        assert float(found.source_foreign[i]) == pytest.approx(change, rel=1e-4, abs=1e-6)
    assert float(x.weights @ found.source_foreign) == pytest.approx(0, abs=1e-10)


def test_equal_samples_in_another_order_and_names():
    x = dataset(20, 3, 6, classes=3)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    y = LabelledDataset(x.points[order], 2 - x.labels[order])
    found = otdd.explain(x, y, EXACT)
    plain = otdd.explain(x, LabelledDataset(x.points, x.labels), EXACT)
    assert found.value.squared == 0.0 and found.split.total == 0.0
    torch.testing.assert_close(found.class_mass, plain.class_mass.flip(1))
    torch.testing.assert_close(found.class_cost, plain.class_cost.flip(1))
    assert not found.source_foreign.any() and not found.target_foreign.any()
    for pair in found.pairs:
        assert pair.target_class == int(y.labels[pair.target])


@pytest.mark.parametrize("debias", [True, False])
def test_samples_without_weight_are_left_out(debias):
    x, y = dataset(20, 3, 7), dataset(15, 3, 8)
    w = torch.ones(20, dtype=torch.float64)
    w[[0, 7]] = 0
    light = LabelledDataset(x.points, x.labels, weights=w / 18)
    kept = [k for k in range(20) if k not in (0, 7)]
    settings = dataclasses.replace(EXACT, debias=debias)
    found = otdd.explain(light, y, settings)
    alone = otdd.explain(LabelledDataset(x.points[kept], x.labels[kept]), y, settings)
    assert found.source_cost[[0, 7]].isnan().all() and found.source_foreign[[0, 7]].isnan().all()
    torch.testing.assert_close(found.source_cost[kept], alone.source_cost)
    torch.testing.assert_close(found.source_foreign[kept], alone.source_foreign)
    assert [kept[p.source] for p in alone.pairs] == [p.source for p in found.pairs]
    assert any("weight zero" in note for note in found.notes)
    if not debias:
        assert found.source_self.total == 0 and found.split == found.cross


def test_entropies_are_those_of_rows():
    mass = torch.tensor([[0.25, 0.25, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(entropies(mass), torch.tensor([1.0, 0.0, 0.0]).double())


def test_files_keep_explanations(tmp_path):
    found = otdd.explain(dataset(9, 2, 9), dataset(8, 2, 10), EXACT, pairs=3)
    assert isinstance(reread(found, tmp_path / "e.npz"), otdd.Explanation)


def test_bad_input_is_refused():
    with pytest.raises(otdd.SettingsError, match="pairs is -1, expected an integer >= 0"):
        otdd.explain(dataset(9, 2, 0), dataset(9, 2, 1), EXACT, pairs=-1)
    with pytest.raises(otdd.DataError, match="features a sample"):
        otdd.explain(dataset(9, 2, 0), dataset(9, 3, 1), EXACT)
    with pytest.warns(otdd.ConvergenceWarning, match="raise max_passes"):
        otdd.explain(dataset(9, 2, 0), dataset(9, 2, 1), dataclasses.replace(EXACT, max_passes=2))


def test_an_epsilon_below_rounding_is_refused():
    x, y = dataset(9, 2, 0), dataset(9, 2, 1)
    # float64 rounds costs of about 10 by 1e-15
    for eps, read in ((5e-14, False), (1e-10, True)):
        settings = dataclasses.replace(EXACT, epsilon=eps, tol=1e-3, max_passes=40)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", otdd.ConvergenceWarning)
            if read:
                found = otdd.explain(x, y, settings)
                assert found.split.total == pytest.approx(found.value.squared, rel=1e-9)
                continue
            with pytest.raises(otdd.SettingsError, match="epsilon is 5e-14, too small to read"):
                otdd.explain(x, y, settings)


def test_columns_that_a_stopped_solve_leaves_empty_are_null_in_json():
    x, y = dataset(30, 2, 0), dataset(30, 2, 1)
    stopped = dataclasses.replace(EXACT, epsilon=1e-6, max_passes=4)
    with pytest.warns(otdd.ConvergenceWarning):
        found = otdd.explain(x, y, stopped)
    assert found.target_cost.isnan().any()
    listed = finding_json(found)["target_nearest"]
    assert None in [entry["cost"] for entry in listed]
    json.dumps(listed, allow_nan=False)
