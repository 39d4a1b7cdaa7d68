"""The page of a dataset distance: value, evidence, classes, settings."""

from __future__ import annotations

from matplotlib.figure import Figure

from otdd_flash.pictures.plots import SAMPLES, SCATTER, class_ids_of, scatter, strongest_pairs
from otdd_flash.pictures.sheets import is_image, pair_sheet
from otdd_flash.report.page import Card, Page
from otdd_flash.report.parts import class_tables, datasets_table, ending, headline
from otdd_flash.results import evidence, machine_facts
from otdd_flash.types import LabelledDataset, OTDDResult

LABEL_COST = ("Squared distance between class laws", "{:.4g}", "label cost")


def distance_page(
    result: OTDDResult, src: LabelledDataset | None, tgt: LabelledDataset | None
) -> Page:
    """Return the page of a result."""
    source, target = result.source, result.target
    page = Page(
        f"{source.name} to {target.name}",
        f"Optimal transport dataset distance of {source.n:,} and {target.n:,} samples, "
        f"{source.d:,} features",
    )
    headline(page, result, result.settings)
    page.heading("Evidence")
    page.facts(evidence(result))
    page.heading("Datasets")
    datasets_table(page, (("source", source), ("target", target)))
    page.heading("Classes")
    _pictures(page, result, src, tgt)
    caption, number, name = LABEL_COST
    tables = [(caption, result.label_cost, number, name)]
    class_tables(page, source, target, result.class_mass, tables)
    ending(page, result.settings, machine_facts(result), result.versions)
    return page


def _pictures(
    page: Page, result: OTDDResult, src: LabelledDataset | None, tgt: LabelledDataset | None
) -> None:
    """Add what the samples look like, in the way that plots do."""
    if src is None or tgt is None:
        return
    if is_image(src) and is_image(tgt):
        rows, others = class_ids_of(src, result.source), class_ids_of(tgt, result.target)
        mass = result.class_mass.cpu().double().numpy()
        page.paragraph("The class pairs that carry the most mass: source above, target below.")
        page.cards(
            Card(
                pair_sheet(src, rows[row], tgt, others[column], SAMPLES),
                f"{result.source.class_names[row]} → {result.target.class_names[column]}",
                f"{mass[row, column]:.1%} of the mass",
            )
            for row, column in strongest_pairs(mass)
        )
    elif src.dimension == tgt.dimension > 1:
        figure = Figure(figsize=(7.5, 4.5), layout="constrained")
        scatter(figure.add_subplot(), result, src, tgt)
        page.figure(figure, f"At most {SCATTER} samples of each dataset")
