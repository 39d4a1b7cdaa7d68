"""The Hessian of a solved divergence in the points of both sides, applied to directions."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.curvature.cg import CGSettings, Solve
from otdd_flash.curvature.hessian_term import Term, chunks_of_points
from otdd_flash.solver.plan import Plan


@contextmanager
def full_products(device: torch.device) -> Iterator[None]:
    """Let float32 products of matrices be float32 on a GPU, whatever the caller allowed."""
    if device.type != "cuda":
        yield
        return
    settings = torch.backends.cuda.matmul
    before = settings.fp32_precision
    settings.fp32_precision = "ieee"
    try:
        yield
    finally:
        settings.fp32_precision = before


class Hessian:
    """The Hessian of a solved divergence in the points of both sides, for many directions.

    Memory: O((n + m) d), and the plans where ``ops.make_transport`` stores them; nothing before
    the first product.
    """

    def __init__(
        self,
        cross: Plan,
        inner: tuple[Plan, ...],  # of both self terms, none if not debiased
        unit: float,  # cost of one squared unit of the points
        x: Tensor,  # (n, d) points
        y: Tensor,  # (m, d)
    ) -> None:
        self._plan, self._inner, self._unit, self._points = cross, inner, unit, (x, y)

    @cached_property
    def _centre(self) -> Tensor:  # (d,) float64
        x, y = self._points
        device = self._plan.x.weights.device
        total = torch.zeros(x.shape[1], dtype=torch.float64, device=device)
        for points in (x, y):
            for rows in chunks_of_points(points):
                total += points[rows].to(device).double().sum(0)
        return total / (len(x) + len(y))

    @cached_property
    def _cross(self) -> Term:
        return Term(self._plan, *self._points, self._unit, self._centre)

    @cached_property
    def _source(self) -> Term:
        x = self._points[0]
        return Term(self._inner[0], x, x, self._unit, self._centre)

    @cached_property
    def _target(self) -> Term:
        y = self._points[1]
        return Term(self._inner[1], y, y, self._unit, self._centre)

    def product(
        self,
        v: Tensor | None,  # (n, d) direction of x
        w: Tensor | None,  # (m, d) direction of y
        *,
        rows: bool = True,  # the part of the product that belongs to x
        columns: bool = False,  # to y
        settings: CGSettings,
    ) -> tuple[Tensor | None, Tensor | None, Solve]:  # (n, d), (m, d), evidence of all solves
        """Return the Hessian times a direction; zeros for samples without weight."""
        with full_products(self._plan.x.weights.device), torch.no_grad():
            plan, dtype = self._plan, self._cross.dtype
            # squares of the direction must not overflow or vanish
            unit = _power_of_two(v, w)
            left = None if v is None else _on_plan(v, plan.x.order, dtype, unit)
            right = None if w is None else _on_plan(w, plan.y.order, dtype, unit)
            by_rows, by_columns, solve = self._cross.product(
                left, right, rows=rows, columns=columns, settings=settings
            )
            solves = [solve]
            outs = [
                None if part is None else _off_plan(part, side.order, size)
                for part, side, size in zip(
                    (by_rows, by_columns), (plan.x, plan.y), plan.shape, strict=True
                )
            ]
            for k, (out, move) in enumerate(zip(outs, (v, w), strict=True)):
                if out is None or move is None or not self._inner:
                    continue
                term = self._target if k else self._source
                order = self._inner[k].x.order
                part, solve = term.self_product(_on_plan(move, order, term.dtype, unit), settings)
                solves.append(solve)
                out[order] -= part
            left, right = (out if out is None else out.mul_(unit) for out in outs)
        return left, right, _worst(solves)


def _worst(solves: list[Solve]) -> Solve:
    return Solve(
        sum(s.iterations for s in solves),
        max(s.residual for s in solves),
        all(s.converged for s in solves),
        any(s.spent and not s.converged for s in solves),
    )


def _power_of_two(*moves: Tensor | None) -> float:
    """Return the power of two next to the largest entry: a scale that rounds nothing."""
    ends = [end for move in moves if move is not None for end in torch.aminmax(move)]
    _, exponent = math.frexp(max(abs(float(end)) for end in ends))
    return 2.0 ** max(-1000, min(exponent, 1000))


def _on_plan(
    move: Tensor,  # (N, d) in the order of the dataset
    order: Tensor,  # (n,)
    dtype: torch.dtype,
    unit: float,
) -> Tensor:  # (n, d) in units of `unit`
    chosen = move[order.to(move.device)]
    # scaled in the wider type
    chosen = chosen if chosen.dtype == torch.float64 else chosen.to(dtype)
    return chosen.div_(unit).to(order.device, dtype)


def _off_plan(
    part: Tensor,  # (n, d)
    order: Tensor,  # (n,)
    size: int,
) -> Tensor:  # (N, d), zeros for samples without weight
    out = part.new_zeros((size, part.shape[1]))
    out[order] = part
    return out
