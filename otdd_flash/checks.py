"""Checks of what a caller passes: points and weights as tensors, or what is wrong with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.errors import DataError, OTDDError, WeightError

# how far a sum of weights may be from one and still count as rounding
WEIGHT_SUM_TOLERANCE = 1e-4
EXACT = 2**53  # integers below it in size are exact in float64
INT64_MAX = 2**63 - 1
POINT_DTYPES = (
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
)
WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64, torch.uint64: torch.int64}


def shown(
    value: Any,  # whatever a caller passed
) -> str:  # its repr on one line, cut to a length that fits a message
    """Return a value as error messages show it."""
    try:
        text = repr(value).replace("\n", " ")
    except ValueError:  # an integer of more digits than Python prints
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}..."


def dense_tensor(
    tensor: Tensor,
    what: str,  # for example "mnist: points"
    error: type[OTDDError],
) -> Tensor:  # detached, on its device
    """Return a tensor without its graph, or raise ``error`` unless it holds dense reals."""
    fault = ""
    if tensor.is_nested:
        fault = "a nested tensor"
    elif tensor.is_meta:
        fault = "a tensor on the meta device, which holds no values"
    elif tensor.layout != torch.strided or tensor.is_quantized or tensor.is_complex():
        fault = f"{tensor.dtype} {tensor.layout}"
    if fault:
        raise error(
            f"{what} are {fault}, expected dense reals; "
            "pass a dense tensor of real numbers (.to_dense(), .real, .dequantize())"
        )
    return tensor.detach()


def real_array(
    values: Any,  # an array or nested sequences of numbers
    what: str,
    error: type[OTDDError],
) -> np.ndarray:  # of kind b, i, u or f
    """Return numbers as a numpy array, or raise ``error`` for what holds none."""
    if isinstance(values, np.ma.MaskedArray):
        masked = int(np.ma.getmaskarray(values).sum())
        if masked:
            raise error(
                f"{what} have {masked:,} masked entries, expected all present; "
                "drop those samples or fill them (.filled(value))"
            )
        values = values.data
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as problem:
        raise error(
            f"{what} do not form an array ({problem}); expected numbers, rows of equal length"
        ) from problem
    if array.dtype.kind not in "biuf":
        raise error(
            f"{what} have dtype {array.dtype}, expected numbers; convert them to a numeric array"
        )
    return array


def check_masses(
    weights: Any,  # (n,) non-negative numbers, or None for 1 / n each
    n: int,
    name: str,
) -> Tensor:  # (n,) float64
    """Return weights as float64, whatever they sum to.

    Raises:
        WeightError: not numbers, wrong length, NaN, infinite or negative entries, or no mass.
    """
    if weights is None:
        return torch.full((n,), 1.0 / n, dtype=torch.float64)
    what = f"{name}: weights"
    if isinstance(weights, Tensor):
        weights = dense_tensor(weights, what, WeightError).to("cpu", torch.float64)
    else:
        # a copy: torch warns of memory that it may not write
        weights = torch.from_numpy(np.array(real_array(weights, what, WeightError), np.float64))
    if weights.shape != (n,):
        raise WeightError(
            f"{name}: weights have shape {tuple(weights.shape)}, expected ({n},): one a sample"
        )
    bad = ~torch.isfinite(weights) | (weights < 0)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise WeightError(
            f"{name}: weight {row} is {float(weights[row])}; weights must be finite and >= 0"
        )
    if not 0 < float(weights.sum()) < torch.inf:
        raise WeightError(
            f"{name}: weights sum to {float(weights.sum()):g}, expected a positive, finite mass"
        )
    return weights


def check_weights(
    weights: Any,  # (n,) non-negative numbers that sum to 1, or None for uniform
    n: int,
    name: str,
) -> Tensor:  # (n,) float64, sums to 1 to the last bits
    """Return float64 weights, uniform for ``None``.

    Raises:
        WeightError: not numbers, wrong length, NaN, infinite or negative entries, or a sum that
            is not one.
    """
    masses = check_masses(weights, n, name)
    total = float(masses.sum())
    if abs(total - 1.0) > WEIGHT_SUM_TOLERANCE:
        raise WeightError(
            f"{name}: weights sum to {total:.6g}, expected 1; pass weights / weights.sum()"
        )
    # uniform ones sum to 1 already, and keep their bits
    return masses if weights is None else masses / total


def even(
    weights: Tensor,  # (n,), n > 0
) -> bool:
    """Say whether all samples weigh the same."""
    return bool((weights == weights[0]).all())


def native_array(
    array: np.ndarray,  # of kind b, i, u or f
    name: str,
) -> np.ndarray:  # the same values in a dtype, byte order and memory that torch takes
    """Return an array that ``torch.from_numpy`` takes without a warning, no value changed."""
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if array.dtype.kind == "f" and array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            narrow = array.astype(np.float64)
        lost = (narrow != array) & ~np.isnan(array)
        if lost.any():
            raise DataError(
                f"{name}: points have dtype {array.dtype}, {int(lost.sum()):,} values do not fit "
                "float64; round them with .astype(numpy.float64)"
            )
        array = narrow
    array = np.asarray(array, order="C")
    return array if array.flags.writeable else array.copy()


def dense_points(
    points: Any,  # (n, ...) numbers
    name: str,
) -> Tensor:  # (n, ...), of a dtype in POINT_DTYPES
    """Return points as a detached tensor on their device, every value as it arrived.

    Raises:
        DataError: not dense real numbers, or unsigned integers above int64.
    """
    what = f"{name}: points"
    if isinstance(points, (list, tuple)) and points and isinstance(points[0], Tensor):
        if not all(isinstance(p, Tensor) and p.shape == points[0].shape for p in points):
            raise DataError(f"{what} are tensors of different shapes, expected one shape")
        points = torch.stack([dense_tensor(p, what, DataError) for p in points])
    if isinstance(points, Tensor):
        points = dense_tensor(points, what, DataError)
    else:
        array = real_array(points, what, DataError)
        # numpy reads a list of large integers, or of integers among floats, as floats
        if isinstance(points, (list, tuple)) and array.dtype.kind == "f":
            if (np.abs(array) >= EXACT).any() and any(
                isinstance(v, int) and abs(v) >= EXACT
                for v in np.asarray(points, dtype=object).flat
            ):
                raise DataError(
                    f"{what} hold an integer of size 2^53 or more, which float64 rounds; "
                    "subtract an offset or scale the points, or pass floats"
                )
        points = torch.from_numpy(native_array(array, name))
    if points.dtype == torch.bool:
        # not uint8, which is read as pixels of 0..255
        return points.to(torch.float32)
    if points.dtype in WIDER:
        wrapped = points.dtype == torch.uint64
        points = points.to(WIDER[points.dtype])
        if wrapped and (points < 0).any():
            raise DataError(
                f"{what} are uint64 with values above {INT64_MAX}; scale them or pass floats"
            )
    if points.dtype not in POINT_DTYPES:
        raise DataError(
            f"{what} have dtype {points.dtype}, expected integers or float16 to float64; "
            "convert them with .to(torch.float32)"
        )
    return points


def check_points(
    points: Any,  # (n, ...) numbers
    name: str,
) -> Tensor:  # (n, d), the dtype kept; bool as float32, wide unsigned integers as signed
    """Return points as a contiguous (n, d) tensor on their device.

    Raises:
        DataError: not numeric, no sample, no feature, NaN or infinite entries (with the row),
            integers that float64 would round.
    """
    points = dense_points(points, name)
    if points.ndim == 0 or points.shape[0] == 0:
        raise DataError(f"{name}: no samples arrived (shape {tuple(points.shape)})")
    if points.numel() == 0:
        raise DataError(f"{name}: samples have no features (shape {tuple(points.shape)})")
    points = points.reshape(points.shape[0], -1)
    if points.is_floating_point():
        finite = torch.isfinite(points).all(dim=1)
        if not finite.all():
            row = int((~finite).nonzero()[0])
            raise DataError(
                f"{name}: row {row} holds NaN or infinity ({int((~finite).sum())} such rows); "
                "drop or impute them"
            )
    elif points.dtype == torch.int64:
        large = ((points >= EXACT) | (points <= -EXACT)).any(dim=1)
        if large.any():
            row = int(large.nonzero()[0])
            raise DataError(
                f"{name}: row {row} holds an integer of size 2^53 or more, which float64 rounds; "
                "subtract an offset or scale the points, or pass floats"
            )
    return points.contiguous()


def check_clouds(
    x: Any,  # (n, ...) numbers
    y: Any,  # (m, ...)
) -> tuple[Tensor, Tensor]:  # (n, d) and (m, d), as `check_points` returns them
    """Return two clouds of points with the same number of features.

    Raises:
        DataError: as :func:`check_points` does, or different numbers of features.
    """
    clouds = check_points(x, "x"), check_points(y, "y")
    if clouds[0].shape[1] != clouds[1].shape[1]:
        raise DataError(
            f"x has {clouds[0].shape[1]} features, y has {clouds[1].shape[1]}: "
            "bring both to one feature space"
        )
    return clouds
