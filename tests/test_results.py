import dataclasses
import json
import math
import os
import zipfile

import numpy as np
import pytest
import torch
from fakes import fake_result

from otdd_flash.errors import DataError, SettingsError
from otdd_flash.files import check_writable, written_whole
from otdd_flash.results import bytes_text, conventions, load_result, save, summary, to_json
from otdd_flash.settings import OTDDSettings

KEYS = {
    "source", "target", "distance", "squared", "squared_bounds", "transport", "epsilon",
    "mean_cost", "marginal_error", "converged", "passes", "self_passes", "label_cost",
    "class_mass", "quantization_error", "seconds", "peak_memory_bytes", "device", "settings",
    "versions", "notes", "interval", "noise_floor",
}  # fmt: skip


def test_json_has_the_documented_keys_and_plain_types():
    data = to_json(fake_result())
    assert set(data) == KEYS
    assert {"name", "n", "d", "classes", "class_names"} <= set(data["source"])
    assert set(data["transport"]) == {"lower", "entropic", "upper"}
    assert len(data["label_cost"]) == 10 and len(data["label_cost"][0]) == 10
    assert math.isclose(sum(map(sum, data["class_mass"])), 1.0, rel_tol=1e-12)
    assert json.loads(json.dumps(data, allow_nan=False)) == data


def test_json_turns_odd_values_into_plain_ones():
    provenance = {"path": os.sep, "at": torch.tensor(3), "k": np.float32(0.5), "bad": math.inf}
    base = fake_result()
    source = dataclasses.replace(base.source, provenance=provenance)
    result = fake_result(source=source, quantization_error=math.nan, squared=np.float64(2.0))
    data = to_json(result)
    assert data["quantization_error"] is None
    assert data["source"]["provenance"] == {"path": os.sep, "at": 3, "k": 0.5, "bad": None}
    json.dumps(data, allow_nan=False)


def test_a_saved_result_comes_back_the_same(tmp_path):
    settings = OTDDSettings(epsilon=0.1, memory_budget=10**9, convention="microsoft")
    result = fake_result(7, 3, settings=settings, notes=("one", "two"))
    path = tmp_path / "r.npz"
    save(result, path)
    back = load_result(path)
    for field in dataclasses.fields(result):
        old, new = getattr(result, field.name), getattr(back, field.name)
        if isinstance(old, torch.Tensor):
            assert new.dtype == torch.float64 and torch.equal(old, new), field.name
        else:
            assert old == new and type(old) is type(new), field.name
    assert os.listdir(tmp_path) == ["r.npz"]


def test_what_is_no_result_is_not_saved(tmp_path):
    for thing in (None, torch.zeros(2), OTDDSettings()):
        with pytest.raises(DataError, match="arrived, expected a result of distance, matrix"):
            save(thing, tmp_path / "r.npz")
    assert not os.listdir(tmp_path)


def test_a_result_file_needs_no_pickle(tmp_path):
    save(fake_result(), tmp_path / "r.npz")
    with np.load(tmp_path / "r.npz", allow_pickle=False) as archive:
        assert set(archive.files) == {"header", "label_cost", "class_mass", "f", "g"}
        assert json.loads(str(archive["header"]))["settings"]["epsilon"] == "1%"


@pytest.mark.parametrize("content", [b"", b"<html>", b"PK\x03\x04 cut"])
def test_files_that_are_not_results_are_named(tmp_path, content):
    path = tmp_path / "r.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match="r.npz: not a whole result"):
        load_result(path)


def test_truncated_foreign_and_missing_files_are_named(tmp_path):
    path = tmp_path / "r.npz"
    with pytest.raises(DataError, match="no such file"):
        load_result(path)
    save(fake_result(), path)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(DataError, match="not a whole result"):
        load_result(path)
    np.savez(path, points=np.zeros(3))
    with pytest.raises(DataError, match="not a whole result"):
        load_result(path)
    np.save(tmp_path / "r.npy", np.zeros(3))
    with pytest.raises(DataError, match="not a whole result"):
        load_result(tmp_path / "r.npy")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 99}, "format 99"),
        ({"new_field": 1}, "another version"),
        ({"source": None}, "another version"),
    ],
)
def test_results_of_other_versions_say_so(tmp_path, change, message):
    path = tmp_path / "r.npz"
    save(fake_result(), path)
    with np.load(path) as archive:
        content = dict(archive)
    header = {**json.loads(str(content.pop("header"))), **change}
    np.savez(path, header=np.array(json.dumps(header)), **content)
    with pytest.raises(DataError, match=message):
        load_result(path)


def test_the_table_says_what_the_issue_asks_for():
    text = summary(fake_result())
    for piece in (
        "mnist", "fashion-mnist", "784", "distance", "15.25", "232.5625", "lower 250.1",
        "upper 250.9", "entropic   251.3,", "1.301 (1% of the mean cost 130.1)", "8.3e-04",
        "converged after 41 passes", "share", "class laws 1.25, solve 10.50", "1.23 GB", "on cpu",
        "C = ||x - y||^2 + W2[lx, ly]", "eps in units of C",
    ):  # fmt: skip
        assert piece in text, piece
    assert "NOT CONVERGED" not in text
    assert all(len(line) <= 100 and line == line.rstrip() for line in text.splitlines())


def test_the_table_shows_the_strongest_target_of_each_class():
    mass = torch.zeros(10, 10, dtype=torch.float64)
    mass[0, 8], mass[0, 1], mass[1, 9] = 0.3, 0.1, 0.6
    lines = summary(fake_result(class_mass=mass)).splitlines()
    assert any(line.split() == ["0", "Bag", "75.0%"] for line in lines)
    assert any(line.split() == ["1", "Ankle", "boot", "100.0%"] for line in lines)
    # a class without weight has no share
    assert any(line.split() == ["2", "-", "-"] for line in lines)


def test_the_table_of_odd_results():
    text = summary(
        fake_result(
            100, 100, converged=False, quantization_error=1e-5, notes=("a note",),
            settings=OTDDSettings(epsilon=0.1, debias=False),
        )
    )  # fmt: skip
    assert "NOT CONVERGED" in text and "not debiased" in text and "a note" in text
    assert "and 70 classes more" in text and "1.0e-05" in text and "given" in text


def test_conventions_follow_the_settings():
    plain = "C = ||x - y||^2 + W2[lx, ly]; points as they are; eps in units of C"
    assert conventions(OTDDSettings()) == plain
    text = conventions(OTDDSettings(convention="microsoft", lambda_y=0, normalize="unit"))
    assert text.startswith("C = 0.5 (||x - y||^2); points in [0, 1]")
    assert "2 W2 (diagonal)" in conventions(OTDDSettings(lambda_y=2, label_distance="diagonal"))


def test_bytes_are_readable():
    assert bytes_text(999) == "999 B"
    assert bytes_text(1_500_000) == "1.5 MB"
    assert bytes_text(2.5e13) == "25 TB"


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "r.npz"
    path.write_bytes(b"old")
    with pytest.raises(RuntimeError), written_whole(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["r.npz"]
    with written_whole(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new" and os.listdir(tmp_path) == ["r.npz"]


def test_paths_are_checked_without_a_trace(tmp_path):
    good = tmp_path / "r.npz"
    assert check_writable(good, "--output", (".npz",)) == good
    assert not os.listdir(tmp_path)
    (tmp_path / "d.npz").mkdir()
    for path, message in (
        (tmp_path / "r.txt", "must end in .npz"),
        (tmp_path / "d.npz", "is a directory"),
        (tmp_path / "no" / "r.npz", "there is no directory"),
        ("/proc/r.npz", "cannot write to /proc"),
    ):
        with pytest.raises(SettingsError, match=message):
            check_writable(path, "--output", (".npz",))


def test_zip_members_are_compressed(tmp_path):
    save(fake_result(), tmp_path / "r.npz")
    with zipfile.ZipFile(tmp_path / "r.npz") as archive:
        assert {item.compress_type for item in archive.infolist()} == {zipfile.ZIP_DEFLATED}
