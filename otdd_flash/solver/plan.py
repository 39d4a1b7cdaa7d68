r"""A transport plan that is never stored: what one asks of it is streamed.

.. math::
    P_{ij} = a_i b_j \exp((f_i + g_j - C_{ij}) / eps)

All vectors are in the order of the rows of the datasets; samples of weight zero have rows of zeros.

Source: FlashSinkhorn, arXiv 2602.03067, section 4 (streamed plans).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.cost import Margin
from otdd_flash.errors import BudgetError, DataError
from otdd_flash.operators import CostOperator
from otdd_flash.ops import make_operator
from otdd_flash.solver.certificate import class_mass, renumbered
from otdd_flash.solver.sinkhorn import Solution
from otdd_flash_kernels.pair import CostPair

# entries of a plan that is made dense: 2 GB of float64
DENSE_ENTRIES = 1 << 28
# entries of one float64 block of the cost: 128 MB
MATCH_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False)
class Plan:
    """The plan of solved potentials: streamed products, masses and matches."""

    pair: CostPair
    solution: Solution
    eps: float
    x: Margin  # the order of the pair's rows
    y: Margin
    shape: tuple[int, int]  # rows of the datasets, those without weight counted
    memory_budget: int | None = None
    classes: Tensor | None = None  # the target's ids of the pair's column classes, None: its own

    @cached_property
    def _op(self) -> CostOperator:
        return make_operator(self.pair, self.memory_budget)

    @property
    def _symmetric(self) -> bool:
        return self.solution.f is self.solution.g

    @cached_property
    def _rows(self) -> Tensor:  # (n',) row marginal in the pair's order
        if not self._symmetric:
            return self.x.weights
        return self.x.weights * ((self.solution.f - self.solution.next_g) / self.eps).exp()

    @cached_property
    def _columns(self) -> Tensor:  # (m',)
        return self.y.weights * ((self.solution.g - self.solution.next_g) / self.eps).exp()

    def row_mass(self) -> Tensor:
        """Return the plan's row marginal (n,) float64."""
        return _placed(self._rows, self.x, self.shape[0])

    def column_mass(self) -> Tensor:
        """Return the plan's column marginal (m,) float64; no pass."""
        return _placed(self._columns, self.y, self.shape[1])

    def row_means(
        self,
        values: Tensor,  # (m, k) one row a target sample
    ) -> Tensor:  # (n, k) in the operators' precision, zeros where a sample has no weight
        """Return the mean of values under each row of the plan, normalised; one pass.

        Raises:
            DataError: values that are not one row a target sample.
        """
        h = self.solution.g + self.eps * self.y.weights.log()
        chosen = _chosen(values, self.y, self.shape[1], "target")
        return _placed(self._op.means(h, self.eps, chosen, self.solution.f), self.x, self.shape[0])

    def column_means(
        self,
        values: Tensor,  # (n, k) one row a source sample
    ) -> Tensor:  # (m, k)
        """Return the mean of values under each column of the plan, normalised; one pass.

        Raises:
            DataError: values that are not one row a source sample.
        """
        h = self.solution.f + self.eps * self.x.weights.log()
        chosen = _chosen(values, self.x, self.shape[0], "source")
        means = self._op.means_transposed(h, self.eps, chosen, self.solution.next_g)
        return _placed(means, self.y, self.shape[1])

    def matmul(
        self,
        values: Tensor,  # (m, k) or (m,)
    ) -> Tensor:  # (n, k) or (n,)
        """Return ``P @ values``, one pass; ``plan @ values`` is the same."""
        means = self.row_means(values if values.ndim == 2 else values[:, None])
        out = means * self.row_mass().to(means)[:, None]
        return out if values.ndim == 2 else out[:, 0]

    __matmul__ = matmul

    def barycentric_map(
        self,
        points: Tensor,  # (m, d) target points
    ) -> Tensor:  # (n, d)
        """Return where each source sample goes on average, in units of the target's points."""
        return self.row_means(points.reshape(len(points), -1))

    def class_mass(self) -> Tensor:
        """Return the plan summed over class pairs, (Vx, Vy) float64; one pass."""
        mass = class_mass(self._op, self._rows, self.y.weights, self.eps, self.solution)
        return mass if self.classes is None else renumbered(mass, self.classes)

    def top_matches(
        self,
        k: int = 5,  # matches a source sample
    ) -> tuple[Tensor, Tensor]:  # (n, k) int64 target samples, (n, k) float64 plan mass
        """Return the target samples of largest plan mass for each source sample, largest first.

        Samples without weight have matches of -1 and mass 0. Memory: a few blocks of 128 MB, and
        the target points in float64.

        Raises:
            DataError: k below 1 or above the number of target samples that carry weight.
        """
        m = self.pair.columns.n
        if not 1 <= k <= m:
            raise DataError(f"k is {k}; expected 1 to {m}, the target samples that carry weight")
        h = self.solution.g + self.eps * self.y.weights.log()
        index = torch.full((self.shape[0], k), -1, dtype=torch.int64, device=self.x.weights.device)
        mass = torch.zeros((self.shape[0], k), dtype=torch.float64, device=index.device)
        for rows, cost in self._blocks(max(1, MATCH_ENTRIES // m)):
            score, best = (h[None] - cost).topk(k, dim=1)
            score = (score + self.solution.f[rows, None]) / self.eps
            place = self.x.order[rows]
            index[place] = self.y.order[best]
            mass[place] = self.x.weights[rows, None] * score.exp()
        return index, mass

    def to_dense(self) -> Tensor:
        """Return P as an (n, m) float64 matrix.

        Raises:
            BudgetError: more than 2^28 entries (2 GB).
        """
        if self.shape[0] * self.shape[1] > DENSE_ENTRIES:
            raise BudgetError(
                f"a dense plan of {self.shape[0]:,} x {self.shape[1]:,} entries takes "
                f"{8 * self.shape[0] * self.shape[1] / 1e9:.1f} GB; use matmul, class_mass or "
                "top_matches, which stream it"
            )
        out = torch.zeros(self.shape, dtype=torch.float64, device=self.x.weights.device)
        for rows, mass, _ in self.blocks():
            out[self.x.order[rows][:, None], self.y.order[None]] = mass
        return out

    def blocks(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Yield spans of the pair's rows (k,) with the plan and the cost on them (k, m), float64.

        Memory: a few blocks of 128 MB, and the target points in float64.
        """
        for rows, cost in self._blocks(max(1, MATCH_ENTRIES // self.pair.columns.n)):
            score = self.solution.f[rows, None] + self.solution.g[None] - cost
            mass = (score / self.eps).exp() * self.x.weights[rows, None] * self.y.weights[None]
            yield rows, mass, cost

    def _blocks(self, height: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield rows and their float64 block of the cost."""
        pair = self.pair
        columns = pair.columns.dense()
        for start in range(0, pair.rows.n, height):
            span = slice(start, min(start + height, pair.rows.n))
            rows = torch.arange(span.start, span.stop, device=columns.device)
            left = pair.rows.take(rows).dense()
            yield rows, pair.block(span, slice(None), left, columns)


def _placed(values: Tensor, margin: Margin, size: int) -> Tensor:
    """Return values of the samples that carry weight in the dataset's order, zeros elsewhere."""
    out = values.new_zeros((size, *values.shape[1:]))
    out[margin.order] = values
    return out


def _chosen(values: Tensor, margin: Margin, size: int, name: str) -> Tensor:
    """Return the rows of values that carry weight in a margin's order, on its device."""
    if values.ndim != 2 or values.shape[0] != size:
        raise DataError(
            f"values have shape {tuple(values.shape)}, expected ({size}, k): one row for each "
            f"{name} sample"
        )
    order = margin.order.to(values.device)
    return values[order].to(margin.weights.device)
