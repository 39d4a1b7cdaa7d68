"""A page for a result of any kind."""

from __future__ import annotations

from pathlib import Path

from otdd_flash.errors import DataError
from otdd_flash.many.findings import Explanation, MatrixResult
from otdd_flash.report.distance import distance_page
from otdd_flash.report.explain import explanation_page
from otdd_flash.report.matrix import matrix_page
from otdd_flash.report.page import Page
from otdd_flash.types import LabelledDataset, OTDDResult


def write_report(
    result: OTDDResult | Explanation | MatrixResult,
    path: str | Path,
    *datasets: LabelledDataset,  # that were compared, in order; none: no samples to show
) -> None:
    """Write one HTML page that shows a result and needs nothing else.

    The page holds the value with its bounds, the evidence, tables that sort, samples, and all
    settings and versions. It loads nothing. Up to 50 classes a side, or datasets, are shown whole,
    of more the 200 pairs that carry most mass, or are nearest.

    Raises:
        DataError: a result of another kind, or datasets that the result is not of.
        OSError: the file cannot be written; what was there before stays.
    """
    _page(result, datasets).write(path)


def _page(
    result: OTDDResult | Explanation | MatrixResult, datasets: tuple[LabelledDataset, ...]
) -> Page:
    if isinstance(result, MatrixResult):
        return matrix_page(result, datasets)
    if not isinstance(result, (OTDDResult, Explanation)):
        raise DataError(
            f"{type(result).__name__} has no page; expected a result of distance, explain or matrix"
        )
    if len(datasets) not in (0, 2):
        raise DataError(
            f"{len(datasets)} dataset(s) arrived, the result is of {result.source.name} and "
            f"{result.target.name}; give both, or none"
        )
    src, tgt = datasets or (None, None)
    if isinstance(result, Explanation):
        return explanation_page(result, src, tgt)
    return distance_page(result, src, tgt)
