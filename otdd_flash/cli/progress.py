"""Progress bars on stderr for long computations, which only yield states."""

from __future__ import annotations

import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from otdd_flash.types import Progress

Result = TypeVar("Result")
# a pass count without a known end has no bar
COUNTING = "{desc}: {n_fmt} [{elapsed}{postfix}]"


def wanted(quiet: bool) -> bool:
    """Bars are for a person at a terminal: nothing when stderr is piped or ``quiet``."""
    return not quiet and sys.stderr.isatty()


class Bars:
    """One bar a stage, on stderr; does nothing when not ``shown``."""

    def __init__(self, shown: bool) -> None:
        self.shown = shown
        self.stage: str | None = None
        self.bar: Any = None

    def show(self, progress: Progress) -> None:
        """Move the bar of the progress's stage, after closing the one of another stage."""
        if not self.shown:
            return
        if self.bar is None or progress.stage != self.stage:
            from tqdm import tqdm

            self.close()
            self.stage = progress.stage
            self.bar = tqdm(
                desc=f"{progress.stage:<14}",
                total=progress.total,
                file=sys.stderr,
                bar_format=None if progress.total else COUNTING,
                dynamic_ncols=True,
                leave=True,
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
