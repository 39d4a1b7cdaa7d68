"""Unbalanced transport against dense float64 formulas, closed forms and finite differences."""

from __future__ import annotations

import numpy as np
import ot
import pytest
import torch
from scipy.special import logsumexp

import otdd_flash as otdd
from otdd_flash.losses.unbalanced_loss import solve_terms, unbalanced_divergence
from otdd_flash.settings import OTDDSettings


def settings(eps: float, **changes) -> OTDDSettings:
    return OTDDSettings(**{"epsilon": eps, "device": "cpu", **changes})


def problem(seed: int, n: int = 30, m: int = 40, *, zeros: int = 2):
    r = np.random.default_rng(seed)
    x, y = r.random((n, 2)), r.random((m, 2)) * 0.8 + 0.3
    a, b = r.random(n) / 10, r.random(m) / 30
    a[:zeros] = 0
    return [torch.from_numpy(t) for t in (x, y, a, b)]


def truth(x, y, a, b, eps, rho):
    """Return the optimal value and potentials by damped updates to a fixed point."""
    x, y, a, b = (t.numpy() for t in (x, y, a, b))
    cost = ((x[:, None] - y[None]) ** 2).sum(-1) / 2
    with np.errstate(divide="ignore"):
        log_a, log_b = np.log(a), np.log(b)
    s, g = rho / (rho + eps), np.zeros(len(b))
    for _ in range(100_000):
        f = -s * eps * logsumexp((g[None] - cost) / eps + log_b[None], axis=1)
        update = -s * eps * logsumexp((f[:, None] - cost) / eps + log_a[:, None], axis=0)
        done, g = np.abs(update - g).max() < 1e-14, update
        if done:
            break
    plan = a[:, None] * b[None] * np.exp((f[:, None] + g[None] - cost) / eps)
    value = rho * (a @ -np.expm1(-f / rho) + b @ -np.expm1(-g / rho))
    return value + eps * (a.sum() * b.sum() - plan.sum()), f, g, plan


def divergence(x, y, a, b, eps, rho) -> float:
    """Return S by its definition."""
    value = truth(x, y, a, b, eps, rho)[0]
    value -= (truth(x, x, a, a, eps, rho)[0] + truth(y, y, b, b, eps, rho)[0]) / 2
    return value + eps / 2 * float(a.sum() - b.sum()) ** 2


# eps below, near and above rho; masses of 1.5 and 0.7
@pytest.mark.parametrize(("eps", "rho"), [(0.01, 0.5), (0.003, 0.03), (0.5, 0.02), (0.1, 0.1)])
def test_values_agree_with_the_definition_and_lie_in_their_bounds(eps, rho):
    x, y, a, b = problem(0)
    found = solve_terms(x, y, a, b, rho, 0.5, settings(eps))
    expected = divergence(x, y, a, b, eps, rho)
    assert all(t.solution.converged for t in found.terms)
    assert found.bounds.lower <= expected <= found.bounds.upper
    # the duality gap that a solve stops at, of the cross and half of either self term
    assert found.bounds.upper - found.bounds.lower < 2.5e-3 * min(eps, rho)
    exact = solve_terms(x, y, a, b, rho, 0.5, settings(eps, tol=1e-10))
    assert exact.value == pytest.approx(expected, abs=1e-11)


def test_potentials_of_all_samples_and_the_plan():
    x, y, a, b = problem(1)
    found = solve_terms(x, y, a, b, 0.2, 0.5, settings(0.01, tol=1e-12, debias=False))
    _, f, g, plan = truth(x, y, a, b, 0.01, 0.2)
    assert found.cross is not None and not found.selves
    for got, expected in zip(found.cross.potentials(), (f, g), strict=True):
        np.testing.assert_allclose(got, expected, rtol=0, atol=1e-10)
    np.testing.assert_allclose(found.cross.plan().to_dense(), plan, rtol=0, atol=1e-12)


@pytest.mark.parametrize("rho", [1e2, 1e4])
def test_weak_penalties_need_no_more_passes(rho):
    """Plain damped updates would take thousands: potentials creep at the rate 1 - 2 eps / rho."""
    x, y, a, b = problem(2, 60, 50)
    found = solve_terms(x, y, a / a.sum(), b / b.sum(), rho, 0.5, settings(0.01))
    assert all(t.solution.converged for t in found.terms)
    assert max(t.solution.passes for t in found.terms) < 100
    balanced = otdd.sinkhorn_divergence(
        x, y, a / a.sum(), b / b.sum(), factor=0.5, epsilon=0.01, tol=1e-9, device="cpu"
    )
    # the penalty of the mass that the optimum leaves out is of second order in cost / rho
    assert found.value == pytest.approx(float(balanced), abs=1 / rho)


def test_pot_finds_the_same_plan():
    x, y, a, b = problem(3, zeros=0)
    eps, rho = 0.05, 0.3
    found = solve_terms(x, y, a, b, rho, 0.5, settings(eps, tol=1e-10, debias=False))
    cost = ot.dist(x.numpy(), y.numpy()) / 2
    plan = ot.unbalanced.sinkhorn_unbalanced(
        a.numpy(), b.numpy(), cost, eps, rho, reg_type="kl", numItermax=10_000, stopThr=1e-14
    )
    assert found.cross is not None
    np.testing.assert_allclose(found.cross.plan().to_dense(), plan, rtol=0, atol=1e-11)


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("k", range(4))
def test_gradients_agree_with_finite_differences(k, debias):
    inputs = problem(4, 6, 7, zeros=1)
    exact = settings(0.05, tol=1e-12, max_passes=5000, debias=debias)

    def value(replaced):
        args = [replaced if j == k else t for j, t in enumerate(inputs)]
        return unbalanced_divergence(*args, 0.2, 0.5, exact)

    point = inputs[k].clone().requires_grad_()
    value(point).backward()
    step = 1e-5
    for i in range(point.numel()):
        move = torch.zeros_like(inputs[k])
        move.view(-1)[i] = step
        if float(inputs[k].view(-1)[i]) == 0:
            # a weight of 0 moves one way: the step's curvature stays
            change = float(value(inputs[k] + move) - value(inputs[k])) / step
            assert float(point.grad.view(-1)[i]) == pytest.approx(change, abs=1e-5)
            continue
        change = float(value(inputs[k] + move) - value(inputs[k] - move)) / (2 * step)
        assert float(point.grad.view(-1)[i]) == pytest.approx(change, rel=1e-6, abs=1e-8)


def test_the_same_cloud_is_at_distance_0_whatever_its_order():
    x, _, a, _ = problem(5)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    moving = x.clone().requires_grad_()
    value = unbalanced_divergence(moving, x[order], a, a[order], 0.1, 0.5, settings(0.01))
    value.backward()
    assert value.item() == 0.0 and not moving.grad.any()


def test_clouds_out_of_reach_cost_their_masses():
    x, y, a, b = problem(6)
    found = solve_terms(x, y + 1e3, a, b, 0.1, 0.5, settings(0.01, debias=False))
    masses = float(a.sum()), float(b.sum())
    # nothing is moved: P = 0
    expected = 0.1 * sum(masses) + 0.01 * masses[0] * masses[1]
    assert found.value == pytest.approx(expected, rel=1e-12)


def test_scaling_both_masses_of_points_at_one_place():
    """One point a side at cost c: P solves eps log(P / ab) + rho log(P^2 / ab) + c = 0."""
    a, b, eps, rho, c = 0.7, 2.0, 0.1, 0.4, 0.5
    mass = ((a * b) ** (eps + rho) * np.exp(-c)) ** (1 / (eps + 2 * rho))

    def kl(p, q):
        return p * np.log(p / q) - p + q

    expected = mass * c + eps * kl(mass, a * b) + rho * (kl(mass, a) + kl(mass, b))
    x, y = torch.zeros(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)
    weights = (torch.tensor([w], dtype=torch.float64) for w in (a, b))
    found = solve_terms(x, y, *weights, rho, 0.5, settings(eps, tol=1e-9, debias=False))
    assert found.value == pytest.approx(expected, rel=1e-9)


def test_a_solve_that_stops_early_says_so_and_keeps_its_bounds():
    x, y, a, b = problem(7)
    with pytest.warns(otdd.ConvergenceWarning, match="unbalanced.*raise max_passes or blur"):
        found = solve_terms(x, y, a, b, 0.5, 0.5, settings(0.003, max_passes=4))
    expected = divergence(x, y, a, b, 0.003, 0.5)
    assert not all(t.solution.converged for t in found.terms)
    assert found.bounds.lower <= expected <= found.bounds.upper


def test_bad_input_is_refused():
    x, y, a, b = problem(8)
    for weights, message in (
        (a * 0, "sum to 0, expected a positive"),
        (a - 1, "must be finite and >= 0"),
        (a[:3], r"shape \(3,\), expected \(30,\)"),
    ):
        with pytest.raises(otdd.WeightError, match=message):
            unbalanced_divergence(x, y, weights, b, 0.1, 0.5, settings(0.01))
    with pytest.raises(otdd.DataError, match="bring both to one feature space"):
        unbalanced_divergence(x, y[:, :1], a, b, 0.1, 0.5, settings(0.01))


@pytest.mark.parametrize("debias", [True, False])
def test_second_derivatives_are_refused_and_never_zero(debias):
    x, y, a, b = problem(3, 8, 9)

    def value(x: torch.Tensor) -> torch.Tensor:
        return unbalanced_divergence(x, y, a, b, 0.5, 0.5, settings(0.1, debias=debias))

    # torch takes a gradient without a graph for a constant
    for product in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        with pytest.raises(otdd.SettingsError, match="unbalanced divergence .* leave out reach"):
            product(value, x, torch.ones_like(x))


def test_gradients_by_torch_func():
    x, y, a, b = problem(3, 8, 9)

    def value(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        return unbalanced_divergence(x, y, a, b, 0.5, 0.5, settings(0.1))

    leaves = x.clone().requires_grad_(), a.clone().requires_grad_()
    truth = torch.autograd.grad(value(*leaves), leaves)
    found = torch.func.grad(value, argnums=(0, 1))(x, a)
    assert all(torch.equal(*pair) for pair in zip(found, truth, strict=True))


@pytest.mark.parametrize(
    ("eps", "rho", "name"), [(1e200, 1.0, "blur"), (1e-200, 1.0, "blur"), (1.0, 1e200, "reach")]
)
def test_scales_that_float64_cannot_square_are_refused(eps, rho, name):
    x, y, a, b = problem(3, 8, 9)
    with pytest.raises(otdd.SettingsError, match=f"the square of {name} is 1e.?200; expected 1e"):
        unbalanced_divergence(x, y, a, b, rho, 0.5, settings(eps))
    with pytest.raises(otdd.DataError, match="the mean cost is .*scale the points"):
        unbalanced_divergence(1e100 * x, y, a, b, 1.0, 0.5, settings(1.0))
