r"""Debiased potentials in the order of the datasets: the derivative of S in the samples' weights.

.. math::
    F_i = f_i - f^{self}_i, \quad G_j = g_j - g^{self}_j

More mass at sample i, taken from everywhere, raises S by F_i less the mean of F.

Source: Feydy et al. 2019, equation 3.209 of the thesis of Feydy 2020.
"""

from __future__ import annotations

from torch import Tensor

from otdd_flash.prepared import Prepared
from otdd_flash.solver.divergence import Divergence


def debiased_potentials(
    x: Prepared,
    y: Prepared,
    found: Divergence,  # solved with keep=True
) -> tuple[Tensor, Tensor]:  # (n,) and (m,) float64, NaN where a sample has weight zero
    """Return F and G of a solved divergence; those of the cross term if it is not debiased."""
    solution = found.cross.solution
    f, g = x.unsorted(solution.f, found.x), y.unsorted(solution.g, found.y)
    if not found.selves:
        return f, g
    own = []
    for side, term, k in ((x, found.selves[0], 0), (y, found.selves[1], 1)):
        assert term.problem is not None
        margin = (term.problem.x, term.problem.y)[k]
        own.append(side.unsorted(term.solution.f, margin))
    return f - own[0], g - own[1]


def equal_note(
    *potentials: Tensor,  # centred, NaN where a sample has weight zero
) -> tuple[str, ...]:
    """Return a note where an order of the samples by their potentials says nothing, else none."""
    if any(bool(potential.nan_to_num().any()) for potential in potentials):
        return ()
    return (
        "no sample is more foreign than another: all values are 0, as where source and target are "
        "the same samples",
    )
