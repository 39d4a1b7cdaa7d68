"""Samples as they arrive, before they are points: arrays, images, texts, rows of a table."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    import pyarrow as pa

# samples that are fetched at once where all of them are gone through
CHUNK = 4096


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples that are fetched when they are needed, so that a draw comes before any decoding."""

    fetch: Callable[[np.ndarray], Any]  # (k,) int64 rows of the source -> its k samples
    rows: np.ndarray  # (n,) int64 rows of the source

    def __len__(self) -> int:
        return len(self.rows)

    def take(
        self,
        chosen: np.ndarray,  # (k,) int64 positions among these samples, or (n,) bool
    ) -> Self:
        """Return some of the samples; none of them is fetched."""
        return replace(self, rows=self.rows[chosen])

    def all(self) -> Any:
        """Fetch every sample."""
        return self.fetch(self.rows)

    def chunks(self, size: int = CHUNK) -> Iterator[tuple[int, Any]]:
        """Yield ``(position of the first, samples)``, ``size`` samples at a time."""
        for start in range(0, len(self), size):
            yield start, self.fetch(self.rows[start : start + size])


class Arrays(Samples):
    """Numeric arrays of one shape; fetched as a tensor (k, ...)."""

    @classmethod
    def of(
        cls,
        values: Tensor,  # (n, ...), perhaps mapped from a file
    ) -> Arrays:
        """Wrap a tensor; rows that follow each other are views of it, not copies."""

        def fetch(rows: np.ndarray) -> Tensor:
            if consecutive(rows):
                return values[int(rows[0]) : int(rows[0]) + len(rows)]
            return values[torch.from_numpy(rows).to(values.device)]

        return cls(fetch, np.arange(values.shape[0]))

    def one(self) -> Tensor:
        """Fetch the first sample."""
        return self.fetch(self.rows[:1])[0]


class Images(Samples):
    """Images of any sizes; fetched as a list of paths, encoded bytes or Pillow images."""


class Texts(Samples):
    """Texts; fetched as a list of strings."""


@dataclass(frozen=True, eq=False)
class Rows(Samples):
    """Rows of a table of numbers and categories; fetched as a ``pyarrow.Table``."""

    schema: pa.Schema


def consecutive(rows: np.ndarray) -> bool:
    """Say whether row numbers count up by one."""
    return len(rows) > 0 and bool((np.diff(rows) == 1).all())
