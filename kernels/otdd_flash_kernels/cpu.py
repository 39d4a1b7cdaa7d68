r"""The streaming operators on the CPU, over row blocks of the cost.

One block of C at a time is made (a matrix product) or read (when the caller stored C), and reduced
by rows or by columns, so that C is never needed twice: the transposed operators read the same
blocks. Arithmetic is float32 where the stored points are float32 integers (exact products),
float64 elsewhere. Memory: the stored cost if any, plus a few blocks.

Sources: online log-sum-exp, Milakov and Gimelshein 2018; streaming Sinkhorn, arXiv 2602.03067.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.workers import go_on, spread

# entries of one block: with what is computed from it, inside a core's share of the cache
BLOCK_ENTRIES = 1 << 18
# blocks below which a pass is over before its threads have started
LEAST_BLOCKS = 8
# 2^x for less would be a denormal number, which is slow, and is below the last bit of any sum
LOWEST_EXPONENT = {torch.float32: -115.0, torch.float64: -1010.0}
LN2 = math.log(2.0)

Value = TypeVar("Value")


def _finite(top: Tensor) -> Tensor:
    """Return maxima that can be subtracted: 0 where every score is -inf (no weight at all)."""
    return top.masked_fill(top == -torch.inf, 0.0)


class CpuCost:
    """The cost of a pair on the CPU, stored or made block by block.

    Args:
        pair: the two clouds and their label cost.
        store: keep all of C (``bytes_to_store`` bytes) from the first pass on, else remake its
            blocks each pass.
    """

    def __init__(self, pair: CostPair, *, store: bool) -> None:
        self.pair = pair
        dtype = pair.rows.data.dtype
        self.dtype = torch.float32 if dtype == torch.float32 else torch.float64
        self._rows = pair.rows.dense(self.dtype)
        same = pair.rows.data is pair.columns.data
        self._columns_t = (self._rows if same else pair.columns.dense(self.dtype)).mT
        self._row_bias = pair.rows.bias * pair.scale
        self._column_bias = pair.columns.bias * pair.scale
        self._label_cost = pair.label_cost
        self.block = max(1, BLOCK_ENTRIES // pair.columns.n)
        self._store = store
        self._stored: Tensor | None = None  # made by the first pass

    @staticmethod
    def bytes_to_store(pair: CostPair) -> int:
        """Bytes that storing C takes."""
        size = 4 if pair.rows.data.dtype == torch.float32 else 8
        return size * pair.rows.n * pair.columns.n

    def _make(self, rows: slice, out: Tensor) -> None:
        """Write the block of C of some rows; in float64 up to its rounding to ``out``."""
        exact = (self._rows[rows] @ self._columns_t).double().mul_(-2.0 * self.pair.scale)
        exact += self._row_bias[rows, None]
        # rows are sorted by class: the rest is one vector for the rows of each
        classes, counts = torch.unique_consecutive(self.pair.row_labels[rows], return_counts=True)
        begin = 0
        for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
            costs = self._label_cost[label][self.pair.column_labels]
            exact[begin : begin + count] += costs + self._column_bias
            begin += count
        out.copy_(exact)

    def _blocks_of(self, part: slice, kept: Tensor | None) -> Iterator[tuple[slice, Tensor]]:
        """Yield the blocks of some rows, made where none is stored, and written to ``kept``."""
        for start in range(part.start, part.stop, self.block):
            go_on()
            rows = slice(start, min(start + self.block, part.stop))
            if self._stored is not None:
                yield rows, self._stored[rows]
                continue
            shape = (rows.stop - rows.start, self.pair.columns.n)
            block = torch.empty(shape, dtype=self.dtype) if kept is None else kept[rows]
            self._make(rows, block)
            yield rows, block

    def _each(self, work: Callable[[Iterator[tuple[slice, Tensor]]], Value]) -> list[Value]:
        """Return what the work makes of the blocks of each worker's rows; stores C the first time.

        Reducing one block with many threads would meet at a barrier for each of its few
        operations; so each block is left to one thread.
        """
        n = self.pair.rows.n
        blocks = -(-n // self.block)
        workers = torch.get_num_threads() if blocks >= LEAST_BLOCKS else 1
        height = -(-blocks // workers) * self.block
        parts = [slice(start, min(start + height, n)) for start in range(0, n, height)]
        storing = self._store and self._stored is None
        kept = torch.empty(self.pair.shape, dtype=self.dtype) if storing else None
        found = spread(lambda part: work(self._blocks_of(part, kept)), parts)
        if storing:
            self._stored = kept
        return found

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their (rows, m) blocks of C; read only."""
        yield from self._blocks_of(slice(0, self.pair.rows.n), None)

    def _scratch(self) -> Tensor:
        """Return a block to write to: fresh memory for each would cost as much as the sums."""
        height = min(self.block, self.pair.rows.n)
        return torch.empty((height, self.pair.columns.n), dtype=self.dtype)

    def softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n,) softmin over the columns, h (m,)."""
        return self.softmin_mean(h, eps, mean=False)[0]

    def softmin_mean(
        self,
        h: Tensor,  # (m,)
        eps: float,
        *,
        mean: bool = True,
    ) -> tuple[Tensor, Tensor]:  # (n,) softmin and (n,) mean score, both float64
        """Return softmin and the mean score ``h_j - C_ij`` under its weights."""
        n, unit = self.pair.rows.n, eps * LN2
        out = torch.empty(n, dtype=torch.float64)
        means = torch.empty(n if mean else 0, dtype=torch.float64)
        scaled, lowest = (h / unit).to(self.dtype), LOWEST_EXPONENT[self.dtype]

        def reduce(blocks: Iterator[tuple[slice, Tensor]]) -> None:
            scores = self._scratch()
            exponentials = self._scratch() if mean else scores
            for rows, block in blocks:
                score = torch.sub(scaled, block, alpha=1.0 / unit, out=scores[: len(block)])
                top = score.amax(dim=1, keepdim=True)
                score.sub_(_finite(top)).clamp_(min=lowest)
                weights = torch.exp2(score, out=exponentials[: len(block)])
                total = weights.sum(dim=1)
                out[rows] = top[:, 0].double() + total.double().log2()
                if mean:
                    moment = weights.mul_(score).sum(dim=1) / total
                    means[rows] = unit * (moment.double() + top[:, 0].double())

        self._each(reduce)
        return out.mul_(-unit), means

    def softmin_transposed(self, h: Tensor, eps: float) -> Tensor:
        """Return the (m,) softmin over the rows, h (n,)."""
        m, unit = self.pair.columns.n, eps * LN2
        scaled, lowest = (h / unit).to(self.dtype), LOWEST_EXPONENT[self.dtype]

        def reduce(blocks: Iterator[tuple[slice, Tensor]]) -> tuple[Tensor, Tensor]:
            scores = self._scratch()
            top = torch.full((m,), -torch.inf, dtype=self.dtype)
            total = torch.zeros(m, dtype=torch.float64)
            for rows, block in blocks:
                out = scores[: len(block)]
                score = torch.sub(scaled[rows, None], block, alpha=1.0 / unit, out=out)
                higher = torch.maximum(top, score.amax(dim=0))
                shift = _finite(higher)
                total.mul_((top - shift).double().exp2())
                total += score.sub_(shift).clamp_(min=lowest).exp2_().sum(dim=0)
                top = higher
            return top, total

        tops, totals = (torch.stack(part) for part in zip(*self._each(reduce), strict=True))
        highest = tops.amax(dim=0)
        total = (totals * (tops - _finite(highest)).double().exp2()).sum(dim=0)
        return (highest.double() + total.log2()).mul_(-unit)

    def means(
        self,
        h: Tensor,  # (m,) potential plus eps log weight
        eps: float,
        values: Tensor,  # (m, k)
        near: Tensor,  # (n,) softmin of h, or close to it
    ) -> Tensor:  # (n, k) in the precision of the operators
        """Return the means of values under each row's weights ``exp((h_j - C_ij) / eps)``."""
        unit, values = eps * LN2, values.to(self.dtype)
        scaled, shift = (h / unit).to(self.dtype), (near / unit).to(self.dtype)
        out = torch.empty((self.pair.rows.n, values.shape[1]), dtype=self.dtype)

        def reduce(blocks: Iterator[tuple[slice, Tensor]]) -> None:
            scores = self._scratch()
            for rows, block in blocks:
                score = torch.sub(scaled, block, alpha=1.0 / unit, out=scores[: len(block)])
                weights = self._bounded(score.add_(shift[rows, None])).exp2_()
                out[rows] = (weights @ values).div_(weights.sum(dim=1, keepdim=True))

        self._each(reduce)
        return out

    def means_transposed(
        self,
        h: Tensor,  # (n,) potential plus eps log weight
        eps: float,
        values: Tensor,  # (n, k)
        near: Tensor,  # (m,) transposed softmin of h, or close to it
    ) -> Tensor:  # (m, k) in the precision of the operators
        """Return the means of values under each column's weights ``exp((h_i - C_ij) / eps)``."""
        unit, values = eps * LN2, values.to(self.dtype)
        scaled, shift = (h / unit).to(self.dtype), (near / unit).to(self.dtype)

        def reduce(blocks: Iterator[tuple[slice, Tensor]]) -> tuple[Tensor, Tensor]:
            scores = self._scratch()
            total = torch.zeros((self.pair.columns.n, values.shape[1]), dtype=self.dtype)
            mass = torch.zeros((self.pair.columns.n, 1), dtype=self.dtype)
            for rows, block in blocks:
                out = scores[: len(block)]
                score = torch.sub(scaled[rows, None], block, alpha=1.0 / unit, out=out)
                weights = self._bounded(score.add_(shift)).exp2_()
                total.addmm_(weights.mT, values[rows])
                mass += weights.sum(dim=0)[:, None]
            return total, mass

        totals, masses = zip(*self._each(reduce), strict=True)
        return torch.stack(totals).sum(0).div_(torch.stack(masses).sum(0))

    def _bounded(self, score: Tensor) -> Tensor:
        """Clamp scores so that their powers of two are neither denormal nor, summed, infinite."""
        lowest = LOWEST_EXPONENT[self.dtype]
        return score.clamp_(min=lowest, max=-lowest - 20.0)

    def hardmin(self, g: Tensor) -> Tensor:
        """Return the (n,) c-transform ``min_j C_ij - g_j``."""
        out = torch.empty(self.pair.rows.n, dtype=torch.float64)
        shift = g.to(self.dtype)

        def reduce(blocks: Iterator[tuple[slice, Tensor]]) -> None:
            scores = self._scratch()
            for rows, block in blocks:
                score = torch.sub(block, shift, out=scores[: len(block)])
                out[rows] = score.amin(dim=1).double()

        self._each(reduce)
        return out

    def hardmin_transposed(self, f: Tensor) -> Tensor:
        """Return the (m,) c-transform ``min_i C_ij - f_i``."""
        shift = f.to(self.dtype)

        def reduce(blocks: Iterator[tuple[slice, Tensor]]) -> Tensor:
            scores = self._scratch()
            least = torch.full((self.pair.columns.n,), torch.inf, dtype=self.dtype)
            for rows, block in blocks:
                score = torch.sub(block, shift[rows, None], out=scores[: len(block)])
                least = torch.minimum(least, score.amin(dim=0))
            return least

        return torch.stack(self._each(reduce)).amin(dim=0).double()

    def class_softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n, Vy) softmin over the columns of each class; +inf where there is none."""
        seams = torch.tensor(self.pair.column_seams)
        counts = seams.diff()
        there = counts > 0
        # torch reduces runs of columns one at a time, numpy all at once
        starts, counts = seams[:-1][there].numpy(), counts[there]
        out = torch.empty((self.pair.rows.n, len(there)), dtype=torch.float64)
        unit = eps * LN2
        scaled, lowest = (h / unit).to(self.dtype), LOWEST_EXPONENT[self.dtype]

        def reduce(blocks: Iterator[tuple[slice, Tensor]]) -> None:
            scores = self._scratch()
            for rows, block in blocks:
                score = torch.sub(scaled, block, alpha=1.0 / unit, out=scores[: len(block)])
                top = torch.from_numpy(np.maximum.reduceat(score.numpy(), starts, axis=1))
                shift = _finite(top).repeat_interleave(counts, dim=1)
                score.sub_(shift).clamp_(min=lowest).exp2_()
                sums = np.add.reduceat(score.numpy(), starts, axis=1, dtype=np.float64)
                total = torch.from_numpy(sums)
                found = top.double() + total.log2_()
                if len(starts) < len(there):
                    out[rows] = -torch.inf
                    out[rows][:, there] = found
                else:
                    out[rows] = found

        self._each(reduce)
        return out.mul_(-unit)
