"""A self-contained HTML page: escaped text, sortable tables, figures inline, no fetches.

The page's style and its script are in ``page.html``. It says itself that a browser may load nothing
and run no script but its own, so that no name in the data can do either.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from otdd_flash.archive import plain
from otdd_flash.files import written_whole
from otdd_flash.report.drawing import inline_svg, picture_uri

# a row of a table: a value a column
Cells = Sequence[str | float | None]
# what a cell without a value shows
NOTHING = "–"


@dataclass(frozen=True)
class Column:
    """A column of a table: its name, and how its numbers are written."""

    name: str
    number: str | None = None  # for example "{:.4g}"; None: a column of texts
    tinted: bool = False  # the larger in the range of the table's tinted columns, the darker

    def text(self, value: str | float | None) -> str:
        """Return how a value of this column is written."""
        if value is None:
            return NOTHING
        return str(value) if self.number is None else self.number.format(value)


@dataclass(frozen=True)
class Card:
    """A picture with a title and a line below."""

    picture: np.ndarray  # (h, w, 3) float in [0, 1]
    title: str
    text: str


class Page:
    """A page that grows downwards; every text is escaped where it is added.

    >>> page = Page("a & b", "two datasets")
    >>> page.heading("Evidence")
    >>> page.facts([("passes", "41")])
    >>> "a &amp; b" in page.html()
    True
    """

    def __init__(self, title: str, subtitle: str = "") -> None:
        self._title = title
        self._parts = [f"<h1>{escape(title)}</h1>"]
        if subtitle:
            self._parts.append(f'<p class="subtitle">{escape(subtitle)}</p>')

    def headline(self, label: str, value: str, text: str, verdict: str, good: bool) -> None:
        """Add the number that the page is about, what it means, and whether to trust it."""
        state = "verdict" if good else "verdict bad"
        self._parts.append(
            f'<section class="headline"><div class="subtitle">{escape(label)}</div>'
            f'<div class="value">{escape(value)}</div><p>{escape(text)}</p>'
            f'<p class="{state}">{escape(verdict)}</p></section>'
        )

    def heading(self, text: str) -> None:
        """Add the name of a section."""
        self._parts.append(f"<h2>{escape(text)}</h2>")

    def paragraph(self, text: str) -> None:
        """Add a paragraph."""
        self._parts.append(f"<p>{escape(text)}</p>")

    def facts(self, rows: Iterable[tuple[str, str]]) -> None:
        """Add names with a text each."""
        pairs = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in rows)
        self._parts.append(f"<dl>{''.join(pairs)}</dl>")

    def table(
        self,
        caption: str,
        columns: Sequence[Column],
        rows: Sequence[Cells],  # the first value names the row
        note: str = "",
    ) -> None:
        """Add a table that a click on a column's name sorts."""
        low, high = _range(columns, rows)
        heads = "".join(
            f'<th scope="col"{_number_class(column)}><button type="button">{escape(column.name)}'
            "</button></th>"
            for column in columns
        )
        body = "\n".join(_row(columns, row, low, high) for row in rows)
        below = f'<p class="note">{escape(note)}</p>' if note else ""
        self._parts.append(
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
            f"<table><caption>{escape(caption)}</caption><thead><tr>{heads}</tr></thead>\n"
            f"<tbody>\n{body}\n</tbody></table></div>{below}"
        )

    def cards(self, cards: Iterable[Card], kind: str = "cards") -> None:
        """Add small pictures side by side, as many as the width allows."""
        shown = "".join(
            f'<figure><img src="{picture_uri(card.picture)}" alt="{escape(card.title)}">'
            f"<figcaption><strong>{escape(card.title)}</strong>{escape(card.text)}</figcaption>"
            "</figure>"
            for card in cards
        )
        self._parts.append(f'<div class="{kind}">{shown}</div>')

    def small_cards(self, cards: Iterable[Card]) -> None:
        """Add pictures of single samples, many side by side."""
        self.cards(cards, kind="cards small")

    def strip(self, cards: Iterable[Card]) -> None:
        """Add wide pictures, one below the other."""
        self.cards(cards, kind="strip")

    def figure(self, figure: Figure, caption: str) -> None:
        """Add a figure of matplotlib as SVG; see ``inline_svg`` for its colours."""
        self._parts.append(
            f'<figure class="drawing"><div class="scroll">{inline_svg(figure)}</div>'
            f"<figcaption>{escape(caption)}</figcaption></figure>"
        )

    def footer(self) -> None:
        """Add the last line of the page."""
        text = "Made by otdd-flash; this page loads nothing from anywhere."
        self._parts.append(f"<footer>{escape(text)}</footer>")

    def html(self) -> str:
        """Return the whole page."""
        template, policy = _template()
        return template.substitute(
            title=escape(self._title), policy=policy, body="\n".join(self._parts)
        )

    def write(self, path: str | Path) -> None:
        """Write the page, whole or not at all.

        Raises:
            OSError: the file cannot be written; what was there before stays.
        """
        with written_whole(path) as file:
            file.write(self.html().encode())


def setting_facts(settings: Any) -> list[tuple[str, str]]:
    """Return the settings of a dataclass or of a dict, each with its name."""
    items = settings.items() if isinstance(settings, dict) else plain(settings).items()
    return [(name, "not set" if value is None else str(value)) for name, value in items]


@cache
def _template() -> tuple[Template, str]:
    """Return the frame of all pages and what it allows a browser to do."""
    text = files("otdd_flash.report").joinpath("page.html").read_text("utf-8")
    script = text[text.index("<script>") + len("<script>") : text.index("</script>")]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        "default-src 'none'; img-src data:; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'"
    )
    return Template(text), policy


def _range(columns: Sequence[Column], rows: Sequence[Cells]) -> tuple[float, float]:
    """Return the least and the largest number of the tinted columns."""
    tinted = [k for k, column in enumerate(columns) if column.tinted]
    numbers = [row[k] for row in rows for k in tinted]
    finite = [x for x in numbers if isinstance(x, (int, float)) and math.isfinite(x)]
    return min(finite, default=0.0), max(finite, default=0.0)


def _number_class(column: Column) -> str:
    return "" if column.number is None else ' class="number"'


def _row(
    columns: Sequence[Column],
    row: Cells,
    low: float,
    high: float,
) -> str:
    cells = []
    for place, (column, value) in enumerate(zip(columns, row, strict=True)):
        text = escape(column.text(value))
        if place == 0:
            cells.append(f'<th scope="row">{text}</th>')
        elif column.number is None:
            cells.append(f"<td>{text}</td>")
        else:
            # the value itself, for sorting: what is shown is rounded
            number = "" if value is None else repr(float(value))
            cells.append(
                f'<td class="number" data-value="{number}"{_tint(column, value, low, high)}>'
                f"{text}</td>"
            )
    return f"<tr>{''.join(cells)}</tr>"


def _tint(column: Column, value: str | float | None, low: float, high: float) -> str:
    if not column.tinted or value is None or not math.isfinite(float(value)):
        return ""
    share = (float(value) - low) / (high - low) if high > low else 0.0
    return f' style="--share:{share:.3f}"'
