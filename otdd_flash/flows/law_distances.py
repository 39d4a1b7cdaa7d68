r"""Label costs of laws that move: measured where plans put mass, bounded elsewhere.

A class whose samples moved by p (root mean square), and whose mean moved by q, has a centred law
at a Bures distance of at most ``sqrt(p^2 - q^2)`` from the one it had. Bures distances are a
metric, so that with t the sum of these over both classes of a pair, since B was measured,

.. math::
    \max(B - t, 0)^2 \le B_2 \le (B + t)^2

and squared distances of means are exact at every step. The lower end stands for the pair. Optimal
costs are concave in the cost: what that hides of one is at most ``sum M (upper - lower)``, M the
plan's mass by class pairs.
"""

from __future__ import annotations

import torch
from torch import Tensor

from otdd_flash.cost import Margin
from otdd_flash.laws.bures import CoupledCost, coupled_cost
from otdd_flash.laws.gaussians import ClassLaws

# class pairs of a smaller share of all mass are left out of the gradient, and their cost is bounded
# while it is known well enough: each would cost a decomposition. No class loses more than MISSED of
# its own mass that way, however rare it is or many there are
NEGLIGIBLE, MISSED = 1e-6, 1e-4
# share of B that t may reach before such a pair is measured again; at 1 only means are left
DRIFT = 1.0
# bound of the errors of label costs, relative to |F G^T|_*, and directions that their gradient
# follows in full: both below what moving points are rounded by, and a bound that late laws, narrow
# in many directions, keep without a second round on a GPU
ACCURACY, FLOOR = 1e-5, 1e-7
# bytes of polar factors that wait for the gradient: 190 of a pair of 784 features in float32
KEEP_LIMIT = 450 << 20
# bytes of temporaries of their making, before the points of a step need as many
WORKSPACE = 832 << 20
# of squared moves in float32
ROUNDING = 1e-6
BLOCKS = ("xy", "xx")


class LawDistances:
    """Squared distances of moving laws from a target's and from each other.

    Memory: a few numbers a pair, the means, and what `coupled_cost` takes.
    """

    def __init__(self, target: ClassLaws) -> None:
        self.target = target
        # by block: root, travel, mass (when known) and width; of the source: means, path
        self._kept: dict[str, Tensor] = {}

    def measure(
        self,
        laws: ClassLaws,  # Vx laws, of one kind at all times
        everything: bool,  # whether all pairs are measured
    ) -> CoupledCost:
        """Return the squared distances of some laws after what their samples walked.

        Of pairs that are not measured they are the lower ends, and there is no polar factor.
        """
        if "path" in self._kept:
            self._travel(laws.means)
        due = None if everything or laws.factors is None else self._due()
        found = coupled_cost(
            laws,
            self.target,
            accuracy=ACCURACY,
            floor=FLOOR,
            keep_limit=KEEP_LIMIT,
            memory_limit=WORKSPACE,
            due=due,
        )
        self._kept["means"] = laws.means
        self._kept["path"] = laws.means.new_zeros(laws.classes)
        xy, xx = due or (None, None)
        return found._replace(
            xy=self._block("xy", found.xy, found.gaps[0], xy),
            xx=self._block("xx", found.xx, found.gaps[1], xx),
        )

    def _block(
        self,
        name: str,
        value: Tensor,  # squared distances where they are due
        gap: Tensor,  # of the means
        due: Tensor | None,  # bool; None: all
    ) -> Tensor:
        """Remember what was measured of a block of pairs; return it, and lower ends beside it."""
        kept = self._kept
        root, travel = (value - gap).clamp(min=0).sqrt(), torch.zeros_like(gap)
        if due is not None:
            root = torch.where(due, root, kept[f"root_{name}"])
            travel = torch.where(due, travel, kept[f"travel_{name}"])
            value = torch.where(due, value, gap + (root - travel).clamp(min=0).square())
        upper = gap + (root + travel).square()
        kept[f"root_{name}"], kept[f"travel_{name}"] = root, travel
        kept[f"width_{name}"] = (upper - value) * (travel > 0)
        return value

    def _travel(self, means: Tensor) -> None:
        """Add what centred laws moved by since the last time."""
        kept = self._kept
        shift = (means - kept["means"]).square().sum(1)
        walked = (kept["path"].square() * (1 + ROUNDING) - shift).clamp(min=0).sqrt()
        kept["travel_xy"] = kept["travel_xy"] + walked[:, None]
        inner = kept["travel_xx"] + (walked[:, None] + walked)
        kept["travel_xx"] = inner.fill_diagonal_(0.0)

    def _due(self) -> tuple[Tensor, Tensor] | None:
        """Return the pairs to measure: those that carried mass, and those that moved far."""
        kept = self._kept
        if "mass_xy" not in kept:
            return None
        out = []
        for name in BLOCKS:
            far = kept[f"travel_{name}"] > DRIFT * kept[f"root_{name}"]
            out.append(far | weighty(kept[f"mass_{name}"], name == "xx"))
        # nothing is to be measured there, and the value is exact
        return out[0], out[1].fill_diagonal_(True)

    def saw(
        self,
        mass: Tensor,  # (Vx, Vy) of the plan with the target
        inner_mass: Tensor | None,  # (Vx, Vx) of the plan of the source with itself, if it is made
    ) -> float:  # squared units of the points
        """Take the plans of the distances; return what those not measured hide of the value."""
        kept = self._kept
        inner = mass.new_zeros(kept["root_xx"].shape) if inner_mass is None else inner_mass
        kept["mass_xy"], kept["mass_xx"] = mass, inner
        hidden = [(kept[f"mass_{name}"] * kept[f"width_{name}"]).sum() for name in BLOCKS]
        # the self term counts half and is taken off: what both hide does not add up
        return max(float(hidden[0]), float(hidden[1]) / 2)

    def walked(
        self,
        before: Tensor,  # (n, d) points of the margin's samples
        after: Tensor,  # (n, d)
        margin: Margin,
    ) -> None:
        """Remember how far the samples of each class moved."""
        if "path" not in self._kept:
            return
        squared = torch.linalg.vector_norm(after - before, dim=1, dtype=torch.float64).square()
        counts = torch.bincount(margin.labels, minlength=len(self._kept["path"])).tolist()
        # rows are sorted by class: sums in the same order every time
        weighted = (margin.weights * squared).split(counts), margin.weights.split(counts)
        steps = torch.stack([s.sum() / w.sum() for s, w in zip(*weighted, strict=True)]).sqrt()
        self._kept["path"] = self._kept["path"] + steps

    def tensors(self) -> dict[str, Tensor]:
        """Return what later steps need, which nothing changes in place."""
        return dict(self._kept)

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take what an interrupted flow would have reused."""
        self._kept = dict(tensors)


def weighty(
    mass: Tensor,  # (Vx, V) of a plan by class pairs, of any sign
    inner: bool,  # whether it is of a dataset with itself, where both laws of a pair move
) -> Tensor:  # (Vx, V) bool
    """Say which pairs hold more than next to nothing, of all mass or of a class's own."""
    mass = mass.abs()
    own = mass.sum(1, keepdim=True)
    found = mass > torch.minimum(NEGLIGIBLE * own.sum(), MISSED / mass.shape[1] * own)
    return found | found.mT if inner else found
