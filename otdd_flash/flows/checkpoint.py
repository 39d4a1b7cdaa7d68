"""What an interrupted flow goes on from, in one safetensors file that appears whole or not."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from otdd_flash.checks import shown
from otdd_flash.digests import differences
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.files import written_whole
from otdd_flash.flows.settings import FlowSettings, described
from otdd_flash.settings import ELSEWHERE

# layout of the file; raised when a reader of the old layout would misread the new one
FORMAT = 2
KEY = "otdd-flash flow"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that the rest of a flow depends on, beside its datasets and settings."""

    step: int  # of the next state
    tensors: dict[str, Tensor]
    numbers: dict[str, Any]  # JSON's own types


def comparable(settings: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that a flow keeps when it goes on: another device may, and more steps."""
    # JSON has lists for tuples
    out = json.loads(json.dumps(settings))
    del out["steps"]
    for key in ELSEWHERE:
        del out["solver"][key]
    return out


def check_continues(
    start: Checkpoint,
    settings: FlowSettings,
    data: dict[str, str],  # fingerprints of the datasets
) -> None:
    """Refuse a checkpoint of another flow; more steps than it had are welcome.

    Raises:
        SettingsError: other settings, naming them, or no checkpoint at all.
        DataError: other datasets.
    """
    if not isinstance(start, Checkpoint):
        raise SettingsError(
            f"start is {shown(start)}, expected what Flow.checkpoint or load_checkpoint returns"
        )
    for side in ("source", "target"):
        if start.numbers["data"][side] != data[side]:
            raise DataError(
                f"the {side} is not the one that the checkpoint of step {start.step} was made "
                "with: its points, labels or weights differ; give the same data, or begin anew"
            )
    found = differences(comparable(start.numbers["settings"]), comparable(described(settings)))
    if found:
        raise SettingsError(
            f"the checkpoint of step {start.step} belongs to other settings: {'; '.join(found)}; "
            "give the same settings, or begin anew"
        )
    if start.step > settings.steps:
        raise SettingsError(
            f"steps is {settings.steps}, but the checkpoint is at step {start.step} already"
        )


def save_checkpoint(
    checkpoint: Checkpoint,
    path: str | Path,
    **more: Any,  # JSON's own types, returned by :func:`load_checkpoint` in ``numbers``
) -> None:
    """Write a checkpoint; a file that was there stays whole until this one is.

    Raises:
        OSError: the file cannot be written.
    """
    from safetensors.torch import save

    numbers = {"format": FORMAT, "step": checkpoint.step, **checkpoint.numbers, **more}
    tensors = {name: tensor.cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
    with written_whole(path) as file:
        file.write(save(tensors, {KEY: json.dumps(numbers)}))


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint.

    Raises:
        DataError: no such file, or one that is not a whole checkpoint.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            numbers = json.loads((file.metadata() or {})[KEY])
            step, layout = numbers["step"], numbers["format"]
            # as aligned as what a flow makes: sums of BLAS depend on it in their last bit
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"{path}: not a whole checkpoint of a flow ({type(error).__name__}); begin anew"
        ) from error
    if layout != FORMAT:
        raise DataError(
            f"{path}: checkpoint of format {layout}, this version reads {FORMAT}: begin anew"
        )
    return Checkpoint(step, tensors, numbers)
