"""Types of option values that click does not have."""

from __future__ import annotations

import re
from typing import Any

import click

UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
BINARY_UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class MemorySize(click.ParamType):
    """Bytes: ``1GB`` is 10^9, ``1GiB`` is 2^30, ``1000000`` is what it says."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return the number of bytes."""
        if isinstance(value, int):
            return value
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([KMGT]?)(I?)B?\s*", str(value).upper())
        if match is None or (match[3] and not match[2]):
            self.fail(f"{value!r} is not a size; write 800MB, 1GB, 1.5GiB or a number of bytes")
        size = int(float(match[1]) * (BINARY_UNITS if match[3] else UNITS)[match[2]])
        if size < 1:
            self.fail(f"{value!r} is less than one byte")
        return size


class Device(click.ParamType):
    """``auto``, ``cpu``, ``cuda`` or ``cuda:1``; whether it is there is checked by the command."""

    name = "device"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name in lower case."""
        text = str(value).strip().lower()
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", text):
            self.fail(f"{value!r} is not a device; expected auto, cpu, cuda or cuda:<number>")
        return text


class Devices(click.ParamType):
    """``all``, or names that commas separate: ``cuda:0,cuda:1``."""

    name = "devices"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> str | tuple[str, ...]:
        """Return what ``matrix`` takes."""
        if isinstance(value, str) and value.strip().lower() == "all":
            return "all"
        names = value.split(",") if isinstance(value, str) else value
        return tuple(Device().convert(name, param, ctx) for name in names)


class Box(click.ParamType):
    """``auto``, ``none`` or two numbers ``0,255``."""

    name = "box"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float] | str | None:
        """Return what `FlowSettings` takes; whether it is a range is checked there."""
        text = str(value).strip().lower()
        if text in ("auto", "none"):
            return "auto" if text == "auto" else None
        try:
            low, high = (float(part) for part in text.split(","))
        except ValueError:
            self.fail(f"{value!r} is not a box; expected auto, none or two numbers such as 0,255")
        return low, high


class Sides(click.ParamType):
    """``32``, or height and width ``32x48``; whether images can have them is checked below."""

    name = "sides"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, int]:
        """Return height and width."""
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\d{1,5})(?:x(\d{1,5}))?", str(value).strip().lower())
        if match is None:
            self.fail(f"{value!r} is no size; expected a side such as 32, or HEIGHTxWIDTH")
        return int(match[1]), int(match[2] or match[1])
