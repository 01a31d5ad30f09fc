"""The baseline of one diff: its bundle, whether it may judge, and which record judges a pair."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, replace

import msgspec

from accucompare.bundle.format import Key, Record
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.limits import (
    check_baseline,
    check_dtypes,
    other_code,
    own_baseline,
    partners,
    suggested,
)
from accucompare.compare.pairing import (
    Calls,
    Model,
    Pair,
    Renaming,
    given_otherwise,
    judged_by_limits,
    numbered_as,
    signatures_of,
)
from accucompare.compare.preflight_facts import (
    NotInBaseline,
    OwnBaselineUnfit,
    PreflightFinding,
    RefusedBaseline,
)
from accucompare.compare.rows import Reason, Row, Task, with_baseline
from accucompare.compare.trust.preflight import preflight_baseline
from accucompare.errors import BundleError, UsageError
from accucompare.numbers import DTYPES
from accucompare.places import Place


@dataclass(frozen=True)
class ChosenBaseline:
    """The baseline of a diff."""

    asked: bool  # whether the user named it; then it is an error if it does not fit
    bundle: Bundle | None = None  # it, if it may judge records
    refused: RefusedBaseline | None = None  # why it may not judge, if it did not run golden's code
    unfit: str = ""  # why golden's own baseline does not fit; ``""`` if it does, or there is none
    # its records by golden's keys; ``None`` if it judges none
    records: dict[Key, Record] | None = None

    def on_one_device(self) -> ChosenBaseline:
        """Without a bundle of several ranks, whose tensors are not put together. Raises UsageError
        if the user named it."""
        try:
            _check_one_device(self.bundle)
        except UsageError as error:
            if self.asked:
                raise
            return replace(self, bundle=None, unfit=str(error))
        return self

    def with_records(
        self,
        tasks: list[Task],
        pairs: list[Pair],
        records: tuple[list[Record], list[Record], list[Record]],
        model: Model,
        renamings: list[Renaming],
        fed: bool,
    ) -> tuple[ChosenBaseline, list[Task]]:
        """The baseline with its records by golden's keys, and the tasks with those records. Raises
        UsageError if the user named it, and it is of another dtype than the candidate.

        Args:
            records: of golden, the candidate and the baseline.
            model: of golden's manifest.
        """
        golden, candidate, own = records
        # a baseline with only a series judges only the series
        if self.bundle is None or (tasks and not own):
            return replace(self, bundle=None), tasks
        if not fed:
            own = numbered_as(golden, own, renamings)
        fallback = self.bundle.manifest.options.fallback
        narrowed = () if fallback is None else fallback.modules
        by_key = partners(
            golden, own, renamings, signatures_of(model, self.bundle.manifest.model), narrowed
        )
        try:
            check_dtypes(pairs, by_key, self.bundle.path)
        except UsageError as error:
            if self.asked:
                raise
            return replace(self, bundle=None, unfit=str(error)), tasks
        tasks = [with_baseline(task, by_key) for task in tasks]
        calls = Calls.of(golden, candidate, own, renamings)
        tasks = [
            msgspec.structs.replace(task, by_rounding=calls.chosen(task.pair) or task.by_rounding)
            for task in tasks
        ]
        odd = given_otherwise(golden, by_key) if fed else set()
        tasks = [
            msgspec.structs.replace(task, by_rounding=None)
            if judged_by_limits(task.pair, odd)
            else task
            for task in tasks
        ]
        return replace(self, records=by_key), tasks

    def has_none_of(self, row: Row) -> bool:
        """Whether a compared row was judged without this baseline, which lacks it or its error."""
        # rows that are not proved are reported on their own
        if (
            self.records is None
            or row.golden is None
            or row.reason is Reason.IDENTICAL
            or row.verdict.unproved
        ):
            return False
        if row.golden.key not in self.records:
            return True
        judged = (
            row.baseline_error is not None
            or row.metrics is None
            or row.reason in (Reason.SHAPE, Reason.DTYPE, Reason.NON_FINITE)
        )
        return not judged and row.golden.dtype in DTYPES and DTYPES[row.golden.dtype].digits > 0

    def findings(
        self,
        golden: Bundle,
        candidate: Bundle,
        renamings: list[Renaming],
        alone: list[Row],
        compared: int,
    ) -> list[PreflightFinding]:
        """Findings about the baseline or its absence; ``alone`` are compared rows that it lacks."""
        findings = [PreflightFinding(OwnBaselineUnfit(self.unfit))] if self.unfit else []
        findings += preflight_baseline(golden, candidate, self.bundle, renamings, self.refused)
        if alone:
            findings.append(PreflightFinding(NotInBaseline(len(alone), compared, alone[0].place)))
        return findings


def choose_baseline(
    stack: contextlib.ExitStack, golden: Bundle, candidate: Bundle, asked: Place | None
) -> ChosenBaseline:
    """The user's baseline, or else golden's own for the candidate's precision, if there is one.
    Raises BundleError, UsageError if the user's cannot be read, or cannot judge."""
    chosen = ChosenBaseline(asked is not None)
    try:
        path = own_baseline(golden, candidate) if asked is None else asked
        if path is None:
            return chosen
        bundle = stack.enter_context(open_bundle(path))
        check_baseline(golden, candidate, bundle)
    except (BundleError, UsageError) as error:
        if asked is not None:
            raise
        return replace(chosen, unfit=str(error))
    why = other_code(golden.manifest, bundle.manifest)
    if why:  # it may have the same fault as the candidate
        return replace(
            chosen, refused=RefusedBaseline(bundle.path, why, suggested(golden, candidate))
        )
    return replace(chosen, bundle=bundle)


def _check_one_device(baseline: Bundle | None) -> None:
    if baseline is not None and baseline.manifest.ranks > 1:
        raise UsageError(
            f"{baseline.path}: a baseline of {baseline.manifest.ranks} ranks cannot judge tensors"
            " that are put together; capture one on one device (accucompare capture --as-layout"
            " CANDIDATE: it computes as the candidate's ranks do)"
        )
