"""Polar factors of pairs of laws, kept from their distances to the gradients of those.

One decomposition of ``F G^T`` says both: its nuclear norm the distance, its polar factor Q the
optimal map (see `bures` and `law_pulls`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

# singular values below this, relative to the largest, are noise of the product F G^T
NOISE = 1e-13


def decomposed(
    f: Tensor,  # (r, d)
    g: Tensor,  # (s, d)
) -> tuple[Tensor, Tensor]:  # (r, s), (min(r, s),)
    """Return the polar factor of least norm and the singular values of ``F G^T``, by LAPACK."""
    u, values, vh = torch.linalg.svd(f @ g.mT, full_matrices=False)
    return (u * (values > NOISE * values[:1])) @ vh, values


class Couplings:
    """Polar factors of pairs of two datasets' classes, as many as fit.

    What was left out is made again by who needs it. Memory: ``limit`` bytes.
    """

    def __init__(
        self,
        floor: float,  # singular values that the factors follow, relative to the largest
        limit: int,  # bytes
    ) -> None:
        self.floor, self._left = floor, limit
        self._numbers: tuple[np.ndarray, ...] = ()  # of the classes of both datasets
        self._factors: dict[tuple[int, int], Tensor] = {}

    def name(self, numbers: tuple[np.ndarray, np.ndarray]) -> None:
        """Take the numbers that the laws of both datasets have in pairs; equal laws share one."""
        self._numbers = numbers

    def add(
        self,
        pairs: Tensor,  # (P, 2) numbers of laws
        factors: Tensor | Sequence[Tensor],  # (P, r, s), or P of (r, s)
        heights: Tensor,  # (P, 2) ranks r and s, beyond which a stack holds zeros
    ) -> None:
        """Keep the polar factors of some pairs if there is room.

        Stacks are of accelerators, accurate to 1e-7, and kept in half the bytes.
        """
        kept = factors.float() if isinstance(factors, Tensor) else factors
        size = sum(q.numel() * q.element_size() for q in kept)
        if size > self._left:
            return
        self._left -= size
        for (i, j), (r, s), q in zip(pairs.tolist(), heights.tolist(), kept, strict=True):
            self._factors[i, j] = q[:r, :s]

    def between(
        self,
        c: int,  # class of the first dataset
        k: int,  # class of the second, or of the first
        inner: bool,
    ) -> Tensor | None:  # (rank_c, rank_k) float64
        """Return the polar factor of a pair, None where it is not kept."""
        if not self._numbers:
            return None
        i, j = int(self._numbers[0][c]), int(self._numbers[0 if inner else 1][k])
        found = self._factors.get((min(i, j), max(i, j)))
        if found is None:
            return None
        return (found if i <= j else found.mT).double()
