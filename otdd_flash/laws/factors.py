"""Rank-revealing factors of covariances: ``F`` of shape (rank, d) with ``F^T F = cov``."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor


def factorize(
    covariances: Tensor,  # (V, d, d) float64, symmetric positive semidefinite
    *,
    batched: bool | None = None,  # None: the kernel on a GPU, LAPACK on the CPU
) -> list[Tensor]:  # V of (rank_c, d)
    """Return factors F with ``F^T F = cov``: pivoted Cholesky of the correlations, rescaled.

    Scaling to correlations first keeps the digits of features of small variance. Directions whose
    variance given the others is below ``4 d u`` of their own are null.

    Memory: three times as much again as the covariances (batched), or one of them. Source: Higham
    2002, "Accuracy and stability of numerical algorithms", section 10.3; Lucas 2004 (LAPACK
    ``dpstrf``).
    """
    d = covariances.shape[-1]
    scale = covariances.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
    tolerance = max(4 * d, 64) * torch.finfo(torch.float64).eps
    if covariances.device.type != "cpu" if batched is None else batched:
        # Triton takes a while to import, and the CPU does without it
        from otdd_flash_kernels.cholesky import pivoted_cholesky

        inverse = torch.where(scale > 0, 1 / scale, 0.0)
        correlations = covariances * inverse[:, :, None] * inverse[:, None, :]
        rows, ranks = pivoted_cholesky(correlations.contiguous(), tolerance)
        return [r[:k] * s for r, k, s in zip(rows, ranks.tolist(), scale, strict=True)]
    return [_lapack_factor(c, s, tolerance) for c, s in zip(covariances, scale, strict=True)]


def pivots(
    factor: Tensor,  # (r, d) of `factorize`
) -> Tensor:  # (r,) int64
    """Return the columns of a factor that make it upper triangular, the largest entries last left.

    Read off its exact zeros: a pivot's column is zero below its row. Others that are, too, lie in
    the span of the pivots so far, and lose to it: what was left of a feature is largest there.
    """
    r = len(factor)
    if not r:
        return torch.zeros(0, dtype=torch.int64, device=factor.device)
    height = (factor != 0) * torch.arange(1, r + 1, device=factor.device)[:, None]
    last = height.amax(0)
    size = factor.gather(0, (last - 1).clamp(min=0)[None])[0].abs() / factor.norm(dim=0)
    numbers = torch.arange(1, r + 1, device=factor.device)
    return torch.where(last == numbers[:, None], size, -1.0).argmax(1)


def _lapack_factor(covariance: Tensor, scale: Tensor, tolerance: float) -> Tensor:
    active = torch.nonzero(scale)[:, 0]
    if not active.shape[0]:
        return covariance.new_zeros(0, covariance.shape[0])
    s = scale[active]
    correlation = covariance[active[:, None], active] / s[:, None] / s
    # half a second to import, and a GPU does not need it
    from scipy.linalg import lapack

    routine: Any = lapack.dpstrf
    upper, pivots, rank, _ = routine(correlation.numpy(), tol=tolerance)
    factor = covariance.new_zeros(rank, covariance.shape[0])
    factor[:, active[torch.from_numpy(pivots.astype(np.int64) - 1)]] = torch.from_numpy(
        np.triu(upper)[:rank].copy()
    )
    return factor * scale
