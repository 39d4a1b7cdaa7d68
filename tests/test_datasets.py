"""Loading by name: where files are found, under which names, and what each error says."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from idx_files import small_set, write, write_pair

from otdd_flash.datasets import known_names, load
from otdd_flash.errors import DataError, DatasetNotFoundError, SettingsError
from otdd_flash.types import LabelledDataset

IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"


def assert_holds(dataset: LabelledDataset, images: np.ndarray, labels: np.ndarray) -> None:
    assert dataset.points.dtype == torch.uint8 and dataset.sample_shape == images.shape[1:]
    np.testing.assert_array_equal(dataset.points.numpy(), images.reshape(len(images), -1))
    np.testing.assert_array_equal(dataset.labels.numpy(), labels)


def variants(stem: str) -> list[str]:
    parts = stem.split("-")
    joined = ["".join(map("".join, zip(parts, (*marks, ""), strict=True)))
              for marks in itertools.product("-.", repeat=len(parts) - 1)]  # fmt: skip
    return [name + suffix for name in joined for suffix in ("", ".gz")]


@pytest.mark.parametrize(
    "names", list(zip(variants(IMAGES), variants(LABELS), strict=True)), ids=lambda names: names[0]
)
def test_file_name_variants(alone, tmp_path, names):
    made = write_pair(tmp_path / "mnist", *names)
    dataset = load("mnist", data_root=tmp_path)
    assert_holds(dataset, *made)
    assert dataset.provenance["source"] == str(tmp_path / "mnist" / names[0])
    assert dataset.provenance["place"] == "data root" and dataset.provenance["split"] == "train"


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("mnist", "mnist/MNIST/raw"),
        ("mnist", "MNIST"),
        ("mnist", "."),
        ("fashion-mnist", "fashion-mnist"),
        ("fashion-mnist", "fashion_mnist"),
        ("fashion-mnist", "FashionMNIST/raw"),
        ("fashion-mnist", "."),
        ("kmnist", "KMNIST/raw"),
        ("kmnist", "kmnist"),
    ],
)
def test_folders(alone, tmp_path, name, folder):
    root = tmp_path / "root"
    made = write_pair(root / folder)
    dataset = load(name, data_root=str(root))
    assert_holds(dataset, *made)
    # the same file names serve three datasets: in a bare root the doubt is recorded
    assert ("identity" in dataset.provenance) == (folder == ".")


def test_test_split(alone, tmp_path):
    made = write_pair(tmp_path / "mnist", "t10k-images-idx3-ubyte", "t10k-labels.idx1-ubyte.gz")
    dataset = load("mnist", data_root=tmp_path, split="test")
    assert_holds(dataset, *made)
    assert dataset.provenance["split"] == "test"


@pytest.mark.parametrize("part", ["letters", "balanced", "byclass", "bymerge", "digits", "mnist"])
@pytest.mark.parametrize("folder", ["EMNIST/raw", "emnist", "."])
def test_emnist_names(alone, tmp_path, part, folder):
    classes = {"letters": 26, "byclass": 62, "digits": 10, "mnist": 10}.get(part, 47)
    stems = [f"emnist-{part}-train-{kind}-ubyte.gz" for kind in ("images-idx3", "labels-idx1")]
    first = 1 if part == "letters" else 0
    images, labels = write_pair(tmp_path / folder, *stems, n=130, classes=classes, first=first)
    dataset = load(f"emnist-{part}", data_root=tmp_path)
    # the files hold the images column by column
    assert_holds(dataset, images.transpose(0, 2, 1), labels - first)
    assert dataset.classes == classes and "identity" not in dataset.provenance
    names = dataset.class_names
    if part == "letters":
        assert names == tuple("abcdefghijklmnopqrstuvwxyz")
    elif classes > 10:
        assert names[9:11] == ("9", "A") and names[35:39] == (
            ("Z", "a", "b", "c") if part == "byclass" else ("Z", "a", "b", "d")
        )
        assert names[-1] == ("z" if part == "byclass" else "t")
    else:
        assert names == tuple("0123456789")


def test_qmnist_labels_start_with_the_class(alone, tmp_path):
    images, labels = small_set()
    folder = tmp_path / "QMNIST" / "raw"
    write(folder / "qmnist-test-images-idx3-ubyte", images)
    rows = np.column_stack([labels.astype(np.int32), np.full((20, 7), 1000, np.int32)])
    write(folder / "qmnist-test-labels-idx2-int", rows)
    assert_holds(load("qmnist", data_root=tmp_path, split="test"), images, labels)


@pytest.mark.full
@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_full_sets(alone, full_data_root, name):
    train, test = (load(name, data_root=full_data_root, split=s) for s in ("train", "test"))
    assert (len(train), len(test), train.dimension, train.classes) == (60_000, 10_000, 784, 10)
    assert train.sample_shape == (28, 28) and train.points.dtype == torch.uint8


def test_unknown_names(alone):
    for wrong, right in [("mnits", "mnist"), ("fashion", "fashion-mnist"), ("cifr10", "cifar10")]:
        with pytest.raises(DatasetNotFoundError) as caught:
            load(wrong)
        assert f"did you mean {right}?" in str(caught.value)
        assert all(name in str(caught.value) for name in known_names())
    with pytest.raises(
        DatasetNotFoundError, match="unknown dataset 'zzzzzzzz'; known names: mnist"
    ):
        load("zzzzzzzz")
    for wrong in (None, 3, object()):
        with pytest.raises(DatasetNotFoundError, match="expected a dataset name or a Labelled"):
            load(wrong)


def test_spellings_of_known_names(alone):
    for spelling in ("MNIST-mini", "mnist_mini", "Mnist Mini"):
        assert load(spelling, max_samples=10).name == "mnist-mini"


def test_wrong_split(alone):
    with pytest.raises(SettingsError, match="mnist has no split 'validation'; expected train or t"):
        load("mnist", split="validation")
    for name in ("digits", "mnist-mini", "fashion-mnist-mini"):
        with pytest.raises(SettingsError, match=f"{name} has no split 'test'; expected train"):
            load(name, split="test")


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (b"", None, "mnist/train-images-idx3-ubyte.gz: the file is empty"),
        (b"<html>", None, "train-images-idx3-ubyte.gz: not an IDX file, a web page"),
        (None, b"", "train-labels-idx1-ubyte.gz: the file is empty"),
        (small_set(21)[0], None, "21 images, but .*labels-idx1-ubyte.gz holds 20 labels; .* again"),
        (small_set()[1], None, r"holds uint8 values of shape \(20,\), expected uint8 images"),
        (small_set()[0].astype(np.int32), None, "holds int32 values"),
        (small_set(0)[0], None, "holds no images"),
        (None, small_set()[0], r"labels-.*holds uint8 values of shape \(20, 28, 28\), expected la"),
        (None, small_set(first=1)[1], "label 10 is outside 0..9 of mnist"),
        (None, small_set()[1].astype(np.float32), "holds float32 values"),
    ],
)
def test_damaged_sets(alone, tmp_path, images, labels, message):
    write_pair(tmp_path / "mnist", IMAGES + ".gz", LABELS + ".gz")
    for name, content in ((IMAGES, images), (LABELS, labels)):
        if isinstance(content, bytes):
            (tmp_path / "mnist" / f"{name}.gz").write_bytes(content)
        elif content is not None:
            write(tmp_path / "mnist" / f"{name}.gz", content)
    with pytest.raises(DataError, match=message):
        load("mnist", data_root=tmp_path)


@pytest.mark.parametrize(("there", "lacking"), [(IMAGES, LABELS), (LABELS, IMAGES)])
def test_one_file_without_the_other(alone, tmp_path, there, lacking):
    write_pair(tmp_path / "mnist")
    (tmp_path / "mnist" / lacking).unlink()
    with pytest.raises(DataError, match=f"{there}: found without {lacking}.* beside it"):
        load("mnist", data_root=tmp_path)


def test_digits(alone):
    digits = load("digits")
    assert digits.points.shape == (1797, 64) and digits.points.dtype == torch.uint8
    assert digits.sample_shape == (8, 8) and int(digits.points.max()) == 16
    assert digits.class_names == tuple("0123456789")
    assert digits.provenance["source"] == "scikit-learn"


def test_import_is_light():
    code = (
        "import sys, otdd_flash.datasets\n"
        "heavy = {'torchvision', 'sklearn', 'datasets', 'pyarrow', 'pandas'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    subprocess.run([sys.executable, "-c", code], check=True, env=environment)
