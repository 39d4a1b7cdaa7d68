"""Moments of the samples of one class, streamed, without cancellation."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from otdd_flash.checks import even

# entries of the float64 copy of a chunk of samples: 64 MB, 10,000 images of 28 x 28
CHUNK_ENTRIES = 1 << 23
# rows whose products |v| <= 128 sum to at most 2^24: exact in float32
EXACT_ROWS = 1 << 10
# and rows whose values |v| <= 128 do
SUM_ROWS = 1 << 17


class ClassSample:
    """Moments of one class, streamed: ``z = x - offset``, uniform integers summed exactly."""

    def __init__(self, points: Tensor, rows: Tensor, weights: Tensor, device: torch.device) -> None:
        self.points, self.rows, self.device = points, rows, device
        uniform = bool(rows.shape[0]) and even(weights)
        self.exact = uniform and points.dtype in (torch.uint8, torch.int8)
        self.mass = float(weights.sum())
        # weights of 1 keep integer sums integers; they are normalised by `total`
        self.weights = torch.ones_like(weights) if uniform else weights / (self.mass or 1.0)
        self.weights = self.weights.to(device)
        self.total = float(rows.shape[0]) if uniform else float(self.weights.sum())
        d = points.shape[1]
        self.offset = torch.zeros(d, dtype=torch.float64, device=device)
        if self.exact:
            self.offset += 128.0 if points.dtype == torch.uint8 else 0.0
        elif rows.shape[0]:
            self.offset = points[rows[0]].to(device, torch.float64)
        # on the CPU integers go through float32 at twice the speed: sums below 2^24 of factors
        # below 2^8 are exact (also where a user allows bfloat16 products)
        small = self.exact and device.type == "cpu"
        self.dtype = torch.float32 if small else torch.float64
        self.sum = torch.zeros_like(self.offset)
        moved = torch.zeros(d, dtype=torch.bool, device=device)
        first = None
        for z, w in self.chunks():
            self.sum += w.to(z.dtype) @ z
            first = z[0].clone() if first is None else first
            moved |= (z != first).any(0)
        # columns constant in the class have no variance: exactly, and out of every product
        self.active = torch.nonzero(moved)[:, 0]

    @property
    def by_rows(self) -> bool:
        """Whether the centred rows are a factor of the covariance with no more rows than it needs.

        Else the covariance is the smaller of the two.
        """
        return self.rows.shape[0] <= self.active.shape[0] + 1

    @property
    def mean(self) -> Tensor:  # (d,)
        """Mean in units of the points."""
        return self.offset + self.sum / (self.total or 1.0)

    def chunks(self, columns: Tensor | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(z, w)``: (rows, columns) and (rows,), 64 MB at most."""
        if not self.rows.shape[0]:
            return
        step = min(SUM_ROWS, max(1, CHUNK_ENTRIES // self.points.shape[1]))
        for rows, w in zip(self.rows.split(step), self.weights.split(step), strict=True):
            x = self.points[rows].to(self.device)
            offset = self.offset
            if columns is not None:
                x, offset = x[:, columns], offset[columns]
            yield x.to(self.dtype) - offset.to(self.dtype), w

    def centred(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield ``(z - mean, w)`` on the active columns; one rounding where sums are exact."""
        total = self.sum[self.active]
        for chunk, w in self.chunks(self.active):
            z = chunk.to(torch.float64)
            yield (z * self.total - total) / self.total if self.exact else z - total / self.total, w

    def variance(self) -> Tensor:  # (d,)
        """Return the population variance of each feature."""
        out = torch.zeros_like(self.offset)
        for z, w in self.centred():
            out[self.active] += w @ z**2
        return out / (self.total or 1.0)

    def rows_factor(self) -> Tensor:  # (n - 1, d)
        """Centred rows times sqrt(w), turned so that their null combination is dropped.

        The rows satisfy ``v^T F = 0`` with ``v = sqrt(w)``; the Householder reflection that maps v
        to a unit vector makes the first row zero and leaves ``F^T F`` as it is.
        """
        n, d = self.rows.shape[0], self.points.shape[1]
        out = torch.zeros(max(n - 1, 0), d, dtype=torch.float64, device=self.device)
        if n > 1:
            v, u = self._reflection()
            f = torch.cat([z for z, _ in self.centred()]) * v[:, None]
            out[:, self.active] = f[1:] - u[1:, None] * ((u @ f) * (2.0 / (u @ u)))
        return out

    def turned_back(
        self,
        factor: Tensor,  # (n - 1, k) one row a row of `rows_factor`
    ) -> Tensor:  # (n, k)
        """Apply the reflection of `rows_factor` again: ``turned_back(F) = sqrt(w) (x - mean)``."""
        _, u = self._reflection()
        out = u[:, None] * ((u[1:] @ factor) * (-2.0 / (u @ u)))
        out[1:] += factor
        return out

    def _reflection(self) -> tuple[Tensor, Tensor]:
        """Return ``v = sqrt(w)`` and ``v`` plus the first unit vector, which is the mirror."""
        v = (self.weights / self.total).sqrt()
        u = v.clone()
        u[0] += 1.0
        return v, u

    def covariance(self) -> Tensor:  # (d, d)
        """Return the population covariance, of integers exact up to the last division."""
        k, d = self.active.shape[0], self.points.shape[1]
        gram = torch.zeros(k, k, dtype=torch.float64, device=self.device)
        if self.exact:
            for z, _ in self.chunks(self.active):
                for part in z.split(EXACT_ROWS if z.dtype == torch.float32 else len(z)):
                    gram += part.mT @ part
            total = self.sum[self.active]
            gram = (gram * self.total - torch.outer(total, total)) / self.total**2
        else:
            for z, w in self.centred():
                z *= w.sqrt()[:, None]
                gram += z.mT @ z
            gram /= self.total
        out = torch.zeros(d, d, dtype=torch.float64, device=self.device)
        out[self.active[:, None], self.active] = gram
        return out
