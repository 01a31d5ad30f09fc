"""The comparison as JSON, for programs."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from json.encoder import encode_basestring as _quoted
from math import isfinite
from pathlib import Path
from typing import Any

import msgspec

from accucompare.bundle.format import Record
from accucompare.compare.decide import decide
from accucompare.compare.measuring import Metrics
from accucompare.compare.origins import Culprit, with_producers
from accucompare.compare.result import Result
from accucompare.compare.rows import Row
from accucompare.compare.runs import Acceptance, Parting, StepPair, TrainingResult
from accucompare.files import COMPARISON_FILE, written_whole
from accucompare.report.files.json_file import encoded_json, fields_of, finite_or_text
from accucompare.report.files.written_comparison import is_lines
from accucompare.report.table import overview_of
from accucompare.report.words import (
    culprit_hints,
    decision_words,
    error_words,
    limit_words,
    place_words,
    preflight_words,
    training_words,
    verdict_words,
)


def write_json(comparison: Result, path: Path) -> Path:
    """Write verdict, findings, counts and every row; NaN and infinities as the strings ``"nan"``,
    ``"inf"``, ``"-inf"``.

    A path that ends in ``.jsonl`` or ``.ndjson`` gets JSON lines: first everything but the rows,
    with their number as ``row_count``, then a row each. One row is in memory at a time. Raises
    ReportError if the path has another ending, or the file cannot be written."""
    COMPARISON_FILE.refuse_other(path)
    parts = _lines if is_lines(path) else _document

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            file.writelines(parts(comparison))

    return written_whole(path, write)


def head(comparison: Result) -> dict[str, Any]:
    """Everything but the rows, as JSON can hold it."""
    decided = decide(comparison)
    first, until = comparison.first_divergence, comparison.identical_until
    places = overview_of(comparison).culprits if comparison.culprits else []
    content = {
        "golden": str(comparison.golden.path),
        "candidate": str(comparison.candidate.path),
        "baseline": None if comparison.baseline is None else str(comparison.baseline.path),
        **_beside(comparison),
        "refused_baseline": comparison.refused
        and preflight_words.refused_words(comparison.refused),
        "fed": comparison.fed,
        "captured": comparison.candidate.manifest.created,
        "verdict": decision_words.verdict(decided.answer),
        "passed": decided.passed,
        "exit_code": decided.exit_code,
        "answer": decided.answer.value,
        "conclusion": decision_words.conclusion(decided, comparison),
        "compared": comparison.compared,
        "by_statistics": comparison.by_statistics,
        "by_sketch": comparison.by_sketch,
        "by_digests": comparison.by_digests,
        "nonfinite_on_both": comparison.nonfinite_on_both,
        "counts": {reason.value: count for reason, count in comparison.counts().items()},
        "left_out": comparison.left_out,
        "maps": comparison.maps,
        "proposed_maps": comparison.proposed_maps,
        "tolerance": limit_words.tolerances(comparison.in_force),
        "identical_until": None if until is None else comparison.place(until),
        "first_divergence": None if first is None else comparison.place(first),
        "training": None if comparison.training is None else _training(comparison.training),
        "acceptance": None if comparison.acceptance is None else _acceptance(comparison.acceptance),
        "culprits": [
            _culprit(comparison, culprit, place_words)
            for culprit, place_words in zip(comparison.culprits, places, strict=True)
        ],
        "preflight": [
            {
                "topic": preflight_words.topic(finding),
                "message": preflight_words.message(finding),
                "serious": finding.serious,
                "of_baseline": finding.of_baseline,
            }
            for finding in comparison.preflight
        ],
        **({"compiled": msgspec.to_builtins(comparison.compiled)} if comparison.compiled else {}),
        "damage": comparison.damage,
    }
    plain: dict[str, Any] = finite_or_text(content)
    return plain


def _beside(comparison: Result) -> dict[str, Any]:
    """How the candidate's errors compare with the reference's; nothing without one."""
    found, reference = comparison.beside_reference, comparison.reference
    if found is None or reference is None:
        return {}
    worst = None
    if found.worst is not None:
        worst = {"row": comparison.place(found.worst[0]), "ratio": found.worst[1]}
    counts = fields_of(found, "nearer", "further", "alike", "median")
    return {"reference": {"path": str(reference.path), **counts, "worst": worst}}


def _document(comparison: Result) -> Iterator[bytes]:
    """One JSON document, as ``json.dumps`` writes it with an indent of 1."""
    text = json.dumps(head(comparison), indent=1, ensure_ascii=False, allow_nan=False)
    yield encoded_json(text.removesuffix("\n}") + ',\n "rows": [')
    between = "\n  "
    for row, producer in with_producers(comparison.rows):
        told = _row(row, producer) | _reference(comparison, row)
        yield encoded_json(between + _indented(told, "\n  "))
        between = ",\n  "
    yield b"]\n}\n" if between == "\n  " else b"\n ]\n}\n"


def _lines(comparison: Result) -> Iterator[bytes]:
    yield _line({**head(comparison), "row_count": len(comparison.rows)})
    # ten times as fast, but writes NaN and infinities as null
    encode = msgspec.json.Encoder().encode
    for row, producer in with_producers(comparison.rows):
        content = _row(row, producer) | _reference(comparison, row)
        try:
            yield encode(content) + b"\n" if _is_finite(content) else _line(finite_or_text(content))
        # half a surrogate; an integer of more than 64 bits
        except (UnicodeEncodeError, OverflowError):
            yield _line(finite_or_text(content))


def _line(content: dict[str, Any]) -> bytes:
    return encoded_json(
        json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    )


def _is_finite(row: dict[str, Any]) -> bool:
    """Whether JSON can hold every float of a row; a sum that overflows may be a false alarm."""
    sides = [side["statistics"] for side in (row["golden"], row["candidate"]) if side]
    tables = [row, *(table for table in (*sides, row["metrics"]) if table)]
    return isfinite(
        sum([value for table in tables for value in table.values() if type(value) is float])
    )


def _indented(value: Any, line: str) -> str:
    """As ``json.dumps(indent=1)``, in a quarter of the time; ``line``: a line break and its
    indent."""
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool):
        return "null" if value is None else "true" if value else "false"
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value) if isfinite(value) else f'"{value}"'
    inner = f"{line} "
    if isinstance(value, dict):
        content = [f"{_quoted(key)}: {_indented(child, inner)}" for key, child in value.items()]
        return f"{{{inner}{f',{inner}'.join(content)}{line}}}" if content else "{}"
    content = [_indented(child, inner) for child in value]
    return f"[{inner}{f',{inner}'.join(content)}{line}]" if content else "[]"


def _culprit(comparison: Result, culprit: Culprit, at: int | None) -> dict[str, Any]:
    """A culprit, whose row has this place (from 0); ``row`` is that row's number (from 1)."""
    number = None if at is None else at + 1
    more = fields_of(culprit, "jump", "seen")
    more |= {"words": error_words(culprit), "hints": culprit_hints(culprit)}
    more["configured"] = [asdict(option) for option in culprit.configured]
    if (scaled := culprit.scaled) is not None:
        names = ("factor", "spread", "count", "rank", "step", "of_loss", "of_parameters")
        more["scaled"] = fields_of(scaled, *names)
    difference = {} if culprit.difference is None else {"difference": asdict(culprit.difference)}
    return {
        "place": place_words(comparison, culprit),
        "row": number,
        **fields_of(culprit, "name", "call", "stage", "site", "before", "reason", "excess"),
        "over_limit": culprit.over_limit,
        "limit": culprit.row.verdict.excess_limit,
        **more,
        **difference,
    }


def _training(found: TrainingResult) -> dict[str, Any]:
    names = ("judged_by", "dtype", "compared", "judged", "identical", "same_batches")
    drifts = ("loss", "norm", "expected_loss", "expected_norm")
    return {
        **fields_of(found, *names),
        "settings": [asdict(setting) for setting in found.settings],
        "parting": found.parting and _parting(found.parting),
        "other_bits": found.other_bits and _parting(found.other_bits),
        "drift": {
            name: drift and {**asdict(drift), "biased": drift.biased}
            for name, drift in fields_of(found, *drifts).items()
        },
        "steps": [_step(pair) for pair in found.pairs],
    }


def _parting(parting: Parting) -> dict[str, Any]:
    apart = parting.apart
    return {
        "sentence": training_words.parting_words(parting),
        **fields_of(parting, "rank", "step", "rung", "quantity", "golden", "candidate"),
        **({} if apart is None else fields_of(apart, "relative", "limit")),
        "setting": parting.setting and asdict(parting.setting),
        "row": parting.row and parting.row.place,
    }


def _step(pair: StepPair) -> dict[str, Any]:
    return {
        **fields_of(pair, "rank", "step"),
        "golden": msgspec.to_builtins(pair.golden),
        "candidate": msgspec.to_builtins(pair.candidate),
        **{quantity.value: fields_of(apart, *_APART) for quantity, apart in pair.numbers},
    }


_APART = ("relative", "limit", "over")


def _acceptance(found: Acceptance) -> dict[str, Any]:
    return {
        "standard": found.standard,
        "source": training_words.STANDARD_SOURCES[found.standard],
        "passed": found.passed,
        "steps": found.steps,
        "least_steps": found.preset.least_steps,
        "rules": [
            {
                "measure": met.rule.measure,
                "absolute": met.absolute,
                "relative": met.relative,
                "absolute_limit": met.rule.absolute,
                "relative_limit": met.rule.relative,
                "passed": met.passed if met.judged else None,
                "why_not": training_words.why_not_measured(met),
            }
            for met in found.rules
        ],
    }


_PLACE = ("rank", "step", "call", "role", "path", "order", "type", "parent")


def _row(row: Row, producer: int | None) -> dict[str, Any]:
    """A row; ``producer``: the number (from 1) of the row that produced this very tensor."""
    record, verdict = row.record, row.verdict
    place_words = {} if record is None else fields_of(record, *_PLACE)
    return {
        "name": row.module,
        **place_words,
        "producer": producer,
        "status": row.status,
        "reason": verdict.reason,
        "tolerance": limit_words.judging_limits(verdict.limit),
        "rule": limit_words.rule(verdict.limit),
        "needed": verdict.needed,
        "used": verdict.over_limit,
        "detail": verdict_words.detail(row),
        "excess": verdict.excess,
        "excess_limit": verdict.excess_limit,
        "baseline": row.baseline_error,
        "noise": row.noise,
        "nearest": row.nearest,
        "golden": _side(row.golden),
        "candidate": _side(row.candidate),
        "by_statistics": row.by_statistics,
        "by_sketch": row.by_sketch,
        "metrics": None if row.metrics is None else _metrics(row.metrics),
    }


def _reference(comparison: Result, row: Row) -> dict[str, float | None]:
    """The reference's error in a row; nothing without one."""
    reference = comparison.reference
    return {} if reference is None else {"reference": reference.error(row)}


#: The metrics of a pair that has no finite value to compare.
_COUNTS = (
    *("elements", "compared", "golden_nan", "candidate_nan", "golden_inf", "candidate_inf"),
    *("nonfinite_mismatch", "nonfinite_index", "masked"),
)


def _metrics(metrics: Metrics) -> dict[str, Any]:
    values = msgspec.structs.asdict(metrics)
    if not metrics.nothing_finite:
        return values
    return {name: value if name in _COUNTS else None for name, value in values.items()}


def _side(record: Record | None) -> dict[str, Any] | None:
    if record is None:
        return None
    statistics = record.statistics.to_json() if record.statistics else None
    return {**fields_of(record, "name", "shape", "dtype", "layout"), "statistics": statistics}
