"""Short flows that tests of flows share."""

from __future__ import annotations

from otdd_flash.flows import FlowSettings, flow
from otdd_flash.settings import OTDDSettings

# so exact that only float64 and the formulas are left
EXACT = OTDDSettings(tol=1e-10, max_passes=5000, device="cpu", epsilon="5%")


def states(src, tgt, **keywords):
    keywords.setdefault("solver", EXACT)
    return list(flow(src, tgt, FlowSettings(**keywords)))


def velocity(src, tgt, **keywords):
    """The Wasserstein gradient at the start: what one step of size 1 takes away."""
    first, second = states(src, tgt, steps=1, step_size=1.0, box=None, **keywords)
    return first.points - second.points
