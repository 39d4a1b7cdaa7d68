"""Python objects: pairs, tables, torch, Hugging Face, streams; and labels of every kind."""

import math
import warnings

import datasets as hf
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from PIL import Image
from small_sets import KINDS, announced, holds, noise, refused, small, together
from torch.utils.data import ConcatDataset, DataLoader, IterableDataset, Subset, TensorDataset
from torchvision.datasets import ImageFolder

import otdd_flash as otdd
from otdd_flash import (
    DataError,
    DatasetNotFoundError,
    LabelError,
    LabelledDataset,
    SettingsError,
    load,
)

X, Y = small()


@pytest.mark.parametrize("kind", [np.asarray, torch.as_tensor, np.ndarray.tolist])
def test_pairs(kind):
    holds(load((kind(X), kind(Y))), X, Y)
    holds(load((kind(X), KINDS[Y].tolist())), X, (Y + 2) % 3, ("ant", "cat", "emu"))
    refused(LabelError, "labels have shape (5,), expected (12,)", (kind(X), kind(Y[:5])))
    refused(LabelError, "has no labels; name their column", (kind(X), None))
    assert load((kind(X), None), labels="none").class_names == ("all",)


@pytest.mark.parametrize(
    ("labels", "names"),
    [
        (Y.astype(np.uint8), "012"),
        (10 * Y - 40, ("-40", "-30", "-20")),
        (Y.astype(np.float64), "012"),
        (Y[:, None], "012"),
        (KINDS[Y].astype(object), ("ant", "cat", "emu")),
        ([f"b{y}".encode() for y in Y], ("b0", "b1", "b2")),
    ],
)
def test_labels_of_every_kind_with_gaps(labels, names):
    dataset = load((X, labels))
    assert dataset.class_names == tuple(names) and dataset.classes == 3
    holds(load((X, Y > 0)), X, (Y > 0).astype(int), ("False", "True"))


@pytest.mark.parametrize("missing", [-1, None, math.nan, pd.NA])
def test_unlabelled_rows_are_refused_with_their_number_or_dropped(missing):
    labels = [missing if k in (2, 7) else int(y) for k, y in enumerate(Y)]
    refused(LabelError, "ndarray: 2 of 12 labels are missing (-1, None, NaN or empty)", (X, labels))
    refused(LabelError, "drop_unlabelled=True (--drop-unlabelled), or cluster", (X, labels))
    kept = load((X, labels), drop_unlabelled=True)
    rows = [k for k in range(12) if k not in (2, 7)]
    holds(kept, X[rows], Y[rows], "012")
    assert announced(kept) == "dropped 2 of 12 samples without a label"
    assert load((X, labels), labels="kmeans:2").classes == 2
    refused(LabelError, "all 12 labels are missing", (X, [missing] * 12), drop_unlabelled=True)
    frame = pd.DataFrame(X).assign(label=pd.array(labels, dtype=object))
    kept = load(frame, drop_unlabelled=True, scale="none")
    holds(kept, X[rows], Y[rows], "012")


def test_quantities_are_binned_at_their_quantiles():
    values = np.arange(12) / 7
    refused(LabelError, "labels are a quantity between 0 and 1.57143, not classes", (X, values))
    refused(LabelError, "labels='quantiles:10' (--labels quantiles:10)", (X, values))
    binned = load((X, values), labels="quantiles:3")
    assert binned.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    edges = np.quantile(values, [0, 1 / 3, 2 / 3, 1])
    expected = [f"{a:.6g} to {b:.6g}" for a, b in zip(edges[:-1], edges[1:], strict=True)]
    assert list(binned.class_names) == expected
    assert announced(binned) == "labels binned at their quantiles into 3 classes"
    # values that repeat over several quantiles are a class of their own
    for ones in (2, 6, 10):
        zeros = 12 - ones
        few = load((X, np.repeat([0.0, 1.0], [zeros, ones])), labels="quantiles:4")
        assert few.labels.tolist() == [0] * zeros + [1] * ones
        assert few.class_names[1] == "1" and few.class_names[0].startswith("0")
        assert "into 2 classes (4 were asked for, but the values repeat)" in announced(few)
    # -1 is a number like any other here
    assert len(load((X, np.arange(12) - 1), labels="quantiles:2")) == 12
    refused(LabelError, "labels are classes, not numbers", (X, KINDS[Y]), labels="quantiles:3")
    refused(LabelError, "all labels are 5, there is nothing", (X, [5.0] * 12), labels="quantiles:3")
    refused(LabelError, "labels are a quantity between 25 and 346", "sklearn:diabetes")
    assert load("sklearn:diabetes", labels="quantiles:10").classes == 10


def test_clusters_are_found_where_there_are_some():
    x = np.repeat(np.eye(3) * 50, 4, axis=0) + small(12, 3)[0]
    found = load(x, labels="kmeans:3", seed=1)
    groups = found.labels.reshape(3, 4)
    assert (groups == groups[:, :1]).all() and len(set(groups[:, 0].tolist())) == 3
    assert found.class_names == ("cluster 0", "cluster 1", "cluster 2")
    assert announced(found) == "labels are 3 clusters found by k-means, seed 1"
    assert torch.equal(found.labels, load(x, labels="kmeans:3", seed=1).labels)
    refused(LabelError, "12 samples cannot form 13 clusters; ask for fewer", x, labels="kmeans:13")
    twice = np.repeat(np.eye(2), 6, axis=0)
    message = "k-means found 2 clusters of 3, since samples repeat; ask for fewer"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        refused(LabelError, message, twice, labels="kmeans:3")
    for wrong in ("kmeans", "kmeans:0", "quantiles:x", "given:3", 3):
        refused(SettingsError, "expected given, none, kmeans:K or quantiles:K", x, labels=wrong)


def test_large_sets_are_clustered_in_batches(monkeypatch):
    from otdd_flash.datasets import labelling

    monkeypatch.setattr(labelling, "CLUSTER_ENTRIES", 10)
    monkeypatch.setattr(labelling, "CLUSTER_BATCH", 16)
    x = np.repeat(np.eye(3) * 50, 20, axis=0) + small(60, 3)[0]
    groups = load(x, labels="kmeans:3").labels.reshape(3, 20)
    assert (groups == groups[:, :1]).all() and len(set(groups[:, 0].tolist())) == 3


def frames():
    polars = pytest.importorskip("polars")
    frame = pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "kind": KINDS[Y]})
    table = pa.table({"a": X[:, 0], "b": X[:, 1], "kind": KINDS[Y]})
    return [
        frame, frame.astype({"kind": "category"}), frame.set_index(np.arange(12)[::-1]),
        polars.from_pandas(frame), polars.from_pandas(frame).lazy(), table,
        table.to_batches()[0], hf.Dataset.from_pandas(frame),
        hf.Dataset(table).with_format("torch"),
    ]  # fmt: skip


def test_tables_of_every_library():
    for frame in frames():
        dataset = load(frame, label="kind", scale="none")
        holds(dataset, X[:, :2], (Y + 2) % 3, ("ant", "cat", "emu"))
    both = pd.DataFrame(X)
    holds(load((both, pd.Series(Y)), scale="none"), X, Y)
    refused(LabelError, "DataFrame: no column looks like labels, it has '0'", both)
    refused(DataError, "DataFrame: cannot become an Arrow table", pd.DataFrame({"a": [1, "x", {}]}))


def test_hugging_face_names_of_classes_selections_and_splits(tmp_path):
    data = hf.Dataset.from_dict({"vector": X.tolist(), "label": Y.tolist()})
    data = data.cast_column("label", hf.ClassLabel(names=list(KINDS)))
    holds(load(data), X, Y, KINDS)
    # rows in the order of a shuffle
    order = [3, 0, 7, 7, 1]
    holds(load(data.select(order)), X[order], Y[order], KINDS[:2])
    whole = hf.DatasetDict({"train": data, "test": data.select(range(3))})
    holds(load(whole, split="test"), X[:3], Y[:3], KINDS)
    whole.save_to_disk(tmp_path / "saved")
    holds(load(tmp_path / "saved"), X, Y, KINDS)
    holds(load(f"{tmp_path}/saved@test"), X[:3], Y[:3], KINDS)
    holds(load(tmp_path / "saved" / "test"), X[:3], Y[:3], KINDS)
    refused(SettingsError, "has no split 'val'; it has train, test", f"{tmp_path}/saved@val")
    (tmp_path / "saved" / "train" / "dataset_info.json").write_text("{")
    refused(DataError, "what datasets.save_to_disk wrote there is damaged", tmp_path / "saved")


def test_parquet_in_the_layout_of_the_hub(tmp_path, monkeypatch):
    # as the variable HF_HUB_OFFLINE does, which is read once
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    data = hf.Dataset.from_dict({"vector": X.tolist(), "label": Y.tolist()})
    for k, rows in enumerate((range(5), range(5, 12))):
        data.select(rows).to_parquet(tmp_path / "set" / "data" / f"train-0000{k}-of-00002.parquet")
    data.select(range(3)).to_parquet(tmp_path / "set" / "data" / "test-00000-of-00001.parquet")
    holds(load(tmp_path / "set"), X, Y)
    holds(load(f"{tmp_path}/set@test"), X[:3], Y[:3])
    refused(SettingsError, "has no split 'val'; it has test, train", f"{tmp_path}/set@val")
    # without splits in their names, files are one set; Arrow files as `datasets` caches them
    for k, rows in enumerate((range(5), range(5, 12))):
        write_stream(tmp_path / "arrow" / f"{k}.arrow", data.select(rows).data.table)
    holds(load(tmp_path / "arrow"), X, Y)
    refused(SettingsError, "its files name no splits, there is no 'test'", f"{tmp_path}/arrow@test")
    write_stream(tmp_path / "arrow" / "2.arrow", pa.table({"other": [1]}))
    refused(DataError, "its Arrow files are no one table", tmp_path / "arrow")
    data.to_parquet(tmp_path / "arrow" / "3.parquet")
    refused(DataError, "holds Parquet and Arrow files of one split", tmp_path / "arrow")
    holds(load(f"hf:{tmp_path / 'set'}@test"), X[:3], Y[:3])
    refused(SettingsError, 'Unknown split "val"', f"hf:{tmp_path / 'set'}@val")
    refused(SettingsError, "BuilderConfig 'other' not found", f"hf:{tmp_path / 'set'}:other")
    other = data.rename_column("vector", "points")
    other.to_parquet(tmp_path / "set" / "data" / "train-00002-of-00003.parquet")
    refused(DataError, "are not those of", tmp_path / "set")
    refused(DatasetNotFoundError, "because column names don't match", f"hf:{tmp_path / 'set'}")
    refused(DatasetNotFoundError, "hf:nobody/nothing: cannot be loaded", "hf:nobody/nothing")
    refused(DatasetNotFoundError, "'hf:' names no dataset; write hf:owner/name", "hf:")


def write_stream(path, table):
    path.parent.mkdir(exist_ok=True)
    with pa.ipc.new_stream(path, table.schema) as file:
        file.write_table(table)


def test_torch_subsets_yield_the_labels_of_the_subset():
    whole = TensorDataset(torch.tensor(X), torch.tensor(Y))
    holds(load(whole), X, Y)
    nested = Subset(Subset(whole, list(range(4, 12))), [0, 5, 6, 1])
    rows = [4, 9, 10, 5]
    holds(load(nested), X[rows], Y[rows])
    holds(load(DataLoader(nested, batch_size=3)), X[rows], Y[rows])
    holds(load(ConcatDataset([nested, whole])), np.concatenate([X[rows], X]), [*Y[rows], *Y])
    twice = DataLoader(nested, sampler=[0, 1, 2, 3, 3, 2, 1, 0], batch_size=3)
    holds(load(twice), X[rows + rows[::-1]], Y[rows + rows[::-1]])
    drawn, expected = load(whole, max_samples=6, seed=3), load((X, Y), max_samples=6, seed=3)
    holds(drawn, expected.points, expected.labels.tolist())
    refused(DataError, "Subset: is empty", Subset(whole, []))


class Counted(torch.utils.data.Dataset):
    """Counts how often an item is decoded; its labels lie beside the samples."""

    def __init__(self):
        self.targets, self.classes, self.seen = Y.tolist(), list(KINDS), []

    def __len__(self):
        return 12

    def __getitem__(self, k):
        self.seen.append(k)
        return X[k], int(Y[k])


def test_a_draw_decodes_only_what_it_keeps():
    data = Counted()
    dataset = load(Subset(data, range(12)), max_samples=6)
    assert len(data.seen) == 6 and dataset.classes == 3
    holds(dataset, X[data.seen], Y[data.seen], KINDS)


def test_image_folders_of_torchvision(tmp_path):
    for k, image in enumerate(noise(4, 6, 7, 3)):
        (tmp_path / "ab"[k % 2]).mkdir(exist_ok=True)
        Image.fromarray(image).save(tmp_path / "ab"[k % 2] / f"{k}.png")
    one, two = together(ImageFolder(tmp_path), tmp_path)
    assert torch.equal(one.points, two.points) and one.class_names == two.class_names == ("a", "b")
    assert otdd.distance(one, two).distance == 0


class Stream(IterableDataset):
    """Never ends."""

    def __iter__(self):
        k = 0
        while True:
            yield {"x": X[k % 12], "label": int(Y[k % 12])}
            k += 1


def test_streams_need_a_cap():
    for stream in (iter(Stream()), Stream(), DataLoader(Stream(), batch_size=5)):
        refused(SettingsError, "no known end; say with max_samples how many", stream)
    for stream in (iter(Stream()), Stream(), DataLoader(Stream(), batch_size=5)):
        dataset = load(stream, max_samples=7)
        holds(dataset, X[:7], Y[:7])
        assert announced(dataset) == "the first 7 samples of a stream"
    streamed = hf.Dataset.from_dict({"x": X.tolist(), "label": Y.tolist()})
    streamed = streamed.cast_column("label", hf.ClassLabel(names=list(KINDS))).to_iterable_dataset()
    holds(load(streamed, max_samples=7), X[:7].astype(np.float64), Y[:7], KINDS)


@pytest.mark.parametrize(
    ("items", "message"),
    [
        ([(X[0], 0), (X[1, :2], 1)], "expected one shape"),
        ([(X[0], 0, 1)], "its items are tuples of 3, expected pairs (sample, label)"),
        ([{"a": X[0], "b": X[0], "label": 0}], "name the one of the samples with features"),
        ([("text", 0), (X[0], 1)], "samples are of several kinds, expected one"),
        ([], "no samples arrived"),
    ],
)
def test_items_that_cannot_be_read(items, message):
    refused(DataError, message, iter(items), max_samples=9)


def test_dictionaries_and_loaded_datasets():
    holds(load({"x": X, "y": Y}), X, Y)
    dataset = LabelledDataset(X, Y, name="mine", weights=np.arange(12) / 66)
    assert load(dataset) is dataset
    drawn = load(dataset, max_samples=6)
    assert len(drawn) == 6 and drawn.name == "mine" and (drawn.weights > 0).all()
    unit = load(dataset, cosine=True)
    assert torch.equal(unit.weights, dataset.weights)
    assert torch.allclose(unit.points.norm(dim=1), torch.ones(12), rtol=2**-22, atol=0)
    scaled = load(dataset, scale="standard")
    truth = (X.astype(np.float64) - X.astype(np.float64).mean(0)) / X.astype(np.float64).std(0)
    assert np.abs(scaled.points.double().numpy() - truth).max() < 2**-22
    assert torch.equal(scaled.weights, dataset.weights)


def test_cosine_refuses_samples_without_a_direction():
    x = X.copy()
    x[4] = 0
    refused(DataError, "1 of 12 samples are zero and have no direction", (x, Y), cosine=True)
    a, b = together((X, Y), (x[:4], Y[:4]), cosine=True)
    # ||x - y||^2 = 2 (1 - cos); float32 points, a few roundings of 2^-24
    cosine = torch.nn.functional.cosine_similarity(
        torch.from_numpy(X).double()[:, None], torch.from_numpy(x[:4]).double()[None], dim=2
    )
    squared = torch.cdist(a.points.double(), b.points.double()).square()
    assert torch.allclose(squared, 2 * (1 - cosine), rtol=0, atol=2**-20)


def test_what_is_no_dataset_and_spaces_that_differ():
    for wrong in (3, None, object(), b"mnist"):
        refused(DatasetNotFoundError, "expected a dataset name or a LabelledDataset, a path", wrong)
    with pytest.raises(DataError) as caught:
        together((X, Y), (X[:, :3], Y))
    assert "ndarray has 4 features a sample (4,), ndarray has 3 (3,); encode both" in str(
        caught.value
    )
    refused(
        SettingsError, "color is 'red', expected one of auto, grey, rgb, rgba", (X, Y), color="red"
    )
    refused(SettingsError, "cosine is 1, expected True or False", (X, Y), cosine=1)
    with pytest.raises(SettingsError, match="label names 3 columns for 2 datasets; give one for"):
        together(pd.DataFrame(X), pd.DataFrame(X), label=["a", "b", "c"])


def test_a_download_of_sklearn_that_fails_is_one_error(monkeypatch, recwarn):
    def fetch():
        warnings.warn("Retry downloading from url: https://data", UserWarning, stacklevel=1)
        raise OSError("no network")

    monkeypatch.setattr("sklearn.datasets.fetch_covtype", fetch)
    refused(DatasetNotFoundError, "the download failed (no network)", "sklearn:covtype")
    assert not recwarn.list


def test_sklearn_sets_and_the_first_names_that_match():
    wine = load("sklearn:wine", scale="none")
    assert (len(wine), wine.dimension, wine.classes) == (178, 13, 3)
    assert wine.class_names == ("class_0", "class_1", "class_2")
    digits = load("sklearn:digits")
    assert digits.points.dtype == torch.uint8 and digits.sample_shape == (8, 8)
    refused(DatasetNotFoundError, "scikit-learn has no dataset 'vine'; it has", "sklearn:vine")
    refused(SettingsError, "sklearn:wine has no split 'test'", "sklearn:wine@test")
    a, b = together("sklearn:wine", "sklearn:breast_cancer", encoder="pca:5", max_samples=60)
    assert a.dimension == b.dimension == 5
    result = otdd.distance(a, b)
    assert result.converged and result.distance > 0


def test_names_of_columns_where_there_are_none_are_announced():
    for given in ((X, Y), TensorDataset(torch.as_tensor(X), torch.as_tensor(Y)), "mnist-mini"):
        found = load(given, label="kind", features=("a", "b"), max_samples=9)
        assert "label and features left unused: it has no columns to choose" in announced(found)
        assert "unused" not in announced(load(given, max_samples=9))
    items = [{"image": x, "kind": y, "note": "n"} for x, y in zip(X, Y, strict=True)]
    used = load(iter(items), label="kind", features="image", max_samples=12)
    assert announced(used) == "the first 12 samples of a stream"
    assert "unused" not in announced(load("sklearn:digits", label="target", max_samples=9))
