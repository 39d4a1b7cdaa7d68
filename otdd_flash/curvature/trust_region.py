r"""The step of a trust region: conjugate gradients on a quadratic model, whatever its curvature.

Sources: Steihaug 1983; Nocedal and Wright 2006, algorithm 7.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor


def trust_step(
    product: Callable[[Tensor], Tensor],
    gradient: Tensor,  # (N,) float64
    radius: float,
    *,
    tol: float,  # residual to stop at
    most: int,  # products
) -> tuple[Tensor, float, str]:  # step (N,), fall of the model, how it ended
    """Minimise ``g^T s + s^T H s / 2`` in ``|s| <= radius`` by Steihaug's conjugate gradients."""
    step, image = torch.zeros_like(gradient), torch.zeros_like(gradient)
    residual = gradient
    direction, size = -residual, float(residual @ residual)
    kind = "inside"
    for _ in range(most):
        if math.sqrt(size) <= tol:
            break
        turned = product(direction)
        curvature = float(direction @ turned)
        length = size / curvature if curvature > 0 else math.inf
        if curvature <= 0 or float((step + length * direction).norm()) >= radius:
            kind = "curvature" if curvature <= 0 else "boundary"
            length = _to_boundary(step, direction, radius)
            step, image = step + length * direction, image + length * turned
            break
        step, image = step + length * direction, image + length * turned
        residual = residual + length * turned
        size, before = float(residual @ residual), size
        direction = (size / before) * direction - residual
    return step, -float(gradient @ step + step @ image / 2), kind


def _to_boundary(step: Tensor, direction: Tensor, radius: float) -> float:
    """Return the positive t with ``|step + t direction| = radius``."""
    a, b = float(direction @ direction), float(step @ direction)
    c = radius**2 - float(step @ step)
    return c / (b + math.sqrt(b * b + a * c))
