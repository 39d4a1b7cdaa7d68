"""Polar factors that distances leave for their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from otdd_flash.laws import factor_pairs, law_pulls, polar
from otdd_flash.laws.bures import coupled_cost, gaussian_w2
from otdd_flash.laws.couplings import Couplings, decomposed
from otdd_flash.laws.factor_pairs import MEMORY_LIMIT, batched_pairs, svd_pairs
from otdd_flash.laws.gaussians import class_laws
from otdd_flash.laws.law_pulls import law_pull

ROOM = 1 << 20


def laws(seed: int, n: int, d: int = 6, classes: int = 3):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) * torch.logspace(0, -2, d) + seed
    return class_laws(x, torch.arange(n) % classes, torch.full((n,), 1 / n, dtype=torch.float64))


def coupled(x, y, room: int = ROOM):
    return coupled_cost(x, y, accuracy=1e-7, floor=1e-8, keep_limit=room)


# classes of 5 samples have fewer than features
@pytest.mark.parametrize("n", [15, 60])
@pytest.mark.parametrize("room", [0, 1000, ROOM])
def test_the_gradient_is_that_of_new_decompositions(monkeypatch, n, room):
    x, y = laws(0, n), laws(1, 50)
    found = coupled(x, y, room)
    # singular values with their vectors, and alone: another algorithm
    torch.testing.assert_close(found.xy, gaussian_w2(x, y), rtol=1e-13, atol=0)
    torch.testing.assert_close(found.xx, gaussian_w2(x, x), rtol=1e-13, atol=0)
    made = []
    real = law_pulls.decomposed
    monkeypatch.setattr(law_pulls, "decomposed", lambda f, g: made.append(1) or real(f, g))
    g = torch.Generator().manual_seed(2)
    mass = torch.randn(3, 3, generator=g, dtype=torch.float64)
    for other, weights in ((y, mass), (x, (mass + mass.mT).fill_diagonal_(0.0))):
        expected = law_pull(x, other, weights)
        count = len(made)
        pull = law_pull(x, other, weights, couplings=found.couplings)
        if room == ROOM:
            assert len(made) == count
        if room == 0:
            assert len(made) == 2 * count > 0
        made.clear()
        for p, q in zip(pull.factors or (), expected.factors or (), strict=True):
            # the same factors, added in another order where some were made again
            torch.testing.assert_close(p, q, rtol=1e-12, atol=1e-13)


def test_equal_laws_have_no_coupling():
    x = laws(0, 60)
    found = coupled(x, x)
    assert not found.xy.diagonal().any()
    assert found.couplings.between(1, 1, False) is None
    q = found.couplings.between(0, 2, False)
    assert q is not None and q.equal(found.couplings.between(2, 0, True).mT)


def test_laws_without_covariances_keep_nothing():
    x = torch.arange(12.0).view(6, 2)
    means = class_laws(x, torch.arange(6) % 2, torch.full((6,), 1 / 6), kind="means")
    assert coupled(means, means).couplings.between(0, 1, False) is None


@pytest.mark.parametrize("limit", [1, MEMORY_LIMIT])
def test_batches_leave_the_factors_that_lapack_gives(limit):
    factors = [*(laws(0, 60).factors or ()), *(laws(1, 15).factors or ())]
    pairs = torch.tensor([(i, j) for i in range(6) for j in range(i + 1, 6)])
    kept = Couplings(1e-8, ROOM)
    values = batched_pairs(factors, pairs, 1e-7, limit, kept)
    torch.testing.assert_close(values, svd_pairs(factors, pairs), rtol=1e-6, atol=0)
    kept.name((torch.arange(6).numpy(), torch.arange(6).numpy()))
    for i, j in pairs.tolist():
        q = kept.between(i, j, False)
        # kept in float32, and its singular values are 1 up to a tenth of the accuracy
        torch.testing.assert_close(q, decomposed(factors[i], factors[j])[0], rtol=0, atol=1e-6)


def test_close_laws_take_no_decomposition_of_their_own(monkeypatch):
    # two laws of five samples, close, of which one direction is below the floor
    (f, *_) = laws(1, 15).factors or ()
    g = torch.linalg.qr(torch.randn(6, 6, generator=torch.Generator().manual_seed(1)).double()).Q
    f = torch.cat([f[:3], f[3:4] * 1e-12])
    close = f + 1e-3 * f @ g
    calls = []
    real = factor_pairs.svd_pairs
    monkeypatch.setattr(factor_pairs, "svd_pairs", lambda *args: calls.append(1) or real(*args))
    pair = torch.tensor([[0, 1]])
    exact = batched_pairs([f, close], pair, 1e-5, MEMORY_LIMIT)
    assert calls
    calls.clear()
    found = batched_pairs([f, close], pair, 1e-5, MEMORY_LIMIT, Couplings(1e-7, ROOM))
    assert not calls
    total = f.square().sum() + close.square().sum()
    assert exact < 1e-3 * total and (found - exact).abs() < 1e-5 * total


@pytest.mark.parametrize("floor", [1e-12, 1e-8, 1e-3, 0.3, 0.999])
def test_steps_raise_every_value_above_the_floor(floor):
    # the bound that `polar` holds its nuclear norms by
    low, count = floor, 0
    values = torch.logspace(math.log10(floor), 0, 4001, dtype=torch.float64)
    shares = torch.linspace(0, 1, 101, dtype=torch.float64)
    below = floor * shares
    while 1 - low > 1e-11:
        a, b, c = polar._weights(low)
        assert c <= polar.MOST_WEIGHT * (1 + 1e-12)
        low, before = polar._raised(low, a, b, c), low
        values, below = (v * (a + b * v**2) / (1 + c * v**2) for v in (values, below))
        count += 1
        assert before < low <= values.min() + 1e-12
        assert max(values.max(), below.max()) <= 1 + 1e-12
    assert count <= 11
    # what was below is raised by as much at least
    assert bool((below >= shares * low - 1e-12).all())
