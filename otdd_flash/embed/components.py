"""``pca:50``: principal components of all datasets together, by scikit-learn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.errors import EncoderError
from otdd_flash.ops import free_memory
from otdd_flash.samples import CHUNK

# of the free memory, for the float64 copy of the samples: an exact fit needs a few of them
SHARE = 8
# samples a component from which on Lanczos is several times faster than all components
FEW = 20


def project(
    clouds: Sequence[Tensor],  # (n, ...) of each dataset
    components: int,
    budget: int | None = None,  # bytes for a float64 copy; None: an eighth of what is free
) -> list[tuple[Tensor, str]]:  # (n, components) float32 of each, and what to announce
    """Project datasets on their leading principal components.

    One fit over the samples of all of them where they have one number of features. Where they do
    not, each is projected on its own components, the widest first: the distance then compares two
    clouds by their shapes, and says nothing about which feature is which.

    Memory: some float64 copies of the samples where the budget allows one, else scikit-learn's
    incremental fit, in batches.

    Raises:
        EncoderError: more components than features, or than samples; samples that are all the same.
    """
    budget = free_memory(torch.device("cpu")) // SHARE if budget is None else budget
    flat = [cloud.reshape(cloud.shape[0], -1) for cloud in clouds]
    together = len({cloud.shape[1] for cloud in flat}) == 1
    groups = [flat] if together else [[cloud] for cloud in flat]
    over = "the samples of all datasets" if len(flat) > 1 else "its own samples"
    if not together:
        over = (
            "its own samples, since the datasets share no features: the distance compares shapes "
            "along the widest directions, whose signs are a convention"
        )
    out = []
    for group in groups:
        model, way = _fit(group, components, budget)
        said = (
            f"{group[0].shape[1]:,} features projected on {components} principal components "
            f"({np.sum(model.explained_variance_ratio_):.1%} of the variance; {way}), fitted on "
            f"{over}"
        )
        for cloud in group:
            parts = [model.transform(_rows([part])) for part in cloud.split(CHUNK)]
            out.append((torch.from_numpy(np.concatenate(parts)).to(torch.float32), said))
    return out


def _fit(
    group: Sequence[Tensor],  # (n, d) each
    components: int,
    budget: int,  # bytes
) -> tuple[Any, str]:
    """Return scikit-learn's fitted model and how it was fitted."""
    from sklearn.decomposition import PCA, IncrementalPCA

    n, d = sum(len(cloud) for cloud in group), group[0].shape[1]
    if components > min(n, d):
        raise EncoderError(
            f"pca:{components} asks for more components than {n:,} samples of {d:,} features have; "
            f"use pca:{min(n, d)} or fewer"
        )
    first = group[0][0]
    if not any(bool((part != first).any()) for cloud in group for part in cloud.split(CHUNK)):
        raise EncoderError(
            f"pca:{components}: all {n:,} samples are the same and have no directions to project "
            "on; leave the encoder out"
        )
    if 8 * n * d <= budget:
        model = PCA(components, svd_solver=_solver(n, d, components), random_state=0)
        return model.fit(_rows(group)), "exact"
    model = IncrementalPCA(components)
    for batch in _batches(group, max(CHUNK, 5 * components)):
        model.partial_fit(batch)
    return model, "fitted in batches, which is near the exact one"


def _solver(
    n: int,  # samples
    d: int,  # features
    components: int,
) -> str:
    """Return the fastest of scikit-learn's solvers that are exact to the rounding.

    Its own choice draws random directions where d is large.
    """
    if n >= d:
        return "covariance_eigh"
    return "arpack" if FEW * components <= n else "full"


def _batches(
    group: Sequence[Tensor],  # (n, d) each
    size: int,
) -> Iterator[np.ndarray]:  # (k, d) float64
    """Yield the samples of all datasets, ``size`` or more at a time, as if they were one."""
    n = sum(len(cloud) for cloud in group)
    # what is left over joins the last batch: fewer samples than components would be refused
    starts = range(0, max(1, n // size) * size, size)
    for start in starts:
        stop = n if start == starts[-1] else start + size
        parts, before = [], 0
        for cloud in group:
            parts.append(cloud[max(0, start - before) : max(0, stop - before)])
            before += len(cloud)
        yield _rows(parts)


def _rows(parts: Sequence[Tensor]) -> np.ndarray:  # (n, d) float64
    return np.concatenate([part.to("cpu", torch.float64).numpy() for part in parts])
