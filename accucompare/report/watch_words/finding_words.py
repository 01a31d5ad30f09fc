"""One finding in words: what, where, made how, what went in and out, what to try. No torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from accucompare.findings.log import (
    Cause,
    Direction,
    Finding,
    Number,
    Site,
    TensorRange,
    WatchStart,
    log_path,
)
from accucompare.report.watch_words.hints import hints_for as hints
from accucompare.report.watch_words.remark_words import printable_value, said

_MOST = {"in": 3, "out": 2, "weights": 2, "parameters": 3, "hints": 2}  # that the answer shows


def short(value: Number | None) -> str:
    """A number in few characters; nothing for none."""
    return "" if value is None else f"{float(value):.5g}"


def smallest(tensor: TensorRange) -> float | None:
    """The smallest magnitude, as far as it is known."""
    low, high = float(tensor.low), float(tensor.high)
    if tensor.abs_min is not None:
        return float(tensor.abs_min)
    return max(low, -high) if low > 0 or high < 0 else None


def called(tensor: TensorRange) -> str:
    """A tensor's role in its call: ``input 0``, ``output``, ``weight bias``."""
    return printable_value(
        tensor.role if tensor.path in ("", tensor.role) else f"{tensor.role} {tensor.path}", 60
    )


def described(tensor: TensorRange) -> str:
    """One tensor in words: ``input 0 float16 [2, 16] |x| 0.001..3.2, 5 NaN``."""
    name = called(tensor)
    least = smallest(tensor)
    size = (
        ""
        if math.isnan(tensor.abs_max)
        else f" |x| {'up to ' if least is None else short(least) + '..'}{short(tensor.abs_max)}"
    )
    counts = [
        f"{count:,} {kind}" for count, kind in ((tensor.nan, "NaN"), (tensor.inf, "Inf")) if count
    ]
    if not counts and not tensor.finite:
        counts = ["NaN"] if math.isnan(tensor.abs_max) else ["Inf"]
    return f"{name} {printable_value(tensor.dtype, 40)} {list(tensor.shape)}{size}" + (
        f"{',' if size else ':'} {', '.join(counts)}" if counts else ""
    )


def where(start: WatchStart) -> str:
    """The rank and its coordinates: ``rank 3 (tp 1, pp 0, dp 3)``."""
    coordinates = ", ".join(
        f"{printable_value(axis, 20)} {index}" for axis, index in start.coordinates.items()
    )
    return f"rank {start.rank}" + (f" ({coordinates})" if coordinates else "")


def answer(
    finding: Finding, start: WatchStart, directory: Path | None = None, scale: float | None = None
) -> str:
    """A finding in at most five lines: what and where; made how; what went in and out; what to try;
    the reproducer and the log.

    Args:
        directory: of the watch, with log and reproducer; ``None`` if nothing was written.
        scale: the loss scale in its step, if any.
    """
    tried = "; ".join(
        printable_value(hint, 300) for hint in hints(finding, start, scale)[: _MOST["hints"]]
    )
    taken, given = _both_sides(finding)
    values = " → ".join(
        f"{side}: {_listed(tensors, _MOST[side])}"
        for side, tensors in (("in", taken), ("out", given))
        if tensors
    )
    lines = [
        finding_headline(finding, start),
        how(finding),
        values,
        tried and f"try: {tried}",
        _files(finding, start, directory),
    ]
    return "\n".join(line for line in lines if line)


def kinds(finding: Finding) -> str:
    """The kinds of values: ``NaN and +Inf``."""
    return printable_value(" and ".join(finding.kinds) or "not finite", 60)


def finding_headline(finding: Finding, start: WatchStart) -> str:
    """What and where."""
    direction = (
        "" if finding.site is Site.LOSS or finding.direction is Direction.BACKWARD else ", forward"
    )
    of_class = (
        f" ({printable_value(finding.type, 60)})"
        if finding.type and finding.site is not Site.LOSS
        else ""
    )
    rank = f", {where(start)}" if start.ranks > 1 or start.coordinates else ""
    return (
        f"{kinds(finding)} in {printable_value(finding.place)}{of_class}{direction}, step"
        f" {finding.step}{rank}"
    )


def how(finding: Finding) -> str:
    """Which operator made it at which line and from what; or where it came from."""
    by = (f" by {printable_value(finding.operator, 80)}" if finding.operator else "") + (
        f" at {printable_value(finding.line)}" if finding.line else ""
    )
    if finding.site is Site.LOSS and finding.operator and not finding.line:
        by += (
            " (at a line that is not known: the loss was computed otherwise than in the steps"
            " before; --level op notes every step)"
        )
    sentence = {
        Site.WEIGHTS: (
            "in its weights before it was called:"
            f" {_listed(list(map(described, finding.weights)), _MOST['weights'])}".rstrip(": ")
        ),
        Site.INPUT: "the model was given it",
        Site.LOSS: (
            f"it came from outside of the model, from the loss{by}"
            if finding.direction is Direction.BACKWARD
            else "made outside of the model"
        ),
        Site.RANK: (
            "another rank has found it, and its log names where; this one stops with it, before the"
            " update"
        ),
        Site.HOOK: (
            "made by a hook of your own on the parameter: the gradient that it was given was finite"
        ),
        Site.GRADIENTS: (
            "finite when the backward ended, but not when the update began: made in between, as by"
            " clipping"
        ),
        Site.UPDATE: (
            "made by the last update:"
            f" {_listed(list(map(described, finding.weights)), _MOST['weights'])}"
        ),
        Site.SUM: f"a sum of gradients{by}: of several places, micro-batches, steps or ranks",
        Site.POINT: f"made{by} between the call before this point and here{_aside(finding)}",
    }.get(finding.site, f"made inside{by}{_aside(finding)}")
    if finding.site is Site.LOSS and finding.direction is Direction.FORWARD:
        sentence = "made outside of the model: what it gave was finite" + _but_for_legal(finding)
    if finding.second:
        sentence += ", in a second backward, through gradients"
    if not finding.origin and finding.site is not Site.RANK:
        sentence = "it came in and passed through; it did not begin here"
    if finding.parameters:
        names = [printable_value(name) for name in finding.parameters]
        sentence += f"; gradients not finite: {_listed(names, _MOST['parameters'])}"
    return "; ".join([sentence, *(printable_value(said(note), 300) for note in finding.notes)])


def _aside(finding: Finding) -> str:
    if finding.cause is Cause.INPUTS:
        return ""
    if finding.cause is Cause.RANKS:
        return ", or given to it by another rank: what went in here was finite"
    if finding.unseen:
        names = _listed([printable_value(said(each)) for each in finding.unseen], 2)
        return f": what went in was finite, but for what was not looked at: {names}"
    if finding.cause is Cause.NEAR:
        return ": what went in was finite, but near the limit of its dtype"
    return ": what went in was finite" + _but_for_legal(finding)


def _but_for_legal(finding: Finding) -> str:
    return (
        ", but for an Inf that is legal"
        f" ({_listed([printable_value(path, 40) for path in finding.legal], 2)})"
        if finding.legal
        else ""
    )


def _both_sides(finding: Finding) -> tuple[list[str], list[str]]:
    """What went in, and what came out."""
    sides: tuple[list[str], list[str]] = [], []
    for tensor in finding.operator_tensors or finding.tensors:
        sides[tensor.role not in ("input", "weight", "buffer")].append(described(tensor))
    return sides


def _listed(texts: Sequence[str], most: int) -> str:
    return "; ".join(texts[:most]) + (
        f"; and {len(texts) - most:,} more" if len(texts) > most else ""
    )


def _files(finding: Finding, start: WatchStart, directory: Path | None) -> str:
    place = directory or Path()
    parts = (
        [f"reproducer: {printable_value(str(place / finding.reproducer), 400)}"]
        if finding.reproducer
        else []
    )
    parts += [printable_value(said(note), 400) for note in finding.reproducer_notes]
    parts += (
        [f"log: {printable_value(str(log_path(directory, start.rank)), 400)}"]
        if directory is not None
        else []
    )
    return "; ".join(parts)
