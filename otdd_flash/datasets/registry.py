"""The datasets that have a name: their splits, files, classes and licences."""

from __future__ import annotations

import difflib
import string
from dataclasses import dataclass
from typing import Any

from otdd_flash.errors import DatasetNotFoundError, SettingsError

DIGITS = tuple(string.digits)
FASHION = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
KUZUSHIJI = ("o", "ki", "su", "tsu", "na", "ha", "ma", "ya", "re", "wo")
BYCLASS = tuple(string.digits + string.ascii_uppercase + string.ascii_lowercase)
# EMNIST joins the two cases of the letters whose cases look alike; these keep both
BYMERGE = tuple(string.digits + string.ascii_uppercase + "abdefghnqrt")
# the label 0 does not occur in the letters: they are numbered from 1
LETTERS = ("N/A", *string.ascii_lowercase)


@dataclass(frozen=True)
class Entry:
    """A dataset with a name; ``class_names`` name the label values 0, 1, 2, ..."""

    name: str
    splits: tuple[str, ...] = ("train", "test")
    class_names: tuple[str, ...] | None = None
    licence: str | None = None


@dataclass(frozen=True)
class MiniEntry(Entry):
    """A sample of a dataset that is embedded in the package."""

    array_file: str = ""  # inside otdd_flash_data


@dataclass(frozen=True)
class DigitsEntry(Entry):
    """The digits that come with scikit-learn."""


@dataclass(frozen=True)
class TorchvisionEntry(Entry):
    """A dataset that a class of torchvision downloads."""

    torchvision_class: str = ""
    arguments: tuple[tuple[str, Any], ...] = ()  # for every split
    split_argument: str = "train"  # "train" is a bool, any other one takes the split's name
    split_downloads: bool = False  # each split is a download of its own

    def keywords(self, split: str) -> dict[str, Any]:
        """Return the keyword arguments of torchvision's class for a split."""
        value: Any = split == "train" if self.split_argument == "train" else split
        return {**dict(self.arguments), self.split_argument: value}

    def cache_folder(self, split: str) -> str:
        """Return the folder of the user cache that one download fills."""
        folder = "emnist" if self.torchvision_class == "EMNIST" else self.name
        return f"{folder}-{split}" if self.split_downloads else folder

    def folders(self, split: str) -> tuple[str, ...]:
        """Return the folder names below a root that mean this dataset, the best first."""
        return self.name, self.cache_folder(split), self.torchvision_class


@dataclass(frozen=True)
class IdxEntry(TorchvisionEntry):
    """A dataset of two IDX files a split: images (n, rows, columns) and labels (n,) or (n, 8)."""

    images: tuple[tuple[str, str], ...] = (
        ("train", "train-images-idx3-ubyte"),
        ("test", "t10k-images-idx3-ubyte"),
    )
    labels: tuple[tuple[str, str], ...] = (
        ("train", "train-labels-idx1-ubyte"),
        ("test", "t10k-labels-idx1-ubyte"),
    )
    shared_names: bool = True  # other datasets use the same file names
    stored_transposed: bool = False  # the files hold the images column by column


@dataclass(frozen=True)
class ArchiveEntry(TorchvisionEntry):
    """A dataset that torchvision decodes; ``markers`` are files that show it is there."""

    markers: tuple[tuple[str, str], ...] = ()


def _emnist(split: str, class_names: tuple[str, ...]) -> IdxEntry:
    return IdxEntry(
        f"emnist-{split}",
        class_names=class_names,
        torchvision_class="EMNIST",
        arguments=(("split", split),),
        images=tuple((s, f"emnist-{split}-{s}-images-idx3-ubyte") for s in ("train", "test")),
        labels=tuple((s, f"emnist-{split}-{s}-labels-idx1-ubyte") for s in ("train", "test")),
        shared_names=False,
        stored_transposed=True,
    )


_ENTRIES: tuple[Entry, ...] = (
    IdxEntry("mnist", class_names=DIGITS, licence="CC BY-SA 3.0", torchvision_class="MNIST"),
    IdxEntry("fashion-mnist", class_names=FASHION, licence="MIT", torchvision_class="FashionMNIST"),
    IdxEntry("kmnist", class_names=KUZUSHIJI, licence="CC BY-SA 4.0", torchvision_class="KMNIST"),
    _emnist("letters", LETTERS),
    _emnist("balanced", BYMERGE),
    _emnist("byclass", BYCLASS),
    _emnist("bymerge", BYMERGE),
    _emnist("digits", DIGITS),
    _emnist("mnist", DIGITS),
    IdxEntry(
        "qmnist",
        class_names=DIGITS,
        torchvision_class="QMNIST",
        split_argument="what",
        split_downloads=True,
        images=tuple((s, f"qmnist-{s}-images-idx3-ubyte") for s in ("train", "test")),
        labels=tuple((s, f"qmnist-{s}-labels-idx2-int") for s in ("train", "test")),
        shared_names=False,
    ),
    ArchiveEntry(
        "usps",
        class_names=DIGITS,
        torchvision_class="USPS",
        split_downloads=True,
        markers=(("train", "usps.bz2"), ("test", "usps.t.bz2")),
    ),
    ArchiveEntry(
        "cifar10",
        torchvision_class="CIFAR10",
        markers=(
            ("train", "cifar-10-batches-py/data_batch_1"),
            ("test", "cifar-10-batches-py/test_batch"),
        ),
    ),
    ArchiveEntry(
        "cifar100",
        torchvision_class="CIFAR100",
        markers=(("train", "cifar-100-python/train"), ("test", "cifar-100-python/test")),
    ),
    ArchiveEntry(
        "svhn",
        ("train", "test", "extra"),
        class_names=DIGITS,
        torchvision_class="SVHN",
        split_argument="split",
        split_downloads=True,
        markers=tuple((s, f"{s}_32x32.mat") for s in ("train", "test", "extra")),
    ),
    ArchiveEntry(
        "stl10",
        torchvision_class="STL10",
        split_argument="split",
        markers=(("train", "stl10_binary/train_X.bin"), ("test", "stl10_binary/test_X.bin")),
    ),
    DigitsEntry("digits", ("train",), DIGITS),
    MiniEntry("mnist-mini", ("train",), DIGITS, "CC BY-SA 3.0", "mnist_mini.npz"),
    MiniEntry("fashion-mnist-mini", ("train",), FASHION, "MIT", "fashion_mnist_mini.npz"),
)
REGISTRY: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def known_names() -> tuple[str, ...]:
    """Return the names that ``load`` takes."""
    return tuple(REGISTRY)


def plain(text: str) -> str:
    """Return the letters and digits of a name in lower case: ``Fashion_MNIST`` -> fashionmnist."""
    return "".join(c for c in text.lower() if c.isalnum())


def find_entry(name: str) -> Entry:
    """Return the entry of a name; case, ``_``, ``-`` and spaces do not matter.

    Raises:
        DatasetNotFoundError: not a known name, with the nearest one.
    """
    by_plain_name = {plain(key): entry for key, entry in REGISTRY.items()}
    entry = by_plain_name.get(plain(name))
    if entry is not None:
        return entry
    near = difflib.get_close_matches(plain(name), by_plain_name, n=1, cutoff=0.5)
    hint = f"did you mean {by_plain_name[near[0]].name}? " if near else ""
    raise DatasetNotFoundError(
        f"unknown dataset {name!r}; {hint}known names: {', '.join(REGISTRY)}"
    )


def check_split(entry: Entry, split: str) -> None:
    """Raise SettingsError unless the dataset has the split."""
    if split not in entry.splits:
        raise SettingsError(
            f"{entry.name} has no split {split!r}; expected {' or '.join(entry.splits)}"
        )
