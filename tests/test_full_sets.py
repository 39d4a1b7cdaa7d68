"""The distance between the full MNIST and Fashion-MNIST: values, passes, the exact zero."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import otdd_flash as otdd
from otdd_flash import LabelledDataset, OTDDSettings

pytestmark = pytest.mark.full


def pair(root, samples: int) -> tuple[LabelledDataset, LabelledDataset]:
    """Return equal samples of both."""
    return tuple(
        otdd.load(name, data_root=root, max_samples=samples) for name in ("mnist", "fashion-mnist")
    )


def dense_cost(x: LabelledDataset, y: LabelledDataset, labels: Tensor) -> Tensor:  # (n, m) float64
    """Return the cost of bytes: every product and sum is an integer below 2^53."""
    p, q = x.points.double(), y.points.double()
    squared = p.square().sum(1)[:, None] + q.square().sum(1)[None] - 2 * p @ q.mT
    return squared + labels[x.labels][:, y.labels]


def dense_value(cost: Tensor, eps: float, g: Tensor) -> float:
    """Return the regularised value by alternating updates from g, to an L1 error of 1e-8."""
    n, m = cost.shape
    scaled = cost / eps
    g = g / eps - torch.tensor(m, dtype=torch.float64).log()
    while True:
        f = -torch.logsumexp(g[None] - scaled, dim=1) - torch.tensor(n, dtype=torch.float64).log()
        update = -torch.logsumexp(f[:, None] - scaled, dim=0)
        columns = (g - update).exp()
        if float((columns - 1 / m).abs().sum()) < 1e-8:
            break
        g = update - torch.tensor(m, dtype=torch.float64).log()
    # both potentials carry their log weights
    both = f.mean() + g.mean() + torch.tensor(float(n * m), dtype=torch.float64).log()
    return eps * float(both)


def test_a_set_is_at_distance_zero_of_itself(full_data_root):
    x, y = (otdd.load("mnist", data_root=full_data_root, max_samples=3000) for _ in range(2))
    result = otdd.distance(x, y, device="cpu")
    assert result.distance == 0.0 and result.squared == 0.0 and result.converged


def test_two_thousand_samples_agree_with_dense_float64(full_data_root):
    x, y = pair(full_data_root, 2000)
    result = otdd.distance(x, y, device="cpu")
    assert result.converged and result.passes <= 45
    inner = [otdd.distance(s, s, device="cpu", epsilon=result.epsilon) for s in (x, y)]
    eps = result.epsilon
    true = dense_value(dense_cost(x, y, result.label_cost), eps, result.g)
    for side, term in zip((x, y), inner, strict=True):
        true -= dense_value(dense_cost(side, side, term.label_cost), eps, term.g) / 2
    assert result.squared == pytest.approx(true, rel=1e-5)
    low, high = result.squared_bounds
    assert low <= true <= high
    assert high - low < 5e-3 * true


@pytest.mark.parametrize(
    "epsilon, limits", [("1%", {1e-3: 45}), (0.1, {1e-2: 120, 1e-3: 160})], ids=["1%", "0.1"]
)
def test_passes_at_ten_thousand_samples(full_data_root, epsilon, limits):
    x, y = pair(full_data_root, 10_000)
    # half the cost of pixels in [0, 1]
    settings = OTDDSettings(
        epsilon=epsilon, convention="microsoft", normalize="unit", debias=False, device="cpu"
    )
    passes: dict[float, int] = {}
    for state in otdd.steps(x, y, settings):
        for limit in limits:
            if state.stage == "solve" and state.data.get("error", 1.0) < limit:
                passes.setdefault(limit, state.done)
    assert passes.keys() == limits.keys()
    for limit, most in limits.items():
        assert passes[limit] <= most, passes
