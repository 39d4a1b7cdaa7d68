"""Columns of Arrow tables as labels, vectors, texts and images."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.checks import native_array
from otdd_flash.datasets.frames import Frame
from otdd_flash.errors import DataError, LabelError
from otdd_flash.samples import CHUNK

if TYPE_CHECKING:
    import pyarrow as pa

# strings that stand for no label, as the number -1 does
NO_WORDS = ("", "-1")


def kind_of(kind: pa.DataType) -> str:
    """Return number, category, vector, image, or the type's own name for all else."""
    import pyarrow.types as t

    stored = getattr(kind, "storage_type", None)
    if stored is not None:
        # arrays of datasets and of polars; numbers that stand for something else are none
        return "vector" if kind_of(stored) == "vector" else str(kind)
    if t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_decimal(kind):
        return "number"
    if is_text(kind) or t.is_dictionary(kind):
        return "category"
    if t.is_struct(kind):
        inside = {kind.field(k).name for k in range(kind.num_fields)}
        return "image" if inside == {"bytes", "path"} else str(kind)
    if t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind):
        return "image"
    inner = kind
    while t.is_list(inner) or t.is_large_list(inner) or t.is_fixed_size_list(inner):
        inner = inner.value_type
    return "vector" if inner is not kind and kind_of(inner) == "number" else str(kind)


def is_text(kind: pa.DataType) -> bool:
    """Say whether a column holds strings."""
    import pyarrow.types as t

    return t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)


def is_number(cell: str) -> bool:
    """Say whether a text reads as a number."""
    try:
        float(cell)
    except ValueError:
        return False
    # Python's own way to group digits
    return "_" not in cell


def label_values(
    column: pa.ChunkedArray,  # (n,)
    where: str,  # for errors: the file and the column
) -> tuple[np.ndarray, tuple[str, ...] | None]:  # (n,) values, and names where they are numbers
    """Return labels as numbers; strings become numbers and their names, -1 for none.

    Raises:
        LabelError: dates, lists and what else cannot be a class.
    """
    import pyarrow as pa
    import pyarrow.types as t

    kind = column.type
    if t.is_dictionary(kind) and not is_text(kind.value_type):
        column, kind = column.cast(kind.value_type), kind.value_type
    if t.is_null(kind):
        return np.full(len(column), -1), None
    if t.is_boolean(kind):
        numbers = column.cast(pa.int8()).fill_null(-1).to_numpy()
        return numbers, ("False", "True")
    if t.is_integer(kind):
        # labels beyond int64 are refused with their row where ids are made
        if column.null_count:
            # no number stands for none: -1 may be a value that is to be binned
            return _nan_for_none(column), None
        return column.to_numpy(), None
    if t.is_floating(kind) or t.is_decimal(kind):
        return column.cast(pa.float64()).to_numpy(), None
    if not (is_text(kind) or t.is_dictionary(kind)):
        raise LabelError(
            f"{where} is {kind}, expected integers or strings: one class a sample; "
            "choose another column with label"
        )
    if not t.is_dictionary(kind):
        column = column.dictionary_encode()
    column = column.unify_dictionaries()
    words = column.chunk(0).dictionary.to_pylist() if column.num_chunks else []
    # signed, since polars numbers its categories without a sign
    codes = np.concatenate(
        [np.asarray(c.indices.cast(pa.int64()).fill_null(-1)) for c in column.chunks]
    )
    # in sorted order, wherever a class comes first
    order = sorted((word, k) for k, word in enumerate(words) if word not in (None, *NO_WORDS))
    number = np.full(len(words) + 1, -1)
    names: list[str] = []
    for word, k in order:
        if not names or names[-1] != word:
            names.append(word)
        number[k] = len(names) - 1
    return number[codes], tuple(names)


def _nan_for_none(column: pa.ChunkedArray) -> np.ndarray:  # (n,) of integers, some missing
    import pyarrow as pa

    try:
        return column.cast(pa.float64()).to_numpy()
    except pa.ArrowInvalid:  # integers that float64 would round
        return np.array(column.to_pylist(), dtype=object)


def vectors(
    frame: Frame,
    column: str,
    where: str,  # for errors
) -> Callable[[np.ndarray], Tensor]:  # rows (k,) -> (k, ...)
    """Return what reads a column of lists of numbers, a chunk of rows at a time."""

    def fetch(rows: np.ndarray) -> Tensor:
        out = None
        for start in range(0, len(rows), CHUNK):
            part = frame.take(rows[start : start + CHUNK], [column]).column(0)
            done = start
            for chunk in part.chunks:
                values = _nested(chunk, where)
                if out is None:
                    out = np.empty((len(rows), *values.shape[1:]), dtype=values.dtype)
                if values.shape[1:] != out.shape[1:]:
                    raise DataError(
                        f"{where} has vectors of shape {out.shape[1:]} and of {values.shape[1:]}; "
                        "all samples must have one shape"
                    )
                out[done : done + len(values)] = values
                done += len(values)
        return torch.from_numpy(native_array(np.empty((0, 1)) if out is None else out, where))

    return fetch


def _nested(array: pa.Array, where: str) -> np.ndarray:  # (n, ...)
    """Return lists of lists of numbers as an array."""
    import pyarrow.compute as pc
    import pyarrow.types as t

    array = getattr(array, "storage", array)
    shape = [len(array)]
    while not kind_of(array.type) == "number":
        if array.null_count:
            raise DataError(
                f"{where} has {array.null_count:,} missing entries; drop those rows first"
            )
        if t.is_fixed_size_list(array.type):
            sizes = [array.type.list_size]
        else:
            sizes = pc.unique(pc.list_value_length(array)).to_pylist()
        if len(sizes) > 1:
            raise DataError(
                f"{where} has lists of {min(sizes)} to {max(sizes)} entries; "
                "all samples must have one shape"
            )
        shape += sizes
        array = array.flatten()
    if array.null_count:
        raise DataError(f"{where} has {array.null_count:,} missing numbers; fill them first")
    return array.to_numpy(zero_copy_only=False).reshape(shape)


def texts(
    frame: Frame, column: str, where: str
) -> Callable[[np.ndarray], list[str]]:  # rows (k,) -> k texts
    """Return what reads a column of strings; where there is none, an error counts them."""

    def fetch(rows: np.ndarray) -> list[str]:
        found = frame.take(rows, [column]).column(0)
        if found.null_count:
            raise DataError(
                f"{where} has {found.null_count:,} missing texts; drop those rows "
                "with missing='drop' (--missing drop)"
            )
        return found.to_pylist()

    return fetch


def images(
    frame: Frame,
    column: str,
    base: Path | None,  # folder that paths in the table are relative to
    where: str,
) -> Callable[[np.ndarray], list[Any]]:  # rows (k,) -> k paths or encoded bytes
    """Return what reads a column of encoded images or of their paths."""

    def fetch(rows: np.ndarray) -> list[Any]:
        cells = frame.take(rows, [column]).column(0).to_pylist()
        out: list[Any] = []
        for row, cell in zip(rows, cells, strict=True):
            found = (cell["bytes"] or cell["path"]) if isinstance(cell, dict) else cell
            if not found:
                raise DataError(f"{where}: row {int(row)} has no image; drop that row first")
            out.append(found if isinstance(found, bytes) else (base or Path()) / found)
        return out

    return fetch
