"""Stratified, seeded samples of a dataset that are the same wherever they are drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from otdd_flash.checks import shown
from otdd_flash.errors import SettingsError
from otdd_flash.settings import check_integer, is_integer
from otdd_flash.types import LabelledDataset


def allocate(
    counts: np.ndarray,  # (V,) int64 samples of each class, all > 0
    total: int,  # samples to keep, 0 < total <= counts.sum()
    first: np.ndarray,  # (V,) int64 breaks ties: the smaller one wins
) -> np.ndarray:  # (V,) int64, sums to total, never above counts
    """Share a sample among classes in proportion, by largest remainder, at least one a class.

    With fewer samples than classes the largest classes get one each.
    """
    share = np.zeros_like(counts)
    if total < len(counts):
        share[np.lexsort((first, -counts))[:total]] = 1
        return share
    free = np.ones(len(counts), dtype=bool)
    left, of = total, int(counts.sum())
    # classes whose quota is below one get one; that lowers the quota of the others
    while (small := free & (left * counts < of)).any():
        share[small] = 1
        left -= int(small.sum())
        of -= int(counts[small].sum())
        free &= ~small
    if free.any():
        quota, remainder = np.divmod(left * counts[free], of)
        extra = np.lexsort((first[free], -remainder))[: left - int(quota.sum())]
        quota[extra] += 1
        share[free] = quota
    return share


def stratified_rows(
    labels: Tensor,  # (n,) int64 class ids
    kept: int,  # 0 < kept <= n
    seed: int,
) -> Tensor:  # (kept,) int64, ascending
    """Return the rows of a stratified sample.

    Every row gets a random number, and the rows of a class with the smallest ones are drawn: the
    names and numbers of the classes do not matter. The numbers are the raw stream of PCG64, the
    same for every version of numpy. Time O(n log n), memory O(n).
    """
    ids = labels.cpu().numpy()
    order = np.argsort(ids, kind="stable")
    _, first, counts = np.unique(ids, return_index=True, return_counts=True)
    keys = np.random.PCG64(int(seed)).random_raw(len(ids))
    ends = np.cumsum(counts)
    rows = []
    for end, count, share in zip(ends, counts, allocate(counts, kept, first), strict=True):
        members = order[end - count : end]
        rows.append(members[np.argsort(keys[members], kind="stable")[:share]])
    return torch.from_numpy(np.sort(np.concatenate(rows)))


def check_sampling(max_samples: Any, seed: Any) -> None:
    """Raise SettingsError unless max_samples is None or >= 1 and seed an integer >= 0."""
    check_integer("seed", seed, 0)
    if max_samples is not None and (not is_integer(max_samples) or max_samples < 1):
        raise SettingsError(
            f"max_samples is {shown(max_samples)}, expected an integer >= 1 (or none for all "
            "samples)"
        )


def sample(
    dataset: LabelledDataset,
    max_samples: int | None,  # None: all
    seed: int,
) -> LabelledDataset:
    """Keep at most ``max_samples`` rows, stratified by class, in their original order.

    Rows of weight zero are never drawn. The provenance gets
    ``{"sampled": {"of": n, "seed": seed, "kept": k}}`` when rows were left out.

    Raises:
        SettingsError: ``max_samples`` < 1 or a seed that is not an integer >= 0.
    """
    check_sampling(max_samples, seed)
    rows = drawn_rows(dataset.labels, dataset.weights, max_samples, seed)
    if rows is None:
        return dataset
    note = {"of": len(dataset), "seed": int(seed), "kept": len(rows)}
    return dataset.subset(rows.to(dataset.labels.device), sampled=note)


def drawn_rows(
    labels: Tensor,  # (n,) int64 class ids
    weights: Tensor | None,  # (n,) None: uniform
    max_samples: int | None,  # None: all
    seed: int,
) -> Tensor | None:  # (k,) int64 on the CPU, ascending; None: all rows stay
    """Draw rows of positive weight, stratified by class."""
    if max_samples is None or max_samples >= len(labels):
        return None
    if weights is None:
        return stratified_rows(labels, int(max_samples), seed)
    candidates = (weights > 0).nonzero().reshape(-1).cpu()
    kept = min(int(max_samples), len(candidates))
    return candidates[stratified_rows(labels.cpu()[candidates], kept, seed)]
