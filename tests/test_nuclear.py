"""Bands, determinants under shifts and the nuclear norms they give, against dense float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from otdd_flash.laws import factor_pairs
from otdd_flash.laws.bures import (
    FAST_ACCURACY,
    accuracy_notes,
    gaussian_w2,
    label_cost,
    usual_accuracy,
)
from otdd_flash.laws.gaussians import ClassLaws, class_laws
from otdd_flash.laws.nuclear import nuclear_norms
from otdd_flash.laws.polar import ACCURACY
from otdd_flash_kernels import bands
from otdd_flash_kernels.bands import BAND, log_determinants, reduce_to_bands

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def normal(*shape: int, seed: int = 0) -> Tensor:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=g, dtype=torch.float64).to(DEVICE)


def spectrum(values: Tensor, seed: int = 0) -> Tensor:
    """Return two square matrices of the given singular values."""
    n = len(values)
    u, v = (torch.linalg.qr(normal(2, n, n, seed=seed + k))[0] for k in (0, 1))
    return (u * values.to(DEVICE)) @ v.mT


def band_of(reduced: Tensor) -> Tensor:
    """Return the block tridiagonal matrix that upper blocks stand for, all else left out."""
    n = reduced.shape[-1]
    block = torch.arange(n, device=reduced.device) // BAND
    gap = block[None, :] - block[:, None]
    upper = torch.where(gap == 1, reduced, 0.0)
    return torch.where(gap == 0, reduced, 0.0) + upper + upper.mT


@pytest.mark.parametrize("n", [16, 32, 80])
def test_bands_keep_the_eigenvalues(n):
    x = normal(4, n, n)
    x[1, :, n // 2 :] = 0.0  # null rows and columns
    x[2] = 0.0
    x[3] *= torch.logspace(0, -9, n, dtype=torch.float64, device=DEVICE)
    matrices = x.mT @ x
    found = torch.linalg.eigvalsh(band_of(reduce_to_bands(matrices.clone())))
    expected = torch.linalg.eigvalsh(matrices)
    size = expected[:, -1:].clamp(min=1e-300)
    # reflections are orthogonal to n u, two sided
    assert ((found - expected).abs() / size).max() < 4 * n * 1.2e-16
    below = band_of(matrices)[0].tril(-1)[: 2 * BAND, : 2 * BAND]
    assert n == BAND or below.any()


def test_couplings_are_triangular():
    x = normal(1, 48, 48)
    (found,) = reduce_to_bands(x.mT @ x)
    for first in (0, BAND):
        coupling = found[first : first + BAND, first + BAND : first + 2 * BAND]
        assert torch.equal(coupling, coupling.tril())


@pytest.mark.parametrize("n", [16, 48])
def test_determinants_under_shifts(n):
    x = normal(2, n, n) / n
    x[1, :, n // 3 :] = 0.0
    matrices = band_of(x.mT @ x)
    # a band of a semidefinite matrix need not be one
    least = torch.linalg.eigvalsh(matrices)[:, 0].clamp(max=0.0)
    matrices = matrices - least[:, None, None] * torch.eye(n, dtype=torch.float64, device=DEVICE)
    shifts = torch.tensor([1e-6, 1e-2, 30.0], dtype=torch.float64, device=DEVICE)
    shifted = matrices[:, None] + shifts[:, None, None] * torch.eye(n, device=DEVICE)
    expected = torch.linalg.slogdet(shifted).logabsdet
    # a pivot of 1e-6 has lost 1e-16 / 1e-6
    torch.testing.assert_close(log_determinants(matrices, shifts), expected, rtol=0, atol=1e-8)


def test_no_matrices():
    empty = torch.zeros(0, 32, 32, dtype=torch.float64, device=DEVICE)
    shifts = torch.ones(3, dtype=torch.float64, device=DEVICE)
    assert log_determinants(reduce_to_bands(empty), shifts).shape == (0, 3)


def test_nuclear_norms_by_the_kernels():
    matrices = normal(1, 20, 16)
    found, bound = nuclear_norms(matrices, torch.full((1,), 16.0).to(matrices))
    expected = torch.linalg.svdvals(matrices).sum(1)
    assert ((found - expected).abs() <= bound).all() and (bound < 3e-9 * expected).all()


@pytest.fixture
def dense(monkeypatch):
    """Put dense eigenvalues in the place of the kernels, which are slow where interpreted."""

    def determinants(matrices: Tensor, shifts: Tensor) -> Tensor:
        values = torch.linalg.eigvalsh(matrices).clamp(min=0.0)
        return (values[:, None] + shifts[:, None]).log().sum(2)

    monkeypatch.setattr(bands, "reduce_to_bands", lambda matrices: matrices)
    monkeypatch.setattr(bands, "log_determinants", determinants)


@pytest.mark.parametrize("decades", [0, 2, 4, 6, 8, 10, 14])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_bound_holds_and_is_small_where_it_can_be(dense, decades, scale):
    values = torch.logspace(0, -decades, 96, dtype=torch.float64)
    found, bound = nuclear_norms(spectrum(values) * scale, torch.full((2,), 96.0).to(DEVICE))
    total = scale * float(values.sum())
    assert ((found - total).abs() <= bound).all()
    # the rule's own error; then 1e-15 over each value; then 3e-8 for each that is lost
    most = {0: 2e-9, 2: 2e-9, 4: 2e-9, 6: 1e-8}.get(decades, 2e-6)
    assert (bound <= most * total).all()


def test_null_columns_count_for_nothing(dense):
    matrices = spectrum(torch.logspace(0, -3, 64, dtype=torch.float64))
    padded = torch.nn.functional.pad(matrices, (0, 32, 0, 64))
    ranks = torch.full((2,), 64.0).to(DEVICE)
    for found, wide in zip(
        nuclear_norms(matrices, ranks), nuclear_norms(padded.mT, ranks), strict=True
    ):
        torch.testing.assert_close(found, wide, rtol=1e-9, atol=1e-10)
    found, bound = nuclear_norms(torch.zeros(1, 32, 32).to(padded), torch.zeros(1).to(padded))
    assert found == 0 and bound == 0


def laws(seed: int, classes: int, samples: int, d: int) -> ClassLaws:
    points = normal(classes * samples, d, seed=seed)
    points[::classes] *= torch.logspace(0, -9, d, dtype=torch.float64, device=DEVICE)
    labels = torch.arange(classes * samples) % classes
    return class_laws(points, labels, torch.full((len(points),), 1 / len(points)))


def test_distances_through_bands(dense, monkeypatch):
    """Well conditioned pairs by bands, the others by polar factors, close ones by neither alone."""
    x, y = laws(0, 3, 40, 30), laws(1, 4, 25, 30)
    monkeypatch.setattr(factor_pairs, "_bands_pay", lambda *args: True)
    sizes = []
    solve = factor_pairs.polar
    monkeypatch.setattr(
        factor_pairs, "polar", lambda m, *args: sizes.append(len(m)) or solve(m, *args)
    )
    expected = label_cost(x, y, method="svd")
    found = label_cost(x, y, method="polar", accuracy=1e-8)
    # class 0 of either has ten decades of variances: 3 + 4 - 1 pairs across, 2 + 3 inside
    assert 0 < sum(sizes) <= 11
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-7, atol=0)
    assert found.xx.equal(found.xx.mT) and not found.xx.diagonal().any()
    # a law beside itself moved a little: the sum of squares, not the difference of traces
    moved = ClassLaws("gaussian", x.masses, x.means, None, tuple(f * 1.001 for f in x.factors))
    near = gaussian_w2(x, moved, method="polar", accuracy=1e-8).diagonal()
    squares = torch.stack([(0.001 * f).square().sum() for f in x.factors])
    torch.testing.assert_close(near, squares, rtol=1e-9, atol=0)


def test_bands_are_for_many_pairs_on_a_gpu():
    padded = torch.empty(1, 32, 8)
    assert not factor_pairs._bands_pay(padded, 10**6, 1e-7)
    if DEVICE.type == "cuda":
        padded = padded.to(DEVICE)
        assert factor_pairs._bands_pay(padded, 10**6, 1e-7)
        assert not factor_pairs._bands_pay(padded, 10, 1e-7)
        assert not factor_pairs._bands_pay(padded, 10**6, 1e-10)


def test_the_usual_accuracy_follows_the_work():
    def wide(classes: int, rank: int) -> ClassLaws:
        # ranks alone count
        factors = (torch.zeros(rank, 1),) * classes
        return ClassLaws("gaussian", torch.ones(classes), torch.zeros(classes, 1), None, factors)

    assert usual_accuracy(wide(10, 784), wide(10, 784)) == ACCURACY
    assert usual_accuracy(wide(1000, 100), wide(1000, 100)) == ACCURACY
    many = wide(1000, 512)
    assert usual_accuracy(many, many) == FAST_ACCURACY
    # singular values on the CPU are as exact as ever
    assert accuracy_notes(many, many) == []
    if DEVICE.type == "cuda":
        there = ClassLaws("gaussian", many.masses, many.means.to(DEVICE), None, many.factors)
        assert "1e-07 of its size" in accuracy_notes(there, many)[0]
        assert accuracy_notes(wide(10, 784), there) == []
