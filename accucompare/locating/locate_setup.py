from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from accucompare.asked import LocateOptions
from accucompare.bundle.writing import refuse_directory
from accucompare.devices import DeviceName
from accucompare.locating.baseline_run import Announce
from accucompare.locating.rank_group import RankGroup
from accucompare.places import Place
from accucompare.selection import FloatType


@dataclass(frozen=True)
class LocateSetup:
    """All that ``locate`` was asked, for the case's modules and then for the operators of one.

    Attributes:
        case, golden, dtype, overwrite: as for ``locate``.
        out: directory for the bundles that are made; those of operators go to ``ops``.
        announce: called with a description before each task.
        group: the ranks that run the candidate; ``None`` for one process.
    """

    case: str | None
    device: DeviceName
    golden: str | Place | None = None
    dtype: FloatType | None = None
    out: Place = Path("locate")
    overwrite: bool = False
    options: LocateOptions = LocateOptions()
    announce: Announce = lambda doing: None
    group: RankGroup | None = None

    @property
    def golden_python(self) -> str | Path | None:
        """The interpreter of golden's case; ``None`` for this process, unless it is a rank."""
        here = None if self.group is None else sys.executable
        return self.options.golden_python or here

    def refuse_taken(self, *names: str) -> None:
        """Raise CaptureError, before anything is captured, if a bundle may not be written."""
        for name in names:
            refuse_directory(self.out / name, self.overwrite)
