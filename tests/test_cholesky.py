"""The pivoted Cholesky kernel against LAPACK and exact structure."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.linalg import lapack

from otdd_flash_kernels.cholesky import HEIGHT, pivoted_cholesky

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
EPS = torch.finfo(torch.float64).eps


def correlations(d: int, samples: list[int], seed: int = 0) -> torch.Tensor:
    """Return one correlation matrix for each number of samples, of that rank at most."""
    g = torch.Generator().manual_seed(seed)
    out = []
    for n in samples:
        x = torch.randn(n, d, generator=g, dtype=torch.float64)
        cov = x.mT @ x
        s = cov.diagonal().sqrt()
        out.append(cov / torch.where(s > 0, s, 1.0)[:, None] / torch.where(s > 0, s, 1.0))
    return torch.stack(out).to(DEVICE)


@pytest.mark.parametrize("d", [1, 2, 7, 17, 33, 64, 65])
def test_equals_lapack_row_by_row(d):
    # full rank, less, one sample, none; a block that ends early beside blocks that go on
    samples = [2 * d + 3, max(1, d // 2), 1, 0]
    matrices = correlations(d, samples)
    tolerance = max(4 * d, 64) * EPS
    rows, ranks = pivoted_cholesky(matrices.clone(), tolerance)
    assert ranks.tolist() == [min(n, d) for n in samples]
    for matrix, r, rank in zip(matrices.cpu(), rows.cpu(), ranks.tolist(), strict=True):
        assert not r[rank:].any()
        torch.testing.assert_close(r.mT @ r, matrix, rtol=0, atol=(d + 3) * EPS)
        if matrix.any():
            upper, pivots, found, _ = lapack.dpstrf(matrix.numpy(), tol=tolerance)
            expected = np.zeros((found, d))
            expected[:, pivots - 1] = np.triu(upper)[:found]
            # errors of a triangular solve with a factor of condition 1e3 at most
            np.testing.assert_allclose(r[:rank].numpy(), expected, rtol=0, atol=1e-11)


def test_rows_are_exactly_zero_at_former_pivots():
    (rows,), (rank,) = pivoted_cholesky(correlations(50, [80]), 64 * EPS)
    former: list[int] = []
    for k in range(int(rank)):
        assert not rows[k, former].any()
        pivot = int(rows[k].argmax())
        assert bool((rows[k + 1 :, pivot] == 0).all())
        former.append(pivot)
    assert len(set(former)) == 50 > HEIGHT


def test_equal_and_constant_features():
    matrix = torch.ones(1, 40, 40, dtype=torch.float64, device=DEVICE)
    matrix[0, 20:], matrix[0, :, 20:] = 0.0, 0.0
    (rows,), (rank,) = pivoted_cholesky(matrix, 64 * EPS)
    assert rank == 1
    assert bool((rows[0, :20] == 1).all()) and not rows[0, 20:].any() and not rows[1:].any()


def test_no_matrices():
    rows, ranks = pivoted_cholesky(torch.zeros(0, 5, 5, dtype=torch.float64, device=DEVICE), 1e-12)
    assert rows.shape == (0, 5, 5) and ranks.shape == (0,)
