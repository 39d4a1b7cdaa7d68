r"""Classes that move as Gaussians: the affine part of a gradient.

A Gaussian stays one under ``x -> x - h (u + A (x - mean))``. Of such fields those with a symmetric
A are the tangent vectors of Gaussians in the geometry of Wasserstein (an A that only turns a class
inside its own law changes no Gaussian). For each class the one closest to the samples' gradient v,

.. math::
    u = \sum_i w_i v_i, \quad A = \arg\min_{A = A^T} \sum_i w_i \|v_i - u - A z_i\|^2, \quad
    \Sigma A + A \Sigma = C + C^T, \quad C = \sum_i w_i v_i z_i^T,

with ``z = x - mean`` and weights that sum to 1 in the class. It is the projection of the gradient,
so S falls along it; the mean moves by ``-h u``, the covariance becomes ``(I - h A) Sigma (I - h
A)``, and samples follow the same map. In the eigenbasis of Sigma the equation divides by sums of
eigenvalues; A is zero where both are. A class of at most d + 1 samples has an affine map for nearly
every move of its samples: there the projection changes little.

Sources: Alvarez-Melis and Fusi 2021, section 4; Lambert et al. 2022, "Variational inference via
Wasserstein gradient flows", section 3; Bhatia, Jain and Lim 2019.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.laws.gaussians import class_groups
from otdd_flash_kernels.workers import spread

# eigenvalues below this share of the largest are rounding
FLOOR = 1e-12


def affine_field(
    points: Tensor,  # (n, d)
    v: Tensor,  # (n, d) gradient over weights
    labels: Tensor,  # (n,) int64
    weights: Tensor,  # (n,) float64 > 0
) -> Tensor:  # (n, d) in the dtype of v
    """Return the closest affine field of each class; memory: a few copies of one class."""
    out = torch.empty_like(v)

    def project(group: tuple[Tensor, Tensor]) -> None:
        rows, w = group
        out[rows] = _project(points[rows].double(), v[rows].double(), w / w.sum()).to(v)

    groups = class_groups(labels, weights)
    if points.device.type == "cpu":
        spread(project, groups)
    else:
        for group in groups:
            project(group)
    return out


def _project(x: Tensor, v: Tensor, w: Tensor) -> Tensor:  # (k, d), (k, d), (k,) -> (k, d)
    """Return ``u + A z`` at the samples of one class."""
    z, u = x - w @ x, w @ v
    values, basis = _principal(z, w)
    if not len(values):
        return u.expand_as(v).clone()
    inside = z @ basis  # (k, r) coordinates of the samples
    c = (w[:, None] * (v - u)).mT @ inside  # (d, r): C on the class's own directions
    own = basis.mT @ c  # (r, r)
    bent = (own + own.mT) / (values[:, None] + values)
    # from the class's directions out of them: only one of both eigenvalues counts
    out = (c - basis @ own) / values
    return u + inside @ (basis @ bent + out).mT


def _principal(z: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:  # (r,) variances, (d, r) directions
    """Return the directions in which a class varies and its variances along them."""
    scaled = w.sqrt()[:, None] * z
    if len(z) <= z.shape[1]:
        _, roots, rows = torch.linalg.svd(scaled, full_matrices=False)
        values, vectors = roots.square(), rows.mT
    else:
        values, vectors = torch.linalg.eigh(scaled.mT @ scaled)
    kept = values > FLOOR * values.max().clamp(min=torch.finfo(z.dtype).tiny)
    return values[kept], vectors[:, kept]
