"""The fixture ``layers_regression``: compare a model with a bundle that is kept beside its test."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accucompare.api import diff
from accucompare.compare.limits import Tolerance
from accucompare.errors import UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.selection import Mode
from accucompare.testing.closeness import captured, options_of, require_close

if TYPE_CHECKING:
    from torch import nn

    from accucompare.case import Case

_UNSAFE = re.compile(r"[^\w.-]+", re.ASCII)
_LONGEST = 80  # characters of a directory's name


@dataclass
class LayersRegression:
    """Compares each layer of a model with a bundle that is kept beside the test."""

    file: Path  # the test's file; ``test_model.py`` keeps its bundles in ``test_model/``
    test: str  # the test's name in it
    update: bool  # write bundles instead of comparing
    scratch: Path  # the test's temporary directory
    reports: Path | None  # where failing tests of this file write reports; ``None`` for ``scratch``
    note_written: Callable[[Path], None]  # called with each bundle that was written
    _used: set[str] = field(default_factory=set)

    def check(
        self,
        model: nn.Module | Case,
        inputs: Any = None,
        *,
        name: str = "",
        mode: str = Mode.SKETCH,
        equal_nan: bool = False,
        **limits: Any,
    ) -> None:
        """Assert that every layer is within the limits of the recorded bundle.

        With ``--accucompare-update`` the bundle is written anew instead. Raises AssertionError if a
        layer is not close, or there is no bundle yet; the message names the report; UsageError if
        an option makes no sense, or two checks of a test have one name.

        Args:
            model: runs on its own device, and in its own mode and dtype.
            inputs: for the model, as a ``Case`` takes them.
            name: tells several checks in one test apart.
            mode: how a bundle is written: ``"sketch"`` keeps digests, statistics and at most 2 KiB
                of each tensor, kilobytes for git, and errors are known to some percent. ``"stats"``
                keeps less, and misses values in another order and most small differences.
                ``"tensors"`` keeps all values.
            equal_nan: whether NaN in the same places is equal; else it fails.
            limits: ``atol``, ``rtol``, ``rel_l2``, ``cosine``, ``tolerances``, ``baseline``,
                ``map``, ``only``, ``skip``, as for ``accucompare.diff``.
        """
        __tracebackhide__ = True
        own = bundle_name(self.test, name)
        if own in self._used:
            raise UsageError(
                f"layers_regression: {self.test} checks twice; give the second check a name:"
                " check(…, name='second')"
            )
        self._used.add(own)
        kept = self.file.with_suffix("") / own
        if self.update:
            captured(model, kept, inputs, "model", CaptureOptions(mode=mode, overwrite=True))
            self.note_written(kept)
            return
        if not (kept / "manifest.json").is_file():
            raise AssertionError(
                f"There is nothing to compare with yet: {kept} is missing. Write it with: pytest"
                " --accucompare-update, look at what is written, and commit it"
            )
        tested = captured(
            model, self.scratch / "accucompare" / own, inputs, "model", options_of(kept)
        )
        own_limits = Tolerance(
            **{
                each: limits.pop(each)
                for each in ("rel_l2", "cosine", "tolerances")
                if each in limits
            }
        )
        require_close(
            diff(kept, tested, limits=own_limits, **limits),
            (self.reports or self.scratch) / f"{own}.xlsx",
            self.scratch,
            equal_nan,
        )


def bundle_name(test: str, name: str = "") -> str:
    """The name of a test's bundle: the test's, if safe as a file name; else with a digest."""
    whole = f"{test}.{name}" if name else test
    plain = whole.replace("::", ".")
    safe = _UNSAFE.sub("_", plain).strip("._")[:_LONGEST]
    if safe == plain:
        return safe
    return f"{safe}-{sha256(whole.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"
