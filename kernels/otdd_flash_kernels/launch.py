"""One launch table and the capability checks: nothing is searched for at run time."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Launch:
    """Tile shape and resources of a softmin kernel."""

    tile_rows: int
    tile_columns: int
    tile_depth: int
    warps: int
    stages: int
    registers: int | None  # cap a thread, so that several programs share a multiprocessor


# by compute capability (major) and whether the clouds have several slices; the newest entry not
# above the device's is taken
TABLE = {
    (8, False): Launch(128, 128, 64, 8, 3, None),
    (8, True): Launch(64, 64, 64, 4, 3, None),
    # three programs a multiprocessor: one computes exponentials while others multiply
    (9, False): Launch(128, 128, 128, 4, 2, 168),
    (9, True): Launch(64, 128, 64, 4, 3, None),
}
INTERPRETER = Launch(32, 32, 32, 4, 1, None)
# programs for each multiprocessor, so that the last ones end together
PROGRAMS = 16


def launch_for(device: torch.device, *, sliced: bool = False) -> Launch:
    """Return the launch of a device; small tiles where Triton interprets on the CPU.

    Raises:
        RuntimeError: a GPU older than compute capability 8.0.
    """
    if device.type == "cpu":
        return INTERPRETER
    major, minor = torch.cuda.get_device_capability(device)
    known = [key for key, several in TABLE if key <= major and several == sliced]
    if not known:
        raise RuntimeError(
            f"{torch.cuda.get_device_name(device)} has compute capability {major}.{minor}; "
            "the kernels need 8.0 or newer: use device='cpu'"
        )
    return TABLE[max(known), sliced]


def wanted_programs(device: torch.device) -> int:
    """Return how many programs keep a device busy to the end."""
    if device.type == "cpu":
        return 4
    return PROGRAMS * torch.cuda.get_device_properties(device).multi_processor_count
