"""Datasets and loaders of torch: subsets keep their labels, draws come before decoding."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, DataLoader, Dataset, Subset, TensorDataset

from otdd_flash.datasets.items import gathered, streamed, unbatched
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.sampling import stratified_rows
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import DataError, OTDDError
from otdd_flash.labels import class_ids


def read_map(dataset: Any, settings: LoadSettings, label: str | None) -> RawDataset:
    """Read a dataset that has a length, item by item, transforms applied.

    With a cap below its length the rows are drawn by the labels that the dataset keeps (``targets``
    and the like, through subsets), so that only these items are decoded; where it keeps none,
    every item is read first. The labels themselves are always those of the items.
    """
    name, n = type(dataset).__name__, len(dataset)
    if not n:
        raise DataError(f"{name}: is empty")
    rows, note = np.arange(n), {}
    cap = settings.max_samples
    if cap is not None and cap < n and (ids := _ids(dataset, name)) is not None:
        rows = stratified_rows(ids, int(cap), settings.seed).numpy()
        note = {"sampled": {"of": n, "seed": int(settings.seed), "kept": len(rows)}}
    items = (dataset[int(k)] for k in rows)
    raw = gathered(items, len(rows), name, settings, label, **note)
    return replace(raw, class_names=_classes(dataset, raw.labels))


def read_loader(loader: DataLoader, settings: LoadSettings, label: str | None) -> RawDataset:
    """Read what a loader yields, to its end or, where it has none, up to the cap.

    Raises:
        SettingsError: a stream without a cap.
    """
    name = f"DataLoader of {type(loader.dataset).__name__}"
    items = unbatched(loader) if loader.batch_size is not None else iter(loader)
    if isinstance(loader.dataset, torch.utils.data.IterableDataset):
        return streamed(items, name, settings, label)
    raw = gathered(items, len(loader.dataset), name, settings, label)  # type: ignore[arg-type]
    return replace(raw, class_names=_classes(loader.dataset, raw.labels))


def _kept_labels(dataset: Any) -> Any:
    """Return the labels that a dataset keeps beside its samples, through subsets, else None."""
    if isinstance(dataset, Subset):
        below = _kept_labels(dataset.dataset)
        return None if below is None else below[np.asarray(dataset.indices)]
    if isinstance(dataset, ConcatDataset):
        parts = [_kept_labels(part) for part in dataset.datasets]
        return None if any(part is None for part in parts) else np.concatenate(parts)
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[1].cpu().numpy() if len(dataset.tensors) > 1 else None
    for key in ("targets", "labels", "_labels"):
        found = getattr(dataset, key, None)
        if found is not None and not callable(found) and len(found) == len(dataset):
            return np.asarray(found)
    return None


def _ids(dataset: Dataset, name: str) -> torch.Tensor | None:
    kept = _kept_labels(dataset)
    if kept is None:
        return None
    try:
        return class_ids(kept, len(kept), name)[0]
    except OTDDError:
        # labels that are no classes as they are kept: those of the items decide
        return None


def _classes(dataset: Any, labels: np.ndarray | None) -> tuple[str, ...] | None:
    """Return the names of the classes where the dataset has them and its labels are numbers."""
    while isinstance(dataset, (Subset, ConcatDataset)):
        dataset = dataset.dataset if isinstance(dataset, Subset) else dataset.datasets[0]
    names = getattr(dataset, "classes", None)
    if labels is None or not isinstance(names, (list, tuple)) or labels.dtype.kind not in "iu":
        return None
    return tuple(map(str, names)) if labels.max() < len(names) else None
