"""Progress bars on stderr for long computations, which only yield states."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from otdd_flash.types import Progress

Result = TypeVar("Result")
# a pass count without a known end has no bar
COUNTING = "{desc} {n_fmt} [{elapsed}{postfix}]"
BAR = "{desc} {bar:30} {n_fmt}/{total_fmt} [{elapsed}{postfix}]"


def wanted(quiet: bool) -> bool:
    """Bars are for a person at a terminal: nothing when stderr is piped or ``quiet``."""
    return not quiet and sys.stderr is not None and sys.stderr.isatty()


def _shape() -> dict[str, Any]:
    """Return tqdm's options for the terminal; one that does not tell its size has 80 columns."""
    try:
        known = os.get_terminal_size(sys.stderr.fileno()).columns > 0
    except OSError:
        known = False
    return {"dynamic_ncols": True} if known else {"ncols": 80, "nrows": 24}


class Bars:
    """One bar a stage, on stderr; does nothing when not ``shown``."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.stage: str | None = None
        self.bar: Any = None

    def show(self, progress: Progress) -> None:
        """Move the bar of the progress's stage, after closing one that is at its end."""
        if not self.shown:
            return
        # the next dataset of a stage begins anew
        again = self.bar is not None and progress.total and progress.done < self.bar.n
        if self.bar is None or progress.stage != self.stage or again:
            from tqdm import tqdm

            self.close()
            self.stage = progress.stage
            self.bar = tqdm(
                desc=f"{progress.stage:<11}",
                total=progress.total,
                file=sys.stderr,
                bar_format=BAR if progress.total else COUNTING,
                leave=True,
                **_shape(),
            )
        self.bar.set_postfix_str(progress.note, refresh=False)
        self.bar.update(progress.done - self.bar.n)

    def close(self) -> None:
        """End the line of the current bar."""
        if self.bar is not None:
            self.bar.refresh()
            self.bar.close()
            self.bar = None

    def drive(self, steps: Generator[Progress, None, Result]) -> Result:
        """Run ``steps`` to its end, show what it yields and return its result."""
        try:
            while True:
                try:
                    self.show(next(steps))
                except StopIteration as end:
                    return end.value
        finally:
            self.close()
            steps.close()
