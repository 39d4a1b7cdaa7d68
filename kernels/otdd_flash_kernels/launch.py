"""One launch table and the capability checks: nothing is searched for at run time."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Launch:
    """Tile shape and resources of the softmin kernel."""

    tile_rows: int
    tile_columns: int
    tile_depth: int
    warps: int
    stages: int


# by compute capability (major), the newest entry not above the device's is taken
TABLE = {
    8: Launch(128, 128, 64, 8, 3),
    9: Launch(128, 128, 128, 4, 3),
}
INTERPRETER = Launch(32, 32, 32, 4, 1)


def launch_for(device: torch.device) -> Launch:
    """Return the launch of a device; small tiles where Triton interprets on the CPU.

    Raises:
        RuntimeError: a GPU older than compute capability 8.0.
    """
    if device.type == "cpu":
        return INTERPRETER
    major, minor = torch.cuda.get_device_capability(device)
    known = [key for key in TABLE if key <= major]
    if not known:
        raise RuntimeError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}; "
            "the kernels need 8.0 or newer: use device='cpu'"
        )
    return TABLE[max(known)]
