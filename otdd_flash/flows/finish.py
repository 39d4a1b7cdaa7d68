"""What a flow leaves when it has ended: the flowed dataset, pictures, and what came of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from otdd_flash.archive import plain
from otdd_flash.checks import even
from otdd_flash.files import written_whole
from otdd_flash.flows import exports, pictures
from otdd_flash.flows.record import COLUMNS, Kept, Record
from otdd_flash.flows.settings import FlowState
from otdd_flash.flows.walk import Flow
from otdd_flash.otdd import steps as distance_steps
from otdd_flash.pictures.sheets import is_image
from otdd_flash.types import LabelledDataset, OTDDResult, Progress

# L1 error of the marginals of the distance that is computed of the flowed dataset
TOLERANCE = 1e-3


def finish_steps(
    flow: Flow,
    last: FlowState,
    record: Record,
    animate: Path | None = None,  # a GIF of the kept steps
) -> Generator[Progress, None, dict[str, Any]]:
    """Write everything but the trajectory, yielding progress; return the summary.

    The summary has the dataset distance of the flowed dataset as it is written, with bounds.

    Memory: the flowed dataset twice, and a film's frames.

    Raises:
        OSError: a file cannot be written.
    """
    src, tgt, folder = flow.source, flow.target, record.folder
    flowed = last.dataset(src, name=f"{src.name} flowed to {tgt.name}")
    solver = flow.settings.divergence
    solver = replace(solver, epsilon=last.epsilon, tol=min(solver.tol, TOLERANCE))
    result = yield from distance_steps(flowed, tgt, solver)
    summary = summarise(flow, last, record, result)
    kept = list(record.kept())
    work = _works(folder, flowed, tgt, record, summary, kept)
    if animate is not None:
        work["film"] = lambda: pictures.save_film(map(_picture_of(src, tgt), kept), animate)
    for done, (name, write) in enumerate(work.items()):
        yield Progress("write", done, len(work), name)
        write()
    yield Progress("write", len(work), len(work))
    return summary


def _works(
    folder: Path,
    flowed: LabelledDataset,
    tgt: LabelledDataset,
    record: Record,
    summary: dict[str, Any],
    kept: list[Kept],
) -> dict[str, Callable[[], None]]:
    """Return what is to be written, by name."""
    picture = _picture_of(flowed, tgt)

    def frames() -> None:
        kind = "grid" if is_image(flowed) else "scatter"
        for step in kept:
            pictures.save_picture(picture(step), folder / f"{kind}-{step.step:06d}.png")

    def strip() -> None:
        cast = pictures.Cast.of(flowed, tgt, pictures.STRIP_PARTICLES)
        film = pictures.film_strip(cast, kept, flowed.class_names)
        pictures.save_picture(film, folder / "filmstrip.png")

    title = f"{summary['source']} to {summary['target']}, {summary['mode']}"
    out: dict[str, Callable[[], None]] = {
        "npz": lambda: exports.write_npz(folder / "flowed.npz", flowed, summary),
        "IDX": lambda: exports.write_idx_pair(folder / "idx", flowed),
        "Hugging Face": lambda: exports.write_hugging_face(folder / "hugging-face", flowed),
        "curve": lambda: pictures.save_curve(record.curve, title, folder / "curve.png"),
        "pictures": frames,
    }
    if is_image(flowed):
        out["film strip"] = strip

    def summary_file() -> None:
        with written_whole(folder / "summary.json") as file:
            file.write(json.dumps(summary, indent=1, allow_nan=False).encode())

    out["summary"] = summary_file
    return out


def _picture_of(src: LabelledDataset, tgt: LabelledDataset) -> Callable[[Kept], Image.Image]:
    """Return what draws a kept step: a grid of pictures, or a plane."""
    if is_image(src):
        cast = pictures.Cast.of(src, tgt, pictures.PARTICLES)
        return lambda kept: pictures.grid_picture(cast, kept)
    return pictures.Plane.of(src, tgt).picture


def summarise(
    flow: Flow,
    last: FlowState,
    record: Record,
    result: OTDDResult,  # of the flowed dataset to the target
) -> dict[str, Any]:
    """Return what came of a flow in JSON's own types."""
    curve = dict(zip(COLUMNS, zip(*record.curve, strict=True), strict=True))
    values = curve["value"]
    summary = {
        "source": flow.source.name,
        "target": flow.target.name,
        "samples": [len(flow.source), len(flow.target)],
        "mode": flow.settings.mode,
        "steps": last.step,
        "epsilon": last.epsilon,
        "value": [values[0], values[-1]],
        "fall": 1 - values[-1] / values[0] if values[0] > 0 else 0.0,
        "marginal_error": last.marginal_error,
        "unconverged_steps": curve["converged"].count(0.0),
        "moved": last.moved,
        "weighted": not even(flow.source.weights),
        # the largest of a step; at the last one all label costs are measured
        "label_error": max(curve["label_error"]),
        "backend": last.backend,
        "seconds": sum(curve["seconds"]),
        # of the flowed dataset as it is written: grey levels are whole, classes have its own laws
        "final": {
            "distance": result.distance,
            "squared": result.squared,
            "squared_bounds": list(result.squared_bounds),
            "converged": result.converged,
        },
        "classes": _classes(flow, last, result),
    }
    return plain(summary)


def _classes(flow: Flow, last: FlowState, result: OTDDResult) -> list[dict[str, Any]]:
    """Say for each class of the source where its mass went and whose law its own is closest to."""
    assert last.class_mass is not None
    mass = last.class_mass.cpu()
    names, out = result.target.class_names, []
    for c, name in enumerate(flow.classes):
        best = int(mass[c].argmax())
        entry = {
            "source": name,
            "by_mass": names[best],
            "share": float(mass[c, best] / mass[c].sum()),
        }
        if flow.settings.mode != "augmented":
            # classes of the flowed dataset are those of the source
            law = int(result.label_cost[c].argmin())
            entry |= {"by_law": names[law], "label_cost": float(result.label_cost[c, law])}
        out.append(entry)
    return out
