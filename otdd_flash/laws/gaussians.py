"""Class laws: mass, mean and covariance of each class, in float64, in one form that factors.

A covariance is kept as a factor ``F`` with ``cov = F^T F``: the centred, weighted rows of a small
class, the pivoted Cholesky factor of a large one. A factor keeps the null space of a law exact,
so that the square roots that Bures distances take do not turn rounding u into sqrt(u).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from otdd_flash.errors import DataError, LabelError, SettingsError, WeightError
from otdd_flash.laws.factors import factorize
from otdd_flash.laws.moments import ClassSample
from otdd_flash.settings import check_choice
from otdd_flash_kernels.workers import spread

KINDS = ("gaussian", "diagonal", "means")
# covariances factored together on an accelerator, in entries (128 MB)
BATCH_ENTRIES = 1 << 24


@dataclass(frozen=True, eq=False)
class ClassLaws:
    """Laws of V classes: ``N(means[c], covariance c)`` with weight ``masses[c]``.

    ``kind`` says what a law is: "gaussian" (factors), "diagonal" (variances) or "means" (neither).
    Memory: V d^2 floats at most for factors, V d otherwise.
    """

    kind: str
    masses: Tensor  # (V,) float64, total weight of the class
    means: Tensor  # (V, d) float64, units of the points
    variances: Tensor | None = None  # (V, d) float64, squared units of the points
    factors: tuple[Tensor, ...] | None = None  # V of (rank_c, d) float64, covariance = F^T F

    @property
    def classes(self) -> int:
        """Number of classes V."""
        return self.means.shape[0]

    @property
    def dimension(self) -> int:
        """Number of features d."""
        return self.means.shape[1]

    @property
    def covariances(self) -> Tensor:  # (V, d, d) float64
        """Covariances, formed on each request (V d^2 floats).

        Raises:
            SettingsError: laws of the kind "means" have none.
        """
        if self.factors is not None:
            return torch.stack([factor.mT @ factor for factor in self.factors])
        if self.variances is not None:
            return torch.diag_embed(self.variances)
        raise SettingsError(f"laws of the kind {self.kind!r} have no covariances")

    def on(self, device: torch.device) -> ClassLaws:
        """Laws on another device."""
        return replace(
            self,
            masses=self.masses.to(device),
            means=self.means.to(device),
            variances=None if self.variances is None else self.variances.to(device),
            factors=None if self.factors is None else tuple(f.to(device) for f in self.factors),
        )

    def scaled(
        self,
        scale: float,  # the same for all features
    ) -> ClassLaws:
        """Laws of the points times ``scale``; squared distances change by ``scale^2``."""
        return replace(
            self,
            means=self.means * scale,
            variances=None if self.variances is None else self.variances * scale**2,
            factors=None if self.factors is None else tuple(f * scale for f in self.factors),
        )


def class_laws(
    points: Tensor,  # (n, d) any real dtype; uint8 and int8 moments are exact sums
    labels: Tensor,  # (n,) int64 class ids
    weights: Tensor,  # (n,) >= 0; normalised inside each class
    *,
    kind: str = "gaussian",
    classes: int | None = None,  # V, for a part whose classes are not all there (see `merge`)
    device: torch.device | str | None = None,  # where to compute; None: where the points are
) -> ClassLaws:
    """Return the weighted law of each class (population covariance, no n - 1).

    ``mean_c = sum_i w_i x_i``, ``cov_c = sum_i w_i (x_i - mean_c)(x_i - mean_c)^T`` over the
    samples i of class c with ``sum_i w_i = 1``. Samples of weight zero are ignored, a class of one
    sample is a point mass. Centred before any product, so a common offset costs no digits;
    integer samples of equal weight are summed exactly, so the order of rows leaves no trace
    in classes of more than d samples.

    Memory: chunks of 64 MB, one a worker, beside the result; never an (n, d) float64 copy, but for
    classes of at most d samples, whose centred rows are the factor.

    Raises:
        DataError: not (n, d), or NaN or infinite entries.
        LabelError: wrong length, or ids outside 0..V-1.
        WeightError: wrong length, negative, NaN, or a class without weight (unless ``classes``
            is given: then its mass is 0, which `merge` accepts and distances refuse).
        SettingsError: unknown kind.
    """
    _check(points, labels, weights, kind, classes)
    device = torch.device(points.device if device is None else device)
    groups = class_groups(
        labels.to(points.device), weights.to(points.device, torch.float64), classes
    )

    def law(group: tuple[Tensor, Tensor]) -> _Law:
        return _law(points, *group, kind, device)

    if device.type == "cpu":
        laws = spread(law, groups)
    else:
        laws = []
        step = max(1, BATCH_ENTRIES // points.shape[1] ** 2)
        for k in range(0, len(groups), step):
            laws += _factored([law(group) for group in groups[k : k + step]])
    means = torch.stack([law.mean for law in laws])
    if not torch.isfinite(means).all():
        raise DataError("points hold NaN or infinity; drop or impute those rows")
    return ClassLaws(
        kind,
        torch.tensor([law.mass for law in laws], dtype=torch.float64, device=device),
        means,
        torch.stack([law.shape for law in laws]) if kind == "diagonal" else None,
        tuple(law.shape for law in laws) if kind == "gaussian" else None,
    )


def class_groups(
    labels: Tensor,  # (n,) int64
    weights: Tensor,  # (n,) float64
    classes: int | None = None,  # V, where classes may be empty
) -> list[tuple[Tensor, Tensor]]:  # V of rows (n_c,) int64 and their weights (n_c,)
    """Return the samples of positive weight of each class, in the order of the rows.

    Raises:
        WeightError: a class without such a sample, unless ``classes`` is given.
    """
    kept = torch.nonzero(weights > 0)[:, 0]
    order = kept[torch.argsort(labels[kept], stable=True)]
    total = int(labels.max()) + 1 if classes is None else classes
    counts = torch.bincount(labels[order], minlength=total).tolist()
    if classes is None and 0 in counts:
        raise WeightError(
            f"class {counts.index(0)} of {total} has no sample of positive weight; drop its "
            "samples and renumber the classes"
        )
    return [(rows, weights[rows]) for rows in torch.split(order, counts)]


class _Law(NamedTuple):
    mass: float
    mean: Tensor  # (d,)
    shape: Tensor  # variances (d,), a factor (rank, d), a covariance (d, d), or nothing (0,)
    raw: bool = False  # the shape is a covariance that is still to be factored


def _law(points: Tensor, rows: Tensor, weights: Tensor, kind: str, device: torch.device) -> _Law:
    sample = ClassSample(points, rows, weights, device)
    if kind == "means":
        return _Law(sample.mass, sample.mean, sample.mean[:0])
    if kind == "diagonal":
        return _Law(sample.mass, sample.mean, sample.variance())
    if sample.by_rows:
        return _Law(sample.mass, sample.mean, sample.rows_factor())
    law = _Law(sample.mass, sample.mean, sample.covariance(), raw=True)
    return _factored([law])[0] if device.type == "cpu" else law


def _factored(laws: list[_Law]) -> list[_Law]:
    raw = [law.shape for law in laws if law.raw]
    factors = iter(factorize(torch.stack(raw)) if raw else ())
    return [law._replace(shape=next(factors), raw=False) if law.raw else law for law in laws]


def laws_from_moments(
    masses: Tensor,  # (V,)
    means: Tensor,  # (V, d)
    covariances: Tensor,  # (V, d, d) symmetric, positive semidefinite
) -> ClassLaws:
    """Return Gaussian laws of known moments.

    Raises:
        DataError: shapes that do not fit, or a matrix that is not a covariance.
    """
    masses, means, covariances = (t.to(torch.float64) for t in (masses, means, covariances))
    if means.ndim != 2 or masses.shape != means.shape[:1]:
        raise DataError(
            f"moments: masses have shape {tuple(masses.shape)}, means {tuple(means.shape)}; "
            "expected (V,) and (V, d)"
        )
    if covariances.shape != (*means.shape, means.shape[1]):
        raise DataError(
            f"moments: covariances have shape {tuple(covariances.shape)}, "
            f"expected {(*means.shape, means.shape[1])}"
        )
    factors = factorize(covariances)
    for c, factor in enumerate(factors):
        gap = (factor.mT @ factor - covariances[c]).abs().max() if factor.shape[1] else 0.0
        if not gap <= 1e-8 * covariances[c].abs().max():
            raise DataError(
                f"covariance {c} is not symmetric positive semidefinite to 1e-8 of its largest "
                "entry; symmetrise it and clip its negative eigenvalues"
            )
    return ClassLaws("gaussian", masses, means, None, tuple(factors))


def merge(
    first: ClassLaws,
    second: ClassLaws,  # the same classes, kind, d and device
) -> ClassLaws:
    """Return the laws of the union of two parts of a dataset.

    ``cov = p cov_1 + q cov_2 + p q (mean_1 - mean_2)(mean_1 - mean_2)^T`` with p, q the shares of
    the masses (Chan, Golub and LeVeque 1983, "Algorithms for computing the sample variance").
    Factors are stacked, and reduced by QR when they have more than d rows.

    Raises:
        DataError: laws that differ in kind or shape.
    """
    if first.kind != second.kind or first.means.shape != second.means.shape:
        raise DataError(
            f"cannot merge {first.kind} laws of shape {tuple(first.means.shape)} with "
            f"{second.kind} laws of shape {tuple(second.means.shape)}"
        )
    masses = first.masses + second.masses
    q = (second.masses / masses.where(masses > 0, 1.0))[:, None]
    gap = second.means - first.means
    # a part without the class has no mean to move from
    means = torch.where(q == 1, second.means, first.means + q * gap)
    variances, factors = None, None
    if first.variances is not None and second.variances is not None:
        variances = (1 - q) * first.variances + q * second.variances + (1 - q) * q * gap**2
    if first.factors is not None and second.factors is not None:
        factors = tuple(
            _stack_factors(f, s, float(share), difference)
            for f, s, share, difference in zip(
                first.factors, second.factors, q[:, 0].tolist(), gap, strict=True
            )
        )
    return ClassLaws(first.kind, masses, means, variances, factors)


def _stack_factors(f: Tensor, s: Tensor, q: float, gap: Tensor) -> Tensor:
    if q in (0.0, 1.0):
        return s if q else f
    rows = torch.cat([f * (1 - q) ** 0.5, s * q**0.5, gap[None] * ((1 - q) * q) ** 0.5])
    rows = rows[rows.abs().amax(1) > 0] if rows.numel() else rows
    return torch.linalg.qr(rows, mode="r").R if rows.shape[0] > rows.shape[1] else rows


def _check(points: Tensor, labels: Tensor, weights: Tensor, kind: str, classes: int | None) -> None:
    check_choice("kind", kind, KINDS)
    if points.ndim != 2 or points.shape[0] == 0:
        raise DataError(f"points have shape {tuple(points.shape)}, expected (n, d) with n >= 1")
    n = points.shape[0]
    if labels.shape != (n,) or labels.is_floating_point():
        raise LabelError(
            f"labels are {labels.dtype} of shape {tuple(labels.shape)}, expected ({n},) integers"
        )
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (classes is not None and high >= classes):
        last = (classes or high + 1) - 1
        raise LabelError(f"labels reach from {low} to {high}, expected 0..{last}")
    if weights.shape != (n,):
        raise WeightError(f"weights have shape {tuple(weights.shape)}, expected ({n},)")
    if not bool((torch.isfinite(weights) & (weights >= 0)).all()):
        raise WeightError("weights hold negative, infinite or NaN entries; they must be >= 0")
