"""The dataset distance as a function of the samples: closed forms, finite differences, errors."""

from __future__ import annotations

import json

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash import LabelledDataset
from otdd_flash.results import to_json

EXACT = {"epsilon": 0.7, "tol": 1e-11, "max_passes": 5000, "device": "cpu"}
STEP = 1e-5


def numbers(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def simplex(n: int, seed: int) -> Tensor:
    w = numbers(n, seed=seed).abs() + 0.2
    return w / w.sum()


@pytest.mark.parametrize("kind", ["gaussian", "diagonal", "means"])
@pytest.mark.parametrize("n", [8, 24])
@pytest.mark.parametrize("epsilon", [0.3, 5.0])
def test_a_translation_pulls_twice_where_labels_follow(kind, n, epsilon):
    # classes of 8 / 4 samples in 3 dimensions, one of a single sample: O2
    x, t = numbers(n, 3, seed=0), torch.tensor([0.5, -1.0, 0.25], dtype=torch.float64)
    labels = torch.arange(n) % 3
    labels[-1] = 3
    moving = x.clone().requires_grad_()
    source = LabelledDataset(moving, labels)
    target = LabelledDataset(x + t, labels)
    settings = {**EXACT, "epsilon": epsilon, "tol": 1e-8}
    result = otdd.distance(source, target, label_distance=kind, differentiable=True, **settings)
    result.loss.backward()
    assert result.loss.dtype == torch.float64 and result.loss.item() == result.squared
    assert result.squared == pytest.approx(2 * float(t @ t), rel=1e-8)
    # the plan is the identity's to the tolerance of the marginals
    torch.testing.assert_close(moving.grad, -4 * t.expand(n, 3) / n, rtol=1e-6, atol=1e-9)


def test_without_labels_a_translation_pulls_once():
    x = numbers(9, 2, seed=1)
    moving = x.clone().requires_grad_()
    pair = LabelledDataset(moving), LabelledDataset(x + 2.0)
    otdd.distance(*pair, lambda_y=0.0, differentiable=True, **EXACT).loss.backward()
    torch.testing.assert_close(moving.grad, torch.full_like(x, -4.0 / 9), rtol=1e-8, atol=0)


CASES = {
    "gaussian": {},
    "diagonal": {"label_distance": "diagonal"},
    "means": {"label_distance": "means"},
    "not debiased": {"debias": False},
    "scaled": {"lambda_x": 0.3, "lambda_y": 2.0, "convention": "microsoft", "normalize": "mnist"},
    "labels alone": {"lambda_x": 0.0},
}


@pytest.mark.parametrize("case", CASES)
def test_equals_finite_differences(case):
    x, y = numbers(9, 3, seed=2), 1.3 * numbers(14, 3, seed=3) + 0.5
    a, b = simplex(9, 4), simplex(14, 5)
    lx, ly = torch.arange(9) % 3, torch.arange(14) % 2
    inputs = [x, y, a, b]

    def run(tensors: list[Tensor], **keywords: object) -> otdd.OTDDResult:
        x, y, a, b = tensors
        pair = LabelledDataset(x, lx, weights=a), LabelledDataset(y, ly, weights=b)
        return otdd.distance(*pair, **{**EXACT, **CASES[case], **keywords})

    live = [t.clone().requires_grad_() for t in inputs]
    run(live, differentiable=True).loss.backward()
    draw = torch.Generator().manual_seed(6)
    for k, tensor in enumerate(live):
        # one direction through all samples and features, one through a single number
        for move in (torch.randn(tensor.shape, generator=draw, dtype=torch.float64), None):
            if move is None:
                move = torch.zeros_like(inputs[k])
                move.view(-1)[4] = 1.0
            if k > 1:
                # weights move along the simplex
                move = (move - move.mean()) * 0.1
            ends = [
                run([t + sign * STEP * move if j == k else t for j, t in enumerate(inputs)])
                for sign in (1, -1)
            ]
            expected = (ends[0].squared - ends[1].squared) / (2 * STEP)
            # rounding of S, 1e-13, and its error from the marginals, over the step
            found = float((tensor.grad * move).sum())
            assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)


def test_pixels_beside_floats_that_move():
    pixels = (numbers(12, 4, seed=0) * 30 + 128).clamp(0, 255).to(torch.uint8)
    labels = torch.arange(12) % 2
    y = numbers(10, 4, seed=1).float() * 0.1 + 0.5
    gradients = []
    for x in (pixels, pixels.float() / 255):
        moving = y.clone().requires_grad_()
        pair = LabelledDataset(x, labels), LabelledDataset(moving, labels[:10])
        settings = {"epsilon": 0.05, "tol": 1e-9, "device": "cpu"}
        otdd.distance(*pair, normalize="unit", differentiable=True, **settings).loss.backward()
        gradients.append(moving.grad)
    assert gradients[0].dtype == torch.float32 and gradients[0].abs().max() > 0
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-6)


def test_equal_datasets_do_not_pull():
    x, labels = numbers(12, 3, seed=0), torch.arange(12) % 3
    moving = x.clone().requires_grad_()
    rows = torch.randperm(12, generator=torch.Generator().manual_seed(1))
    pair = LabelledDataset(moving, labels), LabelledDataset(x[rows], labels[rows])
    result = otdd.distance(*pair, differentiable=True, **EXACT)
    result.loss.backward()
    # sums in two orders
    assert result.loss.item() == 0.0 and moving.grad.abs().max() < 1e-12


def test_samples_without_weight_and_subsets_keep_the_way_back():
    x, labels, w = numbers(12, 3, seed=0), torch.arange(12) % 3, simplex(12, 1)
    w[5] = 0.0
    w = w / w.sum()
    target = LabelledDataset(numbers(9, 3, seed=2), torch.arange(9) % 2)
    whole = x.clone().requires_grad_()
    masses = w.clone().requires_grad_()
    source = LabelledDataset(whole, labels, weights=masses)
    otdd.distance(source, target, differentiable=True, **EXACT).loss.backward()
    kept = torch.nonzero(w > 0)[:, 0]
    part = x[kept].requires_grad_()
    alone = LabelledDataset(part, labels[kept], weights=w[kept])
    otdd.distance(alone, target, differentiable=True, **EXACT).loss.backward()
    torch.testing.assert_close(whole.grad[kept], part.grad, rtol=1e-9, atol=1e-12)
    assert not whole.grad[5].any() and masses.grad[5] == 0
    assert float(w @ masses.grad) == pytest.approx(0.0, abs=1e-12)
    again = x.clone().requires_grad_()
    chosen = LabelledDataset(again, labels, weights=w).subset(kept)
    otdd.distance(chosen, target, differentiable=True, **EXACT).loss.backward()
    torch.testing.assert_close(again.grad, whole.grad, rtol=1e-9, atol=1e-12)


def test_what_the_points_were_made_of_gets_the_gradient():
    base = numbers(2, 8, seed=0).requires_grad_()
    target = LabelledDataset(numbers(6, 4, seed=1), torch.arange(6) % 2)
    labels = torch.arange(4) % 2
    images = (base.T * 2)[::2].reshape(4, 2, 1).expand(4, 2, 2)
    source = LabelledDataset(images, labels)
    assert not source.points.requires_grad and source.sample_shape == (2, 2)
    otdd.distance(source, target, differentiable=True, **EXACT).loss.backward()
    assert not base.grad.T[1::2].any() and base.grad.T[::2].abs().min() > 0
    rows = [row.clone().requires_grad_() for row in numbers(4, 4, seed=2)]
    otdd.distance(
        LabelledDataset(rows, labels), target, differentiable=True, **EXACT
    ).loss.backward()
    assert all(row.grad is not None and row.grad.any() for row in rows)


def test_the_loss_is_in_no_file_and_in_no_other_result(tmp_path):
    x, labels = numbers(8, 2, seed=0), torch.arange(8) % 2
    points = x.clone().requires_grad_()
    moving, target = LabelledDataset(points, labels), LabelledDataset(x + 1, labels)
    plain = otdd.distance(moving, target, **EXACT)
    assert plain.loss is None
    result = otdd.distance(moving, target, differentiable=True, **EXACT)
    assert result.squared == plain.squared and "loss" not in json.loads(json.dumps(to_json(result)))
    otdd.save(result, tmp_path / "result.npz")
    loaded = otdd.load_result(tmp_path / "result.npz")
    assert loaded.loss is None and loaded.squared == result.squared
    # the graph outlives the file
    result.loss.backward()
    assert points.grad is not None and points.grad.any()


def test_bad_input_is_refused():
    labels = torch.arange(6) % 2
    pixels = LabelledDataset(torch.zeros(6, 3, dtype=torch.uint8), labels, name="pixels")
    floats = LabelledDataset(torch.rand(6, 3), labels, name="floats")
    with pytest.raises(
        otdd.SettingsError,
        match=r"pixels \(torch.uint8\) and floats \(torch.float32\) ask for a gradient; make",
    ):
        otdd.distance(pixels, floats, differentiable=True)
    moving = LabelledDataset(torch.rand(6, 3, requires_grad=True), labels)
    with torch.no_grad(), pytest.raises(otdd.SettingsError, match="no_grad"):
        otdd.distance(moving, floats, differentiable=True)
