"""``SamplesLoss`` beside GeomLoss run to convergence: values, gradients, potentials, shapes."""

from __future__ import annotations

import inspect

import geomloss
import pytest
import torch

import otdd_flash as otdd
from otdd_flash import SamplesLoss

FORMS = ("points", "weighted", "column weights")


def clouds(seed: int = 0, batch: int | None = None, dtype=torch.float64, masses=(1.0, 1.0)):
    """Return a, x, b, y; 25 and 31 points in the unit square and beside it."""
    draw = torch.Generator().manual_seed(seed)
    lead = () if batch is None else (batch,)

    def rand(*shape):
        return torch.rand(*lead, *shape, generator=draw, dtype=torch.float64)

    x, y = rand(25, 2), 0.7 * rand(31, 2) + 0.4
    a, b = rand(25) + 0.1, rand(31) + 0.1
    a, b = (m * w / w.sum(-1, keepdim=True) for m, w in zip(masses, (a, b), strict=True))
    return [t.to(dtype) for t in (a, x, b, y)]


def converged(**keywords):
    """Return GeomLoss with 700 steps, all of them near its target eps."""
    near = {"diameter": 2 * keywords["blur"], "scaling": 0.999}
    return geomloss.SamplesLoss(**keywords, **near, backend="tensorized")


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize(("blur", "reach"), [(0.07, None), (0.3, None), (0.05, 0.5), (0.2, 0.1)])
def test_values_and_gradients_are_those_of_a_converged_geomloss(blur, reach, debias):
    keywords = {"blur": blur, "reach": reach, "debias": debias}
    found = []
    for loss in (SamplesLoss(**keywords, tol=1e-6), converged(**keywords)):
        inputs = [t.requires_grad_() for t in clouds()]
        value = loss(*inputs)
        value.backward()
        found.append((value.detach(), [t.grad for t in inputs]))
    (value, gradients), (expected, theirs) = found
    assert value.dtype == expected.dtype and value.shape == expected.shape == ()
    # what GeomLoss is off after its steps
    assert value.item() == pytest.approx(expected.item(), rel=1e-3)
    eps, rho = blur**2, reach and reach**2
    for k, (mine, other) in enumerate(zip(gradients, theirs, strict=True)):
        if reach is None and k in (0, 2):
            # balanced potentials are free in a constant
            other = other - clouds()[k] @ other
        if rho is not None:
            # GeomLoss means to scale its backward pass by rho + eps, and does so by rho + eps / 2
            other = other * (rho + eps) / (rho + eps / 2)
        # marginals, unlike values, have errors of first order
        assert (mine - other).abs().max() < 1e-2 * other.abs().max()


@pytest.mark.parametrize("masses", [(3.0, 3.0), (0.2, 1.7)])
def test_other_masses(masses):
    reach = None if masses[0] == masses[1] else 0.4
    inputs = clouds(1, masses=masses)
    for debias in (True, False):
        keywords = {"blur": 0.1, "reach": reach, "debias": debias}
        mine, theirs = SamplesLoss(**keywords)(*inputs), converged(**keywords)(*inputs)
        if reach is not None and not debias:
            # GeomLoss leaves out what the entropy of the masses adds
            m, k = masses
            theirs = theirs + 0.1**2 * (m * k - (m + k) / 2)
        assert mine.item() == pytest.approx(theirs.item(), rel=1e-3)


@pytest.mark.parametrize("batch", [None, 1, 3])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_calls_shapes_and_dtypes_are_geomloss_s(batch, form, dtype):
    a, x, b, y = clouds(2, batch, dtype)
    arguments = {
        "points": (x, y),
        "weighted": (a, x, b, y),
        "column weights": (a[..., None], x, b[..., None], y),
    }[form]
    for potentials in (False, True):
        keywords = {"blur": 0.2, "potentials": potentials}
        mine, theirs = SamplesLoss(**keywords)(*arguments), converged(**keywords)(*arguments)
        for m, t in zip(*((v if potentials else (v,)) for v in (mine, theirs)), strict=True):
            assert m.shape == t.shape and m.dtype == t.dtype
            if not potentials:
                torch.testing.assert_close(m, t, rtol=1e-3, atol=0)


def test_a_batch_is_its_elements():
    inputs = [t.requires_grad_() for t in clouds(3, 3)]
    loss = SamplesLoss(blur=0.1)
    values = loss(*inputs)
    (values * torch.tensor([1.0, -2.0, 0.5])).sum().backward()
    for k, scale in enumerate((1.0, -2.0, 0.5)):
        single = [t[k].detach().clone().requires_grad_() for t in inputs]
        value = loss(*single)
        (scale * value).backward()
        assert torch.equal(value, values[k])
        for whole, part in zip(inputs, single, strict=True):
            torch.testing.assert_close(whole.grad[k], part.grad, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("debias", [True, False])
@pytest.mark.parametrize("reach", [None, 0.5])
def test_potentials_are_geomloss_s(reach, debias):
    a, x, b, y = clouds(4)
    # a sample without weight has a potential too
    a[0] = 0
    a = a / a.sum()
    keywords = {"blur": 0.1, "reach": reach, "debias": debias, "potentials": True}
    f, g = SamplesLoss(**keywords, tol=1e-6)(a, x, b, y)
    other_f, other_g = converged(**keywords)(a, x, b, y)
    if reach is None:
        assert (a @ f[0]).item() == pytest.approx((b @ g[0]).item(), abs=1e-9)
        shift = f[0, 1] - other_f[0, 1]
        other_f, other_g = other_f + shift, other_g - shift
    # the last steps of GeomLoss leave errors of this size in potentials of size 0.2
    torch.testing.assert_close(f, other_f, rtol=0, atol=2e-3)
    torch.testing.assert_close(g, other_g, rtol=0, atol=2e-3)


@pytest.mark.parametrize("reach", [None, 0.3])
def test_the_same_cloud(reach):
    a, x, _, _ = clouds(5)
    x.requires_grad_()
    value = SamplesLoss(reach=reach)(a, x, a, x.detach())
    value.backward()
    assert value.item() == 0 and not x.grad.any()
    f, g = SamplesLoss(reach=reach, potentials=True)(a, x, a, x)
    assert not f.any() and not g.any()


def test_names_and_defaults_are_geomloss_s():
    theirs = inspect.signature(geomloss.SamplesLoss.__init__).parameters
    mine = inspect.signature(SamplesLoss.__init__).parameters
    assert list(mine)[: len(theirs)] == list(theirs)
    assert {k: mine[k].default for k in theirs} == {k: v.default for k, v in theirs.items()}
    assert all(mine[k].kind is inspect.Parameter.KEYWORD_ONLY for k in list(mine)[len(theirs) :])
    assert isinstance(SamplesLoss(), torch.nn.Module) and "blur=0.05" in repr(SamplesLoss())


def test_what_has_no_effect_has_none():
    inputs = clouds(6)
    odd = {
        "scaling": 0.9,
        "diameter": 7.0,
        "truncate": None,
        "cluster_scale": 0.1,
        "verbose": True,
        "backend": "multiscale",
    }
    assert torch.equal(SamplesLoss(blur=0.1)(*inputs), SamplesLoss(blur=0.1, **odd)(*inputs))


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"loss": "energy"}, "expected 'sinkhorn'.*use GeomLoss"),
        ({"p": 1}, "p is 1; expected 2.*half the squared"),
        ({"cost": lambda x, y: 0}, "cost is .*expected None"),
        ({"kernel": "gaussian"}, "kernel is 'gaussian', expected None"),
        ({"backend": "keops"}, "expected one of auto, tensorized, online, multiscale"),
        ({"blur": 0}, "blur is 0, expected a finite number > 0"),
        ({"reach": -1.0}, "reach is -1.0, expected a finite number > 0"),
        ({"debias": 1}, "debias is 1, expected True or False"),
        ({"potentials": "yes"}, "potentials is 'yes'"),
        ({"tol": 0}, "tol is 0"),
    ],
)
def test_settings_that_cannot_be_honoured_are_refused(keywords, message):
    with pytest.raises(otdd.SettingsError, match=message):
        SamplesLoss(**keywords)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (lambda a, x, b, y: (a, a, x, b, b, y), otdd.SettingsError, "6 arguments.*cluster labels"),
        (lambda a, x, b, y: (x,), otdd.SettingsError, r"1 arguments; expected \(x, y\) or"),
        (lambda a, x, b, y: (x.numpy(), y), otdd.DataError, "argument 0 is a ndarray"),
        (lambda a, x, b, y: (x, y[:, :1]), otdd.DataError, r"x has shape \(25, 2\), y has"),
        (lambda a, x, b, y: (x[None], y), otdd.DataError, r"expected \(n, d\) and \(m, d\)"),
        (lambda a, x, b, y: (x[0], y[0]), otdd.DataError, r"of shape \(2,\), expected floats"),
        (lambda a, x, b, y: (x[:0], y), otdd.DataError, "at least one batch element, one sample"),
        (lambda a, x, b, y: (a[1:], x, b, y), otdd.WeightError, r"a has shape \(24,\), expected"),
        (lambda a, x, b, y: (2 * a, x, b, y), otdd.WeightError, "sum to 2 and 1;.*or set reach"),
        (lambda a, x, b, y: (0 * a, x, b, y), otdd.WeightError, "a: weights sum to 0"),
        (lambda a, x, b, y: (a, x * torch.nan, b, y), otdd.DataError, "row 0 holds NaN"),
    ],
)
def test_calls_that_cannot_be_answered_are_refused(arguments, error, message):
    with pytest.raises(error, match=message):
        SamplesLoss()(*arguments(*clouds(7)))


@pytest.mark.parametrize("reach", [None, 0.5])
def test_an_unconverged_loss_warns(reach):
    with pytest.warns(otdd.ConvergenceWarning, match="raise max_passes"):
        SamplesLoss(reach=reach, max_passes=3)(*clouds(8))
