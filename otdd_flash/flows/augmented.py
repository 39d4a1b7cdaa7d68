r"""Particles that carry the law of their class: labels move too, and are read again.

A particle is ``(x, m, s)``: a sample, a class mean and a class standard deviation a feature (the
mean alone with ``label_distance="means"``). At the start m and s are those of the sample's class in
the source; in the target those of its class there. The cost between particles is

.. math::
    \lambda_x \|x - x'\|^2 + \lambda_y (\|m - m'\|^2 + \|s - s'\|^2),

the dataset distance's own with diagonal laws, but each particle moves its m and s by itself along
the gradient of S, in the metric of the sum of squares. There are no class ids in the flow.

All means and deviations are weighted sums of those of the Vx + Vy classes, and stay so along a
gradient: they are kept as coordinates in the affine span of these, which changes no distance. The
cost thus has d + Vx + Vy - 1 columns at most. ``adam`` moves those coordinates one by one.

Labels are read at chosen steps, and reading them does not change the flow. ``nearest``: the target
class whose (m, s) is closest to the particle's. ``kmeans``: k-means with as many clusters as the
target has classes over the particles' (m, s), begun at the target's; a cluster keeps the name of
the class that it was begun at.

Source: Alvarez-Melis and Fusi 2021, section 4 (joint flows with variable labels).
"""

from __future__ import annotations

import warnings

import torch
from torch import Tensor

from otdd_flash.cost import Side
from otdd_flash.errors import DataError
from otdd_flash.flows.modes import Features, Scene
from otdd_flash.flows.settings import float_type
from otdd_flash.flows.terms import Evaluation
from otdd_flash.laws.bures import LabelCost
from otdd_flash.laws.gaussians import ClassLaws
from otdd_flash.types import LabelledDataset

# directions shorter than this share of the longest are rounding
FLOOR = 1e-12


class Augmented(Features):
    """Samples move, and each its own class mean and standard deviation.

    Memory: both sides again with Vx + Vy - 1 columns more.
    """

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        laws = [_summary(prepared.laws) for prepared in (scene.x, scene.y)]
        both = torch.cat(laws)
        centre = both.mean(0)
        _, lengths, directions = torch.linalg.svd(both - centre, full_matrices=False)
        kept = directions[lengths > FLOOR * lengths[:1].clamp(min=torch.finfo(both.dtype).tiny)]
        # distances between coordinates are distances between laws, in units of the features' cost
        self._ratio = (scene.label_scale / scene.feature_scale) ** 0.5
        self._own, self.classes = ((law - centre) @ kept.mT * self._ratio for law in laws)
        sides = [prepared.side for prepared in (scene.x, scene.y)]
        self._dtype = float_type(*(side.points for side in sides))
        self._target = self._particles(sides[1], self.classes)

    def _particles(self, side: Side, classes: Tensor) -> Tensor:  # (n, d + p)
        """Return samples with the coordinates of their class."""
        carried = classes[side.labels].to(self._dtype)
        return torch.cat([side.points.to(self._dtype), carried], dim=1)

    @property
    def source(self) -> Tensor:  # (n, d + p)
        """The particles where the flow begins, made when they are asked for."""
        return self._particles(self.scene.x.side, self._own)

    @property
    def target(self) -> Tensor:  # (m, d + p)
        """The target's particles."""
        return self._target

    def costs(self, points: Tensor, renew: bool, last: bool) -> LabelCost:
        """Return zeros: label costs are in the particles."""
        if self._kept is None:
            vx, vy = self.scene.x.laws.classes, self.scene.y.laws.classes
            zeros = self.classes.new_zeros((max(vx, vy), max(vx, vy)))
            self._kept = LabelCost(zeros[:vx, :vy], zeros[:vx, :vx], zeros[:vy, :vy])
        return self._kept

    def gradient(self, points: Tensor, found: Evaluation, renew: bool) -> Tensor:
        """Return the gradient by samples, means and deviations, in the metric of their squares."""
        v = super().gradient(points, found, renew)
        # coordinates are stretched by the ratio: their gradient by it, and their move once more
        v[:, self.scene.x.laws.dimension :] *= self._ratio**2
        return v

    def features(self, points: Tensor) -> Tensor:  # (n, d + p) -> (n, d)
        """Return the samples of the particles."""
        return points[:, : self.scene.x.laws.dimension]

    def read_labels(self, points: Tensor) -> Tensor:  # (n, d + p) -> (n,) int64 target class ids
        """Return the target class of each particle, by its mean and deviation."""
        carried = points[:, self.scene.x.laws.dimension :].double()
        if self.scene.settings.relabel == "nearest" or not carried.shape[1]:
            return torch.cdist(carried, self.classes).argmin(1)
        from sklearn.cluster import KMeans
        from sklearn.exceptions import ConvergenceWarning

        means = KMeans(len(self.classes), init=self.classes.cpu().numpy(), n_init=1)
        weights = self.scene.x.side.weights.cpu().numpy()
        with warnings.catch_warnings():
            # particles of few classes are fewer different points than clusters: some stay empty
            warnings.simplefilter("ignore", ConvergenceWarning)
            found = means.fit(carried.cpu().numpy(), sample_weight=weights).labels_
        return torch.from_numpy(found).to(points.device, torch.int64)


def check_clusters(src: LabelledDataset, tgt: LabelledDataset) -> None:
    """Refuse k-means over fewer particles than clusters.

    Raises:
        DataError: how many there are of both.
    """
    classes = len(tgt.labels[tgt.weights > 0].unique())
    if len(src) < classes:
        raise DataError(
            f"{src.name} has {len(src):,} samples, and {tgt.name} {classes:,} classes: k-means "
            "needs a sample a class; use relabel='nearest' (--relabel nearest)"
        )


def _summary(laws: ClassLaws) -> Tensor:  # (V, d) means, or (V, 2 d) with standard deviations
    if laws.variances is None:
        return laws.means
    return torch.cat([laws.means, laws.variances.sqrt()], dim=1)
