"""Datasets that are Python objects: pairs of arrays, tables, dictionaries, streams."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.checks import shown
from otdd_flash.datasets.columns import raw_table
from otdd_flash.datasets.frames import TableFrame
from otdd_flash.datasets.hub import raw_hugging_face, split_of
from otdd_flash.datasets.items import streamed
from otdd_flash.datasets.named_arrays import Archive, raw_arrays, sample_rows, tidy_labels
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.datasets.torch_sets import read_loader, read_map
from otdd_flash.errors import DataError, DatasetNotFoundError
from otdd_flash.samples import Arrays, Images, Samples, Texts


def read_object(value: Any, settings: LoadSettings, label: str | None) -> RawDataset:
    """Return the dataset that an object is.

    Raises:
        DatasetNotFoundError: an object that is none.
        DataError, LabelError: one that cannot be used.
        SettingsError: a stream without a cap.
    """
    name, home = type(value).__name__, type(value).__module__.partition(".")[0]
    if isinstance(value, tuple) and len(value) == 2:
        return _pair(value[0], value[1], settings)
    if (table := table_of(value)) is not None:
        return raw_table(TableFrame(table), name, settings, label, source=f"{home} {name}")
    if home == "datasets" and hasattr(value, "features") and hasattr(value, "select"):
        return raw_hugging_face(value, name, settings, label, source=f"{home} {name}")
    if home == "datasets" and isinstance(value, dict):
        return read_object(split_of(value, settings.split, name), settings, label)
    if isinstance(value, torch.utils.data.DataLoader):
        return read_loader(value, settings, label)
    if isinstance(value, torch.utils.data.Dataset) and hasattr(value, "__len__"):
        return read_map(value, settings, label)
    if isinstance(value, Mapping):
        arrays = {str(k): v for k, v in value.items()}
        found = Archive(tuple(arrays), arrays.__getitem__)
        return raw_arrays(found, name, settings, label, source=name)
    if isinstance(value, (Tensor, np.ndarray, list)):
        return RawDataset(name, samples_of(value, name), None, provenance={"source": name})
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, tuple, set)):
        return _stream(value, settings, label)
    raise DatasetNotFoundError(
        f"cannot load {shown(value)}, a {name}; expected a dataset name or a LabelledDataset, a "
        "path, a pair (x, y), a table, or a dataset of torch or Hugging Face"
    )


def table_of(value: Any) -> Any:
    """Return a table of pandas, polars or pyarrow as a ``pyarrow.Table``, None for all else.

    Raises:
        DataError: columns that Arrow cannot hold.
    """
    kind = type(value)
    home = kind.__module__.partition(".")[0]
    if home not in ("pandas", "polars", "pyarrow"):
        return None
    import pyarrow as pa

    try:
        if home == "pandas" and kind.__name__ == "DataFrame":
            return pa.Table.from_pandas(value.rename(columns=str), preserve_index=False)
        if home == "polars" and kind.__name__ == "LazyFrame":
            value = value.collect()
        if home == "polars" and hasattr(value, "columns"):
            return value.to_arrow()
        if isinstance(value, pa.RecordBatch):
            return pa.Table.from_batches([value])
    except (pa.ArrowException, ValueError) as error:
        raise DataError(
            f"{kind.__name__}: cannot become an Arrow table ({error}); give each column one kind "
            "of values and a name of its own"
        ) from error
    return value if isinstance(value, pa.Table) else None


def _pair(points: Any, labels: Any, settings: LoadSettings) -> RawDataset:
    """Return the dataset of samples and their labels."""
    name = type(points).__name__
    if (table := table_of(points)) is not None:
        bare = replace(settings, labels="none")
        raw = raw_table(TableFrame(table), name, bare, None, source=name)
    else:
        raw = RawDataset(name, samples_of(points, name), None, provenance={"source": name})
    return raw if labels is None else replace(raw, labels=tidy_labels(labels, len(raw), name))


def samples_of(values: Any, name: str) -> Samples:
    """Return samples: texts, images (Pillow's, or paths), or arrays of one shape."""
    from PIL.Image import Image

    if isinstance(values, np.ndarray) and values.dtype.kind in "UTO" and values.ndim == 1:
        values = values.tolist()
    elif not isinstance(values, (Tensor, np.ndarray, list)) and hasattr(values, "__iter__"):
        values = list(values)
    if isinstance(values, list) and values:
        rows = np.arange(len(values))
        for kind, make in (((str,), Texts), ((Path, Image), Images)):
            if all(isinstance(v, kind) for v in values):
                return make(lambda chosen: [values[k] for k in chosen], rows)
    return Arrays.of(sample_rows(values, name))


def _stream(stream: Iterable[Any], settings: LoadSettings, label: str | None) -> RawDataset:
    """Read the first samples of a stream, with the names of classes that it knows."""
    raw = streamed(stream, type(stream).__name__, settings, label)
    # a streamed dataset of Hugging Face knows its columns
    features = getattr(stream, "features", None)
    column = features.get(label or "label") if isinstance(features, Mapping) else None
    return replace(raw, class_names=tuple(getattr(column, "names", ())) or None)
