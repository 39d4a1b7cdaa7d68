r"""Clouds as the kernels read them: integers in 8-bit slices, or centred floats.

Squared distances do not change under a shared shift, so both clouds of a pair are stored on one
grid, ``x = offset + scale * q`` with integer ``q``, and

.. math::
    \|x_i - y_j\|^2 = scale^2 (bias^x_i + bias^y_j - 2 q_i \cdot p_j)

where the biases hold the squared norms and every column that is constant in either cloud (exact:
such a column adds a term of one side alone, and leaves the dot product).

``q = q_0 + 256 q_1 + 65536 q_2`` with signed 8-bit slices, so the dot product is a short sum of
exact int8 tensor-core products. uint8 points, and floats that hold such integers (also divided
by 255), need one slice and are exact; other floats take two (16 bits) or three (24 bits), and the
distance by which each point moved is returned.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

# float64 entries of one chunk: 16 MB
CHUNK_ENTRIES = 1 << 21
# digits squared at a time: 16 MB of float32, and 32 where they are summed
DIGIT_ENTRIES = 1 << 22
# grids on which float data often lie: integers, and 8-bit pixels divided by 255
KNOWN_STEPS = (1.0, 1.0 / 255.0)
# largest |q| that s signed 8-bit slices hold on both signs
LEVELS = {1: 127, 2: 127 * 256 + 127, 3: 127 * 65536 + 127 * 256 + 127}


@dataclass(frozen=True)
class Cloud:
    """One side of a pair of clouds on their shared grid."""

    data: Tensor  # (slices, n, d_padded) int8, or (n, d) float32/float64 centred points
    bias: Tensor  # (n,) float64, squared norms and folded columns, in units of step^2
    step: float  # length of one grid step in the units of the points; 1 for floats
    residual: Tensor  # (n,) float64, squared distance from the given to the stored point
    background: Tensor | None = None  # (d_padded,) int8 value of unused columns, see sparsity.py
    extent: Tensor | None = None  # (n,) int32, columns from here on hold the background

    @property
    def n(self) -> int:
        """Number of points."""
        return self.data.shape[-2]

    @property
    def quantized(self) -> bool:
        """Whether the points are integer slices."""
        return self.data.dtype == torch.int8

    @cached_property
    def halves(self) -> Tensor:  # (slices, n, d_padded) float16
        """The slices in float16, kept for all pairs of this cloud."""
        return self.data.half()

    @cached_property
    def slice_norms(self) -> list[float]:
        """Largest norm of a point's digits in each slice, lowest slice first; read once."""
        height = max(1, DIGIT_ENTRIES // self.data.shape[-1])
        # squares of digits are whole in float32
        tops = [
            torch.stack(
                [
                    part.float().square_().sum(1, dtype=torch.float64).max()
                    for part in digits.split(height)
                ]
            )
            for digits in self.data
        ]
        return torch.stack(tops).amax(1).sqrt().tolist()

    def take(
        self,
        rows: Tensor,  # (k,) int64
    ) -> Cloud:
        """Return the cloud of the chosen rows, in their order."""
        return replace(
            self,
            data=self.data.index_select(-2, rows),
            bias=self.bias[rows],
            residual=self.residual[rows],
            extent=None if self.extent is None else self.extent[rows],
        )

    def dense(self, dtype: torch.dtype = torch.float64) -> Tensor:  # (n, d)
        """Return the stored coordinates in grid units; exact while they fit ``dtype``."""
        if not self.quantized:
            return self.data.to(dtype)
        weights = [256**s for s in range(self.data.shape[0])]
        total = self.data[0].to(dtype)
        for weight, part in zip(weights[1:], self.data[1:], strict=True):
            total += part.to(dtype) * weight
        return total

    def weighted_sum(self, weights: Tensor) -> Tensor:  # (n,) float64 -> (d,) float64
        """Return ``sum_i weights_i q_i`` in float64, by chunks of rows."""
        total = torch.zeros(self.data.shape[-1], dtype=torch.float64, device=self.data.device)
        for rows in _chunks(self.data):
            part = self.data[..., rows, :]
            total += weights[rows] @ replace(self, data=part).dense()
        return total


def _chunks(x: Tensor) -> Iterator[slice]:
    """Yield spans of the rows of an (..., n, d) tensor."""
    n, height = x.shape[-2], max(1, CHUNK_ENTRIES // max(1, x.shape[-1]))
    for start in range(0, n, height):
        yield slice(start, min(start + height, n))


def _column_range(x: Tensor) -> tuple[Tensor, Tensor]:  # (d,) float64 minimum and maximum
    low, high = torch.aminmax(x, dim=0)
    return low.double(), high.double()


def _folded(
    x: Tensor,  # (n, d) points
    constant: Tensor,  # (d,) float64 value of the columns that the other side holds constant
    columns: Tensor,  # (k,) int64 those columns
) -> Tensor:  # (n,) float64
    out = torch.zeros(x.shape[0], dtype=torch.float64, device=x.device)
    if len(columns):
        for rows in _chunks(x):
            out[rows] = (x[rows][:, columns].double() - constant[columns]).square().sum(1)
    return out


@dataclass(frozen=True)
class _Columns:
    """Which columns stay in the dot product, their range, and the folded rest."""

    kept: Tensor  # (k,) int64
    low: Tensor  # (k,) float64
    high: Tensor  # (k,) float64
    fold_x: Tensor  # (n,) float64
    fold_y: Tensor  # (m,) float64


def _split_columns(x: Tensor, y: Tensor) -> _Columns:
    low_x, high_x = _column_range(x)
    low_y, high_y = _column_range(y)
    constant_y = low_y == high_y
    constant_x = (low_x == high_x) & ~constant_y
    kept = (~(constant_x | constant_y)).nonzero()[:, 0]
    return _Columns(
        kept=kept,
        low=torch.minimum(low_x, low_y)[kept],
        high=torch.maximum(high_x, high_y)[kept],
        fold_x=_folded(x, low_y, constant_y.nonzero()[:, 0]),
        fold_y=_folded(y, low_x, constant_x.nonzero()[:, 0]),
    )


def _on_grid(x: Tensor, step: float, columns: Tensor, nearby: float) -> bool:
    """Whether every kept coordinate is ``step`` times an integer, to the last bit of its dtype.

    Not where that last bit is coarser than ``nearby``: halves in float16 near 1000 would all pass
    for multiples of 1/255.
    """
    for rows in _chunks(x):
        part = x[rows][:, columns]
        integer = (part.double() / step).round()
        nearest = (integer * step).to(part.dtype)
        divided = (integer / round(1.0 / step)).to(part.dtype)
        close = (part.double() - integer * step).abs() <= nearby
        if not (((part == nearest) | (part == divided)) & close).all():
            return False
    return True


def exact_step(
    x: Tensor,  # (n, d)
    y: Tensor,  # (m, d)
    columns: Tensor,  # (k,) kept columns
    span: float,  # largest range of a kept column
) -> float | None:
    """Return the step of a known grid that holds both clouds exactly, or None."""
    integral = not (x.is_floating_point() or y.is_floating_point())
    # with the lowest value's own rounding, half of what two slices of any grid would move a point
    nearby = span / (8 * LEVELS[2])
    for step in (1.0,) if integral else KNOWN_STEPS:
        if span / step > 2 * LEVELS[2]:
            continue
        if integral or all(_on_grid(p, step, columns, nearby) for p in (x, y)):
            return step
    return None


def _slice_cloud(
    x: Tensor,  # (n, d)
    columns: _Columns,
    fold: Tensor,  # (n,) float64
    shift: Tensor,  # (k,) float64 distance of the grid's zero above the lowest value
    step: float,
    slices: int,
) -> Cloud:
    n, k = x.shape[0], len(columns.kept)
    padded = max(16, -(-k // 16) * 16)
    data = torch.zeros((slices, n, padded), dtype=torch.int8, device=x.device)
    bias = fold / step**2
    residual = torch.zeros(n, dtype=torch.float64, device=x.device)
    for rows in _chunks(x):
        # in this order both differences are exact where the range is a few ulps of the values
        part = (x[rows][:, columns.kept].double() - columns.low) - shift
        q = (part / step).round_()
        residual[rows] = (part - q * step).square().sum(1)
        bias[rows] += q.square().sum(1)
        rest = q.to(torch.int32)
        for s in range(slices):
            # the low byte as a signed number; what is left is a multiple of 256
            digit = ((rest + 128) & 255) - 128
            data[s, rows, :k] = digit.to(torch.int8)
            rest = (rest - digit) >> 8
    return Cloud(data, bias, step, residual)


def quantize(
    x: Tensor,  # (n, d) any real dtype
    y: Tensor,  # (m, d)
    *,
    slices: int | None = None,  # at most 1, 2 or 3; None: 2
) -> tuple[Cloud, Cloud]:
    """Put two clouds on one integer grid, in fewer 8-bit slices than asked where that is exact.

    Exact grids (integers, 8-bit pixels divided by 255) are recognised; their residuals are 0 up to
    the rounding of the given floats. Memory: ``slices * (n + m) * d`` bytes and chunks.

    Raises:
        ValueError: clouds of different dimension, or a number of slices other than 1, 2, 3.
    """
    if slices not in (None, 1, 2, 3):
        raise ValueError(f"slices is {slices!r}, expected 1, 2 or 3")
    _check_pair(x, y)
    columns = _split_columns(x, y)
    span = float((columns.high - columns.low).max()) if len(columns.kept) else 0.0
    step = exact_step(x, y, columns.kept, span)
    needed = 1 if step is not None and span / step <= 255 else 2
    if step is None or (slices is not None and needed > slices):
        slices = 2 if slices is None else slices
        step = span / (2 * LEVELS[slices]) if span > 0 else 1.0
        shift = (columns.high - columns.low) / 2
    else:
        slices = needed
        # a whole number of steps from the lowest value, in the middle of each column's range: norms
        # no larger than the distances, which the kernels' float32 scores could not tell apart
        shift = ((columns.high - columns.low) / (2 * step)).round() * step
    left = _slice_cloud(x, columns, columns.fold_x, shift, step, slices)
    if y is x:
        return left, left
    return left, _slice_cloud(y, columns, columns.fold_y, shift, step, slices)


def widened(cloud: Cloud) -> Tensor:  # (2, n, d) float16, exact
    """Return two slices in float16, the upper one times 256, so that their sum is q."""
    return torch.stack([cloud.data[0].half(), cloud.data[1].half() * 256])


def centre(
    x: Tensor,  # (n, d) any real dtype
    y: Tensor,  # (m, d)
    *,
    precise: bool = False,  # float64 for 8-bit integers too, whose costs float32 would round
) -> tuple[Cloud, Cloud]:
    """Put two clouds around one centre in floats: no quantisation, for the CPU.

    8-bit integer points become float32 integers (their dot products are exact up to d = 1024),
    anything else float64.
    """
    _check_pair(x, y)
    columns = _split_columns(x, y)
    integral = not (x.is_floating_point() or y.is_floating_point())
    small = integral and not precise and len(columns.kept) <= 1024
    if small and len(columns.kept):
        small = float((columns.high - columns.low).max()) <= 255
    middle = (columns.low + columns.high) / 2
    # integers stay integers
    offset = middle.floor() if small else middle
    dtype = torch.float32 if small else torch.float64

    def cloud(points: Tensor, fold: Tensor) -> Cloud:
        data = torch.empty(
            (points.shape[0], max(1, len(columns.kept))), dtype=dtype, device=points.device
        )
        bias = fold.clone()
        if not len(columns.kept):
            data.zero_()
        for rows in _chunks(points) if len(columns.kept) else ():
            part = points[rows][:, columns.kept].double() - offset
            data[rows] = part.to(dtype)
            bias[rows] += part.square().sum(1)
        return Cloud(data, bias, 1.0, torch.zeros_like(bias))

    left = cloud(x, columns.fold_x)
    return (left, left) if y is x else (left, cloud(y, columns.fold_y))


def _check_pair(x: Tensor, y: Tensor) -> None:
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[1]:
        raise ValueError(
            f"clouds have shapes {tuple(x.shape)} and {tuple(y.shape)}, expected (n, d) and (m, d)"
        )
