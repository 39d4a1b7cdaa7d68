"""Columns that tables share: of one kind in all of them, as numbers or as codes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from otdd_flash.datasets.cells import is_number, kind_of
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.errors import DataError
from otdd_flash.samples import Rows

if TYPE_CHECKING:
    import pyarrow as pa

# a column of strings with more distinct values than this is text, not categories
MOST_CATEGORIES = 1000
LISTED = 5


@dataclass(frozen=True, eq=False)
class Column:
    """One feature column of all tables."""

    name: str
    values: list[np.ndarray]  # a table each: (n,) float64, NaN where missing, or (n,) codes, -1
    words: tuple[str, ...] | None  # the categories, None for numbers


def same_columns(raws: Sequence[RawDataset]) -> bool:
    """Say whether tables have the same columns of the same kinds."""
    kinds = [
        {field.name: kind_of(field.type) == "number" for field in raw.samples.schema}  # type: ignore[attr-defined]
        for raw in raws
    ]
    return all(other == kinds[0] for other in kinds[1:])


def pca_hint(*features: int) -> str:
    """Say how datasets of these numbers of features get one space of their components."""
    count = min(10, *features)
    return f"encoder='pca:{count}' (--encoder pca:{count})"


def check_columns(raws: Sequence[RawDataset]) -> None:
    """Refuse tables that do not share their columns and the kinds of these."""
    first = raws[0]
    assert isinstance(first.samples, Rows)
    for other in raws[1:]:
        assert isinstance(other.samples, Rows)
        here, there = first.samples.schema, other.samples.schema
        lacking = [
            f"{name} lacks {', '.join(repr(n) for n in sorted(gone)[:LISTED])}"
            + (f" and {len(gone) - LISTED} more" if len(gone) > LISTED else "")
            for name, gone in (
                (first.name, set(there.names) - set(here.names)),
                (other.name, set(here.names) - set(there.names)),
            )
            if gone
        ]
        if lacking:
            shared = [n for n in here.names if n in there.names]
            way = (
                f"keep the {len(shared)} they share with features (--features), or "
                if shared
                else ""
            )
            raise DataError(
                f"{first.name} has {len(here.names)} feature columns, {other.name} has "
                f"{len(there.names)}: {'; '.join(lacking)}; {way}bring both to a space of one "
                f"size with {pca_hint(len(here.names), len(there.names))}"
            )
        for name in here.names:
            kinds = [kind_of(schema.field(name).type) for schema in (here, there)]
            if kinds[0] != kinds[1]:
                raise DataError(
                    f"column {name!r} holds {'numbers' if kinds[0] == 'number' else 'categories'} "
                    f"in {first.name} and {'numbers' if kinds[1] == 'number' else 'categories'} in "
                    f"{other.name}; make it one kind, or leave it out with features"
                )


def column_of(
    name: str,
    chunks: Sequence[pa.ChunkedArray],  # the column of each table
    raws: Sequence[RawDataset],
) -> Column:
    """Return a column as numbers, or as codes of the categories that occur in any table."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if all(kind_of(chunk.type) == "number" for chunk in chunks):
        values = []
        for raw, chunk in zip(raws, chunks, strict=True):
            try:
                column = chunk.cast(pa.float64()).to_numpy(zero_copy_only=False)
            except pa.ArrowInvalid as error:
                raise DataError(
                    f"{raw.name}: column {name!r} holds a number that float64 would round "
                    f"({error}); scale it, or leave the column out with features"
                ) from error
            values.append(column)
            if np.isinf(column).any():
                row = int(np.flatnonzero(np.isinf(column))[0])
                raise DataError(
                    f"{raw.name}: column {name!r} holds infinity in row {row}; drop or replace it"
                )
        return Column(name, values, None)
    texts = [pc.cast(chunk, pa.string()) for chunk in chunks]
    found = sorted({w for t in texts for w in t.unique().to_pylist() if w is not None})
    total = sum(len(t) for t in texts)
    if len(found) > MOST_CATEGORIES or (len(found) > 10 and len(found) > total / 2):
        odd = [word for word in found if not is_number(word)]
        if 0 < 2 * len(odd) < len(found):
            raise DataError(
                f"{raws[0].name}: column {name!r} holds numbers and {len(odd):,} other entries, "
                f"such as {odd[0]!r}; mend these, or leave the column out with features "
                "(--features)"
            )
        raise DataError(
            f"{raws[0].name}: column {name!r} holds {len(found):,} different strings in {total:,} "
            "rows, too many for categories; leave it out with features (--features), or embed it "
            "as text with encoder='sentence:MODEL' (--encoder sentence:MODEL)"
        )
    known = pa.array(found, pa.string())
    codes = [
        np.asarray(pc.fill_null(pc.index_in(t, value_set=known), -1)).astype(np.int64)
        for t in texts
    ]
    return Column(name, codes, tuple(found))
