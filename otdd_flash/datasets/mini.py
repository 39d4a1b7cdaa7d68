"""The datasets that need no file: the embedded samples and scikit-learn's digits."""

from __future__ import annotations

import json
import zipfile
import zlib
from importlib.resources import files
from typing import Any

import numpy as np

from otdd_flash.datasets.registry import DigitsEntry, MiniEntry
from otdd_flash.digests import array_digest
from otdd_flash.errors import DataError
from otdd_flash.types import LabelledDataset

PACKAGE = "otdd_flash_data"


def load_mini(entry: MiniEntry) -> LabelledDataset:
    """Load an embedded sample, uint8 (2000, 784), after checking its checksums.

    Raises:
        DataError: the embedded file is missing or damaged.
    """
    try:
        manifest: dict[str, Any] = json.loads((files(PACKAGE) / "manifest.json").read_text("utf-8"))
        record = manifest[entry.name]
        with (files(PACKAGE) / entry.array_file).open("rb") as stream:
            archive = np.load(stream, allow_pickle=False)
            arrays = {key: archive[key] for key in record["arrays"]}
    except (ImportError, OSError, EOFError, ValueError, LookupError, TypeError) as error:
        raise _damaged(entry, error) from error
    except (zipfile.BadZipFile, zlib.error) as error:
        raise _damaged(entry, error) from error
    for key, expected in record["arrays"].items():
        if array_digest(arrays[key]) != expected["sha256"]:
            raise _damaged(entry, f"{key} does not match its checksum")
    return LabelledDataset(
        arrays["points"],
        arrays["labels"],
        name=entry.name,
        class_names=entry.class_names,
        provenance={
            "source": "embedded",
            "split": "train",
            "of": record["of"],
            "sha256": {key: value["sha256"] for key, value in record["arrays"].items()},
            "licence": record["licence"],
        },
    )


def _damaged(entry: MiniEntry, reason: object) -> DataError:
    return DataError(
        f"{entry.name}: the embedded {entry.array_file} is damaged ({reason}); "
        "install otdd-flash again"
    )


def load_digits(entry: DigitsEntry) -> LabelledDataset:
    """Load scikit-learn's 1,797 digits as uint8 points (1797, 64), values 0..16."""
    from sklearn import datasets as sklearn_datasets

    bunch = sklearn_datasets.load_digits()
    return LabelledDataset(
        # the pixels are the integers 0..16: uint8 keeps them exactly
        bunch.images.astype(np.uint8),
        bunch.target,
        name=entry.name,
        class_names=entry.class_names,
        provenance={"source": "scikit-learn", "split": "train"},
    )
