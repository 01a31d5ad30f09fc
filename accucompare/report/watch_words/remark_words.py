"""The sentence of a remark of a watch, a check or a gradcheck."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from accucompare.bundle.format import display_name
from accucompare.findings.log import WatchRemark
from accucompare.report.watch_words.check_sentences import CHECK_SENTENCES
from accucompare.report.watch_words.watch_sentences import WATCH_SENTENCES
from accucompare.text import counted, printable, ranges

#: By remark. ``{name}`` is a value; ``{name:how}`` is shown as ``format`` does, or by a function of
#: ``_SHOWN``. Text in brackets is left out if a value in it is empty.
SENTENCES = CHECK_SENTENCES | WATCH_SENTENCES
_FIELD = re.compile(r"\{(\w+)(?::([^}]*))?\}")
_OPTIONAL = re.compile(r"\[([^\]]*)\]")


def said(what: WatchRemark | str) -> str:
    """A remark in words; text, such as an error's or an earlier version's, is unchanged."""
    if isinstance(what, str):
        return what
    if what.fact not in SENTENCES:  # of a later version's log
        return f"{what.fact} {what.values}"
    values = what.values
    sentence = _OPTIONAL.sub(
        lambda part: "" if _lacks(part[1], values) else part[1], SENTENCES[what.fact]
    )
    return _FIELD.sub(lambda field: _shown(values.get(field[1]), field[2] or ""), sentence)


def _lacks(part: str, values: Mapping[str, Any]) -> bool:
    each = [values.get(name) for name, _ in _FIELD.findall(part)]
    return any(value is None or (not value and not isinstance(value, float)) for value in each)


def _shown(value: Any, how: str = "") -> str:
    kind, _, inner = how.partition(" ")
    if kind in _SHOWN:
        return _SHOWN[kind](value, inner)
    if isinstance(value, dict):  # a remark in a remark, as a log holds it
        value = WatchRemark(**value)
    if isinstance(value, WatchRemark):
        return said(value)
    if how and isinstance(value, str):  # a NaN or an infinity, as a log holds it
        value = float(value)
    return format(value, how) if how else str(value)


def _joined(separator: str) -> Callable[[Iterable[Any], str], str]:
    return lambda values, inner: separator.join(_shown(each, inner) for each in values)


def _first_few(names: Iterable[str], most: str) -> str:
    names = list(names)
    shown = int(most or 3)
    more = f" and {len(names) - shown:,} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more


def printable_value(text: str, most: int = 160) -> str:
    """A text in one printable line (see ``accucompare.text``), cut in the middle if long."""
    text = printable(text)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


_SHOWN: dict[str, Callable[[Any, str], str]] = {
    "count": lambda count, noun: counted(count, noun),
    "steps": lambda count, _: counted(count, "step"),
    "times": lambda count, _: counted(count, "time"),
    "list": _joined(", "),
    "and": _joined(" and "),
    "parts": _joined("; "),
    "pairs": lambda pairs, how: ", ".join(f"{name} {_shown(each, how)}" for name, each in pairs),
    "names": _first_few,
    "ranges": lambda numbers, _: ", ".join(ranges(numbers)),
    "module": lambda name, _: display_name(name),
    "printable": lambda text, most: printable_value(_shown(text), int(most)),
}
