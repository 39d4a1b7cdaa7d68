r"""How points move along a gradient: plain steps, momentum, Adam.

With v the Wasserstein gradient (the gradient of a sample over its weight):

* ``gradient``: ``x <- x - h v``
* ``sgd``: ``u <- momentum u + v``, ``x <- x - h u``
* ``adam``: ``x <- x - h m' / (sqrt(s') + 1e-8)`` with m' and s' the bias-corrected means of v and
  v^2 (decay 0.9 and 0.999), a coordinate at a time.

Source: Kingma and Ba 2015, "Adam: a method for stochastic optimization", algorithm 1.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.flows.settings import FlowSettings

DECAY, SQUARE_DECAY, TINY = 0.9, 0.999, 1e-8


class Mover:
    """Moves points and keeps what an optimiser remembers.

    Memory: nothing for ``gradient``, one copy of the points for ``sgd``, two for ``adam``.
    """

    def __init__(
        self,
        settings: FlowSettings,
        length: float,  # units of the points in one unit of the normalised points
    ) -> None:
        self.settings, self.length = settings, length
        self.buffers: dict[str, Tensor] = {}  # (n, d) each

    def move(
        self,
        points: Tensor,  # (n, d)
        v: Tensor,  # (n, d) gradient over the weights
        count: int,  # moves made before
    ) -> Tensor:  # (n, d)
        """Return the next points; ``v`` may be overwritten."""
        size = _held(float(self.settings.step_size), points.dtype)
        v = v.to(points.dtype)
        if self.settings.optimizer == "gradient":
            return points.sub(v, alpha=size)
        if self.settings.optimizer == "sgd":
            u = self._buffer("momentum", points).mul_(float(self.settings.momentum or 0.0)).add_(v)
            return points.sub(u, alpha=size)
        mean = self._buffer("mean", points).mul_(DECAY).add_(v, alpha=1 - DECAY)
        square = self._buffer("square", points).mul_(SQUARE_DECAY)
        square.addcmul_(v, v, value=1 - SQUARE_DECAY)
        root = torch.sqrt(square / (1 - SQUARE_DECAY ** (count + 1)), out=v).add_(TINY)
        length = size * self.length / (1 - DECAY ** (count + 1))
        return points.addcdiv(mean, root, value=-_held(length, points.dtype))

    def _buffer(self, name: str, like: Tensor) -> Tensor:
        if name not in self.buffers:
            self.buffers[name] = torch.zeros_like(like)
        return self.buffers[name]


def _held(size: float, dtype: torch.dtype) -> float:
    """Return a step size, infinity where the dtype cannot hold it: points then run away."""
    return size if size <= torch.finfo(dtype).max else torch.inf
