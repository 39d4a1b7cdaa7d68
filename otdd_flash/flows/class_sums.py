"""Softmins over all columns made of those over each class: the sums that a class mass needs.

A solve ends with a softmin of the potentials that it returns, so that the plan's mass by class
pairs costs no pass of its own. Kernels of a GPU take as long for the classes as for the whole; the
CPU's do not.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.operators import CostOperator
from otdd_flash.solver.certificate import shared_mass


class ClassSums:
    """An operator that keeps what its last softmin over the columns was made of."""

    def __init__(self, op: CostOperator) -> None:
        self.pair, self.device = op.pair, op.device
        self.backend, self.stored = op.backend, op.stored
        self.rounding, self.noise, self.unit = op.rounding, op.noise, op.unit
        self._op = op
        self._last: Tensor | None = None  # (n, Vy)
        self.softmin_transposed = op.softmin_transposed
        self.softmin_mean = op.softmin_mean
        self.hardmin = op.hardmin
        self.hardmin_transposed = op.hardmin_transposed
        self.class_softmin = op.class_softmin
        self.means = op.means
        self.means_transposed = op.means_transposed

    def softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n,) softmin over the columns."""
        self._last = self._op.class_softmin(h, eps)
        return torch.logsumexp(self._last / -eps, dim=1) * -eps

    def mass(
        self,
        a: Tensor,  # (n,) row marginal
        eps: float,
    ) -> Tensor:  # (Vx, Vy) float64
        """Return the mass by class pairs of the plan whose softmin was the last one."""
        assert self._last is not None
        return shared_mass(self.pair, self._last, a, eps)
