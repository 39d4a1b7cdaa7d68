"""Plans times vectors and in blocks of rows: streamed, stored and by the kernel, at odd sizes."""

from __future__ import annotations

import pytest
import torch
from clouds import FORCED, forced, pair_of, points, potential, to_device

from otdd_flash_kernels import reference
from otdd_flash_kernels.transport import BlockTransport, StoredTransport

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
compiled = [pytest.mark.gpu] if DEVICE == "cuda" else []
BACKENDS = [
    "blocks",
    "stored",
    *[pytest.param(name, marks=compiled) for name in ("triton", "triton, stored", *FORCED)],
]
CASES = [
    (1, 1, 1, "uint8", None),
    (1, 2, 3, "fp32", 2),
    (37, 129, 100, "uint8", None),
    (127, 31, 17, "fp32", 2),
    (64, 65, 70, "fp32", 2),
    (129, 127, 2, "uint8", None),
]


def problem(n, m, d, kind, slices, floats):
    """Return a pair, near-solved potentials, weights of both sides (some tiny) and eps."""
    pair = pair_of(points(kind, n, d, 1), points(kind, m, d, 2), slices=slices, floats=floats)
    eps = 0.1 * float(reference.cost_matrix(pair).mean())
    draw = torch.Generator().manual_seed(n + m)
    a, b = (torch.rand(k, generator=draw, dtype=torch.float64) + 0.1 for k in (n, m))
    a[0] = 1e-30
    a, b = a / a.sum(), b / b.sum()
    g = potential(m, eps, eps)
    return pair, reference.softmin(pair, g + eps * b.log(), eps), g, a, b, eps


def transport(backend, pair, f, g, a, b, eps):
    if "triton" not in backend:
        made = BlockTransport(pair, f, g, a, b, eps)
    else:
        from otdd_flash_kernels.hvp import TritonTransport

        f, g, a, b = (t.to(DEVICE) for t in (f, g, a, b))
        with forced(backend):
            made = TritonTransport(to_device(pair, DEVICE), f, g, a, b, eps)
    return StoredTransport(made, a, len(b)) if "stored" in backend else made


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_products_are_those_of_the_plan(case, backend, monkeypatch):
    kernel = "triton" in backend
    if kernel:
        hvp = pytest.importorskip("otdd_flash_kernels.hvp")
        # several blocks of rows
        monkeypatch.setattr(hvp, "BLOCK_ENTRIES", 64 * case[1])
    monkeypatch.setattr("otdd_flash_kernels.transport.BLOCK_ENTRIES", 10 * case[1])
    inputs = problem(*case, floats=not kernel)
    plan = reference.plan(*inputs)
    n, m = plan.shape
    made = transport(backend, *inputs)
    draw = torch.Generator().manual_seed(3)
    z, t = (torch.randn(k, generator=draw, dtype=torch.float64) for k in (m, n))
    # scores near 10 / eps and sums of up to 129 terms in float32: 2^-24 * (10 + 129) of the terms
    unit = 1e-5 if kernel else 1e-12
    device = DEVICE if kernel else "cpu"
    for got, truth, size in (
        (made.times(z.to(device)), plan @ z, plan @ z.abs()),
        (made.times_transposed(t.to(device)), plan.mT @ t, plan.mT @ t.abs()),
    ):
        assert got.dtype == torch.float64
        assert ((got.cpu() - truth).abs() <= unit * size).all()
    rows = torch.full_like(plan, torch.nan)
    spans = []
    for span, block in made.blocks():
        assert block.dtype == made.dtype
        rows[span] = block.cpu().double()
        spans.append((span.start, span.stop))
    assert ((rows * inputs[3][:, None] - plan).abs() <= unit * plan + 1e-300).all()
    assert [s for s, _ in spans] == [0, *(e for _, e in spans[:-1])] and spans[-1][1] == n
    # no block is lower than a kernel's tile
    assert len(spans) > 1 or n <= (128 if kernel else 64)


@pytest.mark.parametrize("slices", [1, 2, 3])
def test_blocks_of_integer_points_are_those_of_floats(slices):
    inputs = problem(23, 19, 5, "fp32", slices, floats=False)
    made, z = BlockTransport(*inputs), torch.arange(19.0).double()
    torch.testing.assert_close(made.times(z), reference.plan(*inputs) @ z, rtol=1e-11, atol=0)


def test_the_kernel_refuses_clouds_that_it_cannot_read():
    hvp = pytest.importorskip("otdd_flash_kernels.hvp")
    for floats, slices in ((True, None), (False, 3)):
        pair, *rest = problem(5, 4, 3, "fp32", slices, floats)
        with pytest.raises(ValueError, match="one or two slices"):
            hvp.TritonTransport(pair, *rest)
