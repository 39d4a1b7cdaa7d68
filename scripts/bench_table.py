"""Lines that ``bench_gpu.py`` prints: its rows, and goals beside what was measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

# what is shown of a row: key, heading, factor and format
Column = tuple[str, str, float, str]
MS: Column = ("ms", "ms", 1.0, ".3f")
MS_T: Column = ("ms_transposed", "ms transposed", 1.0, ".3f")
COST: Column = ("cost_error", "cost error", 1.0, ".1e")
SOFTMIN: Column = ("softmin_error", "softmin error", 1.0, ".1e")
SECONDS: Column = ("seconds", "s", 1.0, ".3f")
FIRST: Column = ("first_call_seconds", "first call s", 1.0, ".2f")
PEAK: Column = ("peak_bytes", "peak GB", 1e-9, ".3f")
EXTRA: Column = ("extra_bytes", "extra GB", 1e-9, ".3f")
LEFT: Column = ("marginal_error_float64", "L1 error (float64)", 1.0, ".2e")
PREPARE: Column = ("prepare_seconds", "prepare s", 1.0, ".3f")
BACKEND: Column = ("backend", "", 0.0, "")

SHOWN: dict[str, tuple[Column, ...]] = {
    "pass": (MS, MS_T, COST, SOFTMIN, BACKEND),
    "solver": (
        SECONDS,
        FIRST,
        ("passes", "passes", 1.0, ".0f"),
        ("ms_per_pass", "ms a pass", 1.0, ".3f"),
        ("marginal_error", "L1 error", 1.0, ".2e"),
        LEFT,
        EXTRA,
        BACKEND,
    ),
    "command": (SECONDS, ("outside_seconds", "outside s", 1.0, ".2f"), ("stages", "", 0.0, "")),
    "floats": (
        MS,
        MS_T,
        COST,
        ("value_error", "value error", 1.0, ".1e"),
        PREPARE,
        PEAK,
        ("bytes_per_second", "GB/s", 1e-9, ".0f"),
        ("bytes_per_second_transposed", "GB/s transposed", 1e-9, ".0f"),
        ("copy_bytes_per_second", "GB/s copy", 1e-9, ".0f"),
    ),
    "large": (("three_passes_seconds", "s", 1.0, ".2f"), PREPARE, PEAK, COST, SOFTMIN),
    "small": (MS, MS_T, COST, SOFTMIN),
    "laws": (SECONDS, ("stages", "", 0.0, "")),
    "peers": (
        ("ms_per_update", "ms an update", 1.0, ".2f"),
        SECONDS,
        FIRST,
        LEFT,
        ("seconds_to_0.01", "s to 1e-2", 1.0, ".2f"),
        ("seconds_to_0.001", "s to 1e-3", 1.0, ".2f"),
        COST,
        EXTRA,
    ),
    "matrix": (SECONDS, PEAK, ("stages", "", 0.0, "")),
}


def line(title: str, row: dict[str, Any], columns: tuple[Column, ...]) -> str:
    """Return one line: the title and what is known of the columns."""
    if "error" in row:
        return f"{title:<52} FAILED {row['error'][:300]}"
    parts = []
    for key, heading, factor, form in columns:
        value = row.get(key)
        if value is None:
            continue
        shown = format(value * factor, form) if form else str(value)
        parts.append(f"{heading} {shown}".strip())
    return f"{title:<52} {' | '.join(parts)}"


# section, start of the row's title, key, factor, goal: at most
GOALS: tuple[tuple[str, str, str, float, float], ...] = (
    ("pass", "n = m = 60,000", "ms", 1.0, 4.5),
    ("pass", "n = m = 60,000", "ms_transposed", 1.0, 4.5),
    ("pass", "n = m = 60,000", "cost_error", 1.0, 1e-6),
    ("floats", "d = 512, 2 slices", "ms", 1.0, 12.0),
    ("floats", "d = 512, 2 slices", "cost_error", 1.0, 3e-5),
    ("floats", "d = 512, 2 slices", "value_error", 1.0, 1e-6),
    ("floats", "d = 512, 3 slices", "ms", 1.0, 20.0),
    ("floats", "d = 512, 3 slices", "cost_error", 1.0, 2e-6),
    ("floats", "d = 512, stored, 2 slices", "ms", 1.0, 5.0),
    ("floats", "d = 512, stored, 2 slices", "ms_transposed", 1.0, 5.0),
    ("small", "d = 3", "ms", 1.0, 2.0),
    ("small", "d = 16", "ms", 1.0, 2.2),
    ("small", "d = 64", "ms", 1.0, 2.5),
    ("solver", "eps 1%: S, default budget", "seconds", 1.0, 0.7),
    ("solver", "eps 0.1, half costs: S, default budget", "seconds", 1.0, 1.6),
    ("solver", "eps 1%: S, 1 GB", "extra_bytes", 1e-9, 0.5),
    ("large", "n = m = 1,000,000", "peak_bytes", 1e-9, 10.0),
    ("laws", "2 x 60,000", "seconds", 1.0, 0.5),
    ("matrix", "1,000 x 1,000", "seconds", 1.0, 60.0),
    ("command", "cold", "seconds", 1.0, 20.0),
    ("command", "warm kernel cache", "seconds", 1.0, 8.0),
)


def goals(sections: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each goal whose row was measured."""
    for section, start, key, factor, most in GOALS:
        for title, row in sections.get(section, {}).items():
            if title.startswith(start) and row.get(key) is not None:
                value = row[key] * factor
                verdict = "met" if value <= most else "MISSED"
                where = f"{section}: {title}, {key}"
                yield f"{where:<64} {value:>10.4g}  goal <= {most:<8.4g} {verdict}"
                break
