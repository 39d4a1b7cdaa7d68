"""Datasets of two IDX files a split: finding the files and loading them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from otdd_flash.datasets.idx import REPAIR, IdxFile, read_idx
from otdd_flash.datasets.places import Place, entries_of, named_folders
from otdd_flash.datasets.registry import REGISTRY, IdxEntry, plain
from otdd_flash.errors import DataError
from otdd_flash.types import LabelledDataset

# sha256 of the uncompressed label files as published: tells whose files lie in a bare folder
KNOWN_LABELS = {
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5": "mnist",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2": "mnist",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9": "fashion-mnist",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34": "fashion-mnist",
}


@dataclass(frozen=True)
class IdxPair:
    """The two files of a split and the place where they were found."""

    images: Path
    labels: Path
    place: Place
    identity: str | None = None  # doubt whether these are the files of the dataset asked for


def find_idx(place: Place, entry: IdxEntry, split: str) -> IdxPair | None:
    """Find the image and label files of a split below a root.

    Folders named like the dataset come first (``<root>/mnist``, ``<root>/MNIST/raw``, any case
    and any of ``-`` and ``_``), then the root itself. MNIST, Fashion-MNIST and KMNIST use the
    same file names, so files in the root itself are taken only when they are known to be the
    dataset's by the checksum of their labels, or when the root is named like the dataset, or
    when the user named the root, nothing says that they are another dataset's, and the doubt is
    noted in ``identity``.

    Raises:
        DataError: one of the two files is there without the other, or a folder is unreadable.
    """
    for folder in _folders(place.root, entry, split):
        images = _match(folder, dict(entry.images)[split])
        labels = _match(folder, dict(entry.labels)[split])
        bare = folder == place.root
        if images is None or labels is None:
            if (images or labels) and (place.explicit or not bare):
                there, stem = (images, entry.labels) if images else (labels, entry.images)
                raise DataError(
                    f"{there}: found without {dict(stem)[split]}[.gz] beside it; {entry.name} "
                    "needs both, put the other one there or delete this one"
                )
            continue
        if not bare or not entry.shared_names:
            return IdxPair(images, labels, place)
        accepted, identity = _judge(place, entry, split, labels)
        if accepted:
            return IdxPair(images, labels, place, identity)
    return None


def _folders(root: Path, entry: IdxEntry, split: str) -> Iterator[Path]:
    for folder in named_folders(root, entry.folders(split)):
        yield folder
        yield folder / "raw"
        yield folder / entry.torchvision_class / "raw"
    yield root


def _match(folder: Path, stem: str) -> Path | None:
    """Return the file of a stem, any ``-`` or ``.`` between its parts, plain before gzipped."""
    pattern = re.compile("[-.]".join(map(re.escape, stem.split("-"))) + r"(\.gz)?", re.IGNORECASE)
    names = [name for name in entries_of(folder) if pattern.fullmatch(name)]
    # a folder may carry the name of a file that an archive tool unpacked into it
    files = [folder / name for name in sorted(names, key=len) if (folder / name).is_file()]
    return files[0] if files else None


def _judge(
    place: Place, entry: IdxEntry, split: str, labels: Path
) -> tuple[bool, str | None]:  # whether to take the files, and the doubt that is left
    """Decide whether files in a bare root belong to a dataset whose file names others share."""
    owner = KNOWN_LABELS.get(read_idx(labels).sha256)
    if owner is not None:
        return owner == entry.name, None
    root = place.root.resolve()
    name = plain(root.parent.name if root.name == "raw" else root.name)
    if name in map(plain, entry.folders(split)):
        return True, None
    others = [e for e in REGISTRY.values() if isinstance(e, IdxEntry) and e.shared_names]
    if any(name in map(plain, other.folders(split)) for other in others):
        return False, None
    doubt = f"taken for {entry.name} because the folder was given; its labels are not known"
    return place.explicit, doubt


def foreign_files(place: Place, entry: IdxEntry, split: str) -> bool:
    """Return whether a root that has not the dataset holds files of its file names all the same."""
    return _match(place.root, dict(entry.images)[split]) is not None


def load_idx(pair: IdxPair, entry: IdxEntry, split: str) -> LabelledDataset:
    """Load a split as uint8 points (n, rows * columns) with the images upright.

    EMNIST stores its images column by column; they are transposed here so that they look like
    MNIST's.

    Raises:
        DataError: a file is damaged, holds something else, or the two do not belong together.
    """
    images = read_idx(pair.images)
    values = images.values
    if values.dtype != np.uint8 or values.ndim != 3:
        raise DataError(
            f"{images.path}: holds {_describe(images)}, expected uint8 images "
            f"(n, rows, columns); {REPAIR}"
        )
    if values.size == 0:
        raise DataError(f"{images.path}: holds no images; {REPAIR}")
    file = read_idx(pair.labels)
    labels = _check_labels(file, entry)
    if len(labels) != len(values):
        raise DataError(
            f"{images.path}: {len(values):,} images, but {file.path} holds {len(labels):,} labels; "
            "the two files do not belong together, fetch both again"
        )
    if entry.stored_transposed:
        values = np.ascontiguousarray(values.transpose(0, 2, 1))
    provenance = {
        "source": str(pair.images),
        "place": pair.place.why,
        "split": split,
        "sha256": {"images": images.sha256, "labels": file.sha256},
    }
    if entry.licence:
        provenance["licence"] = entry.licence
    if entry.stored_transposed:
        provenance["orientation"] = "upright: transposed from the file"
    if pair.identity:
        provenance["identity"] = pair.identity
    return LabelledDataset(
        values,
        labels,
        name=entry.name,
        class_names=entry.class_names,
        provenance=provenance,
    )


def _check_labels(file: IdxFile, entry: IdxEntry) -> np.ndarray:  # (n,) int64
    """Return the class of each sample; QMNIST's label rows start with it."""
    columns = 2 if dict(entry.labels)["train"].endswith("idx2-int") else 1
    if file.values.dtype.kind not in "iu" or file.values.ndim != columns or file.values.size == 0:
        raise DataError(f"{file.path}: holds {_describe(file)}, expected labels; {REPAIR}")
    labels = file.values if columns == 1 else file.values[:, 0]
    # a folder of files without a name says nothing of its classes
    classes = len(entry.class_names or range(2**31))
    if labels.min() < 0 or labels.max() >= classes:
        bad = int(labels.max()) if labels.max() >= classes else int(labels.min())
        raise DataError(
            f"{file.path}: label {bad} is outside 0..{classes - 1} of {entry.name}; {REPAIR}"
        )
    return labels.astype(np.int64)


def _describe(file: IdxFile) -> str:
    return f"{file.values.dtype} values of shape {file.values.shape}"
