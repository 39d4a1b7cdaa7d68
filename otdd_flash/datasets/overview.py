"""What is known by name and where it lies, and what a dataset holds, for people."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from otdd_flash.datasets.idx_sets import find_idx
from otdd_flash.datasets.mini import PACKAGE
from otdd_flash.datasets.places import Place, search_places
from otdd_flash.datasets.registry import REGISTRY, ArchiveEntry, Entry, IdxEntry, MiniEntry
from otdd_flash.datasets.torchvision_sets import find_archive
from otdd_flash.errors import DataError
from otdd_flash.types import LabelledDataset

# samples whose sums are taken at once
CHUNK = 4096


@dataclass(frozen=True)
class Known:
    """A split of a dataset that has a name."""

    name: str
    split: str
    where: str  # path of its files, what carries it, or why its files are of no use
    size: int | None  # bytes of its files; None: not there, ``load`` would download them
    licence: str | None


def known_sets(data_root: str | os.PathLike[str] | None = None) -> Iterator[Known]:
    """Yield every split that has a name and where it lies; nothing is read or downloaded.

    Raises:
        DatasetNotFoundError: ``data_root`` is given and is not a folder.
    """
    places = search_places(data_root)
    for entry in REGISTRY.values():
        for split in entry.splits:
            try:
                where, size = _found(places, entry, split)
            except DataError as error:
                where, size = str(error), None
            yield Known(entry.name, split, where, size, entry.licence)


def _found(places: tuple[Place, ...], entry: Entry, split: str) -> tuple[str, int | None]:
    if isinstance(entry, MiniEntry):
        with (files(PACKAGE) / entry.array_file).open("rb") as file:
            return "in the package", file.seek(0, os.SEEK_END)
    for place in places:
        if isinstance(entry, IdxEntry):
            pair = find_idx(place, entry, split)
            if pair is not None:
                size = pair.images.stat().st_size + pair.labels.stat().st_size
                return str(pair.images.parent), size
        elif isinstance(entry, ArchiveEntry):
            root = find_archive(place, entry, split)
            if root is not None:
                return str(root), _size_below(root, Path(dict(entry.markers)[split]))
        else:
            return "in scikit-learn", 0
    return "to be downloaded", None


def _size_below(root: Path, marker: Path) -> int:
    """Return the bytes of an archive: those of the marker's folder, or of the marker alone."""
    if len(marker.parts) == 1:
        return (root / marker).stat().st_size
    return sum(p.stat().st_size for p in (root / marker.parts[0]).rglob("*") if p.is_file())


def description(dataset: LabelledDataset) -> dict[str, Any]:
    """Return what a dataset holds, as plain values; moments in one streamed pass, in float64."""
    low, high, total, squares = float("inf"), float("-inf"), 0.0, 0.0
    for part in dataset.points.split(CHUNK):
        values = part.double()
        low, high = min(low, float(values.min())), max(high, float(values.max()))
        total += float(values.sum())
        squares += float((values * values).sum())
    entries = dataset.points.numel()
    mean = total / entries
    counts = dataset.labels.bincount(minlength=dataset.classes).tolist()
    return {
        "name": dataset.name,
        "samples": len(dataset),
        "features": dataset.dimension,
        "sample_shape": list(dataset.sample_shape),
        "dtype": str(dataset.points.dtype).removeprefix("torch."),
        "bytes": dataset.points.numel() * dataset.points.element_size(),
        "range": [low, high],
        "mean": mean,
        "deviation": max(0.0, squares / entries - mean * mean) ** 0.5,
        "classes": dict(zip(dataset.class_names, counts, strict=True)),
        "provenance": dataset.provenance,
    }
