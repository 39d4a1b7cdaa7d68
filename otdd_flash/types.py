"""The values that travel through the package: datasets, progress, results."""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from otdd_flash.brief import Brief
from otdd_flash.checks import check_points, check_weights, dense_points, shown
from otdd_flash.errors import DataError, WeightError
from otdd_flash.labels import check_names, class_ids
from otdd_flash.settings import OTDDSettings, is_integer

Value = TypeVar("Value")


@dataclass(frozen=True, init=False, eq=False)
class LabelledDataset:
    """Points with a class each: what distances are taken between.

    ``points`` and ``weights`` are plain values; where tensors came that ask for gradients,
    ``graph`` leads back to them, for ``distance(..., differentiable=True)``.

    Args:
        points: (n, ...) numbers; uint8 stays uint8, trailing axes are flattened to d features.
        labels: (n,) integers, strings, bools or integral floats, gaps allowed; ``None``: one class.
        weights: (n,) non-negative, sum 1; ``None``: uniform.
        name: shown in results and errors.
        class_names: names of the label values 0, 1, 2, ...
        sample_shape: shape of one sample for pictures, for example (28, 28).
        provenance: where the points came from, stored in results.
        rows: (n,) integers >= 0, the rows of a larger dataset that these samples are; ``None``:
            they are all of it.

    Raises:
        DataError, LabelError, WeightError: input that cannot be used, with what to do.
    """

    points: Tensor  # (n, d)
    labels: Tensor  # (n,) int64 class ids 0..V-1
    class_names: tuple[str, ...]  # V names
    weights: Tensor  # (n,) float64, sums to 1
    name: str
    sample_shape: tuple[int, ...]
    provenance: dict[str, Any]
    rows: Tensor  # (n,) int64 on the CPU
    graph: tuple[Tensor, Tensor]  # points (n, d) and weights (n,) with what they were made of

    def __init__(
        self,
        points: Any,
        labels: Any = None,
        *,
        weights: Any = None,
        name: str = "dataset",
        class_names: Sequence[str] | None = None,
        sample_shape: Sequence[int] | None = None,
        provenance: Mapping[str, Any] | None = None,
        rows: Any = None,
    ) -> None:
        given = points
        points = dense_points(points, name)
        shape = tuple(points.shape)[1:] or (1,)
        flat = check_points(points, name)
        n = flat.shape[0]
        names: tuple[str, ...] = ("all",)
        if class_names is not None:
            class_names = check_names(class_names, name)
        if labels is None:
            ids = torch.zeros(n, dtype=torch.int64)
        else:
            ids, names = class_ids(labels, n, name, class_names)
        if sample_shape is not None:
            shape = check_sample_shape(sample_shape, flat.shape[1], name) or shape
        if provenance is not None and not isinstance(provenance, Mapping):
            raise DataError(
                f"{name}: provenance is {shown(provenance)}, expected a dict such as "
                '{"split": "train"}'
            )
        masses = check_weights(weights, n, name).to(flat.device)
        values = {
            "points": flat,
            "labels": ids.to(flat.device),
            "class_names": names,
            "weights": masses,
            "name": name,
            "sample_shape": shape,
            "provenance": dict(provenance or {}),
            "rows": torch.arange(n) if rows is None else check_rows(rows, n, name),
            "graph": (_with_graph(given, flat), _with_graph(weights, masses)),
        }
        for key, value in values.items():
            object.__setattr__(self, key, value)

    def __len__(self) -> int:
        return self.points.shape[0]

    @property
    def dimension(self) -> int:
        """Number of features d of a sample."""
        return self.points.shape[1]

    @property
    def classes(self) -> int:
        """Number of classes V that occur."""
        return len(self.class_names)

    def subset(
        self,
        rows: Tensor,  # (k,) int64 row numbers
        **provenance: Any,  # added to the provenance
    ) -> LabelledDataset:
        """Return the chosen rows; weights are renormalised, classes that vanish are dropped."""
        points, weights = self.graph
        total = float(self.weights[rows].sum())
        if total <= 0:
            raise WeightError(f"{self.name}: the chosen rows have no weight")
        return LabelledDataset(
            points[rows],
            self.labels[rows],
            weights=weights[rows] / total,
            name=self.name,
            class_names=self.class_names,
            sample_shape=self.sample_shape,
            provenance={**self.provenance, **provenance},
            rows=self.rows[rows.cpu() if isinstance(rows, Tensor) else rows],
        )

    def __repr__(self) -> str:
        return (
            f"LabelledDataset({self.name!r}, n={len(self)}, d={self.dimension}, "
            f"classes={self.classes}, {self.points.dtype})"
        )


def _with_graph(
    given: Any,  # what the caller passed
    values: Tensor,  # what became of it
) -> Tensor:
    """Return the values, as a function of the caller's tensors where those ask for gradients."""
    if isinstance(given, (list, tuple)) and given and isinstance(given[0], Tensor):
        given = torch.stack(list(given))
    if isinstance(given, Tensor) and given.requires_grad:
        return given.reshape(values.shape).to(values)
    return values


def check_rows(
    rows: Any,  # what the caller passed
    n: int,  # samples
    name: str,
) -> Tensor:  # (n,) int64
    """Return the row numbers of samples.

    Raises:
        DataError: not one integer >= 0 a sample.
    """
    values = rows if isinstance(rows, Tensor) else np.asarray(rows)
    if values.shape != (n,) or not np.issubdtype(np.asarray(values[:1]).dtype, np.integer):
        raise DataError(
            f"{name}: rows are {shown(rows)}, expected {n:,} integers: the row of each sample in "
            "the dataset it was drawn from"
        )
    values = torch.as_tensor(values).cpu().to(torch.int64)
    if int(values.min()) < 0:
        raise DataError(f"{name}: rows hold {int(values.min())}, expected numbers >= 0")
    return values


def check_sample_shape(
    sample_shape: Any,  # what the caller passed
    d: int,  # features of a sample
    name: str,
) -> tuple[int, ...]:
    """Return the shape of one sample as a tuple of Python integers.

    Raises:
        DataError: not positive integers, or their product is not d.
    """
    sizes: Any = sample_shape if isinstance(sample_shape, (Sequence, np.ndarray)) else (None,)
    if not all(is_integer(size) and size >= 1 for size in sizes):
        raise DataError(
            f"{name}: sample_shape is {shown(sample_shape)}, expected positive integers, "
            "for example (28, 28)"
        )
    shape = tuple(int(size) for size in sizes)
    if math.prod(shape) != d:
        raise DataError(
            f"{name}: sample_shape {shape} has {math.prod(shape)} entries, the samples have {d}"
        )
    return shape


@dataclass(frozen=True)
class Progress:
    """One step of a long computation, yielded to the caller who shows it."""

    stage: str  # what is worked on, for example "class laws", "self source", "solve", "certificate"
    done: int  # steps finished in this stage
    total: int | None  # steps of this stage, None when it is not known
    note: str = ""  # for example the marginal error
    data: dict[str, float] = field(default_factory=dict)


def finish(steps: Generator[Any, None, Value]) -> Value:
    """Run a computation that yields its progress to its end and return its result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            return done.value


@dataclass(frozen=True)
class Transport:
    """Bounds of the transport cost: ``lower <= OT <= upper`` (unregularised, true points)."""

    lower: float
    entropic: float
    upper: float


@dataclass(frozen=True)
class Interval:
    """Where a squared distance may be expected for other samples of the same kind."""

    lower: float
    upper: float
    half_width: float
    level: float  # share of the resamples that fall inside
    mean: float  # of the resampled values: duplicates among the samples lift it
    deviation: float  # standard deviation of the resampled values
    resamples: int
    seed: int


@dataclass(frozen=True)
class NoiseFloor:
    """The squared distance between two disjoint halves of a dataset: what no difference gives."""

    squared: float
    squared_bounds: tuple[float, float]
    n: int  # samples of the smaller half
    seed: int


@dataclass(frozen=True)
class DatasetSummary:
    """What a result says of a dataset."""

    name: str
    n: int
    d: int
    classes: int
    class_names: tuple[str, ...] = field(repr=False)
    provenance: dict[str, Any] = field(repr=False)


@dataclass(frozen=True, eq=False, repr=False)
class OTDDResult(Brief):
    """A dataset distance with the evidence for it.

    ``squared`` is S, ``distance`` its root; ``squared_bounds`` encloses S. ``f`` and ``g`` are the
    dual potentials of the cross term in the caller's row order, ``class_mass`` the plan summed
    over class pairs, ``label_cost`` the squared Wasserstein distances between class laws.
    ``plan`` answers what the transport plan says, streamed: products, barycentric map, matches; it
    keeps the points of both datasets in the memory of the device. ``loss`` is S once more, as a
    tensor to differentiate; no file keeps it.
    """

    source: DatasetSummary
    target: DatasetSummary
    distance: float
    squared: float
    squared_bounds: tuple[float, float]
    transport: Transport
    epsilon: float  # in units of the cost
    mean_cost: float
    marginal_error: float  # L1, the largest of the solves
    converged: bool
    passes: int  # softmins over all pairs of the cross term
    self_passes: tuple[int, int]  # of the self terms, (0, 0) without debiasing
    label_cost: Tensor  # (Vx, Vy) float64
    class_mass: Tensor  # (Vx, Vy) float64, sums to 1
    f: Tensor  # (n,) float64, NaN where a sample has weight zero
    g: Tensor  # (m,) float64
    quantization_error: float  # bound on |OT of the stored points - OT of the given points|
    seconds: dict[str, float] = field(repr=False)  # by stage, and in total
    # allocated on a GPU; of the whole process on the CPU
    peak_memory_bytes: int = field(repr=False)
    device: str
    settings: OTDDSettings
    versions: dict[str, str] = field(repr=False)
    notes: tuple[str, ...] = ()
    interval: Interval | None = None  # of the squared distance, where a bootstrap was asked for
    noise_floor: tuple[NoiseFloor, ...] = ()  # of source and target, where asked for
    # a `solver.plan.Plan`, which streams; None in a result that was loaded from a file: files keep
    # the fields that are compared
    plan: Any = field(default=None, repr=False, compare=False)
    # S as a function of the samples, () float64, from distance(..., differentiable=True)
    loss: Tensor | None = field(default=None, repr=False, compare=False)
