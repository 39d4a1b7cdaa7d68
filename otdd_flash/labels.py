"""Checks of labels and class names: class ids, or what is wrong with them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.checks import EXACT, INT64_MAX, dense_tensor, shown
from otdd_flash.errors import LabelError


def is_missing(
    label: Any,  # one label
) -> bool:
    """Say whether a label stands for none: None, NaN, -1, pandas' NA and NaT."""
    if label is None or type(label).__name__ in ("NAType", "NaTType"):
        return True
    if isinstance(label, (int, float, np.floating)) and not isinstance(label, bool):
        return bool(label != label or label == -1)
    return False


def refuse_missing(
    missing: int,  # how many
    n: int,
    name: str,
) -> None:
    """Raise the error of labels that are not there."""
    if missing:
        raise LabelError(
            f"{name}: {missing:,} of {n:,} labels are missing (-1, NaN or None, NA or masked); "
            "drop those samples before, or label them (by clustering, say)"
        )


def label_array(
    labels: Any,  # what the caller passed
    name: str,
) -> np.ndarray:  # of objects when it was no array, else as it was
    """Return labels as an array, none of them changed."""
    what = f"{name}: labels"
    if isinstance(labels, Tensor):
        tensor = dense_tensor(labels, what, LabelError).cpu()
        return (tensor.double() if tensor.is_floating_point() else tensor).numpy()
    if isinstance(labels, np.ma.MaskedArray):
        refuse_missing(int(np.ma.getmaskarray(labels).sum()), labels.size, name)
        return labels.data
    if isinstance(labels, np.ndarray):
        return labels
    wrong = isinstance(labels, (str, bytes, set, frozenset, Mapping))
    if wrong or not hasattr(labels, "__iter__"):
        raise LabelError(
            f"{what} are a {type(labels).__name__} ({shown(labels)}), expected a list or an "
            "array of one label a sample, in the order of the points"
        )
    if getattr(labels, "ndim", 1) != 1:  # a table of pandas, say
        raise LabelError(f"{what} have {labels.ndim} axes, expected one: one label a sample")
    items = list(labels)
    array = np.empty(len(items), dtype=object)
    for k, item in enumerate(items):
        array[k] = item
    return array


def plain_labels(
    array: np.ndarray,  # (n,) of objects, strings or bytes
    name: str,
) -> list[Any]:  # all bool, all int, or all str
    """Return labels as Python values of one kind; bytes are decoded, integral floats are ints."""
    items: list[Any] = [
        v.item() if isinstance(v, (np.generic, Tensor)) and v.ndim == 0 else v
        for v in array.tolist()
    ]
    refuse_missing(sum(map(is_missing, items)), len(items), name)
    kinds: dict[type, int] = {}  # the first row of each
    for row, item in enumerate(items):
        kind = next((k for k in (str, bytes) if isinstance(item, k)), None)
        if kind is None and not isinstance(item, (bool, int, float, np.floating)):
            raise LabelError(
                f"{name}: label {row} is a {type(item).__name__} ({shown(item)}); "
                "classes must be integers or strings, one value a sample"
            )
        kinds.setdefault(kind or int, row)
    if len(kinds) > 1:
        (one, first), (other, second) = list(kinds.items())[:2]
        raise LabelError(
            f"{name}: labels mix {one.__name__} (label {first}: {shown(items[first])}) and "
            f"{other.__name__} (label {second}: {shown(items[second])}); use one kind"
        )
    if bytes in kinds:
        for row, item in enumerate(items):
            try:
                items[row] = item.decode("utf-8")
            except UnicodeDecodeError as problem:
                raise LabelError(
                    f"{name}: label {row} is {shown(item)}, which is no UTF-8; "
                    "decode the labels to str before"
                ) from problem
    elif int in kinds and not all(isinstance(v, bool) for v in items):
        for row, item in enumerate(items):
            if isinstance(item, int):
                if abs(item) > INT64_MAX:
                    raise LabelError(
                        f"{name}: label {row} is {shown(item)}, beyond int64; "
                        "renumber the classes or pass them as strings"
                    )
                items[row] = int(item)
            else:
                items[row] = int(integral(np.array([item]), name, row)[0])
    return items


def integral(
    array: np.ndarray,  # (n,) floats, none missing
    name: str,
    offset: int = 0,  # row of the first, for the message
) -> np.ndarray:  # (n,) int64
    """Return integral floats as integers.

    Raises:
        LabelError: an infinite or fractional label, or one that floats no longer tell apart.
    """
    bad = ~np.isfinite(array) | (array != np.round(array))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise LabelError(
            f"{name}: label {row + offset} is {float(array[row])!r}; "
            "classes must be integers or strings"
        )
    bad = np.abs(array) >= EXACT
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise LabelError(
            f"{name}: label {row + offset} is {float(array[row])!r}, a float of size 2^53 or more "
            "that may have lost digits; pass the classes as integers or strings"
        )
    return array.astype(np.int64)


def check_names(
    class_names: Any,  # what the caller passed
    name: str,
) -> tuple[str, ...]:
    """Return the names of the classes.

    Raises:
        LabelError: no sequence, an entry that is no string, a name given twice.
    """
    plain = isinstance(class_names, (str, bytes, set, frozenset, Mapping))
    if plain or not (hasattr(class_names, "__len__") and hasattr(class_names, "__getitem__")):
        raise LabelError(
            f"{name}: class_names is a {type(class_names).__name__} ({shown(class_names)}), "
            "expected a list of strings: the names of the labels 0, 1, 2, ..."
        )
    first: dict[str, int] = {}
    for k, item in enumerate(class_names):
        if not isinstance(item, str):
            raise LabelError(f"{name}: class name {k} is {shown(item)}, expected a string")
        if item in first:
            raise LabelError(
                f"{name}: class names {first[item]} and {k} are both {shown(str(item))}; "
                "names must be unique"
            )
        first[str(item)] = k
    return tuple(first)


def class_ids(
    labels: Any,  # (n,) integers, strings, bools or integral floats
    n: int,
    name: str,
    class_names: Sequence[str] | None = None,  # names of the label values 0..len-1
) -> tuple[Tensor, tuple[str, ...]]:  # (n,) int64 ids 0..V-1 and the V names of present classes
    """Return class ids, numbered in sorted order of the labels that occur, and their names.

    Raises:
        LabelError: wrong length, missing labels (-1, NaN, None), labels of no or of mixed kinds,
            names that do not reach.
    """
    array = label_array(labels, name)
    if array.ndim != 1 or len(array) != n:
        raise LabelError(f"{name}: labels have shape {array.shape}, expected ({n},): one a sample")
    if array.dtype.kind not in "biufOUST":
        raise LabelError(
            f"{name}: labels have dtype {array.dtype}; expected integers or strings, one kind"
        )
    if array.dtype.kind in "OUST":
        items = plain_labels(array, name)
        if isinstance(items[0], str):
            # no array of strings, which would drop the NULs at their ends
            values: list[Any] = sorted(set(items))
            number = {value: k for k, value in enumerate(values)}
            ids = np.array([number[item] for item in items], dtype=np.int64)
        else:
            array = np.array(items)
    elif array.dtype.kind in "if":
        refuse_missing(int((np.isnan(array) | (array == -1)).sum()), n, name)
    if array.dtype.kind == "f":
        array = integral(array, name)
    if array.dtype.kind == "u" and array.max() > INT64_MAX:
        row = int(np.flatnonzero(array > INT64_MAX)[0])
        raise LabelError(
            f"{name}: label {row} is {int(array[row])}, beyond int64; "
            "renumber the classes or pass them as strings"
        )
    numbers = array.dtype.kind in "biu"
    if numbers:
        unique, ids = np.unique(array, return_inverse=True)
        values = unique.tolist()
    if class_names is None:
        names = tuple(str(v) for v in values)
    else:
        known = check_names(class_names, name)
        if not numbers or values[0] < 0 or values[-1] >= len(known):
            raise LabelError(
                f"{name}: {len(known)} class names cannot name the labels "
                f"{values[0]!r}..{values[-1]!r}; labels must be integers 0..{len(known) - 1}"
            )
        names = tuple(known[int(v)] for v in values)
    return torch.from_numpy(ids.reshape(-1).astype(np.int64)), names
