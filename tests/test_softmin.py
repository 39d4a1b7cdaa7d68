"""Every operator of every backend against the dense float64 formulas."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from clouds import (
    Plain,
    error,
    magnitude,
    pair_of,
    points,
    potential,
    unlabelled,
)
from softmin_backends import (
    BACKENDS,
    CASES,
    FLOATS,
    OTHER_CHIPS,
    TEMPERATURES,
    TRITON,
    K,
    Operators,
    assert_accurate,
    check_all,
    problem,
)

from otdd_flash_kernels import reference
from otdd_flash_kernels.pair import CostPair
from otdd_flash_kernels.quantize import quantize

pytestmark = pytest.mark.usefixtures("poisoned")


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
