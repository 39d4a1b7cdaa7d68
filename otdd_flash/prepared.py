"""Datasets made ready for distances: all that does not depend on what they are compared with."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.cost import Margin, Side, make_side, normalisation
from otdd_flash.laws.bures import LabelCost, accuracy_notes, label_cost
from otdd_flash.laws.gaussians import ClassLaws, class_laws
from otdd_flash.ranges import range_notes
from otdd_flash.samples.decoding import layout
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.types import DatasetSummary, LabelledDataset, Progress

# float64 entries of one chunk: 32 MB
CHUNK_ENTRIES = 1 << 22


@dataclass(frozen=True, eq=False)
class Prepared:
    """A dataset on the device with its class laws; distances to any other need no more of it."""

    dataset: LabelledDataset  # as the caller gave it
    used: LabelledDataset  # without samples of weight zero
    points: Tensor  # (n', d) of `used`, normalised up to the factor
    side: Side
    laws: ClassLaws
    factor: float  # of lengths, that normalisation leaves to the cost

    def on(self, device: torch.device) -> Prepared:
        """Return the same on another device; nothing is computed again."""
        return replace(self, side=self.side.on(device), laws=self.laws.on(device))

    @property
    def summary(self) -> DatasetSummary:
        """What results say of the dataset."""
        return DatasetSummary(
            self.dataset.name,
            len(self.dataset),
            self.dataset.dimension,
            self.used.classes,
            self.used.class_names,
            self.dataset.provenance,
        )

    @property
    def notes(self) -> list[str]:
        """What a reader of the potentials should know."""
        dropped = len(self.dataset) - len(self.used)
        if not dropped:
            return []
        return [
            f"{self.dataset.name}: {dropped:,} samples of weight zero carry no mass; "
            "their potentials are NaN"
        ]

    @cached_property
    def rows(self) -> Tensor:  # (n',) int64, on the CPU
        """Rows of the dataset that carry weight."""
        if self.used is self.dataset:
            return torch.arange(len(self.dataset))
        return (self.dataset.weights > 0).nonzero()[:, 0].cpu()

    @cached_property
    def mean(self) -> Tensor:  # (d,) float64
        """The mean of the points."""
        origin = self.side.points[0].double()
        total = torch.zeros_like(origin)
        for part, weights in self._chunks():
            total += weights @ (part.double() - origin)
        return origin + total

    @cached_property
    def spread(self) -> float:
        """The mean squared distance of the points from their mean."""
        return sum(
            float(weights @ (part.double() - self.mean).square().sum(1))
            for part, weights in self._chunks()
        )

    def _chunks(self) -> zip[tuple[Tensor, Tensor]]:
        height = max(1, CHUNK_ENTRIES // self.side.points.shape[1])
        return zip(self.side.points.split(height), self.side.weights.split(height), strict=True)

    def margin(self, margin: Margin) -> Margin:
        """Return a margin whose order counts all rows of the dataset, without weight too."""
        rows = self.rows.to(margin.order.device)
        return Margin(margin.labels, margin.weights, rows[margin.order])

    def unsorted(
        self,
        potential: Tensor,  # (n',) in the order of a margin
        margin: Margin,  # of this dataset, as a problem holds it
    ) -> Tensor:  # (n,) in the dataset's order, NaN where a sample has weight zero
        """Return a potential in the caller's order."""
        out = torch.full((len(self.dataset),), torch.nan, dtype=torch.float64)
        out[self.rows[margin.order.cpu()]] = potential.cpu()
        return out


def notes_of(pairs: Iterable[tuple[Prepared, Prepared]]) -> tuple[str, ...]:
    """Return what a reader of distances should know of their datasets and label costs."""
    pairs = list(pairs)
    notes = [
        note for x, y in pairs for note in (*x.notes, *y.notes, *accuracy_notes(x.laws, y.laws))
    ]
    every = {id(side): side for pair in pairs for side in pair}
    return tuple(dict.fromkeys([*notes, *_range_notes(list(every.values()))]))


def _range_notes(sides: Sequence[Prepared]) -> list[str]:
    """Say where images of one dataset have another range of pixels than those of others.

    Nothing of those that were told when they were loaded, or that were scaled or projected.
    """
    images = [
        side
        for side in sides
        if layout(side.dataset.sample_shape) and "space" not in side.dataset.provenance
    ]
    cosine = all(side.dataset.provenance.get("cosine") for side in images)
    found = range_notes([(side.dataset.name, side.side.points) for side in images], cosine)
    return [
        f"{side.dataset.name}: {note}"
        for side, note in zip(images, found, strict=True)
        if note and "pixels" not in side.dataset.provenance
    ]


def prepare_steps(
    datasets: Sequence[LabelledDataset],
    settings: OTDDSettings,
    device: torch.device,
    *,
    more: int = 0,  # steps that the caller adds to the stage of the class laws
) -> Generator[Progress, None, list[Prepared]]:
    """Bring datasets of one feature space to the device and take their class laws.

    Memory: all of them on the device, in the dtype of their points.

    Raises:
        SettingsError: a normalisation that the points do not have.
    """
    total = len(datasets)
    yield Progress("prepare", 0, total)
    used = [_weighted(dataset) for dataset in datasets]
    points, factor = normalisation(used, settings.normalize)
    sides = []
    for k, (dataset, values) in enumerate(zip(used, points, strict=True)):
        sides.append(make_side(values, dataset.labels, dataset.weights, device))
        yield Progress("prepare", k + 1, total)
    yield Progress("class laws", 0, total + more)
    out = []
    for k, (dataset, side) in enumerate(zip(datasets, sides, strict=True)):
        laws = class_laws(side.points, side.labels, side.weights, kind=settings.label_distance)
        out.append(Prepared(dataset, used[k], points[k], side, laws, factor))
        yield Progress("class laws", k + 1, total + more)
    return out


def prepare_pair_steps(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings,
    device: torch.device,
) -> Generator[Progress, None, tuple[Prepared, Prepared, LabelCost]]:
    """Prepare two datasets and take the squared distances of their class laws.

    Memory and errors as `prepare_steps`.
    """
    x, y = yield from prepare_steps((src, tgt), settings, device, more=1)
    costs = label_cost(x.laws, y.laws)
    yield Progress("class laws", 3, 3)
    return x, y, costs


def units(prepared: Prepared, settings: OTDDSettings) -> tuple[float, float]:
    """Return what one squared unit of points, and of label costs, costs."""
    scale = settings.cost_scale * prepared.factor**2
    return scale * settings.lambda_x, scale * settings.lambda_y


def clouds_of(
    x: Prepared,
    y: Prepared,
    costs: LabelCost,  # in squared units of the points
    settings: OTDDSettings,
) -> LabelledClouds:
    """Return the two sides with their label costs in units of the cost."""
    unit, label_unit = units(x, settings)
    xy, xx, yy = (block * label_unit for block in costs)
    return LabelledClouds(x.side, y.side, xy, xx, yy, unit)


def mean_cost(
    x: Prepared,
    y: Prepared,
    cost: Tensor,  # (Vx, Vy) of the labels, in squared units of the points
    settings: OTDDSettings,
) -> float:
    """Return the exact mean of C under the product of the weights, from moments alone."""
    unit, label_unit = units(x, settings)
    squared = float((x.mean - y.mean).square().sum()) + x.spread + y.spread
    masses = (p.laws.masses / p.laws.masses.sum() for p in (x, y))
    row, column = masses
    return unit * squared + label_unit * float(row @ cost @ column)


def _weighted(dataset: LabelledDataset) -> LabelledDataset:
    """Drop samples of weight zero, and the classes that only they have."""
    positive = dataset.weights > 0
    return dataset if bool(positive.all()) else dataset.subset(positive.nonzero()[:, 0])
