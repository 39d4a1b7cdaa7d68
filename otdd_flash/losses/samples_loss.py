r"""``SamplesLoss``: the interface of GeomLoss's class of this name, with converged values.

.. math::
    C(x, y) = \|x - y\|^2 / 2, \quad eps = blur^2, \quad \rho = reach^2

The Sinkhorn divergence of two weighted clouds, balanced or, with ``reach``, unbalanced.

Sources: Feydy et al. 2019, "Interpolating between optimal transport and MMD using Sinkhorn
divergences"; Sejourne et al. 2019, "Sinkhorn divergences for unbalanced optimal transport".
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from otdd_flash.cost import Margin, Side, make_problem, make_side
from otdd_flash.losses.loss import divergence_loss
from otdd_flash.losses.samples_arguments import check_offered, equal_mass, read_arguments
from otdd_flash.losses.unbalanced_loss import solve_terms, unbalanced_divergence
from otdd_flash.ops import device_of
from otdd_flash.settings import OTDDSettings, check_flag, check_number
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.solver.divergence import divergence_steps, warn_unconverged
from otdd_flash.types import finish

COST = 0.5  # of one squared unit of the points


class SamplesLoss(torch.nn.Module):
    """The Sinkhorn divergence between samples, called as GeomLoss's ``SamplesLoss``.

    ``loss(x, y)`` or ``loss(a, x, b, y)`` with x (n, d), y (m, d), a (n,) or (n, 1), b (m,) or
    (m, 1) returns (); with x (B, n, d), y (B, m, d), a (B, n) or (B, n, 1) it returns (B,), solved
    one after the other. The value has the dtype of x and gradients in x, y, a and b (those of a
    and b centred unless ``reach`` is given: balanced weights only move at constant mass). With
    ``reach`` they are those of the value; GeomLoss 0.3.1's are smaller by the factor
    ``(rho + eps / 2) / (rho + eps)``.

    Unlike GeomLoss, which makes a fixed number of steps, each solve runs to ``tol``; what it takes
    depends neither on ``scaling`` nor on ``diameter``.

    Args:
        loss: ``"sinkhorn"``; the kernel norms and the Hausdorff loss are not offered.
        p: 2; Euclidean costs (p = 1) are not offered.
        blur: root of eps, in units of the points.
        reach: root of rho, the strength of the marginal penalties; None: balanced, for equal
            masses.
        diameter: accepted, of no effect: annealing starts at the cost's own spread.
        scaling: accepted, of no effect: the solve ends where it has converged.
        truncate: accepted, of no effect: nothing is truncated.
        cost: None; other costs than half the squared distance are not offered.
        kernel: None; belongs to the kernel norms.
        cluster_scale: accepted, of no effect: samples are not clustered.
        debias: subtract the self terms. Without it, an unbalanced value is the definition's, which
            differs from GeomLoss 0.3.1 where masses are not one:
            by ``eps (m_a m_b - (m_a + m_b) / 2)``.
        potentials: return ``(F, G)``, without gradients, shaped (1, n) and (1, m), or (B, n) and
            (B, m), instead of the value; with ``debias`` those of the self terms are subtracted.
            Balanced ones are fixed by equal means under the weights of either side.
        verbose: accepted, of no effect: nothing is printed.
        backend: a name of GeomLoss, accepted, of no effect: ``device`` says what runs.
        tol: L1 marginal error to stop at, for unit masses.
        max_passes: soft minima over all pairs, for each of the three solves.
        slices: int8 slices a coordinate on a GPU; None: one where that is exact, else two.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``; ``auto`` stays where x is on a GPU.
        memory_budget: bytes; None: half of what is free.

    Raises:
        SettingsError: an argument outside its range, or that cannot be honoured.
    """

    def __init__(
        self,
        loss: str = "sinkhorn",
        p: int = 2,
        blur: float = 0.05,
        reach: float | None = None,
        diameter: float | None = None,
        scaling: float = 0.5,
        truncate: float | None = 5,
        cost: Any = None,
        kernel: Any = None,
        cluster_scale: float | None = None,
        debias: bool = True,
        potentials: bool = False,
        verbose: bool = False,
        backend: str = "auto",
        *,
        tol: float = 1e-3,
        max_passes: int = 2000,
        slices: int | None = None,
        device: str = "auto",
        memory_budget: int | None = None,
    ) -> None:
        super().__init__()
        check_offered(loss, p, cost, kernel, backend)
        self.loss, self.p, self.cost, self.kernel = loss, p, cost, kernel
        self.blur = check_number("blur", blur, positive=True)
        self.reach = None if reach is None else check_number("reach", reach, positive=True)
        self.diameter, self.scaling, self.truncate = diameter, scaling, truncate
        self.cluster_scale, self.verbose, self.backend = cluster_scale, verbose, backend
        self.debias, self.potentials = debias, check_flag("potentials", potentials)
        # checked on construction; a call reads the attributes again, which users set
        self.tol, self.max_passes, self.slices = tol, max_passes, slices
        self.device, self.memory_budget = device, memory_budget
        self._settings()

    def _settings(self) -> OTDDSettings:
        return OTDDSettings(
            epsilon=check_number("blur", self.blur, positive=True) ** 2,
            tol=self.tol,
            max_passes=self.max_passes,
            debias=self.debias,
            slices=self.slices,
            device=self.device,
            memory_budget=self.memory_budget,
        )

    def extra_repr(self) -> str:
        """Return what the module's repr shows."""
        return f"blur={self.blur}, reach={self.reach}, debias={self.debias}, tol={self.tol}"

    def forward(self, *arguments: Tensor) -> Tensor | tuple[Tensor, Tensor]:
        """Return the value, or the potentials, of (x, y) or (a, x, b, y).

        Raises:
            DataError, WeightError, SettingsError, DeviceError, BudgetError.

        Warns:
            ConvergenceWarning: a solve that stopped before its tolerance.

        Memory: O((n + m) d); on the CPU a stored cost where it fits the budget.
        """
        check_offered(self.loss, self.p, self.cost, self.kernel, self.backend)
        a, x, b, y = read_arguments(arguments)
        settings = self._settings()
        batch = zip(a, x, b, y, strict=True)
        one = len(arguments[-1].shape) == 2
        if self.potentials:
            found = [self._potentials(*parts, settings) for parts in batch]
            sides = zip(*found, strict=True)
            f, g = (torch.stack(s).to(p) for s, p in zip(sides, (x, y), strict=True))
            return f, g
        values = torch.stack([self._value(*parts, settings) for parts in batch]).to(x)
        return values[0] if one else values

    def _value(
        self, a: Tensor, x: Tensor, b: Tensor, y: Tensor, settings: OTDDSettings
    ) -> Tensor:  # ()
        if self.reach is not None:
            return unbalanced_divergence(x, y, a, b, self._rho(), COST, settings)
        mass = equal_mass(a, b)
        value = divergence_loss(x, y, a / mass, b / mass, factor=COST, settings=settings)
        if settings.debias:
            return mass * value
        return mass * (value - float(settings.epsilon) * math.log(mass))

    def _rho(self) -> float:
        return check_number("reach", self.reach, positive=True) ** 2

    def _potentials(
        self, a: Tensor, x: Tensor, b: Tensor, y: Tensor, settings: OTDDSettings
    ) -> tuple[Tensor, Tensor]:  # (n,) and (m,) float64
        a, x, b, y = (t.detach() for t in (a, x, b, y))
        if self.reach is None:
            return _balanced_potentials(a, x, b, y, settings)
        found = solve_terms(x, y, a, b, self._rho(), COST, settings)
        if found.cross is None:
            return _zeros(x), _zeros(y)
        f, g = found.cross.potentials()
        if found.selves:
            f, g = (
                total - own.potentials()[0] for total, own in zip((f, g), found.selves, strict=True)
            )
        return f, g


def _balanced_potentials(
    a: Tensor, x: Tensor, b: Tensor, y: Tensor, settings: OTDDSettings
) -> tuple[Tensor, Tensor]:  # (n,) and (m,) float64
    """Return the potentials of all samples, those without weight too, with equal means."""
    mass = equal_mass(a, b)
    device = device_of(x, settings.device)
    points, weights = (x, y), tuple(w.double() / mass for w in (a, b))
    sides = [
        make_side(p, torch.zeros(len(p), dtype=torch.int64, device=p.device), w, device)
        for p, w in zip(points, weights, strict=True)
    ]
    none = torch.zeros((1, 1), dtype=torch.float64, device=device)
    clouds = LabelledClouds(sides[0], sides[1], none, none, none, COST)
    if settings.debias and clouds.matching is not None:
        return _zeros(x), _zeros(y)
    found = finish(divergence_steps(clouds, settings, certify=False, keep=True))
    warn_unconverged(found, settings)
    eps = found.epsilon

    def everywhere(k: int, other: int, potential: Tensor, margin: Margin) -> Tensor:
        """Return the softmin on side k of the other side's potential."""
        return _softmin(points[k], sides[other], potential, margin, eps, settings)

    margins = found.x, found.y
    cross = found.cross.solution
    f, g = everywhere(0, 1, cross.g, margins[1]), everywhere(1, 0, cross.f, margins[0])
    if found.selves:
        own = []
        for k, term in enumerate(found.selves):
            assert term.problem is not None
            margin = (term.problem.x, term.problem.y)[k]
            own.append(everywhere(k, k, term.solution.f, margin))
        f, g = f - own[0], g - own[1]
    else:
        # what a mass other than one adds to f + g, as in GeomLoss
        f, g = (p - eps * math.log(mass) / 2 for p in (f, g))
    shift = (weights[0].to(f) @ f - weights[1].to(g) @ g) / 2
    return f - shift, g + shift


def _zeros(points: Tensor) -> Tensor:  # (n,) float64
    return points.new_zeros(len(points), dtype=torch.float64)


def _softmin(
    points: Tensor,  # (n, d)
    side: Side,  # of m samples that carry weight
    potential: Tensor,  # (m,) in the order of the margin
    margin: Margin,
    eps: float,
    settings: OTDDSettings,
) -> Tensor:  # (n,)
    """Return a potential of all points: the softmin of the other side's, one pass."""
    rows = torch.arange(len(points), device=side.points.device)
    uniform = torch.full((len(points),), 1 / len(points), dtype=torch.float64, device=rows.device)
    every = Side(torch.zeros_like(rows), uniform, rows, points.to(rows.device))
    problem = make_problem(
        every,
        side,
        torch.zeros((1, 1), dtype=torch.float64),
        factor=COST,
        slices=settings.slices,
        memory_budget=settings.memory_budget,
    )
    placed = potential.new_zeros(int(margin.order.max()) + 1)
    placed[margin.order] = potential
    h = placed[problem.y.order] + eps * problem.y.weights.log()
    out = torch.empty(len(points), dtype=torch.float64, device=rows.device)
    out[problem.x.order] = problem.op.softmin(h, eps)
    return out
