"""The device is chosen here, once: CPU operators or Triton kernels behind one interface."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from otdd_flash.errors import BudgetError, DeviceError
from otdd_flash.operators import CostOperator, CpuOperator, StoredOperator, TritonOperator
from otdd_flash_kernels.cpu import CpuCost
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.quantize import Cloud, centre, quantize
from otdd_flash_kernels.sparsity import order_columns
from otdd_flash_kernels.transport import BlockTransport, StoredTransport, Transport

# left free beside a stored cost, and the least budget: blocks, and chunks of quantisation
WORKSPACE_BYTES = 64 << 20
# what an H200 does (`scripts/bench_gpu.py`). Only ratios decide, and those hold for other GPUs of
# the kind. A streamed pass takes the larger of: seconds a pair, seconds a pair and column of one
# product of slices
LEAST_PAIR, PRODUCT_COLUMN = 0.6e-12, 2.0e-15
# a stored cost: bytes read a second, seconds a pair and column to build it
READ_BYTES, STORE_COLUMN = 3.4e12, 5e-14
USUAL_PASSES = 40


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
