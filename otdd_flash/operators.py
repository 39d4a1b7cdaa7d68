"""What the solver sees of a cost: one interface, on the CPU and in Triton, stored and streamed."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from otdd_flash.errors import DataError, DeviceError
from otdd_flash_kernels.cpu import CpuCost
from otdd_flash_kernels.pair import CostPair

if TYPE_CHECKING:
    from otdd_flash_kernels.plan import TritonPlan


class CostOperator(Protocol):
    """What the solver sees of a cost: softmins along both axes, never the matrix.

    ``h`` is a potential plus ``eps`` times log weights, so ``softmin(h, eps)[i]`` is
    ``-eps log sum_j exp((h_j - C_ij) / eps)``. All vectors are float64 on ``device``.
    """

    pair: CostPair
    device: torch.device
    backend: str  # for results: what ran
    stored: bool  # whether the cost is kept between passes
    rounding: float  # bound on the error of a cost or potential, in units of the cost
    noise: float  # the part of it that differs from pass to pass, and so hides marginal errors
    unit: float  # last bit of the arithmetic: sums of exponentials are good to a few of it

    def softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n,) softmin over the columns, h (m,)."""

    def softmin_transposed(self, h: Tensor, eps: float) -> Tensor:
        """Return the (m,) softmin over the rows, h (n,)."""

    def softmin_mean(self, h: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the (n,) softmin and the mean of ``h_j - C_ij`` under its weights."""

    def hardmin(self, g: Tensor) -> Tensor:
        """Return the (n,) c-transform ``min_j C_ij - g_j``."""

    def hardmin_transposed(self, f: Tensor) -> Tensor:
        """Return the (m,) c-transform ``min_i C_ij - f_i``."""

    def class_softmin(self, h: Tensor, eps: float) -> Tensor:
        """Return the (n, Vy) softmin over the columns of each class."""

    def means(self, h: Tensor, eps: float, values: Tensor, near: Tensor) -> Tensor:
        """Return the (n, k) means of values (m, k) under each row's weights.

        ``near`` (n,) is the softmin of ``h`` or close to it.
        """

    def means_transposed(self, h: Tensor, eps: float, values: Tensor, near: Tensor) -> Tensor:
        """Return the (m, k) means of values (n, k) under each column's weights, ``near`` (m,)."""


class CpuOperator(CpuCost):
    """The CPU operators with what the solver asks about them."""

    device = torch.device("cpu")

    def __init__(self, pair: CostPair, *, store: bool) -> None:
        super().__init__(pair, store=store)
        self.stored = store
        self.backend = "cpu, stored cost" if store else "cpu, streamed cost"
        self.rounding = self.noise = _rounding(pair, self.dtype)
        self.unit = torch.finfo(self.dtype).eps


class _GpuPlans:
    """Means under the plan on a GPU, both directions made when first asked for."""

    pair: CostPair

    @cached_property
    def _plan(self) -> TritonPlan:
        from otdd_flash_kernels.plan import TritonPlan

        try:
            return TritonPlan(self.pair)
        except ValueError as error:
            raise DeviceError(f"{error}: use slices=2, or device='cpu' (--device cpu)") from error

    @cached_property
    def _plan_transposed(self) -> TritonPlan:
        from otdd_flash_kernels.plan import TritonPlan

        return self._plan if _symmetric(self.pair) else TritonPlan(self.pair.transposed)

    def means(self, h: Tensor, eps: float, values: Tensor, near: Tensor) -> Tensor:
        """Return the (n, k) means of values (m, k) under each row's weights."""
        return self._plan.means(h, eps, values, near)

    def means_transposed(self, h: Tensor, eps: float, values: Tensor, near: Tensor) -> Tensor:
        """Return the (m, k) means of values (n, k) under each column's weights."""
        return self._plan_transposed.means(h, eps, values, near)


def _symmetric(pair: CostPair) -> bool:
    return pair.rows is pair.columns and pair.row_labels is pair.column_labels


class StoredOperator(_GpuPlans):
    """A cost stored on the GPU, read by Triton kernels in both directions."""

    stored = True

    def __init__(self, pair: CostPair) -> None:
        from otdd_flash_kernels.stored import StoredCost

        cost = StoredCost(pair)
        self.pair = pair
        self.device = cost.device
        self.backend = f"triton, stored cost of {pair.rows.data.shape[0]} int8 slice(s)"
        self.rounding = self.noise = _rounding(pair, torch.float32)
        self.unit = torch.finfo(torch.float32).eps
        self.softmin = cost.softmin
        self.softmin_transposed = cost.softmin_transposed
        self.softmin_mean = cost.softmin_mean
        self.hardmin = cost.hardmin
        self.hardmin_transposed = cost.hardmin_transposed
        self.class_softmin = cost.class_softmin


class TritonOperator(_GpuPlans):
    """Triton kernels in both directions of a pair."""

    stored = False

    def __init__(self, pair: CostPair) -> None:
        from otdd_flash_kernels.launch import UnsupportedDeviceError
        from otdd_flash_kernels.triton_cost import TritonCost

        try:
            self._forward = TritonCost(pair)
            self._backward = self._forward if _symmetric(pair) else TritonCost(pair.transposed)
        except UnsupportedDeviceError as error:
            raise DeviceError(str(error)) from error
        except ValueError as error:
            raise DataError(str(error)) from error
        self.pair = pair
        self.device = pair.rows.data.device
        self.backend = f"triton, {pair.rows.data.shape[0]} int8 slice(s)"
        if self._forward.multiply == "float16":
            self.backend += " multiplied in float16"
        self.noise = _rounding(pair, torch.float32) + self._forward.lost
        self.rounding = self.noise + self._forward.truncated
        self.unit = torch.finfo(torch.float32).eps
        self.softmin = self._forward.softmin
        self.softmin_transposed = self._backward.softmin
        self.softmin_mean = self._forward.softmin_mean
        self.hardmin = self._forward.hardmin
        self.hardmin_transposed = self._backward.hardmin
        self.class_softmin = self._forward.class_softmin


def _rounding(pair: CostPair, dtype: torch.dtype) -> float:
    """Bound of a score's rounding: a few last bits of the largest term that enters it."""
    largest = pair.scale * float(pair.rows.bias.max() + pair.columns.bias.max())
    # the ends, not the largest size: no copy of a cost of many classes
    largest += max(abs(float(end)) for end in pair.label_cost.aminmax())
    return 8 * torch.finfo(dtype).eps * largest
