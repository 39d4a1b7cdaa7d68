"""Two labelled clouds between which a divergence is solved, and the eps and scale that go."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.cost import Problem, Side, make_problem
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.operators import CostOperator
from otdd_flash.settings import OTDDSettings, parse_epsilon
from otdd_flash.solver.matching import Matching, match
from otdd_flash.solver.sinkhorn import HIDDEN, LARGEST_ERROR, hidden_error

# costs and eps beyond this, or below its inverse, have squares near the ends of float64
LARGEST = 1e150


@dataclass(frozen=True, eq=False)
class LabelledClouds:
    """Two sides, their label costs and the cost of one squared unit of the points."""

    x: Side
    y: Side
    label_cost: Tensor  # (Vx, Vy) float64, in units of the cost
    label_cost_x: Tensor  # (Vx, Vx)
    label_cost_y: Tensor  # (Vy, Vy)
    factor: float

    def problem(
        self,
        x: Side,
        y: Side,
        label_cost: Tensor,
        settings: OTDDSettings,
        precise: bool = False,  # float64 on the CPU, whatever the points are
    ) -> Problem:
        """Return the streamed cost between two of the sides."""
        return make_problem(
            x,
            y,
            label_cost,
            factor=self.factor,
            slices=settings.slices,
            memory_budget=settings.memory_budget,
            precise=precise,
        )

    def fine_problem(
        self,
        parts: tuple[Side, Side, Tensor],  # as for `problem`
        settings: OTDDSettings,
        eps: float,
        made: Problem | None = None,  # if it was made before eps was known
    ) -> Problem:
        """Return the same, on the CPU in float64 where float32 hides errors near the tolerance."""
        problem = made or self.problem(*parts, settings)
        on_cpu = problem.op.device.type == "cpu"
        if on_cpu and hidden_error(problem.op, eps) > settings.tol / 2:
            return self.problem(*parts, settings, precise=True)
        return problem

    @cached_property
    def matching(self) -> Matching | None:
        """How the two sides hold the same samples, classes and weights; None where they do not."""
        found = match(self.x, self.y)
        if found is None or len(found.classes) != len(self.label_cost_y):
            return None
        # the label costs say the same, up to the order of their sums
        classes = found.classes
        slack = 1e-9 * float(self.label_cost_x.abs().max())
        alike = all(
            torch.allclose(block, self.label_cost_x, rtol=0, atol=slack)
            for block in (self.label_cost[:, classes], self.label_cost_y[classes][:, classes])
        )
        return found if alike else None


def absolute_epsilon(epsilon: float | str, mean_cost: float) -> float:
    """Return eps in units of the cost; 1 where all costs are 0, and any eps gives 0."""
    value, relative = parse_epsilon(epsilon)
    if relative:
        value = value * mean_cost if mean_cost > 0 else 1.0
    if not 1 / LARGEST <= value <= LARGEST:
        raise SettingsError(
            f"epsilon {epsilon!r} is {value:.3g} in units of the cost, whose mean is "
            f"{mean_cost:.3g}; expected {1 / LARGEST:.0e} to {LARGEST:.0e}: float64 must hold its "
            "square"
        )
    return value


def check_scale(clouds: LabelledClouds, mean_cost: float) -> None:
    """Refuse costs whose squares float64 cannot hold, before they turn into NaN or zero.

    Raises:
        DataError: a mean cost outside 1e-150 to 1e150, unless all points are one.
    """
    first = clouds.x.points[0]
    if mean_cost == 0 and all(bool((s.points == first).all()) for s in (clouds.x, clouds.y)):
        return
    if not 1 / LARGEST <= abs(mean_cost) <= LARGEST:
        raise DataError(
            f"the mean cost is {mean_cost:.3g}; expected {1 / LARGEST:.0e} to {LARGEST:.0e}: "
            "scale the points (or lambda_x, lambda_y), whose squares float64 must hold"
        )


def check_resolved(
    op: CostOperator,
    eps: float,
    tol: float,
    name: str = "epsilon",  # what the caller gave
) -> None:
    """Refuse an eps so small that even float64 would hide the largest marginal error there is.

    Raises:
        SettingsError: naming an eps from which errors of ``tol`` show.
    """
    rounding = op.noise * torch.finfo(torch.float64).eps / op.unit
    if HIDDEN * rounding / eps >= LARGEST_ERROR:
        raise SettingsError(
            f"{name} is {eps:.3g}, far below {rounding:.1g}, by which float64 rounds these costs: "
            f"rounding would decide where mass goes; expected {HIDDEN * op.noise / tol:.1g} or "
            f"more, from which marginal errors of tol={tol:g} show"
        )
