"""Mixed precision on a GPU, checked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from otdd_flash.ops import resolve_device


class Mixed:
    """Runs a model in float16 where a GPU does, again in float32 where that overflows.

    Raises:
        DeviceError: a device that is not there.
    """

    def __init__(self, device: str) -> None:
        self.device = resolve_device(device)
        self.repeated = 0  # samples that float16 did not hold
        # part of an embedding's identity: what a GPU and a CPU return differs in the last digits
        self.name = "mixed float16 on a GPU" if self.device.type == "cuda" else "float32 on the CPU"

    def run(self, work: Callable[[], Tensor]) -> Tensor:  # (k, d)
        """Return ``work()`` as float32."""
        if self.device.type != "cuda":
            return work().float()
        with torch.autocast("cuda", torch.float16):
            features = work().float()
        if not bool(torch.isfinite(features).all()):
            self.repeated += len(features)
            features = work().float()
        return features

    def notes(self, what: str) -> list[str]:
        """Say how many samples were encoded twice; ``what`` they are called."""
        return [f"{self.repeated:,} {what} encoded again in float32"] if self.repeated else []
