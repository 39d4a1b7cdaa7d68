"""A page for a result of any kind."""

from __future__ import annotations

from pathlib import Path

from otdd_flash.findings import Explanation
from otdd_flash.report.distance import distance_page
from otdd_flash.report.explain import explanation_page
from otdd_flash.types import LabelledDataset, OTDDResult


def write_report(
    result: OTDDResult | Explanation,
    path: str | Path,
    src: LabelledDataset | None = None,  # None: no samples to show, as for a result from a file
    tgt: LabelledDataset | None = None,
) -> None:
    """Write one HTML page that shows a result and needs nothing else.

    The page holds the value with its bounds, the evidence, tables that sort, samples, and all
    settings and versions. It loads nothing. Up to 50 classes a side are shown whole, of more the
    200 pairs that carry most mass.

    Raises:
        DataError: datasets that the result is not of.
        OSError: the file cannot be written; what was there before stays.
    """
    if isinstance(result, Explanation):
        page = explanation_page(result, src, tgt)
    else:
        page = distance_page(result, src, tgt)
    page.write(path)
