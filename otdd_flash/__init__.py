"""Optimal transport distances between labelled datasets, exact, certified, at full size.

>>> import otdd_flash as otdd
>>> result = otdd.distance(otdd.load("mnist-mini"), otdd.load("fashion-mnist-mini"))
>>> result.transport.lower <= result.transport.upper
True
"""

from importlib import import_module
from typing import TYPE_CHECKING

from otdd_flash.errors import (
    BudgetError,
    ConvergenceWarning,
    DataError,
    DatasetNotFoundError,
    DeviceError,
    EncoderError,
    LabelError,
    OTDDError,
    SettingsError,
    WeightError,
)

if TYPE_CHECKING:
    from otdd_flash.confidence import Confidence
    from otdd_flash.curvature.descent import DescentResult
    from otdd_flash.curvature.eigenvalue import MinEigenvalue, min_hessian_eigenvalue
    from otdd_flash.curvature.hybrid import adam_newton
    from otdd_flash.curvature.newton import newton_cg
    from otdd_flash.datasets import LoadSettings, load, load_together
    from otdd_flash.flows import FlowSettings, FlowState, flow
    from otdd_flash.losses.loss import sinkhorn_divergence
    from otdd_flash.losses.samples_loss import SamplesLoss
    from otdd_flash.losses.second_order import HVPResult, hvp
    from otdd_flash.many.explanations import explain
    from otdd_flash.many.findings import Explanation, MatrixResult, Ranking, Values
    from otdd_flash.many.matrices import matrix
    from otdd_flash.many.rankings import rank
    from otdd_flash.many.valuation import value
    from otdd_flash.otdd import distance, steps
    from otdd_flash.pictures.maps import plot_map, plot_matrix, plot_ranking, plot_tree
    from otdd_flash.pictures.plots import plot_result
    from otdd_flash.pictures.portraits import plot_explanation, plot_values
    from otdd_flash.report import write_report
    from otdd_flash.results import load_result, save
    from otdd_flash.settings import OTDDSettings
    from otdd_flash.types import LabelledDataset, OTDDResult, Progress, Transport

__version__ = "0.1.0"

__all__ = [
    "BudgetError",
    "Confidence",
    "ConvergenceWarning",
    "DataError",
    "DatasetNotFoundError",
    "DescentResult",
    "DeviceError",
    "EncoderError",
    "Explanation",
    "FlowSettings",
    "FlowState",
    "HVPResult",
    "LabelError",
    "LabelledDataset",
    "LoadSettings",
    "MatrixResult",
    "MinEigenvalue",
    "OTDDError",
    "OTDDResult",
    "OTDDSettings",
    "Progress",
    "Ranking",
    "SamplesLoss",
    "SettingsError",
    "Transport",
    "Values",
    "WeightError",
    "adam_newton",
    "distance",
    "explain",
    "flow",
    "hvp",
    "load",
    "load_result",
    "load_together",
    "matrix",
    "min_hessian_eigenvalue",
    "newton_cg",
    "plot_explanation",
    "plot_map",
    "plot_matrix",
    "plot_ranking",
    "plot_result",
    "plot_tree",
    "plot_values",
    "rank",
    "save",
    "sinkhorn_divergence",
    "steps",
    "value",
    "write_report",
]

# imported when first used: `otdd --help` must not wait for torch
_HOME = {
    "Confidence": "confidence",
    "LoadSettings": "datasets",
    "load": "datasets",
    "load_together": "datasets",
    "explain": "many.explanations",
    "Explanation": "many.findings",
    "MatrixResult": "many.findings",
    "Ranking": "many.findings",
    "Values": "many.findings",
    "FlowSettings": "flows",
    "FlowState": "flows",
    "flow": "flows",
    "MinEigenvalue": "curvature.eigenvalue",
    "min_hessian_eigenvalue": "curvature.eigenvalue",
    "adam_newton": "curvature.hybrid",
    "DescentResult": "curvature.descent",
    "newton_cg": "curvature.newton",
    "HVPResult": "losses.second_order",
    "hvp": "losses.second_order",
    "sinkhorn_divergence": "losses.loss",
    "matrix": "many.matrices",
    "distance": "otdd",
    "steps": "otdd",
    "plot_map": "pictures.maps",
    "plot_matrix": "pictures.maps",
    "plot_ranking": "pictures.maps",
    "plot_tree": "pictures.maps",
    "plot_result": "pictures.plots",
    "plot_explanation": "pictures.portraits",
    "plot_values": "pictures.portraits",
    "rank": "many.rankings",
    "write_report": "report",
    "load_result": "results",
    "save": "results",
    "SamplesLoss": "losses.samples_loss",
    "LabelledDataset": "types",
    "OTDDResult": "types",
    "OTDDSettings": "settings",
    "Progress": "types",
    "Transport": "types",
    "value": "many.valuation",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    # what this module imported for itself is not for its users
    return sorted({*__all__, *(name for name in globals() if name.startswith("__"))})
