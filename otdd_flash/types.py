"""The values that travel through the package: datasets, settings, progress, results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.errors import DataError, LabelError, SettingsError, WeightError

# how far a sum of weights may be from one and still count as rounding
WEIGHT_SUM_TOLERANCE = 1e-4


def check_weights(
    weights: Any,  # (n,) non-negative numbers that sum to 1, or None for uniform
    n: int,
    name: str,
) -> Tensor:  # (n,) float64, sums to 1 to the last bits
    """Return float64 weights, uniform for ``None``.

    Raises:
        WeightError: wrong length, NaN, infinite or negative entries, or a sum that is not one.
    """
    if weights is None:
        return torch.full((n,), 1.0 / n, dtype=torch.float64)
    weights = torch.as_tensor(weights).detach().to("cpu", torch.float64)
    if weights.shape != (n,):
        raise WeightError(
            f"{name}: weights have shape {tuple(weights.shape)}, expected ({n},): one a sample"
        )
    bad = ~torch.isfinite(weights) | (weights < 0)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise WeightError(
            f"{name}: weight {row} is {float(weights[row])}; weights must be finite and >= 0"
        )
    total = float(weights.sum())
    if abs(total - 1.0) > WEIGHT_SUM_TOLERANCE:
        raise WeightError(
            f"{name}: weights sum to {total:.6g}, expected 1; pass weights / weights.sum()"
        )
    return weights / total


def check_points(
    points: Any,  # (n, ...) numbers
    name: str,
) -> Tensor:  # (n, d), the dtype kept
    """Return points as a contiguous (n, d) tensor on their device.

    Raises:
        DataError: not numeric, no sample, no feature, NaN or infinite entries (with the row).
    """
    if not isinstance(points, Tensor):
        array = np.asarray(points)
        if array.dtype.kind not in "biuf":
            raise DataError(f"{name}: points have dtype {array.dtype}, expected numbers")
        points = torch.from_numpy(np.ascontiguousarray(array))
    if points.is_complex() or points.is_sparse or points.is_quantized:
        raise DataError(f"{name}: points are {points.dtype} {points.layout}, expected dense reals")
    if points.dtype == torch.bool:
        points = points.to(torch.uint8)
    if points.ndim == 0 or points.shape[0] == 0:
        raise DataError(f"{name}: no samples arrived (shape {tuple(points.shape)})")
    if points.ndim == 1:
        points = points[:, None]
    points = points.detach().reshape(points.shape[0], -1)
    if points.shape[1] == 0:
        raise DataError(f"{name}: samples have no features (shape {tuple(points.shape)})")
    if points.is_floating_point():
        finite = torch.isfinite(points).all(dim=1)
        if not finite.all():
            row = int((~finite).nonzero()[0])
            raise DataError(
                f"{name}: row {row} holds NaN or infinity ({int((~finite).sum())} such rows); "
                "drop or impute them"
            )
    return points.contiguous()


def class_ids(
    labels: Any,  # (n,) integers, strings, bools or integral floats
    n: int,
    name: str,
    class_names: Sequence[str] | None = None,  # names of the label values 0..len-1
) -> tuple[Tensor, tuple[str, ...]]:  # (n,) int64 ids 0..V-1 and the V names of present classes
    """Return class ids, numbered in sorted order of the labels that occur, and their names.

    Raises:
        LabelError: wrong length, missing labels (-1, NaN, None), names that do not reach.
    """
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    if isinstance(labels, np.ndarray):
        array = labels
    else:
        items = list(labels)
        array = np.empty(len(items), dtype=object)
        for k, item in enumerate(items):
            array[k] = item.item() if hasattr(item, "item") and np.ndim(item) == 0 else item
    if array.ndim != 1 or len(array) != n:
        raise LabelError(f"{name}: labels have shape {array.shape}, expected ({n},): one a sample")
    if array.dtype.kind == "O":
        missing = np.array([v is None or (isinstance(v, float) and math.isnan(v)) for v in array])
        if not missing.any():
            array = np.array(array.tolist())
    elif array.dtype.kind == "f":
        missing = np.isnan(array)
    else:
        missing = np.zeros(n, dtype=bool)
    if array.dtype.kind in "if":
        missing = missing | (array == -1)
    if missing.any():
        raise LabelError(
            f"{name}: {int(missing.sum()):,} of {n:,} labels are missing (-1, NaN or None); "
            "drop those samples before, or label them (by clustering, say)"
        )
    if array.dtype.kind == "f":
        fractional = array != np.round(array)
        if fractional.any():
            row = int(np.flatnonzero(fractional)[0])
            raise LabelError(
                f"{name}: label {row} is {array[row]!r}; classes must be integers or strings"
            )
        array = array.astype(np.int64)
    if array.dtype.kind not in "biuUS":
        raise LabelError(
            f"{name}: labels have dtype {array.dtype}; expected integers or strings, one kind"
        )
    values, ids = np.unique(array, return_inverse=True)
    if class_names is None:
        names = tuple(v.decode() if isinstance(v, bytes) else str(v) for v in values.tolist())
    else:
        if array.dtype.kind not in "biu" or values[0] < 0 or values[-1] >= len(class_names):
            raise LabelError(
                f"{name}: {len(class_names)} class names cannot name the labels "
                f"{values[0]!r}..{values[-1]!r}; labels must be integers 0..{len(class_names) - 1}"
            )
        names = tuple(str(class_names[int(v)]) for v in values)
    return torch.from_numpy(ids.reshape(-1).astype(np.int64)), names


@dataclass(frozen=True, init=False, eq=False)
class LabelledDataset:
    """Points with a class each: what distances are taken between.

    Args:
        points: (n, ...) numbers; uint8 stays uint8, trailing axes are flattened to d features.
        labels: (n,) integers, strings, bools or integral floats, gaps allowed; ``None``: one class.
        weights: (n,) non-negative, sum 1; ``None``: uniform.
        name: shown in results and errors.
        class_names: names of the label values 0, 1, 2, ...
        sample_shape: shape of one sample for pictures, for example (28, 28).
        provenance: where the points came from, stored in results.

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

    def __init__(
        self,
        points: Any,
        labels: Any = None,
        *,
        weights: Any = None,
        name: str = "dataset",
        class_names: Sequence[str] | None = None,
        sample_shape: tuple[int, ...] | None = None,
        provenance: dict[str, Any] | None = None,
    ) -> None:
        shape = tuple(np.shape(points))[1:] or (1,)
        flat = check_points(points, name)
        n = flat.shape[0]
        names: tuple[str, ...] = ("all",)
        if labels is None:
            ids = torch.zeros(n, dtype=torch.int64)
        else:
            ids, names = class_ids(labels, n, name, class_names)
        if sample_shape is not None and math.prod(sample_shape) != flat.shape[1]:
            raise DataError(
                f"{name}: sample_shape {sample_shape} has {math.prod(sample_shape)} entries, "
                f"the samples have {flat.shape[1]}"
            )
        values = {
            "points": flat,
            "labels": ids.to(flat.device),
            "class_names": names,
            "weights": check_weights(weights, n, name).to(flat.device),
            "name": name,
            "sample_shape": sample_shape or shape,
            "provenance": dict(provenance or {}),
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
        weights = self.weights[rows]
        total = float(weights.sum())
        if total <= 0:
            raise WeightError(f"{self.name}: the chosen rows have no weight")
        return LabelledDataset(
            self.points[rows],
            self.labels[rows],
            weights=weights / total,
            name=self.name,
            class_names=self.class_names,
            sample_shape=self.sample_shape,
            provenance={**self.provenance, **provenance},
        )

    def __repr__(self) -> str:
        return (
            f"LabelledDataset({self.name!r}, n={len(self)}, d={self.dimension}, "
            f"classes={self.classes}, {self.points.dtype})"
        )


@dataclass(frozen=True)
class Progress:
    """One step of a long computation, yielded to the caller who shows it."""

    stage: str  # what is worked on, for example "class laws", "self source", "solve", "certificate"
    done: int  # steps finished in this stage
    total: int | None  # steps of this stage, None when it is not known
    note: str = ""  # for example the marginal error
    data: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Transport:
    """Bounds of the transport cost: ``lower <= OT <= upper`` (unregularised, true points)."""

    lower: float
    entropic: float
    upper: float


@dataclass(frozen=True)
class DatasetSummary:
    """What a result says of a dataset."""

    name: str
    n: int
    d: int
    classes: int
    class_names: tuple[str, ...]
    provenance: dict[str, Any]


@dataclass(frozen=True)
class OTDDSettings:
    """Settings of a dataset distance, checked on construction.

    ``epsilon`` is in units of the cost when a number, or relative to the mean cost as ``"1%"``.
    ``max_passes`` counts softmins over all pairs, for each of the three solves.

    Raises:
        SettingsError: a value outside its range.
    """

    epsilon: float | str = "1%"
    tol: float = 1e-3
    max_passes: int = 2000
    lambda_x: float = 1.0
    lambda_y: float = 1.0
    label_distance: str = "gaussian"  # gaussian | diagonal | means
    normalize: str = "none"  # none | unit | mnist
    convention: str = "otdd"  # otdd | microsoft
    debias: bool = True
    slices: int | None = None  # int8 slices a coordinate on a GPU; None: 1 exact or 2
    memory_budget: int | None = None  # bytes; None: half of what is free
    device: str = "auto"

    def __post_init__(self) -> None:
        parse_epsilon(self.epsilon)
        for key in ("tol", "lambda_x", "lambda_y"):
            value = getattr(self, key)
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise SettingsError(f"{key} is {value!r}, expected a number")
            if not math.isfinite(value) or value < 0 or (key == "tol" and value == 0):
                least = "> 0" if key == "tol" else ">= 0"
                raise SettingsError(f"{key} is {value}, expected a finite number {least}")
        if self.lambda_x == 0 and self.lambda_y == 0:
            raise SettingsError("lambda_x and lambda_y are both 0: the cost would be 0 everywhere")
        if not isinstance(self.max_passes, int) or self.max_passes < 1:
            raise SettingsError(f"max_passes is {self.max_passes!r}, expected an integer >= 1")
        named: dict[str, tuple[str, ...]] = {
            "label_distance": ("gaussian", "diagonal", "means"),
            "normalize": ("none", "unit", "mnist"),
            "convention": ("otdd", "microsoft"),
        }
        for key, choices in named.items():
            value = getattr(self, key)
            if value not in choices:
                raise SettingsError(f"{key} is {value!r}, expected one of {', '.join(choices)}")
        if self.slices not in (None, 1, 2, 3):
            raise SettingsError(f"slices is {self.slices!r}, expected 1, 2 or 3")
        if self.memory_budget is not None and self.memory_budget < 1:
            raise SettingsError(f"memory_budget is {self.memory_budget}, expected bytes > 0")

    @property
    def cost_scale(self) -> float:
        """Factor of the cost: 1, or 1/2 in the convention of microsoft/otdd."""
        return 0.5 if self.convention == "microsoft" else 1.0


def parse_epsilon(
    epsilon: float | str,  # 0.1 (units of the cost) or "1%" (of the mean cost)
) -> tuple[float, bool]:  # the number and whether it is relative to the mean cost
    """Read an epsilon: ``"1%"`` is 0.01 of the mean cost, ``0.1`` is absolute.

    Raises:
        SettingsError: not a number, or not positive and finite.
    """
    text = str(epsilon).strip()
    relative = text.endswith("%")
    try:
        value = float(text[:-1]) / 100 if relative else float(text)
    except ValueError:
        value = math.nan
    if isinstance(epsilon, bool) or not math.isfinite(value) or value <= 0:
        raise SettingsError(
            f"epsilon is {epsilon!r}; expected a number > 0 in units of the cost, such as 0.1, "
            "or a share of the mean cost, such as 1%"
        )
    return value, relative


@dataclass(frozen=True)
class OTDDResult:
    """A dataset distance with the evidence for it.

    ``squared`` is S, ``distance`` its root; ``squared_bounds`` encloses S. ``f`` and ``g`` are the
    dual potentials of the cross term in the caller's row order, ``class_mass`` the plan summed
    over class pairs, ``label_cost`` the squared Wasserstein distances between class laws.
    ``plan`` answers what the transport plan says, streamed: products, barycentric map, matches; it
    keeps the points of both datasets in the memory of the device.
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
    seconds: dict[str, float]  # by stage, and in total
    peak_memory_bytes: int  # allocated on a GPU; of the whole process on the CPU
    device: str
    settings: OTDDSettings
    versions: dict[str, str]
    notes: tuple[str, ...] = ()
    # a `plan.Plan`, which streams; None in a result that was loaded from a file
    plan: Any = field(default=None, repr=False, compare=False)
