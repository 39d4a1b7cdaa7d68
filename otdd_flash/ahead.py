"""What is done ahead of distances: a guess of their time, and a GPU that is warm."""

from __future__ import annotations

import torch

from otdd_flash.ops import USUAL_PASSES, free_memory, resolve_device
from otdd_flash.otdd import distance
from otdd_flash.settings import OTDDSettings
from otdd_flash.types import LabelledDataset

# seconds for one entry of the cost, as `scripts/bench_cpu.py` and `scripts/bench_gpu.py` measure
CPU_ENTRY, CPU_PRODUCT, GPU_PRODUCT = 0.7e-9, 2e-11, 2.5e-15


def warm_up(device: str) -> None:
    """Load a GPU's libraries and kernels, which takes seconds, by a distance of a few samples.

    Does nothing where the device is the CPU.

    Raises:
        SettingsError, DeviceError: no such device.
    """
    if resolve_device(device).type != "cuda":
        return
    draw = torch.Generator().manual_seed(0)
    few = []
    for name in ("first", "second"):
        # images, most of whose pixels are black
        points = torch.zeros((128, 784), dtype=torch.uint8)
        points[:, :16] = torch.randint(256, (128, 16), generator=draw, dtype=torch.uint8)
        few.append(LabelledDataset(points, torch.arange(128) // 64, name=name))
    distance(few[0], few[1], device=device)


def estimate_seconds(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings,
) -> float:
    """Estimate the seconds that a run takes, from its sizes and the usual number of passes.

    Rough by a factor of two either way; a small eps can take several times the passes.
    """
    device = resolve_device(settings.device)
    n, m, d = len(src), len(tgt), src.dimension
    pairs = float(n * m) * USUAL_PASSES
    pairs += (n * n + m * m) * 5.0 * settings.debias
    if device.type == "cuda":
        return 5.0 + pairs * (d + 300) * GPU_PRODUCT
    budget = settings.memory_budget or free_memory(device) // 2
    small = src.points.dtype == tgt.points.dtype == torch.uint8
    stored = n * m * (4 if small else 8) <= budget
    products = (n * m + (n * n + m * m) * settings.debias) if stored else pairs
    return 2.0 + (pairs * CPU_ENTRY + products * d * CPU_PRODUCT) * (1.0 if small else 2.0)
