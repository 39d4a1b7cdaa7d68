"""What results look like where they are printed: one line, whatever their sizes."""

import torch

import otdd_flash as otdd
from otdd_flash.brief import brief


def sets(n=30):
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(2 * n, 3, generator=generator)
    labels = ["cat", "dog", "fox"] * (n // 3)
    return [
        otdd.LabelledDataset(points[:n], labels, name="one"),
        otdd.LabelledDataset(points[n:] + 1, labels, name="two"),
    ]


def test_every_result_prints_as_one_line():
    one, two = sets()
    settings = otdd.FlowSettings(steps=1, solver=otdd.OTDDSettings(epsilon="5%"))
    *_, state = otdd.flow(one, two, settings)
    results = [
        otdd.distance(one, two),
        otdd.matrix([one, two]),
        otdd.rank(one, [two]),
        otdd.explain(one, two),
        otdd.value(one, two),
        otdd.hvp(one.points, two.points, one.points, epsilon="50%"),
        state,
    ]
    for result in results:
        text = repr(result)
        assert text.startswith(type(result).__name__ + "(") and text.endswith(")")
        assert "\n" not in text and "tensor(" not in text and len(text) < 2000


def test_a_distance_says_what_was_compared_and_what_came_out():
    one, two = sets()
    result = otdd.distance(one, two, normalize="none", tol=1e-4)
    text = repr(result)
    assert "source=DatasetSummary(name='one', n=30, d=3, classes=3)" in text
    assert f"distance={result.distance:.7g}, squared={result.squared:.7g}" in text
    assert "label_cost=float64[3, 3], class_mass=float64[3, 3], f=float64[30]" in text
    # what is as the defaults have it says nothing
    assert "settings=OTDDSettings(tol=0.0001)" in text and "interval" not in text


def test_results_of_many_numbers_are_told_apart_by_identity(tmp_path):
    one, two = sets()
    result = otdd.distance(one, two)
    otdd.save(result, tmp_path / "result.npz")
    assert result == result and result != otdd.load_result(tmp_path / "result.npz")
    assert len({result, result}) == 1
    assert otdd.load_result(tmp_path / "result.npz").plan is None


def test_long_collections_end_in_their_length():
    assert brief((1, 2.00000001, "a")) == "(1, 2, 'a')"
    assert brief(list(range(1200))) == "[0, 1, 2, 3, ... 1,200 in all]"
    assert brief({"f": torch.zeros(2, 3)}) == "{'f': float32[2, 3]}"
