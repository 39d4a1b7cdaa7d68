r"""How much a distance owes to the samples that happened to be drawn: resamples of their weights.

A resample draws n samples of n with replacement on either side: weights become multinomial counts.
Its divergence is read from potentials warm-started at those of the whole: one update of each, on
the samples that were drawn,

.. math::
    OT^* \approx \langle a^*, T(g) \rangle + \langle b^*, T'(T(g)) \rangle, \quad
    OT_{self}^* \approx \langle a^*, f + T(f) \rangle

whose errors are of second order in how far potentials move. Samples that are drawn twice lower the
entropy of the plans, by about eps in sum: all resampled values are too high by that. So intervals
take the deviations from their mean, and are centred at the value. Class laws stay as they are.

Sources: bootstrap, Efron 1979; of regularised transport, Bigot, Cazelles and Papadakis 2019,
"Central limit theorems for entropy-regularized optimal transport on finite spaces".
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from otdd_flash.checks import shown
from otdd_flash.cost import Margin, Side
from otdd_flash.errors import SettingsError
from otdd_flash.operators import CostOperator
from otdd_flash.ops import WORKSPACE_BYTES, make_operator
from otdd_flash.settings import OTDDSettings, check_flag, check_integer, is_integer
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.solver.divergence import Divergence, Term
from otdd_flash.types import Interval, Progress
from otdd_flash_kernels.pair import CostPair

KEPT_BYTES = 1 << 28  # of the resamples of one dataset, drawn once
LEVEL = 0.95
FEWEST = 10  # resamples whose spread says anything


@dataclass(frozen=True)
class Confidence:
    """What to add to a distance: an interval from resamples, and the noise floor.

    Raises:
        SettingsError: a value outside its range.
    """

    bootstrap: int = 0  # resamples, 0 for none
    noise_floor: bool = False  # the distance between two halves of each dataset
    seed: int = 0

    def __post_init__(self) -> None:
        if not is_integer(self.bootstrap) or self.bootstrap < 0 or 0 < self.bootstrap < FEWEST:
            raise SettingsError(
                f"bootstrap is {shown(self.bootstrap)}, expected 0 or an integer >= {FEWEST}: "
                "the number of resamples"
            )
        plain = {
            "bootstrap": int(self.bootstrap),
            "noise_floor": check_flag("noise_floor", self.noise_floor),
            "seed": check_integer("seed", self.seed, 0),
        }
        for key, value in plain.items():
            object.__setattr__(self, key, value)


def interval(
    value: float,
    resampled: np.ndarray,  # (B,) values of the resamples
    seed: int,
) -> Interval:
    """Return the percentile interval of the resamples' deviations, around the value."""
    mean = float(resampled.mean())
    tails = np.quantile(resampled - mean, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return Interval(
        lower=value + float(tails[0]),
        upper=value + float(tails[1]),
        half_width=float(tails[1] - tails[0]) / 2,
        level=LEVEL,
        mean=mean,
        deviation=float(resampled.std(ddof=1)),
        resamples=len(resampled),
        seed=seed,
    )


class Draws:
    """Resamples of one dataset: the k-th is the same for every pair that the dataset is in."""

    def __init__(
        self,
        side: Margin,
        seed: int,
        stream: int,  # another one for each dataset
    ) -> None:
        self._side, self._seed, self._stream = side, seed, stream
        weights = self._in_order(side.weights.cpu())
        self._weights = (weights / weights.sum()).numpy()
        self._kept: dict[int, np.ndarray] = {}  # counts of the first resamples

    def _in_order(self, values: Tensor) -> Tensor:  # by rows of the dataset, 0 where none is used
        order = self._side.order.cpu()
        out = torch.zeros(int(order.max()) + 1, dtype=torch.float64)
        out[order] = values
        return out

    def draw(
        self,
        k: int,
        margin: Margin,  # of the same dataset, as a problem holds it
    ) -> Tensor:  # (n,) float64 counts / n, in the order of the margin
        """Return the weights of resample k."""
        n = len(self._side.order)
        counts = self._kept.get(k)
        if counts is None:
            generator = np.random.default_rng([self._seed, self._stream, k])
            counts = generator.multinomial(n, self._weights).astype(np.int32)
            # every term of every pair asks for them again
            if (len(self._kept) + 1) * counts.nbytes <= KEPT_BYTES:
                self._kept[k] = counts
        return torch.from_numpy(counts / n).to(margin.order.device)[margin.order]


class DrawnCost:
    """The cost between the samples that a resample drew.

    A cost that is kept between passes is read whole, the samples that were not drawn at weight
    zero; else it is made for those that were, 40 % of all pairs.
    """

    def __init__(self, pair: CostPair, memory_budget: int | None) -> None:
        self._pair = pair
        self._whole = make_operator(pair, memory_budget)

    def drawn(
        self,
        a: Tensor,  # (n,) weights of a resample
        b: Tensor,  # (m,), the same object as a in a self term
    ) -> tuple[CostOperator, Tensor | slice, Tensor | slice]:
        """Return the operators of a resample, and the rows and columns that they hold."""
        if self._whole.stored:
            return self._whole, slice(None), slice(None)
        pair = self._pair
        rows = (a > 0).nonzero()[:, 0]
        cloud, labels = pair.rows.take(rows), pair.row_labels[rows]
        if a is b:
            part = replace(pair, rows=cloud, columns=cloud, row_labels=labels, column_labels=labels)
            return make_operator(part, WORKSPACE_BYTES), rows, rows
        columns = (b > 0).nonzero()[:, 0]
        part = replace(
            pair,
            rows=cloud,
            columns=pair.columns.take(columns),
            row_labels=labels,
            column_labels=pair.column_labels[columns],
        )
        return make_operator(part, WORKSPACE_BYTES), rows, columns


@dataclass(frozen=True, eq=False)
class SelfProblem:
    """The self term of a dataset: its cost, the order of its samples, its potential."""

    pair: CostPair
    margin: Margin
    f: Tensor  # (n,)


def self_problem(
    side: Side,
    label_cost: Tensor,  # (V, V) in units of the cost
    factor: float,
    term: Term,
    settings: OTDDSettings,
) -> SelfProblem:
    """Return what resamples of a solved self term need."""
    clouds = LabelledClouds(side, side, label_cost, label_cost, label_cost, factor)
    lean = replace(settings, memory_budget=WORKSPACE_BYTES)
    problem = clouds.problem(side, side, label_cost, lean)
    return SelfProblem(problem.op.pair, problem.x, term.solution.f)


def self_values(
    problem: SelfProblem, draws: Draws, eps: float, total: int, memory_budget: int | None
) -> Generator[int, None, np.ndarray]:  # (total,)
    """Return the self term of each resample, one pass each; yields how many are done."""
    out, cost = np.empty(total), DrawnCost(problem.pair, memory_budget)
    for k in range(total):
        weights = draws.draw(k, problem.margin)
        op, rows, _ = cost.drawn(weights, weights)
        a, f = weights[rows], problem.f[rows]
        update = op.softmin(f + eps * a.log(), eps)
        out[k] = float(a @ (f + update))
        yield k + 1
    return out


def cross_values(
    divergence: Divergence, draws: tuple[Draws, Draws], total: int, memory_budget: int | None
) -> Generator[int, None, np.ndarray]:  # (total,)
    """Return the cross term of each resample, two passes each; yields how many are done."""
    eps, out = divergence.epsilon, np.empty(total)
    cost = DrawnCost(divergence.pair, memory_budget)
    for k in range(total):
        a, b = (
            d.draw(k, margin) for d, margin in zip(draws, (divergence.x, divergence.y), strict=True)
        )
        op, rows, columns = cost.drawn(a, b)
        a, b, g = a[rows], b[columns], divergence.cross.solution.g[columns]
        f = op.softmin(g + eps * b.log(), eps)
        g = op.softmin_transposed(f + eps * a.log(), eps)
        out[k] = float(a @ f + b @ g)
        yield k + 1
    return out


def bootstrap_steps(
    clouds: LabelledClouds,
    divergence: Divergence,
    settings: OTDDSettings,
    confidence: Confidence,
) -> Generator[Progress, None, Interval]:
    """Return the interval of S from resamples, four passes each.

    Memory: a stored cost where it fits the budget, else copies of the points that were drawn.
    """
    eps, total = divergence.epsilon, confidence.bootstrap
    sides = (clouds.x, clouds.y)
    draws = [Draws(side, confidence.seed, k) for k, side in enumerate(sides)]
    own: list[SelfProblem] = []
    if clouds.matching is not None:
        # the self terms are the cross term, in either order of the samples
        margins = (divergence.x, divergence.y) if divergence.selves else ()
        f = divergence.cross.solution.f
        own = [SelfProblem(divergence.pair, margin, f) for margin in margins]
    else:
        blocks = (clouds.label_cost_x, clouds.label_cost_y)
        own = [
            self_problem(sides[k], blocks[k], clouds.factor, term, settings)
            for k, term in enumerate(divergence.selves)
        ]
    budget = settings.memory_budget
    works = [cross_values(divergence, (draws[0], draws[1]), total, budget)]
    works += [self_values(problem, draws[k], eps, total, budget) for k, problem in enumerate(own)]
    found = []
    for part, work in enumerate(works):
        value = yield from counted(work, part * total, len(works) * total)
        found.append(value)
    return interval(divergence.value, found[0] - sum(found[1:]) / 2, confidence.seed)


def counted(
    work: Generator[int, None, np.ndarray], before: int, total: int
) -> Generator[Progress, None, np.ndarray]:
    """Turn the count of resamples that are done into progress."""
    while True:
        try:
            done = next(work)
        except StopIteration as end:
            return end.value
        yield Progress("bootstrap", before + done, total)
