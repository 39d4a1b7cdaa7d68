"""Float64 truth of second derivatives: automatic differentiation of the dense dual objective.

Nothing here is shared with the package. With ``D(z, p) = <a, f> + <b, g> - eps sum a b exp(...)``
at its maximum over the potentials ``p = (f, g)``, the value ``V(z) = max_p D(z, p)`` has the
Hessian ``D_zz - D_zp D_pp^+ D_pz`` (implicit function theorem).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import truth
from torch import Tensor


@dataclass
class Clouds:
    """Weighted, labelled clouds and their label costs."""

    x: Tensor  # (n, d) float64
    y: Tensor  # (m, d)
    a: Tensor  # (n,)
    b: Tensor  # (m,)
    lx: Tensor  # (n,) int64
    ly: Tensor  # (m,)
    costs: tuple[Tensor, Tensor, Tensor]  # (Vx, Vy), (Vx, Vx), (Vy, Vy)

    @property
    def keywords(self) -> dict:
        """Labels as the package takes them."""
        return {"labels": (self.lx, self.ly), "label_cost": self.costs}

    @property
    def mean_cost(self) -> float:
        """Mean of the cost between the clouds."""
        cost = squared(self.x, self.y) + self.costs[0][self.lx][:, self.ly]
        return float(self.a @ cost @ self.b)


def clouds(n: int, m: int, d: int, seed: int, *, weighted: bool, labelled: bool) -> Clouds:
    """Return overlapping random clouds."""
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float64)

    def simplex(k: int) -> Tensor:
        w = torch.rand(k, generator=draw, dtype=torch.float64) + 0.1
        return w / w.sum() if weighted else torch.full((k,), 1.0 / k, dtype=torch.float64)

    def inside(v: int) -> Tensor:
        w = torch.rand(v, v, generator=draw, dtype=torch.float64) * d
        return (w + w.mT).fill_diagonal_(0.0)

    vx, vy = (min(n, 3), min(m, 2)) if labelled else (1, 1)
    lx, ly = (torch.randint(0, v, (k,), generator=draw) for v, k in ((vx, n), (vy, m)))
    lx[:vx], ly[:vy] = torch.arange(vx), torch.arange(vy)
    across = torch.rand(vx, vy, generator=draw, dtype=torch.float64) * d * labelled
    x, y = normal(n, d), 0.8 * normal(m, d) + 0.4
    return Clouds(x, y, simplex(n), simplex(m), lx, ly, (across, inside(vx), inside(vy)))


def squared(x: Tensor, y: Tensor) -> Tensor:  # (n, m)
    """Return squared distances by differences."""
    return (x[:, None] - y[None]).square().sum(-1)


def value_product(
    cost: Callable[..., Tensor],  # of the points, (n, m)
    points: tuple[Tensor, ...],
    moves: tuple[Tensor, ...],  # of the same shapes
    a: Tensor,
    b: Tensor,
    eps: float,
) -> list[Tensor]:
    """Return the product of the Hessian of OT_eps in all of the points."""
    solved = truth.sinkhorn(cost(*points).numpy(), a.numpy(), b.numpy(), eps)
    p = torch.cat([torch.from_numpy(solved.f), torch.from_numpy(solved.g)])
    n = len(a)

    def objective(p: Tensor, *points: Tensor) -> Tensor:
        f, g = p[:n], p[n:]
        scores = (f[:, None] + g[None] - cost(*points)) / eps
        return a @ f + b @ g - eps * (a[:, None] * b[None] * scores.exp()).sum()

    inner = torch.autograd.functional.hessian(lambda p: objective(p, *points), p)
    p = p.requires_grad_()
    points = tuple(t.clone().requires_grad_() for t in points)
    by_p, *by_points = torch.autograd.grad(objective(p, *points), (p, *points), create_graph=True)
    along = sum((g * v).sum() for g, v in zip(by_points, moves, strict=True))
    # D_pz v and D_zz v
    forcing, *explicit = torch.autograd.grad(along, (p, *points), retain_graph=True)
    answer = torch.linalg.lstsq(inner, forcing[:, None], rcond=1e-13, driver="gelsd").solution[:, 0]
    implicit = torch.autograd.grad(by_p @ answer, points)
    return [e - i for e, i in zip(explicit, implicit, strict=True)]


def product(
    c: Clouds,
    v: Tensor,  # (n, d)
    w: Tensor,  # (m, d)
    eps: float,
    *,
    debias: bool,
    factor: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Return the Hessian of the divergence times a direction of both clouds."""
    across, inside_x, inside_y = c.costs

    def cross(x: Tensor, y: Tensor) -> Tensor:
        return factor * squared(x, y) + across[c.lx][:, c.ly]

    def inside(labels: Tensor, costs: Tensor) -> Callable[[Tensor], Tensor]:
        return lambda x: factor * squared(x, x) + costs[labels][:, labels]

    hx, hy = value_product(cross, (c.x, c.y), (v, w), c.a, c.b, eps)
    if debias:
        hx = hx - value_product(inside(c.lx, inside_x), (c.x,), (v,), c.a, c.a, eps)[0] / 2
        hy = hy - value_product(inside(c.ly, inside_y), (c.y,), (w,), c.b, c.b, eps)[0] / 2
    return hx, hy
