"""The page of a dataset distance: value, evidence, classes, settings."""

from __future__ import annotations

from pathlib import Path

from matplotlib.figure import Figure

from otdd_flash.plots import SAMPLES, SCATTER, class_ids_of, scatter, strongest_pairs
from otdd_flash.report.page import Card, Column, Page
from otdd_flash.results import evidence, machine_facts, plain, sampled
from otdd_flash.sheets import is_image, pair_sheet
from otdd_flash.types import LabelledDataset, OTDDResult

# a page shows whole tables of at most this many classes a side, and this many class pairs
MOST_CLASSES, MOST_PAIRS = 50, 200


def write_report(
    result: OTDDResult,
    path: str | Path,
    src: LabelledDataset | None = None,  # None: no samples to show, as for a result from a file
    tgt: LabelledDataset | None = None,
) -> None:
    """Write one HTML page that shows a result and needs nothing else.

    The page holds the value with its bounds, the evidence, the class mass and the label cost as
    tables that sort, samples of the strongest class pairs, and all settings and versions. It loads
    nothing. Up to 50 classes a side are shown whole, of more the 200 pairs that carry most mass.

    Raises:
        DataError: datasets that the result is not of.
        OSError: the file cannot be written; what was there before stays.
    """
    distance_page(result, src, tgt).write(path)


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
    _headline(page, result)
    page.heading("Evidence")
    page.facts(evidence(result))
    page.heading("Datasets")
    _datasets(page, result)
    page.heading("Classes")
    _pictures(page, result, src, tgt)
    _classes(page, result)
    page.heading("Settings")
    page.facts(
        (name, "not set" if value is None else str(value))
        for name, value in plain(result.settings).items()
    )
    page.heading("Machine")
    page.facts([*machine_facts(result), *result.versions.items()])
    page.footer("Made by otdd-flash; this page loads nothing from anywhere.")
    return page


def _headline(page: Page, result: OTDDResult) -> None:
    low, high = result.squared_bounds
    kind = "debiased" if result.settings.debias else "not debiased"
    state = "Converged" if result.converged else "NOT CONVERGED"
    page.headline(
        "distance",
        f"{result.distance:.7g}",
        f"The root of S = {result.squared:.7g} ({kind}), between {low:.7g} and {high:.7g}",
        f"{state}: L1 error of the marginals {result.marginal_error:.1e}, "
        f"tolerance {result.settings.tol:g}",
        good=result.converged,
    )


def _datasets(page: Page, result: OTDDResult) -> None:
    columns = [Column(""), Column("dataset")]
    columns += [Column(name, "{:,}") for name in ("samples", "features", "classes")]
    columns += [Column("sampled")]
    page.table(
        "What was compared",
        columns,
        [
            (role, side.name, side.n, side.d, side.classes, sampled(side.provenance) or "all")
            for role, side in (("source", result.source), ("target", result.target))
        ],
    )


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


def _classes(page: Page, result: OTDDResult) -> None:
    """Add class mass and label cost: whole where that can be read, and pair by pair."""
    names, others = result.source.class_names, result.target.class_names
    mass, cost = (values.cpu().double() for values in (result.class_mass, result.label_cost))
    if max(len(names), len(others)) <= MOST_CLASSES:
        first = Column(result.source.name)
        sides = f"from {result.source.name} (rows) to {result.target.name} (columns)"
        for caption, values, number in (
            (f"Mass moved {sides}, % of all", 100 * mass, "{:.2f}"),
            (f"Squared distance between class laws {sides}", cost, "{:.4g}"),
        ):
            columns = [first, *(Column(name, number, tinted=True) for name in others)]
            rows = [(name, *row) for name, row in zip(names, values.tolist(), strict=True)]
            page.table(caption, columns, rows)
    share = mass / mass.sum(1, keepdim=True)
    order = mass.flatten().argsort(descending=True, stable=True)[:MOST_PAIRS]
    pairs = [divmod(int(place), len(others)) for place in order]
    kept = f"the {len(pairs):,} of {mass.numel():,} that carry the most mass; " * (
        len(pairs) < mass.numel()
    )
    page.table(
        "Class pairs",
        [
            Column("source class"),
            Column("target class"),
            Column("% of all mass", "{:.2f}"),
            Column("% of the source class", "{:.1f}"),
            Column("label cost", "{:.4g}"),
        ],
        [
            (names[c], others[k], *(100 * float(v[c, k]) for v in (mass, share)), float(cost[c, k]))
            for c, k in pairs
        ],
        note=f"{kept}label cost in units of the cost",
    )
