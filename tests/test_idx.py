"""IDX files: what is read, what is refused and what the refusal says."""

from __future__ import annotations

import gzip
import hashlib
import os
import time
from pathlib import Path

import numpy as np
import pytest
from idx_files import idx_bytes, small_set, write

from otdd_flash.datasets import read_idx
from otdd_flash.errors import DataError

NAME = "train-images-idx3-ubyte"


@pytest.mark.parametrize("suffix", ["", ".gz"])
@pytest.mark.parametrize("dtype", ["uint8", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("shape", [(5,), (3, 8), (2, 3, 4), (1, 2, 1, 3)])
def test_reads_every_type_and_shape(tmp_path, dtype, shape, suffix):
    values = (np.arange(np.prod(shape)).reshape(shape) * 3 - 7).astype(dtype)
    file = read_idx(write(tmp_path / f"x{suffix}", values))
    np.testing.assert_array_equal(file.values, values)
    assert file.values.dtype == dtype and file.values.flags.writeable
    assert file.sha256 == hashlib.sha256(idx_bytes(values)).hexdigest()


def test_gzip_is_told_by_content_not_name(tmp_path):
    values, _ = small_set()
    plain, zipped = tmp_path / "x.gz", tmp_path / "y"
    plain.write_bytes(idx_bytes(values))
    zipped.write_bytes(gzip.compress(idx_bytes(values)))
    np.testing.assert_array_equal(read_idx(plain).values, values)
    np.testing.assert_array_equal(read_idx(zipped).values, values)


def test_gzip_of_several_members(tmp_path):
    values, _ = small_set()
    content = idx_bytes(values)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(content[:1000]) + gzip.compress(content[1000:]))
    np.testing.assert_array_equal(read_idx(path).values, values)


GOOD = idx_bytes(small_set()[0])
BAD = {
    "empty": (b"", "the file is empty"),
    "two bytes": (b"\0\0", "not an IDX file"),
    "web page": (b"<!DOCTYPE html><html>404</html>", "not an IDX file, a web page"),
    "web page after a blank line": (b"\n<html>", "not an IDX file, a web page"),
    "wrong magic": (b"\x89PNG" + GOOD[4:], "its first bytes are 89 50 4e 47"),
    "unknown type": (b"\0\0\x07\x03" + GOOD[4:], "not an IDX file"),
    "no axes": (b"\0\0\x08\0" + GOOD[4:], "not an IDX file"),
    "header cut off": (GOOD[:10], "cut off inside the header"),
    "values cut off": (GOOD[:-1], "the header promises 20 x 28 x 28 values"),
    "values too many": (GOOD + b"x", "but more follow"),
    "gzip cut off": (gzip.compress(GOOD)[:-2000], "the gzip file is cut off"),
    "gzip cut off in its trailer": (gzip.compress(GOOD)[:-4], "the gzip file is cut off"),
    "gzip of a cut file": (gzip.compress(GOOD[:-100]), "15,580 arrived: cut off"),
    "gzip of a web page": (gzip.compress(b"<html>" * 99), "a web page"),
    "gzip damaged": (gzip.compress(GOOD)[:3000] + b"\0" * 13000, "the gzip file is damaged"),
    "gzip checksum": (gzip.compress(GOOD)[:-8] + b"\1" * 8, "the gzip file is damaged"),
    "gzip with junk behind": (gzip.compress(GOOD) + b"junk", "the gzip file is damaged"),
    "gzip header alone": (b"\x1f\x8b", "the gzip file is cut off"),
    "absurd sizes": (gzip.compress(b"\0\0\x08\x03" + b"\xff" * 12), "more than the file holds"),
}


@pytest.mark.parametrize("case", BAD)
@pytest.mark.parametrize("name", [NAME, NAME + ".gz"])
def test_bad_files_are_named_with_what_to_do(tmp_path, case, name):
    content, message = BAD[case]
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        read_idx(path)
    text = str(caught.value)
    assert text.startswith(f"{path}: ") and message in text and "\n" not in text
    assert "replace it with a good copy, or delete it" in text


def test_unreadable_files(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path / "absent")
    with pytest.raises(DataError, match="cannot be read"):
        read_idx(tmp_path)
    if os.geteuid() != 0:
        path = write(tmp_path / "x", small_set()[0])
        path.chmod(0)
        with pytest.raises(DataError, match="cannot be read"):
            read_idx(path)


@pytest.mark.full
def test_full_files_are_read_fast(full_data_root: Path):
    path = full_data_root / "fashion-mnist" / f"{NAME}.gz"
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        file = read_idx(path)
        seconds.append(time.perf_counter() - start)
    assert file.values.shape == (60_000, 28, 28)
    # about 0.4 s on one idle core
    assert min(seconds) < 1.5
