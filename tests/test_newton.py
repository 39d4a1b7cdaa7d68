"""Newton's method, smallest eigenvalues and the way out of saddles, on functions known by heart."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash.curvature.descent import NewtonSettings
from otdd_flash.curvature.hybrid import AdamSettings, adam_newton_steps
from otdd_flash.curvature.landscape import Landscape
from otdd_flash.curvature.newton import newton_steps
from otdd_flash.curvature.trust_region import trust_step


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def symmetric(seed: int, values: Tensor) -> Tensor:
    """Return a matrix of given eigenvalues."""
    turned, _ = torch.linalg.qr(normal(seed, len(values), len(values)))
    return (turned * values) @ turned.mT


def rosenbrock(p: Tensor) -> Tensor:
    return (1 - p[0]) ** 2 + 100 * (p[1] - p[0] ** 2) ** 2


def double_well(p: Tensor) -> Tensor:
    # a saddle at 0 with the eigenvalues 2 and -1, minima of -1/4 at (0, +-1)
    return p[0] ** 2 - p[1] ** 2 / 2 + p[1] ** 4 / 4


class TestTrustStep:
    """The quadratic model inside a ball."""

    def test_takes_newtons_step_where_it_fits(self):
        matrix, gradient = symmetric(1, torch.linspace(1.0, 9.0, 12).double()), normal(2, 12)
        step, fall, kind = trust_step(matrix.mv, gradient, 1e3, tol=1e-12, most=99)
        newton = -torch.linalg.solve(matrix, gradient)
        torch.testing.assert_close(step, newton, rtol=1e-9, atol=1e-12)
        assert kind == "inside" and fall == pytest.approx(float(-gradient @ newton / 2))

    @pytest.mark.parametrize("values", [(1.0, 9.0), (-3.0, 9.0), (-9.0, -1.0), (0.0, 0.0)])
    def test_stays_in_the_ball_and_falls_more_than_the_steepest_descent(self, values):
        matrix = symmetric(1, torch.linspace(*values, 12).double())
        gradient, radius = normal(2, 12), 0.1
        step, fall, kind = trust_step(matrix.mv, gradient, radius, tol=1e-12, most=99)
        assert float(step.norm()) == pytest.approx(radius)
        assert kind in ("boundary", "curvature")
        assert fall == pytest.approx(float(-gradient @ step - step @ matrix @ step / 2))
        direction = gradient / gradient.norm()
        curved = float(direction @ matrix @ direction)
        slope = float(gradient.norm())
        length = min(radius, slope / curved) if curved > 0 else radius
        assert fall >= slope * length - curved * length**2 / 2 - 1e-12

    def test_stops_at_the_tolerance_and_at_most_so_many_products(self):
        matrix, gradient = symmetric(1, torch.linspace(1.0, 99.0, 30).double()), normal(2, 30)
        counted = []

        def product(v: Tensor) -> Tensor:
            counted.append(1)
            return matrix @ v

        trust_step(product, gradient, 1e3, tol=0.5 * float(gradient.norm()), most=99)
        few = len(counted)
        trust_step(product, gradient, 1e3, tol=0.0, most=7)
        assert few < 5 and len(counted) == few + 7


class TestNewton:
    """newton_cg."""

    def test_ends_quadratically(self):
        result = otdd.newton_cg(
            rosenbrock, torch.tensor([-1.2, 1.0], dtype=torch.float64), gtol=1e-12
        )
        torch.testing.assert_close(result.point, torch.ones(2).double(), rtol=0, atol=1e-12)
        assert result.converged and result.gradient < 1e-12 and result.steps < 40
        # the smallest eigenvalue of [[802, -400], [-400, 200]]
        assert result.eigenvalue == pytest.approx(0.39936, rel=1e-4)
        slopes = [state.gradient for state in result.history if state.kind == "inside"]
        last = [slope for slope in slopes if 1e-10 < slope < 0.1]
        assert len(last) >= 3
        # errors are squared, times at most the third derivative over the curvature
        assert all(b <= 10 * a**2 for a, b in zip(last, last[1:], strict=False) if a < 0.02)

    @pytest.mark.parametrize("method", [otdd.newton_cg, otdd.adam_newton])
    def test_leaves_a_saddle(self, method):
        start = torch.zeros(2).double()
        result = method(double_well, start, gtol=1e-9)
        assert result.converged and result.escapes == 1 and result.eigenvalue > 0
        assert result.value == pytest.approx(-0.25)
        kinds = [state.kind for state in result.history]
        assert kinds[0] == "start" and kinds[1] == "escape" and kinds[-1] == "minimum"
        assert result.history[1].eigenvalue == pytest.approx(-1.0)

    def test_takes_the_lower_of_both_ways(self):
        def tilted(p: Tensor) -> Tensor:
            return p[0] ** 2 - p[1] ** 2 / 2 + p[1] ** 4 / 4 + sign * p[1] ** 3 / 10

        for sign in (1.0, -1.0):
            for method in (otdd.newton_cg, otdd.adam_newton):
                end = method(tilted, torch.zeros(2).double(), gtol=1e-9).point
                assert float(end[1]) * sign == pytest.approx(-1.16119, abs=1e-4)

    def test_without_escape_a_saddle_is_an_end(self):
        result = otdd.newton_cg(double_well, torch.zeros(2).double(), escape=False)
        assert result.converged and result.steps == 0 and math.isnan(result.eigenvalue)

    def test_models_are_dicts_of_parameters(self):
        model = torch.nn.Linear(3, 2).double()
        features, wanted = normal(1, 40, 3), normal(2, 40, 2)

        def loss(parameters: dict[str, Tensor]) -> Tensor:
            out = torch.func.functional_call(model, parameters, (features,))
            return (out - wanted).square().mean()

        result = otdd.newton_cg(loss, dict(model.named_parameters()), gtol=1e-10)
        design = torch.cat([features, torch.ones(40, 1).double()], 1)
        truth = torch.linalg.lstsq(design, wanted).solution
        torch.testing.assert_close(result.point["weight"], truth[:3].mT, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(result.point["bias"], truth[3], rtol=1e-8, atol=1e-10)
        assert not result.point["weight"].requires_grad

    def test_point_clouds_meet(self):
        y = normal(1, 12, 2)

        def loss(x: Tensor) -> Tensor:
            return otdd.sinkhorn_divergence(x, y, epsilon=0.5, tol=1e-10, device="cpu")

        result = otdd.newton_cg(loss, y + 0.3 * normal(2, 12, 2), gtol=1e-8)
        # each point on one of the others, whichever it is
        gap, partner = torch.cdist(result.point, y).min(1)
        assert float(gap.max()) < 1e-5 and len(partner.unique()) == 12
        assert result.converged and result.eigenvalue > 0

    def test_single_precision_stays_single(self):
        start = torch.tensor([-1.2, 1.0])
        result = otdd.newton_cg(rosenbrock, start, gtol=1e-3)
        assert result.point.dtype == torch.float32 and result.converged

    def test_gains_below_rounding_are_measured_by_gradients(self):
        # values near 1e6 hide falls below 1e-10, the gradient goes on
        def loss(p: Tensor) -> Tensor:
            return 1e6 + p.square().sum() + p.pow(4).sum()

        result = otdd.newton_cg(loss, torch.tensor([0.3, -0.2]).double(), gtol=1e-12)
        assert result.converged and float(result.point.norm()) < 1e-12

    def test_history_watches_eigenvalues_and_what_the_caller_measures(self):
        start = torch.tensor([-1.2, 1.0], dtype=torch.float64)
        result = otdd.newton_cg(rosenbrock, start, watch=True, measure=lambda p: float(p[0]))
        assert all(math.isfinite(state.eigenvalue) for state in result.history)
        assert result.history[0].measure == -1.2 and result.history[-1].measure == pytest.approx(1)
        assert result.evaluations >= result.steps and result.products > 0
        counts = [state.evaluations for state in result.history]
        assert counts == sorted(counts)

    def test_steps_can_be_watched(self):
        landscape = Landscape(rosenbrock, torch.tensor([-1.2, 1.0], dtype=torch.float64))
        seen = list(newton_steps(landscape, NewtonSettings()))
        assert seen[0].stage == "newton" and seen[0].data["value"] == pytest.approx(24.2)
        assert "gradient" in seen[-1].note and seen[-1].done <= seen[-1].total
        landscape = Landscape(rosenbrock, torch.tensor([-1.2, 1.0], dtype=torch.float64))
        stages = [p.stage for p in adam_newton_steps(landscape, AdamSettings(), NewtonSettings())]
        assert stages[-1] == "newton"

    def test_spent_steps_warn(self):
        with pytest.warns(otdd.ConvergenceWarning, match="after 3 steps.*raise max_steps"):
            result = otdd.newton_cg(
                rosenbrock, torch.tensor([-1.2, 1.0], dtype=torch.float64), max_steps=3
            )
        assert not result.converged and result.steps == 3

    def test_an_unbounded_function_does_not_converge(self):
        with pytest.warns(otdd.ConvergenceWarning):
            result = otdd.newton_cg(
                lambda p: -p.square().sum(), torch.ones(2).double(), max_steps=9
            )
        assert not result.converged

    @pytest.mark.parametrize("method", [otdd.newton_cg, otdd.adam_newton])
    def test_a_saddle_above_an_abyss_ends_finite(self, method):
        with pytest.warns(otdd.ConvergenceWarning):
            result = method(lambda p: -p.square().sum(), torch.zeros(2).double(), max_steps=9)
        assert not result.converged and result.escapes == 1
        assert math.isfinite(result.value) and math.isfinite(result.gradient)

    def test_gradients_are_wanted_under_no_grad_too(self):
        with torch.no_grad():
            result = otdd.newton_cg(rosenbrock, torch.tensor([-1.2, 1.0], dtype=torch.float64))
        assert result.converged


class TestHybrid:
    """adam_newton."""

    def test_adam_hands_over_where_the_hessian_is_positive(self):
        start = torch.tensor([0.5, 0.3]).double()  # 3 y^2 < 1: negative curvature
        result = otdd.adam_newton(double_well, start, check_every=5, gtol=1e-9)
        kinds = [state.kind for state in result.history]
        last = max(i for i, kind in enumerate(kinds) if kind == "adam")
        assert "adam" not in kinds[last + 1 :] and kinds[-1] == "minimum" and last % 5 == 0
        eigenvalues = [s.eigenvalue for s in result.history[: last + 1]]
        seen = [v for v in eigenvalues if not math.isnan(v)]
        assert all(v < 0 for v in seen[:-1]) and seen[-1] > 0

    def test_spent_adam_steps_lead_to_newton_all_the_same(self):
        start = torch.tensor([0.5, 0.01]).double()
        result = otdd.adam_newton(double_well, start, adam_steps=3, check_every=2, gtol=1e-9)
        assert result.converged and result.value == pytest.approx(-0.25)


class TestMinEigenvalue:
    """min_hessian_eigenvalue."""

    @pytest.mark.parametrize("size", [1, 2, 20, 21, 60])
    def test_is_that_of_the_matrix(self, size):
        values = torch.linspace(-1.0, 5.0, size).double()
        matrix = symmetric(3, values)
        found = otdd.min_hessian_eigenvalue(
            lambda p: p @ matrix @ p / 2 + p.sum(), torch.zeros(size).double(), tol=1e-8
        )
        assert found.converged and found.value == pytest.approx(-1.0, abs=1e-7)
        assert float(found.vector.norm()) == pytest.approx(1.0)
        assert float((matrix @ found.vector + found.vector).norm()) <= found.residual + 1e-9
        assert found.largest == pytest.approx(float(values.abs().max()), rel=0.1)

    def test_zero_is_found_too(self):
        matrix = symmetric(3, torch.cat([torch.zeros(1), torch.linspace(1, 9, 39)]).double())
        found = otdd.min_hessian_eigenvalue(lambda p: p @ matrix @ p / 2, torch.zeros(40).double())
        assert found.converged and abs(found.value) < 1e-3
        linear = otdd.min_hessian_eigenvalue(torch.sum, torch.zeros(40).double())
        assert linear.converged and linear.value == 0.0

    def test_dicts_come_back_as_dicts(self):
        found = otdd.min_hessian_eigenvalue(
            lambda p: p["a"].square().sum() - 3 * p["b"].square().sum(),
            {"a": torch.zeros(2, 2).double(), "b": torch.zeros(1).double()},
        )
        assert found.value == pytest.approx(-6.0) and abs(float(found.vector["b"])) == 1.0
        assert not found.vector["a"].any()

    def test_of_the_divergence(self):
        # at a single pair of points the Hessian is twice the identity
        y = normal(1, 1, 3)
        found = otdd.min_hessian_eigenvalue(
            lambda x: otdd.sinkhorn_divergence(x, y, epsilon=0.1, device="cpu"), normal(2, 1, 3)
        )
        assert found.value == pytest.approx(2.0, rel=1e-12) and found.residual < 1e-12

    def test_spent_products_warn(self):
        matrix = symmetric(3, torch.linspace(-1.0, 5.0, 60).double())
        with pytest.warns(otdd.ConvergenceWarning, match="after 6 products: raise max_products"):
            found = otdd.min_hessian_eigenvalue(
                lambda p: p @ matrix @ p / 2, torch.zeros(60).double(), max_products=5
            )
        assert not found.converged and found.value > -1.0
        # an eigenvector was found, but the smallest eigenvalue is another one
        with pytest.warns(otdd.ConvergenceWarning, match="at most 2, with a residual of 0.0e"):
            found = otdd.min_hessian_eigenvalue(
                lambda p: p[0] ** 2 - p[1] ** 2, torch.zeros(2).double(), max_products=1
            )
        assert not found.converged

    @pytest.mark.parametrize("size", [3, 30])
    @pytest.mark.parametrize("scale", [1e-12, 1.0, -1e12])
    def test_all_eigenvalues_equal(self, size, scale):
        found = otdd.min_hessian_eigenvalue(
            lambda p: scale * p.square().sum(), torch.ones(size).double()
        )
        assert found.converged and found.value == pytest.approx(2 * scale, rel=1e-9)

    @pytest.mark.parametrize("epsilon", [0.1, 1.0])
    def test_of_the_divergence_where_it_is_not_convex(self, epsilon):
        y = normal(1, 9, 2)

        def value(x: Tensor) -> Tensor:
            return otdd.sinkhorn_divergence(
                *(x, y), epsilon=epsilon, tol=1e-10, max_passes=20_000, device="cpu"
            )

        x = 0.3 * normal(2, 12, 2)
        dense = torch.autograd.functional.hessian(value, x).reshape(24, 24)
        truth = torch.linalg.eigvalsh((dense + dense.mT) / 2)
        found = otdd.min_hessian_eigenvalue(value, x, tol=1e-6)
        # the square of the residual over the gap to the next eigenvalue
        assert found.value == pytest.approx(float(truth[0]), rel=1e-6) and found.value < 0

    def test_the_same_seed_twice(self):
        matrix = symmetric(3, torch.linspace(-1.0, 5.0, 60).double())
        one, other = (
            otdd.min_hessian_eigenvalue(
                lambda p: p @ matrix @ p / 2, torch.zeros(60).double(), seed=np.int64(4)
            )
            for _ in range(2)
        )
        assert one.value == other.value and torch.equal(one.vector, other.vector)


def test_bad_input_is_refused():
    start = torch.zeros(2).double()
    for fun, point, message in (
        (rosenbrock, [1.0, 2.0], r"the start is \[1.0, 2.0\], expected a tensor of floats"),
        (rosenbrock, torch.zeros(2).long(), "expected a tensor of floats"),
        (rosenbrock, {"w": 3.0}, "parameter 'w' is 3.0"),
        (rosenbrock, start * torch.nan, "the start holds NaN or infinity"),
        (rosenbrock, torch.zeros(0), "has no parameters"),
        (lambda p: 3.0, start, "the function returned 3.0, expected one number"),
        (lambda p: p, start, "the function returned tensor"),
        (lambda p: torch.ones(()), start, "does not depend on its parameters"),
        (lambda p: (p - 1).log().sum(), start, "at the start the function is nan"),
    ):
        for method in (otdd.newton_cg, otdd.adam_newton, otdd.min_hessian_eigenvalue):
            with pytest.raises(otdd.DataError, match=message):
                method(fun, point)
    for method, keywords, message in (
        (otdd.newton_cg, {"gtol": 0}, "gtol is 0, expected a finite number > 0"),
        (otdd.newton_cg, {"radius": -1.0}, "radius is -1.0"),
        (otdd.newton_cg, {"max_steps": 0}, "max_steps is 0, expected an integer >= 1"),
        (otdd.newton_cg, {"max_products": 2.5}, "max_products is 2.5"),
        (otdd.newton_cg, {"escape": "no"}, "escape is 'no', expected True or False"),
        (otdd.newton_cg, {"seed": -1}, "seed is -1, expected an integer >= 0"),
        (otdd.adam_newton, {"learning_rate": 0.0}, "learning_rate is 0.0"),
        (otdd.adam_newton, {"adam_steps": 0}, "adam_steps is 0"),
        (otdd.adam_newton, {"check_every": 0}, "check_every is 0"),
        (otdd.adam_newton, {"curvature_tol": -1.0}, "curvature_tol is -1.0"),
        (otdd.min_hessian_eigenvalue, {"tol": 0.0}, "tol is 0.0"),
        (otdd.min_hessian_eigenvalue, {"max_products": 0}, "max_products is 0"),
        (otdd.min_hessian_eigenvalue, {"seed": "x"}, "seed is 'x'"),
    ):
        with pytest.raises(otdd.SettingsError, match=message):
            method(rosenbrock, start, **keywords)


def test_nan_on_the_way_is_stepped_back_from():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        result = otdd.newton_cg(
            lambda p: (p - p.log()).sum(), torch.tensor([3.0, 5.0]).double(), radius=50.0
        )
    torch.testing.assert_close(result.point, torch.ones(2).double(), rtol=0, atol=1e-6)
