"""IDX files, plain or gzipped: the format of MNIST and its relatives.

A file is two zero bytes, a byte for the type, a byte for the number of axes, one big-endian
32-bit size an axis, then the values in row-major order, big-endian.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from otdd_flash.errors import DataError

TYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GZIP_MAGIC = b"\x1f\x8b"
# deflate cannot compress by more than this: a header that promises more is wrong
LARGEST_GZIP_RATIO = 1040
REPAIR = "replace it with a good copy, or delete it so that a later place or a download is used"


@dataclass(frozen=True, eq=False)
class IdxFile:
    """The content of an IDX file."""

    path: Path
    values: np.ndarray  # in the shape of the header, native byte order, writable
    sha256: str  # of the uncompressed file


def read_idx(path: str | os.PathLike[str]) -> IdxFile:
    """Read an IDX file; gzip is told by its first bytes, whatever the name says.

    Memory: the values once (twice for types of more than one byte).

    Raises:
        DataError: unreadable, empty, cut off, not IDX, or of another size than its header says.
    """
    path = Path(path)
    try:
        size = path.stat().st_size
        with path.open("rb") as raw:
            if size == 0:
                raise DataError(f"{path}: the file is empty; {REPAIR}")
            if raw.peek(2)[:2] != GZIP_MAGIC:
                return _decode(raw, path, size)
            with gzip.GzipFile(fileobj=raw) as unzipped:
                return _decode(unzipped, path, size * LARGEST_GZIP_RATIO)  # type: ignore[arg-type]
    except EOFError as error:
        raise DataError(f"{path}: the gzip file is cut off; {REPAIR}") from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise DataError(f"{path}: the gzip file is damaged ({error}); {REPAIR}") from error
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error})") from error


def _decode(
    stream: BinaryIO,
    path: Path,
    capacity: int,  # bytes that the file can hold at most
) -> IdxFile:
    """Read header and values from a stream at its start."""
    magic = stream.read(4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in TYPES or not 1 <= magic[3] <= 4:
        web = magic.lstrip()[:1] == b"<"
        what = "a web page" if web else f"its first bytes are {magic.hex(' ')}"
        raise DataError(f"{path}: not an IDX file, {what}; {REPAIR}")
    header = stream.read(4 * magic[3])
    if len(header) < 4 * magic[3]:
        raise DataError(f"{path}: cut off inside the header; {REPAIR}")
    shape = tuple(int(k) for k in np.frombuffer(header, ">u4"))
    kind = np.dtype(TYPES[magic[2]])
    expected = math.prod(shape) * kind.itemsize
    promise = f"the header promises {' x '.join(map(str, shape))} values, {expected:,} bytes"
    if expected > capacity:
        raise DataError(f"{path}: {promise}, more than the file holds: cut off; {REPAIR}")
    data = np.empty(expected, dtype=np.uint8)
    arrived = _fill(stream, data.data)
    if arrived < expected:
        raise DataError(f"{path}: {promise}, {arrived:,} arrived: cut off; {REPAIR}")
    if stream.read(1):
        raise DataError(f"{path}: {promise}, but more follow; {REPAIR}")
    digest = hashlib.sha256(magic + header)
    digest.update(data.data)
    values = data.view(kind).reshape(shape).astype(kind.newbyteorder("="), copy=False)
    return IdxFile(path, values, digest.hexdigest())


def _fill(stream: BinaryIO, view: memoryview) -> int:
    """Read until the view is full or the stream ends; return the number of bytes."""
    done = 0
    while done < len(view):
        count = stream.readinto(view[done:])  # type: ignore[attr-defined]
        if not count:
            break
        done += count
    return done
