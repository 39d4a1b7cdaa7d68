"""Datasets of any kind: ``load("mnist")``. Libraries are imported only when they are needed."""

from otdd_flash.datasets.idx import IdxFile, read_idx
from otdd_flash.datasets.idx_sets import IdxPair, find_idx
from otdd_flash.datasets.loading import load, load_steps, load_together
from otdd_flash.datasets.overview import Known, description, known_sets
from otdd_flash.datasets.places import Place, search_places
from otdd_flash.datasets.registry import Entry, find_entry, known_names
from otdd_flash.datasets.sampling import sample, stratified_rows
from otdd_flash.datasets.settings import LoadSettings
from otdd_flash.datasets.sklearn_sets import known_sklearn

__all__ = [
    "Entry",
    "IdxFile",
    "IdxPair",
    "Known",
    "LoadSettings",
    "Place",
    "description",
    "find_entry",
    "find_idx",
    "known_names",
    "known_sets",
    "known_sklearn",
    "load",
    "load_steps",
    "load_together",
    "read_idx",
    "sample",
    "search_places",
    "stratified_rows",
]
