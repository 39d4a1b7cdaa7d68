"""Gradients of the divergence: closed forms, finite differences, degenerate clouds."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

import otdd_flash as otdd
from otdd_flash.losses.loss import sinkhorn_divergence
from otdd_flash_kernels.cpu import CpuCost

EXACT = {"tol": 1e-12, "max_passes": 5000, "device": "cpu"}
# error of a central difference of step 1e-5 in float64: 1e-11 / 1e-5 of rounding, and 1e-10 of
# curvature
TOLERANCE = 1e-6


def weighted_problem():
    draw = torch.Generator().manual_seed(0)

    def rand(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=draw, dtype=torch.float64)

    def simplex(n: int) -> torch.Tensor:
        w = rand(n) + 0.1
        return w / w.sum()

    def inside(v: int) -> torch.Tensor:
        w = rand(v, v)
        return (w + w.mT).fill_diagonal_(0.0)

    x = torch.randn(7, 3, generator=draw, dtype=torch.float64)
    y = torch.randn(9, 3, generator=draw, dtype=torch.float64) + 1
    labels = torch.arange(7) % 2, torch.arange(9) % 3
    return [x, y, simplex(7), simplex(9), rand(2, 3), inside(2), inside(3)], labels


@pytest.mark.parametrize("k", range(7))
def test_gradients_agree_with_finite_differences(k):
    inputs, labels = weighted_problem()

    def value(replaced: torch.Tensor) -> torch.Tensor:
        x, y, a, b, *costs = [replaced if j == k else t for j, t in enumerate(inputs)]
        return sinkhorn_divergence(
            x, y, a, b, labels=labels, label_cost=tuple(costs), epsilon=0.7, **EXACT
        )

    point = inputs[k].clone().requires_grad_()
    value(point).backward()
    assert point.grad is not None
    step = 1e-5
    for i in range(point.numel()):
        move = torch.zeros_like(inputs[k])
        move.view(-1)[i] = step
        if k in (2, 3):
            # weights move along the simplex
            move -= step / move.numel()
        if k in (5, 6):
            # costs inside a cloud stay symmetric
            move = (move + move.mT) / 2
        difference = (value(inputs[k] + move) - value(inputs[k] - move)).item() / (2 * step)
        along = (point.grad * move).sum().item() / step
        assert along == pytest.approx(difference, rel=TOLERANCE, abs=TOLERANCE)
    if k in (2, 3):
        assert (inputs[k] @ point.grad).item() == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("d", [1, 3, 17])
@pytest.mark.parametrize("epsilon", [1e-1, 10.0])
def test_a_translation_pulls_back_along_itself(offset, dtype, d, epsilon):
    x = (torch.arange(20.0 * d).reshape(20, d) * 7 % 11 + offset).to(dtype).requires_grad_()
    value = sinkhorn_divergence(x, x.detach() + 3, epsilon=epsilon, **{**EXACT, "tol": 1e-9})
    value.backward()
    assert value.item() == pytest.approx(9.0 * d, rel=1e-6)
    expected = torch.full_like(x, -2 * 3 / 20)
    torch.testing.assert_close(x.grad, expected, rtol=1e-5, atol=0)


def test_equal_clouds_and_single_points_have_zero_gradients():
    x = torch.randn(6, 3, generator=torch.Generator().manual_seed(1)).requires_grad_()
    value = sinkhorn_divergence(x, x.detach().clone(), epsilon=0.1, device="cpu")
    value.backward()
    assert value.item() == 0.0 and not x.grad.any()
    same = torch.zeros(4, 2, requires_grad=True)
    value = sinkhorn_divergence(same, torch.zeros(5, 2), device="cpu")
    value.backward()
    assert value.item() == 0.0 and not same.grad.any()


def test_samples_without_weight_change_nothing():
    x = torch.tensor([[0.0], [1.0], [9.0]], requires_grad=True)
    a = torch.tensor([0.5, 0.5, 0.0], requires_grad=True)
    y = torch.tensor([[2.0], [3.0]])
    value = sinkhorn_divergence(x, y, a, epsilon=1e-3, device="cpu")
    value.backward()
    kept = sinkhorn_divergence(x[:2].detach(), y, epsilon=1e-3, device="cpu")
    assert value.item() == kept.item() == pytest.approx(4.0)
    torch.testing.assert_close(x.grad, torch.tensor([[-2.0], [-2.0], [0.0]]))
    assert torch.isfinite(a.grad).all()


def test_views_and_expanded_upstream_gradients():
    base = torch.randn(3, 8, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    y = torch.randn(5, 3, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    view = base.clone().requires_grad_()
    sinkhorn_divergence(view.T[::2], y, epsilon=1.0, **EXACT).expand(4).sum().backward()
    plain = base.T[::2].contiguous().requires_grad_()
    (4 * sinkhorn_divergence(plain, y, epsilon=1.0, **EXACT)).backward()
    torch.testing.assert_close(view.grad.T[::2], plain.grad, rtol=0, atol=0)
    assert not view.grad.T[1::2].any()


def test_the_same_gradient_twice():
    inputs, _ = weighted_problem()
    grads = []
    for _ in range(2):
        x = inputs[0].clone().requires_grad_()
        sinkhorn_divergence(x, inputs[1], inputs[2], inputs[3], device="cpu").backward()
        grads.append(x.grad)
    assert torch.equal(*grads)


@pytest.mark.parametrize("reach", [None, 1.0])
def test_one_cost_at_a_time_is_stored(reach, monkeypatch):
    alive: weakref.WeakSet[CpuCost] = weakref.WeakSet()
    each, most = CpuCost._each, 0

    def watched(self, work):
        nonlocal most
        found = each(self, work)
        alive.add(self)
        if sum(cost._stored is not None for cost in alive) > 1:
            # cycles may keep what nothing uses any more
            gc.collect()
        most = max(most, sum(cost._stored is not None for cost in alive))
        return found

    monkeypatch.setattr(CpuCost, "_each", watched)
    x, y = (t.clone().requires_grad_() for t in weighted_problem()[0][:2])
    if reach is None:
        value = sinkhorn_divergence(x, y, epsilon=0.7, device="cpu")
    else:
        value = otdd.SamplesLoss(blur=0.8, reach=reach, device="cpu")(x, y)
    value.backward()
    # three solves and four gradients
    assert most == 1 and x.grad is not None and y.grad is not None


def test_bad_input_is_refused():
    x, y = torch.zeros(3, 2), torch.ones(4, 2)
    with pytest.raises(otdd.LabelError, match="go together"):
        sinkhorn_divergence(x, y, labels=(torch.zeros(3).long(), torch.zeros(4).long()))
    with pytest.raises(otdd.DataError, match="bring both to one feature space"):
        sinkhorn_divergence(x, torch.ones(4, 3))
    ids, cost = (torch.zeros(3).long(), torch.ones(4).long()), torch.zeros(2, 2)
    bent = torch.tensor([[0.0, 1.0], [2.0, 0.0]])
    for labels, costs, message in (
        (ids[0], (cost, cost, cost), r"labels is tensor\(.*expected a tuple of 2: the class ids"),
        (ids, cost, r"label_cost is tensor\(.*expected a tuple of 3: costs \(Vx, Vy\)"),
        (ids, (cost, cost), "expected a tuple of 3"),
        ((["a"] * 3, ids[1]), (cost, cost, cost), "not numbers"),
        ((ids[0][:0], ids[1]), (cost, cost, cost), r"labels of x are torch.int64 \(0,\)"),
        ((ids[0].int(), ids[1]), (cost, cost, cost), r"are torch.int32 .*expected \(3,\) int64"),
        ((ids[0], ids[1] + 1), (cost, cost, cost), "labels of y run from 2 to 2, .*below 2"),
        (ids, (0.0, 0.0, 0.0), r"a label cost has shape \(\), expected"),
        (ids, (cost, cost, cost[:1]), "a label cost has shape"),
        (ids, (cost, cost + torch.nan, cost), "finite"),
        (ids, (cost, cost, bent), "inside y differs from its transpose by up to 1, .*symmetric"),
    ):
        with pytest.raises(otdd.LabelError, match=message):
            sinkhorn_divergence(x, y, labels=labels, label_cost=costs, device="cpu")
    # the cross term alone has no such cost
    sinkhorn_divergence(
        *(x, y), labels=ids, label_cost=(cost, cost, bent), debias=False, device="cpu"
    )
    for factor in (0.0, torch.nan, "a", None):
        with pytest.raises(otdd.SettingsError, match="factor is"):
            sinkhorn_divergence(x, y, factor=factor)
    with pytest.raises(otdd.WeightError, match="sum to 2"):
        sinkhorn_divergence(x, y, torch.full((3,), 2 / 3))
