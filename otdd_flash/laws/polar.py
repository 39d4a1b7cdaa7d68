"""Polar factors and nuclear norms of a batch of matrices by matrix products alone.

``M = Q H`` with Q orthonormal and H positive semidefinite gives ``|M|_* = <Q, M>``. Q is the limit
of ``X <- X (a I - b X^T X)`` from ``X = M / |M|``: singular values move to 1, vectors stay. Nothing
but products, which accelerators do at full rate where decompositions of a batch crawl.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# relative error of a nuclear norm that is accepted; the bound is far above the true error
ACCURACY = 1e-10
# the smallest norm of a row or column is above the smallest singular value, seldom by more
GUESS_MARGIN = 6.0
# a first floor below this costs as much as the certain one
GUESS_LEAST = 1e-7
# weight c of a step: I + c X^T X has at most this condition number, and its inverse by blocks turns
# vectors of values of 1e-6 by some 1e-8 (1000: by 1e-6); six steps reach a floor of 1e-7
MOST_WEIGHT = 450.0
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
    floor: float | None = None,  # of the first round, None: a guess
) -> Polar:
    """Return polar factors by weighted Halley steps, in one or two rounds.

    After a round of floor l a singular value is 1 up to the accuracy / 10 when it was at least l,
    relative to ``|M|_2``, whatever the others were (see `_weights`). Then

    ``|M|_* - <Q, M> <= l |M|_2 (rank - |Q|_F^2) + |M|_* accuracy / 10``

    decides, matrix by matrix, whether a second round is due. The first floor is a guess from the
    norms of rows and columns, or ``floor``; the second makes the bound hold for any matrix.

    Memory: about 5 P r c floats. Source: Nakatsukasa, Bai and Gygi 2010, "Optimizing Halley's
    iteration for computing the matrix polar decomposition".
    """
    if matrices.shape[1] < matrices.shape[2]:
        flipped = polar(matrices.mT, ranks, accuracy, floor)
        return Polar(flipped.factor.mT, flipped.nuclear, flipped.missing, flipped.converged)
    x, norm = _normalised(matrices)
    nuclear, missing = norm.new_zeros(norm.shape), ranks.to(norm.dtype, copy=True)
    converged = norm == 0
    factor, part = x, matrices
    todo = torch.arange(norm.shape[0], device=norm.device)
    reached = 1.0
    for target in _floors(matrices, norm, ranks, accuracy, floor):
        # values below the last floor left its round raised by 1 / floor at least
        x = _round(x, target / reached, accuracy / 10)
        reached = target
        value = (x * part).sum((1, 2))
        miss = (ranks[todo] - x.square().sum((1, 2))).clamp(min=0)
        good = reached * norm[todo] * miss <= accuracy * value
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


def _floors(
    matrices: Tensor, norm: Tensor, ranks: Tensor, accuracy: float, floor: float | None
) -> list[float]:
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
    if floor is not None:
        return [floor, sure] if floor > sure else [sure]
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
        a, b, weight = _weights(low)
        gram(x, weight, product).diagonal(dim1=1, dim2=2).add_(1.0)
        product = _inverse(product)
        # (a + b z) / (1 + c z) = b / c + (a - b / c) / (1 + c z)
        ratio = b / weight
        x, spare = torch.baddbmm(x, x, product, beta=ratio, alpha=a - ratio, out=spare), x
        low = _raised(low, a, b, weight)
    return x


def _weights(
    low: float,
) -> tuple[float, float, float]:  # a, b, c
    """Return the weights of the step ``p(x) = x (a + b x^2) / (1 + c x^2)``, ``p(1) = 1``.

    It maps [0, 1] into itself, [l, 1] as close to 1 as can be, and p(x) / x falls. With
    ``c <= MOST_WEIGHT`` it is the step of a larger l.
    """
    g = (4.0 * (1.0 - low**2) / low**4) ** (1.0 / 3.0)
    root = math.sqrt(1.0 + g)
    a = root + 0.5 * math.sqrt(8.0 - 4.0 * g + 8.0 * (2.0 - low**2) / (low**2 * root))
    # b = (a - 1)^2 / 4 and c = a + b - 1 for any l
    a = min(a, 2.0 * math.sqrt(1.0 + MOST_WEIGHT) - 1.0)
    b = (a - 1.0) ** 2 / 4.0
    return a, b, a + b - 1.0


def _raised(low: float, a: float, b: float, c: float) -> float:
    """Return the least of p on [low, 1]: at its beginning, or in the valley behind the maximum."""

    def p(z: float) -> float:
        return math.sqrt(z) * (a + b * z) / (1.0 + c * z)

    # p' = 0 is a quadratic equation in z = x^2, with one root at c = 3
    slope = a * c - 3.0 * b
    z = (slope + math.sqrt(max(slope**2 - 4.0 * a * b * c, 0.0))) / (2.0 * b * c)
    return min(p(low**2), p(z) if low**2 < z < 1.0 else 1.0)


def _inverse(
    matrices: Tensor,  # (P, c, c) positive definite; overwritten
) -> Tensor:  # (P, c, c)
    if matrices.device.type == "cpu":
        return torch.cholesky_inverse(torch.linalg.cholesky(matrices))
    # Triton takes a while to import, and the CPU does without it
    from otdd_flash_kernels.inverse import invert

    return invert(matrices)


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
