"""The folder of one flow: settings, checkpoint, trajectory, curve.

``settings.json``                what is computed from what
``checkpoint.safetensors``       where an interrupted flow goes on
``trajectory-000010.safetensors`` points and labels of a kept step, one file each
``curve.csv``                    one row a step

Every file appears whole or not at all, and in an order such that a process that is killed at any
moment leaves a folder from which the flow goes on.
"""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from otdd_flash.digests import differences, fingerprint
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.files import written_whole
from otdd_flash.flows.checkpoint import (
    KEY,
    Checkpoint,
    comparable,
    load_checkpoint,
    save_checkpoint,
)
from otdd_flash.flows.settings import FlowSettings, FlowState, described
from otdd_flash.flows.walk import Flow
from otdd_flash.timing import versions
from otdd_flash.types import LabelledDataset

SETTINGS, CHECKPOINT, CURVE = "settings.json", "checkpoint.safetensors", "curve.csv"
SHARD = "trajectory-{:06d}.safetensors"
# what a run writes at its top, beside the shards: --overwrite takes away nothing else
OWN = (
    *(CHECKPOINT, CURVE, "curve.png", "summary.json", "flowed.npz", "filmstrip.png"),
    *("idx", "hugging-face", SETTINGS),
)
OWN_PATTERNS = ("trajectory-*.safetensors", "grid-*.png", "scatter-*.png", ".otdd-*.tmp")
COLUMNS = (
    "step value objective distance marginal_error converged passes self_passes speed moved "
    "label_error seconds"
).split()


@dataclass(frozen=True, eq=False)
class Kept:
    """One kept step of a trajectory, read from its file."""

    step: int
    value: float
    class_names: tuple[str, ...]
    path: Path

    def rows(self, rows: Tensor) -> Tensor:  # (k,) int64 -> (k, d)
        """Return some of the points; the others are not read."""
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            part = file.get_slice("points")
            return torch.stack([part[row] for row in rows.tolist()])

    def labels(self) -> Tensor:  # (n,) int64
        """Return the labels."""
        from safetensors import safe_open

        with safe_open(self.path, framework="pt") as file:
            return file.get_tensor("labels")


class Record:
    """Writes a flow into a folder while it is iterated over.

    Args:
        folder: made if it is not there.
        every: steps between two kept ones; the first and the last are always kept.
        checkpoint_every: steps between two checkpoints. A killed process repeats at most so many.
    """

    def __init__(self, folder: Path, every: int, checkpoint_every: int = 1) -> None:
        self.folder, self.every, self.checkpoint_every = folder, every, checkpoint_every
        self.curve: list[list[float]] = []

    def begin(
        self,
        src: LabelledDataset,
        tgt: LabelledDataset,
        settings: FlowSettings,
        *,
        resume: bool,
        overwrite: bool,
    ) -> Flow:
        """Return the flow, begun anew or where the folder's checkpoint is.

        Raises:
            SettingsError: a folder that holds another run, or other settings than it was begun
                with, naming them.
            DataError: a folder whose files are damaged, or other data.
            OSError: the folder cannot be written.
        """
        check_folder(self.folder, resume=resume, overwrite=overwrite)
        about = self._about(src, tgt, settings)
        start = None
        if resume and (self.folder / SETTINGS).exists():
            check_same(self.folder, about)
            if (self.folder / CHECKPOINT).exists():
                start = load_checkpoint(self.folder / CHECKPOINT)
                self.curve = [row for row in start.numbers["curve"] if row[0] < start.step]
            # pictures need them: better now than after the last step
            list(self.kept())
        elif overwrite:
            clear(self.folder)
        flow = Flow(src, tgt, settings, start)
        self.folder.mkdir(parents=True, exist_ok=True)
        with written_whole(self.folder / SETTINGS) as file:
            file.write(json.dumps(about, indent=1).encode())
        return flow

    def _about(
        self, src: LabelledDataset, tgt: LabelledDataset, settings: FlowSettings
    ) -> dict[str, Any]:
        sides = {
            side: {
                "name": data.name,
                "samples": len(data),
                "dimension": data.dimension,
                "classes": list(data.class_names),
                "sha256": fingerprint(data),
            }
            for side, data in (("source", src), ("target", tgt))
        }
        return {**sides, "flow": described(settings), "every": self.every, "versions": versions()}

    def add(self, flow: Flow, state: FlowState) -> None:
        """Write what a state adds: the step if it is kept, a checkpoint, the curve."""
        last = state.step == flow.settings.steps
        if state.step % self.every == 0 or last:
            self._keep(state)
        self.curve.append([float(number) for number in _row(state)])
        if (state.step + 1) % self.checkpoint_every == 0 or last:
            self.save(flow)

    def save(self, flow: Flow) -> None:
        """Write the checkpoint that is due, and the curve as far as it got."""
        checkpoint: Checkpoint = flow.checkpoint()
        save_checkpoint(checkpoint, self.folder / CHECKPOINT, curve=self.curve)
        self.write_curve()

    def write_curve(self) -> None:
        """Write the curve as a table of comma-separated values."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(COLUMNS)
        whole = [COLUMNS.index(name) for name in ("step", "converged", "passes", "self_passes")]
        for row in self.curve:
            writer.writerow([int(v) if k in whole else repr(v) for k, v in enumerate(row)])
        with written_whole(self.folder / CURVE) as file:
            file.write(text.getvalue().encode())

    def _keep(self, state: FlowState) -> None:
        from safetensors.torch import save

        about = {
            "step": state.step,
            "value": state.value,
            "class_names": list(state.class_names),
        }
        tensors = {"points": state.points.cpu().contiguous(), "labels": state.labels.cpu()}
        with written_whole(self.folder / SHARD.format(state.step)) as file:
            file.write(save(tensors, {KEY: json.dumps(about)}))

    def kept(self) -> Iterator[Kept]:
        """Yield the kept steps, the first one first.

        Raises:
            DataError: a file that is not a whole step of a flow.
        """
        from safetensors import SafetensorError, safe_open

        shards = self.folder.glob("trajectory-*.safetensors")
        # numbers of more digits than six come last
        for path in sorted(shards, key=lambda path: (len(path.name), path.name)):
            if not re.fullmatch(r"trajectory-\d{6,}\.safetensors", path.name):
                continue
            try:
                with safe_open(path, framework="pt") as file:
                    about = json.loads((file.metadata() or {})[KEY])
                yield Kept(about["step"], about["value"], tuple(about["class_names"]), path)
            except (SafetensorError, KeyError, ValueError) as error:
                raise DataError(
                    f"{path}: not a whole step of a flow ({type(error).__name__}); delete it to go "
                    "on with --resume, and pictures will lack that step, or begin anew"
                ) from error


def _row(state: FlowState) -> list[float]:
    return [
        state.step,
        state.value,
        state.objective,
        state.distance,
        state.marginal_error,
        state.converged,
        *state.passes,
        state.speed,
        state.moved,
        state.label_error,
        state.seconds["total"],
    ]


def check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    """Refuse a folder that holds something else, or a run that nobody asked to touch.

    Raises:
        SettingsError: what is there, and what to do.
    """
    if folder.exists() and not folder.is_dir():
        raise SettingsError(f"--out {folder}: is a file, expected a folder")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / SETTINGS).exists():
        raise SettingsError(
            f"--out {folder}: holds files that are no run of a flow (there is no {SETTINGS}); give "
            "a folder that is empty or not there"
        )
    # a run that failed before its first step has nothing to lose
    begun = (folder / CHECKPOINT).exists() or any(folder.glob("trajectory-*.safetensors"))
    if begun and not resume and not overwrite:
        raise SettingsError(
            f"--out {folder}: holds a run already; go on with --resume, replace it with "
            "--overwrite, or give another folder"
        )


def check_same(folder: Path, about: dict[str, Any]) -> None:
    """Refuse to go on with a run that was begun with something else.

    Raises:
        SettingsError: naming what differs.
        DataError: a damaged file of settings.
    """
    try:
        old = json.loads((folder / SETTINGS).read_text("utf-8"))
        before, now = ({**side, "flow": comparable(side["flow"])} for side in (old, about))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{folder / SETTINGS}: damaged ({error}); use --overwrite") from error
    before["versions"] = now["versions"]
    found = differences(before, now)
    if found:
        raise SettingsError(
            f"{folder} was begun with something else: {'; '.join(found)}; give the same, or "
            "replace the run with --overwrite"
        )


def clear(folder: Path) -> None:
    """Take away what a run wrote, and nothing else; the settings, which tell a run, last."""
    paths = [path for pattern in OWN_PATTERNS for path in folder.glob(pattern)]
    for path in [*paths, *(folder / name for name in OWN)]:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
