"""A dataset as it was read: its samples are not points yet, its labels not class ids."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from otdd_flash.errors import DataError, DatasetNotFoundError, reason
from otdd_flash.samples import Arrays, Samples
from otdd_flash.types import LabelledDataset

REPAIR = "replace it with a good copy"


@dataclass(frozen=True, eq=False)
class RawDataset:
    """What a reader returns; ``announced`` are the choices it made that a user should hear of."""

    name: str
    samples: Samples
    labels: np.ndarray | None  # (n,) integers, floats, bools, or objects; None: it has none
    class_names: tuple[str, ...] | None = None  # names of the label values 0, 1, 2, ...
    provenance: dict[str, Any] = field(default_factory=dict)
    announced: tuple[str, ...] = ()
    weights: Tensor | None = None  # (n,) float64; None: uniform
    origin: LabelledDataset | None = None  # what it was, as long as nothing has changed
    rows: np.ndarray | None = None  # (n,) int64 rows of what was read; None: all of them
    regression: bool = False  # the labels are known to be a quantity, not classes

    def __len__(self) -> int:
        return len(self.samples)

    def take(
        self,
        chosen: np.ndarray,  # (k,) int64 positions
        *announced: str,
        **provenance: Any,
    ) -> RawDataset:
        """Return some of the samples; none is decoded."""
        weights = None if self.weights is None else self.weights[chosen]
        return replace(
            self,
            samples=self.samples.take(chosen),
            labels=None if self.labels is None else self.labels[chosen],
            weights=None if weights is None else weights / weights.sum(),
            rows=(np.arange(len(self)) if self.rows is None else self.rows)[chosen],
            provenance={**self.provenance, **provenance},
            announced=(*self.announced, *announced),
            origin=None,
        )

    def noted(
        self,
        *announced: str,
        **provenance: Any,
    ) -> RawDataset:
        """Return the same samples, their points now others, with more said of them."""
        return replace(
            self,
            provenance={**self.provenance, **provenance},
            announced=(*self.announced, *announced),
            origin=None,
        )


def raw_of(dataset: LabelledDataset) -> RawDataset:
    """Return a loaded dataset as one that can be drawn from and encoded."""
    points = dataset.points.reshape(len(dataset), *dataset.sample_shape)
    provenance = dict(dataset.provenance)
    announced = tuple(provenance.pop("announced", ()))
    return RawDataset(
        dataset.name,
        Arrays.of(points),
        dataset.labels.cpu().numpy(),
        dataset.class_names,
        provenance,
        announced,
        weights=dataset.weights.cpu(),
        origin=dataset,
        rows=dataset.rows.numpy(),
    )


def check_file(path: Path) -> bytes:
    """Return a file's first bytes; refuse files that hold nothing or a web page.

    Raises:
        DatasetNotFoundError: no such file.
        DataError: empty, a web page, or not to be read.
    """
    try:
        with path.open("rb") as file:
            start = file.read(512)
    except FileNotFoundError as error:
        raise DatasetNotFoundError(f"{path}: no such file") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error
    if not start:
        raise DataError(f"{path}: the file is empty; {REPAIR}")
    words = start.removeprefix(b"\xef\xbb\xbf").lstrip().lower()
    if words.startswith((b"<!doctype", b"<html", b"<?xml", b"<head")):
        raise DataError(f"{path}: holds a web page, not data; {REPAIR}")
    return start


def damaged(path: Path, what: str, error: Exception) -> DataError:
    """Return the error of a file that its own library cannot read."""
    return DataError(f"{path}: not a whole {what} file ({reason(error)}); {REPAIR}")
