r"""Inverses of a batch of symmetric positive definite matrices, by blocks.

.. math::
    \begin{pmatrix} A & B \\ B^T & D \end{pmatrix}^{-1} =
    \begin{pmatrix} A^{-1} + W K^T & -W \\ -W^T & S^{-1} \end{pmatrix}, \quad
    K = A^{-1} B, \quad S = D - B^T K, \quad W = K S^{-1}

down to blocks of HALF columns, which one program inverts in its registers by sweeps

.. math::
    a_{ij} \leftarrow a_{ij} - a_{ik} a_{kj} / a_{kk}, \quad a_{ik} \leftarrow a_{ik} / a_{kk},
    \quad a_{kk} \leftarrow -1 / a_{kk}

The rest are products of the library, for all matrices together: two thirds of one of full size. Of
few matrices, which wait for launches, a program does two blocks and their products.

Source: Higham 2002, "Accuracy and stability of numerical algorithms", section 13.2 (blocks and
their stability); Goodnight 1979, "A tutorial on the SWEEP operator".
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from otdd_flash_kernels.launch import current

# columns that are swept, and the warps of a program: eight entries a thread, so that a sweep waits
# for few operations
HALF, WARPS = 32, 4
# up to so many matrices a program does two blocks: it takes the registers of four that do one
FEW = 256


@triton.jit
def load_block(place, row, column, n, row_stride):
    """Return (HALF, HALF) entries of a matrix of n columns, those of the unit matrix beyond."""
    inside = (row < n) & (column < n)
    a = tl.load(place + row.to(tl.int64) * row_stride + column, mask=inside, other=0.0)
    return tl.where(inside | (row != column), a, 1.0)


@triton.jit
def store_block(place, row, column, n, row_stride, block):
    """Write the entries of a block that are inside the matrix."""
    inside = (row < n) & (column < n)
    tl.store(place + row.to(tl.int64) * row_stride + column, block, mask=inside)


@triton.jit
def swept(
    a,  # (HALF, HALF) float64, symmetric positive definite
    n,  # columns to sweep; those beyond are of the unit matrix
    HALF: tl.constexpr,
):
    """Return the inverse of a block."""
    i = tl.arange(0, HALF)
    row, column = i[:, None], i[None, :]
    for k in range(n):
        # the matrix stays symmetric: its column k is this row
        r = tl.sum(tl.where(row == k, a, 0.0), 0)
        over = 1.0 / tl.sum(tl.where(i == k, r, 0.0), 0)
        share = r * over
        a -= r[:, None] * share[None, :]
        a = tl.where(row == k, share[None, :], tl.where(column == k, share[:, None], a))
        a = tl.where((row == k) & (column == k), -over, a)
    return -a


@triton.jit(do_not_specialize=["n"])
def invert_kernel(
    matrices,  # float64, (P, n, n) at the strides given, in and out
    n,  # columns, at most HALF, or twice as many
    batch_stride,
    row_stride,
    HALF: tl.constexpr,
    TWICE: tl.constexpr,
):
    """Invert one matrix in place."""
    place = matrices + tl.program_id(0).to(tl.int64) * batch_stride
    i = tl.arange(0, HALF)
    row, column = i[:, None], i[None, :]
    a = swept(load_block(place, row, column, n, row_stride), tl.minimum(n, HALF), HALF)
    if TWICE:
        if n > HALF:
            right, low = column + HALF, row + HALF
            b = load_block(place, row, right, n, row_stride)
            k = tl.dot(a, b, out_dtype=tl.float64)
            d = load_block(place, low, right, n, row_stride)
            d = swept(d - tl.dot(tl.trans(b), k, out_dtype=tl.float64), n - HALF, HALF)
            w = tl.dot(k, d, out_dtype=tl.float64)
            a += tl.dot(w, tl.trans(k), out_dtype=tl.float64)
            store_block(place, row, right, n, row_stride, -w)
            store_block(place, low, column, n, row_stride, tl.trans(-w))
            store_block(place, low, right, n, row_stride, d)
    store_block(place, row, column, n, row_stride, a)


def invert(
    matrices: Tensor,  # (P, n, n) float64, symmetric positive definite; overwritten
) -> Tensor:  # (P, n, n) the same memory
    """Return the inverses, off by a small multiple of ``u`` times the condition number up to 400.

    For large condition numbers the error grows with their square, as inverted blocks are used
    again. Rows and columns of the unit matrix stay so, exactly. Memory: a third of the matrices.
    """
    count, n = matrices.shape[:2]
    twice = count <= FEW
    side = 2 * HALF if twice else HALF
    if n <= side:
        if count:
            strides = matrices.stride(0), matrices.stride(1)
            with current(matrices.device):
                invert_kernel[(count,)](
                    matrices, n, *strides, HALF=HALF, TWICE=twice, num_warps=WARPS
                )
        return matrices
    half = side * -(-n // (2 * side))
    a, b = matrices[:, :half, :half], matrices[:, :half, half:]
    d = matrices[:, half:, half:]
    k = invert(a) @ b
    invert(d.baddbmm_(b.mT, k, alpha=-1))
    b.baddbmm_(k, d, beta=0, alpha=-1)
    a.baddbmm_(b, k.mT, alpha=-1)
    matrices[:, half:, :half] = b.mT
    return matrices
