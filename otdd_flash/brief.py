"""Results in one line: numbers to seven digits, arrays by type and shape, defaults left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from typing import Any

import numpy as np
from torch import Tensor

LISTED = 4  # entries of a tuple or list that are shown


class Brief:
    """A dataclass whose repr is one line, however many samples it is of.

    Fields with ``repr=False`` are left out, and those that are as their default has them.
    """

    def __repr__(self) -> str:
        return brief(self)


def brief(
    value: Any,  # of a result
) -> str:
    """Return a value for people, an array as ``float64[10, 10]``."""
    if isinstance(value, (Tensor, np.ndarray)):
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, float):
        return f"{value:.7g}"
    if is_dataclass(value) and not isinstance(value, type):
        parts = [
            f"{field.name}={brief(getattr(value, field.name))}"
            for field in fields(value)
            if field.repr and not _is_default(getattr(value, field.name), field.default)
        ]
        return f"{type(value).__name__}({', '.join(parts)})"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {brief(part)}" for key, part in value.items()) + "}"
    if isinstance(value, (tuple, list)):
        rest = [f"... {len(value):,} in all"] * (len(value) > LISTED)
        text = ", ".join([*map(brief, value[:LISTED]), *rest])
        return f"[{text}]" if isinstance(value, list) else f"({text})"
    return repr(value)


def _is_default(value: Any, default: Any) -> bool:
    return default is not MISSING and not isinstance(value, Tensor) and bool(value == default)
