"""Results as JSON and as npz files without pickle: one layout for all of them.

A result is a frozen dataclass. Its tensors become arrays of the file, everything else becomes JSON
text in the 0-d array ``header``, and the types of its fields say how to read that back.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
import typing
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.errors import DataError, OTDDError
from otdd_flash.files import written_whole

# layout of the npz file; raised when a reader of the old layout would misread the new one
FORMAT = 1
# the kind of files that name none: those of the first version
FIRST_KIND = "distance"


def plain(value: Any, finite: bool = True) -> Any:
    """Return ``value`` in JSON's own types; ``finite`` turns NaN and infinity into None."""
    if isinstance(value, Tensor):
        value = value.detach().cpu().numpy()
    if isinstance(value, (np.ndarray, np.generic)):
        value = value.tolist()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        # not asdict: it deep-copies tensors
        return {f.name: plain(getattr(value, f.name), finite) for f in _kept(type(value))}
    if isinstance(value, dict):
        return {str(key): plain(item, finite) for key, item in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(item, finite) for item in value]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) or not finite else None
    return str(value)


def _kept(kind: type) -> list[dataclasses.Field[Any]]:
    """Return the fields that a file keeps: not those that need the points."""
    return [f for f in dataclasses.fields(kind) if f.compare]


def _arrays_of(kind: type) -> list[str]:
    hints = typing.get_type_hints(kind)
    return [
        f.name for f in _kept(kind) if Tensor in (hints[f.name], *typing.get_args(hints[f.name]))
    ]


def write_archive(
    result: Any,  # a dataclass
    kind: str,  # what it is, for the reader
    path: str | Path,
) -> None:
    """Write a result as an npz file.

    Raises:
        OSError: the file cannot be written; what was there before stays.
    """
    names = _arrays_of(type(result))
    tensors = {k: getattr(result, k) for k in names if getattr(result, k) is not None}
    arrays = {name: tensor.detach().cpu().numpy() for name, tensor in tensors.items()}
    header = {"format": FORMAT, "kind": kind} | {
        f.name: plain(getattr(result, f.name), False)
        for f in _kept(type(result))
        if f.name not in arrays
    }
    with written_whole(path) as file:
        np.savez_compressed(file, header=np.array(json.dumps(header)), **arrays)


def read_archive(
    path: str | Path,
    kinds: Mapping[str, type],  # the dataclass of each kind
) -> Any:
    """Read a result that :func:`write_archive` wrote.

    Raises:
        DataError: no such file, a file that is not a whole result, one of another version.
    """
    try:
        with np.load(path, allow_pickle=False) as archive:
            header = json.loads(str(archive["header"]))
            arrays = {k: torch.from_numpy(archive[k]) for k in archive.files if k != "header"}
            version, kind = header.pop("format", None), header.pop("kind", FIRST_KIND)
    except FileNotFoundError as error:
        raise DataError(f"{path}: no such file") from error
    except (
        OSError,
        ValueError,
        KeyError,
        TypeError,
        EOFError,
        AttributeError,
        zipfile.BadZipFile,
    ) as error:
        raise DataError(
            f"{path}: not a whole result of otdd-flash; write one with `otdd compute --output`"
        ) from error
    if version != FORMAT:
        raise DataError(
            f"{path}: result file of format {version}, this version of otdd-flash reads {FORMAT}"
        )
    try:
        return revived(kinds[kind], {**header, **arrays})
    except (KeyError, TypeError, ValueError, AttributeError, OTDDError) as error:
        raise DataError(
            f"{path}: written by another version of otdd-flash ({error}); compute it again"
        ) from error


def revived(hint: Any, value: Any) -> Any:
    """Turn JSON's lists and objects back into what a type hint says."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        hints = typing.get_type_hints(hint)
        return hint(**{name: revived(hints[name], item) for name, item in dict(value).items()})
    origin, inside = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None:
            return None
        nested = [h for h in inside if dataclasses.is_dataclass(h) or typing.get_origin(h)]
        return revived(nested[0], value) if nested else value
    if origin is tuple:
        each = [inside[0]] * len(value) if inside[-1] is Ellipsis else inside
        return tuple(revived(h, item) for h, item in zip(each, value, strict=True))
    if origin is dict:
        return {key: revived(inside[1], item) for key, item in value.items()}
    return value
