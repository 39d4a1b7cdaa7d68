"""Polar factors and nuclear norms of a batch of matrices by matrix products alone.

``M = Q H`` with Q orthonormal and H positive semidefinite gives ``|M|_* = <Q, M>``. Q is the limit
of ``X <- X (a I - b X^T X)`` from ``X = M / |M|``: singular values move to 1, vectors stay. Nothing
but products, which accelerators do at full rate where decompositions of a batch crawl.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

# relative error of a nuclear norm that is accepted; the bound is far above the true error
ACCURACY = 1e-10
# the smallest norm of a row or column is above the smallest singular value, seldom by more
GUESS_MARGIN = 6.0
# a first floor below this costs as much as the certain one
GUESS_LEAST = 1e-7
# square of the scale of a step: 3 would send the largest value to the least, into the rounding of
# the others; here no value near 1 falls below 0.08
MOST_SCALE = 2.9
# Gram matrices of at most this many columns are one product, larger ones use their symmetry
GRAM_BLOCK = 256


@dataclass(frozen=True, eq=False)
class Polar:
    """Polar factors of P matrices and how far they are from it."""

    factor: Tensor  # (P, r, c) Q
    nuclear: Tensor  # (P,) <Q, M>, at most the nuclear norm
    missing: Tensor  # (P,) sum over singular values of 1 - f^2, f the singular values of Q
    converged: Tensor  # (P,) bool: nuclear within the accuracy of the nuclear norm


def polar(
    matrices: Tensor,  # (P, r, c) float64
    ranks: Tensor,  # (P,) bounds of the ranks, <= min(r, c); zero rows or columns do not count
    accuracy: float = ACCURACY,  # relative, of the nuclear norms
) -> Polar:
    """Return polar factors by scaled cubic Newton-Schulz steps, in one or two rounds.

    The step is ``p(x) = rho x (3 - rho^2 x^2) / 2`` with ``rho^2 = 3 / (1 + l + l^2)``, at most
    2.9: it maps [l, 1] to [p(l), 1] and [0, l] into [0, p(l)], so that after a round of floor l a
    singular value is 1 up to the accuracy / 10 when it was at least l, whatever the others were.
    Then

    ``|M|_* - <Q, M> <= l |M|_2 (rank - |Q|_F^2) + |M|_* accuracy / 10``

    decides, matrix by matrix, whether a second round is due. The first floor is a guess from the
    norms of rows and columns, the second makes the bound hold for any matrix.

    Memory: about 5 P r c floats. Source: Chen and Chow 2014, "A stable scaling of Newton-Schulz
    for improving the sign function computation of a Hermitian matrix" (scaling);
    Nakatsukasa and Higham 2012 (stability of such iterations).
    """
    if matrices.shape[1] < matrices.shape[2]:
        flipped = polar(matrices.mT, ranks, accuracy)
        return Polar(flipped.factor.mT, flipped.nuclear, flipped.missing, flipped.converged)
    x, norm = _normalised(matrices)
    nuclear, missing = norm.new_zeros(norm.shape), ranks.to(norm.dtype, copy=True)
    converged = norm == 0
    factor, part = x, matrices
    todo = torch.arange(norm.shape[0], device=norm.device)
    floor = 1.0
    for target in _floors(matrices, norm, ranks, accuracy):
        # values below the last floor left its round raised by 1 / floor at least
        x = _round(x, target / floor, accuracy / 10)
        floor = target
        value = (x * part).sum((1, 2))
        miss = (ranks[todo] - x.square().sum((1, 2))).clamp(min=0)
        good = floor * norm[todo] * miss <= accuracy * value
        if todo.shape == norm.shape:
            factor, nuclear, missing, converged = x, value, miss, converged | good
        else:
            factor[todo], nuclear[todo], missing[todo] = x, value, miss
            converged[todo] |= good
        left = torch.nonzero(~converged[todo])[:, 0]
        if not left.shape[0]:
            break
        x, part, todo = x[left], part[left], todo[left]
    return Polar(factor, nuclear, missing, converged)


def _normalised(matrices: Tensor) -> tuple[Tensor, Tensor]:
    """Return contiguous matrices of spectral norm at most 1, and by what they were divided.

    ``sqrt |M^T M|_F = (sum s^4)^(1/4)`` bounds ``|M|_2`` closer than the Frobenius norm does.
    """
    norm = torch.linalg.matrix_norm(gram(matrices)).sqrt()
    x = torch.empty(matrices.shape, dtype=matrices.dtype, device=matrices.device)
    return torch.div(matrices, norm.where(norm > 0, 1.0)[:, None, None], out=x), norm


def _floors(matrices: Tensor, norm: Tensor, ranks: Tensor, accuracy: float) -> list[float]:
    """Return the floors of the rounds, relative to ``norm``: a guess where it pays, a sure one."""
    live = norm > 0
    if not live.any():
        return []
    rows, columns = matrices.norm(dim=2), matrices.norm(dim=1)
    sides = [torch.where(side > 0, side, torch.inf).amin(1) for side in (rows, columns)]
    guess = torch.minimum(*sides)[live] / norm[live] / GUESS_MARGIN
    # |M|_* >= |M|_F^2 / |M|_2, and what is missing is at most the rank
    nuclear = (rows.square().sum(1) / norm)[live]
    sure = 0.5 * accuracy * float((nuclear / norm[live] / ranks[live].clamp(min=1)).amin())
    # most matrices of the batch shall do with the first round
    first = min(float(torch.quantile(guess, 0.1)), 0.5)
    return [first, sure] if first > max(GUESS_LEAST, sure) else [sure]


def _round(
    x: Tensor,  # (P, r, c) contiguous, singular values at most 1; overwritten
    low: float,  # the floor of the round
    flatness: float,  # the round ends when a value from the floor is this close to 1
) -> Tensor:  # (P, r, c)
    count, _, c = x.shape
    spare, product = torch.empty_like(x), x.new_empty(count, c, c)
    while 1.0 - low > flatness:
        rho = min(MOST_SCALE, 3.0 / (1.0 + low + low * low)) ** 0.5
        gram(x, -0.5 * rho**3, product).diagonal(dim1=1, dim2=2).add_(1.5 * rho)
        x, spare = torch.bmm(x, product, out=spare), x
        low = min(0.5 * rho * v * (3.0 - (rho * v) ** 2) for v in (low, 1.0))
    return x


def polar_factor(
    matrices: Tensor,  # (P, r, c) float64
    floor: float,  # of the singular values that matter, relative to the largest
) -> Tensor:  # (P, r, c)
    """Return polar factors whose singular values are 1 where those of the matrix reach the floor.

    Zero rows and columns stay zero; values below the floor end between 0 and 1. Memory: about
    5 P r c floats.
    """
    if matrices.shape[1] < matrices.shape[2]:
        return polar_factor(matrices.mT, floor).mT
    return _round(_normalised(matrices)[0], floor, ACCURACY / 10)


def polish(
    factor: Tensor,  # (P, r, c) nearly orthonormal
) -> Tensor:  # (P, r, c)
    """Return the factor after one more step, which squares its distance from orthonormality."""
    return torch.baddbmm(factor, factor, gram(factor), beta=1.5, alpha=-0.5)


def gram(
    x: Tensor,  # (P, r, c)
    alpha: float = 1.0,
    out: Tensor | None = None,  # (P, c, c)
) -> Tensor:  # (P, c, c) alpha x^T x
    """Return ``alpha x^T x``, large ones by blocks: three products of half the width, not four."""
    c = x.shape[2]
    out = x.new_empty(x.shape[0], c, c) if out is None else out
    if c <= GRAM_BLOCK:
        return out.baddbmm_(x.mT, x, beta=0, alpha=alpha)
    # whole vectors of memory start where the library likes them
    half = -(-c // 32) * 16
    a, b = x[..., :half], x[..., half:]
    gram(a, alpha, out[:, :half, :half])
    gram(b, alpha, out[:, half:, half:])
    cross = out[:, :half, half:].baddbmm_(a.mT, b, beta=0, alpha=alpha)
    out[:, half:, :half] = cross.mT
    return out
