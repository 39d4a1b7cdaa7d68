"""The device is chosen here, once: CPU operators or Triton kernels behind one interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from otdd_flash.errors import BudgetError, DataError, DeviceError
from otdd_flash_kernels.cpu import CpuCost
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.quantize import Cloud, centre, quantize
from otdd_flash_kernels.sparsity import order_columns
from otdd_flash_kernels.transport import BlockTransport, StoredTransport, Transport

if TYPE_CHECKING:
    from otdd_flash_kernels.plan import TritonPlan

# left free beside a stored cost, and the least budget: blocks, and chunks of quantisation
WORKSPACE_BYTES = 64 << 20
# what an H200 does (`scripts/bench_gpu.py`). Only ratios decide, and those hold for other GPUs of
# the kind. A streamed pass takes the larger of: seconds a pair, seconds a pair and column of one
# product of slices
LEAST_PAIR, PRODUCT_COLUMN = 0.6e-12, 2.0e-15
# a stored cost: bytes read a second, seconds a pair and column to build it
READ_BYTES, STORE_COLUMN = 3.4e12, 5e-14
USUAL_PASSES = 40


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
            raise DeviceError(f"{error}: use slices=2, or device='cpu'") from error

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
    largest += float(pair.label_cost.abs().max())
    return 8 * torch.finfo(dtype).eps * largest


def resolve_device(device: str) -> torch.device:
    """Return the device meant; ``auto``: the current GPU where it can run the kernels, or the CPU.

    Raises:
        DeviceError: an unknown name, or a GPU that is not there.
    """
    if device == "auto":
        usable = torch.cuda.is_available() and torch.cuda.get_device_capability()[0] >= 8
        return torch.device("cuda", torch.cuda.current_device()) if usable else torch.device("cpu")
    try:
        chosen = torch.device(device)
    except RuntimeError as error:
        raise DeviceError(f"device is {device!r}; expected auto, cpu, cuda or cuda:N") from error
    if chosen.type == "cpu":
        return torch.device("cpu")
    if chosen.type != "cuda":
        raise DeviceError(f"device {device!r} is not supported; expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    index = torch.cuda.current_device() if chosen.index is None and count else chosen.index or 0
    if index >= count:
        raise DeviceError(
            f"device {device!r} was asked for, but {count} CUDA device(s) are visible; "
            "use cpu, or auto"
        )
    return torch.device("cuda", index)


def resolve_devices(
    devices: Sequence[str] | str | None,  # "all" for all GPUs, names, None for `device` alone
    device: str,  # as `resolve_device` takes it
) -> list[torch.device]:
    """Return the devices that share a work of many pieces.

    Raises:
        DeviceError: an unknown name, a GPU that is not there, devices of two kinds.
    """
    if devices is None:
        return [resolve_device(device)]
    if device != "auto":
        raise DeviceError(f"device {device!r} and devices {devices!r} were given; give one of them")
    if devices == "all":
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        if not count:
            raise DeviceError("devices 'all' are all GPUs, and no CUDA device is visible")
        return [torch.device("cuda", index) for index in range(count)]
    if isinstance(devices, str) or not devices:
        raise DeviceError(
            f"devices is {devices!r}; expected 'all' or names such as ('cuda:0', 'cuda:1')"
        )
    chosen = [resolve_device(name) for name in devices]
    if len({one.type for one in chosen}) > 1:
        raise DeviceError(
            f"devices {', '.join(devices)} are of two kinds, which round differently; give GPUs"
        )
    return chosen


def device_of(
    points: Tensor,
    device: str,  # as `resolve_device` takes it
) -> torch.device:
    """Return the device meant; ``auto`` stays where the points are if that is a GPU.

    Raises:
        DeviceError: an unknown name, or a GPU that is not there.
    """
    return points.device if points.is_cuda and device == "auto" else resolve_device(device)


def free_memory(device: torch.device) -> int:
    """Return the bytes that are free on a device now.

    On the CPU within its control group; all memory where the system does not tell what is free.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                free = int(line.split()[1]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.exists() and used.exists() and limit.read_text().strip() != "max":
        free = min(free, int(limit.read_text()) - int(used.read_text()))
    return max(free, 0)


def make_clouds(
    x: Tensor,  # (n, d) points on the device
    y: Tensor,  # (m, d)
    slices: int | None,  # int8 slices on a GPU, None: exact or two
    precise: bool = False,  # float64 on the CPU, whatever the points are
) -> tuple[Cloud, Cloud]:
    """Return the clouds that the device's operators read: integer slices on a GPU, floats else."""
    if x.device.type == "cpu":
        return centre(x, y, precise=precise)
    return order_columns(*quantize(x, y, slices=slices))


def _pays_to_store(pair: CostPair, budget: int) -> bool:
    """Whether the usual passes over a stored cost save more than storing it takes, and it fits."""
    from otdd_flash_kernels.stored import StoredCost

    size = StoredCost.bytes_to_store(pair)
    slices, n, d = pair.rows.data.shape
    if size + WORKSPACE_BYTES > budget:
        return False
    pairs = float(n) * pair.columns.n
    used = float(d)
    for cloud in (pair.rows, pair.columns):
        if cloud.extent is not None:
            used = min(used, float(cloud.extent.double().mean()))
    streamed = pairs * max(LEAST_PAIR, PRODUCT_COLUMN * used * slices**2)
    stored = size / READ_BYTES
    return USUAL_PASSES * (streamed - stored) > pairs * d * STORE_COLUMN


def make_operator(
    pair: CostPair,
    memory_budget: int | None = None,  # bytes, None: half of what is free
) -> CostOperator:
    """Return the operators of a pair on the device of its clouds, within a memory budget.

    Raises:
        BudgetError: a budget below the workspace of streaming.
    """
    device = pair.rows.data.device
    budget = free_memory(device) // 2 if memory_budget is None else memory_budget
    if budget < WORKSPACE_BYTES:
        raise BudgetError(
            f"the memory budget is {budget / 2**20:.0f} MiB; streaming needs "
            f"{WORKSPACE_BYTES / 2**20:.0f} MiB: raise the memory budget"
        )
    if device.type == "cuda":
        return StoredOperator(pair) if _pays_to_store(pair, budget) else TritonOperator(pair)
    return CpuOperator(pair, store=CpuCost.bytes_to_store(pair) + WORKSPACE_BYTES <= budget)


def streamed(op: CostOperator) -> CostOperator:
    """Return operators of the same cost that keep nothing between passes."""
    return make_operator(op.pair, WORKSPACE_BYTES) if op.stored else op


def make_transport(
    pair: CostPair,
    f: Tensor,  # (n,) float64 solved potential
    g: Tensor,  # (m,)
    a: Tensor,  # (n,) float64 weights > 0
    b: Tensor,  # (m,)
    eps: float,
    memory_budget: int | None = None,  # bytes, None: half of what is free
) -> Transport:
    """Return the products with a plan that second derivatives need, on the device of its clouds.

    The plan is stored where that fits the budget and, on a GPU, reads faster than it is remade.
    Clouds of three slices are for float64: theirs are made by torch there too.

    Raises:
        DeviceError: a GPU that cannot run the kernels.
    """
    device, (n, m) = pair.rows.data.device, pair.shape
    budget = free_memory(device) // 2 if memory_budget is None else memory_budget
    source: Transport
    if device.type == "cuda" and pair.rows.data.shape[0] < 3:
        source, stores = _triton_transport(pair, f, g, a, b, eps), _pays_to_store(pair, budget)
    else:
        source = BlockTransport(pair, f, g, a, b, eps)
        stores = 8 * n * m + WORKSPACE_BYTES <= budget
    return StoredTransport(source, a, m) if stores else source


def _triton_transport(
    pair: CostPair, f: Tensor, g: Tensor, a: Tensor, b: Tensor, eps: float
) -> Transport:
    from otdd_flash_kernels.hvp import TritonTransport
    from otdd_flash_kernels.launch import UnsupportedDeviceError

    try:
        return TritonTransport(pair, f, g, a, b, eps)
    except UnsupportedDeviceError as error:
        raise DeviceError(str(error)) from error
