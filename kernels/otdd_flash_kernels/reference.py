r"""Dense float64 formulas: the truth that every operator is tested against.

Memory: an (n, m) float64 array.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash_kernels.pair import CostPair


def cost_matrix(pair: CostPair) -> Tensor:  # (n, m) float64
    """Return C as a matrix."""
    q, p = pair.rows.dense(), pair.columns.dense()
    squared = pair.rows.bias[:, None] + pair.columns.bias[None] - 2 * (q @ p.mT)
    return pair.scale * squared + pair.label_cost[pair.row_labels][:, pair.column_labels]


def softmin(
    pair: CostPair,
    h: Tensor,  # (m,) potential plus eps log weight, in units of the cost
    eps: float,
) -> Tensor:  # (n,) float64
    """Return ``-eps log sum_j exp((h_j - C_ij) / eps)``."""
    return -eps * torch.logsumexp((h.double()[None] - cost_matrix(pair)) / eps, dim=1)


def hardmin(
    pair: CostPair,
    g: Tensor,  # (m,)
) -> Tensor:  # (n,) float64
    """Return the c-transform ``min_j C_ij - g_j``."""
    return (cost_matrix(pair) - g.double()[None]).amin(dim=1)


def softmin_mean(
    pair: CostPair,
    h: Tensor,  # (m,)
    eps: float,
) -> tuple[Tensor, Tensor]:  # (n,) softmin and (n,) mean score, both float64
    """Return softmin and the mean of ``h_j - C_ij`` under the weights ``exp((h_j - C_ij)/eps)``."""
    score = h.double()[None] - cost_matrix(pair)
    weights = torch.softmax(score / eps, dim=1)
    # a column of weight zero scores -inf and adds nothing: 0 * lowest, not 0 * -inf
    mean = (weights * score.clamp(min=torch.finfo(score.dtype).min)).sum(1)
    return -eps * torch.logsumexp(score / eps, dim=1), mean


def class_softmin(
    pair: CostPair,
    h: Tensor,  # (m,)
    eps: float,
) -> Tensor:  # (n, Vy) float64
    """Return the softmin over the columns of each class apart; +inf for a class without any."""
    score = (h.double()[None] - cost_matrix(pair)) / eps
    parts = []
    for k in range(pair.label_cost.shape[1]):
        chosen = score[:, pair.column_labels == k]
        parts.append(-eps * torch.logsumexp(chosen, dim=1))
    return torch.stack(parts, dim=1)


def plan(
    pair: CostPair,
    f: Tensor,  # (n,) potential
    g: Tensor,  # (m,)
    a: Tensor,  # (n,) weights
    b: Tensor,  # (m,)
    eps: float,
) -> Tensor:  # (n, m) float64
    """Return ``a_i b_j exp((f_i + g_j - C_ij) / eps)``."""
    score = f.double()[:, None] + g.double()[None] - cost_matrix(pair)
    return a[:, None] * b[None] * (score / eps).exp()
