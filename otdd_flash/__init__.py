"""Optimal transport distances between labelled datasets, exact, certified, at full size.

>>> import otdd_flash as otdd
>>> result = otdd.distance(otdd.load("mnist-mini"), otdd.load("fashion-mnist-mini"))
>>> result.transport.lower <= result.transport.upper
True
"""

from otdd_flash.datasets import load
from otdd_flash.divergence import sinkhorn_divergence
from otdd_flash.errors import (
    BudgetError,
    ConvergenceWarning,
    DataError,
    DatasetNotFoundError,
    DeviceError,
    LabelError,
    OTDDError,
    SettingsError,
    WeightError,
)
from otdd_flash.otdd import distance, steps
from otdd_flash.results import load_result, save
from otdd_flash.types import LabelledDataset, OTDDResult, OTDDSettings, Progress, Transport

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "ConvergenceWarning",
    "DataError",
    "DatasetNotFoundError",
    "DeviceError",
    "LabelError",
    "LabelledDataset",
    "OTDDError",
    "OTDDResult",
    "OTDDSettings",
    "Progress",
    "SettingsError",
    "Transport",
    "WeightError",
    "distance",
    "load",
    "load_result",
    "save",
    "sinkhorn_divergence",
    "steps",
]
