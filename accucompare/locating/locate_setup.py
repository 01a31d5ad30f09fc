from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accucompare.asked import LocateOptions
from accucompare.bundle.writing import refuse_directory
from accucompare.devices import DeviceName
from accucompare.locating.baseline_run import Announce
from accucompare.places import Place
from accucompare.selection import FloatType


@dataclass(frozen=True)
class LocateSetup:
    """All that ``locate`` was asked, for the case's modules and then for the operators of one.

    Attributes:
        case, golden, dtype, overwrite: as for ``locate``.
        out: directory for the bundles that are made; those of operators go to ``ops``.
        announce: called with a description before each task.
    """

    case: str | None
    device: DeviceName
    golden: str | Place | None = None
    dtype: FloatType | None = None
    out: Place = Path("locate")
    overwrite: bool = False
    options: LocateOptions = LocateOptions()
    announce: Announce = lambda doing: None

    def refuse_taken(self, *names: str) -> None:
        """Raise CaptureError, before anything is captured, if a bundle may not be written."""
        for name in names:
            refuse_directory(self.out / name, self.overwrite)
