"""The checks of one run's ranks as JSON, for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from accucompare.bundle.format import display_name
from accucompare.compare.invariants import RankFact, RankOutcome, RankPlace, RunChecks
from accucompare.files import written_whole
from accucompare.report.words import rank_words


def write_ranks_json(checks: RunChecks, path: Path) -> Path:
    """Write every check with what was measured; NaN and infinities as ``"nan"``, ``"inf"``,
    ``"-inf"``. ReportError if the file cannot be written."""
    content = {
        "bundle": str(checks.path),
        "answer": checks.answer.value,
        "exit_code": checks.exit_code,
        "headline": rank_words.in_one_line(checks),
        "ranks": checks.ranks,
        "steps": [*checks.steps],
        "checks": [_outcome(each) for each in checks.outcomes],
    }
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    encoded = text.encode("utf-8", "backslashreplace")
    return written_whole(path, lambda temporary: temporary.write_bytes(encoded))


def _outcome(outcome: RankOutcome) -> dict[str, Any]:
    return {
        "id": outcome.check.value,
        "looks_at": rank_words.WORDS[outcome.check].looks_at,
        "status": outcome.status.value,
        "measured": rank_words.what_was_measured(outcome),
        **_place(outcome.place),
        "fact": _fact(outcome.measured),
        "cure": rank_words.what_to_do(outcome),
        "violations": outcome.count,
        "first_violations": [
            {"fact": _fact(each.fact), **_place(each.place)} for each in outcome.violations
        ],
    }


def _place(place: RankPlace) -> dict[str, Any]:
    named = place.role is not None or bool(place.name)
    return {
        "place": display_name(place.name) if named else "",
        "step": place.step,
        "role": place.role,
        "call": place.call,
        "ranks": [*place.ranks],
    }


def _fact(fact: RankFact) -> dict[str, Any]:
    found: dict[str, Any] = finite_or_text(msgspec.to_builtins(fact, enc_hook=str))
    return found


def finite_or_text(value: Any) -> Any:
    """Builtin values, in which numbers that JSON lacks are text."""
    if isinstance(value, dict):
        return {name: finite_or_text(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite_or_text(each) for each in value]
    odd = isinstance(value, float) and not -float("inf") < value < float("inf")
    return str(value) if odd else value
