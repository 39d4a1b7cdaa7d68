"""The folders where dataset files are looked for, in order."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from otdd_flash.datasets.registry import plain
from otdd_flash.errors import DataError, DatasetNotFoundError
from otdd_flash.files import user_cache

DEBIAN = Path("/usr/share/datasets")
ENVIRONMENT = "OTDD_DATA"


@dataclass(frozen=True)
class Place:
    """A root folder; ``explicit``: the user named it for this purpose."""

    root: Path
    why: str  # shown in errors and provenance
    explicit: bool = False


def checkout_data() -> Path | None:
    """Return the ``data`` folder of the source checkout that runs, or None when installed."""
    top = Path(__file__).resolve().parents[2]
    project = top / "pyproject.toml"
    if not project.is_file() or 'name = "otdd-flash"' not in project.read_text("utf-8"):
        return None
    return top / "data"


def search_places(data_root: str | os.PathLike[str] | None) -> tuple[Place, ...]:
    """Return the roots to search, the first one first.

    Raises:
        DatasetNotFoundError: ``data_root`` is given and is not a folder.
    """
    places = []
    if data_root is not None:
        root = Path(data_root).expanduser()
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise DatasetNotFoundError(
                f"data root {root} {what}; give the folder that holds the dataset files"
            )
        places.append(Place(root, "data root", explicit=True))
    if os.environ.get(ENVIRONMENT):
        root = Path(os.environ[ENVIRONMENT]).expanduser()
        places.append(Place(root, ENVIRONMENT, explicit=True))
    checkout = checkout_data()
    if checkout is not None:
        places.append(Place(checkout, "checkout"))
    places += [Place(user_cache(), "user cache"), Place(DEBIAN, "system")]
    return tuple(places)


def entries_of(folder: Path) -> list[str]:
    """Return the sorted names in a folder, none when there is no such folder.

    Raises:
        DataError: the folder cannot be read.
    """
    try:
        return sorted(os.listdir(folder))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise DataError(
            f"{folder}: cannot be read ({error.strerror}); mend its permissions or "
            "choose another data root"
        ) from error


def named_folders(
    root: Path,
    names: tuple[str, ...],  # the best first; case, - and _ do not matter
) -> Iterator[Path]:
    """Yield the folders of a root that carry one of the names."""
    below = [name for name in entries_of(root) if os.path.isdir(root / name)]
    for wanted in dict.fromkeys(plain(name) for name in names):
        for name in below:
            if plain(name) == wanted:
                yield root / name
