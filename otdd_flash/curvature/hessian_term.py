r"""Second derivatives of one regularised value in its points, applied to a direction.

A direction moves the points by v (of x) and w (of y), and the cost by
``c_ij = 2 u <x_i - y_j, v_i - w_j>``, u the cost of one squared unit. The potentials answer so that
the marginals stay,

.. math::
    r_i\, df_i + (P\, dg)_i = \sum_j P_{ij} c_{ij}, \quad
    c_j\, dg_j + (P^T df)_j = \sum_i P_{ij} c_{ij}

with ``r, c`` the marginals of P; then ``dP_ij = P_ij (df_i + dg_j - c_ij) / eps`` and

.. math::
    (H (v, w))_i = 2u \sum_j P_{ij} (v_i - w_j) + 2u \sum_j dP_{ij} (x_i - y_j)

for x, and alike for y. The system is solved by conjugate gradients on its Schur complement
``diag(c) - P^T diag(1/r) P``, whose kernel are the constants. The preconditioner is ``diag(c)``, by
which the eigenvalues are those of one minus Sinkhorn's contraction. (The exact diagonal takes one
more pass and saved no iterations over eps from 1 % to 50 % of the mean cost.)

Both sides of a self term ``OT(x, x) / 2`` move together: its product is the x part for ``w = v``.
There P is symmetric, ``df = dg``, and the system is ``(diag(r) + P) df = rhs``.

All is made of streamed products with P; points are centred, so that nothing cancels. Memory:
O((n + m) d), and P itself where ``ops.make_transport`` stores it.

Sources: FlashSinkhorn, arXiv 2602.03067, section 4; Li et al., arXiv 2407.02015, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.curvature.cg import REACHED, CGSettings, Solve, conjugate_gradients
from otdd_flash.ops import make_transport
from otdd_flash.solver.plan import Plan
from otdd_flash_kernels.quantize import CHUNK_ENTRIES


class Term:
    """Second derivatives of one regularised value at its solved potentials.

    Everything is in the order of the plan's rows and columns.
    """

    def __init__(
        self,
        plan: Plan,
        x: Tensor,  # (N, d) points of the rows' dataset
        y: Tensor,  # (M, d) of the columns'
        unit: float,  # cost of one squared unit of the points
        centre: Tensor,  # (d,) float64 that both are shifted by
    ) -> None:
        self.plan, self.unit, self.eps = plan, unit, plan.eps
        solution = plan.solution
        self.a, b = plan.x.weights, plan.y.weights
        self.transport = make_transport(
            plan.pair, solution.f, solution.g, self.a, b, plan.eps, plan.memory_budget
        )
        self.dtype = self.transport.dtype
        same = plan.x is plan.y
        self.x = placed_points(x, plan.x.order, centre, self.dtype)
        self.y = self.x if same else placed_points(y, plan.y.order, centre, self.dtype)
        self._r = self.transport.times(torch.ones_like(b))
        self._c = self._r if same else self.transport.times_transposed(torch.ones_like(self.a))

    @cached_property
    def _means(self) -> Tensor:  # (n, d)
        """``P y``, kept for all directions."""
        return self._rows(self.y)

    @cached_property
    def _means_transposed(self) -> Tensor:  # (m, d)
        """``P^T x``."""
        return self._columns(self.x)

    def _rows(self, values: Tensor) -> Tensor:  # (m, k) -> (n, k)
        out = values.new_empty((len(self.x), values.shape[1]))
        for rows, block in self.transport.blocks():
            torch.mm(block, values, out=out[rows])
        return out.mul_(self.a.to(self.dtype)[:, None])

    def _columns(self, values: Tensor) -> Tensor:  # (n, k) -> (m, k)
        out = values.new_zeros((len(self.y), values.shape[1]))
        a = self.a.to(self.dtype)[:, None]
        for rows, block in self.transport.blocks():
            out.addmm_(block.mT, a[rows] * values[rows])
        return out

    def product(
        self,
        v: Tensor | None,  # (n, d) direction of the rows' points
        w: Tensor | None,  # (m, d) of the columns' points
        *,
        rows: bool,  # which parts are wanted
        columns: bool,
        settings: CGSettings,
    ) -> tuple[Tensor | None, Tensor | None, Solve]:  # (n, d), (m, d), evidence
        """Return the Hessian's product with a direction of both sides."""
        u = 2.0 * self.unit
        row_inner = self._inner(self.x, v)
        column_inner = self._inner(self.y, w)
        # cost changes summed over each row and column of the plan
        p, q = self._r * row_inner, self._c * column_inner
        moved = carried = None
        if w is not None:
            both = self._rows(torch.cat([w, column_inner.to(w)[:, None]], dim=1))
            moved = both[:, :-1]
            p += both[:, -1].double() - _dots(self.x, moved)
            q -= _dots(self._means_transposed, w)
        if v is not None:
            both = self._columns(torch.cat([v, row_inner.to(v)[:, None]], dim=1))
            carried = both[:, :-1]
            q += both[:, -1].double() - _dots(self.y, carried)
            p -= _dots(self._means, v)
        p, q = u * p, u * q
        times, times_transposed = self.transport.times, self.transport.times_transposed
        r, c = self._r, self._c
        dg, residual, solve = conjugate_gradients(
            lambda z: c * z - times_transposed(times(z) / r),
            q - times_transposed(p / r),
            c,
            tol=settings.tol or REACHED[self.dtype],
            most=settings.most,
            singular=True,
        )
        df = (p - times(dg)) / r
        by_rows, by_columns = self._changes(
            df - u * row_inner, dg - u * column_inner, v, w, rows=rows, columns=columns
        )
        if by_rows is not None:
            by_rows = _explicit(v, r, moved, by_rows).mul_(u)
        if by_columns is not None:
            # the columns' sums are what the solve left of them
            by_columns += self.y * (residual / self.eps).to(self.dtype)[:, None]
            by_columns = _explicit(w, c, carried, by_columns).mul_(u)
        return by_rows, by_columns, solve

    def self_product(
        self,
        v: Tensor,  # (n, d) direction of both sides
        settings: CGSettings,
    ) -> tuple[Tensor, Solve]:  # (n, d)
        """Return the product of the Hessian of half a self term, whose sides move together."""
        u, r, times = 2.0 * self.unit, self._r, self.transport.times
        inner = self._inner(self.x, v)
        both = self._rows(torch.cat([v, inner.to(v)[:, None]], dim=1))
        moved = both[:, :-1]
        p = r * inner + both[:, -1].double() - _dots(self.x, moved) - _dots(self._means, v)
        df, residual, solve = conjugate_gradients(
            lambda z: r * z + times(z),
            u * p,
            r,
            tol=settings.tol or REACHED[self.dtype],
            most=settings.most,
            singular=False,
        )
        alpha = df - u * inner
        change, _ = self._changes(alpha, alpha, v, v, rows=True, columns=False)
        assert change is not None
        change += self.x * (residual / self.eps).to(self.dtype)[:, None]
        return _explicit(v, r, moved, change).mul_(u), solve

    def _changes(
        self,
        alpha: Tensor,  # (n,) float64
        beta: Tensor,  # (m,) float64
        v: Tensor | None,
        w: Tensor | None,
        *,
        rows: bool,
        columns: bool,
    ) -> tuple[Tensor | None, Tensor | None]:  # dP y (n, d), dP^T x (m, d)
        """Multiply ``dP_ij = P_ij (alpha_i + beta_j + 2u (<x_i, w_j> + <y_j, v_i>)) / eps``."""
        u, a = 2.0 * self.unit, self.a.to(self.dtype)[:, None]
        alpha, beta = alpha.to(self.dtype)[:, None], beta.to(self.dtype)[None]
        by_rows = torch.empty_like(self.x) if rows else None
        by_columns = torch.zeros_like(self.y) if columns else None
        for span, block in self.transport.blocks():
            change = alpha[span] + beta
            if v is not None:
                change.addmm_(v[span], self.y.mT, alpha=u)
            if w is not None:
                change.addmm_(self.x[span], w.mT, alpha=u)
            change.mul_(block)
            if by_rows is not None:
                torch.mm(change, self.y, out=by_rows[span])
            if by_columns is not None:
                by_columns.addmm_(change.mT, a[span] * self.x[span], alpha=1 / self.eps)
        return (None if by_rows is None else by_rows.mul_(a / self.eps)), by_columns

    def _inner(self, points: Tensor, move: Tensor | None) -> Tensor:  # (n,) float64
        if move is None:
            return torch.zeros(len(points), dtype=torch.float64, device=points.device)
        return _dots(points, move)


def _explicit(
    move: Tensor | None,  # (n, d) of one side's points
    mass: Tensor,  # (n,) float64 its marginal
    other: Tensor | None,  # (n, d) move of the other side, summed under the plan
    change: Tensor,  # (n, d) of the points of the other side, summed under the plan's change
) -> Tensor:  # (n, d), in place of the change
    """Return ``mass move - other - change``."""
    out = change.neg_()
    if move is not None:
        out += move * mass.to(out)[:, None]
    return out if other is None else out.sub_(other)


def _dots(left: Tensor, right: Tensor) -> Tensor:  # (n, d), (n, d) -> (n,) float64
    return (left * right).sum(1, dtype=torch.float64)


def chunks_of_points(points: Tensor) -> Iterator[slice]:
    """Yield spans of rows whose float64 copies are small."""
    height = max(1, CHUNK_ENTRIES // points.shape[1])
    for start in range(0, len(points), height):
        yield slice(start, min(start + height, len(points)))


def placed_points(
    points: Tensor,  # (N, d)
    order: Tensor,  # (n,) rows in a plan's order
    centre: Tensor,  # (d,) float64
    dtype: torch.dtype,
) -> Tensor:  # (n, d) on the device of the order
    """Return points in the order of a plan, less the centre; rounded only after that."""
    out = torch.empty((len(order), points.shape[1]), dtype=dtype, device=order.device)
    chosen = order.to(points.device)
    for rows in chunks_of_points(out):
        out[rows] = (points[chosen[rows]].to(order.device).double() - centre).to(dtype)
    return out
