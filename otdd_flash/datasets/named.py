"""Datasets that have a name, from the first place that has their files."""

from __future__ import annotations

import os

from otdd_flash.datasets.idx_sets import find_idx, foreign_files, load_idx
from otdd_flash.datasets.mini import load_digits, load_mini
from otdd_flash.datasets.places import Place, search_places
from otdd_flash.datasets.registry import (
    REGISTRY,
    ArchiveEntry,
    DigitsEntry,
    IdxEntry,
    MiniEntry,
    TorchvisionEntry,
    check_split,
    find_entry,
    plain,
)
from otdd_flash.datasets.torchvision_sets import download, find_archive, load_archive
from otdd_flash.errors import DatasetNotFoundError
from otdd_flash.types import LabelledDataset


def is_known(text: str) -> bool:
    """Say whether a spec is a known name; with a separator in it, it is a path."""
    apart = os.sep in text or text.startswith("~")
    return not apart and plain(text) in map(plain, REGISTRY)


def load_named(name: str, data_root: str | os.PathLike[str] | None, split: str) -> LabelledDataset:
    """Load a split of a known dataset.

    Files are looked for below ``data_root``, then ``OTDD_DATA``, the checkout's ``data`` folder,
    the user cache and ``/usr/share/datasets``; a dataset that is in none of them is downloaded
    into the cache. A ``data_root`` without the dataset's files is no error: the provenance says
    which place they came from. Files that are there but damaged are an error, never skipped.

    Raises:
        DatasetNotFoundError: unknown name, no such data root, or no files and no download.
        DataError: files that are damaged or do not belong together.
        SettingsError: a split that it has not.
    """
    entry = find_entry(name)
    check_split(entry, split)
    places = search_places(data_root)
    if isinstance(entry, MiniEntry):
        return load_mini(entry)
    if isinstance(entry, DigitsEntry):
        return load_digits(entry)
    assert isinstance(entry, TorchvisionEntry)
    for place in places:
        dataset = _load_from(place, entry, split)
        if dataset is not None:
            return dataset
    try:
        dataset = _load_from(download(entry, split), entry, split)
        reason = "the download lacks the files"
    except DatasetNotFoundError as error:
        dataset, reason = None, str(error)
    if dataset is None:
        raise DatasetNotFoundError(
            f"{entry.name}: no {_file_names(entry, split)} in "
            f"{', '.join(_describe(place, entry, split) for place in places)}, and {reason}; "
            f"give the folder as data_root (--data-root), or use {_substitute(entry)}, which "
            "needs no files"
        )
    return dataset


def _load_from(place: Place, entry: TorchvisionEntry, split: str) -> LabelledDataset | None:
    if isinstance(entry, IdxEntry):
        pair = find_idx(place, entry, split)
        return None if pair is None else load_idx(pair, entry, split)
    assert isinstance(entry, ArchiveEntry)
    root = find_archive(place, entry, split)
    return None if root is None else load_archive(root, place, entry, split)


def _describe(place: Place, entry: TorchvisionEntry, split: str) -> str:
    if isinstance(entry, IdxEntry) and foreign_files(place, entry, split):
        return f"{place.root} ({place.why}; the files there are another dataset's)"
    return f"{place.root} ({place.why})"


def _file_names(entry: TorchvisionEntry, split: str) -> str:
    if isinstance(entry, IdxEntry):
        return f"{dict(entry.images)[split]}[.gz] and {dict(entry.labels)[split]}[.gz]"
    assert isinstance(entry, ArchiveEntry)
    return dict(entry.markers)[split]


def _substitute(entry: TorchvisionEntry) -> str:
    return "fashion-mnist-mini" if entry.name == "fashion-mnist" else "mnist-mini"
