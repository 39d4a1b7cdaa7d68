"""From datasets to the cost that the solver sees: normalised, sorted by class, on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.errors import DataError, SettingsError
from otdd_flash.inputs import check_datasets
from otdd_flash.operators import CostOperator
from otdd_flash.ops import make_clouds, make_operator
from otdd_flash.types import LabelledDataset
from otdd_flash_kernels.pair import CostPair, bilinear
from otdd_flash_kernels.quantize import Cloud

MNIST_STD = 0.3081


@dataclass(frozen=True, eq=False)
class Margin:
    """Classes and weights of samples, in the order in which a problem holds them."""

    labels: Tensor  # (n,) int64, sorted
    weights: Tensor  # (n,) float64 > 0, sums to 1
    order: Tensor  # (n,) rows of the dataset they came from


@dataclass(frozen=True, eq=False)
class Side(Margin):
    """Samples of positive weight, sorted by class, on the device."""

    points: Tensor  # (n, d)

    def on(self, device: torch.device) -> Side:
        """Return the same samples on another device."""
        return Side(*(t.to(device) for t in (self.labels, self.weights, self.order, self.points)))


def make_side(
    points: Tensor,  # (n, d)
    labels: Tensor,  # (n,) int64
    weights: Tensor,  # (n,) float64
    device: torch.device,
) -> Side:
    """Drop samples of weight zero (they carry no mass) and sort the rest by class."""
    used = (weights > 0).nonzero()[:, 0]
    order = used[torch.sort(labels[used], stable=True).indices]
    return Side(
        labels[order].to(device),
        weights[order].to(device, torch.float64),
        order.to(device),
        points[order].to(device),
    )


def check_dimensions(src: LabelledDataset, tgt: LabelledDataset) -> None:
    """Refuse datasets with different numbers of features, or features of different meanings.

    What scales or projects datasets together leaves one mark in the provenance of all of them.

    Raises:
        DataError: naming both datasets and both counts, or how to bring them into one space; or
            what is no dataset.
    """
    check_datasets((src, tgt))
    if src.dimension != tgt.dimension:
        raise DataError(
            f"{src.name} has {src.dimension} features a sample {src.sample_shape}, {tgt.name} has "
            f"{tgt.dimension} {tgt.sample_shape}; bring both to one feature space first "
            "(the same image size, or one encoder for both)"
        )
    spaces = [dataset.provenance.get("space") for dataset in (src, tgt)]
    if None not in spaces and spaces[0] != spaces[1]:
        raise DataError(
            f"{src.name} and {tgt.name} were scaled, one-hot encoded or projected apart, so that a "
            "feature of one is not that of the other; give what they were made of together, in one "
            "command or one call of load_together"
        )


def normalisation(
    datasets: Sequence[LabelledDataset],
    normalize: str,  # none | unit | mnist
) -> tuple[list[Tensor], float]:  # the points of each and the factor that remains for lengths
    """Return points and the factor of lengths that normalise them.

    ``unit`` divides 8-bit images by 255 and leaves floats as they are; ``mnist`` subtracts 0.1307
    and divides by 0.3081 after that (the shift moves all sides alike, so only the factor counts).
    8-bit points stay integers, unless others are floats: the factor goes into the cost.

    Raises:
        SettingsError: wider integers, for which there is no such convention.
    """
    points = [dataset.points for dataset in datasets]
    if normalize == "none":
        return points, 1.0
    for dataset in datasets:
        if dataset.points.dtype != torch.uint8 and not dataset.points.is_floating_point():
            raise SettingsError(
                f"normalize={normalize!r} is for 8-bit images and floats; {dataset.name} holds "
                f"{dataset.points.dtype}: use normalize='none' (--normalize none)"
            )
    factor = 1.0 if normalize == "unit" else 1.0 / MNIST_STD
    if all(p.dtype == torch.uint8 for p in points):
        return points, factor / 255.0
    return [p.float() / 255.0 if p.dtype == torch.uint8 else p for p in points], factor


@dataclass(frozen=True, eq=False)
class Problem:
    """A cost between two sides and the operators that stream it."""

    op: CostOperator
    x: Margin
    y: Margin
    moved: float  # root mean square distance that quantisation moved both sides, in cost units

    @cached_property
    def mean_cost(self) -> float:
        """Exact mean of C under the product of the weights, from sums over each side alone."""
        return float(bilinear(self.op.pair, self.x.weights, self.y.weights))


def _by_extent(side: Side, cloud: Cloud) -> tuple[Margin, Cloud]:
    """Sort the samples of each class by their extent, so that tiles can skip what is constant."""
    if cloud.extent is None:
        return side, cloud
    rows = torch.argsort(side.labels * (cloud.data.shape[-1] + 1) + cloud.extent, stable=True)
    margin = Margin(side.labels[rows], side.weights[rows], side.order[rows])
    return margin, cloud.take(rows)


def make_problem(
    x: Side,
    y: Side,  # the same object as x for a self term
    label_cost: Tensor,  # (Vx, Vy) float64, in units of the cost
    *,
    factor: float,  # cost of one squared unit of the points
    slices: int | None,
    memory_budget: int | None,
    precise: bool = False,  # float64 on the CPU, whatever the points are
) -> Problem:
    """Build the streamed cost between two sides.

    Raises:
        BudgetError: a memory budget below the workspace of streaming.
    """
    clouds = make_clouds(x.points, y.points, slices, precise)
    first, x_cloud = _by_extent(x, clouds[0])
    second, y_cloud = (first, x_cloud) if y is x else _by_extent(y, clouds[1])
    pair = CostPair(
        x_cloud,
        y_cloud,
        factor * x_cloud.step**2,
        label_cost.to(x.weights.device, torch.float64),
        first.labels,
        second.labels,
    )
    moved = sum(
        float(margin.weights @ cloud.residual) ** 0.5
        for margin, cloud in ((first, x_cloud), (second, y_cloud))
    )
    return Problem(make_operator(pair, memory_budget), first, second, moved * factor**0.5)
