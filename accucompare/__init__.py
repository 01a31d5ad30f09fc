"""accucompare: layer-wise cross-device accuracy comparison for PyTorch.

Importing this package imports neither torch nor pandas nor XlsxWriter; each public name is loaded
when it is first used."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from accucompare.version import __version__ as __version__

if TYPE_CHECKING:
    from accucompare.api import Comparison as Comparison
    from accucompare.api import diff as diff
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
    from accucompare.live.modules import check_finite as check_finite
    from accucompare.locating import LocateOptions as LocateOptions
    from accucompare.locating import locate as locate
    from accucompare.recorder.session import Session as Session
    from accucompare.recorder.session import capture as capture
    from accucompare.testing.closeness import assert_layers_close as assert_layers_close
    from accucompare.watcher.watch import Watch as Watch
    from accucompare.watcher.watch import watch as watch

_HOMES = {
    "AccucompareError": "accucompare.errors",
    "Bundle": "accucompare.bundle.reading.reader",
    "Case": "accucompare.case",
    "Comparison": "accucompare.api",
    "LocateOptions": "accucompare.locating",
    "NonFiniteError": "accucompare.errors",
    "Record": "accucompare.bundle.format.records",
    "Session": "accucompare.recorder.session.running",
    "Sketch": "accucompare.bundle.reading.sketches",
    "Tolerance": "accucompare.compare.limits.tolerance",
    "Watch": "accucompare.watcher.watch.steps",
    "WatchEndedError": "accucompare.errors",
    "Work": "accucompare.compare.diff_options",
    "assert_layers_close": "accucompare.testing.closeness",
    "capture": "accucompare.recorder.session.session",
    "check_finite": "accucompare.live.modules.points",
    "diff": "accucompare.api",
    "locate": "accucompare.locating",
    "open_bundle": "accucompare.bundle.reading.reader",
    "suggest_baseline": "accucompare.compare.limits.suggest",
    "watch": "accucompare.watcher.watch.watch_context",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
