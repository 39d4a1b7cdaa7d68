"""Arrays in files: npz, npy, safetensors, and what torch.save wrote of plain tensors."""

from __future__ import annotations

import json
import pickle
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.datasets.named_arrays import Archive, raw_arrays, sample_rows, tidy_labels
from otdd_flash.datasets.raw import RawDataset, check_file, damaged
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.embed.written import METADATA
from otdd_flash.errors import DataError, DatasetNotFoundError, OTDDError, SettingsError
from otdd_flash.samples import Arrays

ARRAYS = (".npz", ".npy", ".safetensors", ".pt", ".pth")
TORCH = (b"PK", b"\x80")
# first bytes of files; of torch's: a zip archive, or a pickle before torch 1.6
STARTS = {".npz": (b"PK",), ".npy": (b"\x93NUMPY",), ".pt": TORCH, ".pth": TORCH}


def read_array_file(path: Path, settings: LoadSettings, label: str | None) -> RawDataset:
    """Read a file of arrays; npy and safetensors files are mapped into memory.

    Raises:
        DatasetNotFoundError, DataError: no such file, damaged, or holding Python objects.
        LabelError: labels that are not there.
    """
    kind = path.suffix.lower()
    if not check_file(path).startswith(STARTS.get(kind, (b"",))):
        raise damaged(path, kind[1:], ValueError("it starts with other bytes"))
    read = {".npz": _npz, ".npy": _npy, ".safetensors": _safetensors}.get(kind, _torch)
    try:
        found = read(path)
        if isinstance(found, Archive):
            return raw_arrays(found, path.name, settings, label, source=str(path))
        return _lone(found, path, settings, label)
    except OTDDError:
        raise
    except (zipfile.BadZipFile, zlib.error, OSError, ValueError, EOFError, KeyError) as error:
        # as numpy says when it reads them, and when it maps them
        if "Object arrays" in str(error) or "Python objects" in str(error):
            raise DataError(
                f"{path}: holds Python objects, which are not read from files because they can "
                "run code; save arrays of numbers or strings"
            ) from error
        raise damaged(path, kind[1:], error) from error


def _npz(path: Path) -> Archive:
    archive = np.load(path, allow_pickle=False)
    return Archive(tuple(archive.files), archive.__getitem__)


def _npy(path: Path) -> np.ndarray:
    # private pages: torch may write into the array, the file stays as it is
    return np.load(path, mmap_mode="c", allow_pickle=False)


def _safetensors(path: Path) -> Archive:
    from safetensors import SafetensorError, safe_open

    try:
        file = safe_open(path, framework="pt")
        header = json.loads((file.metadata() or {}).get(METADATA, "{}"))
        kinds = {"class_names": list, "provenance": dict}
        if any(not isinstance(header.get(key, kind()), kind) for key, kind in kinds.items()):
            raise ValueError("its header is not as it was written")
        return Archive(tuple(file.keys()), file.get_tensor, header)
    except (SafetensorError, AttributeError) as error:
        raise damaged(path, "safetensors", error) from error


def _torch(path: Path) -> Any:
    try:
        # pickles of before torch 1.6 cannot be mapped
        content = torch.load(
            path, map_location="cpu", weights_only=True, mmap=zipfile.is_zipfile(path)
        )
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path}: holds other objects than tensors, which are not read because they can run "
            "code; save a dict of tensors: torch.save({'points': x, 'labels': y}, path)"
        ) from error
    except Exception as error:  # a foreign file fails in as many ways as it likes
        raise damaged(path, "torch", error) from error
    if isinstance(content, Mapping):
        tensors = {str(k): v for k, v in content.items() if isinstance(v, (Tensor, list))}
        return Archive(tuple(tensors), tensors.__getitem__)
    if isinstance(content, (tuple, list)) and len(content) == 2:
        if all(isinstance(part, Tensor) for part in content) and content[1].ndim == 1:
            return Archive(("points", "labels"), {"points": content[0], "labels": content[1]}.get)
    if isinstance(content, Tensor):
        return content
    raise DataError(
        f"{path}: holds a {type(content).__name__}, expected a tensor, a pair (points, labels), or "
        "a dict of tensors"
    )


def _lone(points: Any, path: Path, settings: LoadSettings, label: str | None) -> RawDataset:
    """Return the dataset of a file with one array; its labels are in another file."""
    if settings.split != "train":
        raise SettingsError(
            f"{path}: one array has no split {settings.split!r}; give the file of that split"
        )
    if settings.features is not None:
        raise DataError(f"{path}: holds one array, features does not apply; drop it")
    points, labels = sample_rows(points, path.name), None
    if label is not None:
        beside = [p for p in (path.parent / label, Path(label).expanduser()) if p.is_file()]
        if not beside or beside[0].suffix != ".npy":
            what = "is no .npy file" if beside else "is not there"
            raise DatasetNotFoundError(
                f"{path}: its labels {label} {what}; give a .npy file of one label a sample"
            )
        check_file(beside[0])
        labels = np.load(beside[0], allow_pickle=False)
    return RawDataset(
        path.name,
        Arrays.of(points),
        None if labels is None else tidy_labels(labels, len(points), path.name),
        provenance={"source": str(path), "label": label},
    )
