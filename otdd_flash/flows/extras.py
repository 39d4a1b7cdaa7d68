"""Potential and interaction terms of a flow: values and gradients by autograd."""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.errors import SettingsError
from otdd_flash.flows.settings import FlowSettings

# rows that a potential sees at a time
POTENTIAL_ROWS = 1 << 14


def extra_terms(
    settings: FlowSettings,
    points: Tensor,  # (n, d)
    weights: Tensor,  # (n,) float64
    factor: float,  # length of one unit of the points after normalisation
    v: Tensor | None,  # (n, d) gradient over weights, in units of the points: added to
) -> float:
    """Return ``sum_i a_i V(x_i) + W(x, a)``, and add the gradient over the weights to ``v``.

    Raises:
        SettingsError: a function whose result has another shape, or does not depend on the points.
    """
    total = 0.0
    if settings.potential is not None:
        for rows in torch.arange(len(points), device=points.device).split(POTENTIAL_ROWS):
            z = (points[rows] * factor).requires_grad_(v is not None)
            with torch.set_grad_enabled(v is not None):
                values = settings.potential(z)
            _check("potential", values, (len(z),), v is not None)
            total += float(weights[rows] @ values.detach().double())
            if v is not None:
                v[rows] += torch.autograd.grad(values.sum(), z)[0] / factor
    if settings.interaction is not None:
        z = (points * factor).requires_grad_(v is not None)
        with torch.set_grad_enabled(v is not None):
            value = settings.interaction(z, weights.to(z.dtype))
        _check("interaction", value, (), v is not None)
        total += float(value.detach())
        if v is not None:
            gradient = torch.autograd.grad(value, z)[0]
            v += gradient / (factor * weights.to(gradient)[:, None])
    return total


def _check(name: str, values: object, shape: tuple[int, ...], differentiable: bool) -> None:
    if not isinstance(values, Tensor) or tuple(values.shape) != shape:
        got = tuple(values.shape) if isinstance(values, Tensor) else type(values).__name__
        raise SettingsError(f"{name} returned {got}, expected a tensor of shape {shape}")
    if differentiable and not values.requires_grad:
        raise SettingsError(f"{name} returned a constant; expected a differentiable function")
    if not bool(torch.isfinite(values).all()):
        raise SettingsError(f"{name} returned NaN or infinity; expected finite values")
