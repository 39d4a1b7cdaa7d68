"""Which column of a table is the label, and what the others are."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from otdd_flash.datasets.cells import images, is_text, kind_of, label_values, texts, vectors
from otdd_flash.datasets.frames import Frame
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import DataError, LabelError
from otdd_flash.samples import Arrays, Images, Rows, Samples, Texts

if TYPE_CHECKING:
    import pyarrow as pa

LABEL_NAMES = {"label", "labels", "class", "target", "targets", "y", "category"}
# what tools write beside the data: left out where the values only number the rows
INDEX_NAMES = {"", "unnamed: 0", "index", "id", "__index_level_0__"}
# column of image files in the tables that the `datasets` library puts beside them
FILE_NAME = "file_name"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm")
LISTED = 20  # names that a message lists


def raw_table(
    frame: Frame,
    name: str,
    settings: LoadSettings,
    label: str | None,  # column of the labels, None to find it
    base: Path | None = None,  # folder that paths in the table are relative to
    **provenance: Any,
) -> RawDataset:
    """Return the dataset of a table: its labels, and images, vectors, texts or rows.

    Raises:
        DataError: no rows, columns that are not there or cannot be points.
        LabelError: no column or several that look like labels.
    """
    if not len(frame):
        raise DataError(f"{name}: the table has no rows")
    names = list(frame.schema.names)
    if len(set(names)) < len(names):
        twice = next(n for n in names if names.count(n) > 1)
        raise DataError(f"{name}: two columns are called {twice!r}; give each a name of its own")
    classes = class_labels(frame.schema, name)
    chosen, others = _label_column(names, set(classes), name, settings, label)
    said = []
    values, class_names = None, None
    if chosen is not None:
        values, class_names = label_values(frame.column(chosen), f"{name}: column {chosen!r}")
        class_names = classes.get(chosen, class_names)
    if settings.features is None:
        kept = [n for n in names if n not in (chosen, *others) and not _is_index(frame, n)]
        left = [n for n in names if n not in kept and n != chosen]
        if left:
            said.append(
                f"left out {_listed(left)} (labels or row numbers; name them in features, "
                "--features)"
            )
    else:
        kept = _matched(settings.features, [n for n in names if n != chosen], name)
    samples, used, more = _samples(frame, kept, name, settings, base)
    raw = RawDataset(
        name,
        samples,
        values,
        class_names,
        {**provenance, "label": chosen, "features": used if len(used) <= LISTED else len(used)},
        tuple(said + more),
    )
    if isinstance(samples, Texts) and settings.missing == "drop":
        there = np.asarray(frame.column(used[0]).is_valid())
        if not there.all():
            dropped = f"dropped {(~there).sum():,} of {len(raw):,} rows without text"
            return raw.take(np.flatnonzero(there), dropped)
    return raw


def class_labels(schema: pa.Schema, name: str) -> dict[str, tuple[str, ...]]:
    """Return the class names of columns that the ``datasets`` library marked as labels.

    Raises:
        DataError: the library's metadata cannot be read.
    """
    stored = (schema.metadata or {}).get(b"huggingface")
    if stored is None:
        return {}
    try:
        features = json.loads(stored).get("info", {}).get("features", {})
        return {
            column: tuple(feature["names"])
            for column, feature in features.items()
            if isinstance(feature, dict)
            and feature.get("_type") == "ClassLabel"
            and "names" in feature
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(
            f"{name}: what the datasets library says of the columns is damaged ({error}); "
            "write the table again"
        ) from error


def _label_column(
    names: Sequence[str],
    marked: set[str],  # columns known to be labels
    name: str,
    settings: LoadSettings,
    label: str | None,
) -> tuple[str | None, list[str]]:  # the label column, and others that look like one
    alike = [n for n in names if n in marked or n.strip().lower() in LABEL_NAMES]
    if label is not None:
        if label not in names:
            raise LabelError(
                f"{name}: there is no column {label!r}, it has {_listed(names)}; choose one of "
                "these with label (--label)"
            )
        return label, [n for n in alike if n != label]
    if settings.clusters[0] in ("none", "kmeans"):
        return None, alike
    if len(alike) > 1:
        raise LabelError(
            f"{name}: {len(alike)} columns look like labels, {_listed(alike)}; choose one with "
            f"label={alike[0]!r} (--label)"
        )
    if not alike:
        raise LabelError(
            f"{name}: no column looks like labels, it has {_listed(names)}; choose one with label "
            "(--label), cluster with labels='kmeans:10' (--labels kmeans:10), or take one class "
            "with labels='none' (--labels none)"
        )
    return alike[0], []


def _is_index(frame: Frame, column: str) -> bool:
    """Say whether a column only numbers the rows."""
    import pyarrow.types as t

    if column.lower() not in INDEX_NAMES or not t.is_integer(frame.schema.field(column).type):
        return False
    values = frame.column(column)
    return not values.null_count and len(values.unique()) == len(values)


def _matched(features: str | tuple[str, ...], names: Sequence[str], name: str) -> list[str]:
    """Return the columns that names and patterns mean, each once, in the order given."""
    found: dict[str, None] = {}
    for pattern in (features,) if isinstance(features, str) else features:
        hits = [pattern] if pattern in names else fnmatch.filter(names, pattern)
        if not hits:
            raise DataError(
                f"{name}: no feature column is called {pattern!r}, it has {_listed(names)}; name "
                "some of these with features (--features)"
            )
        found.update(dict.fromkeys(hits))
    return list(found)


def _samples(
    frame: Frame,
    kept: list[str],  # candidate columns
    name: str,
    settings: LoadSettings,
    base: Path | None,
) -> tuple[Samples, list[str], list[str]]:  # the samples, their columns, what to announce
    """Decide what the samples are: one column of images, vectors or texts, or rows of numbers."""
    kinds = {n: kind_of(frame.schema.field(n).type) for n in kept}
    paths = [n for n in kept if is_text(frame.schema.field(n).type) and _are_files(frame, n, base)]
    kinds.update(dict.fromkeys(paths, "image"))
    words = [n for n in kept if kinds[n] == "category"]
    rows = np.arange(len(frame))
    for kind in ("image", "vector"):
        some = [n for n in kept if kinds[n] == kind]
        if not some:
            continue
        one = _only(some, kept, kind, name, settings)
        where = f"{name}: column {one!r}"
        said = [f"column {one!r} holds the {kind}s; {_listed(kept, one)} left out"]
        if kind == "image":
            samples: Samples = Images(images(frame, one, base, where), rows)
        else:
            samples = Arrays(vectors(frame, one, where), rows)
        return samples, [one], said[: len(kept) > 1]
    # a user's own encoder takes texts where they are the one feature
    own = settings.encoder_spec.kind == "own" and words == kept and len(kept) == 1
    if settings.encoder_spec.kind == "sentence" or own:
        if not words:
            raise DataError(
                f"{name}: no column holds text for {settings.encoder_spec}, it has {_listed(kept)}"
            )
        one = _only(words, kept, "text", name, settings)
        said = [f"column {one!r} holds the texts; {_listed(kept, one)} left out"]
        found = Texts(texts(frame, one, f"{name}: column {one!r}"), rows)
        return found, [one], said[: len(kept) > 1]
    used = [n for n in kept if kinds[n] in ("number", "category")]
    foreign = [n for n in kept if n not in used]
    if not used or (foreign and settings.features is not None):
        holds = ", ".join(f"{n!r} ({kinds[n]})" for n in foreign[:LISTED])
        raise DataError(
            f"{name}: no features, expected columns of numbers, categories, vectors or images"
            + (f"; it has {holds}" if foreign else "")
        )
    said = [f"left out {_listed(foreign)} (neither numbers nor categories)"] if foreign else []
    schema = frame.schema.empty_table().select(used).schema
    return Rows(lambda chosen: frame.take(chosen, used), rows, schema), used, said


def _only(
    some: list[str], kept: list[str], kind: str, name: str, settings: LoadSettings
) -> str:  # the one column of a kind
    if len(some) > 1 or (settings.features is not None and len(kept) > 1):
        raise DataError(
            f"{name}: features are {_listed(kept)}, {len(some)} of them {kind}s; "
            f"choose one {kind} column with features={some[0]!r} (--features)"
        )
    return some[0]


def _are_files(frame: Frame, column: str, base: Path | None) -> bool:
    """Say whether a column of strings names image files, by its name or because they are there."""
    if base is None:
        return False
    first = frame.take(np.arange(min(3, len(frame))), [column]).column(0).to_pylist()
    named = [isinstance(v, str) and v.lower().endswith(IMAGE_SUFFIXES) for v in first]
    if column == FILE_NAME:
        return any(named)
    return all(named) and all((base / v).is_file() for v in first)


def _listed(names: Sequence[str], without: str | None = None) -> str:
    shown = [repr(n) for n in names if n != without]
    more = f" and {len(shown) - LISTED} more" if len(shown) > LISTED else ""
    return ", ".join(shown[:LISTED]) + more
