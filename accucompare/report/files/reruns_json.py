"""Samples in other batches, with a cache, and repeated runs, as JSON, for programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from accucompare.bundle.format import display_name
from accucompare.compare.reruns import Decoded, Invariance, Repeated, Replays
from accucompare.files import written_whole
from accucompare.report.files.ranks_json import finite_or_text
from accucompare.report.words import decode_words, invariance_words, repeat_words


def write_invariance_json(found: Invariance, path: Path) -> Path:
    """Write every run with what changed; NaN and infinities as ``"nan"``, ``"inf"``, ``"-inf"``.
    ReportError if the file cannot be written."""
    return _written(
        path,
        {
            "case": found.case,
            "answer": found.answer.value,
            "exit_code": found.exit_code,
            "headline": invariance_words.invariance_headline(found),
            "device": found.device,
            "dtype": found.dtype,
            "samples": found.samples,
            "baseline": found.baseline,
            "bitwise": found.bitwise,
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
        },
    )


def write_decode_json(found: Decoded, path: Path) -> Path:
    """Write every run with what differs. ReportError if the file cannot be written."""
    return _written(
        path,
        {
            "case": found.case,
            "answer": found.answer.value,
            "exit_code": found.exit_code,
            "headline": decode_words.decode_headline(found),
            "device": found.device,
            "dtype": found.dtype,
            "golden": found.golden,
            "tokens": found.tokens,
            "steps": found.steps,
            "samples": found.samples,
            "anticipates": found.anticipates,
            "first": _plain(found.first),
            "runs": [
                {**_plain(each), "fails": each.fails, "told": decode_words.what_differs(each)}
                for each in found.outcomes
            ],
            "not_looked_at": {
                way.value: decode_words.NOT_DECODED[why] for way, why in found.not_looked_at.items()
            },
        },
    )


def write_repeat_json(made: Repeated, path: Path) -> Path:
    """Write what disagrees, and what replays say. ReportError if the file cannot be written."""
    replays = made.replays
    return _written(
        path,
        {
            "what": made.what,
            "answer": made.answer.value,
            "exit_code": made.exit_code,
            "headline": repeat_words.repeat_headline(made),
            "found": _plain(made.found),
            "replays": _plain(replays) if isinstance(replays, Replays) else None,
            "replays_told": repeat_words.what_replays_say(made),
            "cure": repeat_words.repeat_cure(made),
        },
    )


def _written(path: Path, content: dict[str, Any]) -> Path:
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    encoded = text.encode("utf-8", "backslashreplace")
    return written_whole(path, lambda temporary: temporary.write_bytes(encoded))


def _plain(value: Any) -> Any:
    return finite_or_text(msgspec.to_builtins(value, enc_hook=str))
