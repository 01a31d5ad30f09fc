"""accucompare: layer-wise cross-device accuracy comparison for PyTorch.

Importing this package imports neither torch nor pandas nor openpyxl; each public name is loaded
when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from accucompare.version import __version__ as __version__

if TYPE_CHECKING:
    from accucompare.api import Comparison as Comparison
    from accucompare.api import RankChecks as RankChecks
    from accucompare.api import check_ranks as check_ranks
    from accucompare.api import diff as diff
    from accucompare.asked import Arithmetic as Arithmetic
    from accucompare.asked import FedWith as FedWith
    from accucompare.asked import FitOptions as FitOptions
    from accucompare.asked import LocateOptions as LocateOptions
    from accucompare.asked import LookAt as LookAt
    from accucompare.asked import Loop as Loop
    from accucompare.asked import Recorded as Recorded
    from accucompare.asked import StartFrom as StartFrom
    from accucompare.bundle.format import Record as Record
    from accucompare.bundle.reading import Bundle as Bundle
    from accucompare.bundle.reading import Sketch as Sketch
    from accucompare.bundle.reading import open_bundle as open_bundle
    from accucompare.case import Case as Case
    from accucompare.compare.diff_options import Work as Work
    from accucompare.compare.limits import Tolerance as Tolerance
    from accucompare.compare.limits import suggest_baseline as suggest_baseline
    from accucompare.errors import AccucompareError as AccucompareError
    from accucompare.errors import NonFiniteError as NonFiniteError
    from accucompare.errors import WatchEndedError as WatchEndedError
    from accucompare.fitting import FitResult as FitResult
    from accucompare.fitting import fit as fit
    from accucompare.live.modules import check_finite as check_finite
    from accucompare.locating import locate as locate
    from accucompare.recorder.session import Session as Session
    from accucompare.recorder.session import capture as capture
    from accucompare.rerunning import DecodeCheck as DecodeCheck
    from accucompare.rerunning import InvarianceCheck as InvarianceCheck
    from accucompare.rerunning import RepeatCheck as RepeatCheck
    from accucompare.rerunning import check_decode as check_decode
    from accucompare.rerunning import check_invariance as check_invariance
    from accucompare.rerunning import check_repeat as check_repeat
    from accucompare.testing.closeness import assert_layers_close as assert_layers_close
    from accucompare.tracking import log_to as log_to
    from accucompare.trending import Trend as Trend
    from accucompare.trending import trend as trend
    from accucompare.watcher.watch import Watch as Watch
    from accucompare.watcher.watch import watch as watch

_HOMES = {
    "accucompare.api": ("Comparison", "RankChecks", "check_ranks", "diff"),
    "accucompare.asked": (
        *(
            "Arithmetic",
            "FedWith",
            "FitOptions",
            "LocateOptions",
            "LookAt",
            "Loop",
            "Recorded",
            "StartFrom",
        ),
    ),
    "accucompare.bundle.format.records": ("Record",),
    "accucompare.bundle.reading.reader": ("Bundle", "open_bundle"),
    "accucompare.bundle.reading.sketches": ("Sketch",),
    "accucompare.case": ("Case",),
    "accucompare.compare.diff_options": ("Work",),
    "accucompare.compare.limits.golden_baselines": ("suggest_baseline",),
    "accucompare.compare.limits.tolerance": ("Tolerance",),
    "accucompare.errors": ("AccucompareError", "NonFiniteError", "WatchEndedError"),
    "accucompare.fitting.case_fit": ("fit",),
    "accucompare.fitting.fit_result": ("FitResult",),
    "accucompare.live.modules.points": ("check_finite",),
    "accucompare.locating.case_locate": ("locate",),
    "accucompare.recorder.session.session": ("Session",),
    "accucompare.recorder.session.capture_context": ("capture",),
    "accucompare.rerunning.decode_of_case": ("DecodeCheck", "check_decode"),
    "accucompare.rerunning.invariance_of_case": ("InvarianceCheck", "check_invariance"),
    "accucompare.rerunning.repeats": ("RepeatCheck", "check_repeat"),
    "accucompare.testing.closeness": ("assert_layers_close",),
    "accucompare.tracking": ("log_to",),
    "accucompare.trending.trends": ("Trend", "trend"),
    "accucompare.watcher.watch.running_watch": ("Watch",),
    "accucompare.watcher.watch.watch_context": ("watch",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
