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
    with their number as ``row_count``, then a row each. One row is in memory at a time.

    Raises:
        ReportError: if the path has another ending, or the file cannot be written.
    """
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
    plain: dict[str, Any] = _plain(content)
    return plain


def _beside(comparison: Result) -> dict[str, Any]:
    """How the candidate's errors compare with the reference's; nothing without one."""
    found, reference = comparison.beside_reference, comparison.reference
    if found is None or reference is None:
        return {}
    worst = None
    if found.worst is not None:
        worst = {"row": comparison.place(found.worst[0]), "ratio": found.worst[1]}
    counts = {name: getattr(found, name) for name in ("nearer", "further", "alike", "median")}
    return {"reference": {"path": str(reference.path), **counts, "worst": worst}}


def _document(comparison: Result) -> Iterator[bytes]:
    """One JSON document, as ``json.dumps`` writes it with an indent of 1."""
    text = json.dumps(head(comparison), indent=1, ensure_ascii=False, allow_nan=False)
    yield _encoded(text.removesuffix("\n}") + ',\n "rows": [')
    between = "\n  "
    for row, producer in with_producers(comparison.rows):
        told = _row(row, producer) | _reference(comparison, row)
        yield _encoded(between + _indented(told, "\n  "))
        between = ",\n  "
    yield b"]\n}\n" if between == "\n  " else b"\n ]\n}\n"


def _lines(comparison: Result) -> Iterator[bytes]:
    yield _line({**head(comparison), "row_count": len(comparison.rows)})
    # ten times as fast, but writes NaN and infinities as null
    encode = msgspec.json.Encoder().encode
    for row, producer in with_producers(comparison.rows):
        content = _row(row, producer) | _reference(comparison, row)
        try:
            yield encode(content) + b"\n" if _is_finite(content) else _line(_plain(content))
        # half a surrogate; an integer of more than 64 bits
        except (UnicodeEncodeError, OverflowError):
            yield _line(_plain(content))


def _line(content: dict[str, Any]) -> bytes:
    return _encoded(
        json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":")) + "\n"
    )


def _encoded(text: str) -> bytes:
    # lone surrogates, as of file names, become JSON's \udc80
    return text.encode("utf-8", "backslashreplace")


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
    shown = {
        name: getattr(culprit, name)
        for name in ("name", "call", "stage", "site", "before", "reason", "excess", "over_limit")
    }
    more = {name: getattr(culprit, name) for name in ("jump", "seen")}
    more |= {"words": error_words(culprit), "hints": culprit_hints(culprit)}
    more["configured"] = [asdict(option) for option in culprit.configured]
    if (scaled := culprit.scaled) is not None:
        more["scaled"] = {
            name: getattr(scaled, name)
            for name in ("factor", "spread", "count", "rank", "step", "of_loss", "of_parameters")
        }
    difference = {} if culprit.difference is None else {"difference": asdict(culprit.difference)}
    return {
        "place": place_words(comparison, culprit),
        "row": number,
        **shown,
        "limit": culprit.row.verdict.excess_limit,
        **more,
        **difference,
    }


def _training(found: TrainingResult) -> dict[str, Any]:
    names = ("judged_by", "dtype", "compared", "judged", "identical", "same_batches")
    shown = {name: getattr(found, name) for name in names}
    drifts = {
        name: _fields(getattr(found, name))
        for name in ("loss", "norm", "expected_loss", "expected_norm")
    }
    return {
        **shown,
        "settings": [asdict(setting) for setting in found.settings],
        "parting": None if found.parting is None else _parting(found.parting),
        "other_bits": None if found.other_bits is None else _parting(found.other_bits),
        "drift": {
            name: None if each is None else {**each, "biased": getattr(found, name).biased}
            for name, each in drifts.items()
        },
        "steps": [_step(pair) for pair in found.pairs],
    }


def _fields(value: Any) -> dict[str, Any] | None:
    return None if value is None else asdict(value)


def _parting(parting: Parting) -> dict[str, Any]:
    values = {
        name: getattr(parting, name)
        for name in ("rank", "step", "rung", "quantity", "golden", "candidate")
    }
    apart = (
        {}
        if parting.apart is None
        else {"relative": parting.apart.relative, "limit": parting.apart.limit}
    )
    row = None if parting.row is None else parting.row.place
    return {
        "sentence": training_words.parting_words(parting),
        **values,
        **apart,
        "setting": _fields(parting.setting),
        "row": row,
    }


def _step(pair: StepPair) -> dict[str, Any]:
    numbers = {
        quantity.value: {"relative": apart.relative, "limit": apart.limit, "over": apart.over}
        for quantity, apart in pair.numbers
    }
    sides = {
        name: None if side is None else msgspec.to_builtins(side)
        for name, side in (("golden", pair.golden), ("candidate", pair.candidate))
    }
    return {"rank": pair.rank, "step": pair.step, **sides, **numbers}


def _acceptance(found: Acceptance) -> dict[str, Any]:
    rules = [
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
    ]
    least = found.preset.least_steps
    shown = {
        "standard": found.standard,
        "source": training_words.STANDARD_SOURCES[found.standard],
        "passed": found.passed,
        "steps": found.steps,
        "least_steps": least,
    }
    return {**shown, "rules": rules}


_PLACE = ("rank", "step", "call", "role", "path", "order", "type", "parent")


def _row(row: Row, producer: int | None) -> dict[str, Any]:
    """A row; ``producer``: the number (from 1) of the row that produced this very tensor."""
    record, verdict = row.record, row.verdict
    place_words = {} if record is None else {name: getattr(record, name) for name in _PLACE}
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
    return {
        "name": record.name,
        "shape": record.shape,
        "dtype": record.dtype,
        "layout": record.layout,
        "statistics": statistics,
    }


def _plain(value: Any) -> Any:
    """The same with every float that JSON cannot hold as a string."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(child) for child in value]
    return value
