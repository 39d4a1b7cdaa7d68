r"""Gradients of label costs with respect to class laws.

With covariances ``A = F^T F`` of a source class and ``B = G^T G`` of a target class, and Q the
polar factor of ``F G^T``, the optimal map between the laws takes a row x to ``x T``,
``T = F^+ Q G``, and

.. math::
    dW_2/d\mu = 2 (\mu - \nu), \quad dW_2/dF = 2 (F - Q G) = 2 F (I - T)

T acts on rows in the range of the law alone, where it is unique. Where ``F G^T`` has null singular
values on both sides the distance has a kink, and Q is the polar factor of least norm, for which a
class in a subspace that the target leaves stays in it. Nothing is divided by differences of
eigenvalues: equal laws, classes of fewer samples than features and point masses need no care.

Source: Bhatia, Jain and Lim 2019, "On the Bures-Wasserstein distance between positive definite
matrices", section 3.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from otdd_flash.errors import DataError
from otdd_flash.laws.bures import check_laws
from otdd_flash.laws.couplings import NOISE, Couplings, decomposed
from otdd_flash.laws.factor_pairs import MEMORY_LIMIT
from otdd_flash.laws.gaussians import ClassLaws
from otdd_flash.laws.polar import polar_factor
from otdd_flash_kernels.workers import spread


@dataclass(frozen=True, eq=False)
class LawPull:
    """The derivative of a number with respect to V class laws.

    For factors it is ``2 F_c sum_k m_ck (I - T_ck)``, of the shape of the factor; with respect to
    a variance ``sum_k m_ck (1 - t_k / s_c)``, s and t the standard deviations.
    """

    means: Tensor  # (V, d) float64
    variances: Tensor | None = None  # (V, d), laws of the kind "diagonal"
    factors: tuple[Tensor, ...] | None = None  # V of (rank_c, d), laws of the kind "gaussian"

    def __add__(self, other: LawPull) -> LawPull:
        """Return the derivative of a sum, with respect to the same laws."""
        variances, factors = None, None
        if self.variances is not None and other.variances is not None:
            variances = self.variances + other.variances
        if self.factors is not None and other.factors is not None:
            factors = tuple(p + q for p, q in zip(self.factors, other.factors, strict=True))
        return LawPull(self.means + other.means, variances, factors)


def law_pull(
    source: ClassLaws,  # Vx laws, which move
    target: ClassLaws,  # Vy laws of the same kind, d and device, which stay
    mass: Tensor,  # (Vx, Vy) weights of the distances, of any sign
    *,
    floor: float = NOISE,
    memory_limit: int = MEMORY_LIMIT,
    couplings: Couplings | None = None,  # of `coupled_cost` of the source with any target
) -> LawPull:
    """Return the derivative of ``sum_ck mass[c, k] W2[c, k]`` with respect to the source laws.

    In a block of one dataset against itself both sides move: pass the same laws twice and
    ``mass + mass^T``. Pairs of weight zero and of equal laws cost nothing, those whose polar
    factors were kept a product. On an accelerator directions of ``F G^T`` below ``floor``,
    relative to its largest, are followed in part.

    Raises:
        DataError: laws of different d or devices, or a mass of another shape.
        SettingsError: different kinds.
        WeightError: a class of mass zero.

    Memory: ``memory_limit`` and as much as the source factors; never (Vx, Vy, d, d).
    """
    check_laws((source, target))
    if mass.shape != (source.classes, target.classes):
        raise DataError(
            f"mass has shape {tuple(mass.shape)}, expected {(source.classes, target.classes)}: "
            "one weight a pair of classes"
        )
    mass = mass.to(source.means.device, torch.float64)
    rows = mass.sum(1)[:, None]
    # from a point between, so that a common offset costs no digits
    centre = target.means.mean(0)
    means = 2.0 * (rows * (source.means - centre) - mass @ (target.means - centre))
    if source.variances is not None and target.variances is not None:
        deviation = source.variances.sqrt()
        ratio = (mass @ target.variances.sqrt()) / deviation.where(deviation > 0, 1.0)
        return LawPull(means, rows - ratio * (deviation > 0))
    if source.factors is None or target.factors is None:
        return LawPull(means)
    pairs = _Pairs(source.factors, target.factors, mass, couplings)
    return LawPull(means, None, pairs.pulls(floor, memory_limit))


class _Pairs:
    """Pairs of factors that pull: ``2 sum_k m_ck (F_c - Q_ck G_k)``, in one order everywhere."""

    def __init__(
        self,
        sources: tuple[Tensor, ...],  # Vx of (rank_c, d)
        targets: tuple[Tensor, ...],  # Vy of (rank_k, d)
        mass: Tensor,  # (Vx, Vy)
        couplings: Couplings | None,
    ) -> None:
        self.sources, self.targets, self.mass = sources, targets, mass.tolist()
        self.couplings = couplings
        # of laws against themselves, Q_kc is the transpose of Q_ck
        self.inner = sources is targets
        weight = (mass.abs() + mass.abs().mT).triu(1) if self.inner else mass
        self.wanted: list[tuple[int, int]] = torch.nonzero(weight).tolist()
        self.out = [torch.zeros_like(factor) for factor in sources]

    def pulls(self, floor: float, memory_limit: int) -> tuple[Tensor, ...]:  # Vx of (rank_c, d)
        """Return the pulls: pairs whose Q was kept first, then the others in batches."""
        left = []
        for c, k in self.wanted:
            q = self.couplings.between(c, k, self.inner) if self.couplings else None
            if q is not None:
                self._add(c, k, q)
            elif not torch.equal(self.sources[c], self.targets[k]):
                left.append((c, k))
        d = self.sources[0].shape[1]
        rank = max(factor.shape[0] for factor in (*self.sources, *self.targets))
        step = max(1, memory_limit // (8 * max(1, rank) * (2 * d + 6 * rank)))
        for first in range(0, len(left), step):
            part = left[first : first + step]
            factors = _polar_factors([(self.sources[c], self.targets[k]) for c, k in part], floor)
            for (c, k), q in zip(part, factors, strict=True):
                self._add(c, k, q)
        return tuple(self.out)

    def _add(self, c: int, k: int, q: Tensor) -> None:
        f, g = self.sources[c], self.targets[k]
        self.out[c] += (2.0 * self.mass[c][k]) * torch.addmm(f, q, g, alpha=-1)
        if self.inner:
            self.out[k] += (2.0 * self.mass[k][c]) * torch.addmm(g, q.mT, f, alpha=-1)


def _polar_factors(
    pairs: list[tuple[Tensor, Tensor]],  # P of (r, d) and (s, d)
    floor: float,
) -> list[Tensor]:  # P of (r, s)
    if pairs[0][0].device.type == "cpu":
        return spread(lambda pair: decomposed(*pair)[0], pairs)
    pad = torch.nn.utils.rnn.pad_sequence
    f, g = (pad([pair[k] for pair in pairs], batch_first=True) for k in (0, 1))
    q = polar_factor(f @ g.mT, floor)
    return [q[p, : len(f), : len(g)] for p, (f, g) in enumerate(pairs)]
