"""The launch tables and the capability checks: nothing is searched for at run time."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch.cuda import get_device_capability

# one slice; two slices whose products go into one float32 sum; two slices of few coordinates in one
# int32 sum; slices with a sum for each level
Kind = Literal["one", "wide", "narrow", "slices"]


class UnsupportedDeviceError(RuntimeError):
    """A GPU too old for the kernels."""


@dataclass(frozen=True)
class Launch:
    """Tile shape and resources of a kernel, and how it reads and multiplies points."""

    tile_rows: int
    tile_columns: int
    tile_depth: int  # bytes of a point in one step: of each slice, or of both where summed in one
    warps: int
    stages: int
    registers: int | None = None  # cap a thread, so that programs share a multiprocessor
    multiply: Literal["int8", "float16"] = "int8"
    host_descriptors: bool = True  # False: made of pointers in the kernel


# softmins by compute capability (major); the newest entry not above the device's is taken. Those
# other than 9 are chosen by what they compile to: pipelined loads, next to no spilled registers
TABLE: dict[tuple[int, Kind], Launch] = {
    # no tensor copies by hardware, and 99 kB of shared memory on some
    (8, "one"): Launch(128, 128, 64, 8, 3, host_descriptors=False),
    (8, "wide"): Launch(128, 128, 64, 8, 3, host_descriptors=False),
    (8, "slices"): Launch(128, 64, 64, 8, 3, host_descriptors=False),
    # three programs a multiprocessor: one computes exponentials while others multiply
    (9, "one"): Launch(128, 128, 128, 4, 2, 168),
    (9, "wide"): Launch(128, 128, 128, 4, 2, 168),
    (9, "slices"): Launch(64, 128, 64, 4, 3),
    # int8 is emulated, or slower than float16; 512 columns of tensor memory hold all the sums
    (10, "one"): Launch(128, 128, 128, 4, 2, 168, "float16"),
    (10, "wide"): Launch(64, 64, 128, 4, 3, None, "float16"),
    (10, "slices"): Launch(64, 64, 128, 4, 3, None, "float16"),
    # consumer chips: int8 at full speed, float16 with float32 sums at a fraction of it
    (12, "one"): Launch(128, 128, 64, 8, 3),
    (12, "wide"): Launch(128, 128, 64, 8, 3),
    (12, "slices"): Launch(64, 64, 64, 8, 3),
}
# for writing chunks of the plan
PLAN_TABLE: dict[tuple[int, Kind], Launch] = {
    (8, "one"): Launch(128, 128, 64, 8, 3, host_descriptors=False),
    (8, "wide"): Launch(64, 64, 256, 4, 3, host_descriptors=False),
    (9, "one"): Launch(128, 128, 128, 4, 3),
    (9, "wide"): Launch(128, 128, 256, 8, 3),
    (10, "one"): Launch(128, 128, 128, 8, 3, None, "float16"),
    (10, "wide"): Launch(64, 64, 256, 8, 3, None, "float16"),
    (12, "one"): Launch(128, 128, 64, 8, 3),
    (12, "wide"): Launch(128, 64, 128, 8, 3),
}
# two slices in one int32 sum, where that was measured to pay: the major version must be this one
NARROW_TABLE = {9: Launch(128, 128, 128, 4, 3)}
INTERPRETER = Launch(32, 32, 32, 4, 1)
# programs for each multiprocessor, so that the last ones end together
PROGRAMS = 16


def current(device: torch.device) -> AbstractContextManager[Any]:
    """Make a GPU the current one, which is where Triton launches; nothing to do on the CPU."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


def launch_for(device: torch.device, kind: Kind) -> Launch:
    """Return the softmin's launch on a device; small tiles where Triton interprets on the CPU.

    Raises:
        RuntimeError: a GPU older than compute capability 8.0.
    """
    return _chosen(TABLE, device, kind)


def narrow_launch_for(device: torch.device) -> Launch | None:
    """Return the launch for two slices in one int32 sum, None on devices that do not use it."""
    if device.type == "cpu":
        integers = INTERPRETER.multiply == "int8"
        return replace(INTERPRETER, tile_depth=128) if integers else None
    return NARROW_TABLE.get(get_device_capability(device)[0])


def plan_launch_for(device: torch.device, kind: Kind) -> Launch:
    """Return the launch that writes chunks of the plan; raises as :func:`launch_for`."""
    return _chosen(PLAN_TABLE, device, kind)


def _chosen(table: dict[tuple[int, Kind], Launch], device: torch.device, kind: Kind) -> Launch:
    if device.type == "cpu":
        return INTERPRETER
    major, minor = get_device_capability(device)
    known = [key for key, of in table if key <= major and of == kind]
    if not known:
        raise UnsupportedDeviceError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}; "
            "the kernels need 8.0 or newer: use device='cpu'"
        )
    return table[max(known), kind]


def cholesky_launch(
    width: int,  # entries of a row of float64, a power of two
) -> tuple[int, int]:
    """Return the warps of a program that holds whole rows, and the rows that it reads at once.

    As many as registers hold without spilling up to a width of 4096; wider rows spill and work.
    """
    warps = min(max(width // 128, 4), 16)
    entries = width // (32 * warps)
    return warps, 8 if entries <= 4 else max(16 // entries, 1)


def reflection_warps(
    height: int,  # rows of a panel of 16 columns, a power of two
) -> int:
    """Return the warps of a program that holds a panel of float64: 32 entries a thread."""
    return min(max(height // 64, 1), 8)


def wanted_programs(device: torch.device) -> int:
    """Return how many programs keep a device busy to the end."""
    if device.type == "cpu":
        return 4
    return PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count
