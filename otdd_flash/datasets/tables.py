"""Files of tables: csv, tsv, JSON lines, Parquet, Arrow."""

from __future__ import annotations

import csv
import gzip
import mmap
from pathlib import Path
from typing import TYPE_CHECKING

from otdd_flash.datasets.cells import is_number, kind_of
from otdd_flash.datasets.frames import Frame, ParquetFrame, TableFrame
from otdd_flash.datasets.raw import check_file, damaged
from otdd_flash.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS, LINES = (".csv", ".tsv", ".csv.gz", ".tsv.gz"), (".jsonl", ".ndjson")
PARQUET, ARROW = (".parquet", ".pq"), (".arrow", ".feather", ".ipc")
TABLES = (*TEXTS, *LINES, *PARQUET, *ARROW)
# a column's missing entries in text files, as pandas reads them, and UCI's question mark
NULLS = (
    "", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN",
    "<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null", "?",
)  # fmt: skip


def read_table(
    path: Path,  # with a suffix of TABLES
) -> tuple[Frame, str]:  # and what to announce, or ""
    """Read a table as its suffix says.

    Raises:
        DatasetNotFoundError, DataError: no such file, or one that is damaged.
    """
    name = path.name.lower()
    if name.endswith(TEXTS):
        return read_csv(path)
    if name.endswith(LINES):
        return read_json_lines(path), ""
    return (ParquetFrame([path]) if name.endswith(PARQUET) else read_arrow(path)), ""


def read_arrow(path: Path) -> TableFrame:
    """Map an Arrow file, or a stream as the ``datasets`` library writes it, into memory."""
    import pyarrow as pa

    check_file(path)
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        source = pa.py_buffer(mapped)
        try:
            table = pa.ipc.open_file(source).read_all()
        except pa.ArrowInvalid:
            table = pa.ipc.open_stream(source).read_all()
        return TableFrame(table, mapped)
    except (OSError, ValueError) as error:
        raise damaged(path, "Arrow", error) from error


def read_csv(
    path: Path,  # .csv or .tsv, perhaps .gz
) -> tuple[TableFrame, str]:  # and what to announce about the header, or ""
    """Read a text table; comma, semicolon or tab, told by the first line."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv

    check_file(path)
    first = _first_line(path)
    tab = path.name.lower().removesuffix(".gz").endswith(".tsv")
    delimiter, names = _first_cells(first, "\t,;" if tab else ",;\t", path)
    packed = "gzip" if path.suffix.lower() == ".gz" else None

    def read(names: list[str] | None, point: str) -> pa.Table:
        return arrow_csv.read_csv(
            pa.input_stream(str(path), packed),
            read_options=arrow_csv.ReadOptions(column_names=names),
            parse_options=arrow_csv.ParseOptions(delimiter=delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                null_values=list(NULLS), strings_can_be_null=True, decimal_point=point
            ),
        )

    try:
        table = read(names, ".")
        said = [f"no header line, columns are called c0 to {names[-1]}"] if names else []
        if delimiter != "," and any(map(pa.types.is_string, table.schema.types)):
            # where commas are decimal points, other marks stand between the cells
            other = read(names, ",")
            if _numbers(other) > _numbers(table):
                table = other
                said.append("decimal commas: 1,5 is read as 1.5")
    except (pa.ArrowException, OSError, ValueError, EOFError) as error:
        raise damaged(path, "CSV", error) from error
    if pa.binary() in table.schema.types:
        raise no_utf8(path)
    if table.num_rows == 0:
        raise DataError(f"{path}: holds a header and no rows")
    return TableFrame(table), "; ".join(said)


def _first_cells(
    first: str,  # line
    marks: str,  # that may stand between cells, the likeliest first
    path: Path,
) -> tuple[str, list[str] | None]:  # the mark, and names for columns that have none
    """Tell the mark between cells from the first line, and whether that names the columns."""
    try:
        for mark in [m for m in marks if m in first] or marks[0]:
            cells = next(csv.reader([first], delimiter=mark), [])
            # commas may be decimal points where they do not stand between the cells
            if cells and all(is_number(c) or is_number(c.replace(",", ".")) for c in cells):
                return mark, [f"c{k}" for k in range(len(cells))]
    except csv.Error as error:
        raise damaged(path, "CSV", error) from error
    return max(marks, key=first.count), None


def _numbers(table: pa.Table) -> int:
    return sum(kind_of(kind) == "number" for kind in table.schema.types)


def no_utf8(path: Path) -> DataError:
    """Return the error of a text in another encoding."""
    return DataError(f"{path}: is no UTF-8 text; convert it with iconv -t utf-8")


def read_json_lines(path: Path) -> TableFrame:
    """Read a text file of one JSON object a line."""
    import pyarrow as pa
    from pyarrow import json

    check_file(path)
    try:
        return TableFrame(json.read_json(path))
    except (pa.ArrowException, OSError) as error:
        raise damaged(path, "JSON lines", error) from error


def _first_line(path: Path) -> str:
    try:
        with gzip.open(path) if path.suffix.lower() == ".gz" else path.open("rb") as file:
            line = file.readline(1 << 24).decode("utf-8-sig").rstrip("\r\n")
            # of lines that end in a carriage return alone the first one
            return line.partition("\r")[0]
    except UnicodeDecodeError as error:
        raise no_utf8(path) from error
    except (OSError, EOFError) as error:
        raise damaged(path, "CSV", error) from error
