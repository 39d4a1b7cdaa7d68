"""What pairs of datasets share, made once: class laws, label costs, self terms, their resamples."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from otdd_flash.confidence import (
    Confidence,
    Draws,
    counted,
    cross_values,
    interval,
    self_problem,
    self_values,
)
from otdd_flash.laws.bures import LabelCost, gaussian_w2
from otdd_flash.many.findings import PairValue
from otdd_flash.prepared import Prepared, clouds_of
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.clouds import LabelledClouds, check_resolved
from otdd_flash.solver.divergence import Divergence, Term, divergence_steps, self_term_steps
from otdd_flash.types import Interval, Progress, Transport

Pair = tuple[int, int]


def pair_value(
    found: Divergence,  # with its certificate
    between: Interval | None = None,  # of resamples
) -> PairValue:
    """Return the distance of a pair with what vouches for it."""
    assert found.transport is not None
    solution = found.cross.solution
    return PairValue(
        squared=found.value,
        squared_bounds=(found.bounds.lower, found.bounds.upper),
        transport=Transport(found.transport.lower, solution.value, found.transport.upper),
        mean_cost=found.mean_cost,
        marginal_error=found.error,
        converged=found.converged,
        passes=solution.passes,
        interval=between,
    )


@dataclass(eq=False)
class Shared:
    """Datasets on one device; what is made of them is kept, and shared with other devices."""

    prepared: list[Prepared]
    settings: OTDDSettings
    confidence: Confidence
    epsilon: float = 0.0
    costs: dict[Pair, Tensor] = field(default_factory=dict)  # squared units of the points
    terms: dict[int, Term] = field(default_factory=dict)
    resampled: dict[int, np.ndarray] = field(default_factory=dict)  # self terms, (B,)

    def on(self, device: torch.device) -> Shared:
        """Return the same on another device, which keeps what it makes in the same places."""
        return replace(self, prepared=[side.on(device) for side in self.prepared])

    def label_cost(self, i: int, j: int) -> Tensor:  # (Vi, Vj)
        """Return the squared distances of class laws of two datasets."""
        if (i, j) not in self.costs:
            self.costs[i, j] = gaussian_w2(self.prepared[i].laws, self.prepared[j].laws)
        return self.costs[i, j].to(self.prepared[i].side.points.device)

    def clouds(self, i: int, j: int) -> LabelledClouds:
        """Return two datasets with their label costs."""
        blocks = LabelCost(*(self.label_cost(*pair) for pair in ((i, j), (i, i), (j, j))))
        return clouds_of(self.prepared[i], self.prepared[j], blocks, self.settings)

    def draws(self, i: int) -> Draws:
        """Return the resamples of a dataset."""
        return Draws(self.prepared[i].side, self.confidence.seed, i)

    def self_steps(self, i: int) -> Generator[Progress, None, None]:
        """Solve the self term of a dataset, and its resamples; its cost is freed."""
        clouds = self.clouds(i, i)
        parts = (clouds.x, clouds.x, clouds.label_cost_x)
        problem = clouds.fine_problem(parts, self.settings, self.epsilon)
        check_resolved(problem.op, self.epsilon, self.settings.tol)
        term = yield from self_term_steps(problem, "self term", self.epsilon, self.settings)
        self.terms[i] = term
        del problem
        total, budget = self.confidence.bootstrap, self.settings.memory_budget
        if total:
            own = self_problem(clouds.x, clouds.label_cost_x, clouds.factor, term, self.settings)
            walk = self_values(own, self.draws(i), self.epsilon, total, budget)
            self.resampled[i] = yield from counted(walk, 0, total)

    def pair_steps(self, i: int, j: int) -> Generator[Progress, None, PairValue]:
        """Solve the cross term of a pair, whose self terms are solved."""
        selves = (self.terms[i], self.terms[j]) if self.settings.debias else None
        found = yield from divergence_steps(self.clouds(i, j), self.settings, selves=selves)
        between = None
        if self.confidence.bootstrap:
            between = yield from self._interval(found, i, j)
        return pair_value(found, between)

    def _interval(self, found: Divergence, i: int, j: int) -> Generator[Progress, None, Interval]:
        """Return the interval of a pair; resamples of a dataset are the same for all its pairs."""
        total, budget = self.confidence.bootstrap, self.settings.memory_budget
        walk = cross_values(found, (self.draws(i), self.draws(j)), total, budget)
        values = yield from counted(walk, 0, total)
        if self.settings.debias:
            values = values - (self.resampled[i] + self.resampled[j]) / 2
        return interval(found.value, values, self.confidence.seed)
