"""Parts that pages of several kinds of results share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from otdd_flash.report.page import Cells, Column, Page, setting_facts
from otdd_flash.results import preparation
from otdd_flash.settings import OTDDSettings
from otdd_flash.types import DatasetSummary

# a page shows whole tables of at most this many classes a side, and this many class pairs
MOST_CLASSES, MOST_PAIRS = 50, 200


def headline(
    page: Page,
    value: Any,  # a result with distance, squared, squared_bounds, converged, marginal_error
    settings: OTDDSettings,
) -> None:
    """Add the distance, its bounds, and whether it converged."""
    low, high = value.squared_bounds
    kind = "debiased" if settings.debias else "not debiased"
    state = "Converged" if value.converged else "NOT CONVERGED"
    page.headline(
        "distance",
        f"{value.distance:.7g}",
        f"The root of S = {value.squared:.7g} ({kind}), between {low:.7g} and {high:.7g}",
        f"{state}: L1 error of the marginals {value.marginal_error:.1e}, "
        f"tolerance {settings.tol:g}",
        good=value.converged,
    )


def datasets_table(
    page: Page,
    sides: Sequence[tuple[str, DatasetSummary]],  # what a dataset is called here, and the dataset
) -> None:
    """Add what was compared."""
    columns = [Column(""), Column("dataset")]
    columns += [Column(name, "{:,}") for name in ("samples", "features", "classes")]
    columns += [Column("taken")]
    rows = [(role, side.name, side.n, side.d, side.classes, _taken(side)) for role, side in sides]
    page.table("What was compared", columns, rows)


def _taken(side: DatasetSummary) -> str:
    return "; ".join(preparation(side.provenance)) or "all samples as they are"


def heat_table(
    page: Page,
    caption: str,
    names: tuple[str, Sequence[str], Sequence[str]],  # of the corner, the rows and the columns
    values: Tensor,  # (V, K)
    number: str,  # how numbers are written
) -> None:
    """Add a table of numbers, the larger the darker."""
    corner, rows, columns = names
    heads = [Column(corner), *(Column(name, number, tinted=True) for name in columns)]
    body = [(name, *row) for name, row in zip(rows, values.tolist(), strict=True)]
    page.table(caption, heads, body)


def class_tables(
    page: Page,
    source: DatasetSummary,
    target: DatasetSummary,
    mass: Tensor,  # (Vx, Vy) sums to 1
    tables: Sequence[tuple[str, Tensor, str, str]],  # of class pairs: caption, (Vx, Vy), format,
    # and the name of its column in the table of pairs
) -> None:
    """Add what is known of class pairs: whole where that can be read, and pair by pair."""
    names, others = source.class_names, target.class_names
    mass = mass.cpu().double()
    known = [(caption, t.cpu().double(), number, name) for caption, t, number, name in tables]
    if max(len(names), len(others)) <= MOST_CLASSES:
        sides = f"from {source.name} (rows) to {target.name} (columns)"
        every = [(f"Mass moved {sides}, % of all", 100 * mass, "{:.2f}")]
        every += [(f"{caption} {sides}", values, number) for caption, values, number, _ in known]
        for caption, values, number in every:
            heat_table(page, caption, (source.name, names, others), values, number)
    share = mass / mass.sum(1, keepdim=True)
    order = mass.flatten().argsort(descending=True, stable=True)[:MOST_PAIRS]
    pairs = [divmod(int(place), len(others)) for place in order]
    columns = [
        Column("source class"),
        Column("target class"),
        Column("% of all mass", "{:.2f}"),
        Column("% of the source class", "{:.1f}"),
        *(Column(name, number) for _, _, number, name in known),
    ]
    rows: list[Cells] = [
        (
            names[c],
            others[k],
            *(100 * float(values[c, k]) for values in (mass, share)),
            *(float(values[c, k]) for _, values, _, _ in known),
        )
        for c, k in pairs
    ]
    whole = len(pairs) == mass.numel()
    note = "" if whole else f"the {len(pairs):,} of {mass.numel():,} that carry the most mass"
    page.table("Class pairs", columns, rows, note=note)


def ending(
    page: Page,
    settings: OTDDSettings,
    machine: Sequence[tuple[str, str]],
    versions: dict[str, str],
) -> None:
    """Add settings, machine and versions, and the last line."""
    page.heading("Settings")
    page.facts(setting_facts(settings))
    page.heading("Machine")
    page.facts([*machine, *versions.items()])
    page.footer()
