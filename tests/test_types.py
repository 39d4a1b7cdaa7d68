"""What datasets and settings accept, and what they say to what they do not."""

import json
import warnings
from dataclasses import asdict

import numpy as np
import pandas as pd
import pytest
import torch

from otdd_flash.errors import DataError, LabelError, OTDDError, SettingsError, WeightError
from otdd_flash.settings import OTDDSettings, parse_epsilon
from otdd_flash.types import LabelledDataset

X = np.arange(6.0).reshape(3, 2)


def points(value):
    return LabelledDataset(value).points


def labelled(labels, **options):
    return LabelledDataset(X, labels, **options)


@pytest.mark.parametrize(
    ("given", "kept"),
    [("uint8", "uint8"), ("int8", "int8"), ("int16", "int16"), ("int32", "int32")]
    + [("int64", "int64"), ("float16", "float16"), ("float32", "float32"), ("float64", "float64")]
    + [("uint16", "int32"), ("uint32", "int64"), ("uint64", "int64"), ("bool", "float32")],
)
def test_points_keep_or_widen_their_dtype(given, kept):
    array = np.array([[0, 1], [1, 1]]).astype(given)
    for value in (array, torch.from_numpy(array), array.astype(array.dtype.newbyteorder(">"))):
        got = points(value)
        assert got.dtype == getattr(torch, kept)
        assert got.tolist() == [[0, 1], [1, 1]]


def test_points_at_the_ends_of_unsigned_types():
    assert points(np.array([65535], np.uint16)).tolist() == [[65535]]
    assert points(torch.tensor([2**32 - 1], dtype=torch.uint32)).tolist() == [[2**32 - 1]]
    big = np.array([1, 2**63], np.uint64)
    for value in (big, torch.from_numpy(big)):
        with pytest.raises(DataError, match="uint64 with values above 9223372036854775807; scale"):
            points(value)
    for value in ([-1, 2**63], [0.5, 2**53 + 1]):
        with pytest.raises(DataError, match=r"hold an integer of size 2\^53 or more.*scale"):
            points(value)
    assert points([0.5, 1e300]).tolist() == [[0.5], [1e300]]


@pytest.mark.parametrize("value", [2**53, -(2**53), -(2**63)])
def test_integers_that_float64_rounds(value):
    with pytest.raises(DataError, match=r"row 1 holds an integer of size 2\^53 or more.*offset"):
        points(np.array([[0], [value]]))
    assert points(np.array([[2**53 - 1]])).item() == 2**53 - 1


def test_longdouble_points():
    exact = np.array([[0.5, 3]], np.longdouble)
    assert points(exact).dtype == torch.float64
    with pytest.raises(DataError, match="row 0 holds NaN"):
        points(np.array([[np.nan]], np.longdouble))
    if np.finfo(np.longdouble).eps < np.finfo(np.float64).eps:
        for value in (np.longdouble(1) / 3, np.finfo(np.longdouble).max):
            with pytest.raises(DataError, match="1 values do not fit float64; round them"):
                points(np.array([[value]], np.longdouble))


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.ones(2, 2).to(torch.float8_e4m3fn), "dtype torch.float8_e4m3fn, expected .*convert"),
        (torch.ones(2, 2) * 1j, "complex64 torch.strided, expected dense reals; pass a dense"),
        (torch.ones(2, 2).to_sparse(), "torch.sparse_coo, expected dense reals"),
        (torch.ones(2, 2, device="meta"), "meta device, which holds no values"),
        (
            torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
            "a nested tensor",
        ),
        (np.ones((2, 2)) * 1j, "dtype complex128, expected numbers; convert"),
        ([[1.0], [1.0, 2.0]], "do not form an array .*rows of equal length"),
        ([torch.ones(2), torch.ones(3)], "tensors of different shapes"),
        (np.array([[1], [None]], object), "dtype object, expected numbers"),
        ([["a"]], "dtype <U1, expected numbers"),
        ({1, 2}, "dtype object"),
        (np.array(["2020-01-01"], "M8[D]"), "dtype datetime64"),
        (np.ma.masked_array(X, X > 4), "1 masked entries, expected all present; drop"),
        (3.0, "no samples arrived"),
        (np.ones((0, 2)), "no samples arrived"),
        (np.ones((2, 0)), "samples have no features"),
        (np.array([[1.0], [np.inf]]), r"row 1 holds NaN or infinity \(1 such rows\); drop"),
    ],
)
def test_points_that_cannot_be_used(value, message):
    with pytest.raises(DataError, match=f"cloud: .*{message}"):
        LabelledDataset(value, name="cloud")


def test_points_without_torch_warnings_and_without_a_graph():
    fixed = X.copy()
    fixed.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert points(fixed).tolist() == X.tolist()
        assert LabelledDataset(X, weights=np.broadcast_to(1 / 3, 3)).weights.sum() == 1
        assert points(X[::-1]).tolist() == X[::-1].tolist()
    for value in (torch.ones(2, 2, requires_grad=True), [torch.ones(2, requires_grad=True)] * 2):
        got = points(value)
        assert not got.requires_grad and got.shape == (2, 2)
    assert points(np.ma.masked_array(X, False)).tolist() == X.tolist()


def test_points_keep_memory_and_shape():
    assert points(X).numpy().base is not None and np.shares_memory(points(X).numpy(), X)
    images = LabelledDataset(np.zeros((2, 4, 5), np.uint8))
    assert images.sample_shape == (4, 5) and images.dimension == 20
    assert LabelledDataset([1.0, 2.0]).sample_shape == (1,)
    assert points(pd.DataFrame(X)).tolist() == X.tolist()


def test_weights_keep_the_digits_of_python():
    ours = [0.1, 0.2, 0.7]
    got = LabelledDataset(X, weights=ours).weights
    assert torch.equal(got, torch.tensor(ours, dtype=torch.float64) / sum(ours))
    for value in (np.array(ours, ">f8"), tuple(ours), torch.tensor(ours, requires_grad=True)):
        assert torch.allclose(LabelledDataset(X, weights=value).weights, got)
    assert LabelledDataset(X, weights=[True, False, False]).weights.tolist() == [1, 0, 0]


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ([1j, 0, 0], "dtype complex128, expected numbers; convert"),
        (torch.ones(3) * 1j, "complex64"),
        (["0.5", "0.5", "0"], "dtype <U3"),
        ([None, 0.5, 0.5], "dtype object"),
        ([object()] * 3, "dtype object"),
        ({0: 1.0}, "dtype object"),
        ("uniform", "dtype <U7"),
        ([[1.0], [0.0, 1.0]], "do not form an array"),
        (np.ma.masked_array([0.5, 0.5, 0], [0, 0, 1]), "1 masked entries"),
        ([0.5, 0.5], r"shape \(2,\), expected \(3,\)"),
        (1.0, r"shape \(\), expected \(3,\)"),
        ([0.5, np.nan, 0.5], "weight 1 is nan; weights must be finite"),
        ([1, 1, 0], "sum to 2, expected 1; pass"),
    ],
)
def test_weights_that_cannot_be_used(weights, message):
    with pytest.raises(WeightError, match=message):
        LabelledDataset(X, weights=weights)


@pytest.mark.parametrize(
    ("labels", "ids", "names"),
    [
        ([5, 3, 5], [1, 0, 1], ("3", "5")),
        (np.array([5, 3, 5], np.uint64), [1, 0, 1], ("3", "5")),
        (np.array([5, 3, 5], ">i4"), [1, 0, 1], ("3", "5")),
        (torch.tensor([5, 3, 5], dtype=torch.bfloat16), [1, 0, 1], ("3", "5")),
        ([5.0, 3, np.float32(5)], [1, 0, 1], ("3", "5")),
        ([torch.tensor(5), 3, np.int8(5)], [1, 0, 1], ("3", "5")),
        ([True, False, True], [1, 0, 1], ("False", "True")),
        (np.array([True, False, True]), [1, 0, 1], ("False", "True")),
        ([True, 0, 2], [1, 0, 2], ("0", "1", "2")),
        (["b", "a", "b"], [1, 0, 1], ("a", "b")),
        (np.array(["b", "a", "-1"]), [2, 1, 0], ("-1", "a", "b")),
        (["a\0", "a", "a\0"], [1, 0, 1], ("a", "a\0")),
        ([b"a\0", b"a", "é".encode()], [1, 0, 2], ("a", "a\0", "é")),
        (np.array([b"b", b"a", b"b"]), [1, 0, 1], ("a", "b")),
        ((k for k in (2, 1, 2)), [1, 0, 1], ("1", "2")),
        (pd.Series(["b", "a", "b"]), [1, 0, 1], ("a", "b")),
        (pd.Categorical([2, 1, 2]), [1, 0, 1], ("1", "2")),
        ([2**53 + 1, 2**53, 2**53 + 2], [1, 0, 2], tuple(str(2**53 + k) for k in range(3))),
        (np.ma.masked_array([2, 1, 2], False), [1, 0, 1], ("1", "2")),
        (None, [0, 0, 0], ("all",)),
    ],
)
def test_labels_that_are_fine(labels, ids, names):
    got = labelled(labels)
    assert got.labels.tolist() == ids and got.labels.dtype == torch.int64
    assert got.class_names == names


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, np.inf, 1], "label 1 is inf; classes must be integers or strings"),
        (np.array([0, np.inf, 1]), "label 1 is inf; classes"),
        ([0, 1, 0.5], "label 2 is 0.5; classes"),
        (np.array([0, 1, 2.0**53]), r"label 2 is .*2\^53 or more that may have lost digits; pass"),
        ([0, 1, 2.0**53], r"label 2 is .*2\^53 or more"),
        (["a", 1, "b"], r"mix str \(label 0: 'a'\) and int \(label 1: 1\); use one kind"),
        ([b"a", "a", "b"], r"mix bytes .* and str"),
        (np.array(["a", 1, 2], object), "mix str .* and int"),
        (np.array([0, 1, 2**63], np.uint64), "label 2 is 9223372036854775808, beyond int64; ren"),
        ([0, 1, 2**63], "label 2 is 9223372036854775808, beyond int64"),
        ([0, None, -1], r"2 of 3 labels are missing \(-1, NaN or None"),
        (["a", float("nan"), "b"], "1 of 3 labels are missing"),
        (np.array([0, -1, np.nan]), "2 of 3 labels are missing"),
        (torch.tensor([0, -1, 2]), "1 of 3 labels are missing"),
        (pd.Series([1, None, 2], dtype="Int64"), "1 of 3 labels are missing"),
        (pd.Series(["a", None, "b"], dtype="string"), "1 of 3 labels are missing"),
        (np.ma.masked_array([0, 1, 2], [0, 1, 1]), "2 of 3 labels are missing.*masked"),
        ({0, 1, 2}, r"labels are a set \(\{0, 1, 2\}\), expected a list or an array"),
        ({0: 1, 1: 1, 2: 1}, "labels are a dict"),
        (3, r"labels are a int \(3\), expected"),
        ("abc", "labels are a str"),
        ([[0], [1], [2]], r"label 0 is a list \(\[0\]\); classes must be"),
        ([(0, 1), (1, 0), (2, 0)], "label 0 is a tuple"),
        ([0, 1, 1j], "label 2 is a complex"),
        (np.zeros((3, 2), int), r"shape \(3, 2\), expected \(3,\)"),
        (pd.DataFrame({"a": [0], "b": [1], "c": [2]}), "labels have 2 axes, expected one"),
        ([0, 1], r"shape \(2,\), expected \(3,\): one a sample"),
        (np.ones(3) * 1j, "dtype complex128; expected integers or strings"),
        (torch.ones(3).to_sparse(), "sparse_coo"),
        ([b"a", b"\xff", b"b"], r"label 1 is b'\\xff', which is no UTF-8; decode"),
        (np.array([b"a", b"\xff", b"b"]), "which is no UTF-8"),
    ],
)
def test_labels_that_cannot_be_used(labels, message):
    with pytest.raises(LabelError, match=message):
        labelled(labels)


@pytest.mark.parametrize("names", [["a", "b", "c"], ("a", "b", "c"), np.array(["a", "b", "c"])])
def test_class_names(names):
    got = labelled([2, 0, 2], class_names=names)
    assert got.class_names == ("a", "c")
    assert all(type(name) is str for name in got.class_names)
    assert got.subset(torch.tensor([0])).class_names == ("c",)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ((n for n in "abc"), "class_names is a generator .*expected a list of strings"),
        (3, r"class_names is a int \(3\)"),
        ({"a", "b", "c"}, "class_names is a set"),
        ("abc", "class_names is a str"),
        (["a", "b", "a"], "class names 0 and 2 are both 'a'; names must be unique"),
        (["a", 1, "b"], "class name 1 is 1, expected a string"),
        (
            ["a", "b"],
            r"2 class names cannot name the labels 0\.\.2; labels must be integers 0\.\.1",
        ),
    ],
)
def test_class_names_that_cannot_be_used(names, message):
    with pytest.raises(LabelError, match=message):
        labelled([0, 1, 2], class_names=names)
    with pytest.raises(LabelError, match="class names cannot name the labels 'a'..'c'"):
        labelled(["a", "b", "c"], class_names=["x", "y", "z"])


def test_sample_shape_and_provenance():
    got = LabelledDataset(np.ones((2, 6)), sample_shape=[np.int64(2), 3], provenance={"a": 1})
    assert got.sample_shape == (2, 3) and type(got.sample_shape[0]) is int
    assert got.provenance == {"a": 1}
    assert LabelledDataset([1.0], sample_shape=()).sample_shape == (1,)
    for shape in ((-2, -3), (2.0, 3), 6, "6", (True, 6)):
        with pytest.raises(DataError, match="sample_shape is .*, expected positive integers"):
            LabelledDataset(np.ones((2, 6)), sample_shape=shape)
    with pytest.raises(DataError, match=r"\(2, 2\) has 4 entries, the samples have 6"):
        LabelledDataset(np.ones((2, 6)), sample_shape=(2, 2))
    for origin in ("here", [("a", 1)], 3):
        with pytest.raises(DataError, match="provenance is .*, expected a dict"):
            LabelledDataset(X, provenance=origin)


def test_settings_take_scalars_of_numpy():
    given = OTDDSettings(
        epsilon=np.float32(0.5),
        tol=np.float32(0.25),
        max_passes=np.int64(7),
        lambda_x=np.int32(2),
        lambda_y=np.float64(0.5),
        debias=np.bool_(False),
        slices=np.int8(2),
        memory_budget=np.uint64(10**9),
        device=np.str_("cpu"),
        normalize=np.str_("unit"),
    )
    plain = OTDDSettings(
        epsilon=0.5,
        tol=0.25,
        max_passes=7,
        lambda_x=2,
        lambda_y=0.5,
        debias=False,
        slices=2,
        memory_budget=10**9,
        device="cpu",
        normalize="unit",
    )
    assert given == plain and repr(given) == repr(plain)
    assert json.loads(json.dumps(asdict(given))) == asdict(plain)
    assert OTDDSettings() == OTDDSettings(epsilon="1%", tol=1e-3, slices=None, memory_budget=None)
    assert OTDDSettings(epsilon=1).epsilon == 1 and OTDDSettings(lambda_x=0).lambda_x == 0


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tol", 10**400, "tol is 1000.*, expected a finite number > 0"),
        ("tol", True, "tol is True, expected a number"),
        ("tol", np.bool_(True), "tol is .*True.*, expected a number"),
        ("tol", "1e-3", "tol is '1e-3', expected a number"),
        ("tol", 0, "tol is 0, expected a finite number > 0"),
        ("lambda_x", float("nan"), "lambda_x is nan, expected a finite number >= 0"),
        ("lambda_y", np.float32(-1), "lambda_y is -1.0, expected a finite number >= 0"),
        ("max_passes", True, "max_passes is True, expected an integer >= 1"),
        ("max_passes", 2.0, "max_passes is 2.0, expected an integer"),
        ("max_passes", 0, "max_passes is 0, expected an integer"),
        ("debias", 1, "debias is 1, expected True or False"),
        ("debias", "no", "debias is 'no', expected True or False"),
        ("debias", None, "debias is None, expected True or False"),
        ("slices", True, "slices is True, expected 1, 2, 3 or None"),
        ("slices", 2.0, "slices is 2.0, expected 1, 2"),
        ("slices", 4, "slices is 4, expected 1, 2"),
        ("memory_budget", "1GB", "memory_budget is '1GB', expected an integer number of bytes"),
        ("memory_budget", float("nan"), "memory_budget is nan, expected an integer number of byt"),
        ("memory_budget", float("inf"), "memory_budget is inf, expected an integer number of byt"),
        ("memory_budget", True, "memory_budget is True, expected an integer number of bytes"),
        ("memory_budget", 0, "memory_budget is 0, expected an integer number of bytes >= 1"),
        ("device", torch.device("cpu"), "device is device.*, expected a string"),
        ("device", None, "device is None, expected a string"),
        ("normalize", ["unit"], "normalize is .*, expected one of none, unit, mnist"),
        ("label_distance", np.array(["means", "x"]), "label_distance is .*expected one of"),
        ("epsilon", True, "epsilon is True; expected a number > 0"),
        ("epsilon", "0%", "epsilon is '0%'; expected a number > 0"),
    ],
)
def test_settings_outside_their_range(key, value, message):
    with pytest.raises(SettingsError, match=message) as caught:
        OTDDSettings(**{key: value})
    assert isinstance(caught.value, OTDDError)


def test_both_lambdas_zero_and_epsilon():
    with pytest.raises(SettingsError, match="lambda_x and lambda_y are both 0"):
        OTDDSettings(lambda_x=0, lambda_y=np.float64(0))
    assert parse_epsilon("1%") == (0.01, True) and parse_epsilon(0.1) == (0.1, False)
    assert parse_epsilon(" 2.5 ") == (2.5, False)


@pytest.mark.parametrize("key", ["tol", "epsilon"])
def test_an_integer_of_more_digits_than_python_prints(key):
    with pytest.raises(SettingsError, match=f"{key} is a huge int[,;] expected a"):
        OTDDSettings(**{key: 10**5000})
