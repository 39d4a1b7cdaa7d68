"""What functions of datasets are called with: datasets, and settings or none."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from otdd_flash.checks import shown
from otdd_flash.errors import DataError, SettingsError
from otdd_flash.types import LabelledDataset

Kind = TypeVar("Kind")


def check_datasets(
    datasets: Any,  # whatever a caller passed
) -> None:
    """Refuse what is no sequence of datasets, such as their names.

    Raises:
        DataError: what arrived, and what makes a dataset of it.
    """
    if not isinstance(datasets, Sequence) or isinstance(datasets, (str, bytes)):
        raise DataError(f"{shown(datasets)} arrived, expected a list of datasets")
    for one in datasets:
        if not isinstance(one, LabelledDataset):
            raise DataError(
                f"{shown(one)} is no dataset; load makes one of a name, a file or a pair (x, y), "
                'as in load("mnist-mini"), and load_together several in one space'
            )


def given_or_default(
    value: Any,  # whatever a caller passed
    kind: type[Kind],  # of settings, all of which have defaults
) -> Kind:
    """Return settings, the defaults for None.

    Raises:
        SettingsError: something else, such as a dict.
    """
    if value is None:
        return kind()
    if not isinstance(value, kind):
        raise SettingsError(
            f"{shown(value)} arrived, expected settings as {kind.__name__}(...), or None"
        )
    return value
