r"""Exact gradients of the debiased divergence, by the envelope theorem.

At converged potentials the derivative of a regularised value is that of its cost under the plan:

.. math::
    dOT/dx_i = \sum_j P_{ij}\, dC_{ij}/dx_i = 2 u\, r_i (x_i - mean_i), \quad
    dOT/da_i = f_i, \quad dOT/dL_{ck} = \sum_{l_i = c, l_j = k} P_{ij}

with ``r`` the plan's row marginal, ``mean_i`` the barycentric map and ``u`` the cost of one squared
unit. Weight gradients are centred, since weights only move along the simplex. No (n, m) array:
means are streamed.

Source: Feydy et al. 2019, section 3.2; Alvarez-Melis and Fusi 2021, section 4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.solver.plan import Plan


def row_pull(
    plan: Plan,
    x: Tensor,  # (n, d) points of the rows
    y: Tensor,  # (m, d) points of the columns
    unit: float,  # cost of one squared unit of the points
) -> Tensor:  # (n, d)
    """Return dOT/dx, x as the rows' points alone; one pass."""
    return _pull(x, plan.row_means(y), plan.row_mass(), unit)


def column_pull(
    plan: Plan,
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    unit: float,
) -> Tensor:  # (m, d)
    """Return dOT/dy, y as the columns' points alone; one pass."""
    return _pull(y, plan.column_means(x), plan.column_mass(), unit)


def _pull(points: Tensor, means: Tensor, mass: Tensor, unit: float) -> Tensor:
    gap = points.to(means) - means
    return gap.mul_((2.0 * unit * mass).to(means.dtype)[:, None])


def row_potential(plan: Plan) -> Tensor:  # (n,) float64
    """Return dOT/da, centred; zero for samples without weight."""
    return _centred(plan.solution.f, plan.x.weights, plan.x.order, plan.shape[0])


def column_potential(plan: Plan) -> Tensor:  # (m,) float64
    """Return dOT/db, centred; zero for samples without weight."""
    return _centred(plan.solution.g, plan.y.weights, plan.y.order, plan.shape[1])


def _centred(potential: Tensor, weights: Tensor, order: Tensor, size: int) -> Tensor:
    out = torch.zeros(size, dtype=torch.float64, device=potential.device)
    out[order] = potential - weights @ potential
    return out
