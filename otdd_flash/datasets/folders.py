"""Folders: class sub-folders of images or texts, table files, and what ``datasets`` saved."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from otdd_flash.datasets.columns import IMAGE_SUFFIXES, raw_table
from otdd_flash.datasets.frames import ParquetFrame, TableFrame
from otdd_flash.datasets.hub import raw_hugging_face, saved_dataset
from otdd_flash.datasets.idx_sets import find_idx, load_idx
from otdd_flash.datasets.places import Place, entries_of
from otdd_flash.datasets.raw import RawDataset, check_file, raw_of
from otdd_flash.datasets.registry import IdxEntry
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.datasets.tables import no_utf8, read_arrow, read_table
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.samples import Images, Samples, Texts

SPLITS = {
    "train": "train", "training": "train", "test": "test", "val": "validation",
    "valid": "validation", "validation": "validation", "dev": "validation",
}  # fmt: skip
SPLIT_IN_NAME = re.compile(rf"(?:^|[-_.])({'|'.join(SPLITS)})(?=[-_.]|$)", re.IGNORECASE)
SHARDS = (".parquet", ".arrow")
MANIFESTS = ("metadata.csv", "metadata.jsonl", "metadata.parquet")


def read_folder(path: Path, settings: LoadSettings, label: str | None) -> RawDataset:
    """Read a folder by what it holds.

    Raises:
        DataError: nothing that is understood.
        SettingsError: a split that it has not.
    """
    names = [name for name in entries_of(path) if not name.startswith(".")]
    if "state.json" in names or "dataset_dict.json" in names:
        dataset = saved_dataset(path, settings.split)
        return raw_hugging_face(dataset, _name(path), settings, label, source=str(path))
    for beside in (path, path / "data"):
        shards = [n for n in entries_of(beside) if n.endswith(SHARDS) and n not in MANIFESTS]
        if shards:
            return _read_shards(beside, shards, path, settings, label)
    entry = IdxEntry(_name(path), shared_names=False)
    place = Place(path, "folder", explicit=True)
    if settings.split in entry.splits and (pair := find_idx(place, entry, settings.split)):
        return raw_of(load_idx(pair, entry, settings.split))
    root, folders = path, [n for n in names if (path / n).is_dir()]
    splits = {n for n in folders if n.lower() in SPLITS}
    if splits and splits == set(folders):
        root = path / _chosen_split(splits, path, settings.split)
        names = [name for name in entries_of(root) if not name.startswith(".")]
    elif settings.split != "train":
        raise SettingsError(f"{path}: has no split {settings.split!r}; it is one set of samples")
    provenance: dict[str, Any] = {"source": str(root)}
    if root != path:
        provenance["split"] = settings.split
    for manifest in MANIFESTS:
        if manifest in names:
            frame, _ = read_table(root / manifest)
            return raw_table(frame, _name(path), settings, label, root, **provenance)
    return _read_classes(root, _name(path), **provenance)


def _name(path: Path) -> str:
    return path.resolve().name or str(path)


def _chosen_split(splits: set[str], path: Path, asked: str) -> str:
    """Return the name that stands for a split; val, valid, validation and dev are one."""
    if asked in splits:
        return asked
    same = [n for n in sorted(splits) if SPLITS[n.lower()] == SPLITS.get(asked.lower(), asked)]
    if not same:
        raise SettingsError(
            f"{path}: has no split {asked!r}; it has {', '.join(sorted(splits))}: choose one with "
            "split (--split)"
        )
    return same[0]


def _read_shards(
    place: Path, shards: list[str], path: Path, settings: LoadSettings, label: str | None
) -> RawDataset:
    """Read the Parquet or Arrow files of one split as one table."""
    by_split: dict[str, list[str]] = {}
    for shard in shards:
        match = SPLIT_IN_NAME.search(shard)
        by_split.setdefault(match[1].lower() if match else "", []).append(shard)
    named = set(by_split) - {""}
    if named:
        shards = by_split[_chosen_split(named, path, settings.split)]
    elif settings.split != "train":
        raise SettingsError(f"{path}: its files name no splits, there is no {settings.split!r}")
    paths = [place / shard for shard in shards]
    if len({p.suffix for p in paths}) > 1:
        raise DataError(f"{path}: holds Parquet and Arrow files of one split; give one of them")
    frame = ParquetFrame(paths) if paths[0].suffix == ".parquet" else _joined(paths)
    more = {"files": len(paths), **({"split": settings.split} if named else {})}
    return raw_table(frame, _name(path), settings, label, path, source=str(place), **more)


def _joined(paths: Sequence[Path]) -> TableFrame:
    import pyarrow as pa

    tables = [read_arrow(path).table for path in paths]
    try:
        return TableFrame(pa.concat_tables(tables))
    except pa.ArrowInvalid as error:
        raise DataError(f"{paths[0].parent}: its Arrow files are no one table ({error})") from error


def _read_classes(root: Path, name: str, **provenance: Any) -> RawDataset:
    """Read class sub-folders of images or of texts, or a folder of images without classes."""
    classes = [n for n in entries_of(root) if (root / n).is_dir() and not n.startswith(".")]
    found = {n: _files_below(root / n) for n in classes} or {"": _files_below(root)}
    everything = [file for files in found.values() for file in files]
    pictures = [file for file in everything if file.lower().endswith(IMAGE_SUFFIXES)]
    writings = [file for file in everything if file.lower().endswith(".txt")]
    kind, suffixes = ("images", IMAGE_SUFFIXES) if pictures else ("texts", (".txt",))
    if not pictures and not writings:
        raise DataError(
            f"{root}: no images or .txt files in class sub-folders, no Parquet, Arrow, IDX or "
            "metadata files, nothing that datasets.save_to_disk wrote; give one of these, or a file"
        )
    kept = {n: [f for f in files if f.lower().endswith(suffixes)] for n, files in found.items()}
    names = tuple(n for n in classes if kept[n])
    said = []
    other = len(everything) - sum(map(len, kept.values()))
    if other:
        said.append(f"{other:,} files left out that are no {kind}")
    if len(names) < len(classes):
        lacking = ", ".join(n for n in classes if not kept[n])
        said.append(f"folders left out that hold no {kind}: {lacking}")
    if classes and any(n.lower().endswith(suffixes) for n in entries_of(root)):
        said.append(f"{kind} beside the class folders left out")
    paths = [root / n / file for n in (names or ("",)) for file in kept[n]]
    labels = np.repeat(np.arange(len(names)), [len(kept[n]) for n in names]) if names else None
    rows = np.arange(len(paths))
    samples: Samples
    if kind == "images":
        samples = Images(lambda chosen: [paths[k] for k in chosen], rows)
    else:
        samples = Texts(lambda chosen: [_text_of(paths[k]) for k in chosen], rows)
    raw = RawDataset(name, samples, labels, names or None, dict(provenance))
    return replace(raw, announced=tuple(said))


def _files_below(folder: Path) -> list[str]:
    """Return the files below a folder, hidden ones aside, in sorted order.

    Links are followed, but not back to where they lie: each folder is gone through once.
    """
    found = []
    real = folder.resolve()
    seen = {real, *real.parents}
    for here, below, files in os.walk(folder, onerror=_unreadable, followlinks=True):
        inner = {n: Path(here, n).resolve() for n in sorted(below) if not n.startswith(".")}
        below[:] = [n for n, target in inner.items() if target not in seen]
        seen.update(inner.values())
        inside = os.path.relpath(here, folder)
        found += [os.path.join(inside, f) for f in sorted(files) if not f.startswith(".")]
    return found


def _unreadable(error: OSError) -> None:
    raise DataError(
        f"{error.filename}: cannot be read ({error.strerror}); mend its permissions"
    ) from error


def _text_of(path: Path) -> str:
    check_file(path)
    try:
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise no_utf8(path) from error
