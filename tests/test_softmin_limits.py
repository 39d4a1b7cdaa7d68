"""Where the operators' arithmetic ends: levels left out, 32-bit integers, sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from clouds import (
    error,
    pair_of,
    points,
    to_device,
    unlabelled,
)
from softmin_backends import (
    CASES,
    DEVICE,
    FLOATS,
    K64,
    OTHER_CHIPS,
    TRITON,
    K,
    Operators,
    problem,
)

from otdd_flash_kernels import reference
from otdd_flash_kernels.cpu import CpuCost
from otdd_flash_kernels.quantize import Cloud, quantize

pytestmark = pytest.mark.usefixtures("poisoned")


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
