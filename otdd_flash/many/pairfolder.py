"""A folder in which the finished pairs of a run are kept, so that it goes on where it stopped.

``run.json`` says what is computed, ``epsilon.json`` holds the common eps, and each finished pair is
a file of its own below ``pairs``. Files appear whole or not at all: a run that is killed loses the
pair it was at.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from otdd_flash.archive import plain, revived
from otdd_flash.confidence import Confidence
from otdd_flash.digests import differences, fingerprint
from otdd_flash.errors import DataError, OTDDError, SettingsError
from otdd_flash.files import written_whole
from otdd_flash.many.findings import PairValue
from otdd_flash.settings import ELSEWHERE, OTDDSettings
from otdd_flash.timing import versions
from otdd_flash.types import LabelledDataset

FORMAT = 1
RUN, EPSILON, PAIRS = "run.json", "epsilon.json", "pairs"


def description(
    datasets: Sequence[LabelledDataset],
    names: Sequence[str],
    settings: OTDDSettings,
    confidence: Confidence,
) -> dict[str, Any]:
    """Return what a run that goes on must agree with, in JSON's own types."""
    asked = plain(settings)
    for key in ELSEWHERE:
        del asked[key]
    return {
        "format": FORMAT,
        "otdd-flash": versions()["otdd-flash"],
        "settings": asked,
        "confidence": {"bootstrap": confidence.bootstrap, "seed": confidence.seed},
        "datasets": {
            name: {"number": k, "n": len(data), "d": data.dimension, "sha256": fingerprint(data)}
            for k, (name, data) in enumerate(zip(names, datasets, strict=True))
        },
    }


def check_folder(root: Path, *, resume: bool) -> None:
    """Refuse a folder that holds something else, or a run that nobody asked to go on with.

    Raises:
        SettingsError: what is there, and what to do.
    """
    if root.exists() and not root.is_dir():
        raise SettingsError(f"{root} is a file, expected a folder")
    if (root / RUN).exists():
        if not resume:
            raise SettingsError(
                f"{root} holds a run already; go on with it (resume, --resume) or give another "
                "folder"
            )
    elif root.exists() and any(root.iterdir()):
        raise SettingsError(
            f"{root} holds files that are no run of a matrix (there is no {RUN}); give a folder "
            "that is empty or not there"
        )


class PairFolder:
    """Finished pairs in a folder.

    Raises:
        SettingsError: a folder that holds something else, a run that is not to be gone on with,
            or one of other settings or datasets.
        OSError: a folder that cannot be written.
    """

    def __init__(
        self,
        root: str | Path,
        run: dict[str, Any],  # as `description` gives it
        *,
        resume: bool,
    ) -> None:
        self.root = Path(root)
        self._pairs = self.root / PAIRS
        check_folder(self.root, resume=resume)
        begun = self.root / RUN
        if begun.exists():
            self._check(_read(begun), run)
        else:
            self.root.mkdir(parents=True, exist_ok=True)
            _write(begun, run)
        self._pairs.mkdir(exist_ok=True)

    def _check(self, before: Any, now: dict[str, Any]) -> None:
        if not isinstance(before, dict):
            raise _damaged(self.root / RUN)
        found = differences(before, now)
        if found:
            raise SettingsError(
                f"{self.root} holds a run of other settings or datasets: {'; '.join(found)}; give "
                "the same ones, or another folder"
            )

    def _file(self, pair: tuple[int, int]) -> Path:
        return self._pairs / f"{pair[0]:04}-{pair[1]:04}.json"

    def epsilon(self) -> float | None:
        """Return the eps that the run was begun with, None at its beginning."""
        path = self.root / EPSILON
        if not path.exists():
            return None
        found = _read(path)
        if not isinstance(found, dict) or not isinstance(found.get("epsilon"), float):
            raise _damaged(path)
        return found["epsilon"]

    def keep_epsilon(self, epsilon: float) -> None:
        """Keep the eps of the run."""
        _write(self.root / EPSILON, {"epsilon": float(epsilon)})

    def read(self, pair: tuple[int, int]) -> PairValue | None:
        """Return a finished pair, None where it is not.

        Raises:
            DataError: a file that is not a whole pair.
        """
        path = self._file(pair)
        if not path.exists():
            return None
        try:
            return revived(PairValue, _read(path))
        except (KeyError, TypeError, ValueError, OTDDError) as error:
            raise _damaged(path) from error

    def keep(self, pair: tuple[int, int], value: PairValue) -> None:
        """Keep a finished pair."""
        _write(self._file(pair), plain(value, finite=False))


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise _damaged(path) from error


def _damaged(path: Path) -> DataError:
    return DataError(f"{path}: damaged, or no file of such a run; delete it and go on")


def _write(path: Path, value: Any) -> None:
    with written_whole(path) as file:
        file.write(json.dumps(value, indent=1).encode())
