r"""The smallest eigenvalue of a Hessian, from its products with directions.

Sources: the implicitly restarted Lanczos method of ARPACK (Lehoucq, Sorensen and Yang 1998), by
SciPy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.brief import Brief
from otdd_flash.curvature.landscape import Function, Landscape, Layout, Parameters
from otdd_flash.errors import ConvergenceWarning
from otdd_flash.settings import check_integer, check_number

# up to this many parameters all columns of the Hessian cost what Lanczos needs, and are exact
DENSE = 20
# the largest eigenvalue only sets the scale of the tolerance
ROUGH = 0.1
# restarts of ARPACK: it is stopped by the number of products
MOST = 10**6


@dataclass(frozen=True, eq=False, repr=False)
class MinEigenvalue(Brief):
    """The smallest eigenvalue of a Hessian and how exact it is."""

    value: float
    vector: Any  # of unit length, like the parameters
    largest: float  # in magnitude, to a tenth
    residual: float  # |H v - value v|: some eigenvalue is at most so far from value
    products: int
    converged: bool  # the search ended with a residual below the tolerance


def min_hessian_eigenvalue(
    fun: Function,
    point: Parameters,
    *,
    tol: float = 1e-4,
    max_products: int = 1000,
    seed: int = 0,
) -> MinEigenvalue:
    """Return the smallest eigenvalue of the Hessian of a function, with its eigenvector.

    Where the gradient is zero, a negative one says that the point is a saddle and which way is
    down.

    Args:
        fun: function of ``point`` that returns one number and can be differentiated twice, for
            example ``lambda x: otdd.sinkhorn_divergence(x, y)``.
        point: a tensor, or a dict of named tensors for ``torch.func.functional_call``.
        tol: residual to stop at, relative to the largest eigenvalue.
        max_products: products with the Hessian at most.
        seed: of the first direction.

    Raises:
        DataError, SettingsError.

    Warns:
        ConvergenceWarning: a residual above ``tol``, or a search that ``max_products`` ended.

    Memory: 20 vectors of the parameters' size on the CPU.
    """
    landscape = Landscape(fun, point)
    layout, local = landscape.layout, landscape.at_start()
    found = smallest(local.product, layout, tol=tol, most=max_products, seed=seed)
    if not found.converged:
        warnings.warn(
            f"the smallest eigenvalue is at most {found.value:.3g}, with a residual of "
            f"{found.residual:.1e} after {found.products:,} products: raise max_products or tol",
            ConvergenceWarning,
            stacklevel=2,
        )
    vector = layout.packed(layout.parts(found.vector))
    return replace(found, vector=vector)


def smallest(
    product: Callable[[Tensor], Tensor],
    layout: Layout,
    *,
    tol: float,
    most: int,
    seed: int,
) -> MinEigenvalue:  # its vector is (N,) float64
    """Return the smallest eigenvalue of a symmetric product with (N,) float64 vectors."""
    tol = check_number("tol", tol, positive=True)
    most, seed = check_integer("max_products", most, 1), check_integer("seed", seed, 0)
    watched = _Watched(product, layout.device, most)
    ended = True
    try:
        largest = (_by_columns if layout.size <= DENSE else _by_lanczos)(
            watched, layout.size, tol, seed
        )
    except _SpentError:
        # what was found so far may be an eigenvector, but not that of the smallest
        ended, largest = False, watched.largest
    vector = torch.from_numpy(watched.best).to(layout.device)
    image = product(vector)
    value = float(vector @ image)
    residual = float((image - value * vector).norm())
    done = ended and residual <= max(tol, 1e-12) * largest
    return MinEigenvalue(value, vector, largest, residual, watched.products + 1, done)


class _SpentError(Exception):
    """All products that were allowed are made."""


class _Watched:
    """A product that counts itself and keeps the direction of least curvature seen."""

    def __init__(
        self, product: Callable[[Tensor], Tensor], device: torch.device, most: int
    ) -> None:
        self._product, self._device, self._most = product, device, most
        self.products = 0
        self.least, self.largest = np.inf, 0.0
        self.best = np.zeros(0)

    def __call__(self, v: np.ndarray) -> np.ndarray:
        """Return the product with a vector (N,) or (N, 1)."""
        if self.products >= self._most:
            raise _SpentError
        v = v.reshape(-1)
        self.products += 1
        image = self._product(torch.from_numpy(v.copy()).to(self._device)).cpu().numpy()
        size = float(v @ v)
        if size > 0:
            self.note(v / np.sqrt(size), float(v @ image) / size)
        return image

    def note(self, vector: np.ndarray, curvature: float) -> None:
        """Remember a unit vector if the function curves less along it than along any other."""
        self.largest = max(self.largest, abs(curvature))
        if curvature < self.least:
            self.least, self.best = curvature, vector


def _by_columns(product: _Watched, size: int, tol: float, seed: int) -> float:
    columns = np.stack([product(column) for column in np.eye(size)], axis=1)
    values, vectors = np.linalg.eigh((columns + columns.T) / 2)
    product.note(vectors[:, 0], -np.inf)
    return float(np.abs(values).max())


def _by_lanczos(product: _Watched, size: int, tol: float, seed: int) -> float:
    from scipy.sparse.linalg import LinearOperator, eigsh

    first = np.random.default_rng(seed).standard_normal(size)
    if not product(first).any():  # a random direction: the function is linear
        return 0.0
    operator = LinearOperator((size, size), matvec=product, dtype=np.float64)
    top = eigsh(
        operator, k=1, which="LM", v0=first, maxiter=MOST, tol=ROUGH, return_eigenvectors=False
    )
    largest = float(np.abs(top[0]))
    # ARPACK's tolerance is relative to the eigenvalue, and no image may be zero: all are moved
    # to where they are one to three times the largest
    moved = LinearOperator(
        (size, size), matvec=lambda v: product(v) - 2 * largest * v.reshape(-1), dtype=np.float64
    )
    _, vectors = eigsh(moved, k=1, which="SA", v0=first, maxiter=MOST, tol=tol / 3)
    product.note(vectors[:, 0], -np.inf)
    return largest
