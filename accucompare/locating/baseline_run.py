"""Golden's case, run here: the baseline in the candidate's precision, the proof in golden's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from accucompare.api import Comparison
from accucompare.bundle.format import PROOF, ROUNDED_RUN, Manifest
from accucompare.compare.constants import CLEAR
from accucompare.compare.limits import float_dtype, product_formats
from accucompare.errors import CaptureError, UsageError
from accucompare.locating.golden_code import GoldenCode
from accucompare.places import Place
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.selection import FloatType, RoundedFeed, RoundedType

#: Called with a description before each task.
Announce = Callable[[str], None]


@dataclass
class BaselineRun:
    """Runs of golden's case on the CPU, fed with golden (see ``compare.judging.proof``)."""

    # code, case: what runs it, and what is run
    code: GoldenCode
    case: str
    golden: Manifest  # its manifest
    # out, options: of the baseline's capture
    out: Place
    options: CaptureOptions
    announce: Announce
    layout: Place | None = None  # the ranks that a baseline in a half type computes as
    failed: str = ""  # why the proof could not be run; ``""`` if it could

    def make(self, candidate: Manifest) -> bool:
        """Make the baseline in the candidate's precision; whether that worked."""
        precision, emulate = _precision_of(self.golden, candidate)
        products = f" with products in {emulate}" if emulate else ""
        self.announce(f"baseline: {self.case} on the CPU, in {precision}{products}")
        dtype = FloatType(precision) if precision else None
        options = replace(self.options, emulate=emulate)
        if self.layout is not None and precision in list(RoundedType):
            try:
                self.code.capture(
                    self.case, self.out, replace(options, as_layout=self.layout), dtype
                )
                return True
            except (CaptureError, UsageError) as error:
                self.announce(f"baseline: not in the layout of the ranks, since {error}")
                options = replace(options, overwrite=True)
        try:
            self.code.capture(self.case, self.out, options, dtype)
        except (CaptureError, UsageError) as error:  # fixed limits judge instead
            self.announce(f"no baseline, since {error}")
            return False
        return True

    def prove(self) -> bool:
        """Run the case in golden's precision; whether that worked."""
        self.announce(f"proof: does {self.case} give golden's own values here?")
        return self._run_as_golden(self.out / PROOF, self.options)

    def look_again(self, comparison: Comparison, candidate: Manifest) -> bool:
        """Run the proof again, or golden's code on rounded values, if needed; whether any was."""
        again = on_rounded = False
        if comparison.unproved:
            self.announce("proof: again, since golden's values were not reproduced everywhere")
            again = self._run_as_golden(self.out / PROOF / "repeat1", self.options)
        dtype = float_dtype(candidate)
        to = _rounded_to(comparison, dtype, float_dtype(self.golden))
        if to:
            self.announce(
                f"far beyond rounding: does golden's own code on values rounded to {to} do the"
                " same?"
                if to == dtype
                else f"is that rounding? How far is golden's own code on values rounded to {to}?"
            )
            rounded = replace(self.options, round_feed=to, round_results=True)
            on_rounded = self._run_as_golden(self.out / ROUNDED_RUN, rounded)
        return again or on_rounded

    def _run_as_golden(self, out: Place, options: CaptureOptions) -> bool:
        made = self.golden.options
        deterministic = self.golden.flags.get("deterministic_algorithms") is True
        options = replace(options, emulate=made.emulate, deterministic=deterministic)
        dtype = FloatType(made.dtype) if made.dtype else None
        try:
            self.code.capture(self.case, out, options, dtype)
        except (CaptureError, UsageError) as error:
            self.failed = str(error)
            self.announce(f"that could not be run: {error}")
        return not self.failed


def _rounded_to(comparison: Comparison, candidate: str, golden: str) -> str:
    """What golden's code is to be run on values rounded to, given both sides' types; ``""``: none.

    Errors of float32 that are hardly over their limits may be those of its last bits.
    """
    verdicts = [row.verdict for row in comparison.rows]
    if golden == candidate == FloatType.FLOAT32:
        narrow = any(1.0 < (each.over_limit or 0.0) <= CLEAR for each in verdicts)
        return RoundedFeed.FLOAT29 if narrow or any(each.beyond for each in verdicts) else ""
    known = candidate in list(FloatType) and candidate != golden
    return candidate if known and any(each.beyond for each in verdicts) else ""


def _precision_of(golden: Manifest, candidate: Manifest) -> tuple[str, str | None]:
    """The type that the baseline computes in, and what its products are rounded to.

    In golden's own type the CPU would give golden itself, but for products. float64 then shows
    golden's rounding, which is the candidate's too.
    """
    ours, theirs = float_dtype(golden), float_dtype(candidate)
    lowered = [each for each in product_formats(candidate) if each and theirs == "float32"]
    return ("float64" if theirs in (ours, "") else theirs), lowered[0] if lowered else None
