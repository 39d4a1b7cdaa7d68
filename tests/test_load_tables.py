"""Tables: csv, tsv, Parquet, Arrow; which column is the label, and how rows become points."""

import gzip
import json
import math
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from small_sets import KINDS, announced, holds, refused, small, together

import otdd_flash as otdd
from otdd_flash import DataError, DatasetNotFoundError, LabelError, SettingsError, load

X, Y = small()
NAMES = ("a", "b", "c", "d")


def table(x=X, **more) -> pa.Table:
    """Return a table of the points and further columns."""
    return pa.table({name: x[:, k] for k, name in enumerate(NAMES)} | more)


def csv(path, rows, mark=","):
    text = "\n".join(mark.join(map(str, row)) for row in rows) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write(path, content: pa.Table):
    """Write a table as the suffix says."""
    name = path.name.removesuffix(".gz")
    if name.endswith(".parquet"):
        pq.write_table(content, path, row_group_size=5)
    elif name.endswith(".arrow"):
        with pa.ipc.new_file(path, content.schema) as file:
            file.write_table(content, max_chunksize=5)
    elif name.endswith(".ipc"):
        with pa.ipc.new_stream(path, content.schema) as file:
            file.write_table(content, max_chunksize=5)
    elif name.endswith(".jsonl"):
        path.write_text("".join(json.dumps(row) + "\n" for row in content.to_pylist()))
    else:
        rows = zip(*(column.to_pylist() for column in content.columns), strict=True)
        rows = [["" if cell is None else cell for cell in row] for row in rows]
        csv(path, [content.column_names, *rows], "\t" if ".tsv" in path.name else ",")
    return path


SUFFIXES = [".csv", ".tsv", ".csv.gz", ".jsonl", ".parquet", ".arrow", ".ipc"]


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_rows_with_labels_of_strings(tmp_path, suffix):
    path = write(tmp_path / f"a{suffix}", table(kind=KINDS[Y]))
    dataset = load(path, label="kind", scale="none")
    # classes are numbered in sorted order, wherever they come first
    holds(dataset, X, (Y + 2) % 3, ("ant", "cat", "emu"))
    binary = suffix in (".parquet", ".arrow", ".ipc")
    assert dataset.points.dtype == (torch.float32 if binary else torch.float64)
    assert dataset.provenance["label"] == "kind" and dataset.provenance["features"] == [*NAMES]
    refused(
        LabelError, "no column looks like labels, it has 'a', 'b', 'c', 'd', 'kind'; choose", path
    )
    refused(LabelError, "there is no column 'kin', it has 'a',", path, label="kin")
    loud = path.rename(tmp_path / f"B{suffix.upper()}")
    holds(load(loud, label="kind", scale="none"), X, (Y + 2) % 3)


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_draw_takes_the_same_rows_of_every_format(tmp_path, suffix):
    many, ids = small(40)
    path = write(tmp_path / f"a{suffix}", table(many, label=ids))
    drawn = load(path, scale="none", max_samples=9, seed=2)
    expected = load((many, ids), max_samples=9, seed=2)
    holds(drawn, expected.points, expected.labels.tolist())
    assert drawn.provenance["sampled"] == {"of": 40, "seed": 2, "kept": 9}


def test_numbers_are_standardised_over_all_tables(tmp_path):
    other = 3 * X[:5] + 1
    paths = [
        write(tmp_path / "a.parquet", table(label=Y)),
        write(tmp_path / "b.parquet", table(other, label=Y[:5])),
    ]
    one, two = together(*paths)
    union = np.concatenate([X, other]).astype(np.float64)
    mean, spread = union.mean(0), union.std(0)
    # float32 columns: points are rounded to 24 bits once
    for dataset, x in ((one, X), (two, other)):
        truth = torch.from_numpy((x.astype(np.float64) - mean) / spread)
        assert torch.allclose(dataset.points.double(), truth, rtol=0, atol=2**-22)
        assert announced(dataset) == "4 numeric columns standardised over all 2 datasets"
    alone = announced(load(paths[0]))
    assert alone == "4 numeric columns standardised over its own samples (several in one " \
        "command or call are scaled alike)"  # fmt: skip
    again = together(paths[0], paths[0])
    assert again[0] is again[1]


def test_tables_that_were_scaled_apart_have_no_distance(tmp_path):
    paths = [
        write(tmp_path / "a.parquet", table(label=Y)),
        write(tmp_path / "b.parquet", table(3 * X + 1, label=Y)),
    ]
    apart = [load(path) for path in paths]
    with pytest.raises(DataError) as caught:
        otdd.distance(*apart)
    assert "a.parquet and b.parquet were scaled, one-hot encoded or projected apart" in str(
        caught.value
    )
    assert "together, in one command or one call of load_together" in str(caught.value)
    for options in ({"encoder": "pca:2"}, {"scale": "none", "encoder": "pca:2"}):
        one, two = (load(path, **options) for path in paths)
        with pytest.raises(DataError, match="were scaled, one-hot encoded or projected apart"):
            otdd.matrix([one, two])
        assert otdd.distance(*together(*paths, **options)).distance > 0
    assert otdd.distance(*together(*paths)).distance > 0
    # unscaled, or the same file twice, there is one space
    assert otdd.distance(*(load(path, scale="none") for path in paths)).distance > 0
    assert otdd.distance(load(paths[0]), load(paths[0])).distance == 0
    one, two = (load((x, Y), scale="standard") for x in (X, 3 * X + 1))
    with pytest.raises(DataError, match="in one command or one call of load_together"):
        otdd.explain(one, two)


def test_categories_of_other_tables_are_other_features(tmp_path):
    tables = [pa.table({"v": [a, "blue"], "label": [0, 1]}) for a in ("red", "green")]
    one, two = (load(t) for t in tables)
    assert one.dimension == two.dimension == 2
    with pytest.raises(DataError, match="one-hot encoded"):
        otdd.distance(one, two)
    assert otdd.distance(*together(*tables)).distance > 0


def test_constant_columns_become_zero(tmp_path):
    x = np.ones((12, 4), dtype=np.float32) * 0.1
    dataset = load(write(tmp_path / "a.parquet", table(x, label=Y)))
    assert not dataset.points.any()


def test_bytes_stay_bytes_without_scale(tmp_path):
    x = np.arange(48).reshape(12, 4) * 5
    path = write(tmp_path / "a.csv", table(x, label=Y))
    dataset = load(path, scale="none")
    assert dataset.points.dtype == torch.uint8
    holds(dataset, x, Y)
    # neither truth values nor floats are read as pixels
    for kind in (bool, np.float32):
        other = write(tmp_path / "a.parquet", table((x % 2).astype(kind), label=Y))
        assert load(other, scale="none").points.dtype == torch.float32
    x[0, 0] = 256
    assert load(write(path, table(x, label=Y)), scale="none").points.dtype == torch.float64


def test_categories_are_one_hot_over_all_tables(tmp_path):
    one = pa.table({"v": ["red", "blue", "red"], "w": [1.0, 2.0, 3.0], "label": [0, 1, 0]})
    two = pa.table({"v": ["green", "blue"], "w": [5.0, 4.0], "label": [0, 1]})
    a, b = together(
        write(tmp_path / "a.csv", one), write(tmp_path / "b.csv", two), scale="none"
    )  # fmt: skip
    # blue, green, red, then w
    holds(a, [[0, 0, 1, 1], [1, 0, 0, 2], [0, 0, 1, 3]], [0, 1, 0])
    holds(b, [[0, 1, 0, 5], [1, 0, 0, 4]], [0, 1])
    assert announced(a) == "1 column of categories ('v') one-hot in 3 features"
    # two categories lie sqrt(2) apart
    assert torch.dist(a.points[0, :3].double(), a.points[1, :3].double()).item() == math.sqrt(2)


def test_missing_entries_are_refused_with_their_number_dropped_or_filled(tmp_path):
    rows = [(1, "u", 0), ("", "u", 1), (4, "NA", 0), (10, "v", 1), ("?", "", 0)]
    path = csv(tmp_path / "a.csv", [("p", "q", "label"), *rows])
    refused(DataError, "a.csv: 4 entries are missing in 2 of 2 columns ('p': 2, 'q': 2)", path)
    refused(DataError, "missing='drop' (--missing drop), or fill them with 'mean'", path)
    kept = load(path, missing="drop", scale="none")
    holds(kept, [[1, 1, 0], [10, 0, 1]], [0, 1])
    assert "dropped 3 of 5 rows with missing entries" in announced(kept)
    for rule, value in (("mean", 5.0), ("median", 4.0)):
        filled = load(path, missing=rule, scale="none")
        points = [[1, 1, 0], [value, 1, 0], [4, 1, 0], [10, 0, 1], [value, 1, 0]]
        holds(filled, points, [0, 1, 0, 1, 0])
        assert f"4 missing entries filled with the {rule} of their column" in announced(filled)
    none = pa.array([None, None], pa.float32())
    empty = write(tmp_path / "b.parquet", pa.table({"p": none, "label": [0, 1]}))
    refused(DataError, "every row has a missing entry, nothing is left", empty, missing="drop")
    refused(DataError, "column 'p' is empty, there is nothing to fill", empty, missing="mean")
    nothing = csv(tmp_path / "c.csv", [("p", "label"), ("", 0), ("", 1)])
    refused(DataError, "no features, expected columns of numbers, categories", nothing)


def test_two_columns_that_look_like_labels_ask_which(tmp_path):
    path = write(tmp_path / "a.csv", table(label=Y, target=KINDS[Y]))
    refused(
        LabelError, "a.csv: 2 columns look like labels, 'label', 'target'; choose one with", path
    )
    refused(LabelError, "label='label' (--label)", path)
    dataset = load(path, label="target", scale="none")
    holds(dataset, X, (Y + 2) % 3, ("ant", "cat", "emu"))
    assert (
        announced(dataset)
        == "left out 'label' (labels or row numbers; name them in features, --features)"
    )


def test_features_are_chosen_by_names_and_patterns(tmp_path):
    path = write(tmp_path / "a.parquet", table(label=Y, pixel1=X[:, 0], pixel2=X[:, 1]))
    holds(load(path, features="pixel*", scale="none"), X[:, :2], Y)
    holds(load(path, features=["d", "a"], scale="none"), X[:, [3, 0]], Y)
    refused(
        DataError, "no feature column is called 'pixle*', it has 'a', 'b'", path, features="pixle*"
    )


def test_row_numbers_are_left_out(tmp_path):
    path = write(tmp_path / "a.csv", table(id=np.arange(12), label=Y))
    dataset = load(path, scale="none")
    holds(dataset, X, Y)
    assert "left out 'id'" in announced(dataset)
    # an id that repeats numbers no rows
    assert load(write(path, table(id=Y, label=Y)), scale="none").dimension == 5


def test_files_without_a_header_and_other_marks(tmp_path):
    path = csv(tmp_path / "a.csv", [(1, 2.5, 0), (3, 4, 1)], ";")
    dataset = load(path, label="c2", scale="none")
    holds(dataset, [[1, 2.5], [3, 4]], [0, 1])
    assert announced(dataset) == "no header line, columns are called c0 to c2"
    refused(DataError, "two columns are called 'p'", csv(tmp_path / "b.csv", [("p", "p"), (1, 2)]))


def test_vectors_and_texts_in_columns(tmp_path):
    lists = pa.table({"points": X.tolist(), "label": Y, "note": KINDS[Y]})
    dataset = load(write(tmp_path / "a.parquet", lists))
    holds(dataset, X, Y)
    assert announced(dataset) == "column 'points' holds the vectors; 'note' left out"
    ragged = pa.table({"points": [[1.0], [1.0, 2.0]], "label": [0, 1]})
    refused(DataError, "lists of 1 to 2 entries", write(tmp_path / "b.parquet", ragged))
    words = pa.table({"text": [f"number {k}" for k in range(12)], "label": Y})
    path = write(tmp_path / "c.csv", words)
    refused(DataError, "column 'text' holds 12 different strings in 12 rows, too many for", path)


def lengths(texts):
    """Encode texts by two numbers."""
    return np.array([[len(text), text.count(" ")] for text in texts], dtype=np.float32)


def test_one_column_of_texts_goes_to_an_encoder_of_the_user(tmp_path):
    words = [f"number {k} of {k * k}" for k in range(12)]
    path = write(tmp_path / "a.parquet", pa.table({"text": words, "other": X[:, 0], "label": Y}))
    holds(load(path, features="text", encoder=lengths), lengths(words), Y)
    assert "encoded by" in announced(load(path, features="text", encoder=lengths))
    gaps = pa.table({"text": [None, *words[1:]], "label": Y})
    path = write(tmp_path / "b.parquet", gaps)
    refused(DataError, "column 'text' has 1 missing texts; drop those rows", path, encoder=lengths)
    kept = load(path, encoder=lengths, missing="drop")
    holds(kept, lengths(words[1:]), Y[1:])
    assert "dropped 1 of 12 rows without text" in announced(kept)


def test_tables_of_other_columns_name_the_ways_out(tmp_path):
    one = write(tmp_path / "a.parquet", table(label=Y))
    two = write(tmp_path / "b.parquet", table(label=Y).drop(["d"]).append_column("e", [X[:, 3]]))
    with pytest.raises(DataError) as caught:
        together(one, two)
    for piece in (
        "b.parquet has 4: a.parquet lacks 'e'; b.parquet lacks 'd'",
        "keep the 3 they share with features (--features)", "encoder='pca:4' (--encoder pca:4)",
    ):  # fmt: skip
        assert piece in str(caught.value)
    a, b = together(one, two, features=["a", "b", "c"])
    assert (a.dimension, b.dimension) == (3, 3)
    a, b = together(one, two, encoder="pca:2")
    assert (a.dimension, b.dimension) == (2, 2)
    assert "4 features projected on 2 principal components" in announced(a)
    text = write(tmp_path / "c.parquet", table(label=Y).drop(["d"]).append_column("d", [KINDS[Y]]))
    with pytest.raises(
        DataError, match="column 'd' holds numbers in a.parquet and categories in c"
    ):
        together(one, text)


def test_a_table_beside_arrays_needs_one_scale_for_both(tmp_path):
    path = write(tmp_path / "a.parquet", table(label=Y))
    with pytest.raises(DataError, match="a.parquet is a table, whose columns are standardised, nd"):
        together(path, (X, Y))
    a, b = together(path, (X, Y), scale="none")
    assert torch.equal(a.points, b.points)
    other = 3 * X + 1
    mixed, arrays = (together(a, (other, Y), scale="standard") for a in (path, (X, Y)))
    for one, two in zip(mixed, arrays, strict=True):
        assert torch.equal(one.points, two.points)
    assert "4 features standardised over all 2 datasets" in announced(mixed[0])
    assert otdd.distance(*mixed).distance > 0


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_damaged_files_name_themselves(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    path.write_bytes(b"")
    refused(DataError, f"a{suffix}: the file is empty; replace it with a good copy", path)
    path.write_bytes(b"<html><body>404</body></html>")
    refused(DataError, f"a{suffix}: holds a web page, not data", path)
    # a table of text that ends after a row is whole, for all that can be told
    if suffix not in (".csv", ".tsv"):
        write(path, table(np.tile(X, (30, 1)), label=np.tile(Y, 30)))
        path.write_bytes(path.read_bytes()[:-300])
        refused(DataError, f"a{suffix}: not a whole ", path)
    refused(DatasetNotFoundError, "no such file or folder (in ", tmp_path / f"b{suffix}")
    refused(SettingsError, "has no split 'test'; give the file of that split", path, split="test")


def test_bad_cells_and_encodings(tmp_path):
    path = tmp_path / "a.csv"
    path.write_bytes("p,label\né,1\n".encode("latin-1"))
    refused(DataError, "a.csv: ", path)
    refused(DataError, "a.csv: holds a header and no rows", csv(path, [("p", "label")]))
    refused(DataError, "not a whole CSV file", csv(path, [("p", "label"), (1, 2, 3)]))
    infinite = write(tmp_path / "b.parquet", pa.table({"p": [1.0, np.inf], "label": [0, 1]}))
    refused(DataError, "column 'p' holds infinity in row 1", infinite)
    refused(
        DataError, "the table has no rows", write(tmp_path / "d.parquet", table(X[:0], label=[]))
    )
    large = write(tmp_path / "e.parquet", pa.table({"p": [2**60 + 1, 1], "label": [0, 1]}))
    refused(DataError, "column 'p' holds a number that float64 would round", large)
    dates = pa.table({"p": [1.0], "label": pa.array([0], pa.date32())})
    refused(
        LabelError, "column 'label' is date32[day], expected", write(tmp_path / "c.parquet", dates)
    )


def test_two_files_of_one_name_are_told_apart(tmp_path):
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        write(tmp_path / folder / "a.csv", table(label=Y))
    a, b = together(tmp_path / "one" / "a.csv", tmp_path / "two" / "a.csv")
    assert a.name.endswith("one/a.csv") and b.name.endswith("two/a.csv")


@pytest.mark.skipif(sys.platform != "linux", reason="skipped: the script reads /proc")
def test_the_benchmark_of_loading_in_small(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(Path(__file__).resolve().parents[1] / "scripts")
    import bench_load

    monkeypatch.setattr(bench_load, "BLOCK", 70)
    made = [points for _, points, _ in bench_load.blocks(200)]
    mean = np.concatenate(made).mean()
    for write_format in bench_load.FORMATS.values():
        found = bench_load.measure(*write_format(tmp_path, 200))
        assert (found["samples"], found["features"], found["dtype"]) == (200, 784, "uint8")
        # sums of whole numbers are exact in float64
        assert found["mean"] == mean and found["peak_bytes"] > found["own_bytes"] > 0


def test_text_tables_as_other_programs_write_them(tmp_path):
    path = tmp_path / "a.csv"

    def read(content, **options):
        path.write_bytes(content)
        return load(path, scale="none", **options)

    # a byte order mark, quotes around a line break, returns alone, blanks around names
    holds(read('\ufeff"a", label\n1,"x\ny"\n2,z\n'.encode()), [1, 2], [0, 1], ("x\ny", "z"))
    holds(read(b"a,label\r1,x\r2,y\r"), [1, 2], [0, 1], ("x", "y"))
    commas = read(b"a;b;label\n1,5;2;x\n-3,25;4;y\n")
    holds(commas, [[1.5, 2], [-3.25, 4]], [0, 1])
    assert announced(commas) == "decimal commas: 1,5 is read as 1.5"
    holds(read(b"a;label\n1.5;x\n3;y\n"), [1.5, 3], [0, 1])
    holds(read(b"1,5;0\n2,25;1\n", label="c1"), [1.5, 2.25], [0, 1])
    holds(read(b"1_0,label\n1,x\n2,y\n"), [1, 2], [0, 1])
    tabs = write(tmp_path / "a.tsv", pa.table({"a": ["1,5", "3"], "label": ["x", "y"]}))
    holds(load(tabs, scale="none"), [1.5, 3], [0, 1])
    rows = [("a", "label"), *((k / 8, k % 2) for k in range(20)), ("n.a.", 1)]
    refused(DataError, "'a' holds numbers and 1 other entries, such as 'n.a.'", csv(path, rows))
    # one word makes a column one of categories: it is named
    assert "1 column of categories ('a') one-hot" in announced(read(b"a,label\n1,x\nfoo,y\n"))
    for bad in (
        b"a,label\n1,caf\xe9\n",
        b"a,label\ncaf\xe9,1\n",
        "a,label\n1,2\n".encode("utf-16"),
    ):
        path.write_bytes(bad)
        refused(DataError, "a.csv: is no UTF-8 text; convert it with iconv -t utf-8", path)


def test_columns_of_one_name_are_refused(tmp_path):
    arrays = [pa.array([1, 2]), pa.array([3, 4]), pa.array(["x", "y"])]
    for names in (["a", "a", "label"], ["a", "label", "label"]):
        twice = pa.Table.from_arrays(arrays, names)
        message = f"two columns are called {names[1]!r}; give each a name of its own"
        refused(DataError, message, write(tmp_path / "a.parquet", twice))
        path = tmp_path / "a.csv"
        refused(DataError, message, csv(path, [names, (1, 3, "x"), (2, 4, "y")]))


def test_labels_that_are_missing_are_none_whatever_the_rule(tmp_path):
    path = tmp_path / "a.parquet"
    for kind in (pa.int64(), pa.float64()):
        values = pa.array([0, None, -1, 5], kind)
        write(path, pa.table({"p": [1.0, 2.0, 3.0, 4.0], "label": values}))
        refused(LabelError, "1 of 4 labels are missing", path, labels="quantiles:2")
        refused(LabelError, "2 of 4 labels are missing", path)
        options = {"drop_unlabelled": True, "scale": "none"}
        holds(load(path, labels="quantiles:2", **options), [1, 3, 4], [1, 0, 1])
        holds(load(path, **options), [1, 4], [0, 1], ("0", "5"))
    # integers that float64 would round keep their digits beside a missing one
    large = pa.table({"p": [1.0, 2.0, 3.0], "label": [2**60 + 1, None, 2**60]})
    names = (str(2**60), str(2**60 + 1))
    holds(load(write(path, large), **options), [1, 3], [1, 0], names)
    for words in (["x", "", "-1"], [None, "-1", "x"]):
        write(path, pa.table({"p": [1.0, 2.0, 3.0], "label": words}))
        refused(LabelError, "2 of 3 labels are missing", path)


def test_kinds_of_columns_that_stand_for_something_else():
    import pandas as pd
    import polars as pl

    labels = pl.Series(["x", "y", None, "x"], dtype=pl.Categorical)
    frame = pl.DataFrame({"p": [1.0, 2.0, 3.0, 4.0], "label": labels})
    kept = load(frame, drop_unlabelled=True, scale="none")
    holds(kept, [1, 2, 4], [0, 1, 0], ("x", "y"))
    days = pd.DataFrame(
        {"day": pd.period_range("2020", periods=2, freq="D"), "p": [1.0, 2.0], "label": [0, 1]}
    )
    periods = load(days, scale="none")
    holds(periods, [1, 2], [0, 1])
    assert "left out 'day' (neither numbers nor categories)" in announced(periods)


@pytest.mark.parametrize("scale", [1e-310, 1e-200, 1.0, 1e200, 1e300])
def test_columns_of_any_size_are_standardised(tmp_path, scale):
    values = np.array([1.0, -2.0, 4.0])
    content = pa.table({"p": values * scale, "label": [0, 1, 0]})
    found = load(write(tmp_path / "a.parquet", content)).points[:, 0].numpy()
    # numbers near 1e-310 are multiples of 5e-324: they have 13 digits
    np.testing.assert_allclose(found, (values - values.mean()) / values.std(), rtol=1e-12)


def test_shards_and_what_datasets_wrote_are_checked(tmp_path):
    for k, kind in enumerate((pa.float64(), pa.int64())):
        content = pa.table({"p": pa.array([1, 2], kind), "label": [0, 1]})
        (tmp_path / "set").mkdir(exist_ok=True)
        write(tmp_path / "set" / f"{k}.parquet", content)
    refused(DataError, "1.parquet: its column 'p' is int64, that of ", tmp_path / "set")
    for stored in ("{", "[]", '{"info": 3}'):
        damaged = content.replace_schema_metadata({"huggingface": stored})
        refused(DataError, "what the datasets library says of the columns is damaged", damaged)
    (tmp_path / "saved").mkdir()
    (tmp_path / "saved" / "dataset_info.json").write_text("{}")
    for state in ("{", "[]", "{}"):
        (tmp_path / "saved" / "state.json").write_text(state)
        refused(DataError, "what datasets.save_to_disk wrote there is damaged", tmp_path / "saved")
