"""The checklist: every check, judged by a watch's log. Without torch."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from accucompare.errors import UsageError
from accucompare.files import bounded
from accucompare.findings.analysis import Ranks
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    CheckStatus,
    Evidence,
    failed,
    not_looked_at,
    passed,
)
from accucompare.findings.checklist.checks_data import DATA
from accucompare.findings.checklist.checks_loss_inputs import LOSS
from accucompare.findings.checklist.checks_model import MODEL
from accucompare.findings.checklist.checks_optimizer import OPTIMIZER
from accucompare.findings.checklist.checks_precision import PRECISION
from accucompare.findings.checklist.checks_randomness import RANDOMNESS
from accucompare.findings.checklist.checks_run import RUN
from accucompare.findings.checklist.checks_schedule import SCHEDULE
from accucompare.findings.log import remark

#: In the order in which they are shown.
CHECKS: tuple[Check, ...] = (
    *DATA,
    *RANDOMNESS,
    *MODEL,
    *LOSS,
    *PRECISION,
    *OPTIMIZER,
    *SCHEDULE,
    *RUN,
)
#: The defaults of all checks, by name.
THRESHOLDS = {name: value for check in CHECKS for name, value in check.thresholds.items()}
_ORDER = list(CheckStatus)
#: Exit codes of `watch`, `overflow`, `health` and `gradcheck`. 0: nothing is wrong; 1: something
#: is; 2: nothing to rely on.
STATUS_EXIT_CODES = {
    CheckStatus.PASS: 0,
    CheckStatus.WARN: 1,
    CheckStatus.FAIL: 1,
    CheckStatus.NOT_LOOKED_AT: 2,
}
_MOST_BYTES = 1 << 20  # of a file of thresholds


@dataclass(frozen=True)
class Checklist:
    """A check, its outcome, and what it was judged by."""

    check: Check
    outcome: CheckOutcome
    limits: Mapping[str, float]  # its thresholds in force
    rank: int | None = None  # the rank that it is about, if there are several; else ``None``

    @property
    def status(self) -> CheckStatus:
        return self.outcome.status


@dataclass(frozen=True)
class Health:
    """The outcome of all checks; ``results`` has the table's order."""

    results: Sequence[Checklist]

    def of(self, *statuses: CheckStatus) -> list[Checklist]:
        return [each for each in self.results if each.status in statuses]

    @property
    def status(self) -> CheckStatus:
        """The worst of all; *not looked at* if nothing was."""
        judged = [
            each.status for each in self.results if each.status is not CheckStatus.NOT_LOOKED_AT
        ]
        return min(judged, key=_ORDER.index) if judged else CheckStatus.NOT_LOOKED_AT

    def counts(self) -> dict[CheckStatus, int]:
        return {
            status: len(self.of(status))
            for status in (
                CheckStatus.PASS,
                CheckStatus.WARN,
                CheckStatus.FAIL,
                CheckStatus.NOT_LOOKED_AT,
            )
        }


def judge_finite(ranks: Ranks) -> CheckOutcome:
    """A watch's verdict: whether everything was finite. The first rule that holds decides."""
    if ranks.trouble is not None:
        return not_looked_at(ranks.trouble)
    if ranks.first is not None:
        first = ranks.first[1]
        return failed(remark("gave", place=first.place, kinds=first.kinds), step=first.step)
    if ranks.unexplained:
        return failed(remark("unexplained"), step=ranks.unexplained[0][1].step)
    return passed(remark("all-finite", steps=ranks.watched))


def judge_log(ranks: Ranks, thresholds: Mapping[str, float] | None = None) -> Health:
    """Judge the last run of every rank.

    For a check made on each rank, the worst outcome counts, with the first rank that has it. Raises
    UsageError for an unknown threshold.

    Args:
        ranks: as ``accucompare.findings.analysis.read_logs`` gives them.
        thresholds: by name, in place of the defaults (see ``THRESHOLDS``).
    """
    given = thresholds or {}
    for name in given:
        if name not in THRESHOLDS:
            raise UsageError(f"there is no threshold {name!r}; known are {', '.join(THRESHOLDS)}")
    return Health([_result(check, ranks, given) for check in CHECKS])


def judge_vitals(ranks: Ranks) -> Health | None:
    """The checklist by its default thresholds; ``None`` if the logs have nothing for it."""
    return judge_log(ranks) if any(run.vitals for run in ranks.ranks) else None


def _result(check: Check, ranks: Ranks, given: Mapping[str, float]) -> Checklist:
    limits = {name: float(given.get(name, default)) for name, default in check.thresholds.items()}
    runs = ranks.ranks[:1] if check.across else ranks.ranks
    outcomes = [(_outcome(check, Evidence(run, limits, ranks.ranks)), run) for run in runs]
    outcome, run = min(outcomes, key=lambda pair: _ORDER.index(pair[0].status))
    return Checklist(
        check, outcome, limits, run.start.rank if ranks.several and not check.across else None
    )


def _outcome(check: Check, evidence: Evidence) -> CheckOutcome:
    if check.judge is None:
        return not_looked_at(remark(check.id))
    missing = next((need for need in check.needs if need.missing(evidence)), None)
    return not_looked_at(remark(missing.value)) if missing is not None else check.judge(evidence)


def read_thresholds(texts: Iterable[str], file: Path | None = None) -> dict[str, float]:
    """Thresholds from the command line, ``name=value``, and a TOML file of such lines; the command
    line wins. Raises UsageError if one cannot be read, or is unknown."""
    given: dict[str, float] = {}
    if file is not None:
        given |= _of_file(file)
    for text in texts:
        name, sign, value = text.partition("=")
        try:
            number = float(value) if sign else math.nan
        except ValueError:
            number = math.nan
        if math.isnan(number):
            raise UsageError(f"--threshold {text}: write it as name=value, such as loss-spike=20")
        given[name.strip()] = number
    for name, number in given.items():
        if name not in THRESHOLDS:
            raise UsageError(
                f"--threshold {name}: there is none of this name; known are {', '.join(THRESHOLDS)}"
            )
        if not 0 <= number < math.inf:
            raise UsageError(
                f"--threshold {name}={number:g}: must be a finite number that is not negative"
            )
    return given


def _of_file(file: Path) -> dict[str, float]:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        content = tomllib.loads(bounded(file, _MOST_BYTES).decode())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not valid TOML ({error})") from None
    for name, value in content.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or math.isnan(value):
            raise UsageError(f"{file}: {name} must be a number, but is {value!r}")
    return {name: float(value) for name, value in content.items()}
