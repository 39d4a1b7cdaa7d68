"""Every operator of every backend against the dense float64 formulas.

A backend's error is counted in units of what plain torch float32 makes of the same formula, or of
one rounding of the largest number in it where plain torch happens to be luckier than that.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from clouds import (
    FORCED,
    SPARSE,
    Plain,
    error,
    forced,
    magnitude,
    pair_of,
    points,
    potential,
    sparse_pair,
    sparse_points,
    to_device,
)

from otdd_flash_kernels import cpu, reference
from otdd_flash_kernels.cpu import CpuCost
from otdd_flash_kernels.pair import CostPair, unlabelled
from otdd_flash_kernels.quantize import Cloud, quantize

# float32 backends round three times where it matters: the column bias, the score, and the stored
# maximum or cost; tiles that leave columns out round those columns' part apart, by less. Measured
# over about 730 problems: 2.0 at most
K = 3
# float64 backends against a float64 truth, in roundings of the largest number: the truth itself
# errs by some. Measured over about 5,100 problems: 4.6 at most
K64 = 8

BACKENDS: list = ["stored", "streamed"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if find_spec("triton"):
    compiled = [pytest.mark.gpu] if DEVICE == "cuda" else []
    TRITON = pytest.param("triton", marks=compiled)
    BACKENDS += [TRITON, pytest.param("triton, stored", marks=compiled)]
    OTHER_CHIPS = [pytest.param(name, marks=compiled) for name in FORCED]
else:
    TRITON = pytest.param("triton", marks=pytest.mark.skip(reason="Triton is not installed"))
    OTHER_CHIPS = []

# (n, m, d, kind, slices), tiles of the interpreter being 32 x 32 x 32
CASES = [
    (1, 1, 1, "fp64", 2),
    (1, 129, 2, "uint8", None),
    (129, 1, 3, "integers", None),
    (2, 127, 15, "fp32", 1),
    (127, 2, 16, "fp16", 2),
    (129, 127, 17, "fp32", 2),
    (37, 41, 31, "pixels", None),
    (31, 67, 32, "fp64", 3),
    (61, 59, 33, "int64", None),
    (64, 33, 64, "fp16", 3),
    (33, 32, 65, "uint8", 2),
    (29, 31, 784, "uint8", None),
    (5, 33, 784, "fp32", 2),
    (2, 2, 17, "int64", 1),
    (1, 1, 784, "fp16", None),
    (127, 129, 1, "pixels", 3),
]
# float storage, for the CPU: float32 for bytes, float64 for the rest
FLOATS = [
    (1, 2, 3, "uint8"),
    (129, 127, 17, "uint8"),
    (31, 67, 784, "uint8"),
    (2, 3, 1, "int64"),
    (61, 59, 33, "fp16"),
    (37, 129, 16, "fp32"),
    (127, 41, 65, "fp64"),
]


class Operators:
    """One backend's operators of a pair, with CPU tensors in and out."""

    forward: Any
    backward: Any = None  # the streamed kernels of the transposed pair; the rest have their own

    def __init__(self, backend: str, pair: CostPair) -> None:
        if backend == "triton, stored":
            from otdd_flash_kernels.stored import StoredCost

            self.forward = StoredCost(to_device(pair, DEVICE))
            self.single = True
        elif backend.startswith("triton"):
            from otdd_flash_kernels.triton_cost import TritonCost

            pair = to_device(pair, DEVICE)
            with forced(backend):
                self.forward = TritonCost(pair)
                self.backward = TritonCost(pair.transposed)
            self.single = True
        else:
            self.forward = CpuCost(pair, store=backend == "stored")
            self.single = self.forward.dtype == torch.float32

    def _give(self, h):
        return h if isinstance(self.forward, CpuCost) else h.to(DEVICE)

    def softmin(self, h, eps):
        return self.forward.softmin(self._give(h), eps).cpu()

    def softmin_mean(self, h, eps):
        return tuple(part.cpu() for part in self.forward.softmin_mean(self._give(h), eps))

    def hardmin(self, g):
        return self.forward.hardmin(self._give(g)).cpu()

    def class_softmin(self, h, eps):
        return self.forward.class_softmin(self._give(h), eps).cpu()

    def softmin_transposed(self, h, eps):
        if self.backward is None:
            return self.forward.softmin_transposed(self._give(h), eps).cpu()
        return self.backward.softmin(self._give(h), eps).cpu()

    def hardmin_transposed(self, f):
        if self.backward is None:
            return self.forward.hardmin_transposed(self._give(f)).cpu()
        return self.backward.hardmin(self._give(f)).cpu()


@pytest.fixture(autouse=True)
def poisoned(monkeypatch):
    """Fill every fresh float buffer with NaN, and cut stored costs into small blocks."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(tensor):
        return tensor.fill_(torch.nan) if tensor.is_floating_point() else tensor

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    monkeypatch.setattr(cpu, "BLOCK_ENTRIES", 2500)
    if find_spec("triton"):
        from otdd_flash_kernels import stored

        monkeypatch.setattr(stored, "CHUNK_ENTRIES", 2500)
        monkeypatch.setattr(stored, "ALONG", (32, 64))
        monkeypatch.setattr(stored, "ACROSS", (64, 32))


@cache
def problem(case: tuple, classes: tuple = (3, 4)) -> tuple[CostPair, torch.Tensor]:
    n, m, d, kind, *slices = case
    pair = pair_of(
        points(kind, n, d, 1),
        points(kind, m, d, 2),
        classes=classes,
        slices=slices[0] if slices else None,
        floats=not slices,
    )
    return pair, reference.cost_matrix(pair)


def assert_accurate(operators, got, truth, plain, size) -> None:
    """Compare errors: ``size`` is the largest number of the formula."""
    if operators.single:
        allowed = K * max(error(plain, truth), 2.0**-24 * size)
    else:
        allowed = K64 * 2.0**-53 * size
    assert error(got, truth) <= allowed


def check_all(
    operators: Operators, pair: CostPair, cost: torch.Tensor, relative_eps: float
) -> None:
    scale = float(cost.mean().clamp(min=1e-3))
    eps = relative_eps * scale
    plain = Plain(pair)
    h = potential(pair.shape[1], scale / 4, eps)
    size = magnitude(cost, h, eps)

    def check(got, truth, usual):
        assert_accurate(operators, got, truth, usual, size)

    check(operators.softmin(h, eps), reference.softmin(pair, h, eps), plain.softmin(h, eps))
    check(operators.hardmin(h), reference.hardmin(pair, h), plain.hardmin(h))
    for got, truth, usual in zip(
        operators.softmin_mean(h, eps),
        reference.softmin_mean(pair, h, eps),
        plain.softmin_mean(h, eps),
        strict=True,
    ):
        check(got, truth, usual)
    check(
        operators.class_softmin(h, eps),
        reference.class_softmin(pair, h, eps),
        plain.class_softmin(h, eps),
    )

    other, other_plain = pair.transposed, Plain(pair.transposed)
    h = potential(pair.shape[0], scale / 4, eps)
    size = magnitude(cost, h, eps)
    check(
        operators.softmin_transposed(h, eps),
        reference.softmin(other, h, eps),
        other_plain.softmin(h, eps),
    )
    check(operators.hardmin_transposed(h), reference.hardmin(other, h), other_plain.hardmin(h))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_operators_on_integer_slices(case, backend):
    pair, cost = problem(case)
    check_all(Operators(backend, pair), pair, cost, 0.05)


# one slice, two slices in one sum, and two and three with a sum for each level
@pytest.mark.parametrize("backend", OTHER_CHIPS)
@pytest.mark.parametrize("case", [*CASES[7:12:2], CASES[2], (17, 33, 130, "fp32", 2)], ids=str)
def test_operators_as_other_chips_run_them(case, backend):
    pair, cost = problem(case)
    operators = Operators(backend, pair)
    if backend == "triton, float16":
        assert operators.forward.multiply == "float16"
    else:
        assert torch.is_tensor(operators.forward._operands.rows)
    check_all(operators, pair, cost, 0.05)


def truncated_cost(pair: CostPair) -> torch.Tensor:  # (n, m) float64
    """Return the cost that two slices in one int32 sum read, see softmin_narrow.py."""
    (x_down, x_up), (y_down, y_up) = (side.data.long() for side in (pair.rows, pair.columns))
    dots = (x_down @ y_down.mT + 128) >> 8
    dots = (dots + x_down @ y_up.mT + x_up @ y_down.mT + 128) >> 8
    dots = (dots + x_up @ y_up.mT).double() * 65536
    squared = pair.rows.bias[:, None] + pair.columns.bias - 2 * dots
    return pair.scale * squared + pair.label_cost[pair.row_labels][:, pair.column_labels]


NARROW = [(3, 5, 33, "fp64", 2), (127, 61, 64, "fp32", 2), (33, 129, 65, "fp16", 2)]


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("case", [*NARROW, (29, 31, 128, "fp32", 2)], ids=str)
def test_two_slices_in_one_integer_sum(case, backend):
    pair, true_cost = problem(case)
    operators = Operators(backend, pair)
    assert operators.forward.kind == "narrow"
    cost = truncated_cost(pair)
    # a cost that is read the same way from both sides, and near the true one
    assert torch.equal(cost.mT, truncated_cost(pair.transposed))
    assert error(cost, true_cost) <= operators.forward.truncated <= 2e-5 * true_cost.mean()
    eps = 0.05 * float(cost.mean())
    h = potential(pair.shape[1], float(cost.mean()) / 4, eps)
    allowed = K * 2.0**-24 * magnitude(cost, h, eps)
    score = h - cost
    weights = torch.softmax(score / eps, 1)
    soft, mean = operators.softmin_mean(h, eps)
    true_soft = -eps * torch.logsumexp(score / eps, 1)
    assert error(operators.softmin(h, eps), true_soft) <= allowed
    assert error(soft, true_soft) <= allowed
    true_mean = (weights * torch.where(weights > 0, score, 0.0)).sum(1)
    assert error(mean, true_mean) <= allowed
    assert error(operators.hardmin(h), (cost - h).amin(1)) <= allowed
    back = potential(pair.shape[0], float(cost.mean()) / 4, eps)
    true_back = -eps * torch.logsumexp((back[:, None] - cost) / eps, 0)
    assert error(operators.softmin_transposed(back, eps), true_back) <= allowed


@pytest.mark.parametrize("backend", [TRITON])
def test_clouds_with_far_points_keep_all_their_bits(backend):
    # one sample thirty times as far as the others makes steps coarse
    far = points("fp32", 40, 64, 3)
    far[7] *= 30
    pair = pair_of(far, points("fp32", 37, 64, 4), slices=2)
    operators = Operators(backend, pair)
    assert operators.forward.kind == "wide"
    check_all(operators, pair, reference.cost_matrix(pair), 0.05)


@pytest.mark.parametrize("backend", ["stored", "streamed"])
@pytest.mark.parametrize("case", FLOATS, ids=str)
def test_operators_on_centred_floats(case, backend):
    pair, cost = problem(case)
    operators = Operators(backend, pair)
    assert operators.single is (case[3] == "uint8")
    check_all(operators, pair, cost, 0.05)


# far below and above what a solve meets
TEMPERATURES = [1e-6, 1e-3, 10.0, 1e4]


@pytest.mark.parametrize("relative_eps", TEMPERATURES)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", [CASES[6], CASES[8]], ids=str)
def test_small_and_large_temperatures(case, backend, relative_eps):
    pair, cost = problem(case)
    check_all(Operators(backend, pair), pair, cost, relative_eps)


@pytest.mark.parametrize("relative_eps", TEMPERATURES)
@pytest.mark.parametrize("case", [FLOATS[2], FLOATS[4]], ids=str)
def test_small_and_large_temperatures_on_centred_floats(case, relative_eps):
    pair, cost = problem(case)
    check_all(Operators("streamed", pair), pair, cost, relative_eps)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("classes", [(12, 11), (1, 1), (1, 11), (12, 1)], ids=str)
def test_one_class_and_as_many_classes_as_points(classes, backend):
    pair, cost = problem((12, 11, 5, "fp32", 2), classes)
    check_all(Operators(backend, pair), pair, cost, 0.05)


@pytest.mark.parametrize("backend", BACKENDS)
def test_label_costs_of_classes_that_do_not_occur(backend):
    pair, _ = problem((40, 37, 5, "fp32", 2), (9, 8))
    rows = torch.arange(40) // 20 * 5 + 1  # 1 and 6 of 9
    columns = torch.arange(37) // 13 * 2 + 1  # 1, 3 and 5 of 8
    pair = replace(pair, row_labels=rows, column_labels=columns)
    operators = Operators(backend, pair)
    check_all(operators, pair, reference.cost_matrix(pair), 0.05)
    by_class = operators.class_softmin(torch.zeros(37, dtype=torch.float64), 0.1)
    absent = [0, 2, 4, 6, 7]
    assert (by_class[:, absent] == torch.inf).all()
    assert by_class[:, [1, 3, 5]].isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_class_softmins_add_up_to_the_softmin(backend):
    pair, cost = problem(CASES[6])
    eps = 0.05 * float(cost.mean())
    h = potential(pair.shape[1], 0.1, eps)
    operators = Operators(backend, pair)
    together = -eps * torch.logsumexp(-operators.class_softmin(h, eps) / eps, 1)
    whole = reference.softmin(pair, h, eps)
    assert_accurate(
        operators, together, whole, Plain(pair).softmin(h, eps), magnitude(cost, h, eps)
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("spared", [slice(0, 0), slice(0, 1), slice(66, 67), slice(33, 34)])
def test_whole_blocks_of_zero_weights(spared, backend):
    # all but one weight zero, or all: the first blocks of every loop hold nothing but -inf
    pair, cost = problem((67, 67, 3, "fp32", 2))
    h = torch.full((67,), -torch.inf, dtype=torch.float64)
    h[spared] = 0.3
    operators = Operators(backend, pair)
    plain, other = Plain(pair), Plain(pair.transposed)
    size = float(cost.max()) + 1
    for got, truth, usual in [
        (operators.softmin(h, 0.1), reference.softmin(pair, h, 0.1), plain.softmin(h, 0.1)),
        (
            operators.softmin_transposed(h, 0.1),
            reference.softmin(pair.transposed, h, 0.1),
            other.softmin(h, 0.1),
        ),
        (operators.hardmin(h), reference.hardmin(pair, h), plain.hardmin(h)),
        (
            operators.hardmin_transposed(h),
            reference.hardmin(pair.transposed, h),
            other.hardmin(h),
        ),
    ]:
        if spared == slice(0, 0):
            assert (got == torch.inf).all()
        assert_accurate(operators, got, truth, usual, size)
    if spared != slice(0, 0):
        # the mean of a single score is that score
        mean = operators.softmin_mean(h, 0.1)[1]
        score = (h[spared] - cost[:, spared])[:, 0]
        assert_accurate(operators, mean, score, plain.softmin_mean(h, 0.1)[1], size)


@pytest.mark.parametrize("backend", BACKENDS)
def test_ties(backend):
    # every column three times over: the hard minimum does not move by a bit, the soft one by log 3
    x, y = points("uint8", 33, 4, 3) // 86, points("uint8", 21, 4, 4) // 86
    g = potential(21, 1.0, 0.0, zeros=False).round()
    once = Operators(backend, unlabelled(*quantize(x, y)))
    thrice = Operators(backend, unlabelled(*quantize(x, y.repeat(3, 1))))
    assert torch.equal(once.hardmin(g), thrice.hardmin(g.repeat(3)))
    pair = unlabelled(*quantize(x, y))
    truth = reference.softmin(pair, g, 0.5) - 0.5 * math.log(3)
    cost = reference.cost_matrix(pair)
    plain = Plain(unlabelled(*quantize(x, y.repeat(3, 1)))).softmin(g.repeat(3), 0.5)
    got = thrice.softmin(g.repeat(3), 0.5)
    assert_accurate(thrice, got, truth, plain, magnitude(cost, g, 0.5))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", ["uint8", "fp32"])
def test_identical_points(kind, backend):
    # all costs are zero and so is the size that hardmin scales by
    x = points(kind, 1, 7, 5).repeat(35, 1)
    operators = Operators(backend, unlabelled(*quantize(x, x[:33].clone())))
    g = torch.linspace(-2, 2, 33, dtype=torch.float64)
    # g = 2 at best, rounded as a score
    least = torch.full((35,), -2.0, dtype=torch.float64)
    assert error(operators.hardmin(g), least) <= K * 2.0**-24 * 2
    h = torch.zeros(33, dtype=torch.float64)
    # 33 weights of one: exact in float32, its logarithm within a rounding of one
    expected = torch.full((35,), -0.1 * math.log(33), dtype=torch.float64)
    assert error(operators.softmin(h, 0.1), expected) <= 0.1 * math.log(33) * 2.0**-22


@pytest.mark.parametrize("backend", BACKENDS)
def test_offset_1000_costs_no_digit(backend):
    x, y = (1000 + (points("fp64", 35, 8, s) * 2**30).round() / 2**30 for s in (6, 7))
    near, far = quantize(x - 1000, y - 1000), quantize(x, y)
    h = potential(35, 1.0, 0.3)
    results = [Operators(backend, unlabelled(*clouds)).softmin(h, 0.3) for clouds in (near, far)]
    assert torch.equal(*results)


@pytest.mark.parametrize("backend", BACKENDS)
def test_non_contiguous_potentials_and_points(backend):
    x, y = points("fp32", 12, 35, 8).mT, points("fp32", 33, 24, 9)[:, ::2]
    operators = Operators(backend, unlabelled(*quantize(x, y)))
    same = Operators(backend, unlabelled(*quantize(x.contiguous(), y.contiguous())))
    h = potential(66, 1.0, 0.3)[::2]
    assert not h.is_contiguous()
    assert torch.equal(operators.softmin(h, 0.3), same.softmin(h.contiguous(), 0.3))
    assert torch.equal(operators.hardmin(h), same.hardmin(h.contiguous()))


@pytest.mark.parametrize("backend", BACKENDS)
def test_constant_columns(backend):
    x, y = points("fp32", 35, 20, 10), points("fp32", 33, 20, 11)
    for folded in (slice(0, 7), slice(None)):
        x[:, folded], y[:, 4:9] = 0.5, -0.25
        pair = unlabelled(*quantize(x, y))
        check_all(Operators(backend, pair), pair, reference.cost_matrix(pair), 0.05)


@pytest.mark.parametrize("backend", BACKENDS)
def test_same_call_twice_is_bit_equal(backend):
    pair, cost = problem(CASES[5])
    operators = Operators(backend, pair)
    h = potential(pair.shape[1], 1.0, 0.5)
    assert torch.equal(operators.softmin(h, 0.5), operators.softmin(h, 0.5))
    assert torch.equal(operators.class_softmin(h, 0.5), operators.class_softmin(h, 0.5))


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_cloud_with_itself(backend):
    x = points("uint8", 35, 6, 12)
    pair = unlabelled(*quantize(x, x))
    operators = Operators(backend, pair)
    g = torch.zeros(35, dtype=torch.float64)
    cost = reference.cost_matrix(pair)
    assert error(operators.hardmin(g), g) <= K * 2.0**-24 * float(cost.max())
    h = potential(35, 1.0, 100.0)
    rows, columns = operators.softmin(h, 100.0), operators.softmin_transposed(h, 100.0)
    assert error(rows, columns) <= K * 2.0**-24 * magnitude(cost, h, 100.0)


# kinds of rows and columns; the sparser side says what is left out
MIXED = [("black", kind) for kind in SPARSE] + [
    (kind, "black") for kind in SPARSE if kind != "black"
]
MIXED += [("white", "per column"), ("per column", "per column"), ("blank", "blank")]


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("by_extents", [True, False])
@pytest.mark.parametrize("kinds", MIXED, ids=str)
def test_sparse_clouds(kinds, by_extents, backend):
    # sorted by extent or not; both roles of both kinds, since all operators run transposed too
    x, y = (sparse_points(kind, n, 100, n) for kind, n in zip(kinds, (67, 77), strict=True))
    pair = sparse_pair(x, y, by_extents=by_extents)
    check_all(Operators(backend, pair), pair, reference.cost_matrix(pair), 0.05)


@pytest.mark.parametrize("backend", OTHER_CHIPS)
def test_sparse_clouds_as_other_chips_run_them(backend):
    x, y = sparse_points("white", 67, 100, 67), sparse_points("per column", 77, 100, 77)
    pair = sparse_pair(x, y)
    check_all(Operators(backend, pair), pair, reference.cost_matrix(pair), 0.05)


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kind", ["black", "white", "per column"])
def test_a_sparse_cloud_with_itself(kind, backend):
    x = sparse_points(kind, 70, 100, 13)
    pair = sparse_pair(x, x, classes=(3, 3))
    assert pair.rows is pair.columns
    operators, cost = Operators(backend, pair), reference.cost_matrix(pair)
    check_all(operators, pair, cost, 0.05)
    pair = unlabelled(pair.rows, pair.columns)
    got = Operators(backend, pair).hardmin(torch.zeros(70, dtype=torch.float64))
    assert float(got.abs().max()) <= K * 2.0**-24 * float(reference.cost_matrix(pair).max())


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("relative_eps", TEMPERATURES)
@pytest.mark.parametrize("roles", ["rows", "columns"])
def test_sparse_clouds_at_small_and_large_temperatures(roles, relative_eps, backend):
    x, y = sparse_points("black", 40, 100, 14), sparse_points("dense", 37, 100, 15)
    pair = sparse_pair(*((x, y) if roles == "rows" else (y, x)))
    check_all(Operators(backend, pair), pair, reference.cost_matrix(pair), relative_eps)


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kinds", [("black", "white"), ("dense", "black")], ids=str)
def test_every_sparse_column_its_own_class(kinds, backend):
    # one segment for each column, each with steps of its own: the softmin is the cost itself
    x, y = (sparse_points(kind, n, 100, n) for kind, n in zip(kinds, (33, 35), strict=True))
    pair = sparse_pair(x, y, classes=(2, 35), column_labels=torch.arange(35))
    cost = reference.cost_matrix(pair)
    got = Operators(backend, pair).class_softmin(torch.zeros(35, dtype=torch.float64), 1.0)
    assert error(got, cost) <= K * max(error(Plain(pair).cost, cost), 2.0**-24 * float(cost.max()))


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("kinds", [("black", "black"), ("dense", "black"), ("fp32", "fp32")])
@pytest.mark.parametrize("spared", [slice(0, 0), slice(0, 1), slice(64, 96), slice(159, 163)])
def test_many_segments_that_may_hold_no_weight(spared, kinds, backend, monkeypatch):
    # few rows: the columns are cut into as many segments as tiles, most of weight zero
    from otdd_flash_kernels import triton_cost

    monkeypatch.setattr(triton_cost, "wanted_programs", lambda device: 1000)
    if kinds[0] == "fp32":
        pair = pair_of(points("fp32", 20, 5, 16), points("fp32", 163, 5, 17), classes=(1, 4))
    else:
        x, y = (sparse_points(k, n, 100, n) for k, n in zip(kinds, (20, 163), strict=True))
        pair = sparse_pair(x, y, classes=(1, 4))
    operators, cost = Operators(backend, pair), reference.cost_matrix(pair)
    if DEVICE == "cpu":
        # five or six: a column that needs many steps makes a piece of its own
        assert len(operators.forward._whole[1]) > 5
    eps = 0.05 * float(cost.mean())
    check_all(operators, pair, cost, 0.05)
    h = torch.full((163,), -torch.inf, dtype=torch.float64)
    h[spared] = potential(163, float(cost.mean()) / 4, eps, zeros=False)[spared]
    size = magnitude(cost, h.nan_to_num(neginf=0.0), eps)
    plain = Plain(pair)
    soft, mean = operators.softmin_mean(h, eps)
    assert error(soft, operators.softmin(h, eps)) <= 2.0**-24 * size
    if spared == slice(0, 0):
        assert (soft == torch.inf).all() and mean.isnan().all()
    else:
        truth = reference.softmin_mean(pair, h, eps)[1]
        assert_accurate(operators, mean, truth, plain.softmin_mean(h, eps)[1], size)
    for got, truth, usual in [
        (soft, reference.softmin(pair, h, eps), plain.softmin(h, eps)),
        (operators.hardmin(h), reference.hardmin(pair, h), plain.hardmin(h)),
        (
            operators.class_softmin(h, eps),
            reference.class_softmin(pair, h, eps),
            plain.class_softmin(h, eps),
        ),
    ]:
        assert_accurate(operators, got, truth, usual, size)


@cache
def images(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return 150 embedded samples (150, 784) uint8 and their classes, sorted by class."""
    from otdd_flash.datasets import load

    dataset = load(name)
    labels, order = dataset.labels[:150].sort(stable=True)
    return dataset.points[:150][order], labels


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize(
    "names",
    [
        ("mnist-mini", "fashion-mnist-mini"),
        ("fashion-mnist-mini", "mnist-mini"),
        ("mnist-mini", "mnist-mini"),
    ],
    ids=str,
)
def test_real_images(names, backend):
    (x, lx), (y, ly) = (images(name) for name in names)
    pair = sparse_pair(x, y, classes=(10, 10), row_labels=lx, column_labels=ly)
    operators, cost = Operators(backend, pair), reference.cost_matrix(pair)
    true = (x.double()[:, None] - y.double()[None]).square().sum(-1)
    squared = reference.cost_matrix(replace(pair, label_cost=0 * pair.label_cost))
    assert torch.equal(squared.flatten().sort().values, true.flatten().sort().values)
    # something is left out, even by tiles as wide as a class
    forward = operators.forward
    assert min(int(forward._tiles[:, 3].min()), int(forward._by_class[0][:, 2].min())) < -(
        -pair.rows.data.shape[-1] // forward.launch.tile_depth
    )
    check_all(operators, pair, cost, 0.02)


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("d", [1, 16, 512])
def test_three_slices_lose_less_than_two_millionths(d, backend):
    # the lower two of five levels are left out: measured over 300 x 300 pairs of N(0, 1) at most
    # 1.3e-6 of the mean cost (d = 1), 4.4e-7 (d = 16) and 8e-8 (d = 512); float32 does the rest
    n = 24 if d < 512 else 12
    pair = pair_of(points("fp32", n, d, 18), points("fp32", n, d, 19), classes=(1, n), slices=3)
    pair = replace(pair, label_cost=torch.zeros((1, n), dtype=torch.float64))
    cost = reference.cost_matrix(pair)
    # every column a class of its own: the softmins are the costs
    got = Operators(backend, pair).class_softmin(
        torch.zeros(n, dtype=torch.float64), float(cost.mean())
    )
    rounding = K * 2.0**-24 * float(cost.max())
    assert error(got, cost) <= 2e-6 * float(cost.mean()) + (rounding if d < 16 else 0.0)


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("outlier", [0.0, 1e3])
def test_the_rounding_covers_what_three_slices_leave_out(outlier, backend):
    # one coordinate far out makes the grid coarse, and the levels left out large
    from otdd_flash.operators import TritonOperator, _rounding

    n = 12
    x, y = points("fp32", n, 512, 18), points("fp32", n, 512, 19)
    x[0, 0] += outlier
    pair = pair_of(x, y, classes=(1, n), slices=3)
    pair = replace(pair, label_cost=torch.zeros((1, n), dtype=torch.float64))
    cost = reference.cost_matrix(pair)
    operator = TritonOperator(to_device(pair, DEVICE))
    none = torch.zeros(n, dtype=torch.float64, device=DEVICE)
    # every column a class of its own: the softmins are the costs
    lost = error(operator.class_softmin(none, float(cost.mean())), cost)
    assert lost <= operator.rounding
    if outlier:
        assert lost > _rounding(pair, torch.float32)
    else:
        assert operator.rounding <= 3 * _rounding(pair, torch.float32)


@pytest.mark.parametrize("backend", OTHER_CHIPS)
@pytest.mark.parametrize("d", [1024, 4096])
def test_long_sums_of_products_as_other_chips_make_them(d, backend):
    # in float32 exact up to 2^24, then a last bit lost with each addition at most
    x = points("uint8", 5, d, 20)
    x[:2] = torch.tensor([[0], [255]])
    pair = unlabelled(*quantize(x, x.roll(1, 0)))
    pair = replace(
        pair,
        label_cost=torch.zeros((1, 5), dtype=torch.float64),
        column_labels=torch.arange(5),
    )
    operators, cost = Operators(backend, pair), reference.cost_matrix(pair)
    got = operators.class_softmin(torch.zeros(5, dtype=torch.float64), float(cost.mean()))
    exact = backend != "triton, float16" or d <= 1024
    assert (operators.forward.lost == 0) is exact
    assert error(got, cost) <= K * 2.0**-24 * float(cost.max()) + operators.forward.lost


def extreme(value: int, d: int, slices: int = 1) -> Cloud:
    """Return one point whose d coordinates are all ``value``, in each slice."""
    bias = torch.tensor([float(d) * (value * (256**slices // 255)) ** 2], dtype=torch.float64)
    data = torch.full((slices, 1, d), value, dtype=torch.int8)
    return Cloud(data, bias, 1.0, torch.zeros_like(bias))


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize("d", [131072, 131088])
def test_products_beyond_32_bits_are_refused(d, backend):
    with pytest.raises(ValueError, match="32-bit integers"):
        Operators(backend, unlabelled(extreme(-128, d), extreme(-128, d)))


@pytest.mark.parametrize("backend", [TRITON])
@pytest.mark.parametrize(("slices", "d"), [(2, 65536), (3, 43696)])
def test_sums_of_several_products_beyond_32_bits_are_refused(slices, d, backend):
    # one accumulator holds so many products of slices
    with pytest.raises(ValueError, match="32-bit integers"):
        Operators(backend, unlabelled(*[extreme(-128, d, slices)] * 2))
    Operators(backend, unlabelled(*[extreme(-128, d - 16, slices)] * 2))


@pytest.mark.parametrize("backend", [TRITON])
def test_products_just_inside_32_bits(backend):
    d = 131056  # 128^2 d = 2^31 - 2^18
    pair = unlabelled(extreme(-128, d), extreme(-128, d))
    got = Operators(backend, pair).hardmin(torch.zeros(1, dtype=torch.float64))
    # the cost is zero; norms and twice the product are 2^32, rounded on the way
    assert error(got, torch.zeros(1)) <= K * 2.0**-24 * 2.0**32


@pytest.mark.parametrize("backend", ["stored", "streamed", TRITON])
@pytest.mark.parametrize("eps", [0.1, 0.3, 7.0, 1e3])
def test_rounding_the_slope_moves_nothing_but_eps(eps, backend):
    # products that are powers of two and a column bias of zero leave scores without any rounding
    # in float32: what is left is the conversion back to cost, which is float64's business
    products = torch.tensor([1, 2, 32, 64], dtype=torch.int8)
    data = torch.zeros((1, 4, 16), dtype=torch.int8)
    data[0, :, 0] = products
    rows = Cloud(data, torch.full((4,), 1e4, dtype=torch.float64), 1.0, torch.zeros(4))
    columns = Cloud(data[:, 3:], torch.zeros(1, dtype=torch.float64), 1.0, torch.zeros(1))
    operators = Operators(backend, unlabelled(rows, columns))
    zero = torch.zeros(1, dtype=torch.float64)
    truth = 1e4 - 2.0 * products.double() * 64
    for got in (operators.hardmin(zero), operators.softmin(zero, eps)):
        assert error(got, truth) <= K64 * 2.0**-53 * 2e4


@pytest.mark.parametrize("backend", [TRITON])
def test_float_clouds_are_refused_by_the_kernels(backend):
    pair, _ = problem(FLOATS[5])
    with pytest.raises(ValueError, match="quantize"):
        Operators(backend, pair)


def test_stored_costs_are_the_size_they_say():
    for case in (FLOATS[1], FLOATS[5], CASES[5]):
        pair, _ = problem(case)
        stored = CpuCost(pair, store=True)
        blocks = [block for _, block in stored.blocks()]
        assert sum(b.numel() * b.element_size() for b in blocks) == CpuCost.bytes_to_store(pair)
        made = [block for _, block in CpuCost(pair, store=False).blocks()]
        assert len(made) > 1
        assert torch.equal(torch.cat(blocks), torch.cat(made))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE == "cpu", reason="needs a GPU")
def test_outputs_beyond_2_31_elements():
    from otdd_flash_kernels.triton_cost import TritonCost

    if torch.cuda.mem_get_info()[0] < 115e9:
        pytest.skip("needs 115 GB of free GPU memory")
    n, m = 53_693, 40_009  # n * m is just above 2^31
    x = torch.randint(0, 256, (n, 2), dtype=torch.uint8, device="cuda")
    y = torch.randint(0, 256, (m, 2), dtype=torch.uint8, device="cuda")
    pair = replace(
        unlabelled(*quantize(x, y)),
        label_cost=torch.zeros((1, m), dtype=torch.float64, device="cuda"),
        column_labels=torch.arange(m, device="cuda"),
    )
    # the softmin over one column is its cost
    by_class = TritonCost(pair).class_softmin(torch.zeros(m, device="cuda").double(), 1e3)
    for corner in (slice(0, 200), slice(-200, None)):
        true = (x[corner].double()[:, None] - y[corner].double()).square().sum(-1)
        assert float((by_class[corner, corner] - true).abs().max()) <= K * 2.0**-24 * 2 * 255**2
