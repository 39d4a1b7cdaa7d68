"""Matrices, rankings, explanations and values as text, JSON and CSV."""

from __future__ import annotations

import csv
import json

import pytest
import torch
from problems import dataset

import otdd_flash as otdd
from otdd_flash import Confidence, LabelledDataset, OTDDSettings
from otdd_flash.datasets import sample
from otdd_flash.findings_io import finding_json, matrix_csv, read_scores, values_csv
from otdd_flash.tables import explanation_text, matrix_text, ranking_text, values_text

SETTINGS = OTDDSettings(epsilon="3%", device="cpu")


def named(seed: int, name: str) -> LabelledDataset:
    data = dataset(20, 2, seed)
    return LabelledDataset(data.points, data.labels, name=name)


def sets(count: int) -> list[LabelledDataset]:
    return [named(k, f"set, {k}") for k in range(count)]


@pytest.mark.parametrize("count", [3, 9])
def test_matrices_as_text_json_and_csv(tmp_path, count):
    confidence = Confidence(bootstrap=10, noise_floor=True, seed=3)
    found = otdd.matrix(sets(count), SETTINGS, confidence=confidence)
    text = matrix_text(found)
    for piece in ("set, 0", "seed 3", "noise floor", "3% of the mean cost of all pairs", "bounds"):
        assert piece in text
    assert f"{float(found.distance[0, 1]):.4g}" in text or count == 9
    assert all(line == line.rstrip() for line in text.splitlines())
    matrix_csv(found, tmp_path / "m.csv")
    with open(tmp_path / "m.csv", newline="") as file:
        head, *rows = csv.reader(file)
    assert head[1:] == list(found.names) == [row[0] for row in rows]
    # numbers come back to the last bit
    back = torch.tensor([[float(v) for v in row[1:]] for row in rows], dtype=torch.float64)
    assert torch.equal(back, found.distance)
    data = finding_json(found)
    assert data["names"] == list(found.names) and data["seed"] == 3
    json.dumps(data, allow_nan=False)


def test_rankings_as_text_and_json():
    target, *sources = sets(4)
    scores = {"set, 1": 0.5, "set, 2": 0.25}
    found = otdd.rank(target, sources, SETTINGS, scores={**scores, "set, 3": 0.125})
    text = ranking_text(found)
    assert "Pearson" in text and "Spearman" in text and "0.125" in text
    order = [text.index(source.name) for source in found.sources]
    assert order == sorted(order)
    assert "Pearson" not in ranking_text(otdd.rank(target, sources, SETTINGS, scores=scores))
    data = finding_json(found)
    assert data["sources"][0]["value"]["distance"] == found.sources[0].value.distance
    json.dumps(data, allow_nan=False)


def test_explanations_as_text_and_json():
    found = otdd.explain(named(0, "a"), named(1, "b"), SETTINGS, pairs=4)
    text = explanation_text(found)
    for piece in ("features", "labels", "entropy", "total", "bits", "goes to", "most foreign"):
        assert piece in text
    data = finding_json(found)
    assert data["split"]["total"] == pytest.approx(found.value.squared)
    assert len(data["source_nearest"]) == 20 and len(data["pairs"]) == 4
    worst = data["source_most_foreign"][0]
    assert worst["row"] == int(found.source_foreign.argmax())
    json.dumps(data, allow_nan=False)


def test_values_as_text_json_and_csv(tmp_path):
    source = named(0, "a")
    found = otdd.value(source, named(1, "b"), SETTINGS)
    assert "label fits least" in values_text(found) and "class part" in values_text(found)
    values_csv(found, tmp_path / "v.csv")
    with open(tmp_path / "v.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(20))
    assert [float(row["label"]) for row in rows] == found.label.tolist()
    assert [row["class"] for row in rows] == [source.class_names[k] for k in source.labels.tolist()]
    data = finding_json(found)
    assert data["most_foreign"][0]["row"] == int(found.value.argmax())
    assert data["label_fits_least"][0]["row"] == int(found.label.argmax())
    json.dumps(data, allow_nan=False)


def test_row_numbers_of_a_draw_say_what_they_count():
    whole, drawn = named(0, "a"), sample(named(1, "b"), 9, 0)
    explained = explanation_text(otdd.explain(drawn, whole, SETTINGS))
    assert "rows         count all samples of b, drawn or not, from 0" in explained
    valued = values_text(otdd.value(drawn, whole, SETTINGS))
    assert "rows         count all samples of b, drawn or not, from 0" in valued
    assert "drawn or not" not in values_text(otdd.value(whole, drawn, SETTINGS))


def test_explanations_number_samples_by_their_rows_in_the_whole_dataset():
    whole = named(1, "b")
    drawn = sample(whole, 9, 0)
    found = otdd.explain(drawn, named(0, "a"), SETTINGS)
    assert found.source_rows.equal(drawn.rows) and not drawn.rows.equal(torch.arange(9))
    data = finding_json(found)
    far = data["source_most_foreign"][0]["row"]
    assert far == int(drawn.rows[int(found.source_foreign.argmax())])
    assert data["pairs"][0]["source"] == int(drawn.rows[found.pairs[0].source])
    assert data["pairs"][0]["target"] == found.pairs[0].target
    text = explanation_text(found)
    assert f"most foreign {far}, " in text
    first = next(line for line in text.splitlines() if "source row" in line)
    row = text.splitlines()[text.splitlines().index(first) + 1].split()
    assert row[0] == str(data["pairs"][0]["source"])


def test_names_above_a_matrix_have_room_where_there_are_few():
    names = ["sklearn:breast_cancer", "sklearn:boston_houses"]
    head = matrix_text(otdd.matrix([named(k, name) for k, name in enumerate(names)], SETTINGS))
    assert head.splitlines()[0].split() == ["distance", *names]
    made = [named(k, f"{k} {'long' * 5}") for k in range(8)]
    assert max(map(len, matrix_text(otdd.matrix(made, SETTINGS)).splitlines()[:9])) <= 140


def test_names_stay_on_their_line():
    made = named(1, "a\nname\twith\u202emarks"), named(2, "b")
    found = otdd.matrix(made, SETTINGS)
    assert matrix_text(found).splitlines()[1].startswith("a name with marks ")
    ranked = otdd.rank(made[0], made, SETTINGS)
    assert "a name with marks (20 samples)" in ranking_text(ranked)


def test_of_many_classes_a_text_has_the_first():
    many = LabelledDataset(dataset(90, 2, 0).points, torch.arange(90) % 45, name="many")
    text = explanation_text(otdd.explain(many, named(1, "b"), SETTINGS))
    assert "... and 15 classes more (all are in --json)" in text


def test_scores_are_read_with_or_without_a_head(tmp_path):
    path = tmp_path / "s.csv"
    path.write_text('a,0.5\n"b, c",-1e-3\n')
    assert read_scores(path) == {"a": 0.5, "b, c": -1e-3}
    path.write_text("\ufeffsource,accuracy\r\na,0.5\r\n\r\n", "utf-8")
    assert read_scores(path) == {"a": 0.5}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,1\nb\n", r"line 2 is \['b'\], expected the name of a source"),
        ("a,1\nb,high\n", "line 2"),
        ("a\n", r"line 1 is \['a'\]"),
        ("a,1\na,2\n", "line 2 scores 'a' once more"),
        ("", "holds no scores"),
        ("source,score\n", "holds no scores"),
    ],
)
def test_bad_scores_are_named(tmp_path, content, message):
    path = tmp_path / "s.csv"
    path.write_text(content)
    with pytest.raises(otdd.DataError, match=f"s.csv: .*{message}"):
        read_scores(path)
    with pytest.raises(otdd.DataError, match="no such file"):
        read_scores(tmp_path / "none.csv")
    with pytest.raises(otdd.DataError, match="cannot be read as CSV"):
        read_scores(tmp_path)
