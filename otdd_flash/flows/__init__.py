"""Gradient flows of datasets: the source moves so that its distance to the target falls."""

from otdd_flash.flows.checkpoint import Checkpoint, load_checkpoint, save_checkpoint
from otdd_flash.flows.settings import FlowSettings, FlowState
from otdd_flash.flows.walk import Flow, flow

__all__ = [
    "Checkpoint",
    "Flow",
    "FlowSettings",
    "FlowState",
    "flow",
    "load_checkpoint",
    "save_checkpoint",
]
