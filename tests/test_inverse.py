"""Inverses of positive definite matrices by blocks and sweeps, against LAPACK."""

from __future__ import annotations

import pytest
import torch

from otdd_flash_kernels import inverse
from otdd_flash_kernels.inverse import LARGE, SMALL, invert

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = torch.finfo(torch.float64).eps


def definite(n: int, condition: float) -> torch.Tensor:  # (3, n, n)
    g = torch.Generator().manual_seed(n)
    q = torch.linalg.qr(torch.randn(3, n, n, generator=g, dtype=torch.float64)).Q
    values = torch.logspace(0, 1, n, base=condition, dtype=torch.float64)
    return (q * values) @ q.mT


# three matrices are few, or many
@pytest.fixture(params=[256, 2])
def few(request, monkeypatch):
    monkeypatch.setattr(inverse, "FEW", request.param)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize("condition", [1.0, 400.0, 1e5])
@pytest.mark.parametrize("n", [1, 2, *(s + k for s, _ in (SMALL, LARGE) for k in (-1, 0, 1)), 135])
def test_equals_lapack(n, condition):
    matrices = definite(n, condition).to(DEVICE)
    expected = torch.linalg.inv(matrices)
    found = invert(matrices.clone())
    error = (found - expected).abs().max() / expected.abs().max()
    # a small multiple of u times the condition number, beyond polar steps its square
    power = 1 if condition <= 400 else 2
    assert error < 10 * EPS * condition**power * n**0.5
    assert found.equal(invert(matrices.clone()))


@pytest.mark.usefixtures("few")
def test_works_in_place_on_a_part():
    n = 70
    inside = definite(n, 100.0).to(DEVICE)
    whole = torch.full((3, n + 10, n + 20), float("nan"), dtype=torch.float64, device=DEVICE)
    part = whole[:, 4 : 4 + n, 8 : 8 + n]
    part.copy_(inside)
    assert invert(part) is part
    torch.testing.assert_close(part @ inside, torch.eye(n).to(part).expand(3, -1, -1))
    part.fill_(0.0)
    assert int(whole.isnan().sum()) == 3 * ((n + 10) * (n + 20) - n * n)


def test_unit_rows_stay_exactly():
    matrices = torch.eye(90, dtype=torch.float64, device=DEVICE).repeat(2, 1, 1)
    matrices[:, 10:60, 10:60] = definite(50, 100.0)[:2].to(DEVICE)
    found = invert(matrices)
    unit = torch.eye(90).to(found)
    for edge in (slice(0, 10), slice(60, 90)):
        assert found[:, edge].equal(unit[edge].expand(2, -1, -1))
        assert found[:, :, edge].equal(unit[:, edge].expand(2, -1, -1))


def test_no_matrices():
    empty = torch.zeros(0, 40, 40, dtype=torch.float64, device=DEVICE)
    assert invert(empty).shape == (0, 40, 40)
