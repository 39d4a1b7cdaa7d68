"""Hugging Face datasets: from the hub, from ``save_to_disk``, and as objects."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from otdd_flash.datasets.columns import raw_table
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import DataError, DatasetNotFoundError, SettingsError, reason
from otdd_flash.samples import consecutive
from otdd_flash.samples.network import hub_or_cache

if TYPE_CHECKING:
    import pyarrow as pa

PREFIX = "hf:"
# the switch of the bars is the process's: one thread at a time turns it
_BARS = threading.Lock()


class DatasetFrame:
    """A ``datasets.Dataset``: mapped from its Arrow files, its shuffles and selections kept."""

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset.with_format("arrow")
        self.schema = dataset.features.arrow_schema

    def __len__(self) -> int:
        return len(self.dataset)

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a whole column."""
        return self.dataset.select_columns([name])[:].column(0)

    def take(self, rows: np.ndarray, names: Sequence[str]) -> pa.Table:
        """Return rows in their order."""
        chosen = self.dataset.select_columns(list(names))
        if consecutive(rows):
            return chosen[int(rows[0]) : int(rows[-1]) + 1]
        return chosen[rows]


def read_hub(spec: str, settings: LoadSettings, label: str | None) -> RawDataset:
    """Read ``owner/name[:config]`` of the Hugging Face hub, or a folder in its layout.

    Downloads go to the cache of the ``datasets`` library, which a second run reads offline.

    Raises:
        DatasetNotFoundError: no such dataset, or no network and nothing in the cache.
        SettingsError: a split or configuration that it has not.
    """
    import datasets

    path, _, config = spec.removeprefix(PREFIX).partition(":")
    if not path:
        raise DatasetNotFoundError(
            f"{spec!r} names no dataset; write hf:owner/name, hf:owner/name:config or "
            "hf:owner/name@split"
        )
    try:
        with quiet_bars(), hub_or_cache():
            found = datasets.load_dataset(path, config or None, split=settings.split)
    except ValueError as error:
        # unknown splits and configurations, with what there is
        raise SettingsError(f"{spec}: {reason(error)}") from error
    except (OSError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        raise DatasetNotFoundError(
            f"{spec}: cannot be loaded ({reason(error.__cause__ or error)}); check the name and "
            "the network, or give a local folder"
        ) from error
    name = spec.removeprefix(PREFIX)
    return raw_hugging_face(found, name, settings, label, source=spec, split=settings.split)


def saved_dataset(path: Path, split: str) -> Any:
    """Return what ``save_to_disk`` wrote, mapped into memory."""
    import datasets

    try:
        with quiet_bars():
            found = datasets.load_from_disk(str(path))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{path}: what datasets.save_to_disk wrote there is damaged ({reason(error)}); "
            "save it again"
        ) from error
    return split_of(found, split, str(path))


def split_of(found: Any, split: str, name: str) -> Any:
    """Return a dataset, or the split of a dictionary of them."""
    if not isinstance(found, dict):
        if split != "train":
            raise SettingsError(f"{name}: has no split {split!r}; it is one set of samples")
        return found
    if split not in found:
        raise SettingsError(f"{name}: has no split {split!r}; it has {', '.join(found)}")
    return found[split]


def raw_hugging_face(
    dataset: Any,  # a datasets.Dataset
    name: str,
    settings: LoadSettings,
    label: str | None,
    **provenance: Any,
) -> RawDataset:
    """Return a ``datasets.Dataset`` as it lies in Arrow: nothing is decoded by that library."""
    return raw_table(DatasetFrame(dataset), name, settings, label, None, **provenance)


@contextlib.contextmanager
def quiet_bars() -> Iterator[None]:
    """Keep the bars of the ``datasets`` library for people at a terminal."""
    import datasets

    with _BARS:
        if (sys.stderr and sys.stderr.isatty()) or datasets.are_progress_bars_disabled():
            yield
            return
        datasets.disable_progress_bars()
        try:
            yield
        finally:
            datasets.enable_progress_bars()
