"""Datasets by name: ``load("mnist")``. Imports torchvision and scikit-learn only when needed."""

from otdd_flash.datasets.idx import IdxFile, read_idx
from otdd_flash.datasets.idx_sets import IdxPair, find_idx
from otdd_flash.datasets.loading import load
from otdd_flash.datasets.places import Place, search_places, user_cache
from otdd_flash.datasets.registry import Entry, find_entry, known_names
from otdd_flash.datasets.sampling import sample, stratified_rows

__all__ = [
    "Entry",
    "IdxFile",
    "IdxPair",
    "Place",
    "find_entry",
    "find_idx",
    "known_names",
    "load",
    "read_idx",
    "sample",
    "search_places",
    "stratified_rows",
    "user_cache",
]
