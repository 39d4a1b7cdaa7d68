r"""Pivoted Cholesky factors of a batch of matrices, rows in the order of their pivots.

.. math::
    A = R^T R, \quad R_{k,:} = (A_{p,:} - \sum_{l<k} R_{l,p} R_{l,:}) / R_{k,p}, \quad
    p = argmax_j (A_{jj} - \sum_{l<k} R_{lj}^2)

One program makes HEIGHT rows of one matrix, looking left at the rows of the block alone: a product
of the block with itself, by the library for all matrices together, takes them off the rest. A
matrix that is complete costs nothing more.

Source: Higham 2002, "Accuracy and stability of numerical algorithms", section 10.3; Lucas 2004
(LAPACK ``dpstrf``, blocks).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from otdd_flash_kernels.launch import cholesky_launch, current

# rows of a block
HEIGHT = 32
# blocks between looks whether a matrix is left: each waits for the device
LOOK = 8


@triton.jit(do_not_specialize=["first", "stop"])
def pivot_rows_kernel(
    rest,  # (V, d, d) float64, symmetric: what the blocks before leave of the matrices
    rows,  # (V, d, d) float64 zeros, out: rows first..stop-1 of the factors
    diagonal,  # (V, d) float64, in and out: what is left of the diagonals
    ranks,  # (V,) int64, in and out: rows made
    d,
    first,
    stop,
    tolerance,  # of a pivot
    BLOCK: tl.constexpr,  # power of two >= d
    STRIP: tl.constexpr,
):
    """Make rows first..stop-1 of the factor of one matrix, or as many as have a pivot."""
    matrix = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    strip = tl.arange(0, STRIP)
    inside = column < d
    rest += matrix * d * d
    rows += matrix * d * d
    left = tl.load(diagonal + matrix * d + column, mask=inside, other=0.0)
    # a matrix that ended before has a rank below first, and no pivot
    rank = tl.load(ranks + matrix)
    pivot, p = tl.max(left, 0, return_indices=True)
    while (rank < stop) & (pivot > tolerance):
        row = tl.load(rest + p.to(tl.int64) * d + column, mask=inside, other=0.0)
        for start in range(first, rank, STRIP):
            place = start + strip
            done = place < rank
            before = rows + place.to(tl.int64) * d
            factor = tl.load(before + p, mask=done, other=0.0)
            block = tl.load(
                before[:, None] + column[None, :], mask=done[:, None] & inside[None, :], other=0.0
            )
            row -= tl.sum(factor[:, None] * block, 0)
        root = tl.sqrt(pivot)
        # nothing is left of former pivots: exact zeros, which tell the pivots of a factor
        row = tl.where(column == p, root, tl.where(left > 0, row / root, 0.0))
        tl.store(rows + rank * d + column, row, mask=inside)
        left = tl.where(column == p, 0.0, left - row * row)
        rank += 1
        pivot, p = tl.max(left, 0, return_indices=True)
        # other threads read this row from the next one on
        tl.debug_barrier()
    tl.store(diagonal + matrix * d + column, left, mask=inside)
    tl.store(ranks + matrix, rank)


def pivoted_cholesky(
    matrices: Tensor,  # (V, d, d) float64 contiguous, positive semidefinite; overwritten
    tolerance: float,  # pivots at or below it end a factor
) -> tuple[Tensor, Tensor]:  # (V, d, d) rows of the factors in pivot order, (V,) int64 ranks
    """Return factors R with ``R^T R`` the matrices; their rows from the rank on are zeros.

    Memory: as much again as the matrices. A row is zero at the pivots of the rows before it.
    """
    count, d = matrices.shape[:2]
    rows = torch.zeros_like(matrices)
    diagonal = matrices.diagonal(dim1=1, dim2=2).clone()
    ranks = torch.zeros(count, dtype=torch.int64, device=matrices.device)
    width = triton.next_power_of_2(d)
    warps, strip = cholesky_launch(width)
    for k, first in enumerate(range(0, d, HEIGHT)):
        if k % LOOK == 0 and not bool((diagonal > tolerance).any()):
            break
        stop = min(first + HEIGHT, d)
        with current(matrices.device):
            pivot_rows_kernel[(count,)](
                matrices,
                rows,
                diagonal,
                ranks,
                d,
                first,
                stop,
                tolerance,
                BLOCK=width,
                STRIP=strip,
                num_warps=warps,
            )
        if stop < d:
            made = rows[:, first:stop]
            matrices.baddbmm_(made.mT, made, alpha=-1)
    return rows, ranks
