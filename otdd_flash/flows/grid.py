r"""One grid for a whole flow: the target is put on it once, the moving points at every step.

.. math::
    x = offset + step \cdot q

as `otdd_flash_kernels.quantize` has it, with an offset that stays. On a GPU q is cut into int8
slices. On a CPU one slice becomes whole numbers in floats, and more than one means floats that are
not rounded at all.

A step of a flow then reads the moving points once, where the general way would choose columns,
ranges and slices of both clouds for each term anew.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash_kernels.quantize import LEVELS, Cloud

# entries worked on at a time: 64 MB of float32
CHUNK_ENTRIES = 1 << 24
# d up to which float32 sums of products of two numbers of 8 bits are exact
EXACT_COLUMNS = 1024
# share of the range by which a grid is widened when points leave it
MARGIN = 0.1


@dataclass(frozen=True, eq=False)
class Grid:
    """Offsets and step of a grid, and how clouds on it are stored."""

    low: Tensor  # (d,) float64 range that it was made for
    high: Tensor
    step: float  # length of one step in units of the points
    slices: int  # int8 slices, 0: floats that are not rounded
    precise: bool = False  # on a CPU: float64 for whole numbers too
    cut: bool = False  # into int8 slices, as GPUs read them

    @staticmethod
    def of(
        x: Tensor,  # (n, d)
        y: Tensor,  # (m, d)
        slices: int | None,  # as asked; None: one for 8-bit integers, else two
    ) -> Grid:
        """Return the grid that covers two clouds; whole grey levels for two of 8-bit integers."""
        low, high = _range(x, y)
        eight = x.dtype == y.dtype == torch.uint8
        slices = (1 if eight else 2) if slices is None else slices
        cut = x.device.type != "cpu"
        if not cut and slices > 1:
            slices = 0
        if eight and slices == 1:
            low, high = torch.zeros_like(low), torch.full_like(high, 255.0)
            return Grid(low, high, 1.0, slices, cut=cut)
        return Grid(low, high, _step(low, high, slices), slices, cut=cut)

    @cached_property
    def offset(self) -> Tensor:  # (d,) float64
        """The point that q = 0 stands for, a whole number of steps from the lowest."""
        if not self.slices:
            return (self.low + self.high) / 2
        return self.low + ((self.high - self.low) / (2 * self.step)).round() * self.step

    def covers(self, points: Tensor) -> bool:  # (n, d)
        """Whether all points are within the grid's levels."""
        if not self.slices:
            return True
        low, high = _range(points)
        least, most = _levels(self.slices)
        q = (torch.stack([low, high]) - self.offset) / self.step
        return bool((q.round() >= least).all() & (q.round() <= most).all())

    def widened(self, points: Tensor) -> Grid:  # (n, d)
        """Return a grid that also covers points which left this one, with room beyond."""
        low, high = _range(points)
        low, high = torch.minimum(low, self.low), torch.maximum(high, self.high)
        room = MARGIN * (high - low)
        low, high = low - room, high + room
        return replace(self, low=low, high=high, step=_step(low, high, self.slices))

    @cached_property
    def whole(self) -> bool:
        """Whether the grid is that of 8-bit integers."""
        return self.slices == 1 and bool((self.low == 0).all() and (self.high == 255).all())

    def cloud(self, points: Tensor) -> Cloud:  # (n, d)
        """Return points as the operators read them; memory: the cloud and chunks of 64 MB."""
        n, d = points.shape
        device = points.device
        fine = points.dtype == torch.float64 or self.slices > 2
        working = torch.float64 if fine else torch.float32
        offset = self.offset.to(working)
        bias, residual = torch.zeros((2, n), dtype=torch.float64, device=device)
        if not self.cut:
            small = self.slices == 1 and d <= EXACT_COLUMNS and not self.precise
            kind = torch.float32 if small else torch.float64
            data = torch.empty((n, d), dtype=kind, device=device)
        else:
            padded = max(16, -(-d // 16) * 16)
            data = torch.zeros((self.slices, n, padded), dtype=torch.int8, device=device)
        for rows in _chunks(points):
            if not self.slices:
                part = points[rows].double() - self.offset
                data[rows], bias[rows] = part, part.square().sum(1)
                continue
            part = points[rows].to(working) - offset
            q = (part / self.step).round_()
            residual[rows] = part.sub_(q, alpha=self.step).square_().sum(1).double()
            # squares of 8 bits are whole in float32
            squares = q.square() if self.slices == 1 else q.double().square()
            bias[rows] = squares.sum(1, dtype=torch.float64)
            if self.cut:
                _cut(q, data[:, rows, :d])
            else:
                data[rows] = q.to(data.dtype)
        return Cloud(data, bias, self.step, residual)

    def stored(
        self,
        points: Tensor,  # (n, d) floating
        cloud: Cloud,  # of the points
    ) -> Tensor:  # (n, d)
        """Return points as the cost sees them: uint8 where the grid is that."""
        if not self.slices:
            return points
        offset = self.offset.to(points.dtype)
        kind = torch.uint8 if self.whole else points.dtype
        out = torch.empty(points.shape, dtype=kind, device=points.device)
        for rows in _chunks(points):
            q = replace(cloud, data=cloud.data[..., rows, :]).dense(points.dtype)
            out[rows] = (q[:, : points.shape[1]] * self.step).add_(offset)
        return out


def _range(*clouds: Tensor) -> tuple[Tensor, Tensor]:  # (d,) float64 each
    ends = [torch.aminmax(c, dim=0) for c in clouds]
    low = torch.stack([e.min.double() for e in ends]).amin(0)
    return low, torch.stack([e.max.double() for e in ends]).amax(0)


def _levels(slices: int) -> tuple[int, int]:
    # one slice of whole grey levels has 256
    return (-128, 127) if slices == 1 else (-LEVELS[slices], LEVELS[slices])


def _step(low: Tensor, high: Tensor, slices: int) -> float:
    span = float((high - low).max())
    if not slices or span == 0:
        return 1.0
    return span / (2 * LEVELS[slices])


def _chunks(points: Tensor) -> Iterator[slice]:
    height = max(1, CHUNK_ENTRIES // points.shape[1])
    for start in range(0, len(points), height):
        yield slice(start, min(start + height, len(points)))


def _cut(q: Tensor, out: Tensor) -> None:  # (k, d) whole numbers, (slices, k, d) int8
    """Write the signed bytes of q, the lowest first."""
    if len(out) == 1:
        out[0] = q
        return
    rest = q.to(torch.int32)
    for s in range(len(out)):
        digit = ((rest + 128) & 255) - 128
        out[s] = digit.to(torch.int8)
        rest = (rest - digit) >> 8
