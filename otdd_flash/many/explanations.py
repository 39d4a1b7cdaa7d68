r"""Why two datasets are far apart: ``otdd_flash.explain``.

The value of each term is split exactly,

.. math::
    OT_{eps} = \langle P, C_{features} \rangle + \langle P, C_{labels} \rangle + eps\, KL(P | a b)

the labels' part from the class mass, ``sum_ck M_ck L_ck``, the whole of ``<P, C>`` from the means
of scores that softmins give, and S is split as its terms are. Which samples and classes pay is
read from the plan of the cross term, block by block in float64.

Sources: Alvarez-Melis and Fusi 2020, section 6; streamed plans, arXiv 2602.03067, section 4.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.cost import check_dimensions
from otdd_flash.errors import SettingsError
from otdd_flash.inputs import given_or_default
from otdd_flash.many.findings import CostSplit, Explanation, SamplePair
from otdd_flash.many.shared import pair_value
from otdd_flash.ops import resolve_device
from otdd_flash.potentials import debiased_potentials, equal_note
from otdd_flash.prepared import Prepared, clouds_of, notes_of, prepare_pair_steps
from otdd_flash.settings import OTDDSettings, check_integer
from otdd_flash.solver.certificate import label_part, renumbered
from otdd_flash.solver.divergence import Divergence, Term, divergence_steps, warn_unconverged
from otdd_flash.solver.plan import Plan
from otdd_flash.solver.sinkhorn import hidden_error
from otdd_flash.timing import Laps, device_name, versions
from otdd_flash.types import LabelledDataset, Progress, finish

NOTHING = CostSplit(0.0, 0.0, 0.0)
# L1 error of the marginals that rounding may hide in a plan that is read
MOST_HIDDEN = 0.1
ENTROPY_ENTRIES = 1 << 18  # of a class mass at once, inside a core's cache


def explain(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings | None = None,
    *,
    pairs: int = 20,
) -> Explanation:
    """Return which classes, samples, features and labels make the distance.

    Args:
        src: source samples with their classes.
        tgt: target samples with their classes, of the same number of features.
        settings: as for :func:`distance`; None: the defaults.
        pairs: how many of the sample pairs that pay most are listed.

    Raises:
        DataError, WeightError, SettingsError, DeviceError, BudgetError: input that cannot be used,
            an epsilon too small for the plan to be read among them.

    Warns:
        ConvergenceWarning: a marginal error above ``tol``.

    Memory: O(n + m) beside the points, a few blocks of 128 MB, stored costs on the CPU where they
    fit the budget.
    """
    return finish(explain_steps(src, tgt, settings, pairs=pairs))


def explain_steps(
    src: LabelledDataset,
    tgt: LabelledDataset,
    settings: OTDDSettings | None = None,
    *,
    pairs: int = 20,
) -> Generator[Progress, None, Explanation]:
    """Compute as :func:`explain` does, yielding progress to whoever shows it."""
    clock, settings = Laps(), given_or_default(settings, OTDDSettings)
    pairs = check_integer("pairs", pairs, 0)
    check_dimensions(src, tgt)
    device = resolve_device(settings.device)
    x, y, costs = yield from prepare_pair_steps(src, tgt, settings, device)
    clouds = clouds_of(x, y, costs, settings)
    found = yield from divergence_steps(clouds, settings, keep=True)
    _check_epsilon(found)
    warn_unconverged(found, settings)
    assert found.mass is not None
    # of equal datasets the three terms are one, whose mass is in the order of other classes
    known = found.mass if found.classes is None else None
    once = {id(term): term for term in (found.cross, *found.selves)}
    splits = {
        key: _split(term, found.epsilon, known if term is found.cross else None)
        for key, term in once.items()
    }
    terms = [splits[id(term)] for term in (found.cross, *found.selves)]
    cross = terms[0]
    own = terms[1:] or [NOTHING, NOTHING]
    paid = yield from _paid(x, y, found, settings, pairs)
    foreign = [
        _centred(potential, side.dataset.weights.cpu())
        for potential, side in zip(debiased_potentials(x, y, found), (x, y), strict=True)
    ]
    mass = found.mass.cpu()
    return Explanation(
        source=x.summary,
        target=y.summary,
        value=pair_value(found),
        epsilon=found.epsilon,
        class_mass=mass,
        class_cost=paid.by_class,
        label_cost=clouds.label_cost.cpu(),
        row_entropy=entropies(mass),
        column_entropy=entropies(mass.mT),
        cross=cross,
        source_self=own[0],
        target_self=own[1],
        split=CostSplit(
            *(
                getattr(cross, part) - (getattr(own[0], part) + getattr(own[1], part)) / 2
                for part in ("features", "labels", "entropy")
            )
        ),
        pairs=paid.pairs,
        source_cost=paid.rows,
        target_cost=paid.columns,
        source_foreign=foreign[0],
        target_foreign=foreign[1],
        source_rows=src.rows,
        target_rows=tgt.rows,
        settings=settings,
        seconds=clock.total(),
        device=device_name(device),
        versions=versions(),
        notes=notes_of([(x, y)]) + equal_note(*foreign),
    )


def _check_epsilon(found: Divergence) -> None:
    """Refuse an eps at which the rounding of costs decides where the mass goes."""
    problem = found.cross.problem
    assert problem is not None
    if hidden_error(problem.op, found.epsilon) > MOST_HIDDEN:
        raise SettingsError(
            f"epsilon is {found.epsilon:.3g}, too small to read a plan for a mean cost of "
            f"{found.mean_cost:.3g}: rounding would decide where mass goes; raise epsilon, whose "
            "default is 1% of the mean cost"
        )


def entropies(
    mass: Tensor,  # (V, K) >= 0
) -> Tensor:  # (V,) in bits, 0 for rows without mass
    """Return the entropy of where the mass of each row goes."""
    tiny, parts = torch.finfo(mass.dtype).tiny, []
    for part in mass.split(max(1, ENTROPY_ENTRIES // mass.shape[1])):
        share = part / part.sum(1, keepdim=True).clamp(min=tiny)
        # 0 log 0 is 0; from 0, which has a sign: the entropy of one class is not -0
        parts.append(0.0 - (share * share.clamp(min=tiny).log2_()).sum(1))
    return torch.cat(parts)


def _centred(potential: Tensor, weights: Tensor) -> Tensor:  # (n,), NaN without weight
    return potential - weights @ potential.nan_to_num()


def _split(
    term: Term,
    eps: float,
    mass: Tensor | None,  # (Vx, Vy) of the plan, None: not known
) -> CostSplit:
    """Return what features, labels and entropy contribute to a term; a pass, two without mass."""
    problem = term.problem
    assert problem is not None
    solution, op, a, b = term.solution, problem.op, problem.x.weights, problem.y.weights
    h = solution.g + eps * b.log()
    _, mean_score = op.softmin_mean(h, eps)
    columns = b * ((solution.g - solution.next_g) / eps).exp()
    rows = a if solution.f is not solution.g else columns
    # scores relative to their mean, so that rounding costs their spread and not their size
    centre = float(columns @ h / columns.sum())
    paid = float(columns @ (h - centre) - rows @ (mean_score - centre))
    if mass is None:
        labels = label_part(op, rows, b, eps, solution)
    else:
        labels = float(mass.flatten() @ op.pair.label_cost.flatten())
    return CostSplit(paid - labels, labels, solution.value - paid)


@dataclass(frozen=True, eq=False)
class _Paid:
    """Who pays how much of ``<P, C>``."""

    by_class: Tensor  # (Vx, Vy) shares
    rows: Tensor  # (n,) mean cost of a unit of mass, NaN without weight
    columns: Tensor  # (m,)
    pairs: tuple[SamplePair, ...]


def _paid(
    x: Prepared, y: Prepared, found: Divergence, settings: OTDDSettings, count: int
) -> Generator[Progress, None, _Paid]:
    """Read the plan of the cross term block by block."""
    plan = Plan(
        found.pair,
        found.cross.solution,
        found.epsilon,
        found.x,
        found.y,
        (len(x.used), len(y.used)),
        settings.memory_budget,
        found.classes,
    )
    device = found.pair.label_cost.device
    n, m = found.pair.shape
    rows, columns, arrived = (
        torch.zeros(size, dtype=torch.float64, device=device) for size in (n, m, m)
    )
    classes = found.pair.label_cost.shape
    by_class = torch.zeros(classes, dtype=torch.float64, device=device)
    best = _Best(count, m, device)
    for part, mass, cost in plan.blocks():
        yield Progress("explain", int(part[0]), n)
        paid = mass * cost
        rows[part] = paid.sum(1) / mass.sum(1)
        columns += paid.sum(0)
        arrived += mass.sum(0)
        over_columns = torch.zeros((len(part), classes[1]), dtype=torch.float64, device=device)
        over_columns.index_add_(1, found.pair.column_labels, paid)
        by_class.index_add_(0, found.pair.row_labels[part], over_columns)
        best.add(part, mass, paid)
    yield Progress("explain", n, n)
    total = float(by_class.sum())
    by_class = by_class / total if total > 0 else by_class
    listed = [
        _pair(x, y, found, (place // m, place % m), mass, paid, total)
        for place, mass, paid in best.listed()
    ]
    by_class = by_class if found.classes is None else renumbered(by_class, found.classes)
    return _Paid(
        by_class.cpu(),
        x.unsorted(rows, found.x),
        y.unsorted(columns / arrived, found.y),
        tuple(listed),
    )


class _Best:
    """The sample pairs that pay most, of the blocks so far."""

    def __init__(self, count: int, m: int, device: torch.device) -> None:
        self._count, self._m = count, m
        self._paid = torch.zeros(0, dtype=torch.float64, device=device)
        self._mass = torch.zeros_like(self._paid)
        self._place = torch.zeros(0, dtype=torch.int64, device=device)  # row m + column

    def add(self, rows: Tensor, mass: Tensor, paid: Tensor) -> None:
        """Take a block's best pairs in: rows (k,), mass and paid (k, m)."""
        top = paid.flatten().topk(min(self._count, paid.numel()))
        place = rows[top.indices // self._m] * self._m + top.indices % self._m
        self._paid = torch.cat([self._paid, top.values])
        self._mass = torch.cat([self._mass, mass.flatten()[top.indices]])
        self._place = torch.cat([self._place, place])
        keep = self._paid.topk(min(self._count, len(self._paid))).indices
        self._paid, self._mass, self._place = (
            t[keep] for t in (self._paid, self._mass, self._place)
        )

    def listed(self) -> list[tuple[int, float, float]]:
        """Return place, mass and what is paid, most first."""
        columns = (self._place.tolist(), self._mass.tolist(), self._paid.tolist())
        return list(zip(*columns, strict=True))


def _pair(
    x: Prepared,
    y: Prepared,
    found: Divergence,
    place: tuple[int, int],  # in the pair
    mass: float,
    paid: float,
    total: float,
) -> SamplePair:
    i, j = place
    row, column = (
        int(side.rows[int(margin.order[k])])
        for side, margin, k in ((x, found.x, i), (y, found.y, j))
    )
    return SamplePair(
        row,
        column,
        int(found.x.labels[i]),
        int(found.y.labels[j]),
        mass,
        paid / mass if mass > 0 else 0.0,
        paid / total if total > 0 else 0.0,
    )
