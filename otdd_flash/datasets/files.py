"""Datasets by path: which reader a file or folder needs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from otdd_flash.datasets.arrays import ARRAYS, read_array_file
from otdd_flash.datasets.columns import raw_table
from otdd_flash.datasets.folders import read_folder
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.datasets.tables import TABLES, read_table
from otdd_flash.errors import DataError, SettingsError

SUFFIXES = (*TABLES, *ARRAYS)


def read_path(path: Path, settings: LoadSettings, label: str | None) -> RawDataset:
    """Read a file by its suffix, or a folder by what it holds.

    Raises:
        DataError: a suffix that is not understood, or content that is not what it promises.
        SettingsError: a split of a file that has none.
    """
    if path.is_dir():
        return read_folder(path, settings, label)
    name = path.name.lower()
    if not name.endswith(SUFFIXES):
        raise DataError(f"{path}: no known kind of file, expected one of {', '.join(SUFFIXES)}")
    if name.endswith(ARRAYS):
        return read_array_file(path, settings, label)
    if settings.split != "train":
        raise SettingsError(
            f"{path}: one file has no split {settings.split!r}; give the file of that split"
        )
    frame, said = read_table(path)
    raw = raw_table(frame, path.name, settings, label, path.parent, source=str(path))
    return replace(raw, announced=(said, *raw.announced)) if said else raw
