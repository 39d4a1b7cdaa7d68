"""The page of a flow: where it ended, its curve, the same samples on their way, its classes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from otdd_flash.flows.pictures import Cast, Plane, draw_curve, some_of
from otdd_flash.flows.record import SETTINGS, Kept, Record
from otdd_flash.pictures.sheets import is_image
from otdd_flash.report.page import Card, Column, Page, setting_facts
from otdd_flash.types import LabelledDataset

# particles of each class that are shown at each step
PARTICLES = 2


def flow_page(
    record: Record,  # of a flow that has ended
    summary: dict[str, Any],  # what `finish_steps` returned
    src: LabelledDataset,
    tgt: LabelledDataset,
) -> Page:
    """Return the page of a flow."""
    page = Page(
        f"{summary['source']} flowed to {summary['target']}",
        f"{summary['samples'][0]:,} samples moved in {summary['steps']:,} steps, "
        f"mode {summary['mode']}; {summary['samples'][1]:,} samples of the target stayed",
    )
    _headline(page, summary)
    page.heading("The way down")
    figure = Figure(figsize=(7.0, 4.6), layout="constrained")
    draw_curve(figure, record.curve)
    page.figure(figure, "Squared distance and error of its solve, step by step")
    page.heading("The same samples on their way")
    _samples(page, record, src, tgt)
    page.heading("What became of the classes")
    _classes(page, summary)
    page.heading("Evidence")
    page.facts(_evidence(summary))
    about = json.loads((record.folder / SETTINGS).read_text("utf-8"))
    page.heading("Settings")
    flow = dict(about["flow"])
    solver = flow.pop("solver")
    page.facts(setting_facts(flow))
    page.heading("Settings of the distance")
    page.facts(setting_facts(solver))
    page.heading("Versions")
    page.facts(about["versions"].items())
    page.footer()
    return page


def _headline(page: Page, summary: dict[str, Any]) -> None:
    final = summary["final"]
    low, high = final["squared_bounds"]
    first, last = summary["value"]
    verb = "rose" if last > first else "fell"
    unconverged = summary["unconverged_steps"]
    good = final["converged"] and not unconverged
    page.headline(
        "distance of the flowed dataset to the target",
        f"{final['distance']:.7g}",
        f"The root of S = {final['squared']:.7g}, between {low:.7g} and {high:.7g}; while it "
        f"moved, S {verb} from {first:.6g} to {last:.6g}, by {abs(summary['fall']):.1%}",
        "All solves converged"
        if good
        else f"NOT CONVERGED: {unconverged:,} steps"
        + ("" if final["converged"] else ", and the distance at the end"),
        good=good,
    )


def _samples(page: Page, record: Record, src: LabelledDataset, tgt: LabelledDataset) -> None:
    kept = some_of(list(record.kept()))
    if not is_image(src):
        plane = Plane.of(src, tgt)
        for step in (kept[0], kept[-1]):
            figure = Figure(figsize=(7.0, 4.6), layout="constrained")
            plane.draw(figure.add_subplot(), step)
            page.figure(figure, f"Step {step.step}, in the first two principal components")
        return
    cast = Cast.of(src, tgt, PARTICLES)
    shown = src.class_names[: len(cast.rows)]
    page.paragraph(f"{PARTICLES} samples each of the classes {', '.join(shown)}, left to right.")
    page.strip(
        Card(_sheet(cast, step), f"Step {step.step}", f"S = {step.value:.5g}") for step in kept
    )


def _sheet(cast: Cast, step: Kept) -> np.ndarray:  # (h', w', 3) float in [0, 1]
    """Return the particles of a step, a class a column."""
    pictures = cast.pictures(step, least_side=1)  # (V, k, h, w, 3)
    classes, count, height, width = pictures.shape[:4]
    tiles = pictures.transpose(1, 2, 0, 3, 4)
    return tiles.reshape(count * height, classes * width, 3) / 255


def _classes(page: Page, summary: dict[str, Any]) -> None:
    columns = [
        Column("class"),
        Column("went to"),
        Column("% of its mass", "{:.1f}"),
        Column("closest law"),
        Column("label cost", "{:.4g}"),
    ]
    rows = [
        (
            entry["source"],
            entry["by_mass"],
            100 * entry["share"],
            entry.get("by_law"),
            entry.get("label_cost"),
        )
        for entry in summary["classes"]
    ]
    note = "augmented particles carry a law each" if summary["mode"] == "augmented" else ""
    page.table("Classes of the source at the last step", columns, rows, note=note)


def _evidence(summary: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        ("epsilon", f"{summary['epsilon']:.5g}, the same at every step"),
        ("marginals", f"L1 error {summary['marginal_error']:.1e} at the last step"),
        ("unconverged", f"{summary['unconverged_steps']:,} steps"),
        ("rounding", f"the cost sees points rounded, by {summary['moved']:.2g} (root mean square)"),
        ("label costs", f"bounded ones hide at most {summary['label_error']:.2g} of S at a step"),
        ("seconds", f"{summary['seconds']:.2f}"),
        ("where", summary["backend"]),
    ]
