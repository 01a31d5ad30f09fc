"""The answers of commands other than diff as JSON, for programs."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from accucompare.bundle.format import display_name
from accucompare.compare.fits import Fit
from accucompare.compare.invariants import RankOutcome, RankPlace, RunChecks
from accucompare.compare.reruns import Decoded, Invariance, Repeated, Replays
from accucompare.compare.trends import PlaceTrend, TrendFacts
from accucompare.files import JSON_FILE
from accucompare.report.files.json_file import fields_of, write_document
from accucompare.report.words import (
    decode_words,
    fit_words,
    invariance_words,
    rank_words,
    repeat_words,
    trend_words,
)


def _answer(found: Any, headline: str) -> dict[str, Any]:
    return {"answer": found.answer.value, "exit_code": found.exit_code, "headline": headline}


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value, enc_hook=str)


def write_fit_json(found: Fit, path: Path) -> Path:
    """Write the answer, the places, all runs and the curve. Errors as ``write_document``."""
    content = {
        **msgspec.to_builtins(found),
        "exit_code": found.exit_code,
        "headline": fit_words.fit_headline(found),
        "hint": fit_words.fit_hint(found),
    }
    return write_document(content, path)


def write_invariance_json(found: Invariance, path: Path) -> Path:
    """Write every run with what changed. Errors as ``write_document``."""
    content = {
        "case": found.case,
        **_answer(found, invariance_words.invariance_headline(found)),
        **fields_of(found, "device", "dtype", "samples", "baseline", "bitwise"),
        "runs": [
            {**_plain(each), "fails": each.fails, "told": invariance_words.what_changed(each)}
            for each in found.outcomes
        ],
        "not_looked_at": {
            kind.value: invariance_words.NOT_LOOKED_AT[why]
            for kind, why in found.not_looked_at.items()
        },
        "layers": [
            {
                "layer": display_name(each.worst.name),
                "runs": each.runs,
                "worst_in": invariance_words.variant_words(each.variant),
                "worst": _plain(each.worst),
            }
            for each in found.layers
        ],
    }
    return write_document(content, path)


def write_decode_json(found: Decoded, path: Path) -> Path:
    """Write every run with what differs. Errors as ``write_document``."""
    content = {
        "case": found.case,
        **_answer(found, decode_words.decode_headline(found)),
        **fields_of(found, "device", "dtype", "golden", "tokens", "steps", "samples"),
        "anticipates": found.anticipates,
        "first": _plain(found.first),
        "runs": [
            {**_plain(each), "fails": each.fails, "told": decode_words.what_differs(each)}
            for each in found.outcomes
        ],
        "not_looked_at": {
            way.value: decode_words.NOT_DECODED[why] for way, why in found.not_looked_at.items()
        },
    }
    return write_document(content, path)


def write_repeat_json(made: Repeated, path: Path) -> Path:
    """Write what disagrees, and what replays say. Errors as ``write_document``."""
    content = {
        "what": made.what,
        **_answer(made, repeat_words.repeat_headline(made)),
        "found": _plain(made.found),
        "replays": _plain(made.replays) if isinstance(made.replays, Replays) else None,
        "replays_told": repeat_words.what_replays_say(made),
        "cure": repeat_words.repeat_cure(made),
    }
    return write_document(content, path)


def write_trend_json(facts: TrendFacts, path: Path) -> Path:
    """Write the runs, and each layer in each. Raises ReportError if the path has another ending, or
    the file cannot be written."""
    JSON_FILE.refuse_other(path)
    of_run = ("name", "path", "golden", "captured", "answer", "exit_code", "conclusion", "culprits")
    content = {
        **_answer(facts, trend_words.trend_headline(facts)),
        "against": facts.against,
        "runs": [fields_of(run, *of_run, "failing") for run in facts.runs],
        "left_out": [
            {**asdict(each), "told": trend_words.left_out_run_words(each)}
            for each in facts.left_out
        ],
        "notes": trend_words.trend_notes(facts),
        "layers": [_layer(facts, place) for place in facts.places],
    }
    return write_document(content, path)


def _layer(facts: TrendFacts, place: PlaceTrend) -> dict[str, Any]:
    def name(run: int | None) -> str | None:
        return None if run is None else facts.runs[run].name

    told = ("error_before", "error_after", "factor", "falls", "error_against", "factor_against")
    of_error = ("over_limit", "rel_l2", "excess", "rows", "failing", "value")
    return {
        "layer": place.layer,
        "state": place.state,
        "since": name(place.since),
        "before": name(place.before),
        **fields_of(place, *told),
        "errors": [error and fields_of(error, *of_error) for error in place.errors],
    }


def write_ranks_json(checks: RunChecks, path: Path) -> Path:
    """Write every check with what was measured. Errors as ``write_document``."""
    content = {
        "bundle": str(checks.path),
        **_answer(checks, rank_words.in_one_line(checks)),
        "ranks": checks.ranks,
        "steps": checks.steps,
        "checks": [_check(each) for each in checks.outcomes],
    }
    return write_document(content, path)


def _check(outcome: RankOutcome) -> dict[str, Any]:
    return {
        "id": outcome.check.value,
        "looks_at": rank_words.WORDS[outcome.check].looks_at,
        "status": outcome.status.value,
        "measured": rank_words.what_was_measured(outcome),
        **_place(outcome.place),
        "fact": _plain(outcome.measured),
        "cure": rank_words.what_to_do(outcome),
        "violations": outcome.count,
        "first_violations": [
            {"fact": _plain(each.fact), **_place(each.place)} for each in outcome.violations
        ],
    }


def _place(place: RankPlace) -> dict[str, Any]:
    named = place.role is not None or bool(place.name)
    return {
        "place": display_name(place.name) if named else "",
        **fields_of(place, "step", "role", "call", "ranks"),
    }
