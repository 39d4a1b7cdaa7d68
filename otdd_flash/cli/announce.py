"""What the command says on stderr about a run that takes long."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otdd_flash.settings import OTDDSettings
    from otdd_flash.types import LabelledDataset

# a run expected to take longer is announced with what would shorten it
LONG_SECONDS = 60.0


def announce_long(
    pairs: Sequence[tuple[LabelledDataset, LabelledDataset]],  # that are to be solved
    settings: OTDDSettings,
    tell: Callable[[str], None],
    times: float = 1.0,  # of what the distances alone take
) -> None:
    """Say how long a run is expected to take and what would shorten it, where that is long."""
    from otdd_flash.ahead import estimate_seconds
    from otdd_flash.ops import resolve_device

    seconds = sum(estimate_seconds(src, tgt, settings) for src, tgt in pairs) * times
    if seconds <= LONG_SECONDS:
        return
    # a solve grows with n m: this many samples a side take about half the limit
    sizes = [(len(src), len(tgt)) for src, tgt in pairs]
    product = sum(n * m for n, m in sizes) / len(sizes)
    fewer = int((product * LONG_SECONDS / 2 / seconds) ** 0.5)
    fewer = max(100, round(fewer, 1 - len(str(fewer))))
    ways = [f"--max-samples {fewer}"] if fewer < max(map(max, sizes)) else []
    ways.append("a larger --epsilon or --tol")
    if resolve_device("auto").type == "cpu":
        ways.append("a GPU")
    elif resolve_device(settings.device).type == "cpu":
        ways.append("--device cuda")
    (src, tgt), (n, m) = pairs[0], sizes[0]
    what = f"{src.name} ({n:,}) x {tgt.name} ({m:,})"
    what = what if len(pairs) == 1 else f"{len(pairs):,} pairs of datasets"
    tell(
        f"{what}: about {duration(seconds)} expected; shorter with "
        f"{', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}"
    )


def duration(seconds: float) -> str:
    """Return a rough time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
