"""What comparisons of datasets find, beside one distance: frozen results that carry evidence."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from otdd_flash.brief import Brief
from otdd_flash.errors import DataError
from otdd_flash.settings import OTDDSettings
from otdd_flash.types import DatasetSummary, Interval, LabelledDataset, NoiseFloor, Transport


@dataclass(frozen=True)
class PairValue:
    """The distance of one pair of datasets, with what vouches for it."""

    squared: float
    squared_bounds: tuple[float, float]
    transport: Transport
    mean_cost: float
    marginal_error: float
    converged: bool
    passes: int  # of the cross term
    interval: Interval | None = None

    @property
    def distance(self) -> float:
        """The root of the squared distance."""
        return max(self.squared, 0.0) ** 0.5

    @property
    def distance_bounds(self) -> tuple[float, float]:
        """Bounds of the distance."""
        low, high = (max(end, 0.0) ** 0.5 for end in self.squared_bounds)
        return low, high

    @property
    def distance_interval(self) -> tuple[float, float] | None:
        """The interval of the distance, where resamples were asked for."""
        if self.interval is None:
            return None
        ends = (self.interval.lower, self.interval.upper)
        low, high = (max(end, 0.0) ** 0.5 for end in ends)
        return low, high


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Finding(Brief):
    """What every finding says of how it was found."""

    epsilon: float  # in units of the cost, one for all that was compared
    settings: OTDDSettings
    seconds: dict[str, float] = field(repr=False)  # by stage
    device: str
    versions: dict[str, str] = field(repr=False)
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class MatrixResult(Finding):
    """All distances among K datasets at one eps, symmetric, with a diagonal of zeros.

    ``squared_lower`` and ``squared_upper`` enclose ``squared``; ``transport_lower`` and
    ``transport_upper`` the unregularised cost. ``half_width`` is that of the bootstrap intervals
    of ``squared``.
    """

    datasets: tuple[DatasetSummary, ...]
    names: tuple[str, ...]  # K, all different
    distance: Tensor  # (K, K) float64
    squared: Tensor  # (K, K)
    squared_lower: Tensor  # (K, K)
    squared_upper: Tensor  # (K, K)
    transport_lower: Tensor  # (K, K)
    transport_upper: Tensor  # (K, K)
    mean_cost: Tensor  # (K, K)
    marginal_error: Tensor  # (K, K)
    converged: Tensor  # (K, K) bool
    half_width: Tensor | None  # (K, K)
    noise_floor: tuple[NoiseFloor, ...]  # of each dataset, where asked for
    seed: int  # of resamples and halves
    resamples: int


@dataclass(frozen=True)
class RankedSource:
    """A source and its distance to the target."""

    name: str
    dataset: DatasetSummary
    value: PairValue
    score: float | None = None  # what was measured after transfer from it


@dataclass(frozen=True, repr=False)
class Ranking(Finding):
    """Sources ordered by their distance to a target, nearest first, at one eps.

    ``pearson`` and ``spearman`` are the correlations of distance and score, each with the p-value
    of no correlation; negative where nearer sources transfer better.
    """

    target: DatasetSummary
    sources: tuple[RankedSource, ...]
    pearson: tuple[float, float] | None  # correlation, p-value
    spearman: tuple[float, float] | None
    seed: int
    noise_floor: tuple[NoiseFloor, ...]  # of the target, where asked for


@dataclass(frozen=True)
class CostSplit:
    """One row of the split of S: ``total = features + labels + entropy``, exactly."""

    features: float  # <P, lambda_x ||x - y||^2>
    labels: float  # <P, lambda_y W2>
    entropy: float  # eps KL(P | a x b)

    @property
    def total(self) -> float:
        """The value of the term."""
        return self.features + self.labels + self.entropy


@dataclass(frozen=True)
class SamplePair:
    """A source and a target sample between which mass moves."""

    source: int  # sample of the source dataset that was given, from 0
    target: int
    source_class: int
    target_class: int
    mass: float  # of the plan
    cost: float  # for one unit of mass
    share: float  # of <P, C> that this pair pays


@dataclass(frozen=True, eq=False, repr=False)
class Explanation(Finding):
    """Why two datasets are as far apart as they are.

    ``class_mass`` is the plan summed over classes, ``row_entropy`` the entropy in bits of where
    each source class goes: 0 for one target class, log2(V) for all of V alike. The splits say what
    features, labels and entropy contribute, to each term and to S. ``source_foreign`` and
    ``target_foreign`` are the debiased potentials: what more mass at a sample adds to S, higher
    for samples that the other dataset has nothing like.
    """

    source: DatasetSummary
    target: DatasetSummary
    value: PairValue
    class_mass: Tensor  # (Vx, Vy) float64, sums to 1
    class_cost: Tensor  # (Vx, Vy) float64, share of <P, C> that each class pair pays
    label_cost: Tensor  # (Vx, Vy) float64, in units of the cost
    row_entropy: Tensor  # (Vx,) float64, bits
    column_entropy: Tensor  # (Vy,) float64, bits
    cross: CostSplit
    source_self: CostSplit  # zeros without debiasing
    target_self: CostSplit
    split: CostSplit  # cross - source_self / 2 - target_self / 2; its total is S
    pairs: tuple[SamplePair, ...]  # that pay most, most first
    source_cost: Tensor  # (n,) float64, mean cost of moving each source sample, NaN without weight
    target_cost: Tensor  # (m,) NaN too where an unconverged plan brings nothing
    source_foreign: Tensor  # (n,) float64, NaN without weight
    target_foreign: Tensor  # (m,)
    source_rows: Tensor  # (n,) int64 rows of the dataset that the source's samples were drawn from
    target_rows: Tensor  # (m,)


@dataclass(frozen=True, eq=False, repr=False)
class Values(Finding):
    """How foreign each source sample is to the target: higher means more foreign.

    ``value`` is calibrated: the debiased potential minus the mean of the others'. It is the sum of
    three parts. ``features``: the same without the label cost; ``class_part``: what is left on
    average over the samples of the class; ``label``: what is left of one sample, high where its
    label does not fit its features.
    """

    source: DatasetSummary
    target: DatasetSummary
    value: Tensor  # (n,) float64, NaN where a sample has weight zero
    features: Tensor  # (n,)
    class_part: Tensor  # (n,)
    label: Tensor  # (n,)
    labels: Tensor  # (n,) int64 class ids of the source
    rows: Tensor  # (n,) int64 rows of the dataset that the source's samples were drawn from
    squared: float  # S
    squared_bounds: tuple[float, float]
    marginal_error: float  # L1, the largest of all solves
    converged: bool


def check_samples(
    data: LabelledDataset | None,  # whose samples are to be shown; None: none
    summary: DatasetSummary,  # of the dataset that a finding is of
) -> None:
    """Refuse to show samples of another dataset than the one that a finding is of.

    Raises:
        DataError: another number of samples.
    """
    if data is not None and len(data) != summary.n:
        raise DataError(
            f"{data.name}: {len(data):,} samples, the result is of {summary.n:,} of "
            f"{summary.name}; give those, or None"
        )


def extremes(
    score: Tensor,  # (n,) NaN where a sample has none
    count: int,
) -> tuple[Tensor, Tensor]:  # (k,) rows of the lowest and of the highest scores
    """Return the rows of lowest and highest scores, at most ``count`` each."""
    known = (~score.isnan()).nonzero()[:, 0]
    order = known[score[known].argsort(stable=True)]
    return order[:count], order.flip(0)[:count]
