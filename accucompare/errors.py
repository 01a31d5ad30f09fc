"""What can go wrong, as one tree. Every message says what is wrong, where, and what to do.

AccucompareError
├── UsageError          an option, a pattern or a file of options that makes no sense
│   └── CaseError       a case that cannot be found, loaded or run
├── DeviceError         a device that is not there, or whose software is not
├── CaptureError        a capture that could not be finished: disk full, the model raised
├── NonFiniteError      a watch has found NaN, Inf or an overflow
├── WatchEndedError     a watch has watched as many steps as it was asked to
├── BundleError         a bundle that is missing, damaged, hostile or too new
│   └── RecordError     one record of a bundle; the others may be readable
├── ClusterError        a cluster that cannot be reached, or whose workers cannot do the work
└── ReportError         a report that cannot be written"""

from typing import Any


class AccucompareError(Exception):
    """Root of every error that accucompare raises on purpose."""


class UsageError(AccucompareError):
    """An option, a pattern or a file of options that makes no sense."""


class CaseError(UsageError):
    """A case that cannot be found, loaded or run."""


class DeviceError(AccucompareError):
    """A device that is not there, or whose software is not."""


class CaptureError(AccucompareError):
    """A capture that could not be finished; what was finished stays readable."""


class NonFiniteError(AccucompareError):
    """A watch has found NaN, Inf or an overflow; the message is the answer in five lines.

    Attributes:
        finding: an ``accucompare.findings.log.events.Finding``.
    """

    def __init__(self, message: str, finding: Any) -> None:
        super().__init__(message)
        self.finding = finding

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (str(self), self.finding)


class NonFiniteWarning(UserWarning):
    """The same as a warning: the watch goes on; the message is the answer in five lines."""


class WatchEndedError(AccucompareError):
    """A watch has reached ``abort_after_step``, or ``pause_after`` of a loss that is not finite."""


class BundleError(AccucompareError):
    """A bundle that is missing, damaged, hostile, or of a newer format."""


class RecordError(BundleError):
    """One record of a bundle that cannot be read; the others may be readable."""


class ClusterError(AccucompareError):
    """A cluster that cannot be reached, has lost its workers, or cannot do the work."""


class ReportError(AccucompareError):
    """A report that cannot be written."""
