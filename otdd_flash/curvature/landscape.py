"""A function of parameters near one point: its value, its gradient and its Hessian's products."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from otdd_flash.checks import shown
from otdd_flash.errors import DataError

# a tensor, or the named tensors of a model (`torch.func.functional_call`)
Parameters = Tensor | Mapping[str, Tensor]
Function = Callable[[Any], Tensor]


class Layout:
    """How parameters lie in one float64 vector."""

    def __init__(
        self,
        parameters: Parameters,  # floating point, of any shapes, on one device
    ) -> None:
        self._named = isinstance(parameters, Mapping)
        items = parameters.items() if isinstance(parameters, Mapping) else (("", parameters),)
        self._names: list[str] = []
        self._parts: list[Tensor] = []
        for name, part in items:
            label = f"parameter {name!r}" if self._named else "the start"
            if not isinstance(part, Tensor) or not part.is_floating_point():
                raise DataError(
                    f"{label} is {shown(part)}, expected a tensor of floats; a function of several "
                    "takes a dict of tensors"
                )
            if not bool(torch.isfinite(part).all()):
                raise DataError(f"{label} holds NaN or infinity")
            self._names.append(name)
            self._parts.append(part.detach())
        if self.size == 0:
            raise DataError("the start has no parameters")

    @property
    def size(self) -> int:
        """Number of parameters N."""
        return sum(part.numel() for part in self._parts)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return self._parts[0].device

    @property
    def start(self) -> Tensor:  # (N,) float64
        """The parameters that the layout was made of."""
        return self.flat(self._parts)

    def flat(self, parts: list[Tensor]) -> Tensor:  # (N,) float64
        """Return tensors of the parameters' shapes as one vector."""
        return torch.cat([p.detach().reshape(-1).to(self.device, torch.float64) for p in parts])

    def parts(self, vector: Tensor) -> list[Tensor]:  # (N,) -> the parameters' shapes and dtypes
        """Return a vector as tensors like the parameters."""
        pieces = vector.split([part.numel() for part in self._parts])
        return [v.reshape(p.shape).to(p) for v, p in zip(pieces, self._parts, strict=True)]

    def packed(self, parts: list[Tensor]) -> Any:
        """Return tensors as the function takes them."""
        return dict(zip(self._names, parts, strict=True)) if self._named else parts[0]


class Landscape:
    """A function of parameters that counts its evaluations and the products with its Hessian."""

    def __init__(
        self,
        function: Function,
        start: Parameters,
        measure: Callable[[Any], float] | None = None,  # what a caller asks of the parameters
    ) -> None:
        self.layout = Layout(start)
        self._function, self._measure = function, measure
        self.evaluations = self.products = 0

    def _call(self, parts: list[Tensor]) -> Tensor:
        self.evaluations += 1
        value = self._function(self.layout.packed(parts))
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise DataError(f"the function returned {shown(value)}, expected one number, a tensor")
        return value.reshape(())

    def packed(self, point: Tensor) -> Any:  # (N,)
        """Return a point as the function takes it."""
        return self.layout.packed(self.layout.parts(point))

    def measure(self, point: Tensor) -> float:
        """Return what the caller measures, NaN where nothing."""
        return math.nan if self._measure is None else float(self._measure(self.packed(point)))

    def value(self, point: Tensor) -> float:
        """Return the value alone."""
        with torch.no_grad():
            return self._call(self.layout.parts(point)).item()

    def at(self, point: Tensor) -> Local:
        """Return the function near a point."""
        # also under a caller's no_grad
        with torch.enable_grad():
            leaves = [part.clone().requires_grad_() for part in self.layout.parts(point)]
            value = self._call(leaves)
        if not value.requires_grad:
            raise DataError("the function does not depend on its parameters: it has no gradient")
        return Local(self, point, leaves, value)

    def at_start(self) -> Local:
        """Return the function near its start.

        Raises:
            DataError: value or gradient are not finite.
        """
        here = self.at(self.layout.start)
        if not here.finite:
            raise DataError(
                f"at the start the function is {here.value:.3g} and its gradient has the norm "
                f"{here.slope:.3g}: both must be finite"
            )
        return here


class Local:
    """A function at one point: value and gradient at once, products with the Hessian on demand."""

    def __init__(
        self,
        landscape: Landscape,
        point: Tensor,  # (N,) float64
        leaves: list[Tensor],  # the same as parameters
        value: Tensor,  # () of the leaves
    ) -> None:
        self.point = point
        self._landscape, self._leaves = landscape, leaves
        self._gradients = torch.autograd.grad(
            value, leaves, create_graph=True, materialize_grads=True
        )
        self.value = value.item()
        self.gradient = landscape.layout.flat(list(self._gradients))  # (N,) float64
        self.slope = float(self.gradient.norm())

    @property
    def finite(self) -> bool:
        """Whether value and gradient are numbers."""
        return math.isfinite(self.value) and math.isfinite(self.slope)

    def product(self, v: Tensor) -> Tensor:  # (N,) float64 -> (N,) float64
        """Return the Hessian times a direction, by differentiating the gradient."""
        self._landscape.products += 1
        layout = self._landscape.layout
        pairs = zip(self._gradients, layout.parts(v), strict=True)
        linked = [(g, d) for g, d in pairs if g.requires_grad]
        if not linked:  # the function is linear
            return torch.zeros_like(v)
        along = torch.autograd.grad(
            [g for g, _ in linked],
            self._leaves,
            [d for _, d in linked],
            retain_graph=True,
            materialize_grads=True,
        )
        return layout.flat(list(along))
