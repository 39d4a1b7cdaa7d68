"""Loading a dataset by name from the first place that has it."""

from __future__ import annotations

import os
from typing import Any

from otdd_flash.datasets.idx_sets import find_idx, foreign_files, load_idx
from otdd_flash.datasets.mini import load_digits, load_mini
from otdd_flash.datasets.places import Place, search_places
from otdd_flash.datasets.registry import (
    ArchiveEntry,
    DigitsEntry,
    IdxEntry,
    MiniEntry,
    TorchvisionEntry,
    check_split,
    find_entry,
)
from otdd_flash.datasets.sampling import check_sampling, sample
from otdd_flash.datasets.torchvision_sets import download, find_archive, load_archive
from otdd_flash.errors import DatasetNotFoundError
from otdd_flash.types import LabelledDataset


def load(
    spec: str | LabelledDataset,
    *,
    data_root: str | os.PathLike[str] | None = None,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
) -> LabelledDataset:
    """Load a dataset by name, or sample one that is loaded.

    Files are looked for below ``data_root``, then ``OTDD_DATA``, the checkout's ``data`` folder,
    the user cache and ``/usr/share/datasets``; a dataset that is in none of them is downloaded
    into the cache. A ``data_root`` without the dataset's files is no error: the provenance says
    which place they came from. Files that are there but damaged are an error, never skipped.

    Args:
        spec: a name of ``known_names()``, or a dataset, for which only the sampling applies.
        data_root: folder with dataset files; must exist when given.
        split: "train", "test", or another split that the dataset has.
        max_samples: keep at most this many, stratified by class, in their original order; the
            draw depends on the dataset and the seed alone. None keeps all.
        seed: of the draw, an integer >= 0.

    Raises:
        DatasetNotFoundError: unknown name, no such data root, or no files and no download.
        DataError: files that are damaged or do not belong together.
        SettingsError: a split, max_samples or seed that cannot be.
    """
    # a bad number must not cost a download
    check_sampling(max_samples, seed)
    dataset = spec if isinstance(spec, LabelledDataset) else _load_named(spec, data_root, split)
    return sample(dataset, max_samples, seed)


def _load_named(name: Any, data_root: str | os.PathLike[str] | None, split: str) -> LabelledDataset:
    if not isinstance(name, str):
        raise DatasetNotFoundError(
            f"cannot load {type(name).__name__}; expected a dataset name or a LabelledDataset"
        )
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
            f"give the folder as data root, or use {_substitute(entry)}, which needs no files"
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
