r"""What moves: samples alone, samples with the laws of their classes, or whole classes.

With M the cross plan and N the source's self plan summed over class pairs, label costs that follow
the samples add

.. math::
    \frac{dS}{dx_i} \ni \lambda_y \sum_{ck} M_{ck} \frac{dW_2[c, k]}{dx_i}
    - \frac{\lambda_y}{2} \sum_{cc'} N_{cc'} \frac{dW_2[c, c']}{dx_i}

by the gradient of `laws.attached`; in the second sum both laws move.

Source: Alvarez-Melis and Fusi 2021, section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from otdd_flash.flows.law_distances import FLOOR, LawDistances, weighty
from otdd_flash.flows.settings import FlowSettings
from otdd_flash.flows.terms import Evaluation
from otdd_flash.flows.tied import affine_field
from otdd_flash.laws.attached import points_pull
from otdd_flash.laws.bures import LabelCost, gaussian_w2, label_cost
from otdd_flash.laws.couplings import Couplings
from otdd_flash.laws.gaussians import ClassLaws, class_laws
from otdd_flash.laws.law_pulls import law_pull
from otdd_flash.prepared import Prepared

# beginning of the names that tensors of `LawDistances` have in a checkpoint
DISTANCES = "laws_"


@dataclass(frozen=True, eq=False)
class Scene:
    """What all modes read: both datasets, and what their units cost."""

    x: Prepared  # the source where the flow begins
    y: Prepared
    settings: FlowSettings

    @property
    def feature_scale(self) -> float:
        """Cost of one squared normalised unit between samples."""
        return self.settings.divergence.cost_scale * self.settings.divergence.lambda_x

    @property
    def label_scale(self) -> float:
        """Cost of one squared normalised unit between class laws."""
        return self.settings.divergence.cost_scale * self.settings.divergence.lambda_y

    @property
    def label_unit(self) -> float:
        """Cost of one squared unit of the points between class laws."""
        return self.label_scale * self.x.factor**2

    def laws(self, points: Tensor) -> ClassLaws:
        """Return the class laws of points that stand for the source's samples."""
        side, kind = self.x.side, self.settings.divergence.label_distance
        return class_laws(points, side.labels, side.weights, kind=kind)


class Features:
    """Samples move; labels and label costs stay."""

    moves_laws = False

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._kept: LabelCost | None = None

    @property
    def source(self) -> Tensor:  # (n, p) in the dtype they were given in
        """The points where the flow begins."""
        return self.scene.x.side.points

    @property
    def target(self) -> Tensor:  # (m, p)
        """The target as moving points see it."""
        return self.scene.y.side.points

    def costs(
        self,
        points: Tensor,  # (n, p)
        renew: bool,  # whether what moves with the points is made anew
        last: bool,  # whether it is made in full
    ) -> LabelCost:
        """Return the label costs at some points, in units of the cost."""
        if self._kept is None:
            blocks = label_cost(self.scene.x.laws, self.scene.y.laws)
            self._kept = LabelCost(*(block * self.scene.label_unit for block in blocks))
        return self._kept

    def gradient(
        self,
        points: Tensor,  # (n, p)
        found: Evaluation,
        renew: bool,
    ) -> Tensor:  # (n, p) in units of the points
        """Return the gradient of S by normalised points, over the weights."""
        assert found.gap is not None
        return found.gap.mul_(2.0 * self.scene.feature_scale)

    def wants_mass(self, renew: bool) -> bool:
        """Say whether a step needs the plans summed over class pairs."""
        return False

    def saw(self, found: Evaluation) -> float:
        """Take what was found; return what label costs that were bounded hide of the value."""
        return 0.0

    def walked(self, before: Tensor, after: Tensor) -> None:  # (n, p) each
        """Take where the points went."""

    def features(self, points: Tensor) -> Tensor:  # (n, p) -> (n, d)
        """Return the part of moving points that is a sample."""
        return points

    def tensors(self) -> dict[str, Tensor]:
        """Return what is reused by later steps."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take what an interrupted flow would have reused."""


class Attached(Features):
    """Samples move, and the laws of their classes with them.

    Memory: the laws of both sides and polar factors between them, 450 MiB at most; one (n, d)
    gradient while laws are reused.
    """

    moves_laws = True

    def __init__(self, scene: Scene) -> None:
        super().__init__(scene)
        self._distances = LawDistances(scene.y.laws)
        self._hidden = 0.0  # of the value, when plans were summed last
        # of the points at this step, until they were read
        self._laws: tuple[ClassLaws, Couplings] | None = None
        self._pull: Tensor | None = None  # (n, d) the label costs' part of the last gradient

    @cached_property
    def _inside_target(self) -> Tensor:  # (Vy, Vy), in units of the cost
        target = self.scene.y.laws
        return gaussian_w2(target, target) * self.scene.label_unit

    def costs(self, points: Tensor, renew: bool, last: bool) -> LabelCost:
        """Return the label costs of the laws at some points."""
        scene = self.scene
        if scene.label_scale == 0:
            return super().costs(points, renew, last)
        # where the flow begins they are made before its first step
        if self._kept is None or ((renew or last) and self._laws is None):
            unit = scene.label_unit
            laws = scene.laws(points)
            found = self._distances.measure(laws, last)
            self._laws = laws, found.couplings
            self._kept = LabelCost(found.xy * unit, found.xx * unit, self._inside_target)
        return self._kept

    def wants_mass(self, renew: bool) -> bool:
        """Say so where the gradient through laws is made, or label costs are bounded."""
        return self.scene.label_scale > 0 and (renew or self._hidden > 0)

    def saw(self, found: Evaluation) -> float:
        """Take the plans of the distances, where they were summed over class pairs."""
        if self.scene.label_scale and found.mass is not None:
            hidden = self._distances.saw(found.mass, found.inner_mass)
            self._hidden = hidden * self.scene.label_unit
        return self._hidden

    def walked(self, before: Tensor, after: Tensor) -> None:
        """Take where the samples went."""
        self._distances.walked(before, after, self.scene.x.side)

    def gradient(self, points: Tensor, found: Evaluation, renew: bool) -> Tensor:
        """Return the gradient through the samples and through the laws."""
        v = super().gradient(points, found, renew)
        if self.scene.label_scale == 0:
            return v
        if self._laws is not None:
            self._pull = self._law_gradient(points, *self._laws, found).to(v)
            self._laws = None
        assert self._pull is not None
        return v.add_(self._pull)

    def _law_gradient(
        self, points: Tensor, laws: ClassLaws, couplings: Couplings, found: Evaluation
    ) -> Tensor:
        assert found.mass is not None
        scale, side = self.scene.label_scale, self.scene.x.side
        mass = found.mass * weighty(found.mass, False) * scale
        pull = law_pull(laws, self.scene.y.laws, mass, floor=FLOOR, couplings=couplings)
        if found.inner_mass is not None:
            # minus a half, and both laws of a pair move
            inner = (found.inner_mass + found.inner_mass.mT) * (-scale / 2)
            inner = (inner * weighty(inner, True)).fill_diagonal_(0.0)
            pull = pull + law_pull(laws, laws, inner, floor=FLOOR, couplings=couplings)
        moved = points_pull(points, side.labels, side.weights, laws, pull)
        return moved.div_(side.weights.to(moved)[:, None])

    def tensors(self) -> dict[str, Tensor]:
        """Return what is known of label costs, and their gradient where later steps reuse it."""
        out = {DISTANCES + name: t for name, t in self._distances.tensors().items()}
        if self.scene.settings.laws_every == 1 or self._kept is None or self._pull is None:
            return out
        out |= {"label_xy": self._kept.xy, "label_xx": self._kept.xx, "label_pull": self._pull}
        return out | {"label_hidden": self._pull.new_tensor(self._hidden, dtype=torch.float64)}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take label costs and their gradient."""
        self._distances.restore(
            {k.removeprefix(DISTANCES): t for k, t in tensors.items() if k.startswith(DISTANCES)}
        )
        if "label_pull" in tensors:
            blocks = tensors["label_xy"], tensors["label_xx"], self._inside_target
            self._kept = LabelCost(*blocks)
            self._pull, self._hidden = tensors["label_pull"], float(tensors["label_hidden"])


class Tied(Attached):
    """Each class moves as its Gaussian does: see `tied`."""

    def gradient(self, points: Tensor, found: Evaluation, renew: bool) -> Tensor:
        """Return the affine field of each class that is closest to the attached gradient."""
        v = super().gradient(points, found, renew)
        side = self.scene.x.side
        return affine_field(points, v, side.labels, side.weights)
