r"""A plan as second derivatives read it: times single vectors, and in blocks of rows.

.. math::
    P_{ij} = a_i b_j \exp((f_i + g_j - C_{ij}) / eps) = a_i W_{ij}

Rows of W sum to one, up to the error of the marginals, so that W suits float32 whatever the weights
are. Here in torch on any device: remade for every pass in float64, or stored. The streaming kernel
of a GPU is in hvp.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import torch
from torch import Tensor

from otdd_flash_kernels.pair import CostPair

# float64 entries of a block of rows: 2 MB, which a CPU's caches hold, eight times as much on a GPU
BLOCK_ENTRIES, GPU_FACTOR = 1 << 18, 8


class Transport(Protocol):
    """Products with one plan; vectors are float64 on the device of the clouds."""

    dtype: torch.dtype  # of the blocks and of what products are exact to

    def times(self, z: Tensor) -> Tensor:
        """Return ``P z`` (n,) of z (m,)."""

    def times_transposed(self, z: Tensor) -> Tensor:
        """Return ``P^T z`` (m,) of z (n,)."""

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their (rows, m) blocks of W; read only, and only until the next."""


class BlockTransport:
    """A plan whose blocks are made in float64 from the points, for every pass anew.

    Memory: float64 copies of the points and a few blocks.
    """

    dtype = torch.float64

    def __init__(
        self,
        pair: CostPair,
        f: Tensor,  # (n,) float64 potential
        g: Tensor,  # (m,)
        a: Tensor,  # (n,) float64 weights > 0
        b: Tensor,  # (m,)
        eps: float,
    ) -> None:
        self._a = a
        self._scale = 2.0 * pair.scale / eps
        self._rows = pair.rows.dense()
        same = pair.rows is pair.columns
        self._columns = self._rows if same else pair.columns.dense()
        self._left = (f - pair.scale * pair.rows.bias) / eps
        self._right = (g - pair.scale * pair.columns.bias) / eps + b.log()
        self._label_cost = pair.label_cost / eps
        self._labels = pair.row_labels, pair.column_labels
        self._height = _height(pair.columns.n, self._a)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their blocks of W."""
        row_labels, column_labels = self._labels
        n = len(self._rows)
        for start in range(0, n, self._height):
            rows = slice(start, min(start + self._height, n))
            score = (self._rows[rows] @ self._columns.mT).mul_(self._scale)
            score += self._left[rows, None]
            # rows are sorted by class: what is left is one vector for the rows of each
            classes, counts = torch.unique_consecutive(row_labels[rows], return_counts=True)
            begin = 0
            for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
                costs = self._label_cost[label][column_labels]
                score[begin : begin + count] += self._right - costs
                begin += count
            yield rows, score.exp_()

    def times(self, z: Tensor) -> Tensor:
        """Return ``P z``."""
        return self._a * torch.cat([block @ z for _, block in self.blocks()])

    def times_transposed(self, z: Tensor) -> Tensor:
        """Return ``P^T z``."""
        scaled = self._a * z
        out = torch.zeros(len(self._columns), dtype=torch.float64, device=z.device)
        for rows, block in self.blocks():
            out += scaled[rows] @ block
        return out


def _height(
    m: int,
    like: Tensor,  # on the device of the blocks
) -> int:
    """Return the rows of a block."""
    return max(1, BLOCK_ENTRIES * (1 if like.device.type == "cpu" else GPU_FACTOR) // m)


class StoredTransport:
    """A plan whose W is stored, in the precision of the blocks it is made of.

    Memory: 8 n m bytes in float64, 4 n m in float32.
    """

    def __init__(
        self,
        source: Transport,
        a: Tensor,  # (n,) float64 weights > 0
        m: int,
    ) -> None:
        self.dtype = source.dtype
        self._a = a
        self._weights = torch.empty((len(a), m), dtype=self.dtype, device=a.device)
        for rows, block in source.blocks():
            self._weights[rows] = block

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their blocks of W."""
        n, m = self._weights.shape
        height = _height(m, self._weights)
        for start in range(0, n, height):
            rows = slice(start, min(start + height, n))
            yield rows, self._weights[rows]

    def times(self, z: Tensor) -> Tensor:
        """Return ``P z``."""
        return self._a * torch.mv(self._weights, z.to(self.dtype)).double()

    def times_transposed(self, z: Tensor) -> Tensor:
        """Return ``P^T z``."""
        return torch.mv(self._weights.mT, (self._a * z).to(self.dtype)).double()
