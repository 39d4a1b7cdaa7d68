"""Work that devices share: all of it is done once, what fails ends it, whoever leaves stops it."""

from __future__ import annotations

import dataclasses
import threading
import time

import pytest
import torch
from problems import dataset

import otdd_flash as otdd
from otdd_flash.many.crew import crew_steps
from otdd_flash.ops import resolve_devices
from otdd_flash.types import Progress

CPU = torch.device("cpu")


def pieces(count, done, fails=None, seconds=0.0):
    def piece(k):
        def work(place):
            yield Progress("part", 0, None, "half")
            time.sleep(seconds)
            if k == fails:
                raise ValueError(f"piece {k}")
            done.append((k, place))

        return f"number {k}", work

    return [piece(k) for k in range(count)]


@pytest.mark.parametrize("workers", [1, 3])
def test_every_piece_is_done_once(workers):
    done: list = []
    states = list(crew_steps("stage", pieces(20, done), [CPU] * workers))
    assert sorted(k for k, _ in done) == list(range(20))
    assert {place for _, place in done} <= set(range(workers))
    assert [s.done for s in states] == sorted(s.done for s in states) and states[-1].done == 20
    assert all(s.stage == "stage" and s.total == 20 for s in states)
    assert {"number 7: part half"} <= {s.note for s in states}


@pytest.mark.parametrize("workers", [1, 3])
def test_what_fails_ends_the_work(workers):
    done: list = []
    with pytest.raises(ValueError, match="piece 2"):
        list(crew_steps("stage", pieces(500, done, fails=2, seconds=0.001), [CPU] * workers))
    assert len(done) < 500


def test_whoever_leaves_stops_the_work():
    done: list = []
    walk = crew_steps("stage", pieces(500, done, seconds=0.01), [CPU] * 2)
    next(walk)
    before = threading.active_count()
    walk.close()
    assert threading.active_count() < before and len(done) < 500
    assert list(crew_steps("stage", [], [CPU] * 2)) == []


def test_devices_share_a_matrix_and_change_nothing(tmp_path):
    sets = [dataset(25 + k, 3, k, name=f"set {k}") for k in range(4)]
    confidence = otdd.Confidence(bootstrap=10, noise_floor=True)
    alone = otdd.matrix(sets, otdd.OTDDSettings(device="cpu"), confidence=confidence)
    shared = otdd.matrix(sets, confidence=confidence, devices=("cpu", "cpu"), out=tmp_path)
    for field in dataclasses.fields(alone):
        one, other = getattr(alone, field.name), getattr(shared, field.name)
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, other), field.name
        elif field.name not in ("seconds", "settings", "device"):
            assert one == other, field.name
    assert shared.device == "cpu, cpu" and len(list((tmp_path / "pairs").iterdir())) == 6
    ranked = otdd.rank(sets[0], sets[1:], devices=("cpu", "cpu"))
    assert [s.value for s in ranked.sources] == [
        s.value for s in otdd.rank(sets[0], sets[1:], otdd.OTDDSettings(device="cpu")).sources
    ]


def test_devices_that_cannot_share_are_refused():
    assert resolve_devices(None, "cpu") == [CPU]
    for devices, device, message in (
        (("cpu",), "cpu", "give one of them"),
        ("cpu", "auto", "expected 'all' or names"),
        ((), "auto", "expected 'all' or names"),
        (("cpu", "tpu"), "auto", "expected auto, cpu, cuda"),
    ):
        with pytest.raises(otdd.DeviceError, match=message):
            resolve_devices(devices, device)
    if not torch.cuda.is_available():
        with pytest.raises(otdd.DeviceError, match="no CUDA device is visible"):
            resolve_devices("all", "auto")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="skipped: needs two GPUs")
def test_two_gpus_share_a_matrix():
    sets = [dataset(200, 8, k, kind="uint8", name=f"set {k}") for k in range(4)]
    alone = otdd.matrix(sets, otdd.OTDDSettings(device="cuda:0"))
    shared = otdd.matrix(sets, devices="all")
    # sums of another GPU of the same kind run in the same order
    torch.testing.assert_close(shared.squared, alone.squared, rtol=1e-9, atol=0)
    last = otdd.matrix(sets, otdd.OTDDSettings(device="cuda:1"))
    torch.testing.assert_close(last.squared, alone.squared, rtol=1e-9, atol=0)
