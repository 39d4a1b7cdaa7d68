"""Gradients of the label cost through class laws: finite differences, autograd, degenerate laws."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from otdd_flash.errors import DataError, SettingsError
from otdd_flash.laws.attached import points_pull, weights_pull
from otdd_flash.laws.bures import gaussian_w2
from otdd_flash.laws.factors import factorize, pivots
from otdd_flash.laws.gaussians import KINDS, class_laws
from otdd_flash.laws.law_pulls import law_pull
from otdd_flash.laws.polar import polar_factor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# error of a central difference of step 1e-5 in float64: 1e-11 / 1e-5 of rounding of the distance,
# and 1e-10 of curvature
STEP, TOLERANCE = 1e-5, 1e-6
# samples, features, source classes, target classes
SHAPES = {
    "full rank": (20, 3, 2, 3),
    "fewer samples than features": (8, 7, 2, 3),
    "as many samples as features": (10, 5, 2, 2),
    "one sample": (3, 4, 3, 2),
    "one feature": (9, 1, 2, 2),
}


def samples(seed: int, n: int, d: int, classes: int, weighted: bool):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=g, dtype=torch.float64) * (1 + seed) + seed
    w = torch.rand(n, generator=g, dtype=torch.float64) + 0.2
    return x, torch.arange(n) % classes, w / w.sum() if weighted else torch.ones_like(w) / n


def weights_of_pairs(source: int, target: int) -> Tensor:
    g = torch.Generator().manual_seed(5)
    return torch.randn(source, target, generator=g, dtype=torch.float64)


def differences(value, point: Tensor, step: float = STEP) -> Tensor:
    """Return central differences of a function of one tensor."""
    out = torch.zeros_like(point)
    for i in range(point.numel()):
        move = torch.zeros_like(point)
        move.view(-1)[i] = step
        out.view(-1)[i] = (value(point + move) - value(point - move)) / (2 * step)
    return out


def check(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=0, atol=TOLERANCE * (1 + expected.abs().max()))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_equals_finite_differences(shape, weighted, kind):
    n, d, vx, vy = SHAPES[shape]
    x, lx, a = samples(0, n, d, vx, weighted)
    target = class_laws(*samples(1, n + 7, d, vy, weighted), kind=kind)
    mass = weights_of_pairs(vx, vy)

    def value(x: Tensor, a: Tensor) -> Tensor:
        return (mass * gaussian_w2(class_laws(x, lx, a, kind=kind), target)).sum()

    laws = class_laws(x, lx, a, kind=kind)
    pull = law_pull(laws, target, mass)
    check(points_pull(x, lx, a, laws, pull), differences(lambda moved: value(moved, a), x))
    # laws normalise weights inside a class, so that no simplex is left
    by_weight = weights_pull(x, lx, a, laws, pull)
    check(by_weight, differences(lambda moved: value(x, moved), a, 1e-3 * STEP * n))
    for c in range(vx):
        assert float(a[lx == c] @ by_weight[lx == c]) == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [9, 30])
def test_inside_a_dataset_both_sides_move(n, kind):
    x, labels, w = samples(2, n, 4, 3, True)
    mass = weights_of_pairs(3, 3)

    def value(x: Tensor) -> Tensor:
        laws = class_laws(x, labels, w, kind=kind)
        return (mass * gaussian_w2(laws, laws)).sum()

    laws = class_laws(x, labels, w, kind=kind)
    pull = law_pull(laws, laws, mass + mass.mT)
    check(points_pull(x, labels, w, laws, pull), differences(value, x))


@pytest.mark.parametrize("n", [8, 40])
def test_equals_autograd_of_the_dense_formula(n):
    x, lx, a = samples(0, n, 6, 2, True)
    y, ly, b = samples(1, 35, 6, 3, True)
    mass = weights_of_pairs(2, 3)

    def centred(points, weights):
        w = weights / weights.sum()
        mean = w @ points
        return mean, w.sqrt()[:, None] * (points - mean)

    x, a = x.requires_grad_(), a.requires_grad_()
    value = torch.zeros((), dtype=torch.float64)
    for c in range(2):
        for k in range(3):
            mu, f = centred(x[lx == c], a[lx == c])
            nu, g = centred(y[ly == k], b[ly == k])
            root = torch.linalg.svdvals(f @ g.mT).sum()
            value = value + mass[c, k] * (
                (mu - nu).square().sum() + f.square().sum() + g.square().sum() - 2 * root
            )
    value.backward()
    laws = class_laws(x.detach(), lx, a.detach())
    pull = law_pull(laws, class_laws(y, ly, b), mass)
    found = points_pull(x.detach(), lx, a.detach(), laws, pull)
    # two decompositions in float64, of condition below 1e4
    torch.testing.assert_close(found, x.grad, rtol=1e-10, atol=1e-10)
    found = weights_pull(x.detach(), lx, a.detach(), laws, pull)
    torch.testing.assert_close(found, a.grad, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [6, 60])
def test_equal_laws_do_not_pull(n, kind):
    x, labels, w = samples(0, n, 5, 2, False)
    laws = class_laws(x, labels, w, kind=kind)
    mass = torch.eye(2, dtype=torch.float64)
    pull = law_pull(laws, laws, mass)
    assert not points_pull(x, labels, w, laws, pull).abs().max() > 1e-15
    # the same law from rows in another order: a factor turned by a rotation
    other = class_laws(x.flip(0), labels.flip(0), w, kind=kind)
    found = points_pull(x, labels, w, laws, law_pull(laws, other, mass))
    assert found.abs().max() < 1e-13


def test_a_class_in_a_subspace_moves_as_its_target_does():
    # features 3 and 4 are constant in the source, feature 4 and a combination in the target
    x, lx, a = samples(0, 30, 5, 2, False)
    y, ly, b = samples(1, 30, 5, 2, False)
    x[:, 3:] = 2.0
    y[:, 4] = y[:, 0]
    target = class_laws(y, ly, b)
    mass = torch.ones(2, 2, dtype=torch.float64)

    def value(x: Tensor) -> Tensor:
        return (mass * gaussian_w2(class_laws(x, lx, a), target)).sum()

    laws = class_laws(x, lx, a)
    found = points_pull(x, lx, a, laws, law_pull(laws, target, mass))
    # a step that leaves the subspace raises the rank by a value of the size of the step, and the
    # distance by its root's error: 1e-16 / 1e-5 / 1e-5
    torch.testing.assert_close(found, differences(value, x), rtol=0, atol=1e-5)


def test_duplicates_and_points_give_finite_gradients():
    x = torch.tensor([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0], [4.0, 4.0], [4.0, 4.0], [5.0, 4.0]])
    labels = torch.tensor([0, 0, 0, 1, 1, 1])
    w = torch.full((6,), 1 / 6)
    for kind in KINDS:
        laws = class_laws(x, labels, w, kind=kind)
        target = class_laws(x.flip(1) * 2, labels, w, kind=kind)
        pull = law_pull(laws, target, torch.ones(2, 2))
        found = points_pull(x, labels, w, laws, pull)
        assert found.dtype == torch.float32 and torch.isfinite(found).all()
        assert torch.isfinite(weights_pull(x, labels, w, laws, pull)).all()
        # three equal samples pull their mean alone
        assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
        torch.testing.assert_close(found[0].double() * 3, pull.means[0], rtol=1e-6, atol=0)


def test_common_offsets_and_integers():
    g = torch.Generator().manual_seed(0)
    x = torch.randint(0, 50, (40, 3), generator=g, dtype=torch.uint8)
    y = torch.randint(20, 90, (50, 3), generator=g, dtype=torch.uint8)
    lx, ly = torch.arange(40) % 2, torch.arange(50) % 2
    a, b = torch.ones(40) / 40, torch.ones(50) / 50
    mass = weights_of_pairs(2, 2)
    found = []
    for points, others in ((x, y), (x.double() + 1e6, y.double() + 1e6)):
        laws = class_laws(points, lx, a)
        pull = law_pull(laws, class_laws(others, ly, b), mass)
        found.append(points_pull(points, lx, a, laws, pull))
        assert found[-1].dtype == torch.float64
    # float64 keeps 1e-10 of a unit beside the offset
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=1e-8)


def test_samples_without_weight_stay():
    x, labels, w = samples(0, 12, 3, 2, True)
    w[3] = 0.0
    w = w / w.sum()
    laws = class_laws(x, labels, w)
    target = class_laws(*samples(1, 20, 3, 2, False))
    pull = law_pull(laws, target, torch.ones(2, 2))
    found = points_pull(x, labels, w, laws, pull)
    assert not found[3].any() and weights_pull(x, labels, w, laws, pull)[3] == 0
    kept = w > 0
    alone = class_laws(x[kept], labels[kept], w[kept])
    found_alone = points_pull(x[kept], labels[kept], w[kept], alone, pull)
    assert torch.equal(found[kept], found_alone)


def test_pivots_make_a_factor_triangular():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(40, 6, generator=g, dtype=torch.float64)
    # a constant feature, a duplicate, one that depends on others, one of tiny variance
    x = torch.cat([x, x[:, :1] * 0, x[:, :1], x[:, 1:2] + x[:, 2:3], x[:, 3:4] * 1e-9], 1)
    cov = (x.mT @ x)[None]
    for batched in (False, True):
        # the kernel runs where there is a GPU
        (factor,) = factorize(cov.to(DEVICE if batched else "cpu"), batched=batched)
        factor = factor.cpu()
        columns = pivots(factor)
        square = factor[:, columns]
        assert len(factor) == 6 and torch.equal(square, square.triu())
        # rescaled to correlations it is as well conditioned as the samples
        unit = square / x[:, columns].norm(dim=0)
        assert torch.linalg.cond(unit) < 100


@pytest.mark.parametrize("shape", [(7, 7), (9, 4), (4, 9)])
def test_polar_factors_by_products(shape):
    g = torch.Generator().manual_seed(0)
    m = torch.randn(3, *shape, generator=g, dtype=torch.float64)
    m[1] *= torch.logspace(0, -6, shape[1], dtype=torch.float64)
    m[2, :, 1:] = 0
    u, s, vh = torch.linalg.svd(m, full_matrices=False)
    expected = (u * (s > 1e-12 * s[:, :1])[:, None]) @ vh
    # rounding over the smallest singular value that counts, 1e-6
    torch.testing.assert_close(polar_factor(m, 1e-13), expected, rtol=0, atol=1e-9)


def test_bad_input_is_refused():
    x, labels, w = samples(0, 12, 3, 2, False)
    laws = class_laws(x, labels, w)
    with pytest.raises(DataError, match=r"mass has shape \(2, 3\), expected \(2, 2\)"):
        law_pull(laws, laws, torch.ones(2, 3))
    with pytest.raises(SettingsError, match="make both of one kind"):
        law_pull(laws, class_laws(x, labels, w, kind="means"), torch.ones(2, 2))
    pull = law_pull(laws, laws, torch.ones(2, 2))
    with pytest.raises(DataError, match="the laws 3 features"):
        points_pull(x[:, :2], labels, w, laws, pull)
    with pytest.raises(DataError, match=r"class 0 has a factor of 3 rows for 2 samples"):
        points_pull(x[:4], labels[:4], w[:4], laws, pull)
