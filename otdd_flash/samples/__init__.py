"""Samples before they are points, for readers and encoders alike: fetched late, decoded once."""

from otdd_flash.samples.kinds import CHUNK, Arrays, Images, Rows, Samples, Texts, consecutive
from otdd_flash.samples.threads import in_threads

__all__ = [
    "CHUNK",
    "Arrays",
    "Images",
    "Rows",
    "Samples",
    "Texts",
    "consecutive",
    "in_threads",
]
