"""A JSON document of ours as a file."""

from __future__ import annotations

import json
from math import isfinite
from pathlib import Path
from typing import Any

from accucompare.files import written_whole


def write_document(content: Any, path: Path) -> Path:
    """Write JSON with an indent of 1; NaN and infinities become ``"nan"``, ``"inf"``, ``"-inf"``.
    ReportError if the file cannot be written."""
    text = json.dumps(finite_or_text(content), indent=1, ensure_ascii=False, allow_nan=False)
    encoded = encoded_json(f"{text}\n")
    return written_whole(path, lambda temporary: temporary.write_bytes(encoded))


def encoded_json(text: str) -> bytes:
    """JSON as bytes; lone surrogates, as of file names, become its ``\\udc80``."""
    return text.encode("utf-8", "backslashreplace")


def finite_or_text(value: Any) -> Any:
    """Builtin values, in which numbers that JSON lacks are text."""
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: finite_or_text(each) for name, each in value.items()}
    return [finite_or_text(each) for each in value] if isinstance(value, (list, tuple)) else value


def fields_of(value: Any, *names: str) -> dict[str, Any]:
    """Some fields by their names."""
    return {name: getattr(value, name) for name in names}
