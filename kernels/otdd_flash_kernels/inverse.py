r"""Inverses of a batch of symmetric positive definite matrices, by blocks.

.. math::
    \begin{pmatrix} A & B \\ B^T & D \end{pmatrix}^{-1} =
    \begin{pmatrix} A^{-1} + W K^T & -W \\ -W^T & S^{-1} \end{pmatrix}, \quad
    K = A^{-1} B, \quad S = D - B^T K, \quad W = K S^{-1}

down to blocks of 32 or 64 columns, each of which one program inverts in its registers by sweeps

.. math::
    a_{ij} \leftarrow a_{ij} - a_{ik} a_{kj} / a_{kk}, \quad a_{ik} \leftarrow a_{ik} / a_{kk},
    \quad a_{kk} \leftarrow -1 / a_{kk}

The rest are products of the library, for all matrices together: two thirds of one of full size.

Source: Higham 2002, "Accuracy and stability of numerical algorithms", section 13.2 (blocks and
their stability); Goodnight 1979, "A tutorial on the SWEEP operator".
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from otdd_flash_kernels.launch import current

# columns of a block that one program holds, and its warps. Few matrices wait for launches, and take
# half as many of larger blocks; many wait for sweeps, which are shorter in smaller ones
LARGE, SMALL = (64, 16), (32, 4)
FEW = 256


@triton.jit(do_not_specialize=["n"])
def sweep_kernel(
    matrices,  # float64, (P, n, n) at the strides given, in and out
    n,  # columns, at most SIDE
    batch_stride,
    row_stride,
    SIDE: tl.constexpr,
):
    """Invert one matrix in place."""
    i = tl.arange(0, SIDE)
    row, column = i[:, None], i[None, :]
    inside = (row < n) & (column < n)
    place = matrices + tl.program_id(0).to(tl.int64) * batch_stride
    place += row.to(tl.int64) * row_stride + column
    # ones beside the matrix are their own inverse
    a = tl.load(place, mask=inside, other=0.0)
    a = tl.where(inside | (row != column), a, 1.0)
    for k in range(n):
        # the matrix stays symmetric: its column k is this row
        r = tl.sum(tl.where(row == k, a, 0.0), 0)
        over = 1.0 / tl.sum(tl.where(i == k, r, 0.0), 0)
        share = r * over
        a -= r[:, None] * share[None, :]
        a = tl.where(row == k, share[None, :], tl.where(column == k, share[:, None], a))
        a = tl.where((row == k) & (column == k), -over, a)
    tl.store(place, -a, mask=inside)


def invert(
    matrices: Tensor,  # (P, n, n) float64, symmetric positive definite; overwritten
) -> Tensor:  # (P, n, n) the same memory
    """Return the inverses, off by a small multiple of ``u`` times the condition number up to 400.

    For large condition numbers the error grows with their square, as inverted blocks are used
    again. Rows and columns of the unit matrix stay so, exactly. Memory: a third of the matrices.
    """
    count, n = matrices.shape[:2]
    side, warps = LARGE if count <= FEW else SMALL
    if n <= side:
        if count:
            with current(matrices.device):
                sweep_kernel[(count,)](
                    matrices, n, matrices.stride(0), matrices.stride(1), SIDE=side, num_warps=warps
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
