"""Errors and warnings of the package: each says what arrived, what was expected, what to do."""


class OTDDError(ValueError):
    """Base of every error that bad input causes."""


class DataError(OTDDError):
    """Points that cannot be used: empty, NaN, wrong shape, feature counts that differ."""


class LabelError(OTDDError):
    """Labels that cannot be used: wrong length, missing values."""


class WeightError(OTDDError):
    """Weights that are negative, not finite, of the wrong length, or do not sum to one."""


class DatasetNotFoundError(OTDDError):
    """A dataset name or file that is not known or not there."""


class EncoderError(OTDDError):
    """An encoder that is not there, cannot take the samples, or returns what are no features."""


class SettingsError(OTDDError):
    """A setting outside its range."""


class DeviceError(OTDDError):
    """A device that was asked for and is absent, or a kernel it cannot run."""


class BudgetError(OTDDError):
    """A memory budget too small for the smallest way of doing the work."""


class ConvergenceWarning(UserWarning):
    """A solve that stopped before its tolerance; the value is flagged, never silent."""


def reason(error: BaseException) -> str:
    """Return what an error of another library says, on one line that fits into a message."""
    return " ".join(str(error).split())[:300] or type(error).__name__
