r"""The cost in float64 from the points as they were given: one check for every method.

.. math::
    C_{ij} = factor \|x_i - y_j\|^2 + W_2^2[l^x_i, l^y_j]

made block by block, so that any size can be checked on the device that holds the points. It shares
no code with the operators: neither their quantisation nor their kernels.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

# rows and columns of one block: 256 MB
BLOCK_ROWS, BLOCK_COLUMNS = 1 << 12, 1 << 13
# exp of more overflows
HIGHEST = 700.0


def _spans(n: int, height: int) -> Iterator[slice]:
    for start in range(0, n, height):
        yield slice(start, min(start + height, n))


class Float64Cost:
    """Blocks of C in float64 and what is computed from them.

    Memory: a few blocks of 256 MB; O(n + m) beside the points.
    """

    def __init__(
        self,
        x: Tensor,  # (n, d) points as given, any dtype
        y: Tensor,  # (m, d)
        row_labels: Tensor,  # (n,) int64
        column_labels: Tensor,  # (m,) int64
        label_cost: Tensor,  # (Vx, Vy) float64, in units of the cost
        factor: float,  # cost of one squared unit of the points
    ) -> None:
        self.x, self.y = x, y
        self.row_labels, self.column_labels = row_labels, column_labels
        self.label_cost = label_cost.to(x.device, torch.float64)
        self.factor = factor
        # squared distances do not change; near the middle their three terms cancel least
        self._middle = y[: 1 << 12].double().mean(0).round()

    @property
    def transposed(self) -> Float64Cost:
        """The same cost with the roles of the clouds swapped."""
        labels = self.column_labels, self.row_labels
        return Float64Cost(self.y, self.x, *labels, self.label_cost.mT, self.factor)

    def block(
        self,
        i: slice | Tensor,  # rows
        j: slice | Tensor,  # columns
    ) -> Tensor:  # (rows, columns) float64
        """Return a block of C."""
        p, q = self.x[i].double() - self._middle, self.y[j].double() - self._middle
        out = (p @ q.mT).mul_(-2 * self.factor)
        out += (p.square().sum(1) * self.factor)[:, None]
        out += (q.square().sum(1) * self.factor)[None]
        if self.label_cost.numel() > 1:
            out += self.label_cost[self.row_labels[i]][:, self.column_labels[j]]
        return out

    def softmin(
        self,
        h: Tensor,  # (m,) potential plus eps log weight
        eps: float,
        rows: slice | Tensor,
    ) -> Tensor:  # (rows,) float64
        """Return the softmin over the columns of some rows, block by block."""
        parts = [
            torch.logsumexp((h[j].double()[None] - self.block(rows, j)).div_(eps), dim=1)
            for j in _spans(len(self.y), BLOCK_COLUMNS)
        ]
        return torch.logsumexp(torch.stack(parts), dim=0) * -eps

    def semidual(
        self,
        g: Tensor,  # (m,) potential
        a: Tensor,  # (n,) weights
        b: Tensor,  # (m,)
        eps: float,
    ) -> float:
        """Return ``<a, T(g)> + <b, g>``, the value of OT_eps where g is optimal."""
        h = g.double() + eps * b.double().log()
        value = float(b.double() @ g.double())
        for i in _spans(len(self.x), BLOCK_ROWS):
            value += float(a[i].double() @ self.softmin(h, eps, i))
        return value

    def marginal_errors(
        self,
        f: Tensor,  # (n,) potentials, in the convention P = a b exp((f + g - C) / eps)
        g: Tensor,  # (m,)
        a: Tensor,  # (n,) weights
        b: Tensor,  # (m,)
        eps: float,
    ) -> tuple[float, float]:  # L1 errors of the rows and of the columns
        """Return how far both marginals of the plan are from the weights."""
        f, g, a, b = (v.to(self.x.device, torch.float64) for v in (f, g, a, b))
        rows, columns = torch.zeros_like(a), torch.zeros_like(b)
        for i in _spans(len(self.x), BLOCK_ROWS):
            for j in _spans(len(self.y), BLOCK_COLUMNS):
                plan = self.block(i, j).neg_().add_(f[i, None]).add_(g[None, j]).div_(eps)
                plan = plan.clamp_(max=HIGHEST).exp_()
                rows[i] += plan @ b[j]
                columns[j] += a[i] @ plan
        return float((a * (rows - 1).abs()).sum()), float((b * (columns - 1).abs()).sum())
