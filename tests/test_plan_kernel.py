"""Means under the rows of the plan, in every way that chips read and multiply points."""

from __future__ import annotations

import pytest
import torch
from clouds import FORCED, forced, pair_of, points, potential, to_device

from otdd_flash_kernels import reference

pytest.importorskip("triton")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
compiled = [pytest.mark.gpu] if DEVICE == "cuda" else []
BACKENDS = [pytest.param(name, marks=compiled) for name in ("triton", *FORCED)]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "case",
    [(37, 67, 100, "uint8", None), (67, 33, 20, "fp32", 2), (40, 65, 70, "fp32", 2)],
    ids=str,
)
def test_means_are_those_of_the_plan(case, backend, monkeypatch):
    from otdd_flash_kernels import plan

    n, m, d, kind, slices = case
    # several chunks of rows
    monkeypatch.setattr(plan, "CHUNK_ENTRIES", 32 * m)
    pair = pair_of(points(kind, n, d, 1), points(kind, m, d, 2), slices=slices)
    cost = reference.cost_matrix(pair)
    eps = 0.05 * float(cost.mean())
    h, values = potential(m, eps, eps), points("fp32", m, 3, 4)
    near = reference.softmin(pair, h, eps)
    with forced(backend):
        operator = plan.TritonPlan(to_device(pair, DEVICE))
    if backend == "triton, pointers":
        assert torch.is_tensor(operator._operands.rows)
    elif backend == "triton, float16":
        assert operator._operands.multiply == "float16"
    got = operator.means(h.to(DEVICE), eps, values.to(DEVICE), near.to(DEVICE))
    truth = torch.softmax((h - cost) / eps, 1) @ values.double()
    # each weight is rounded to 11 bits, in the numerator and in the denominator alike
    assert float((got.double().cpu() - truth).abs().max()) <= 2.0**-11 * float(values.abs().max())
