"""What is no dataset and no settings is refused with what to give instead, by every function."""

import pytest
from problems import dataset

import otdd_flash as otdd
from otdd_flash import DataError, FlowSettings, SettingsError

X, Y = dataset(9, 2, 0), dataset(8, 2, 1)
PAIRED = (otdd.distance, otdd.explain, otdd.value, otdd.flow)


@pytest.mark.parametrize("function", PAIRED)
def test_names_are_no_datasets(function):
    for pair in (("mnist-mini", Y), (X, (Y.points, Y.labels)), (None, Y)):
        with pytest.raises(DataError, match=r"is no dataset; load makes one .* load\(\"mnist-mini"):
            function(*pair)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: otdd.matrix(["a", "b"]), "'a' is no dataset"),
        (lambda: otdd.matrix(X), "arrived, expected a list of datasets"),
        (lambda: otdd.matrix("ab"), "'ab' arrived, expected a list"),
        (lambda: otdd.matrix(x for x in (X, Y)), "generator .* arrived, expected a list"),
        (lambda: otdd.rank(X, Y), "arrived, expected a list"),
        (lambda: otdd.rank("a", [Y]), "'a' is no dataset"),
        (lambda: otdd.rank(X, ["b"]), "'b' is no dataset"),
    ],
)
def test_a_list_of_datasets_is_one(call, message):
    with pytest.raises(DataError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        *((lambda f=f: f(X, Y, {"tol": 1e-2}), "OTDDSettings") for f in PAIRED[1:3]),
        (lambda: otdd.flow(X, Y, {"steps": 3}), "FlowSettings"),
        (lambda: otdd.distance(X, Y, settings=FlowSettings()), "OTDDSettings"),
        (lambda: otdd.distance(X, Y, confidence=20), "Confidence"),
        (lambda: otdd.matrix([X, Y], {}), "OTDDSettings"),
        (lambda: otdd.matrix([X, Y], confidence={}), "Confidence"),
        (lambda: otdd.rank(X, [Y], 1), "OTDDSettings"),
        (lambda: otdd.rank(X, [Y], confidence=True), "Confidence"),
    ],
)
def test_settings_are_of_their_kind(call, kind):
    with pytest.raises(SettingsError, match=rf"arrived, expected settings as {kind}\("):
        call()
