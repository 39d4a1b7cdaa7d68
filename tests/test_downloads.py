"""Downloads into the cache and the archives that torchvision decodes; no network is used."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import os
import pickle
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from idx_files import idx_bytes, small_set, write_pair

from otdd_flash.datasets import load, torchvision_sets
from otdd_flash.datasets.registry import REGISTRY
from otdd_flash.errors import DataError, DatasetNotFoundError


@pytest.fixture
def server(alone, monkeypatch):
    """Serve MNIST's files to torchvision; its own download code and md5 checks run."""
    from torchvision import datasets as torchvision_datasets
    from torchvision.datasets import utils

    images, labels = small_set()
    offered, resources = {}, []
    for part in ("train", "t10k"):
        for stem, values in (("images-idx3", images), ("labels-idx1", labels)):
            name = f"{part}-{stem}-ubyte.gz"
            offered[name] = gzip.compress(idx_bytes(values))
            resources.append((name, hashlib.md5(offered[name]).hexdigest()))

    def retrieve(url, filename, *args):
        sys.stdout.write("chatter of the downloader")
        content = offered[url.rsplit("/", 1)[1]]
        if isinstance(content, BaseException):
            raise content
        with open(filename, "wb") as stream:
            stream.write(content)

    def construct(entry, split, root, download):
        make = getattr(torchvision_datasets, entry.torchvision_class)
        return make(root=str(root), download=download, **entry.keywords(split))

    monkeypatch.setattr(torchvision_datasets.MNIST, "resources", resources)
    monkeypatch.setattr(utils, "_urlretrieve", retrieve)
    monkeypatch.setattr(utils, "_get_redirect_url", lambda url, max_hops: url)
    monkeypatch.setattr(torchvision_sets, "construct", construct)
    return offered


def leftovers(cache):
    return sorted(path.name for path in cache.iterdir()) if cache.exists() else []


def test_download_then_offline(server, alone, capsys):
    images, labels = small_set()
    first = load("mnist")
    assert leftovers(alone) == ["mnist"] and first.provenance["place"] == "user cache"
    np.testing.assert_array_equal(first.points.numpy(), images.reshape(20, -1))
    np.testing.assert_array_equal(first.labels.numpy(), labels)
    # the second run needs no network, nor does the other split
    server.clear()
    assert torch.equal(load("mnist").points, first.points)
    assert len(load("mnist", split="test")) == 20
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"<html>", "corrupted"),
        (urllib.error.URLError("unplugged"), "unplugged"),
        (TimeoutError("timed out"), "timed out"),
        (ConnectionResetError("reset by peer"), "reset by peer"),
    ],
)
def test_failed_download_leaves_nothing(server, alone, content, message):
    good = dict(server)
    server["t10k-labels-idx1-ubyte.gz"] = content
    with pytest.raises(DatasetNotFoundError) as caught:
        load("mnist")
    assert message in str(caught.value) and "mnist-mini" in str(caught.value)
    assert "\n" not in str(caught.value) and leftovers(alone) == []
    server.update(good)
    assert len(load("mnist")) == 20


def test_overlapping_downloads_run_one_after_the_other(alone, monkeypatch):
    ready, running, seen = threading.Barrier(2), [], []

    def construct(entry, split, root, download):
        running.append(entry.name)
        seen.append((len(running), socket.getdefaulttimeout(), sys.stdout is before[0]))
        time.sleep(0.1)
        running.remove(entry.name)

    def fetch(name):
        ready.wait(10)
        torchvision_sets.download(REGISTRY[name], "train")

    monkeypatch.setattr(torchvision_sets, "construct", construct)
    before = sys.stdout, sys.stderr, socket.getdefaulttimeout()
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(fetch, ["mnist", "fashion-mnist"]))
    assert seen == [(1, torchvision_sets.NETWORK_TIMEOUT, False)] * 2
    assert (sys.stdout, sys.stderr, socket.getdefaulttimeout()) == before
    assert leftovers(alone) == ["fashion-mnist", "mnist"]


def test_interrupted_download_leaves_nothing(server, alone):
    server["train-labels-idx1-ubyte.gz"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        load("mnist")
    assert leftovers(alone) == []


KILLED = """
import os
from otdd_flash.datasets import load, places, torchvision_sets
def construct(entry, split, root, download):
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True)
    (raw / "train-images-idx3-ubyte").write_bytes(b"half of the")
    os._exit(9)
torchvision_sets.construct = construct
places.checkout_data = lambda: None
load("mnist")
"""


def test_killed_download_poisons_nothing(server, alone):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", KILLED], env=environment)
    assert done.returncode == 9
    (scratch,) = alone.iterdir()
    assert scratch.name.startswith(".download-") and list(scratch.rglob("*ubyte"))
    assert len(load("mnist")) == 20
    # the scratch of a process that may still run stays, an old one goes
    assert scratch.exists()
    os.utime(scratch, (time.time() - 2 * 86400,) * 2)
    shutil.rmtree(alone / "mnist")
    load("mnist")
    assert leftovers(alone) == ["mnist"]


def test_incomplete_folder_is_replaced(server, alone):
    (alone / "mnist").mkdir(parents=True)
    (alone / "mnist" / "notes").write_text("no data here")
    assert len(load("mnist")) == 20
    assert [path.name for path in (alone / "mnist").iterdir()] == ["MNIST"]


def test_cache_that_cannot_be_written(server, alone):
    alone.parent.mkdir()
    alone.write_text("a file where the folder should be")
    with pytest.raises(DatasetNotFoundError, match="the download failed"):
        load("mnist")


def test_files_that_exist_need_no_network(alone, tmp_path):
    write_pair(tmp_path / "mnist")
    assert len(load("mnist", data_root=tmp_path)) == 20


NAMES = ["kmnist", "emnist-letters", "qmnist", "usps", "cifar10", "cifar100", "svhn", "stl10"]


@pytest.mark.parametrize("name", NAMES)
def test_no_network(alone, name):
    with pytest.raises(DatasetNotFoundError, match=f"{name}: no .*no network in tests.*mnist-mini"):
        load(name)


@pytest.fixture
def cifar(alone, tmp_path, monkeypatch):
    """A tiny CIFAR-10 whose md5 sums torchvision does not check."""
    from torchvision import datasets as torchvision_datasets

    rng = np.random.default_rng(0)
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    data = rng.integers(0, 256, (6, 3072), dtype=np.uint8)
    for name in ("data_batch_1", "test_batch"):
        batch = {"data": data, "labels": [3, 1, 1, 0, 3, 0]}
        (folder / name).write_bytes(pickle.dumps(batch))
    names = [f"kind {k}" for k in range(10)]
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": names}))
    monkeypatch.setattr(torchvision_datasets.CIFAR10, "train_list", [["data_batch_1", None]])
    monkeypatch.setattr(torchvision_datasets.CIFAR10, "test_list", [["test_batch", None]])
    meta = {**torchvision_datasets.CIFAR10.meta, "md5": None}
    monkeypatch.setattr(torchvision_datasets.CIFAR10, "meta", meta)
    return data


@pytest.mark.parametrize("split", ["train", "test"])
def test_cifar(cifar, tmp_path, split):
    dataset = load("cifar10", data_root=tmp_path, split=split)
    np.testing.assert_array_equal(dataset.points.numpy(), cifar)
    assert dataset.sample_shape == (3, 32, 32) and dataset.points.dtype == torch.uint8
    assert dataset.class_names == ("kind 0", "kind 1", "kind 3")
    assert dataset.labels.tolist() == [2, 1, 1, 0, 2, 0]
    assert "cifar-10-batches-py" in dataset.provenance["source"]


def test_damaged_cifar(alone, tmp_path):
    folder = tmp_path / "cifar-10-batches-py"
    folder.mkdir()
    (folder / "data_batch_1").write_bytes(b"cos\nsystem\n(S'echo unsafe'\ntR.")
    with pytest.raises(DataError, match="data_batch_1: cifar10 is incomplete or damaged.*delete"):
        load("cifar10", data_root=tmp_path)


@pytest.mark.parametrize("content", [b"", b"<html>", bz2.compress(b"1 1:0.5")[:-4]])
def test_damaged_usps(alone, tmp_path, content):
    (tmp_path / "usps.bz2").write_bytes(content)
    with pytest.raises(DataError, match="usps.bz2: usps is incomplete or damaged"):
        load("usps", data_root=tmp_path)


def test_usps(alone, tmp_path, monkeypatch):
    from torchvision import datasets as torchvision_datasets

    rows = "\n".join(
        f"{k + 1} " + " ".join(f"{j}:{-1 + k / 5}" for j in range(256)) for k in (0, 5)
    )
    content = bz2.compress(rows.encode())
    (tmp_path / "usps.bz2").write_bytes(content)
    record = ["", "usps.bz2", hashlib.md5(content).hexdigest()]
    monkeypatch.setitem(torchvision_datasets.USPS.split_list, "train", record)
    dataset = load("usps", data_root=tmp_path)
    assert dataset.sample_shape == (16, 16) and dataset.class_names == ("0", "5")
    assert dataset.points[:, 0].tolist() == [0, 127]
