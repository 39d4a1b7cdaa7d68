"""Files of arrays: npz, npy, safetensors and torch's, what is read and what is refused."""

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file
from small_sets import KINDS, announced, holds, refused, small

from otdd_flash import (
    DataError,
    DatasetNotFoundError,
    LabelError,
    SettingsError,
    load,
    load_together,
)
from otdd_flash.datasets import loading

X, Y = small()


def write(path, **arrays):
    """Write named arrays as the suffix says."""
    if path.suffix == ".npz":
        np.savez(path, **arrays)
    elif path.suffix == ".safetensors":
        save_file(arrays, path)
    else:
        torch.save({key: torch.as_tensor(value) for key, value in arrays.items()}, path)
    return path


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_weights_beside_points_are_taken_or_told(tmp_path, suffix):
    weights = np.arange(len(X)) / np.arange(len(X)).sum()
    dataset = load(write(tmp_path / f"a{suffix}", x=X, y=Y, weights=weights))
    assert torch.allclose(dataset.weights, torch.from_numpy(weights), rtol=1e-15)
    assert announced(dataset) == "weights are 'weights'"
    even = load(write(tmp_path / f"b{suffix}", x=X, y=Y, weights=np.full(len(X), 1 / len(X))))
    assert (even.weights == 1 / len(X)).all() and not announced(even)
    for other, why in ((weights * 2, "weights sum to 2"), (X, "weights have shape")):
        told = load(write(tmp_path / f"c{suffix}", x=X, y=Y, weights=other))
        assert (told.weights == 1 / len(X)).all()
        assert announced(told).startswith(f"'weights' left out: {why}")
    alone = load(write(tmp_path / f"d{suffix}", x=X, weights=weights), labels="none")
    assert alone.classes == 1 and torch.equal(alone.weights, dataset.weights)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt", ".pth"])
@pytest.mark.parametrize("names", [("points", "labels"), ("x", "y"), ("data", "target")])
def test_points_and_labels_are_found_by_their_usual_names(tmp_path, suffix, names):
    points, labels = names
    path = write(tmp_path / f"a{suffix}", **{points: X, labels: Y, "other": X[:3]})
    dataset = load(path)
    holds(dataset, X, Y, ("0", "1", "2"))
    assert dataset.points.dtype == torch.float32 and dataset.name == f"a{suffix}"
    assert dataset.provenance["features"] == points and not announced(dataset)
    holds(load(path.rename(tmp_path / f"B{suffix.upper()}")), X, Y)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors", ".pt"])
def test_other_names_are_told_by_their_shapes_or_asked_for(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", foo=X, bar=Y)
    holds(load(path), X, Y)
    assert announced(load(path)) == "points are 'foo', labels 'bar', told by their shapes"
    path = write(tmp_path / f"b{suffix}", foo=X, also=2 * X, bar=Y)
    refused(DataError, "cannot tell which array is which, it has ", path)
    refused(DataError, "name the points with features and the labels with label", path)
    holds(load(path, features="also", label="bar"), 2 * X, Y)
    refused(DataError, "no array 'foe', it has", path, features="foe", label="bar")
    refused(LabelError, "there is no array 'baz', it has", path, features="foo", label="baz")
    refused(DataError, "features names 2 arrays, expected one", path, features=["foo", "also"])


def test_splits_of_one_file_are_told_by_their_names(tmp_path):
    path = write(tmp_path / "a.npz", x_train=X, y_train=Y, test_x=X[:5], test_y=Y[:5])
    holds(load(path), X, Y)
    holds(load(f"{path}@test"), X[:5], Y[:5])
    holds(load(path, split="test"), X[:5], Y[:5])
    refused(DataError, "no arrays of the split 'val', it has 'x_train' (12, 4)", f"{path}@val")


def test_names_of_classes_are_kept(tmp_path):
    holds(load(write(tmp_path / "a.npz", x=X, y=KINDS[Y])), X, (Y + 2) % 3, ("ant", "cat", "emu"))
    path = write(tmp_path / "b.npz", x=X, y=Y, class_names=KINDS)
    holds(load(path), X, Y, KINDS)


def test_images_keep_their_bytes_and_shape(tmp_path):
    images = np.arange(12 * 5 * 6, dtype=np.uint8).reshape(12, 5, 6)
    dataset = load(write(tmp_path / "a.safetensors", images=images, labels=Y))
    holds(dataset, images, Y)
    assert dataset.points.dtype == torch.uint8 and dataset.sample_shape == (5, 6)


def test_npy_files_have_their_labels_beside_them_and_are_mapped(tmp_path, monkeypatch):
    np.save(tmp_path / "x.npy", X)
    np.save(tmp_path / "y.npy", Y)
    dataset = load(tmp_path / "x.npy", label="y.npy")
    holds(dataset, X, Y)
    # private pages: who writes into the points does not write into the file
    dataset.points[0] = 7
    assert np.array_equal(np.load(tmp_path / "x.npy"), X)
    monkeypatch.chdir(tmp_path)
    holds(load("x.npy", label=str(tmp_path / "y.npy")), X, Y)
    refused(LabelError, "x.npy: has no labels; name their column, array or .npy file", "x.npy")
    refused(DatasetNotFoundError, "its labels z.npy is not there", "x.npy", label="z.npy")
    refused(DataError, "features does not apply", "x.npy", label="y.npy", features="x")
    np.save("short.npy", Y[:5])
    refused(LabelError, "labels have shape (5,), expected (12,)", "x.npy", label="short.npy")


def test_torch_files_of_a_pair_or_one_tensor(tmp_path):
    torch.save((torch.tensor(X), torch.tensor(Y)), tmp_path / "pair.pt")
    holds(load(tmp_path / "pair.pt"), X, Y)
    torch.save(torch.tensor(X), tmp_path / "one.pt")
    assert load(tmp_path / "one.pt", labels="none").class_names == ("all",)
    torch.save({"x": torch.tensor(X), "y": torch.tensor(Y)}, tmp_path / "old.pt",
               _use_new_zipfile_serialization=False)  # fmt: skip
    holds(load(tmp_path / "old.pt"), X, Y)


class Foreign:
    """An object that a pickle would have to import."""


def test_objects_are_never_unpickled(tmp_path):
    torch.save({"x": Foreign()}, tmp_path / "a.pt")
    refused(DataError, "a.pt: holds other objects than tensors, which are not", tmp_path / "a.pt")
    np.savez(tmp_path / "a.npz", x=X, y=np.array([None] * 12))
    refused(DataError, "a.npz: holds Python objects, which are not read", tmp_path / "a.npz")
    np.save(tmp_path / "a.npy", np.array([{}] * 3))
    refused(DataError, "a.npy: holds Python objects", tmp_path / "a.npy", labels="none")
    torch.save("words", tmp_path / "b.pt")
    refused(DataError, "b.pt: holds a str, expected a tensor, a pair", tmp_path / "b.pt")


@pytest.mark.parametrize("suffix", [".npz", ".npy", ".safetensors", ".pt"])
def test_damaged_files_name_themselves(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    options = {"labels": "none"}
    path.write_bytes(b"")
    refused(DataError, f"a{suffix}: the file is empty; replace it", path, **options)
    path.write_bytes(b" <!DOCTYPE html><html>404")
    refused(DataError, f"a{suffix}: holds a web page, not data", path, **options)
    path.write_bytes(b"nonsense that is no archive at all")
    refused(DataError, f"a{suffix}: not a whole ", path, **options)
    if suffix == ".npy":
        np.save(path, np.ones((50, 4)))
    else:
        write(path, x=np.ones((50, 4)), y=np.arange(50))
    path.write_bytes(path.read_bytes()[:300])
    refused(DataError, f"a{suffix}: not a whole ", path, **options)
    path.unlink()
    refused(DatasetNotFoundError, f"a{suffix}: no such file or folder", path, **options)


def test_counts_and_values_are_checked(tmp_path):
    path = write(tmp_path / "a.npz", x=X, y=Y[:5])
    refused(LabelError, "labels have shape (5,), expected (12,)", path)
    bad = X.copy()
    bad[3, 1] = np.nan
    refused(DataError, "row 3 holds NaN or infinity (1 such rows)", write(path, x=bad, y=Y))
    refused(
        LabelError,
        "labels have shape (12, 2), expected (12,): one a sample; of one-hot",
        write(path, x=X, y=X[:, :2]),
    )
    refused(DataError, "no samples arrived (shape (0, 4))", write(path, x=X[:0], y=Y[:0]))
    refused(DataError, "no samples arrived (shape ())", write(path, x=np.float64(3), y=Y))
    torch.save(torch.tensor(3.0), tmp_path / "c.pt")
    refused(DataError, "no samples arrived (shape ())", tmp_path / "c.pt", labels="none")
    (tmp_path / "b.json").write_text("{}")
    refused(DataError, "b.json: no known kind of file, expected one of .csv", tmp_path / "b.json")


def test_a_lone_file_has_no_splits_to_choose(tmp_path):
    np.save(tmp_path / "x.npy", X)
    refused(
        SettingsError,
        "one array has no split 'test'",
        tmp_path / "x.npy",
        labels="none",
        split="test",
    )


def test_arrays_that_are_passed_over_are_announced(tmp_path):
    path = write(tmp_path / "a.npz", x=X, points=X + 1, y=Y, labels=2 - Y)
    found = load(path)
    holds(found, X + 1, 2 - Y)
    assert (
        announced(found) == "points are 'points'; 'x' left out; labels are 'labels'; 'y' left out"
    )
    assert announced(load(path, features="x", label="y")).startswith("points are 'x'; 'points'")
    assert announced(load(write(path, x=X, y=Y, x_test=X, y_test=Y))) == ""
    refused(LabelError, "1 of 3 labels are missing", write(path, x=X[:3], y=["a", "-1", "b"]))


@pytest.mark.parametrize(
    "header", ["[]", "{", '{"class_names": 3}', '{"provenance": 3}', '{"class_names": "ab"}']
)
def test_headers_that_are_not_ours_are_damage(tmp_path, header):
    path = tmp_path / "a.safetensors"
    save_file({"x": X, "y": Y}, path, {"otdd_flash": header})
    refused(DataError, "a.safetensors: not a whole safetensors file", path)


def test_pickles_that_are_none_are_damage(tmp_path):
    path = tmp_path / "a.pt"
    path.write_bytes(b"\x80junk")
    with pytest.warns(UserWarning, match="pickle protocol"):
        refused(DataError, "a.pt: not a whole torch file", path)


# eight read at once on Pythons whose parsers bear it, one after another on others
@pytest.mark.parametrize("threads", [1, 8])
def test_files_are_read_side_by_side(tmp_path, monkeypatch, threads):
    monkeypatch.setattr(loading, "THREADS", threads)
    paths = [
        write(tmp_path / f"{k}{suffix}", x=X + k, y=Y)
        for k, suffix in enumerate([".safetensors", ".pt"] * 3)
    ]
    together = load_together([*paths, paths[0]])
    for k, dataset in enumerate(together[:-1]):
        holds(dataset, X + k, Y)
    assert together[-1] is together[0]
    with pytest.raises(DatasetNotFoundError, match="none.pt"):
        load_together([paths[0], tmp_path / "none.pt", paths[1]])


def test_one_dataset_is_no_list_of_them(tmp_path):
    path = write(tmp_path / "a.npz", x=X, y=Y)
    for spec in (path, str(path)):
        with pytest.raises(DataError, match="arrived, expected a list of datasets; load takes one"):
            load_together(spec)
