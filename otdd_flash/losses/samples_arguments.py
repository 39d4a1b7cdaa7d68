"""What a call in GeomLoss's forms means: weights and points as batches, or what is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import WEIGHT_SUM_TOLERANCE, check_masses, shown
from otdd_flash.errors import DataError, SettingsError, WeightError
from otdd_flash.settings import check_choice

BACKENDS = ("auto", "tensorized", "online", "multiscale")
FORMS = "expected (x, y) or (a, x, b, y)"


def check_offered(loss: Any, p: Any, cost: Any, kernel: Any, backend: Any) -> None:
    """Refuse what would change the value and is not offered."""
    if loss != "sinkhorn":
        raise SettingsError(
            f"loss is {shown(loss)}; expected 'sinkhorn', the only loss offered: use GeomLoss for "
            "its kernel norms and its Hausdorff loss"
        )
    if isinstance(p, bool) or p != 2:
        raise SettingsError(
            f"p is {shown(p)}; expected 2: the cost is half the squared Euclidean distance, use "
            "GeomLoss for p = 1"
        )
    for key, value, whose in (("cost", cost, "a cost"), ("kernel", kernel, "a kernel")):
        if value is not None:
            raise SettingsError(
                f"{key} is {shown(value)}, expected None: {whose} of one's own cannot be streamed; "
                "the cost is half the squared Euclidean distance"
            )
    check_choice("backend", backend, BACKENDS)


def read_arguments(
    arguments: tuple[Tensor, ...],
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # (B, n), (B, n, d), (B, m), (B, m, d)
    """Return weights and points of a call as batches.

    Raises:
        SettingsError: another number of arguments than 2 or 4.
        DataError, WeightError: no tensors, or shapes that do not belong together.
    """
    if len(arguments) == 6:
        raise SettingsError(
            "6 arguments (l_x, a, x, l_y, b, y): the cluster labels steer a backend of GeomLoss "
            "that is not offered and change no value; call loss(a, x, b, y). For classes with a "
            "label cost use otdd_flash.sinkhorn_divergence"
        )
    if len(arguments) not in (2, 4):
        raise SettingsError(f"{len(arguments)} arguments; {FORMS}")
    for k, value in enumerate(arguments):
        if not isinstance(value, Tensor):
            raise DataError(f"argument {k} is a {type(value).__name__}, {FORMS}, all tensors")
    points = arguments[-3::2] if len(arguments) == 4 else arguments
    x, y = points
    for name, p in (("x", x), ("y", y)):
        if p.ndim not in (2, 3) or not p.is_floating_point():
            raise DataError(
                f"{name} is {p.dtype} of shape {tuple(p.shape)}, expected floats (n, d), or "
                "(B, n, d) for a batch"
            )
    if x.ndim != y.ndim or x.shape[-1] != y.shape[-1] or x.shape[:-2] != y.shape[:-2]:
        raise DataError(
            f"x has shape {tuple(x.shape)}, y has {tuple(y.shape)}; expected (n, d) and (m, d), or "
            "(B, n, d) and (B, m, d)"
        )
    if 0 in x.shape or 0 in y.shape:
        raise DataError(
            f"x has shape {tuple(x.shape)}, y has {tuple(y.shape)}; expected at least one batch "
            "element, one sample and one feature"
        )
    given = arguments[0::2] if len(arguments) == 4 else (None, None)
    a, b = (_weights(w, p, n) for w, p, n in zip(given, points, "ab", strict=True))
    single = x.ndim == 2
    return a, x[None] if single else x, b, y[None] if single else y


def _weights(
    weights: Tensor | None,
    points: Tensor,  # (n, d) or (B, n, d)
    name: str,
) -> Tensor:  # (B, n)
    shape = points.shape[:-1]
    if weights is None:
        weights = torch.full(shape, 1.0 / shape[-1], dtype=torch.float64, device=points.device)
    if weights.shape not in (shape, (*shape, 1)):
        raise WeightError(
            f"{name} has shape {tuple(weights.shape)}, expected {tuple(shape)} or "
            f"{(*shape, 1)}: one weight a sample"
        )
    weights = weights.reshape(shape)
    return weights if len(shape) == 2 else weights[None]


def equal_mass(a: Tensor, b: Tensor) -> float:
    """Return the mass of balanced weights; its equality is what lets transport exist."""
    masses = [float(check_masses(w, len(w), name).sum()) for w, name in ((a, "a"), (b, "b"))]
    if abs(masses[0] - masses[1]) > WEIGHT_SUM_TOLERANCE * masses[0]:
        raise WeightError(
            f"the weights sum to {masses[0]:.6g} and {masses[1]:.6g}; balanced transport needs "
            "equal masses: normalise the weights, or set reach"
        )
    return masses[0]
