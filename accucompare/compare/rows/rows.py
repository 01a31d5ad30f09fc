"""The rows of a diff, paired or not, with their verdicts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import msgspec

from accucompare.bundle.format import DEVICE_DIGEST, SERIES_ROLES, Record
from accucompare.compare.constants import NEAR
from accucompare.compare.limit_facts import JudgedLimit
from accucompare.compare.limits import SmallestLimit
from accucompare.compare.measuring import Metrics
from accucompare.compare.remarks import PairRemark


class Status(str, Enum):
    """What a row means for the verdict."""

    PASS = "pass"
    FAIL = "fail"
    NOT_COMPARED = "not compared"


class Reason(str, Enum):
    """Why a row has its status."""

    IDENTICAL = "identical"
    OK = "ok"
    INHERITED = "inherited"
    INTRODUCED = "introduced"
    GLUE = "glue"
    INPUTS_DIFFER = "inputs differ"
    NON_FINITE = "non-finite"
    SHAPE = "shape"
    DTYPE = "dtype"
    MISSING = "missing"
    EXTRA = "extra"
    ONE_SIDED = "one-sided"
    NOT_CALLED = "not called"
    NOT_COMPARABLE = "not comparable"
    OVER_PRECISE = "over-precise"
    NOT_DETERMINISTIC = "not deterministic"
    RANKS_DISAGREE = "ranks disagree"
    UNREDUCED = "unreduced"
    INCOMPLETE = "incomplete"
    # over its limit, until ``trace`` says where it came from; no row of a result has this
    OVER = "over"


STATUS_OF = {
    Reason.IDENTICAL: Status.PASS,
    Reason.OK: Status.PASS,
    Reason.INHERITED: Status.FAIL,
    Reason.INTRODUCED: Status.FAIL,
    Reason.GLUE: Status.FAIL,
    Reason.INPUTS_DIFFER: Status.FAIL,
    Reason.NON_FINITE: Status.FAIL,
    Reason.SHAPE: Status.FAIL,
    Reason.DTYPE: Status.FAIL,
    Reason.MISSING: Status.FAIL,
    Reason.EXTRA: Status.FAIL,
    Reason.ONE_SIDED: Status.NOT_COMPARED,
    Reason.NOT_CALLED: Status.NOT_COMPARED,
    Reason.NOT_COMPARABLE: Status.NOT_COMPARED,
    Reason.OVER_PRECISE: Status.PASS,
    Reason.NOT_DETERMINISTIC: Status.NOT_COMPARED,
    Reason.RANKS_DISAGREE: Status.FAIL,
    Reason.UNREDUCED: Status.FAIL,
    Reason.INCOMPLETE: Status.NOT_COMPARED,
    Reason.OVER: Status.FAIL,
}

#: Reasons of rows that have only one side.
UNMATCHED = (Reason.MISSING, Reason.EXTRA, Reason.ONE_SIDED)


@dataclass(frozen=True, slots=True)
class Option:
    """A number or string that differs: an operator's argument, or a module's attribute."""

    name: str  # of the argument or attribute: ``eps``
    # golden, candidate: each side's value in words; ``""`` if it has none
    golden: str
    candidate: str


@dataclass(frozen=True, slots=True)
class Difference:
    """Operators or options that differ between the two sides and explain an error."""

    # only_golden, only_candidate: operators with source lines: ``aten.mul (lora/layer.py:1065)``
    only_golden: tuple[str, ...] = ()
    only_candidate: tuple[str, ...] = ()
    # numbers and strings that differ for an operator that both sides run
    options: tuple[Option, ...] = ()


class Verdict(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The verdict on one row.

    Attributes:
        reason: it decides the status.
        limit: what judged it; ``None`` if nothing did.
        smallest: the smallest limits that would pass.
        over_limit: the column x limit: the error as a multiple of its limit (over 1 fails); the
            largest of several.
        rel_l2_limit: the limit on the relative L2 error, if there was one.
        excess: the candidate's relative L2 error as a multiple of the baseline's (or its floor).
        excess_limit: the limit on ``excess``, if that judged it.
        beyond: whether the baseline would pass it, but the error is too large for rounding.
        option: the two values of an operator's number or string, if they differ.
        by_rounding: whether rounding alone changes the shape or number of calls: nothing judges it.
        alike: for values that cannot be compared, whether both sides hold the same kind of value.
        begins: whether what it shows begins here: NaN or Inf, if nothing that went in has any; a
            one-sided gradient or update, if both sides have what it is made of.
        not_all_fed: for a fed row, whether an input of its call was not fed, nor proven right.
        unproved: whether its baseline may not judge: golden's code gives another value there.
        ill_conditioned: whether it passes over the ceiling, as golden's code on rounded values
            does.
        waived: whether an update over its limit is not judged, as it had other gradients.
        evident: whether its error is more than rounding, by a baseline or clearly by the ceiling.
    """

    reason: Reason
    limit: JudgedLimit | None = None
    smallest: tuple[SmallestLimit, ...] = ()
    over_limit: float | None = None
    remarks: tuple[PairRemark, ...] = ()
    rel_l2_limit: float | None = None
    excess: float | None = None
    excess_limit: float | None = None
    beyond: bool = False
    option: Option | None = None
    by_rounding: bool = False
    alike: bool = False
    begins: bool = False
    not_all_fed: bool = False
    unproved: bool = False
    ill_conditioned: bool = False
    evident: bool = False
    waived: bool = False

    @property
    def status(self) -> Status:
        return STATUS_OF[self.reason]

    def says(self, kind: type) -> bool:
        """Whether one of its remarks is of this kind."""
        return any(isinstance(remark, kind) for remark in self.remarks)

    @property
    def needed(self) -> str:
        """The smallest limits that would pass, rounded up (``"atol 2.4e-05"``), or ``""``."""
        return ", ".join(filter(None, map(str, self.smallest)))

    @property
    def near(self) -> bool:
        """Whether it passes, with an error of more than ``NEAR`` of its limit."""
        return self.status is Status.PASS and (self.over_limit or 0.0) > NEAR

    def beginning(self) -> Verdict:
        return msgspec.structs.replace(self, begins=True)

    def unfed(self) -> Verdict:
        return msgspec.structs.replace(self, not_all_fed=True)


class Row(msgspec.Struct, frozen=True, gc=False):
    """A pair of records, or one without partner. ``msgspec.structs.replace`` changes it.

    Attributes:
        golden, candidate: the records; both are missing only for a module that neither side calls.
        metrics: what was measured; ``None`` if nothing could be.
        nearest: for an unpaired record, the other side's unmatched name most like its own.
        module: the module's qualified name on golden's side (the candidate's, if only it has one).
        baseline_error: relative L2 error of the baseline's record; ``None`` if there is none.
        noise: L2 distance of two runs of the candidate, relative to golden's norm (0 for 0/0, inf
            for x/0 and if NaN or Inf differ); ``None`` for a single run.
    """

    golden: Record | None
    candidate: Record | None
    verdict: Verdict
    metrics: Metrics | None = None
    nearest: str = ""
    module: str = ""
    baseline_error: float | None = None
    noise: float | None = None

    def __repr__(self) -> str:
        error = f", relative L2 {self.metrics.rel_l2:.3g}" if self.metrics else ""
        return f"<Row {self.place}: {self.reason.value}{error}>"

    @property
    def record(self) -> Record | None:
        """Golden's record, or else the candidate's."""
        return self.golden or self.candidate

    @property
    def status(self) -> Status:
        return STATUS_OF[self.verdict.reason]

    @property
    def reason(self) -> Reason:
        return self.verdict.reason

    @property
    def lost(self) -> bool:
        """Whether a one-sided gradient or update begins here."""
        return self.reason in UNMATCHED and self.verdict.begins

    @property
    def by_statistics(self) -> bool:
        """Whether statistics alone judged it: metrics are lower bounds, passing proves little."""
        if self.by_sketch or (self.record is not None and self.record.role in SERIES_ROLES):
            return False
        sides = (self.golden, self.candidate)
        without_values = any(record is not None and record.member is None for record in sides)
        return self.metrics is not None and without_values and self.reason is not Reason.IDENTICAL

    @property
    def by_sketch(self) -> bool:
        """Whether its errors were estimated from sketches."""
        return self.metrics is not None and self.metrics.deviation > 0.0

    @property
    def same_bits(self) -> bool | None:
        """Whether both sides hold the same bits; ``None`` if unknown or one-sided."""
        golden, candidate = self.golden, self.candidate
        if golden is None or candidate is None or golden.digest is None or candidate.digest is None:
            return None
        if golden.digest.startswith(DEVICE_DIGEST) is not candidate.digest.startswith(
            DEVICE_DIGEST
        ):
            return None
        ours = golden.digest, golden.dtype, golden.shape, golden.shard
        return ours == (candidate.digest, candidate.dtype, candidate.shape, candidate.shard)

    @property
    def place(self) -> str:
        """Where the row is: ``encoder.0.fc1 call 1 output``."""
        record = self.record
        if record is None:
            return self.module
        path = f".{record.path}" if record.path else ""
        call = f" call {record.call}" if record.call else ""
        return f"{self.module or '(root)'}{call} {record.role.value}{path}"
