r"""Symmetric matrices to block tridiagonal ones, and the determinants of those under shifts.

Panels of BAND columns are made triangular by reflections, which all the rest of the matrix takes
from both sides in one product of width 2 BAND:

.. math::
    Q = I - V T V^T, \quad Q^T A Q = A - V W^T - W V^T, \quad
    W = A V T - V (T^T V^T A V T) / 2

What is left, blocks D on the diagonal and E below it, has the eigenvalues of the matrix, and

.. math::
    \log\det(A + s I) = \sum_k \log\det C_k, \quad C_{k+1} = D_{k+1} + s I - E_k C_k^{-1} E_k^T

Nothing but products of full width, one pass over the matrix a panel: a batch runs at the speed of
the memory, where decompositions one by one crawl.

Source: Bischof, Lang and Sun 2000, "A framework for symmetric band reduction"; Golub and Van Loan
2013, "Matrix computations", section 5.1.7 (products of reflections), 4.5 (block tridiagonal).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from otdd_flash_kernels.launch import current, reflection_warps

BAND = 16


@triton.jit(do_not_specialize=["first", "height"])
def reflection_kernel(
    matrices,  # (P, n, n) float64; in: rows of a panel, out: its triangle beside the diagonal
    left,  # (P, 2 BAND, height) float64, out: reflection vectors V^T on top
    right,  # (P, 2 BAND, height) float64, out: V^T below
    scales,  # (P, BAND, BAND) float64, out: T^T
    n,
    first,  # row of the panel
    height,  # n - first - BAND
    ROWS: tl.constexpr,  # power of two >= height
    BAND: tl.constexpr,
):
    """Make one panel of one matrix triangular; it is read by rows, which equal the columns."""
    matrix = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, ROWS)
    c = tl.arange(0, BAND)
    row, column = i[None, :], c[:, None]
    inside = row < height
    place = matrices + matrix * n * n + (first + column).to(tl.int64) * n + first + BAND + row
    a = tl.load(place, mask=inside, other=0.0)
    scale = tl.zeros((BAND, BAND), tl.float64)
    for j in range(BAND):
        x = tl.sum(tl.where(column == j, a, 0.0), 0)
        below = tl.where(i > j, x, 0.0)
        alpha = tl.sum(tl.where(i == j, x, 0.0), 0)
        rest = tl.sum(below * below, 0)
        norm = tl.sqrt(alpha * alpha + rest)
        # away from alpha: no cancellation
        beta = tl.where(alpha > 0, -norm, norm)
        live = rest > 0
        tau = tl.where(live, (beta - alpha) / tl.where(live, beta, 1.0), 0.0)
        below /= tl.where(live, alpha - beta, 1.0)
        v = tl.where(i == j, 1.0, below)
        products = tl.sum(v[None, :] * a, 1)
        step = tl.where(c > j, tau * products, 0.0)
        made = tl.where(i > j, below, tl.where(i == j, tl.where(live, beta, alpha), x))
        a = tl.where(column == j, made[None, :], a - step[:, None] * v[None, :])
        # a column of T: of the vectors before j the products are V^T v
        t = -tau * tl.sum(scale * tl.where(c < j, products, 0.0)[:, None], 0)
        scale = tl.where(column == j, tl.where(c == j, tau, t)[None, :], scale)
    tl.store(scales + (matrix * BAND + column) * BAND + c[None, :], scale)
    v = tl.where(row > column, a, tl.where(row == column, 1.0, 0.0))
    target = (matrix * 2 * BAND + column) * height + row
    tl.store(left + target, v, mask=inside)
    tl.store(right + target + BAND * height, v, mask=inside)
    tl.store(place, tl.where(row <= column, a, 0.0), mask=inside & (row < BAND))


@triton.jit
def determinant_kernel(
    bands,  # (P, n, n) float64, block tridiagonal by its upper blocks
    shifts,  # (S,) float64 > 0
    out,  # (P, S) float64
    n,
    count,  # S
    BAND: tl.constexpr,
):
    """Write the logarithm of the determinant of one matrix under one shift."""
    matrix = tl.program_id(0).to(tl.int64)
    node = tl.program_id(1)
    i = tl.arange(0, BAND)
    row, column = i[:, None], i[None, :]
    # lanes along rows, so that a thread holds whole pieces of columns
    place = bands + matrix * n * n + row + column.to(tl.int64) * n
    shift = tl.load(shifts + node)
    shifted = tl.where(row == column, shift, 0.0)
    block = tl.load(place) + shifted
    total = shift * 0.0
    for first in range(0, n, BAND):
        more = first + BAND < n
        coupling = tl.load(place + BAND, mask=more & (row >= 0) & (column >= 0), other=0.0)
        inverse = tl.zeros((BAND,), tl.float64)
        product = shift * 0.0 + 1.0
        for j in tl.static_range(BAND):
            c = tl.sum(tl.where(column == j, block, 0.0), 1)
            # a pivot is at least the least eigenvalue: rounding alone brings it below the shift
            pivot = tl.maximum(tl.sum(tl.where(i == j, c, 0.0), 0), shift)
            e = tl.sum(tl.where(column == j, coupling, 0.0), 1)
            over = 1.0 / pivot
            step = tl.where(i > j, c * over, 0.0)
            block -= c[:, None] * step[None, :]
            coupling -= e[:, None] * step[None, :]
            inverse = tl.where(i == j, over, inverse)
            product *= pivot
        total += tl.log(product)
        if more:
            place += BAND * n + BAND
            scaled = coupling * inverse[None, :]
            block = tl.load(place) + shifted
            block -= tl.dot(scaled, tl.trans(coupling), out_dtype=tl.float64)
    tl.store(out + matrix * count + node, total)


def reduce_to_bands(
    matrices: Tensor,  # (P, n, n) float64 contiguous, symmetric, n a multiple of BAND; overwritten
) -> Tensor:  # (P, n, n) the same memory
    """Return block tridiagonal matrices of the same eigenvalues, valid in their upper blocks.

    Error: eigenvalues move by a small multiple of ``u |A|``. Memory: 5 P BAND n floats.
    """
    count, n = matrices.shape[:2]
    scales = matrices.new_empty(count, BAND, BAND)
    for first in range(0, n - BAND, BAND):
        height = n - first - BAND
        left = matrices.new_empty(count, 2 * BAND, height)
        right = torch.empty_like(left)
        rows = triton.next_power_of_2(height)
        with current(matrices.device):
            reflection_kernel[(count,)](
                matrices,
                left,
                right,
                scales,
                n,
                first,
                height,
                ROWS=rows,
                BAND=BAND,
                num_warps=reflection_warps(rows),
            )
        rest = matrices[:, first + BAND :, first + BAND :]
        vectors = left[:, :BAND]
        turned = scales @ (vectors @ rest)
        inner = turned @ vectors.mT @ scales.mT
        torch.baddbmm(turned, inner, vectors, alpha=-0.5, out=left[:, BAND:])
        right[:, :BAND] = left[:, BAND:]
        rest.baddbmm_(left.mT, right, alpha=-1)
    return matrices


def log_determinants(
    bands: Tensor,  # (P, n, n) float64 contiguous, of `reduce_to_bands`, positive semidefinite
    shifts: Tensor,  # (S,) float64 > 0
) -> Tensor:  # (P, S) float64
    """Return ``log det(A + s I)``.

    Pivots of a block are multiplied before their logarithm is taken: shifts and eigenvalues lie
    within 1e-18 and 1e18.
    """
    count, n = bands.shape[:2]
    out = bands.new_empty(count, len(shifts))
    if count:
        with current(bands.device):
            determinant_kernel[(count, len(shifts))](
                bands, shifts, out, n, len(shifts), BAND=BAND, num_warps=1
            )
    return out
