"""The operators of every backend, and how they are compared with the dense float64 formulas.

A backend's error is counted in units of what plain torch float32 makes of the same formula, or of
one rounding of the largest number in it where plain torch happens to be luckier than that.
"""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from clouds import (
    FORCED,
    Plain,
    error,
    forced,
    magnitude,
    pair_of,
    points,
    potential,
    to_device,
)

from otdd_flash_kernels import reference
from otdd_flash_kernels.cpu import CpuCost
from otdd_flash_kernels.pair import CostPair

# float32 backends round three times where it matters: the column bias, the score, and the stored
# maximum or cost; tiles that leave columns out round those columns' part apart, by less. Measured
# over about 730 problems: 2.0 at most
K = 3
# float64 backends against a float64 truth, in roundings of the largest number: the truth itself
# errs by some. Measured over about 5,100 problems: 4.6 at most
K64 = 8

BACKENDS: list = ["stored", "streamed"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if find_spec("triton"):
    compiled = [pytest.mark.gpu] if DEVICE == "cuda" else []
    TRITON = pytest.param("triton", marks=compiled)
    BACKENDS += [TRITON, pytest.param("triton, stored", marks=compiled)]
    OTHER_CHIPS = [pytest.param(name, marks=compiled) for name in FORCED]
else:
    TRITON = pytest.param("triton", marks=pytest.mark.skip(reason="Triton is not installed"))
    OTHER_CHIPS = []

# (n, m, d, kind, slices), tiles of the interpreter being 32 x 32 x 32
CASES = [
    (1, 1, 1, "fp64", 2),
    (1, 129, 2, "uint8", None),
    (129, 1, 3, "integers", None),
    (2, 127, 15, "fp32", 1),
    (127, 2, 16, "fp16", 2),
    (129, 127, 17, "fp32", 2),
    (37, 41, 31, "pixels", None),
    (31, 67, 32, "fp64", 3),
    (61, 59, 33, "int64", None),
    (64, 33, 64, "fp16", 3),
    (33, 32, 65, "uint8", 2),
    (29, 31, 784, "uint8", None),
    (5, 33, 784, "fp32", 2),
    (2, 2, 17, "int64", 1),
    (1, 1, 784, "fp16", None),
    (127, 129, 1, "pixels", 3),
]
# float storage, for the CPU: float32 for bytes, float64 for the rest
FLOATS = [
    (1, 2, 3, "uint8"),
    (129, 127, 17, "uint8"),
    (31, 67, 784, "uint8"),
    (2, 3, 1, "int64"),
    (61, 59, 33, "fp16"),
    (37, 129, 16, "fp32"),
    (127, 41, 65, "fp64"),
]


class Operators:
    """One backend's operators of a pair, with CPU tensors in and out."""

    forward: Any
    backward: Any = None  # the streamed kernels of the transposed pair; the rest have their own

    def __init__(self, backend: str, pair: CostPair) -> None:
        if backend == "triton, stored":
            from otdd_flash_kernels.stored import StoredCost

            self.forward = StoredCost(to_device(pair, DEVICE))
            self.single = True
        elif backend.startswith("triton"):
            from otdd_flash_kernels.triton_cost import TritonCost

            pair = to_device(pair, DEVICE)
            with forced(backend):
                self.forward = TritonCost(pair)
                self.backward = TritonCost(pair.transposed)
            self.single = True
        else:
            self.forward = CpuCost(pair, store=backend == "stored")
            self.single = self.forward.dtype == torch.float32

    def _give(self, h):
        return h if isinstance(self.forward, CpuCost) else h.to(DEVICE)

    def softmin(self, h, eps):
        return self.forward.softmin(self._give(h), eps).cpu()

    def softmin_mean(self, h, eps):
        return tuple(part.cpu() for part in self.forward.softmin_mean(self._give(h), eps))

    def hardmin(self, g):
        return self.forward.hardmin(self._give(g)).cpu()

    def class_softmin(self, h, eps):
        return self.forward.class_softmin(self._give(h), eps).cpu()

    def softmin_transposed(self, h, eps):
        if self.backward is None:
            return self.forward.softmin_transposed(self._give(h), eps).cpu()
        return self.backward.softmin(self._give(h), eps).cpu()

    def hardmin_transposed(self, f):
        if self.backward is None:
            return self.forward.hardmin_transposed(self._give(f)).cpu()
        return self.backward.hardmin(self._give(f)).cpu()


@cache
def problem(case: tuple, classes: tuple = (3, 4)) -> tuple[CostPair, torch.Tensor]:
    n, m, d, kind, *slices = case
    pair = pair_of(
        points(kind, n, d, 1),
        points(kind, m, d, 2),
        classes=classes,
        slices=slices[0] if slices else None,
        floats=not slices,
    )
    return pair, reference.cost_matrix(pair)


def assert_accurate(operators, got, truth, plain, size) -> None:
    """Compare errors: ``size`` is the largest number of the formula."""
    if operators.single:
        allowed = K * max(error(plain, truth), 2.0**-24 * size)
    else:
        allowed = K64 * 2.0**-53 * size
    assert error(got, truth) <= allowed


def check_all(
    operators: Operators, pair: CostPair, cost: torch.Tensor, relative_eps: float
) -> None:
    scale = float(cost.mean().clamp(min=1e-3))
    eps = relative_eps * scale
    plain = Plain(pair)
    h = potential(pair.shape[1], scale / 4, eps)
    size = magnitude(cost, h, eps)

    def check(got, truth, usual):
        assert_accurate(operators, got, truth, usual, size)

    check(operators.softmin(h, eps), reference.softmin(pair, h, eps), plain.softmin(h, eps))
    check(operators.hardmin(h), reference.hardmin(pair, h), plain.hardmin(h))
    for got, truth, usual in zip(
        operators.softmin_mean(h, eps),
        reference.softmin_mean(pair, h, eps),
        plain.softmin_mean(h, eps),
        strict=True,
    ):
        check(got, truth, usual)
    check(
        operators.class_softmin(h, eps),
        reference.class_softmin(pair, h, eps),
        plain.class_softmin(h, eps),
    )

    other, other_plain = pair.transposed, Plain(pair.transposed)
    h = potential(pair.shape[0], scale / 4, eps)
    size = magnitude(cost, h, eps)
    check(
        operators.softmin_transposed(h, eps),
        reference.softmin(other, h, eps),
        other_plain.softmin(h, eps),
    )
    check(operators.hardmin_transposed(h), reference.hardmin(other, h), other_plain.hardmin(h))


# far below and above what a solve meets
TEMPERATURES = [1e-6, 1e-3, 10.0, 1e4]
