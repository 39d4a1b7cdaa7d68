"""The embedded samples: what they hold, their checksums, and how they are made."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
from importlib.resources import files
from pathlib import Path

import numpy as np
import pytest
import torch

from otdd_flash.datasets import load, mini
from otdd_flash.errors import DataError

DATA = Path(str(files("otdd_flash_data")))
SCRIPT = Path(__file__).resolve().parents[1] / "scripts" / "make_mini_data.py"
NAMES = ("mnist-mini", "fashion-mnist-mini")


@pytest.mark.parametrize("name", NAMES)
def test_content(name):
    dataset = load(name)
    assert dataset.points.shape == (2000, 784) and dataset.points.dtype == torch.uint8
    assert dataset.sample_shape == (28, 28) and dataset.classes == 10 and dataset.name == name
    counts = dataset.labels.bincount()
    assert counts.min() >= 180 and counts.max() <= 225
    assert int(dataset.points.min()) == 0 and int(dataset.points.max()) == 255
    assert dataset.provenance["source"] == "embedded" and dataset.provenance["of"] == 60_000


def test_names_and_licences():
    assert load("mnist-mini").class_names == tuple("0123456789")
    assert load("fashion-mnist-mini").class_names[::9] == ("T-shirt/top", "Ankle boot")
    assert load("mnist-mini").provenance["licence"] == "CC BY-SA 3.0"
    assert load("fashion-mnist-mini").provenance["licence"] == "MIT"
    licences = (DATA / "LICENSES.md").read_text("utf-8")
    for words in ("CC BY-SA 3.0", "LeCun", "Cortes", "Burges", "MIT", "Zalando SE"):
        assert words in licences


def test_size_and_manifest():
    manifest = json.loads((DATA / "manifest.json").read_text("utf-8"))
    assert set(manifest) == set(NAMES)
    total = 0
    for record in manifest.values():
        content = (DATA / record["file"]).read_bytes()
        assert hashlib.sha256(content).hexdigest() == record["sha256"]
        assert record["source"] and record["licence"] and record["url"]
        total += len(content)
    assert total <= 1_500_000


@pytest.fixture
def copied(tmp_path, monkeypatch):
    """A copy of the embedded data that the loader reads and that a test may damage."""
    folder = tmp_path / "data"
    shutil.copytree(DATA, folder)
    monkeypatch.setattr(mini, "files", lambda package: folder)
    return folder


def test_copy_loads(copied):
    assert len(load("mnist-mini")) == 2000


def test_changed_pixel_is_noticed(copied):
    path = copied / "mnist_mini.npz"
    arrays = dict(np.load(path))
    arrays["points"][5, 5, 5] ^= 1
    np.savez_compressed(path, **arrays)
    with pytest.raises(DataError, match="points does not match its checksum.*install otdd-flash"):
        load("mnist-mini")


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "absent", "text"])
def test_damaged_file(copied, damage):
    path = copied / "mnist_mini.npz"
    content = bytearray(path.read_bytes())
    if damage == "absent":
        path.unlink()
    elif damage == "flip":
        content[5000] ^= 255
        path.write_bytes(content)
    else:
        path.write_bytes({"cut": content[:-5000], "empty": b"", "text": b"hello"}[damage])
    with pytest.raises(DataError, match=r"mnist-mini: the embedded mnist_mini.npz is damaged"):
        load("mnist-mini")


@pytest.mark.parametrize("content", [None, "", "{}", "[1]", "{"])
def test_damaged_manifest(copied, content):
    path = copied / "manifest.json"
    path.unlink() if content is None else path.write_text(content)
    with pytest.raises(DataError, match="install otdd-flash again"):
        load("mnist-mini")


@pytest.mark.full
def test_script_makes_the_same_arrays(full_data_root, tmp_path, capsys):
    spec = importlib.util.spec_from_file_location("make_mini_data", SCRIPT)
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    arguments = ["--data-root", str(full_data_root), "--output", str(tmp_path)]
    script.main(arguments, standalone_mode=False)
    assert "mnist_mini.npz" in capsys.readouterr().out
    made = json.loads((tmp_path / "manifest.json").read_text("utf-8"))
    kept = json.loads((DATA / "manifest.json").read_text("utf-8"))
    for name in NAMES:
        assert made[name]["arrays"] == kept[name]["arrays"]
        assert made[name]["made_from"] == kept[name]["made_from"]


@pytest.mark.full
@pytest.mark.parametrize("name", NAMES)
def test_is_the_draw_of_the_full_set(full_data_root, name):
    full = load(name.removesuffix("-mini"), data_root=full_data_root, max_samples=2000)
    small = load(name)
    assert torch.equal(full.points, small.points) and torch.equal(full.labels, small.labels)
    rows = np.load(DATA / f"{name.replace('-', '_')}.npz")["rows"]
    assert (np.diff(rows) > 0).all() and rows[-1] < 60_000
