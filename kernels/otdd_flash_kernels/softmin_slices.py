r"""The streamed softmin for clouds of two or three 8-bit slices a coordinate.

With ``q = sum_s 256^s q_s`` the dot product is a sum of exact integer products of slices by their
level ``s + t``. Three levels are kept, each in an accumulator of its own: all of two slices'
products, and the upper three levels of three slices' (what is left out is below ``3 d 2^22`` of
about ``d 2^44``, see ``TritonCost.lost``). Everything else is as in softmin.py.
"""

from __future__ import annotations

import triton
import triton.language as tl

from otdd_flash_kernels.operands import described
from otdd_flash_kernels.tiles import column_bias, own_tile, reduce_scores, store_reduced


@triton.jit(do_not_specialize=["n", "m", "n_tiles", "n_classes"])
def softmin_slices_kernel(
    rows,  # descriptor or pointer, (slices * n, d) int8 or float16
    columns,  # descriptor or pointer, (slices * m, d) int8 or float16
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
    slope,  # base-2 score of one unit of the highest level
    SLICES: tl.constexpr,
    MODE: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Reduce one row tile over the columns of one segment."""
    first_row, end_row, klass, steps, segment = own_tile(tiles, n_tiles)
    label_cost += klass.to(tl.int64) * n_classes
    row = first_row + tl.arange(0, BM)
    rows = described(rows, SLICES * n, d, BM, BK)
    columns = described(columns, SLICES * m, d, BN, BK)
    unit: tl.constexpr = tl.int32 if rows.dtype == tl.int8 else tl.float32
    # the two highest slices of either side
    up = SLICES - 1
    down = SLICES - 2

    top = tl.full((BM,), float("-inf"), tl.float32)
    total = tl.zeros((BM,), tl.float32)
    moment = tl.zeros((BM,), tl.float32)
    for r in range(tl.load(seams + segment), tl.load(seams + segment + 1)):
        begin = tl.load(runs + r * 3)
        end = tl.load(runs + r * 3 + 1)
        tl.assume(steps > 0)
        for j in tl.range(begin, end, BN, flatten=True):
            high = tl.zeros((BM, BN), unit)  # [BM, BN]
            middle = tl.zeros((BM, BN), unit)
            low = tl.zeros((BM, BN), unit)
            for k in range(0, steps):
                x_up = rows.load([up * n + first_row, k * BK])  # [BM, BK]
                x_down = rows.load([down * n + first_row, k * BK])
                y_up = columns.load([up * m + j, k * BK])  # [BN, BK]
                y_down = columns.load([down * m + j, k * BK])
                high = tl.dot(x_up, y_up.T, high, out_dtype=unit)
                middle = tl.dot(x_up, y_down.T, middle, out_dtype=unit)
                middle = tl.dot(x_down, y_up.T, middle, out_dtype=unit)
                low = tl.dot(x_down, y_down.T, low, out_dtype=unit)
                if SLICES == 3:
                    x_last = rows.load([first_row, k * BK])
                    y_last = columns.load([j, k * BK])
                    low = tl.dot(x_up, y_last.T, low, out_dtype=unit)
                    low = tl.dot(x_last, y_up.T, low, out_dtype=unit)
            bias = column_bias(u, label_cost, column_labels, j + tl.arange(0, BN), end)
            score = low.to(tl.float32) * (slope / 65536.0) + bias[None, :]
            score = middle.to(tl.float32) * (slope / 256.0) + score
            score = high.to(tl.float32) * slope + score
            top, total, moment = reduce_scores(
                score, tl.zeros((BM,), tl.float32), top, total, moment, MODE
            )

    store_reduced(out_top, out_sum, out_mean, top, total, moment, segment, row, end_row, n, MODE)
