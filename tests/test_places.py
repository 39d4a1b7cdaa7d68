"""The places where files are looked for, their order, and folders that several sets could own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from idx_files import write_pair

from otdd_flash.datasets import load, places
from otdd_flash.errors import DataError, DatasetNotFoundError

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def test_order_of_places(alone, tmp_path, monkeypatch):
    roots = {}
    for n, why in enumerate(["data root", "OTDD_DATA", "checkout", "user cache", "system"], 20):
        roots[why] = alone if why == "user cache" else tmp_path / why
        write_pair(roots[why] / "mnist", n=n)
    monkeypatch.setenv("OTDD_DATA", str(roots["OTDD_DATA"]))
    monkeypatch.setattr(places, "checkout_data", lambda: roots["checkout"])
    monkeypatch.setattr(places, "DEBIAN", roots["system"])
    for n, why in enumerate(roots, 20):
        dataset = load("mnist", data_root=roots["data root"])
        assert len(dataset) == n and dataset.provenance["place"] == why
        assert dataset.provenance["source"].startswith(str(roots[why]))
        (roots[why] / "mnist" / IMAGES).unlink()
        (roots[why] / "mnist" / LABELS).unlink()
    with pytest.raises(DatasetNotFoundError) as caught:
        load("mnist", data_root=roots["data root"])
    text = str(caught.value)
    assert all(f"{root} ({why}" in text for why, root in roots.items()) and "\n" not in text
    assert f"no {IMAGES}[.gz] and {LABELS}[.gz] in" in text
    assert "no network in tests" in text and "use mnist-mini, which needs no files" in text


def test_checkout_data_only_when_the_checkout_runs():
    checkout = Path(__file__).resolve().parents[1]
    runs = Path(places.__file__).resolve().is_relative_to(checkout / "otdd_flash")
    assert places.checkout_data() == (checkout / "data" if runs else None)


def test_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert places.user_cache() == tmp_path / "otdd-flash"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert places.user_cache() == tmp_path / "home" / ".cache" / "otdd-flash"


@pytest.mark.parametrize("folder", ["mnist", "MNIST/raw"])
def test_root_named_like_a_dataset(alone, tmp_path, folder):
    images, _ = write_pair(tmp_path / folder)
    dataset = load("mnist", data_root=tmp_path / folder)
    np.testing.assert_array_equal(dataset.points.numpy(), images.reshape(20, -1))
    assert "identity" not in dataset.provenance
    with pytest.raises(DatasetNotFoundError, match="files there are another dataset's"):
        load("fashion-mnist", data_root=tmp_path / folder)


def test_named_folder_comes_before_the_bare_root(alone, tmp_path):
    write_pair(tmp_path, n=30)
    write_pair(tmp_path / "MNIST" / "raw", n=20)
    assert len(load("mnist", data_root=tmp_path)) == 20


def test_bare_files_in_a_place_nobody_named_are_not_trusted(alone, tmp_path):
    write_pair(tmp_path / "debian")
    with pytest.raises(DatasetNotFoundError):
        load("mnist")


@pytest.mark.full
def test_bare_full_files_are_known_by_checksum(alone, full_data_root, tmp_path):
    for path in (full_data_root / "fashion-mnist").iterdir():
        (tmp_path / path.name).symlink_to(path)
    dataset = load("fashion-mnist", data_root=tmp_path, split="test")
    assert len(dataset) == 10_000 and "identity" not in dataset.provenance
    with pytest.raises(DatasetNotFoundError, match="files there are another dataset's"):
        load("mnist", data_root=tmp_path, split="test")


def test_data_root_that_is_no_folder(alone, tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(DatasetNotFoundError, match="absent does not exist; give the folder"):
        load("mnist", data_root=tmp_path / "absent")
    with pytest.raises(DatasetNotFoundError, match="file is a file; give the folder"):
        load("mnist", data_root=tmp_path / "file")


def test_unreadable_folder(alone, tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(13, "Permission denied", str(folder))

    monkeypatch.setattr(places.os, "listdir", refuse)
    with pytest.raises(DataError, match="cannot be read .Permission denied.; mend its permissions"):
        load("mnist", data_root=tmp_path)
