r"""The streamed softmin over all columns, for tiles of rows of one class.

.. math::
    softmin_i = -eps \log \sum_j \exp((h_j - C_{ij}) / eps)

In base 2 the score of a pair is ``dot_ij * slope + u_j - w_j``: the integer dot product, the
column bias ``u`` (potential and squared norm), and the label cost of the tile's class, a vector
over the columns. C is never stored. The row bias is added after the reduction, in float64. Tiles
that are constant from some column on skip the rest (see sparsity.py): what it would add is in
``u`` (constant rows) or in ``row_tail`` (constant columns).

One slice is multiplied as it is, in exact integers (or in float16, as exactly, see operands.py). In
few dimensions, where exponentials are the work, two slices are held in float16, the upper one times
256: all four products then go into one float32 sum, and no integers are left to convert.

Sources: online softmax, Milakov and Gimelshein 2018; FlashSinkhorn, arXiv 2602.03067, section 3.
"""

from __future__ import annotations

import triton
import triton.language as tl

from otdd_flash_kernels.operands import add_products, described
from otdd_flash_kernels.tiles import column_bias, own_tile, reduce_scores, store_reduced


@triton.jit(do_not_specialize=["n", "m", "n_tiles", "n_classes"])
def softmin_kernel(
    rows,  # descriptor or pointer, (n, d) int8 or float16, or (2 n, d) float16, upper slice last
    columns,  # descriptor or pointer, (m, d) int8 or float16, or (2 m, d) float16
    u,  # (steps + 1, m) float32 column bias for tiles of so many steps, base 2
    row_tail,  # (steps + 1, n) float32 what runs of so many steps leave out, base 2
    label_cost,  # (Vx, Vy) float32, base 2
    column_labels,  # (m,) int32
    tiles,  # (tiles, 4) int32: first row, end row, class, steps
    runs,  # (runs, 3) int32: first column, end column, steps
    seams,  # (segments + 1,) int32 into runs; segments are reduced apart
    out_top,  # (segments, n) float32 row maxima
    out_sum,  # (segments, n) float32 sums relative to the maxima
    out_mean,  # (segments, n) float32 sums times score minus maximum
    n,
    m,
    d,
    n_tiles,
    n_classes,  # of the columns
    slope,  # base-2 score of one unit of the dot product
    MODE: tl.constexpr,
    WIDE: tl.constexpr,  # two slices in float16
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Reduce one row tile over the columns of one segment."""
    first_row, end_row, klass, tile_steps, segment = own_tile(tiles, n_tiles)
    u += tile_steps.to(tl.int64) * m
    label_cost += klass.to(tl.int64) * n_classes
    row = first_row + tl.arange(0, BM)
    slices: tl.constexpr = 2 if WIDE else 1
    rows = described(rows, slices * n, d, BM, BK)
    columns = described(columns, slices * m, d, BN, BK)
    unit: tl.constexpr = tl.int32 if rows.dtype == tl.int8 else tl.float32

    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    moment = tl.zeros((BM,), tl.float32)
    for r in range(tl.load(seams + segment), tl.load(seams + segment + 1)):
        begin = tl.load(runs + r * 3)
        end = tl.load(runs + r * 3 + 1)
        run_steps = tl.load(runs + r * 3 + 2)
        tail = tl.load(row_tail + run_steps.to(tl.int64) * n + row, mask=row < end_row, other=0.0)
        steps = tl.minimum(tile_steps, run_steps)
        tl.assume(steps > 0)
        # one loop of tiles and steps, so that loads of the next tile overlap this one's end
        for j in tl.range(begin, end, BN, flatten=True):
            dots = tl.zeros((BM, BN), unit)  # [BM, BN]
            for k in range(0, steps):
                dots = add_products(dots, rows, columns, first_row, j, k * BK, n, m, WIDE)
            bias = column_bias(u, label_cost, column_labels, j + tl.arange(0, BN), end)
            score = dots.to(tl.float32) * slope + bias[None, :]
            top, total, moment = reduce_scores(score, tail, top, total, moment, MODE)

    store_reduced(out_top, out_sum, out_mean, top, total, moment, segment, row, end_row, n, MODE)
