"""Hessian-vector products against dense automatic differentiation, closed forms and differences."""

from __future__ import annotations

import warnings

import pytest
import second_order
import torch

import otdd_flash as otdd
from otdd_flash import hvp
from otdd_flash.curvature import hessian_term
from otdd_flash.losses.loss import sinkhorn_divergence

EXACT = {"tol": 1e-12, "max_passes": 50_000, "device": "cpu"}
# marginals to 1e-12 and linear systems to 1e-10, whose smallest eigenvalues are near 1e-3 at eps of
# 1 % of the mean cost: 1e-10 was measured, the goal is 1e-5
TOLERANCE = 1e-7


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def close(got: torch.Tensor, truth: torch.Tensor, tolerance: float = TOLERANCE) -> bool:
    assert got.shape == truth.shape
    return float((got - truth).norm()) <= tolerance * float(truth.norm())


@pytest.mark.parametrize("debias", [False, True])
@pytest.mark.parametrize("share", [0.01, 0.05, 0.5])
@pytest.mark.parametrize(
    ("n", "m", "d", "weighted", "labelled"),
    [
        (1, 7, 2, False, False),
        (13, 17, 1, True, True),
        (40, 30, 5, False, True),
        (200, 150, 16, True, False),
    ],
)
def test_products_are_those_of_the_dense_hessian(n, m, d, weighted, labelled, share, debias):
    c = second_order.clouds(n, m, d, n + d, weighted=weighted, labelled=labelled)
    eps, v, w = share * c.mean_cost, normal(1, n, d), normal(2, m, d)
    truth = second_order.product(c, v, w, eps, debias=debias)
    result = hvp(
        c.x, c.y, (v, w), c.a, c.b, wrt="xy", epsilon=eps, debias=debias, **c.keywords, **EXACT
    )
    assert result.converged and result.residual <= 1e-10 and result.marginal_error < 1e-12
    assert all(close(*pair) for pair in zip(result.product, truth, strict=True))


@pytest.mark.parametrize("share", [0.01, 0.5])
@pytest.mark.parametrize("shape", [(2, 3, 1), (37, 29, 7), (120, 90, 16)], ids=str)
def test_what_is_reached_without_asking(shape, share):
    n, m, d = shape
    c = second_order.clouds(n, m, d, sum(shape), weighted=True, labelled=True)
    eps, v, w = share * c.mean_cost, normal(1, n, d), normal(2, m, d)
    truth = second_order.product(c, v, w, eps, debias=True)
    result = hvp(c.x, c.y, (v, w), c.a, c.b, wrt="xy", epsilon=eps, device="cpu", **c.keywords)
    # the goal; marginals to 1e-7 count 20 times
    assert result.converged
    assert all(close(*pair, 1e-5) for pair in zip(result.product, truth, strict=True))


@pytest.mark.parametrize("debias", [False, True])
def test_blocks_and_factor(debias):
    c = second_order.clouds(12, 9, 3, 5, weighted=True, labelled=True)
    v, w, none = normal(1, 12, 3), normal(2, 9, 3), torch.zeros
    keywords = {"epsilon": 0.4, "factor": 0.5, "debias": debias, **c.keywords, **EXACT}
    one = second_order.product(c, v, none(9, 3).double(), 0.4, debias=debias, factor=0.5)
    other = second_order.product(c, none(12, 3).double(), w, 0.4, debias=debias, factor=0.5)
    for move, wrt, truth in (
        (v, "x", one[0]),
        ((v, None), "y", one[1]),
        ((None, w), "x", other[0]),
        (w, "y", other[1]),
    ):
        assert close(hvp(c.x, c.y, move, c.a, c.b, wrt=wrt, **keywords).product, truth)


def test_products_are_differences_of_gradients():
    c = second_order.clouds(20, 25, 3, 3, weighted=True, labelled=True)
    v, step = normal(1, 20, 3), 1e-5

    def gradient(x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        sinkhorn_divergence(x, c.y, c.a, c.b, epsilon=0.3, **c.keywords, **EXACT).backward()
        assert x.grad is not None
        return x.grad

    difference = (gradient(c.x + step * v) - gradient(c.x - step * v)) / (2 * step)
    got = hvp(c.x, c.y, v, c.a, c.b, epsilon=0.3, **c.keywords, **EXACT)
    # rounding of 1e-12 / 1e-5 and curvature of 1e-10
    assert close(got.product, difference, 1e-6)


def test_products_are_those_of_automatic_differentiation_through_the_iteration():
    c = second_order.clouds(5, 6, 2, 1, weighted=True, labelled=False)
    eps, v = 0.5 * c.mean_cost, normal(1, 5, 2)

    def value(x: torch.Tensor) -> torch.Tensor:
        cost, g = second_order.squared(x, c.y), torch.zeros(6, dtype=torch.float64)
        for _ in range(100):
            f = -eps * torch.logsumexp((g[None] - cost) / eps + c.b.log()[None], 1)
            g = -eps * torch.logsumexp((f[:, None] - cost) / eps + c.a.log()[:, None], 0)
        return c.a @ f + c.b @ g

    truth = torch.autograd.functional.hvp(value, c.x, v)[1]
    got = hvp(c.x, c.y, v, c.a, c.b, epsilon=eps, debias=False, **EXACT)
    assert close(got.product, truth)


def test_a_single_pair_of_points_has_the_hessian_two():
    x, y, v = normal(1, 1, 4), normal(2, 1, 4), normal(3, 1, 4)
    for debias in (False, True):
        for factor in (1.0, 0.5):
            result = hvp(x, y, v, debias=debias, factor=factor, epsilon=0.1, device="cpu")
            assert torch.equal(result.product, 2 * factor * v) and result.converged
            keywords = {"debias": debias, "factor": factor, "device": "cpu"}
            assert torch.equal(hvp(x, y, (v, None), wrt="y", **keywords).product, -2 * factor * v)


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_translations(offset):
    # S(x + t, y) = S(x, y) + 2 <t, mean x - mean y> + |t|^2: the gradient moves by 2 a t
    c = second_order.clouds(15, 11, 4, 2, weighted=True, labelled=True)
    t = normal(7, 1, 4)
    got = hvp(
        c.x + offset, c.y + offset, t.expand(15, 4), c.a, c.b, epsilon="5%", **c.keywords, **EXACT
    )
    assert close(got.product, 2 * c.a[:, None] * t)
    both = (t.expand(15, 4), t.expand(11, 4))
    still = hvp(c.x, c.y, both, c.a, c.b, wrt="xy", epsilon="5%", **c.keywords, **EXACT)
    assert max(float(p.abs().max()) for p in still.product) < 1e-9


def test_symmetric():
    c = second_order.clouds(30, 20, 3, 4, weighted=True, labelled=True)
    keywords = {"wrt": "xy", "epsilon": "2%", **c.keywords, **EXACT}
    moves = [(normal(k, 30, 3), normal(k + 9, 20, 3)) for k in (1, 2)]
    images = [hvp(c.x, c.y, v, c.a, c.b, **keywords).product for v in moves]
    one, other = (
        sum(float((p * q).sum()) for p, q in zip(images[k], moves[1 - k], strict=True))
        for k in (0, 1)
    )
    assert one == pytest.approx(other, rel=1e-9)


def test_equal_clouds_in_any_order():
    c = second_order.clouds(14, 14, 3, 6, weighted=True, labelled=False)
    order = torch.randperm(14, generator=torch.Generator().manual_seed(0))
    c.y, c.b, v, w = c.x[order], c.a[order], normal(1, 14, 3), normal(2, 14, 3)
    got = hvp(c.x, c.y, (v, w), c.a, c.b, wrt="xy", epsilon=0.5, **EXACT)
    truth = second_order.product(c, v, w, 0.5, debias=True)
    assert got.value == 0.0
    assert all(close(*pair) for pair in zip(got.product, truth, strict=True))


def test_samples_without_weight_and_trailing_axes():
    x, y, v = normal(1, 4, 2, 3), normal(2, 5, 2, 3), normal(3, 4, 2, 3)
    a = torch.tensor([0.5, 0.0, 0.3, 0.2])
    used = a > 0
    got = hvp(x, y, v, a, epsilon=1.0, **EXACT).product
    kept = hvp(x[used], y, v[used], a[used], epsilon=1.0, **EXACT).product
    assert got.shape == x.shape and not got[1].any()
    torch.testing.assert_close(got[used], kept, rtol=1e-9, atol=0)


def test_streamed_plans_give_what_stored_ones_do(monkeypatch):
    monkeypatch.setattr("otdd_flash_kernels.transport.BLOCK_ENTRIES", 100)
    c = second_order.clouds(23, 31, 3, 8, weighted=True, labelled=True)
    stored, streamed = (
        hvp(
            c.x, c.y, normal(1, 23, 3), c.a, c.b, memory_budget=budget, **c.keywords, **EXACT
        ).product
        for budget in (None, 64 << 20)
    )
    torch.testing.assert_close(streamed, stored, rtol=1e-7, atol=1e-9)


def test_integer_points_are_differentiated_in_float64():
    draw = torch.Generator().manual_seed(1)
    x, y = (torch.randint(0, 256, (k, 3), generator=draw).to(torch.uint8) for k in (9, 8))
    v = normal(3, 9, 3)
    keywords = {"epsilon": "5%", "tol": 1e-9, "max_passes": 9999, "device": "cpu"}
    got = hvp(x, y, v, **keywords).product
    assert close(got, hvp(x.double(), y.double(), v, **keywords).product, 1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="interpreted; below they are compiled")
@pytest.mark.parametrize("share", [0.01, 0.5])
def test_the_arithmetic_of_a_gpu(share, monkeypatch):
    pytest.importorskip("triton")
    from otdd_flash_kernels.hvp import TritonTransport
    from otdd_flash_kernels.pair import CostPair
    from otdd_flash_kernels.quantize import quantize

    def on_gpu(pair, f, g, a, b, eps, budget):
        same = pair.rows is pair.columns
        # on their grid already, which is found again
        rows, columns = quantize(
            pair.rows.data, pair.rows.data if same else pair.columns.data, slices=2
        )
        labels = pair.label_cost, pair.row_labels, pair.column_labels
        quantized = CostPair(rows, rows if same else columns, pair.scale * rows.step**2, *labels)
        return TritonTransport(quantized, f, g, a, b, eps)

    c = second_order.clouds(50, 41, 3, 8, weighted=True, labelled=True)
    eps, v = share * c.mean_cost, normal(1, 50, 3)
    truth, _ = second_order.product(c, v, torch.zeros_like(c.y), eps, debias=True)
    monkeypatch.setattr(hessian_term, "make_transport", on_gpu)
    x, y = (cloud.dense()[:, :3] * cloud.step for cloud in quantize(c.x, c.y, slices=2))
    got = hvp(x, y, v, c.a, c.b, epsilon=eps, **c.keywords, **EXACT)
    assert got.converged and got.residual <= 1e-5 and got.product.dtype == torch.float32
    # 16 bits a coordinate move costs by up to 5e-5 of the mean cost: 5e-3 of eps at 1 % of it, of
    # either sign for each pair; 2.6e-4 was measured
    assert close(got.product.double(), truth, 1e-3)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="skipped: no CUDA device")
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(("share", "slices"), [(0.01, 3), (0.01, 2), (0.05, 2), (0.5, 2)])
@pytest.mark.parametrize("shape", [(200, 150, 16), (127, 200, 2)], ids=str)
def test_products_on_a_gpu(shape, share, slices, labelled):
    c = second_order.clouds(*shape, 8, weighted=True, labelled=labelled)
    eps, v, w = share * c.mean_cost, normal(1, shape[0], shape[2]), normal(2, *shape[1:])
    truth = second_order.product(c, v, w, eps, debias=True)
    with warnings.catch_warnings():
        # float32 sums may not reach this tolerance
        warnings.simplefilter("ignore", otdd.ConvergenceWarning)
        got = hvp(
            *(c.x, c.y, (v, w), c.a, c.b),
            **{"wrt": "xy", "epsilon": eps, "tol": 2e-5, "slices": slices, "device": "cuda"},
            **c.keywords,
        )
    # at 1 % of the mean cost marginals of 2e-5 count ten times, and 16 bits a coordinate up to 7e-4
    tolerance = 1.5e-3 if (share, slices) == (0.01, 2) else 1e-3
    assert all(close(g.double(), t, tolerance) for g, t in zip(got.product, truth, strict=True))


class TestDoubleBackward:
    """Differentiating gradients once more."""

    def test_is_the_product(self):
        c = second_order.clouds(12, 10, 3, 5, weighted=True, labelled=True)
        v, w = normal(1, 12, 3), normal(2, 10, 3)
        keywords = {"epsilon": 0.3, **c.keywords, **EXACT}
        x, y = c.x.clone().requires_grad_(), c.y.clone().requires_grad_()
        value = 3 * sinkhorn_divergence(x, y, c.a, c.b, **keywords)
        gx, gy = torch.autograd.grad(value, (x, y), create_graph=True)
        hx, hy = torch.autograd.grad((gx * v).sum() + (gy * w).sum(), (x, y), retain_graph=True)
        truth = second_order.product(c, v, w, 0.3, debias=True)
        assert close(hx, 3 * truth[0]) and close(hy, 3 * truth[1])
        # again, from the same graph
        again = torch.autograd.grad((gx * v).sum(), x)[0]
        assert close(again, 3 * hvp(c.x, c.y, v, c.a, c.b, **keywords).product)

    def test_through_a_model(self):
        # S(theta p) with the penalty |grad|^2, against differences
        p, y = normal(1, 8, 2), normal(2, 9, 2) + 1
        theta = normal(3, 2, 2).requires_grad_()

        def penalty(theta: torch.Tensor) -> torch.Tensor:
            value = sinkhorn_divergence(p @ theta, y, epsilon=0.5, **EXACT)
            (gradient,) = torch.autograd.grad(value**2, theta, create_graph=True)
            return gradient.square().sum()

        (got,) = torch.autograd.grad(penalty(theta), theta)
        step = 1e-5 * normal(4, 2, 2)
        plus, minus = (penalty((theta.detach() + s * step).requires_grad_()) for s in (1, -1))
        assert float((got * step).sum()) == pytest.approx((plus - minus).item() / 2, rel=1e-6)

    def test_keeps_dtype_and_shape(self):
        x = normal(1, 6, 2, 2).float().requires_grad_()
        value = sinkhorn_divergence(x, normal(2, 5, 2, 2), epsilon=1.0, device="cpu")
        (gradient,) = torch.autograd.grad(value, x, create_graph=True)
        (second,) = torch.autograd.grad(gradient.square().sum(), x)
        assert second.dtype == torch.float32 and second.shape == x.shape

    def test_first_order_use_builds_no_graph(self):
        x = normal(1, 6, 2).requires_grad_()
        sinkhorn_divergence(x, normal(2, 5, 2), epsilon=1.0, device="cpu").backward()
        assert x.grad is not None and not x.grad.requires_grad

    @pytest.mark.parametrize(
        "of",
        [
            lambda f, x, v: torch.autograd.functional.hvp(f, x, v)[1],
            lambda f, x, v: torch.autograd.functional.vhp(f, x, v)[1],
            lambda f, x, v: torch.func.grad(lambda x: (torch.func.grad(f)(x) * v).sum())(x),
            lambda f, x, v: torch.einsum(
                "ijkl,kl->ij", torch.func.jacrev(torch.func.jacrev(f))(x), v
            ),
        ],
    )
    def test_is_the_product_in_every_form_of_torch(self, of):
        x, y, v = normal(1, 6, 2), normal(2, 5, 2), normal(3, 6, 2)
        keywords = {"epsilon": 1.0, "tol": 1e-10, "device": "cpu"}
        got = of(lambda x: sinkhorn_divergence(x, y, **keywords), x, v)
        assert close(got, hvp(x, y, v, **keywords).product, 1e-9)

    def test_inside_a_checkpoint(self):
        x, y = normal(1, 6, 2).requires_grad_(), normal(2, 5, 2)

        def value(x: torch.Tensor) -> torch.Tensor:
            return sinkhorn_divergence(x, y, epsilon=1.0, device="cpu")

        (truth,) = torch.autograd.grad(value(x), x)
        kept = torch.utils.checkpoint.checkpoint(value, x, use_reentrant=False)
        assert torch.equal(torch.autograd.grad(kept, x)[0], truth)

    # of torch itself
    @pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:FutureWarning")
    def test_refuses_what_it_does_not_know(self):
        x, y = normal(1, 6, 2).requires_grad_(), normal(2, 5, 2)
        a = torch.full((6,), 1 / 6, dtype=torch.float64, requires_grad=True)
        keywords = {"epsilon": 1.0, "device": "cpu"}

        def value(x: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
            return sinkhorn_divergence(x, y, a, **keywords)

        gx, ga = torch.autograd.grad(value(x, a), (x, a), create_graph=True)
        for gradient, point in ((gx, a), (ga, x), (ga, a), (gx, (x, a))):
            with pytest.raises(otdd.SettingsError, match=r"in x and y only; .*a.detach\(\)"):
                torch.autograd.grad(gradient.sum(), point, retain_graph=True, allow_unused=True)
        with pytest.raises(otdd.SettingsError, match="in x and y only"):
            gx.sum().backward(retain_graph=True)
        # the points alone, though weights ask for gradients too
        second = torch.autograd.grad(gx.square().sum(), x)[0]
        assert close(second, hvp(x, y, 2 * gx.detach(), **keywords).product, 1e-4)

        (gx,) = torch.autograd.grad(value(x, a.detach()), x, create_graph=True)
        (second,) = torch.autograd.grad(gx.square().sum(), x, create_graph=True)
        with pytest.raises(otdd.SettingsError, match="third derivatives"):
            second.sum().backward()
        with pytest.raises(otdd.SettingsError, match=r"torch\.func\.jacrev\(torch"):
            torch.func.hessian(lambda x: value(x, a.detach()))(x.detach())
        with pytest.raises(otdd.SettingsError, match="loop over it, or use otdd_flash.SamplesLoss"):
            torch.func.vmap(lambda x: value(x, a.detach()))(torch.stack([x, x]).detach())

    def test_refuses_points_that_were_changed_in_place(self):
        x = normal(1, 6, 2)
        leaf = x.requires_grad_()
        value = sinkhorn_divergence(leaf, normal(2, 5, 2), epsilon=1.0, device="cpu")
        (gradient,) = torch.autograd.grad(value, leaf, create_graph=True)
        with torch.no_grad():
            leaf += 1
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            gradient.sum().backward()


@pytest.mark.parametrize("size", [1e-200, 1e-30, 1e30, 1e200])
def test_products_are_linear_in_directions_of_any_size(size):
    c = second_order.clouds(12, 9, 3, 5, weighted=True, labelled=True)
    v, w = normal(1, 12, 3), normal(2, 9, 3)
    keywords = {"wrt": "xy", "epsilon": 0.4, **c.keywords, **EXACT}
    one, other = (hvp(c.x, c.y, (s * v, s * w), c.a, c.b, **keywords).product for s in (1.0, size))
    assert all(close(p / size, q, 1e-9) for p, q in zip(other, one, strict=True))


def test_unconverged_solves_warn_and_say_what_to_do():
    c = second_order.clouds(30, 30, 2, 1, weighted=False, labelled=False)
    v, keywords = normal(1, 30, 2), {"epsilon": "1%", **EXACT}
    with pytest.warns(otdd.ConvergenceWarning, match="after 4 iterations.*raise cg_max or eps"):
        result = hvp(c.x, c.y, v, cg_max=2, **keywords)
    assert not result.converged and result.residual > 1e-3
    with pytest.warns(otdd.ConvergenceWarning, match="rounding hides smaller ones: raise cg_tol"):
        result = hvp(c.x, c.y, v, cg_tol=1e-30, **keywords)
    # rounding of a few last bits, times the sums' lengths: asked for the impossible, no worse
    assert not result.converged and result.residual < 1e-13
    with pytest.warns(otdd.ConvergenceWarning, match="marginal error"):
        result = hvp(c.x, c.y, v, **{**keywords, "max_passes": 10})
    assert not result.converged
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hvp(c.x, c.y, v, **keywords).converged


def test_bad_input_is_refused():
    x, y, v = normal(1, 3, 2), normal(2, 4, 2), normal(3, 3, 2)
    for move, wrt, error, message in (
        (v, "z", otdd.SettingsError, "wrt is 'z', expected one of x, y, xy"),
        (v, "xy", otdd.DataError, r"takes a pair \(vx, vy\)"),
        (v[:2], "x", otdd.DataError, r"direction of x has shape \(2, 2\), expected \(3, 2\)"),
        (v, "y", otdd.DataError, r"direction of y has shape \(3, 2\), expected \(4, 2\)"),
        ((None, None), "x", otdd.DataError, "at most one None"),
        (None, "x", otdd.DataError, "v is None, expected a direction"),
        ((v, v, v), "x", otdd.DataError, "v is a tuple of 3, expected a pair"),
        (v * torch.nan, "x", otdd.DataError, "direction of x holds NaN or infinity"),
        ("up", "x", otdd.DataError, "direction of x: points"),
    ):
        with pytest.raises(error, match=message):
            hvp(x, y, move, wrt=wrt)
    for keywords, message in (
        ({"cg_tol": 0.0}, "cg_tol is 0.0, expected a finite number > 0"),
        ({"cg_tol": 1.5}, "cg_tol is 1.5, expected a number between 0 and 1"),
        ({"cg_max": 0}, "cg_max is 0, expected an integer >= 1"),
        ({"factor": -1.0}, "factor is -1.0"),
        ({"tol": -1.0}, "tol is -1.0"),
        ({"device": 3}, "device is 3, expected a string"),
    ):
        with pytest.raises(otdd.SettingsError, match=message):
            hvp(x, y, v, **keywords)
    with pytest.raises(otdd.DataError, match="bring both to one feature space"):
        hvp(x, normal(2, 4, 3), v)
