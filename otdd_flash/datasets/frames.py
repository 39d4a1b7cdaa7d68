"""Tables of pyarrow of which only the columns and rows that are asked for are read."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from otdd_flash.datasets.raw import check_file, damaged
from otdd_flash.errors import DataError
from otdd_flash.samples import consecutive

if TYPE_CHECKING:
    import pyarrow as pa

# of a Parquet file that are decoded at once: small integers take some twenty times their bytes
BATCH_BYTES = 1 << 23


class Frame(Protocol):
    """A table of which columns and rows are read when they are needed."""

    schema: pa.Schema

    def __len__(self) -> int: ...

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a whole column."""

    def take(self, rows: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Return rows (k,) int64, in their order, of some columns."""


class TableFrame:
    """A table of pyarrow, in memory or mapped from a file."""

    def __init__(self, table: pa.Table, mapped: mmap.mmap | None = None) -> None:
        self.table, self.schema, self.mapped = table, table.schema, mapped

    def __len__(self) -> int:
        return self.table.num_rows

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a whole column."""
        return self.table.column(name)

    def take(self, rows: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Return rows in their order; rows that follow each other are not copied."""
        if self.mapped is not None:
            # what was read before need not stay in memory: the file still has it
            self.mapped.madvise(mmap.MADV_DONTNEED)
        chosen = self.table.select(list(names))
        if consecutive(rows):
            return chosen.slice(int(rows[0]), len(rows))
        batches = chosen.to_batches()
        starts = np.cumsum([0, *(batch.num_rows for batch in batches)])

        def holding(row: int) -> tuple[int, pa.RecordBatch]:
            k = int(np.searchsorted(starts, row, side="right")) - 1
            return int(starts[k]), batches[k]

        return gather(rows, holding)


class ParquetFrame:
    """Parquet files of one schema, decoded batch by batch."""

    def __init__(self, paths: Sequence[Path]) -> None:
        import pyarrow.parquet as pq

        self.paths, self.files = list(paths), []
        for path in paths:
            check_file(path)
            try:
                self.files.append(pq.ParquetFile(path))
            except (OSError, ValueError) as error:
                raise damaged(path, "Parquet", error) from error
        self.schema = self.files[0].schema_arrow
        for path, file in zip(paths, self.files, strict=True):
            other = file.schema_arrow
            if other.names != self.schema.names:
                raise DataError(
                    f"{path}: its columns {other.names} are not those of {paths[0]} "
                    f"{self.schema.names}; give files of one table"
                )
            for here, there in zip(self.schema, other, strict=True):
                if here != there:
                    raise DataError(
                        f"{path}: its column {there.name!r} is {there.type}, that of {paths[0]} is "
                        f"{here.type}; give files of one table"
                    )
        self.groups = [
            (k, g) for k, f in enumerate(self.files) for g in range(f.metadata.num_row_groups)
        ]
        sizes = [self.files[k].metadata.row_group(g).num_rows for k, g in self.groups]
        self.starts = np.cumsum([0, *sizes])
        self._columns: tuple[str, ...] = ()
        self._open: Iterator[pa.RecordBatch] = iter(())
        # the batch that was decoded last, its first row, and the row at which its group ends
        self._last: tuple[pa.RecordBatch | None, int, int] = (None, 0, 0)

    def __len__(self) -> int:
        return int(self.starts[-1])

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a whole column."""
        return self.take(np.arange(len(self)), [name]).column(0)

    def take(self, rows: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Return rows in their order; one batch is decoded at a time."""
        if tuple(names) != self._columns:
            self._columns, self._last = tuple(names), (None, 0, 0)
        try:
            return gather(rows, self._holding)
        except (OSError, ValueError) as error:
            raise damaged(self.paths[0], "Parquet", error) from error

    def _holding(self, row: int) -> tuple[int, pa.RecordBatch]:
        """Return the batch that holds a row; rows in order decode each batch once."""
        batch, start, end = self._last
        if batch is None or not start <= row < end:
            k = int(np.searchsorted(self.starts, row, side="right")) - 1
            self._open = self._batches(*self.groups[k])
            start, end = int(self.starts[k]), int(self.starts[k + 1])
            batch = next(self._open)
        while row >= start + batch.num_rows:
            start += batch.num_rows
            batch = next(self._open)
        self._last = (batch, start, end)
        return start, batch

    def _batches(self, file: int, group: int) -> Iterator[pa.RecordBatch]:
        held = self.files[file].metadata.row_group(group)
        width = max(1, held.total_byte_size // max(1, held.num_rows))
        return self.files[file].iter_batches(
            max(1, min(1 << 16, BATCH_BYTES // width)), [group], list(self._columns)
        )


def gather(
    rows: np.ndarray,  # (k,) int64, any order
    holding: Callable[[int], tuple[int, Any]],  # row -> first row of its batch, and the batch
) -> pa.Table:  # the k rows, in their order
    """Collect rows batch by batch, in ascending order: no column is joined whole."""
    import pyarrow as pa

    order = None if (np.diff(rows) > 0).all() else np.argsort(rows, kind="stable")
    wanted = rows if order is None else rows[order]
    found, done = [], 0
    while done < len(wanted):
        start, batch = holding(int(wanted[done]))
        end = int(np.searchsorted(wanted, start + batch.num_rows))
        inside = wanted[done:end] - start
        if consecutive(inside):
            found.append(batch.slice(int(inside[0]), len(inside)))
        else:
            found.append(batch.take(pa.array(inside)))
        done = end
    table = pa.Table.from_batches(found)
    if order is None:
        return table
    back = np.empty(len(rows), dtype=np.int64)
    back[order] = np.arange(len(rows))
    return table.take(pa.array(back))
