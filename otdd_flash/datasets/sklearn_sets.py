"""The datasets of scikit-learn: ``sklearn:wine``, ``sklearn:20newsgroups``."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Any

import numpy as np

from otdd_flash.datasets.columns import raw_table
from otdd_flash.datasets.frames import TableFrame
from otdd_flash.datasets.named_arrays import tidy_labels
from otdd_flash.datasets.raw import RawDataset
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.errors import DataError, DatasetNotFoundError, SettingsError
from otdd_flash.samples import Arrays, Texts

PREFIX = "sklearn:"
# their targets are quantities, whatever their values look like
REGRESSION = ("diabetes", "california_housing", "linnerud")
# not one labelled dataset each
OTHERS = (
    "files", "sample_image", "sample_images", "svmlight_file", "svmlight_files", "openml", "file",
    "species_distributions", "lfw_pairs",
)  # fmt: skip


def known_sklearn() -> tuple[str, ...]:
    """Return the names that ``sklearn:`` takes."""
    from sklearn import datasets

    names = {n.partition("_")[2] for n in dir(datasets) if n.startswith(("load_", "fetch_"))}
    return tuple(sorted(names - set(OTHERS)))


def read_sklearn(spec: str, settings: LoadSettings, label: str | None) -> RawDataset:
    """Load a dataset of scikit-learn; those it does not carry are downloaded into its cache.

    Raises:
        DatasetNotFoundError: no such name, or no network.
    """
    from sklearn import datasets

    name = spec.removeprefix(PREFIX)
    if name not in known_sklearn():
        raise DatasetNotFoundError(
            f"scikit-learn has no dataset {name!r}; it has {', '.join(known_sklearn())}"
        )
    make = getattr(datasets, f"load_{name}", None) or getattr(datasets, f"fetch_{name}")
    # the news are the only ones with splits
    splits = name.startswith("20newsgroups")
    if settings.split != "train" and not splits:
        raise SettingsError(f"{spec} has no split {settings.split!r}; it is one set of samples")
    try:
        with warnings.catch_warnings():
            # each retry of a download that is going to be reported as failed
            warnings.filterwarnings("ignore", "Retry downloading", UserWarning)
            bunch = make(subset=settings.split) if splits else make()
    except OSError as error:
        raise DatasetNotFoundError(
            f"{spec}: the download failed ({error}); sklearn:wine, iris, breast_cancer, digits and "
            "diabetes come with scikit-learn"
        ) from error
    return _raw(bunch, spec, name in REGRESSION, settings, label)


def _raw(
    bunch: Any, spec: str, regression: bool, settings: LoadSettings, label: str | None
) -> RawDataset:
    provenance: dict[str, Any] = {"source": "scikit-learn"}
    data, target = bunch["data"], np.asarray(bunch["target"])
    names = _class_names(bunch, target)
    if isinstance(data, list) or "images" in bunch:
        if label not in (None, "target"):
            raise DataError(f"{spec}: has no label {label!r}, only 'target'")
        samples: Any
        if isinstance(data, list):
            samples = Texts(lambda rows: [data[k] for k in rows], np.arange(len(data)))
        else:
            samples = Arrays.of(_pixels(np.asarray(bunch["images"])))
        labels = tidy_labels(target, len(data), spec)
        provenance["label"] = "target"
        return RawDataset(spec, samples, labels, names, provenance, regression=regression)
    if not isinstance(data, np.ndarray) or data.ndim != 2:
        raise DataError(f"{spec}: holds a {type(data).__name__}, expected a table of numbers")
    import pyarrow as pa

    columns = [str(n) for n in bunch.get("feature_names", range(data.shape[1]))]
    table = pa.table({n: np.ascontiguousarray(data[:, k]) for k, n in enumerate(columns)})
    table = table.append_column("target", pa.array(tidy_labels(target, len(data), spec)))
    raw = raw_table(TableFrame(table), spec, settings, label, **provenance)
    own = raw.provenance["label"] == "target"
    return replace(
        raw, class_names=names if own else raw.class_names, regression=regression and own
    )


def _class_names(bunch: Any, target: np.ndarray) -> tuple[str, ...] | None:
    """Return the names of the classes 0, 1, 2, ..., None where the targets are not these."""
    found = bunch.get("target_names")
    if found is None or target.ndim != 1 or target.dtype.kind not in "iu":
        return None
    return tuple(map(str, found)) if 0 <= target.min() <= target.max() < len(found) else None


def _pixels(images: np.ndarray) -> Any:
    import torch

    # grey levels such as 0..16 are exact as bytes
    whole = images.min() >= 0 and images.max() <= 255 and (images == np.round(images)).all()
    return torch.from_numpy(images.astype(np.uint8) if whole else np.ascontiguousarray(images))
