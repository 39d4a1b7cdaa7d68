"""Files that appear whole or not at all, and the folder that they may be kept in."""

from __future__ import annotations

import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from otdd_flash.errors import SettingsError


def user_cache() -> Path:
    """Return the folder of what can be made again: below ``$XDG_CACHE_HOME``, or ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path("~/.cache").expanduser()) / "otdd-flash"


@contextmanager
def written_whole(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file beside ``path`` that takes its place when the block ends, and only then.

    A block that raises, or a process that is killed, leaves whatever was at ``path`` before. A
    link stays: the file that it points to is replaced.

    Raises:
        OSError: the directory cannot be written, the disk is full, a device is at ``path``; it
            names the path.
    """
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "not an ordinary file", str(path))
    # short whatever the name is, which may be as long as the file system allows
    temporary = path.with_name(f".otdd-{secrets.token_hex(8)}.tmp")
    try:
        # an ordinary open, not mkstemp: the file gets the permissions of the user's umask
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        # a write to a full disk does not say which file it was
        if error.filename in (None, str(temporary)):
            error.filename = str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def check_writable(
    path: str | Path,
    what: str,  # how the caller names the path, for example "--output"
    suffixes: tuple[str, ...],  # endings that are understood, for example (".npz",)
) -> Path:
    """Return ``path`` if a file can be written there, without leaving anything behind.

    Raises:
        SettingsError: an ending that is not understood, a directory that is missing or closed,
            a directory or device where the file should be, a name that is too long.
    """
    path = Path(path)
    if path.suffix.lower() not in suffixes:
        *most, last = suffixes
        endings = f"{', '.join(most)} or {last}" if most else last
        raise SettingsError(f"{what} {path}: the name must end in {endings}")
    # a link is written through: what counts is where it points
    place = Path(os.path.realpath(path))
    try:
        place.stat()
    except FileNotFoundError:
        pass
    except OSError as error:
        raise SettingsError(
            f"{what} {path}: no file can be there ({error.strerror}); choose another name"
        ) from error
    if place.is_dir():
        raise SettingsError(f"{what} {path} is a directory; give the name of a file")
    if not place.parent.is_dir():
        raise SettingsError(f"{what} {path}: there is no directory {place.parent}; create it first")
    if place.exists() and not place.is_file():
        raise SettingsError(f"{what} {path} is not an ordinary file; choose another name")
    if place.exists() and not os.access(place, os.W_OK):
        raise SettingsError(f"{what} {path} is there and write-protected; choose another name")
    try:
        with tempfile.TemporaryFile(dir=place.parent):
            pass
    except OSError as error:
        raise SettingsError(
            f"{what} {path}: cannot write to {place.parent} ({error.strerror}); choose another "
            "directory"
        ) from error
    return path
