"""One resolver for datasets: names, files, folders, hub and library datasets, Python objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from otdd_flash.checks import shown
from otdd_flash.datasets.files import SUFFIXES, read_path
from otdd_flash.datasets.hub import PREFIX as HUB
from otdd_flash.datasets.hub import read_hub
from otdd_flash.datasets.labelling import settle_labels
from otdd_flash.datasets.named import is_known, load_named
from otdd_flash.datasets.objects import read_object
from otdd_flash.datasets.raw import RawDataset, raw_of
from otdd_flash.datasets.registry import find_entry
from otdd_flash.datasets.represent import represent_steps
from otdd_flash.datasets.sampling import drawn_rows, sample
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.datasets.sklearn_sets import PREFIX as SKLEARN
from otdd_flash.datasets.sklearn_sets import known_sklearn, read_sklearn
from otdd_flash.errors import DataError, DatasetNotFoundError, OTDDError
from otdd_flash.types import LabelledDataset, Progress, finish

# datasets read at once. Before Python 3.11.8 two threads that parse, as readers of npz files and
# compilers of kernels do, can break each other by a SystemError (CPython issue 106905)
THREADS = 8 if sys.version_info >= (3, 11, 8) else 1


def load(
    spec: Any,
    *,
    split: str = "train",
    max_samples: int | None = None,
    seed: int = 0,
    data_root: str | os.PathLike[str] | None = None,
    label: str | None = None,
    features: str | Sequence[str] | None = None,
    labels: str = "given",
    drop_unlabelled: bool = False,
    image_size: int | tuple[int, int] | None = None,
    color: str = "auto",
    scale: str = "auto",
    missing: str = "refuse",
    cosine: bool = False,
    encoder: str | Callable[[Any], Any] | None = None,
    weights: str | os.PathLike[str] | None = None,
    batch_size: int = 128,
    device: str = "auto",
    cache: bool = True,
) -> LabelledDataset:
    """Load a dataset of any kind; what was chosen or converted is in ``provenance["announced"]``.

    Args:
        spec: a name of ``known_names()`` (downloaded into the user's cache where its files are
            nowhere else), ``hf:owner/name:config``, ``sklearn:wine``, each with ``@split`` behind
            it where wanted; the path of a csv, tsv, jsonl, parquet, arrow, npz, npy, safetensors
            or pt file, of a folder of class folders or of IDX files, or of what ``datasets`` saved;
            or in Python a pair (x, y), a table of pandas, polars or pyarrow, a dataset or loader of
            torch, a ``datasets.Dataset``, a generator of pairs, a LabelledDataset.
        split: of datasets that have splits; a spec's own ``@split`` wins.
        max_samples: keep at most this many, stratified by class, in their original order, drawn
            before anything is decoded; the draw depends on the dataset and the seed alone.
        seed: of the draw and of clustering.
        data_root: folder with the files of datasets that have a name.
        label: column, array or file of the labels.
        features: columns (``pixel*`` matches several) or the array of the points.
        labels: ``given``, ``none`` (one class), ``kmeans:10``, or ``quantiles:10`` of a number.
        drop_unlabelled: drop samples without a label instead of refusing them.
        image_size: side, or (height, width), that images are resized to.
        color: ``grey``, ``rgb``, ``rgba``; ``auto`` keeps what there is, RGB where it differs.
        scale: ``standard`` or ``none``; ``auto`` standardises tables and leaves arrays alone.
        missing: what to do about missing table entries: ``refuse``, ``drop`` the rows, or fill
            with the ``mean`` or ``median`` (categories: the most frequent one).
        cosine: divide each sample by its norm, so that ``||x - y||^2 = 2 (1 - cos)``.
        encoder: ``pixels``, ``pca:50``, ``torchvision:resnet18``, ``timm:NAME``,
            ``sentence:MODEL``, ``module:callable``, or a callable.
        weights: file with the weights of a torchvision or timm model, or a name of torchvision's.
        batch_size: samples an encoder gets at once.
        device: where an encoder runs.
        cache: keep what encoders return in the user's cache.

    Raises:
        DatasetNotFoundError: unknown name, no such file, or no files and no download.
        DataError: files that are damaged, samples that cannot be points.
        LabelError: labels that are missing, ambiguous, or no classes.
        SettingsError: an argument that cannot be.
    """
    settings = LoadSettings(
        split=split,
        max_samples=max_samples,
        seed=seed,
        data_root=data_root,
        label=label,
        features=features,  # type: ignore[arg-type]
        labels=labels,
        drop_unlabelled=drop_unlabelled,
        image_size=image_size,  # type: ignore[arg-type]
        color=color,
        scale=scale,
        missing=missing,
        cosine=cosine,
        encoder=encoder,
        weights=weights,
        batch_size=batch_size,
        device=device,
        cache=cache,
    )
    return load_together([spec], settings)[0]


def load_together(
    specs: Sequence[Any], settings: LoadSettings | None = None
) -> list[LabelledDataset]:
    """Load datasets into one space: scaled, one-hot encoded, resized and projected alike.

    Raises:
        OTDDError: as :func:`load`; a DataError for datasets that share no space, with a way out.
    """
    if isinstance(specs, (str, Path)):
        raise DataError(f"{shown(specs)} arrived, expected a list of datasets; load takes one")
    return finish(load_steps(specs, settings or LoadSettings()))


def load_steps(
    specs: Sequence[Any], settings: LoadSettings
) -> Generator[Progress, None, list[LabelledDataset]]:
    """Load as :func:`load_together` does, yielding progress; a spec given twice is read once."""
    read = yield from read_steps(specs, settings)
    distinct = {id(raw): raw for raw in read}
    made = yield from represent_steps(list(distinct.values()), settings)
    by_raw = dict(zip(distinct, made, strict=True))
    return [by_raw[id(raw)] for raw in read]


def read_steps(
    specs: Sequence[Any], settings: LoadSettings
) -> Generator[Progress, None, list[RawDataset]]:
    """Read datasets side by side, settle their labels and draw their samples; nothing is decoded.

    The same spec twice gives the same object twice.
    """
    tasks = [(spec, settings.label_of(k, len(specs))) for k, spec in enumerate(specs)]
    first: list[int] = []
    for task in tasks:
        same = (k for k, other in enumerate(tasks) if _same(task, other))
        first.append(next(same))
    with ThreadPoolExecutor(max(1, min(THREADS, len(set(first))))) as threads:
        coming = {k: threads.submit(_read, *tasks[k], settings) for k in dict.fromkeys(first)}
        try:
            for done, (k, future) in enumerate(coming.items()):
                yield Progress("load", done, len(coming), _shown(specs[k]))
                future.result()
        finally:
            for future in coming.values():
                future.cancel()
    yield Progress("load", len(coming), len(coming))
    raws = {k: future.result() for k, future in coming.items()}
    names = [raw.name for raw in raws.values()]
    for k, raw in raws.items():
        # two files train.csv are told apart by their paths
        if names.count(raw.name) > 1 and isinstance(specs[k], (str, Path)):
            raws[k] = replace(raw, name=str(specs[k]), origin=None)
    return [raws[k] for k in first]


def _same(one: tuple[Any, Any], other: tuple[Any, Any]) -> bool:
    if isinstance(one[0], (str, Path)) and isinstance(other[0], (str, Path)):
        return str(one[0]) == str(other[0]) and one[1] == other[1]
    return one[0] is other[0] and one[1] == other[1]


def _shown(spec: Any) -> str:
    return str(spec) if isinstance(spec, (str, Path)) else getattr(spec, "name", "")


def _read(spec: Any, label: str | None, settings: LoadSettings) -> RawDataset:
    raw = _resolve(spec, label, settings)
    if not len(raw):
        raise DataError(f"{raw.name}: holds no samples, expected one or more")
    # beside a table there may be a dataset that has no columns to choose from
    chosen = {"label": label, "features": settings.features}
    unused = [key for key, name in chosen.items() if name is not None and key not in raw.provenance]
    if unused:
        raw = raw.noted(f"{' and '.join(unused)} left unused: it has no columns to choose from")
    raw = settle_labels(raw, settings)
    if raw.origin is not None:
        return raw_of(sample(raw.origin, settings.max_samples, settings.seed))
    ids = torch.zeros(len(raw), dtype=torch.int64)
    if raw.labels is not None:
        ids = torch.from_numpy(raw.labels)
    rows = drawn_rows(ids, raw.weights, settings.max_samples, settings.seed)
    if rows is None:
        return raw
    note = {"of": len(raw), "seed": int(settings.seed), "kept": len(rows)}
    return raw.take(rows.numpy(), sampled=note)


def _resolve(spec: Any, label: str | None, settings: LoadSettings) -> RawDataset:
    """Return the dataset that a spec means."""
    if isinstance(spec, LabelledDataset):
        return raw_of(spec)
    if not isinstance(spec, (str, Path)):
        return read_object(spec, settings, label)
    if spec == "":
        raise DatasetNotFoundError("the dataset's name is empty; give a name, a file or a folder")
    for text, split in _readings(str(spec)):
        chosen = replace(settings, split=split) if split else settings
        if text.startswith(HUB):
            return read_hub(text, chosen, label)
        if text.startswith(SKLEARN):
            return read_sklearn(text, chosen, label)
        if isinstance(spec, str) and is_known(text):
            raw = raw_of(load_named(text, settings.data_root, chosen.split))
            # a test set beside its training set is told apart by its name
            return replace(raw, name=spec, origin=None) if split else raw
        path = Path(text).expanduser()
        if path.exists():
            return read_path(path, chosen, label)
    text = str(spec)
    if isinstance(spec, Path) or os.sep in text or text.lower().endswith(SUFFIXES):
        raise DatasetNotFoundError(f"{text}: no such file or folder (in {Path.cwd()})")
    if text in known_sklearn():
        raise DatasetNotFoundError(f"unknown dataset {text!r}; did you mean {SKLEARN}{text}?")
    try:
        find_entry(text)
    except OTDDError as error:
        raise DatasetNotFoundError(
            f"{error}; or give a file, a folder, hf:owner/name or sklearn:name"
        ) from None
    raise AssertionError("a known name was not loaded")


def _readings(text: str) -> Iterator[tuple[str, str]]:
    """Yield a spec as it is and, with ``@split`` behind it, its two parts."""
    name, at, split = text.rpartition("@")
    remote = text.startswith((HUB, SKLEARN))
    if not (remote and at):
        yield text, ""
    if at and name and split:
        yield name, split
