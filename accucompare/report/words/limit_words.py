"""What judged a row, and the limits of a comparison, in every report."""

from __future__ import annotations

from accucompare.compare.constants import FED_ROUNDINGS, FED_ROUNDINGS_OF_SUMS
from accucompare.compare.limit_facts import (
    DefaultOfDtype,
    JudgedLimit,
    LimitKind,
    LimitOfKind,
    LimitOrigin,
    LimitsOfPair,
    LimitSource,
    RuleOfFile,
)
from accucompare.compare.limits import LimitsInForce, Tolerance
from accucompare.report.words.verdict_words import remark_words


def judging_limits(judged: JudgedLimit | None) -> str:
    """The limits that judged a row: ``rel_l2 0.0001``, ``excess 3.11``; ``""`` if none did."""
    match judged:
        case LimitsOfPair():
            return tolerance_words(judged)
        case LimitOfKind(kind, most):
            return _OF_KIND[kind].format(most=most)
    return ""


_OF_KIND = {
    LimitKind.EXCESS: "excess {most:.3g}",
    LimitKind.CEILING: "rel_l2 {most:g}",
    LimitKind.APART: "{most:.3g} apart",
    LimitKind.DIFFERENT: "{most:.0f} different",
    LimitKind.LAST_PLACE: "{most:.0f} elements beyond their last place",
    LimitKind.FACTOR: "factor within {most:.2g}",
    LimitKind.ENVELOPE: "rel_l2 {most:.3g}",
}


def rule(judged: JudgedLimit | None) -> str:
    """Where those limits come from, and why no baseline judges."""
    match judged:
        case LimitsOfPair():
            return "; ".join([source(judged.source), *map(remark_words, judged.unjudged)])
        case LimitOfKind(LimitKind.EXCESS | LimitKind.APART | LimitKind.DIFFERENT):
            return "baseline"
        case LimitOfKind(kind):
            return kind.value
    return ""


_SOURCE = {
    LimitSource.UNKNOWN: "",
    LimitSource.GIVEN: "given for all layers",
    LimitSource.FED: "fed",
    LimitSource.EXACT: "integers and booleans are compared exactly",
    LimitSource.BASELINE: "baseline",
}


def source(origin: LimitOrigin) -> str:
    match origin:
        case DefaultOfDtype(dtype, before, of_step):
            number = "a number of a step in " if of_step else ""
            passed = ", which earlier values passed through" if before else ""
            return f"default for {number}{dtype}{passed}"
        case RuleOfFile(file, number):
            return f"{file}, rule {number}"
    return _SOURCE[origin]


def tolerance_words(limits: Tolerance | LimitsOfPair) -> str:
    """``atol 0.001, rel_l2 0.01``, a user's own as given; ``exact`` if there are none."""
    values = {name: getattr(limits, name) for name in ("atol", "rtol", "rel_l2", "cosine")}
    shown = "{:.3g}".format if limits.by_default else _exact
    known = (f"{name} {shown(value)}" for name, value in values.items() if value is not None)
    return ", ".join(known) or "exact"


def _exact(value: float) -> str:
    """A number in six digits, or as many as it needs to be exact."""
    short = f"{value:g}"
    return short if float(short) == value else repr(value)


def by_rules(limits: LimitsInForce) -> str:
    """The rules of a file; ``""`` if there are none."""
    return f"{len(limits.rules)} rule(s) from {limits.rules[0].file}" if limits.rules else ""


def by_dtype(limits: LimitsInForce) -> str:
    if limits.fed:
        return (
            f"{FED_ROUNDINGS} x the rounding of each dtype ({FED_ROUNDINGS_OF_SUMS} x where sums"
            " make most of the error)"
        )
    return "default relative L2 limit of each dtype"


def tolerances(limits: LimitsInForce) -> str:
    rest = tolerance_words(limits.otherwise) if limits.otherwise.has_limit else by_dtype(limits)
    return ", then ".join(filter(None, [by_rules(limits), rest]))
