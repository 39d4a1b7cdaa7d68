r"""The streamed softmin for clouds of two 8-bit slices whose coordinates fit one step.

With ``q = q_0 + 256 q_1`` the dot product is, in units of ``2^16``,

.. math::
    q_1 p_1 + [(q_1 p_0 + q_0 p_1) + [q_0 p_0]_8]_8, \quad [z]_8 = \lfloor z / 256 + 1/2 \rfloor

so that one int32 sum holds all four products: no accumulator beside it, nothing to convert before
the end. The two roundings are at most ``TRUNCATED`` units of the dot product. They are the same in
both directions of a pair: the cost read is a symmetric, exact function of the points, near C.
Everything else is as in softmin.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from otdd_flash_kernels.operands import described
from otdd_flash_kernels.tiles import column_bias, own_tile, reduce_scores, store_reduced

# half a unit of 2^8 and half a unit of 2^16
TRUNCATED = 2**7 + 2**15


@triton.jit(do_not_specialize=["n", "m", "n_tiles", "n_classes"])
def softmin_narrow_kernel(
    rows,  # descriptor or pointer, (2 n, d) int8, the upper slice last
    columns,  # descriptor or pointer, (2 m, d) int8
    u,  # (m,) float32 column bias, base 2
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
    slope,  # base-2 score of one unit of the upper slices' product
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,  # >= d
):
    """Reduce one row tile over the columns of one segment."""
    first_row, end_row, klass, _, segment = own_tile(tiles, n_tiles)
    label_cost += klass.to(tl.int64) * n_classes
    row = first_row + tl.arange(0, BM)
    rows = described(rows, 2 * n, d, BM, BK)
    columns = described(columns, 2 * m, d, BN, BK)
    x_down = rows.load([first_row, 0])  # [BM, BK]
    x_up = rows.load([n + first_row, 0])

    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    moment = tl.zeros((BM,), tl.float32)
    no_tail = tl.zeros((BM,), tl.float32)
    for r in range(tl.load(seams + segment), tl.load(seams + segment + 1)):
        begin = tl.load(runs + r * 3)
        end = tl.load(runs + r * 3 + 1)
        for j in tl.range(begin, end, BN):
            y_down = columns.load([j, 0])  # [BN, BK]
            y_up = columns.load([m + j, 0])
            dots = tl.dot(x_down, y_down.T, out_dtype=tl.int32)  # [BM, BN]
            dots = (dots + 128) >> 8
            dots = tl.dot(x_down, y_up.T, dots, out_dtype=tl.int32)
            dots = tl.dot(x_up, y_down.T, dots, out_dtype=tl.int32)
            dots = (dots + 128) >> 8
            dots = tl.dot(x_up, y_up.T, dots, out_dtype=tl.int32)
            bias = column_bias(u, label_cost, column_labels, j + tl.arange(0, BN), end)
            score = dots.to(tl.float32) * slope + bias[None, :]
            top, total, moment = reduce_scores(score, no_tail, top, total, moment, MODE)

    store_reduced(out_top, out_sum, out_mean, top, total, moment, segment, row, end_row, n, MODE)
