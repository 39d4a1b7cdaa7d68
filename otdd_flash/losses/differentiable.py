r"""The dataset distance as a function of the samples: ``distance(..., differentiable=True)``.

.. math::
    \frac{dS}{dx_i} = \sum_j P_{ij} \frac{dC_{ij}}{dx_i}
        + \sum_{ck} \frac{dS}{dW_{ck}} \frac{dW_{ck}}{dx_i}

The first term is the envelope gradient at fixed label costs; the second goes on through the class
laws, in all three blocks of the label cost. eps counts as a constant, though a share of the mean
cost moves with the samples.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.errors import SettingsError
from otdd_flash.laws.attached import attached_cost
from otdd_flash.laws.bures import LabelCost
from otdd_flash.laws.gaussians import ClassLaws
from otdd_flash.losses.loss import solved_loss
from otdd_flash.settings import OTDDSettings
from otdd_flash.solver.clouds import LabelledClouds
from otdd_flash.solver.divergence import Divergence
from otdd_flash.types import LabelledDataset


def check_differentiable(src: LabelledDataset, tgt: LabelledDataset) -> None:
    """Refuse what no gradient can come of.

    Raises:
        SettingsError: gradients are switched off, or no samples and no weights ask for one.
    """
    if not torch.is_grad_enabled():
        raise SettingsError(
            "differentiable=True under torch.no_grad(), where no graph is kept; call distance "
            "outside of it, or without differentiable"
        )
    if not any(t.requires_grad for dataset in (src, tgt) for t in dataset.graph):
        kinds = " and ".join(f"{dataset.name} ({dataset.points.dtype})" for dataset in (src, tgt))
        raise SettingsError(
            f"differentiable=True, but neither points nor weights of {kinds} ask for a gradient; "
            "make a dataset of floats that do: LabelledDataset(x.float().requires_grad_(), labels)"
        )


def attached_loss(
    datasets: list[LabelledDataset],  # source and target, without samples of weight zero
    points: tuple[Tensor, Tensor],  # (n, d), (m, d) theirs, normalised
    laws: tuple[ClassLaws, ClassLaws],  # of the sides of the clouds
    costs: LabelCost,  # in squared units of the points
    unit: float,  # cost of one squared unit of the label cost
    clouds: LabelledClouds,
    divergence: Divergence,  # solved with keep=True
    settings: OTDDSettings,
) -> Tensor:  # () float64
    """Return S of a solved problem with its graph: one pass a gradient, and class laws' pulls.

    Memory: O((n + m) d); the class laws are kept for the backward pass.
    """
    live = [
        dataset.graph[0] if dataset.graph[0].requires_grad else values
        for dataset, values in zip(datasets, points, strict=True)
    ]
    weights = [dataset.graph[1] for dataset in datasets]
    blocks = attached_cost(
        (live[0], live[1]), (weights[0], weights[1]), (clouds.x, clouds.y), laws, costs
    )
    return solved_loss(
        (*live, *weights, *(block * unit for block in blocks)),
        (datasets[0].labels, datasets[1].labels),
        clouds,
        divergence,
        settings,
    )
