from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accucompare.asked import LocateOptions
from accucompare.devices import DeviceName
from accucompare.locating.baseline_run import Announce
from accucompare.places import Place
from accucompare.selection import FloatType


@dataclass(frozen=True)
class LocateSetup:
    """All that ``locate`` was asked, for the case's modules and then for the operators of one.

    Attributes:
        case: see ``accucompare.case.load_case``.
        device: the device under test.
        golden: the trusted bundle; by default, one is made on the CPU in float32, with weights and
            inputs rounded to ``dtype``.
        dtype: what the candidate computes in; by default its own type.
        out: directory for the bundles that are made: ``golden``, ``candidate`` and ``baseline``,
            and the same of operators in ``ops``.
        overwrite: replace the bundles of an earlier run.
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
