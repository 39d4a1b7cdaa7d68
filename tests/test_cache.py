"""The cache of embeddings: found by content, whole or not at all, bounded, shown."""

import json
import os
import resource
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from PIL import Image

from otdd_flash.cli import main
from otdd_flash.embed.cache import (
    LIMIT,
    STALE,
    cache_folder,
    cache_key,
    cached,
    clear_cache,
    digest_steps,
    read_cached,
    write_cached,
)
from otdd_flash.results import bytes_text
from otdd_flash.samples import Arrays, Images, Texts
from otdd_flash.types import finish

ABOUT = {"encoder": "mine:f", "dataset": "some", "shape": [4, 3], "said": ["encoded by mine:f"]}


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "otdd-flash" / "embeddings"


def features(fill=1.0, rows=4):
    return torch.full((rows, 3), fill)


def listed(items, kind):
    return kind(lambda rows: [items[k] for k in rows], np.arange(len(items)))


def digest(samples):
    return finish(digest_steps(samples, "some"))


def test_the_digest_is_of_content_and_order():
    values = torch.randint(0, 255, (5000, 3), dtype=torch.uint8)
    same = digest(Arrays.of(values))
    # columns of a wider array: other strides, the same content
    assert same == digest(Arrays.of(torch.cat([values, values], 1)[:, :3]))
    others = [values.flip(0), values[:-1], values.float(), values.reshape(5000, 3, 1)]
    changed = values.clone()
    changed[-1, -1] += 1
    found = {digest(Arrays.of(other)) for other in [*others, changed]}
    assert len(found) == 5 and same not in found
    halves = torch.randn(3, 2).to(torch.bfloat16)
    assert digest(Arrays.of(halves)) != digest(Arrays.of(halves.view(torch.int16)))


def test_the_digest_of_texts_knows_where_one_ends():
    texts = [
        listed(items, Texts) for items in (["ab", "c"], ["a", "bc"], ["abc", ""], ["é", "\ud800"])
    ]
    assert len({digest(text) for text in texts}) == 4
    assert digest(texts[0]) == digest(listed(["ab", "c"], Texts))


def test_the_digest_of_images_is_of_files_bytes_and_pixels(tmp_path):
    path = tmp_path / "a.png"
    red, blue = (Image.new("RGB", (4, 4), color) for color in ("red", "blue"))
    red.save(path)
    of_file = digest(listed([path], Images))
    assert of_file == digest(listed([path.read_bytes()], Images))
    blue.save(path)
    assert of_file != digest(listed([path], Images))
    # the same indices, other palettes
    palettes = [Image.new("P", (4, 4)) for _ in range(2)]
    palettes[0].putpalette([255, 0, 0] + [0] * 765)
    palettes[1].putpalette([0, 0, 255] + [0] * 765)
    assert palettes[0].tobytes() == palettes[1].tobytes()
    pictures = [digest(listed([image], Images)) for image in (red, blue, *palettes)]
    assert len(set(pictures)) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_what_is_kept_comes_back_bit_by_bit(folder, dtype):
    values = torch.randn(7, 5, dtype=dtype)
    assert write_cached("k", values.T.contiguous().T, ABOUT) == []
    found, about = read_cached("k")
    assert found.dtype == dtype and torch.equal(found, values)
    assert about["said"] == ABOUT["said"] and about["made"].startswith("20")
    assert [path.name for path in folder.iterdir()] == ["k.safetensors"]
    assert cache_folder() == folder and read_cached("other") is None


def test_keys_tell_data_and_encoders_apart():
    keys = {cache_key(d, e) for d in ("a", "b") for e in ("x", "y")}
    assert len(keys) == 4 and all(len(key) == 64 for key in keys)


KILLED = """
import os, signal, sys, torch
from otdd_flash.embed.cache import write_cached
# killed when the bytes are written and before the file has its name
os.fsync = lambda file: os.kill(os.getpid(), signal.SIGKILL)
write_cached("k", torch.full((4, 3), 2.0), {"said": ["new"]})
"""


def test_a_process_killed_while_it_writes_leaves_what_was_there(folder):
    write_cached("k", features(1.0), ABOUT)
    killed = subprocess.run([sys.executable, "-c", KILLED], capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (left,) = folder.glob(".otdd-*.tmp")
    found, about = read_cached("k")
    assert torch.equal(found, features(1.0)) and about["said"] == ABOUT["said"]
    assert [entry.path.name for entry in cached()] == ["k.safetensors"]
    # it may be another process's work until it is old
    write_cached("second", features(), ABOUT)
    assert left.exists()
    os.utime(left, (time.time() - STALE - 60,) * 2)
    write_cached("third", features(), ABOUT)
    assert not left.exists() and len(cached()) == 3


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text"])
def test_a_damaged_file_is_no_embedding_and_is_replaced(folder, damage):
    write_cached("k", features(), ABOUT)
    path = folder / "k.safetensors"
    content = path.read_bytes()
    path.write_bytes(
        {
            "cut": content[:-5],
            "flipped": content[:-5] + bytes([content[-5] ^ 1]) + content[-4:],
            "empty": b"",
            "text": b"<html>not found</html>",
        }[damage]
    )
    assert read_cached("k") is None
    assert len(cached()) == 1
    write_cached("k", features(3.0), ABOUT)
    assert torch.equal(read_cached("k")[0], features(3.0))


def test_the_cache_is_bounded_and_what_was_not_used_for_longest_goes_first(folder):
    size = features(rows=1000).numel() * 4
    limit = int(3.5 * size)
    for age, key in enumerate(["new", "middle", "old"]):
        assert write_cached(key, features(rows=1000), ABOUT, limit) == []
        os.utime(folder / f"{key}.safetensors", (time.time() - 1000 * (age + 1),) * 2)
    assert read_cached("old") is not None  # used: now the newest
    middle = bytes_text((folder / "middle.safetensors").stat().st_size)
    (said,) = write_cached("more", features(rows=1000), ABOUT, limit)
    assert said == (
        f"1 embeddings that were not used for longest left the cache ({middle}), which holds 42 kB"
    )
    assert [entry.path.stem for entry in cached()] == ["new", "old", "more"]
    assert sum(entry.size for entry in cached()) <= limit + 3 * 1000
    # replacing one does not count it twice
    assert write_cached("more", features(rows=1000), ABOUT, limit) == []
    (said,) = write_cached("huge", features(rows=4000), ABOUT, limit)
    assert said == "not kept: 48 kB are more than the 42 kB of the cache"
    assert [entry.path.stem for entry in cached()] == ["new", "old", "more"]


def test_a_cache_that_cannot_be_written_is_announced(folder):
    folder.parent.mkdir(parents=True)
    folder.write_text("a file where the folder should be")
    (said,) = write_cached("k", features(), ABOUT)
    assert said == f"not kept: the cache {folder} cannot be written (File exists)"
    assert read_cached("k") is None and cached() == [] and clear_cache() == (0, 0)


def test_a_disk_that_is_full_costs_the_place_in_the_cache_only(folder):
    write_cached("k", features(), ABOUT)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    # files cannot grow beyond 2 kB
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        (said,) = write_cached("k", features(2.0, rows=1000), ABOUT)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert said.startswith(f"not kept: the cache {folder} cannot be written (")
    assert "File too large" in said
    assert [path.name for path in folder.iterdir()] == ["k.safetensors"]
    assert torch.equal(read_cached("k")[0], features())


def cache(*arguments):
    return CliRunner().invoke(main, ["cache", *arguments])


def test_the_command_lists_and_clears(folder):
    empty = cache("list")
    assert empty.exit_code == 0
    assert empty.stdout == f"0 embeddings, 0 B of at most 10 GB, in {folder}\n"
    write_cached("a", features(), ABOUT)
    os.utime(folder / "a.safetensors", (0, 0))
    write_cached("b", features(rows=2000), {**ABOUT, "dataset": "other", "shape": [2000, 3]})
    (folder / "c.safetensors").write_bytes(b"nothing")
    total = sum(path.stat().st_size for path in folder.iterdir())
    lines = cache("list").stdout.splitlines()
    assert lines[0].split() == ["dataset", "encoder", "shape", "size", "last", "used"]
    assert lines[1].split()[:5] == ["some", "mine:f", "4", "x", "3"]
    assert lines[2].split()[:5] == ["other", "mine:f", "2,000", "x", "3"]
    assert lines[3].startswith("(damaged)")
    assert lines[-1].startswith(f"3 embeddings, {bytes_text(total)} of at most 10 GB")
    found = json.loads(cache("list", "--json").stdout)
    assert (found["bytes"], found["limit"], found["folder"]) == (total, LIMIT, str(folder))
    assert [entry["dataset"] for entry in found["embeddings"]] == ["some", "other", None]
    # a dataset beside the embeddings is not theirs to remove
    (folder.parent / "mnist").mkdir()
    (folder / ".otdd-0.tmp").write_bytes(b"half")
    assert cache("clear").stdout.startswith(f"removed 3 embeddings, {bytes_text(total)}")
    assert list(folder.iterdir()) == [] and (folder.parent / "mnist").is_dir()
    assert cache("clear").stdout == "removed 0 embeddings, 0 B\n"


def test_the_command_alone_shows_its_help():
    result = cache()
    assert result.exit_code == 0 and "clear" in result.stdout and "list" in result.stdout
