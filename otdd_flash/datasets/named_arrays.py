"""Arrays by name: which are points and which labels, and what both must be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from otdd_flash.checks import check_weights, dense_points, even
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import DataError, LabelError, WeightError
from otdd_flash.labels import label_array
from otdd_flash.samples import Arrays
from otdd_flash.types import check_sample_shape

# names of arrays that are understood, the best first; `x_train` and `train_x` are found too
POINTS = ("points", "x", "data", "images", "features", "embeddings", "inputs", "samples")
LABELS = ("labels", "y", "label", "targets", "target", "classes")
WEIGHTS = "weights"


@dataclass(frozen=True)
class Archive:
    """Arrays by name, each read when it is asked for."""

    names: tuple[str, ...]
    read: Callable[[str], Any]
    header: Mapping[str, Any] = field(default_factory=dict)  # what our own files say of themselves


def raw_arrays(
    archive: Archive,
    name: str,
    settings: LoadSettings,
    label: str | None,
    **provenance: Any,
) -> RawDataset:
    """Return the dataset of named arrays: points, and labels unless none are wanted.

    Raises:
        DataError: no array of points, or several and no way to tell.
        LabelError: the labels asked for are not there.
    """
    points_name, labels_name, said = _chosen(archive, name, settings, label)
    points = sample_rows(archive.read(points_name), name)
    shape = archive.header.get("sample_shape")
    if shape:
        shape = check_sample_shape(shape, points[0].numel(), name)
        points = points.reshape(len(points), *shape)
    class_names = archive.header.get("class_names")
    if class_names is None and "class_names" in archive.names:
        class_names = [str(v) for v in np.asarray(archive.read("class_names")).tolist()]
    weights = None
    if WEIGHTS in archive.names and WEIGHTS not in (points_name, labels_name):
        weights = _weights(archive.read(WEIGHTS), len(points), name, said)
    made = archive.header.get("provenance", {})
    origin = {"made from": made, "space": made.get("space")} if made else {}
    return RawDataset(
        str(archive.header.get("name", name)),
        Arrays.of(points),
        None if labels_name is None else tidy_labels(archive.read(labels_name), len(points), name),
        None if class_names is None else tuple(class_names),
        {**provenance, "features": points_name, "label": labels_name, **origin},
        tuple(said),
        weights,
    )


def _weights(
    values: Any,
    n: int,  # samples
    name: str,
    said: list[str],  # what to announce, added to
) -> Tensor | None:  # (n,) float64; None: uniform
    """Return the weights beside the points; what are no weights of theirs is told and left out."""
    try:
        weights = check_weights(values, n, name)
    except WeightError as error:
        said.append(f"{WEIGHTS!r} left out: {str(error).removeprefix(f'{name}: ')}")
        return None
    if even(weights):
        return None
    said.append(f"weights are {WEIGHTS!r}")
    return weights


def _chosen(
    archive: Archive, name: str, settings: LoadSettings, label: str | None
) -> tuple[str, str | None, list[str]]:  # of the points, of the labels, what to announce
    """Tell which arrays are points and labels: as asked, by their names, or by their shapes."""
    wanted = settings.features
    if isinstance(wanted, tuple):
        raise DataError(
            f"{name}: features names {len(wanted)} arrays, expected one; it has {_names(archive)}"
        )
    points_name = _find(archive, wanted, POINTS, settings.split)
    labels_name = _find(archive, label, LABELS, settings.split)
    said = _passed_over(archive, points_name, labels_name, settings.split)
    if points_name is None or (labels_name is None and label is None):
        shapes = {key: np.shape(archive.read(key)) for key in archive.names}
        if points_name is None and wanted is None and settings.split == "train":
            many = [key for key, shape in shapes.items() if len(shape) >= 2]
            points_name = many[0] if len(many) == 1 else None
        if points_name is not None and labels_name is None and label is None:
            n = shapes[points_name][:1]
            lists = [key for key, shape in shapes.items() if shape == n and key != WEIGHTS]
            labels_name = lists[0] if len(lists) == 1 else None
        if labels_name is not None:
            said.append(f"points are {points_name!r}, labels {labels_name!r}, told by their shapes")
    if points_name is None:
        asked = f"no array {wanted!r}" if wanted is not None else "cannot tell which array is which"
        if wanted is None and settings.split != "train":
            asked = f"no arrays of the split {settings.split!r}"
        raise DataError(
            f"{name}: {asked}, it has {_names(archive)}; name the points with features and the "
            "labels with label (--features, --label)"
        )
    if labels_name is None and label is not None:
        raise LabelError(
            f"{name}: there is no array {label!r}, it has {_names(archive)}; name one of these "
            "with label (--label)"
        )
    return points_name, labels_name, said


def _passed_over(
    archive: Archive, points: str | None, labels: str | None, split: str
) -> list[str]:  # what to announce of arrays that go by a usual name too
    said = []
    for what, chosen, known in (("points", points, POINTS), ("labels", labels, LABELS)):
        others = [n for n in _usual(archive, known, split) if n not in (points, labels)]
        if chosen is not None and others:
            listed = ", ".join(map(repr, others))
            said.append(f"{what} are {chosen!r}; {listed} left out")
    return said


def _usual(archive: Archive, known: tuple[str, ...], split: str) -> list[str]:
    """Return the arrays of a split that go by one of the usual names, the best first."""
    by_name = {key.lower(): key for key in reversed(archive.names)}
    forms = [form for key in known for form in (f"{key}_{split}", f"{split}_{key}")]
    # without arrays of the split itself, the plain names are its training set
    forms += known if split == "train" else ()
    return [by_name[form] for form in forms if form in by_name]


def _find(
    archive: Archive,
    asked: str | None,
    known: tuple[str, ...],
    split: str,
) -> str | None:
    """Return the name of an array: the one asked for, else one of the split, else a usual one."""
    if asked is not None:
        return asked if asked in archive.names else None
    return next(iter(_usual(archive, known, split)), None)


def _names(archive: Archive) -> str:
    shown = [f"{key!r} {tuple(np.shape(archive.read(key)))}" for key in archive.names[:20]]
    return ", ".join(shown) or "no arrays"


def sample_rows(values: Any, name: str) -> Tensor:  # (n, ...)
    """Return samples as a tensor.

    Raises:
        DataError: no numbers, or a single number, or no samples.
    """
    points = dense_points(values, name)
    if points.ndim == 0 or not len(points):
        raise DataError(f"{name}: no samples arrived (shape {tuple(points.shape)})")
    return points


def tidy_labels(labels: Any, n: int, name: str) -> np.ndarray:  # (n,)
    """Return labels as an array, a trailing axis of one dropped, lists of numbers as numbers.

    Raises:
        LabelError: another number of labels than samples, or several a sample.
    """
    array = label_array(labels, name)
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.shape != (n,):
        ways = "; of one-hot rows, pass labels.argmax(1)" if array.shape[:1] == (n,) else ""
        raise LabelError(
            f"{name}: labels have shape {array.shape}, expected ({n},): one a sample{ways}"
        )
    if array.dtype.kind == "O" and all(type(v) in (int, float) for v in array):
        array = np.array(array.tolist())
    return array
