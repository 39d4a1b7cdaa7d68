"""Matrices, rankings, explanations and values as JSON and CSV, and scores from CSV."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from otdd_flash.archive import plain
from otdd_flash.errors import DataError
from otdd_flash.files import written_whole
from otdd_flash.many.findings import Explanation, Finding, MatrixResult, Ranking, Values, extremes

IN_JSON = 100  # nearest and most foreign samples in JSON
# the parts of a value, in the order of their columns
PARTS = ("value", "features", "class_part", "label")


def matrix_csv(result: MatrixResult, path: str | Path) -> None:
    """Write the distances with the names of rows and columns.

    Raises:
        OSError: the file cannot be written; what was there before stays.
    """
    rows = [
        [name, *map(repr, row)]
        for name, row in zip(result.names, result.distance.tolist(), strict=True)
    ]
    _write_csv(path, ["", *result.names], rows)


def values_csv(result: Values, path: str | Path) -> None:
    """Write one line a sample: its row, its class, its value and the three parts of it.

    Rows are those of the dataset that the samples were drawn from.

    Raises:
        OSError: the file cannot be written; what was there before stays.
    """
    columns = [getattr(result, part).tolist() for part in PARTS]
    classes = [result.source.class_names[k] for k in result.labels.tolist()]
    rows = (
        [row, name, *map(repr, parts)]
        for row, name, *parts in zip(result.rows.tolist(), classes, *columns, strict=True)
    )
    _write_csv(path, ["row", "class", *PARTS], rows)


def _write_csv(path: str | Path, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    with written_whole(path) as file:
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(head)
        writer.writerows(rows)
        text.flush()
        text.detach()


def read_scores(path: str | Path) -> dict[str, float]:
    """Read scores after transfer: a CSV file with the name of a source and its score a line.

    A first line whose second field is no number is a head.

    Raises:
        DataError: no such file, or a line that is not a name and a number.
    """
    out: dict[str, float] = {}
    try:
        with open(path, encoding="utf-8-sig", newline="") as file:
            lines = [line for line in csv.reader(file) if line]
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read as CSV ({error})") from error
    for number, line in enumerate(lines, 1):
        try:
            name, score = line[0].strip(), float(line[1])
        except (IndexError, ValueError) as error:
            if number == 1 and len(line) > 1:
                continue
            raise DataError(
                f"{path}: line {number} is {line!r}, expected the name of a source and its score"
            ) from error
        if name in out:
            raise DataError(f"{path}: line {number} scores {name!r} once more")
        out[name] = score
    if not out:
        raise DataError(f"{path}: holds no scores; write one source and its score a line")
    return out


def finding_json(result: MatrixResult | Ranking | Explanation | Values) -> dict[str, Any]:
    """Return a result as one object of plain JSON types; of samples only the extreme ones."""
    out = plain(result)
    if isinstance(result, Values):
        _shorten_values(result, out)
    elif isinstance(result, Explanation):
        _shorten_explanation(result, out)
    elif isinstance(result, Ranking):
        for source, item in zip(result.sources, out["sources"], strict=True):
            item["value"]["distance"] = source.value.distance
    # what was found comes first
    how = {field.name: out.pop(field.name) for field in dataclasses.fields(Finding)}
    return out | how


def _shorten_explanation(result: Explanation, out: dict[str, Any]) -> None:
    out["value"]["distance"] = result.value.distance
    for side in ("source", "target"):
        score, cost, numbers = (
            getattr(result, f"{side}_{name}") for name in ("foreign", "cost", "rows")
        )
        del out[f"{side}_foreign"], out[f"{side}_cost"], out[f"{side}_rows"]
        for pair in out["pairs"]:
            pair[side] = int(numbers[pair[side]])
        near, far = extremes(score, IN_JSON)
        for key, rows in (("nearest", near), ("most_foreign", far)):
            listed = [
                {"row": int(numbers[k]), "foreign": float(score[k]), "cost": float(cost[k])}
                for k in rows.tolist()
            ]
            out[f"{side}_{key}"] = plain(listed)
    for name in ("cross", "source_self", "target_self", "split"):
        out[name]["total"] = getattr(result, name).total


def _shorten_values(result: Values, out: dict[str, Any]) -> None:
    for key in (*PARTS, "labels", "rows"):
        del out[key]
    for key, score in (("most_foreign", result.value), ("label_fits_least", result.label)):
        out[key] = [
            {
                "row": int(result.rows[row]),
                "class": result.source.class_names[int(result.labels[row])],
                **{part: float(getattr(result, part)[row]) for part in PARTS},
            }
            for row in extremes(score, IN_JSON)[1].tolist()
        ]
