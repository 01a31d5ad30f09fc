"""What is said of one finding: what and where, made how, what went in and came out, what to try. Without torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from accucompare.findings.events import Cause, Direction, Finding, Number, Site, Start, TensorRange
from accucompare.findings.hints import hints as hints
from accucompare.findings.log import log_path
from accucompare.text import printable as shown

_MOST = {"in": 3, "out": 2, "weights": 2, "parameters": 3, "hints": 2}  # that the answer shows


def printable(text: str, most: int = 160) -> str:
    """A text in one line that a terminal can show (see ``accucompare.text``), the middle left out of a long one."""
    text = shown(text)
    half = (most - 1) // 2
    return text if len(text) <= most else f"{text[:half]}…{text[-half:]}"


def short(value: Number | None) -> str:
    """A number in few characters; nothing for none."""
    return "" if value is None else f"{float(value):.5g}"


def smallest(seen: TensorRange) -> float | None:
    """The smallest magnitude, as far as it is known."""
    low, high = float(seen.low), float(seen.high)
    if seen.abs_min is not None:
        return float(seen.abs_min)
    return max(low, -high) if low > 0 or high < 0 else None


def called(seen: TensorRange) -> str:
    """What a tensor was to its call: ``input 0``, ``output``, ``weight bias``."""
    return printable(seen.role if seen.path in ("", seen.role) else f"{seen.role} {seen.path}", 60)


def described(seen: TensorRange) -> str:
    """One tensor in words: ``input 0 float16 [2, 16] |x| 0.001..3.2, 5 NaN``."""
    name = called(seen)
    least = smallest(seen)
    size = "" if math.isnan(seen.abs_max) else f" |x| {'up to ' if least is None else short(least) + '..'}{short(seen.abs_max)}"
    counts = [f"{count:,} {kind}" for count, kind in ((seen.nan, "NaN"), (seen.inf, "Inf")) if count]
    if not counts and not seen.finite:
        counts = ["NaN"] if math.isnan(seen.abs_max) else ["Inf"]
    return f"{name} {printable(seen.dtype, 40)} {list(seen.shape)}{size}" + (
        f"{',' if size else ':'} {', '.join(counts)}" if counts else ""
    )


def where(start: Start) -> str:
    """The rank and its coordinates: ``rank 3 (tp 1, pp 0, dp 3)``."""
    coordinates = ", ".join(f"{printable(axis, 20)} {index}" for axis, index in start.coordinates.items())
    return f"rank {start.rank}" + (f" ({coordinates})" if coordinates else "")


def answer(found: Finding, start: Start, directory: Path | None = None, scale: float | None = None) -> str:
    """What was found, in five lines at most.

    Args:
        found: the finding.
        start: of its run.
        directory: of the watch, where its log and reproducer are; ``None`` if nothing was written.
        scale: the loss scale in its step, if there is one.

    Returns:
        What and where; made how; what went in and came out; what to try; the reproducer and the log.
    """
    tried = "; ".join(printable(hint, 300) for hint in hints(found, start, scale)[: _MOST["hints"]])
    taken, given = _both_sides(found)
    values = " → ".join(f"{side}: {_listed(tensors, _MOST[side])}" for side, tensors in (("in", taken), ("out", given)) if tensors)
    lines = [headline(found, start), how(found), values, tried and f"try: {tried}", _files(found, start, directory)]
    return "\n".join(line for line in lines if line)


def kinds(found: Finding) -> str:
    """What kind of values: ``NaN and +Inf``."""
    return printable(" and ".join(found.kinds) or "not finite", 60)


def headline(found: Finding, start: Start) -> str:
    """What was found, and where."""
    direction = "" if found.site is Site.LOSS or found.direction is Direction.BACKWARD else ", forward"
    of_class = f" ({printable(found.type, 60)})" if found.type and found.site is not Site.LOSS else ""
    rank = f", {where(start)}" if start.ranks > 1 or start.coordinates else ""
    return f"{kinds(found)} in {printable(found.place)}{of_class}{direction}, step {found.step}{rank}"


def how(found: Finding) -> str:
    """How it came to be there: made by which operator at which line, from what; or where it came from."""
    by = (f" by {printable(found.operator, 80)}" if found.operator else "") + (f" at {printable(found.line)}" if found.line else "")
    if found.site is Site.LOSS and found.operator and not found.line:
        by += " (at a line that is not known: the loss was computed otherwise than in the steps before; --level op notes every step)"
    sentence = {
        Site.WEIGHTS: f"in its weights before it was called: {_listed(list(map(described, found.weights)), _MOST['weights'])}".rstrip(": "),
        Site.INPUT: "the model was given it",
        Site.LOSS: f"it came from outside of the model, from the loss{by}"
        if found.direction is Direction.BACKWARD
        else "made outside of the model",
        Site.RANK: "another rank has found it, and its log names where; this one stops with it, before the update",
        Site.HOOK: "made by a hook of your own on the parameter: the gradient that it was given was finite",
        Site.GRADIENTS: "finite when the backward ended, and not when the update began: made in between, as by clipping",
        Site.UPDATE: f"made by the last update: {_listed(list(map(described, found.weights)), _MOST['weights'])}",
        Site.SUM: f"a sum of gradients{by}: of several places, micro-batches, steps or ranks",
        Site.POINT: f"made{by} between the call before this point and here{_aside(found)}",
    }.get(found.site, f"made inside{by}{_aside(found)}")
    if found.site is Site.LOSS and found.direction is Direction.FORWARD:
        sentence = "made outside of the model, from finite values"
    if found.second:
        sentence += ", in a second backward, through gradients"
    if not found.origin and found.site is not Site.RANK:
        sentence = "it came in and passed through; it did not begin here"
    if found.parameters:
        sentence += f"; gradients not finite: {_listed([printable(name) for name in found.parameters], _MOST['parameters'])}"
    return "; ".join([sentence, *(printable(note, 300) for note in found.notes)])


def _aside(found: Finding) -> str:
    """What is said of what went in."""
    if found.cause is Cause.INPUTS:
        return ""
    if found.cause is Cause.RANKS:
        return ", or given to it by another rank: what went in here was finite"
    if found.unseen:
        return f": what was looked at of what went in was finite; not looked at: {_listed([printable(each) for each in found.unseen], 2)}"
    if found.cause is Cause.NEAR:
        return ": what went in was finite, but near the limit of its dtype"
    legal = _listed([printable(path, 40) for path in found.legal], 2)
    return ": what went in was finite" + (f", but for an Inf that is legal ({legal})" if legal else "")


def _both_sides(found: Finding) -> tuple[list[str], list[str]]:
    """What went in, and what came out."""
    sides: tuple[list[str], list[str]] = [], []
    for tensor in found.operator_tensors or found.tensors:
        sides[tensor.role not in ("input", "weight", "buffer")].append(described(tensor))
    return sides


def _listed(texts: Sequence[str], most: int) -> str:
    return "; ".join(texts[:most]) + (f"; and {len(texts) - most:,} more" if len(texts) > most else "")


def _files(found: Finding, start: Start, directory: Path | None) -> str:
    place = directory or Path()
    parts = [f"reproducer: {printable(str(place / found.reproducer), 400)}"] if found.reproducer else []
    parts += [printable(note, 400) for note in found.reproducer_notes]
    parts += [f"log: {printable(str(log_path(directory, start.rank)), 400)}"] if directory is not None else []
    return "; ".join(parts)
