r"""The streaming operators on the CPU, over row blocks of the cost.

One block of C at a time is made (a matrix product) or read (when the caller stored C), and reduced
by rows or by columns, so that C is never needed twice: the transposed operators read the same
blocks. Arithmetic is float32 where the stored points are float32 integers (exact products),
float64 elsewhere. Memory: the stored cost if any, plus a few blocks.

Sources: online log-sum-exp, Milakov and Gimelshein 2018; streaming Sinkhorn, arXiv 2602.03067.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from otdd_flash_kernels.pair import CostPair

# entries of one block: a few MB, inside the last-level cache
BLOCK_ENTRIES = 1 << 19
# 2^x for less would be a denormal number, which is slow, and is below the last bit of any sum
LOWEST_EXPONENT = {torch.float32: -115.0, torch.float64: -1010.0}
LN2 = math.log(2.0)


def _finite(top: Tensor) -> Tensor:
    """Return maxima that can be subtracted: 0 where every score is -inf (no weight at all)."""
    return top.masked_fill(top == -torch.inf, 0.0)


class CpuCost:
    """The cost of a pair on the CPU, stored or made block by block.

    Args:
        pair: the two clouds and their label cost.
        store: keep all of C (``bytes_to_store`` bytes) from the first pass on, else remake its
            blocks each pass.

    Not for several threads at once: passes share their scratch blocks.
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
        self._scratches: dict[str, Tensor] = {}

    @staticmethod
    def bytes_to_store(pair: CostPair) -> int:
        """Bytes that storing C takes."""
        size = 4 if pair.rows.data.dtype == torch.float32 else 8
        return size * pair.rows.n * pair.columns.n

    def _spans(self) -> Iterator[slice]:
        n = self.pair.rows.n
        for start in range(0, n, self.block):
            yield slice(start, min(start + self.block, n))

    def _scratch(self, name: str, height: int, dtype: torch.dtype) -> Tensor:
        """Return a block to write to: fresh memory each time would cost as much as the sums."""
        if name not in self._scratches:
            shape = (min(self.block, self.pair.rows.n), self.pair.columns.n)
            self._scratches[name] = torch.empty(shape, dtype=dtype)
        return self._scratches[name][:height]

    def _make(self, rows: slice, out: Tensor) -> None:
        """Write the block of C of some rows; in float64 up to its rounding to ``out``."""
        height = rows.stop - rows.start
        dots = self._scratch("dots", height, self.dtype)
        torch.mm(self._rows[rows], self._columns_t, out=dots)
        exact = self._scratch("exact", height, torch.float64)
        torch.mul(dots, -2.0 * self.pair.scale, out=exact)
        exact += self._row_bias[rows, None]
        # rows are sorted by class: the rest is one vector for the rows of each
        classes, counts = torch.unique_consecutive(self.pair.row_labels[rows], return_counts=True)
        begin = 0
        for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
            costs = self._label_cost[label][self.pair.column_labels]
            exact[begin : begin + count] += costs + self._column_bias
            begin += count
        out.copy_(exact)

    def blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Yield row spans with their (rows, m) blocks of C; read only, to the end."""
        if self._stored is not None:
            for rows in self._spans():
                yield rows, self._stored[rows]
            return
        kept = torch.empty(self.pair.shape, dtype=self.dtype) if self._store else None
        for rows in self._spans():
            shape = (rows.stop - rows.start, self.pair.columns.n)
            block = torch.empty(shape, dtype=self.dtype) if kept is None else kept[rows]
            self._make(rows, block)
            yield rows, block
        self._stored = kept
        if kept is not None:
            for name in ("dots", "exact"):
                self._scratches.pop(name, None)

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
        for rows, block in self.blocks():
            score = self._scratch("score", len(block), self.dtype)
            torch.sub(scaled, block, alpha=1.0 / unit, out=score)
            top = score.amax(dim=1, keepdim=True)
            score.sub_(_finite(top)).clamp_(min=lowest)
            weights = self._scratch("weights", len(block), self.dtype) if mean else score
            total = torch.exp2(score, out=weights).sum(dim=1)
            out[rows] = top[:, 0].double() + total.double().log2()
            if mean:
                moment = weights.mul_(score).sum(dim=1) / total
                means[rows] = unit * (moment.double() + top[:, 0].double())
        return out.mul_(-unit), means

    def softmin_transposed(self, h: Tensor, eps: float) -> Tensor:
        """Return the (m,) softmin over the rows, h (n,)."""
        m, unit = self.pair.columns.n, eps * LN2
        top = torch.full((m,), -torch.inf, dtype=self.dtype)
        total = torch.zeros(m, dtype=torch.float64)
        scaled, lowest = (h / unit).to(self.dtype), LOWEST_EXPONENT[self.dtype]
        for rows, block in self.blocks():
            score = self._scratch("score", len(block), self.dtype)
            torch.sub(scaled[rows, None], block, alpha=1.0 / unit, out=score)
            higher = torch.maximum(top, score.amax(dim=0))
            shift = _finite(higher)
            total.mul_((top - shift).double().exp2())
            total += score.sub_(shift).clamp_(min=lowest).exp2_().sum(dim=0)
            top = higher
        return (top.double() + total.log2()).mul_(-unit)

    def hardmin(self, g: Tensor) -> Tensor:
        """Return the (n,) c-transform ``min_j C_ij - g_j``."""
        out = torch.empty(self.pair.rows.n, dtype=torch.float64)
        shift = g.to(self.dtype)
        for rows, block in self.blocks():
            score = torch.sub(block, shift, out=self._scratch("score", len(block), self.dtype))
            out[rows] = score.amin(dim=1).double()
        return out

    def hardmin_transposed(self, f: Tensor) -> Tensor:
        """Return the (m,) c-transform ``min_i C_ij - f_i``."""
        out = torch.full((self.pair.columns.n,), torch.inf, dtype=self.dtype)
        shift = f.to(self.dtype)
        for rows, block in self.blocks():
            score = self._scratch("score", len(block), self.dtype)
            torch.sub(block, shift[rows, None], out=score)
            out = torch.minimum(out, score.amin(dim=0))
        return out.double()

    def class_softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n, Vy) softmin over the columns of each class; +inf where there is none."""
        seams = self.pair.column_seams
        out = torch.empty((self.pair.rows.n, len(seams) - 1), dtype=torch.float64)
        scaled = (h / eps).to(self.dtype)
        for rows, block in self.blocks():
            score = self._scratch("score", len(block), self.dtype)
            torch.sub(scaled, block, alpha=1.0 / eps, out=score)
            for k in range(len(seams) - 1):
                part = score[:, seams[k] : seams[k + 1]]
                out[rows, k] = torch.logsumexp(part, dim=1).double()
        return out.mul_(-eps)
