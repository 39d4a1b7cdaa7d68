"""From labels as they were read to class ids: given, binned, or found by clustering."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.datasets.cells import NO_WORDS
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import LabelError
from otdd_flash.labels import class_ids, is_missing

# entries of the float32 copy that full k-means works on (512 MB); above, it sees batches
CLUSTER_ENTRIES = 1 << 27
CLUSTER_BATCH = 1 << 14


def settle_labels(raw: RawDataset, settings: LoadSettings) -> RawDataset:
    """Return the dataset with class ids as labels, or without labels where none are wanted.

    Raises:
        LabelError: no labels, missing ones, a quantity where classes are expected, or the
            reverse.
    """
    rule, count = settings.clusters
    if rule in ("none", "kmeans"):
        return replace(raw, labels=None, class_names=None, origin=None)
    if raw.labels is None:
        raise LabelError(
            f"{raw.name}: has no labels; name their column, array or .npy file with label "
            "(--label), cluster with labels='kmeans:10' (--labels kmeans:10), or take one class "
            "with labels='none' (--labels none)"
        )
    if raw.origin is not None and rule == "given":
        return raw
    quantity = rule == "quantiles"
    raw = _without_missing(raw, settings, minus_one=not quantity)
    assert raw.labels is not None
    if quantity:
        return _binned(raw, count)
    if raw.regression or _fractional(raw.labels):
        least, largest = np.min(raw.labels), np.max(raw.labels)
        raise LabelError(
            f"{raw.name}: labels are a quantity between {least:g} and {largest:g}, not classes; "
            "bin them with labels='quantiles:10' (--labels quantiles:10)"
        )
    ids, names = class_ids(raw.labels, len(raw), raw.name, raw.class_names)
    return replace(raw, labels=ids.numpy(), class_names=names)


def _without_missing(raw: RawDataset, settings: LoadSettings, minus_one: bool) -> RawDataset:
    """Refuse labels that are not there, or drop their samples."""
    labels = raw.labels
    assert labels is not None
    if labels.dtype.kind == "O":
        missing = np.array([_is_none(v, minus_one) for v in labels], dtype=bool)
    else:
        missing = np.zeros(len(labels), dtype=bool)
        if labels.dtype.kind == "U":
            missing |= np.isin(labels, NO_WORDS)
        if labels.dtype.kind == "f":
            missing |= np.isnan(labels)
        # strings come as numbers, and -1 where there is none
        if labels.dtype.kind in "if" and (minus_one or raw.class_names is not None):
            missing |= labels == -1
    count, n = int(missing.sum()), len(raw)
    if not count:
        return raw
    if count == n:
        raise LabelError(
            f"{raw.name}: all {n:,} labels are missing (-1, None, NaN or empty); cluster with "
            "labels='kmeans:10' (--labels kmeans:10), or take one class with labels='none' "
            "(--labels none)"
        )
    if not settings.drop_unlabelled:
        raise LabelError(
            f"{raw.name}: {count:,} of {n:,} labels are missing (-1, None, NaN or empty); drop "
            "those samples with drop_unlabelled=True (--drop-unlabelled), or cluster with "
            "labels='kmeans:10' (--labels kmeans:10)"
        )
    said = f"dropped {count:,} of {n:,} samples without a label"
    return raw.take(np.flatnonzero(~missing), said, unlabelled=count)


def _is_none(label: Any, minus_one: bool) -> bool:
    if isinstance(label, str):
        return label in NO_WORDS
    return is_missing(label) and (minus_one or label != -1)


def _fractional(labels: np.ndarray) -> bool:
    return labels.dtype.kind == "f" and bool((labels != np.round(labels)).any())


def _binned(raw: RawDataset, count: int) -> RawDataset:
    """Cut a quantity at its quantiles into classes of about equal size."""
    if raw.class_names is not None or raw.labels is None or raw.labels.dtype.kind not in "iuf":
        raise LabelError(
            f"{raw.name}: labels are classes, not numbers; quantiles are for a quantity: "
            "use labels='given' (--labels given)"
        )
    values = raw.labels.astype(np.float64)
    if not np.isfinite(values).all():
        raise LabelError(f"{raw.name}: labels hold infinity; drop those samples first")
    low, high = values.min(), values.max()
    if low == high:
        raise LabelError(f"{raw.name}: all labels are {low:g}, there is nothing to bin")
    cuts, times = np.unique(np.quantile(values, np.linspace(0, 1, count + 1)), return_counts=True)
    # a value that several quantiles share is a class of its own: the next one starts another
    ends = [values[values > cut].min() for cut in cuts[times > 1] if cut < high]
    inner = np.unique([*cuts[1:-1], *cuts[times > 1], *ends])
    used, ids = np.unique(np.searchsorted(inner, values, side="right"), return_inverse=True)
    edges = [float(edge) for edge in (low, *inner, high)]
    ranges = [(edges[k], edges[k + 1]) for k in used]
    names = [_range(f"{start:.6g}", f"{stop:.6g}") for start, stop in ranges]
    if len(set(names)) < len(names):
        names = [_range(repr(start), repr(stop)) for start, stop in ranges]
    said = f"labels binned at their quantiles into {len(names)} classes"
    if len(names) < count:
        said += f" ({count} were asked for, but the values repeat)"
    return replace(
        raw,
        labels=ids.astype(np.int64),
        class_names=tuple(names),
        announced=(*raw.announced, said),
        provenance={**raw.provenance, "labels": f"quantiles:{count}"},
        origin=None,
    )


def _range(start: str, stop: str) -> str:
    return start if start == stop else f"{start} to {stop}"


def clustered(
    points: Tensor,  # (n, d)
    count: int,
    seed: int,
    name: str,
) -> Tensor:  # (n,) int64 0..count-1
    """Return the clusters that k-means finds.

    Memory: a float32 copy of the points up to 512 MB; above, batches of 16,384 samples are seen
    three times each.

    Raises:
        LabelError: fewer samples, or fewer different ones, than clusters.
    """
    n = points.shape[0]
    if count > n:
        raise LabelError(f"{name}: {n:,} samples cannot form {count:,} clusters; ask for fewer")
    with warnings.catch_warnings():
        # the error below says it
        warnings.filterwarnings("ignore", "Number of distinct clusters")
        found = _k_means(points, count, seed)
    held = len(np.unique(found))
    if held < count:
        raise LabelError(
            f"{name}: k-means found {held:,} clusters of {count:,}, since samples repeat; ask for "
            "fewer"
        )
    return torch.from_numpy(found.astype(np.int64))


def _k_means(
    points: Tensor,  # (n, d)
    count: int,
    seed: int,
) -> np.ndarray:  # (n,) 0..count-1
    """Return scikit-learn's clusters, of all samples at once or of batches."""
    from sklearn.cluster import KMeans, MiniBatchKMeans

    n = points.shape[0]
    if points.numel() <= CLUSTER_ENTRIES:
        rows = points.to("cpu", torch.float32).numpy()
        return KMeans(count, n_init="auto", random_state=seed).fit_predict(rows)
    size = max(CLUSTER_BATCH, 4 * count)
    model = MiniBatchKMeans(count, batch_size=size, random_state=seed)
    order = torch.from_numpy(np.random.default_rng(seed).permutation(n))
    for _ in range(3):
        # whole batches only: a small one at the end may hold fewer samples than there are clusters
        for start in range(0, max(1, n // size) * size, size):
            batch = points[order[start : start + size].to(points.device)]
            model.partial_fit(batch.to("cpu", torch.float32).numpy())
    parts = [model.predict(p.to("cpu", torch.float32).numpy()) for p in points.split(size)]
    return np.concatenate(parts)
