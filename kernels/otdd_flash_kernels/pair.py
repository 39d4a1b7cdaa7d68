r"""The cost between two clouds, as every operator of this package reads it.

.. math::
    C_{ij} = scale (bias^x_i + bias^y_j - 2 q_i \cdot p_j) + L[l^x_i, l^y_j]

never stored as a whole unless the caller asks the CPU operators to.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash_kernels.quantize import Cloud


@dataclass(frozen=True, eq=False)
class CostPair:
    """Two clouds, their class ids and the label cost: all that defines C.

    Rows of both clouds are sorted by class, so that a block of rows has few classes.
    """

    rows: Cloud  # n points
    columns: Cloud  # m points
    scale: float  # cost of one squared grid step
    label_cost: Tensor  # (Vx, Vy) float64, in units of the cost
    row_labels: Tensor  # (n,) int64, sorted
    column_labels: Tensor  # (m,) int64, sorted

    def __post_init__(self) -> None:
        for labels, cloud in ((self.row_labels, self.rows), (self.column_labels, self.columns)):
            if labels.shape != (cloud.n,) or labels.dtype != torch.int64:
                raise ValueError(
                    f"labels are {labels.dtype} {tuple(labels.shape)}, expected int64 ({cloud.n},)"
                )
        if self.rows.data.dtype != self.columns.data.dtype:
            raise ValueError("both clouds must be quantised, or neither")

    @cached_property
    def transposed(self) -> CostPair:
        """The same cost with the roles of the clouds swapped."""
        return replace(
            self,
            rows=self.columns,
            columns=self.rows,
            label_cost=self.label_cost.mT.contiguous(),
            row_labels=self.column_labels,
            column_labels=self.row_labels,
        )

    @cached_property
    def column_seams(self) -> tuple[int, ...]:
        """First column of each class, and m at the end (Vy + 1 numbers)."""
        counts = torch.bincount(self.column_labels, minlength=self.label_cost.shape[1])
        return (0, *torch.cumsum(counts, 0).tolist())

    def block(
        self,
        rows: slice,
        columns: slice,
        left: Tensor,  # (k, d) float64 coordinates of the rows, `Cloud.dense`
        right: Tensor,  # (l, d) of the columns
    ) -> Tensor:  # (k, l) float64
        """Return a block of C; the caller keeps the coordinates from block to block."""
        out = (left @ right.mT).mul_(-2.0 * self.scale)
        out += (self.rows.bias[rows] * self.scale)[:, None]
        out += self.columns.bias[columns] * self.scale
        out += self.label_cost[self.row_labels[rows]][:, self.column_labels[columns]]
        return out

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns (n, m) of the cost."""
        return self.rows.n, self.columns.n


def bilinear(
    pair: CostPair,
    u: Tensor,  # (n,) float64
    v: Tensor,  # (m,) float64
) -> Tensor:  # () float64
    """Return ``sum_ij u_i v_j C_ij`` from sums over each side alone: exact, O((n + m) d)."""
    u_sum, v_sum = u.sum(), v.sum()
    squared = (
        (u @ pair.rows.bias) * v_sum
        + u_sum * (v @ pair.columns.bias)
        - 2 * (pair.rows.weighted_sum(u) @ pair.columns.weighted_sum(v))
    )
    vx, vy = pair.label_cost.shape
    by_row = torch.zeros(vx, dtype=torch.float64, device=u.device)
    by_row.index_add_(0, pair.row_labels, u)
    by_column = torch.zeros(vy, dtype=torch.float64, device=v.device)
    by_column.index_add_(0, pair.column_labels, v)
    return pair.scale * squared + by_row @ pair.label_cost @ by_column
