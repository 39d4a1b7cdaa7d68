"""Timers that wait for the device, peak memory, and what identifies a measurement."""

from __future__ import annotations

import os
import platform
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

Value = TypeVar("Value")


def synchronize(device: torch.device) -> None:
    """Wait until a device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(work: Callable[[], Value], device: torch.device) -> tuple[Value, float]:
    """Return what the work returns and its wall seconds, the device idle at both ends."""
    synchronize(device)
    start = time.perf_counter()
    value = work()
    synchronize(device)
    return value, time.perf_counter() - start


def median_ms(
    work: Callable[[], Any],
    device: torch.device,
    *,
    seconds: float = 0.5,  # to spend, about
    least: int = 3,
    most: int = 50,
) -> float:
    """Return the median milliseconds of the work, after two runs to warm up.

    On a GPU by its events, so that the host's part counts only where the device waits for it.
    """
    work()
    _, once = seconds_of(work, device)
    repeats = max(least, min(most, int(seconds / max(once, 1e-9))))
    if device.type != "cuda":
        return statistics.median(1e3 * seconds_of(work, device)[1] for _ in range(repeats))
    pairs = []
    for _ in range(repeats):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        work()
        end.record()
        pairs.append((start, end))
    torch.cuda.synchronize(device)
    return statistics.median(start.elapsed_time(end) for start, end in pairs)


class Clock:
    """Seconds by stage, the device idle at both ends of a stage."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    def __call__(self, stage: str, work: Callable[[], Value]) -> Value:
        """Return what the work returns, and note its seconds."""
        value, seconds = seconds_of(work, self.device)
        self.seconds[stage] = round(seconds, 4)
        return value


class Laps:
    """Seconds by stage, from one lap to the next."""

    def __init__(
        self,
        device: torch.device | None = None,  # idle at the end of each lap; None: not waited for
    ) -> None:
        self._device = device
        self._begin = self._last = time.perf_counter()
        self.seconds: dict[str, float] = {}

    def lap(self, stage: str) -> None:
        """Count the time since the last lap to a stage."""
        if self._device is not None:
            synchronize(self._device)
        now = time.perf_counter()
        self.seconds[stage] = self.seconds.get(stage, 0.0) + now - self._last
        self._last = now

    def total(self) -> dict[str, float]:
        """Return the seconds of the stages, and since the beginning."""
        return {**self.seconds, "total": time.perf_counter() - self._begin}


class PeakMemory:
    """Peak of what torch allocates on a GPU from here on, beyond what it held; 0 on the CPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._before = 0
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self._before = torch.cuda.memory_allocated(device)
            torch.cuda.reset_peak_memory_stats(device)

    def extra(self) -> int:
        """Return the bytes so far."""
        return self.total() - self._before

    def total(self) -> int:
        """Return the bytes so far, with what was held before."""
        return torch.cuda.max_memory_allocated(self._device) if self._device.type == "cuda" else 0


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, of what every result depends on, and of further packages."""

    def of(package: str) -> str:
        try:
            return version(package)
        except PackageNotFoundError:
            return "not installed"

    names = ("otdd-flash", "torch", "triton", "numpy", *packages)
    return {"python": platform.python_version(), **{name: of(name) for name in names}}


def device_name(device: torch.device) -> str:
    """Return what results say of a device."""
    return "cpu" if device.type == "cpu" else f"{device} {torch.cuda.get_device_name(device)}"


def device_names(devices: Sequence[torch.device]) -> str:
    """Return what results say of devices that shared the work."""
    return ", ".join(map(device_name, devices))


def command_line() -> list[str]:
    """Return the arguments of this process; of paths their names, folders are one machine's."""
    return [Path(part).name if os.sep in part else part for part in sys.argv[1:]]


def machine(device: torch.device, *packages: str) -> dict[str, Any]:
    """Return what identifies a measurement: when, where and with what versions."""
    cuda = device.type == "cuda"
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "device": torch.cuda.get_device_name(device) if cuda else platform.machine() + " cpu",
        "capability": list(torch.cuda.get_device_capability(device)) if cuda else None,
        "cuda": torch.version.cuda if cuda else None,
        "threads": torch.get_num_threads(),
        "platform": platform.platform(),
        "versions": versions(*packages),
    }
