"""What the command says on stderr about a run that takes long."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from otdd_flash.types import LabelledDataset, OTDDSettings

# a run expected to take longer is announced with what would shorten it
LONG_SECONDS = 60.0


def long_run(
    seconds: float, src: LabelledDataset, tgt: LabelledDataset, settings: OTDDSettings
) -> str:
    """Say how long a run is expected to take and what would shorten it."""
    from otdd_flash.ops import resolve_device

    # the solve grows with n m: this many samples a side take about half the limit
    largest = max(len(src), len(tgt))
    fewer = int((len(src) * len(tgt) * LONG_SECONDS / 2 / seconds) ** 0.5)
    fewer = max(100, round(fewer, 1 - len(str(fewer))))
    ways = [f"--max-samples {fewer}"] if fewer < largest else []
    ways.append("a larger --epsilon or --tol")
    if resolve_device("auto").type == "cpu":
        ways.append("a GPU")
    elif resolve_device(settings.device).type == "cpu":
        ways.append("--device cuda")
    return (
        f"{src.name} ({len(src):,}) x {tgt.name} ({len(tgt):,}): about {duration(seconds)} "
        f"expected; shorter with {', '.join(ways[:-1])}{' or ' if ways[1:] else ''}{ways[-1]}"
    )


def duration(seconds: float) -> str:
    """Return a rough time for people."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
