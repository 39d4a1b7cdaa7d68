"""Float64 truths of small problems: label costs, dense costs, log-domain Sinkhorn, exact transport.

Nothing here is shared with the package: costs by differences, label costs from singular values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import ot
from scipy.special import logsumexp

from otdd_flash import LabelledDataset


def _factors(dataset: LabelledDataset) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the class means and factors A of the class covariances A^T A."""
    x, labels, w = (t.cpu().numpy() for t in (dataset.points, dataset.labels, dataset.weights))
    means, factors = [], []
    for k in range(dataset.classes):
        rows, weights = x[labels == k].astype(np.float64), w[labels == k]
        weights = weights / weights.sum()
        # from the first sample, so that a large common offset cancels exactly
        mean = rows[0] + weights @ (rows - rows[0])
        means.append(mean)
        factors.append(np.sqrt(weights)[:, None] * (rows - mean))
    return np.array(means), factors


def label_cost(x: LabelledDataset, y: LabelledDataset) -> np.ndarray:  # (Vx, Vy)
    """Return squared Wasserstein distances of the classes' Gaussians.

    ``tr((S^1/2 T S^1/2)^1/2)`` is the sum of the singular values of ``A B^T``.
    """
    (mx, fx), (my, fy) = _factors(x), _factors(y)
    out = np.empty((len(mx), len(my)))
    for i, a in enumerate(fx):
        for j, b in enumerate(fy):
            cross = np.linalg.svd(a @ b.T, compute_uv=False).sum()
            out[i, j] = ((mx[i] - my[j]) ** 2).sum() + (a**2).sum() + (b**2).sum() - 2 * cross
    return out


def cost_matrix(
    x: LabelledDataset,
    y: LabelledDataset,
    labels: np.ndarray | float = 0.0,  # (Vx, Vy) in units of the cost
) -> np.ndarray:  # (n, m)
    """Return the cost of the given points, by differences."""
    p, q = (t.points.cpu().numpy().astype(np.float64) for t in (x, y))
    squared = ((p[:, None] - q[None]) ** 2).sum(-1)
    wide = np.broadcast_to(labels, (x.classes, y.classes))
    return squared + wide[np.ix_(x.labels.cpu().numpy(), y.labels.cpu().numpy())]


@dataclass
class Solved:
    """A regularised transport problem solved to rounding."""

    value: float  # <a, f> + <b, g>
    f: np.ndarray
    g: np.ndarray
    plan: np.ndarray


def _update(cost, g, log_b, eps):  # (n, m), (m,) -> (n,)
    return -eps * logsumexp((g[None] - cost) / eps + log_b[None], axis=1)


def sinkhorn(
    cost: np.ndarray,  # (n, m)
    a: np.ndarray,  # (n,) weights > 0
    b: np.ndarray,  # (m,)
    eps: float,
    *,
    tol: float = 1e-12,
) -> Solved:
    """Alternate in the log domain, eps falling by halves, then climb by Newton's method.

    The semi-dual ``D(g) = <a, T(g)> + <b, g>`` has the gradient ``b - c``, ``c`` the column sums of
    the plan P, and the Hessian ``-(diag(c) - P^T diag(1/a) P) / eps``. Ends at an L1 error of
    ``tol`` or where rounding lets D rise no more.
    """
    log_a, log_b = np.log(a), np.log(b)
    g = np.zeros(len(b))
    for k in range(12, -1, -1):
        for _ in range(2 if k else 20):
            f = _update(cost, g, log_b, eps * 2.0**k)
            g = _update(cost.T, f, log_a, eps * 2.0**k)
    for _ in range(200):
        f = _update(cost, g, log_b, eps)
        plan = np.exp((f[:, None] + g[None] - cost) / eps + log_a[:, None] + log_b[None])
        columns = plan.sum(0)
        if np.abs(columns - b).sum() < tol:
            break
        hessian = np.diag(columns) - plan.T @ (plan / a[:, None])
        # the constants are its kernel
        step = eps * np.linalg.lstsq(hessian + np.outer(b, b), b - columns, rcond=1e-15)[0]
        value, size = a @ f + b @ g, 1.0
        while size > 1e-9 and a @ _update(cost, g + size * step, log_b, eps) + b @ (
            g + size * step
        ) < value - 1e-15 * (abs(value) + eps):
            size /= 2
        g = g + size * step
    error = np.abs(columns - b).sum()
    assert error < max(tol, 1e-10), f"the truth did not converge: {error:.1e} at eps {eps:.3g}"
    return Solved(float(a @ f + b @ g), f, g, plan)


def weights(dataset: LabelledDataset) -> np.ndarray:
    """Return the weights as numpy."""
    return dataset.weights.cpu().numpy()


def divergence(
    x: LabelledDataset,
    y: LabelledDataset,
    eps: float,
    *,
    labels: bool = True,
    debias: bool = True,
    tol: float = 1e-12,
) -> float:
    """Return the dataset distance's S by its definition."""
    value = 0.0
    terms = ((1.0, x, y), (-0.5, x, x), (-0.5, y, y)) if debias else ((1.0, x, y),)
    for factor, p, q in terms:
        cost = cost_matrix(p, q, label_cost(p, q) if labels else 0.0)
        value += factor * sinkhorn(cost, weights(p), weights(q), eps, tol=tol).value
    return value


def exact(cost: np.ndarray, a: np.ndarray, b: np.ndarray) -> float:
    """Return the unregularised transport cost by network simplex."""
    return float(ot.emd2(a / a.sum(), b / b.sum(), np.ascontiguousarray(cost), numItermax=10**6))
