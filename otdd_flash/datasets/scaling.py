"""From rows of tables to points: numbers standardised, categories one-hot, over all datasets."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.datasets.shared import LISTED, Column, check_columns, column_of
from otdd_flash.errors import DataError
from otdd_flash.samples import CHUNK

# types of columns whose values float32 holds
NARROW = {"bool", "int8", "uint8", "int16", "uint16", "halffloat", "float"}


def table_points(
    raws: Sequence[RawDataset],  # of Rows, with the same columns
    settings: LoadSettings,
    alone: bool = False,  # whether nothing else is loaded beside one table
) -> tuple[list[RawDataset], list[Tensor]]:  # rows dropped where asked; (n, d) of each
    """Return the points of tables that share their columns.

    Numbers get mean 0 and variance 1 over the samples of all tables, unless ``scale`` is none;
    a category becomes one column a value, 1 where it is the sample's, so that two categories lie
    sqrt(2) apart. Integers of 0 to 255 that are not scaled become bytes.

    Raises:
        DataError: other columns, missing entries that are refused, infinity, text.
    """
    check_columns(raws)
    tables = [raw.samples.all() for raw in raws]
    names = tables[0].column_names

    def columns() -> Iterator[Column]:
        # made anew for each pass: one column at a time is held as float64
        for name in names:
            yield column_of(name, [table.column(name) for table in tables], raws)

    survey = _survey(columns(), raws)
    done, kept = _without_missing(raws, survey, settings)
    scaled = settings.scale != "none"
    kinds = [str(raw.samples.schema.field(n).type) for raw in raws for n in names]  # type: ignore[attr-defined]
    dtype: type[np.generic] = np.float32 if NARROW.issuperset(kinds) else np.float64
    if survey.plain and not scaled and all(kind.removeprefix("u")[:3] == "int" for kind in kinds):
        dtype = np.uint8
    points = [np.zeros((len(raw), survey.width), dtype=dtype) for raw in done]
    at = 0
    features: list[tuple[object, ...]] = []  # what decides the meaning of each
    for column in columns():
        values = _filled(column, settings.missing, done)
        values = [v[rows] for v, rows in zip(values, kept, strict=True)]
        if column.words is not None:
            features.append((column.name, column.words))
            for out, codes in zip(points, values, strict=True):
                out[np.arange(len(codes)), at + codes] = 1
            at += len(column.words)
            continue
        mean, spread = _moments(values) if scaled else (0.0, 1.0)
        features.append((column.name, mean, spread))
        for out, numbers in zip(points, values, strict=True):
            out[:, at] = (numbers - mean) / spread if scaled else numbers
        at += 1
    said = _announcement(survey, len(raws), scaled, alone)
    space = hashlib.sha256(repr(features).encode()).hexdigest()
    done = [raw.noted(*said, space=space) for raw in done]
    return done, [torch.from_numpy(p) for p in points]


def standardised(
    clouds: Sequence[Tensor],  # (n, d) of each dataset
) -> tuple[list[Tensor], str]:  # (n, d) float32, float64 where that came; what to announce
    """Bring every feature to mean 0 and variance 1, over all datasets where they share a space."""
    from sklearn.preprocessing import StandardScaler

    together = len({cloud.shape[1] for cloud in clouds}) == 1
    scalers = [StandardScaler()] * len(clouds) if together else [StandardScaler() for _ in clouds]
    for cloud, scaler in zip(clouds, scalers, strict=True):
        for part in cloud.split(CHUNK):
            scaler.partial_fit(part.to("cpu", torch.float64).numpy())
    out = []
    for cloud, scaler in zip(clouds, scalers, strict=True):
        dtype = torch.float64 if cloud.dtype == torch.float64 else torch.float32
        points = torch.empty(cloud.shape, dtype=dtype)
        for part, into in zip(cloud.split(CHUNK), points.split(CHUNK), strict=True):
            scaled = scaler.transform(part.to("cpu", torch.float64).numpy())
            into.copy_(torch.from_numpy(scaled))
        out.append(points)
    over = f"all {len(clouds)} datasets" if together and len(clouds) > 1 else "its own samples"
    return out, f"{clouds[0].shape[1]:,} features standardised over {over}"


def _missing(column: Column, k: int) -> np.ndarray:  # (n,) bool
    values = column.values[k]
    return np.isnan(values) if column.words is None else values < 0


@dataclass(frozen=True, eq=False)
class Survey:
    """What a first pass over the columns finds."""

    numbers: int  # columns of numbers
    categories: list[str]  # names of the other ones
    width: int  # features: a number is one, a category one a value
    plain: bool  # whether all values are whole numbers of 0 to 255
    holes: list[dict[str, int]]  # a table each: missing entries of the columns that have some
    whole: list[np.ndarray]  # a table each: (n,) bool, rows without missing entries


def _survey(columns: Iterator[Column], raws: Sequence[RawDataset]) -> Survey:
    holes: list[dict[str, int]] = [{} for _ in raws]
    whole = [np.ones(len(raw), dtype=bool) for raw in raws]
    numbers, width, plain = 0, 0, True
    categories = []
    for column in columns:
        if column.words is None:
            numbers += 1
        else:
            categories.append(column.name)
        width += 1 if column.words is None else len(column.words)
        plain = plain and column.words is None and all(map(_bytes, column.values))
        for k in range(len(raws)):
            missing = _missing(column, k)
            if missing.any():
                holes[k][column.name] = int(missing.sum())
                whole[k] &= ~missing
    return Survey(numbers, categories, width, plain, holes, whole)


def _without_missing(
    raws: Sequence[RawDataset], survey: Survey, settings: LoadSettings
) -> tuple[list[RawDataset], list[np.ndarray]]:  # the datasets and (n,) bool rows that stay
    """Refuse missing entries, drop their rows, or announce that they are filled."""
    done, kept = list(raws), [np.ones(len(raw), dtype=bool) for raw in raws]
    for k, (raw, holes) in enumerate(zip(raws, survey.holes, strict=True)):
        if not holes:
            continue
        total = sum(holes.values())
        if settings.missing == "refuse":
            worst = sorted(holes.items(), key=lambda item: -item[1])
            listed = ", ".join(f"{name!r}: {count:,}" for name, count in worst[:LISTED])
            raise DataError(
                f"{raw.name}: {total:,} {'entry is' if total == 1 else 'entries are'} missing in "
                f"{len(worst)} of {survey.numbers + len(survey.categories)} columns ({listed}"
                f"{', ...' if len(worst) > LISTED else ''}); drop those rows with "
                "missing='drop' (--missing drop), or fill them with 'mean' or 'median'"
            )
        if settings.missing != "drop":
            said = f"the {settings.missing} of their column (categories: the most frequent one)"
            done[k] = raw.noted(f"{total:,} missing entries filled with {said}")
            continue
        kept[k] = survey.whole[k]
        gone = len(raw) - int(kept[k].sum())
        if gone == len(raw):
            raise DataError(
                f"{raw.name}: every row has a missing entry, nothing is left; fill them with "
                "missing='mean' (--missing mean), or leave columns out with features "
                "(--features)"
            )
        said = f"dropped {gone:,} of {len(raw):,} rows with missing entries"
        done[k] = raw.take(np.flatnonzero(kept[k]), said)
    return done, kept


def _filled(column: Column, rule: str, raws: Sequence[RawDataset]) -> list[np.ndarray]:
    """Fill the holes of a column with one value for all tables, where they are not dropped."""
    holes = [_missing(column, k) for k in range(len(column.values))]
    if rule not in ("mean", "median") or not any(h.any() for h in holes):
        return column.values
    known = np.concatenate([v[~h] for v, h in zip(column.values, holes, strict=True)])
    if not len(known):
        raise DataError(
            f"{raws[0].name}: column {column.name!r} is empty, there is nothing to fill it with; "
            "leave it out with features (--features)"
        )
    value: float
    if column.words is not None:
        value = int(np.bincount(known).argmax())
    else:
        value = float(known.mean() if rule == "mean" else np.median(known))
    return [
        np.where(h, value, v).astype(v.dtype) for v, h in zip(column.values, holes, strict=True)
    ]


def _moments(values: Sequence[np.ndarray]) -> tuple[float, float]:
    """Return mean and standard deviation of all samples; 1 for a column that is constant."""
    count = sum(len(v) for v in values)
    mean = sum(float(v.sum()) for v in values) / count
    least, largest = min(float(v.min()) for v in values), max(float(v.max()) for v in values)
    if least == largest:
        return mean, 1.0
    # squares of very large and very small numbers are beyond float64: those of parts are not
    unit = max(largest - mean, mean - least)
    variance = sum(float((((v - mean) / unit) ** 2).sum()) for v in values) / count
    return mean, unit * variance**0.5


def _bytes(values: np.ndarray) -> bool:
    """Say whether all values are whole numbers of 0 to 255."""
    inside = len(values) > 0 and values.min() >= 0 and values.max() <= 255
    return bool(inside and (values == np.round(values)).all())


def _announcement(survey: Survey, tables: int, scaled: bool, alone: bool) -> list[str]:
    said = []
    if survey.numbers and scaled:
        over = "its own samples" if tables == 1 else f"all {tables} datasets"
        more = " (several in one command or call are scaled alike)" if alone else ""
        said.append(f"{_counted(survey.numbers, 'numeric column')} standardised over {over}{more}")
    if survey.categories:
        # named, since one word among numbers makes their column one of categories
        named = ", ".join(map(repr, survey.categories[:LISTED]))
        named += ", ..." if len(survey.categories) > LISTED else ""
        said.append(
            f"{_counted(len(survey.categories), 'column')} of categories ({named}) one-hot in "
            f"{survey.width - survey.numbers:,} features"
        )
    return said


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
