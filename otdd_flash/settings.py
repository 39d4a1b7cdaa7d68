"""Settings of a dataset distance, and the checks that settings of all kinds share."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from otdd_flash.checks import shown
from otdd_flash.errors import SettingsError

# fields that say where something is computed, not what
ELSEWHERE = ("device", "memory_budget")


@dataclass(frozen=True)
class OTDDSettings:
    """Settings of a dataset distance, checked on construction.

    ``epsilon`` is in units of the cost when a number, or relative to the mean cost as ``"1%"``.
    ``max_passes`` counts softmins over all pairs, for each of the three solves.

    Raises:
        SettingsError: a value outside its range.
    """

    epsilon: float | str = "1%"
    tol: float = 1e-3
    max_passes: int = 2000
    lambda_x: float = 1.0
    lambda_y: float = 1.0
    label_distance: str = "gaussian"  # gaussian | diagonal | means
    normalize: str = "none"  # none | unit | mnist
    convention: str = "otdd"  # otdd | microsoft
    debias: bool = True
    slices: int | None = None  # int8 slices a coordinate on a GPU; None: 1 exact or 2
    memory_budget: int | None = None  # bytes; None: half of what is free
    device: str = "auto"

    def __post_init__(self) -> None:
        parse_epsilon(self.epsilon)
        # numpy's scalars become Python's, which json writes and repr shows plainly
        plain: dict[str, Any] = {}
        if isinstance(self.epsilon, (str, float, np.generic)):
            plain["epsilon"] = (str if isinstance(self.epsilon, str) else float)(self.epsilon)
        for key in ("tol", "lambda_x", "lambda_y"):
            plain[key] = check_number(key, getattr(self, key), positive=key == "tol")
        if plain["lambda_x"] == 0 and plain["lambda_y"] == 0:
            raise SettingsError("lambda_x and lambda_y are both 0: the cost would be 0 everywhere")
        plain["max_passes"] = check_integer("max_passes", self.max_passes, 1)
        named: dict[str, tuple[str, ...]] = {
            "label_distance": ("gaussian", "diagonal", "means"),
            "normalize": ("none", "unit", "mnist"),
            "convention": ("otdd", "microsoft"),
        }
        for key, choices in named.items():
            plain[key] = check_choice(key, getattr(self, key), choices)
        plain["debias"] = check_flag("debias", self.debias)
        if self.slices is not None:
            if not is_integer(self.slices) or self.slices not in (1, 2, 3):
                raise SettingsError(f"slices is {shown(self.slices)}, expected 1, 2, 3 or None")
            plain["slices"] = int(self.slices)
        if self.memory_budget is not None:
            if not is_integer(self.memory_budget) or self.memory_budget < 1:
                raise SettingsError(
                    f"memory_budget is {shown(self.memory_budget)}, expected an integer number "
                    "of bytes >= 1, for example 2 * 10**9"
                )
            plain["memory_budget"] = int(self.memory_budget)
        if not isinstance(self.device, str):
            raise SettingsError(
                f"device is {shown(self.device)}, expected a string such as 'auto', 'cpu' or 'cuda'"
            )
        plain["device"] = str(self.device)
        for key, value in plain.items():
            object.__setattr__(self, key, value)

    @property
    def cost_scale(self) -> float:
        """Factor of the cost: 1, or 1/2 in the convention of microsoft/otdd."""
        return 0.5 if self.convention == "microsoft" else 1.0


def parse_epsilon(
    epsilon: float | str,  # 0.1 (units of the cost) or "1%" (of the mean cost)
) -> tuple[float, bool]:  # the number and whether it is relative to the mean cost
    """Read an epsilon: ``"1%"`` is 0.01 of the mean cost, ``0.1`` is absolute.

    Raises:
        SettingsError: not a number, or not positive and finite.
    """
    relative = False
    try:
        text = str(epsilon).strip()  # fails for an integer of thousands of digits
        relative = text.endswith("%")
        value = float(text[:-1]) / 100 if relative else float(text)
    except ValueError:
        value = math.nan
    if isinstance(epsilon, bool) or not math.isfinite(value) or value <= 0:
        raise SettingsError(
            f"epsilon is {shown(epsilon)}; expected a number > 0 in units of the cost, such as "
            "0.1, or a share of the mean cost, such as 1%"
        )
    return value, relative


def check_number(
    key: str,  # the setting
    value: Any,
    positive: bool,  # whether 0 is refused
) -> float:  # as it was, a scalar of numpy as Python's
    """Return a finite number that is not negative.

    Raises:
        SettingsError: no number, or outside the range.
    """
    if not (is_integer(value) or isinstance(value, (float, np.floating))):
        raise SettingsError(f"{key} is {shown(value)}, expected a number")
    try:
        size = float(value)
    except OverflowError:  # an integer beyond every float
        size = math.inf
    if not math.isfinite(size) or size < 0 or (positive and size == 0):
        least = "> 0" if positive else ">= 0"
        text = shown(value) if is_integer(value) else str(size)
        raise SettingsError(f"{key} is {text}, expected a finite number {least}")
    return int(value) if is_integer(value) else size


def check_integer(
    key: str,  # the setting
    value: Any,
    least: int,
) -> int:
    """Return an integer, of numpy too, as Python's.

    Raises:
        SettingsError: no integer, or a smaller one.
    """
    if not is_integer(value) or value < least:
        raise SettingsError(f"{key} is {shown(value)}, expected an integer >= {least}")
    return int(value)


def check_flag(
    key: str,  # the setting
    value: Any,
) -> bool:
    """Return a truth value, of numpy too, as Python's.

    Raises:
        SettingsError: anything else, such as 1 or "yes".
    """
    if not isinstance(value, (bool, np.bool_)):
        raise SettingsError(f"{key} is {shown(value)}, expected True or False")
    return bool(value)


def check_choice(
    key: str,  # the setting
    value: Any,
    choices: Sequence[str],
) -> str:
    """Return one of some names.

    Raises:
        SettingsError: another name, or no name.
    """
    if not isinstance(value, str) or value not in choices:
        raise SettingsError(f"{key} is {shown(value)}, expected one of {', '.join(choices)}")
    return str(value)


def is_integer(value: Any) -> bool:
    """Say whether a value is an integer of Python or numpy; True and False are none."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)
