"""How the ranks' tensors make up a global one, in words."""

from __future__ import annotations

from collections.abc import Sequence

from accucompare.bundle.format import GlobalRecord, LayoutEvidence, display_name
from accucompare.compare.measuring import Metrics
from accucompare.compare.remarks import NotRecordedOn, RanksDiffer, TokensElsewhere
from accucompare.compare.rows import Row
from accucompare.text import first_few

#: How it is known where values lie that one rank has fused, or in parts.
_OF_ONE_RANK = (
    LayoutEvidence.WEIGHTS,
    LayoutEvidence.VALUES,
    LayoutEvidence.LOSS_SCALE,
    LayoutEvidence.CALLS,
    LayoutEvidence.BACKWARDS,
)


def layout(row: Row) -> str | None:
    """``dim 2 over tp; recorded``, ``on ranks 0 and 1``, ``sum over ranks 0 to 3; inferred``."""
    record = row.candidate if isinstance(row.candidate, GlobalRecord) else row.golden
    if not isinstance(record, GlobalRecord):
        return None
    if record.evidence in _OF_ONE_RANK:
        return _of_one_rank(record)
    parts = [f"dim {axis} over {', '.join(names)}" for axis, names in record.axes]
    boxes = record.boxes
    if record.reduced:
        word = "mean" if record.reduced == "avg" else record.reduced
        parts.append(f"{word} over {ranks_in_words(record.ranks)}")
    elif len(boxes[0].terms) > 1:
        parts.append(f"sum over {ranks_in_words([each.rank for each in boxes[0].terms])}")
    elif len(boxes) > 1 and not parts:
        parts.append(f"{len(boxes)} parts on {ranks_in_words(record.ranks)}")
    elif not parts:
        parts.append(f"on {ranks_in_words(record.ranks)}")
    if record.padding is not None:
        axis, length = record.padding
        whose = "padding" if length > 0 else "golden's padding"
        parts.append(f"without {abs(length)} of {whose} in dim {axis}")
    return f"{'; '.join(parts)}; {record.evidence.value}"


def _of_one_rank(record: GlobalRecord) -> str:
    """``part of model.layers.0.self_attn.qkv_proj; by the rows of its weight``."""
    if record.evidence is LayoutEvidence.LOSS_SCALE:
        return f"times {record.boxes[0].factor:g}; {record.evidence.value}"
    if record.evidence is LayoutEvidence.CALLS:
        return f"{_of_calls(record)}; {record.evidence.value}"
    if record.evidence is LayoutEvidence.BACKWARDS:
        return f"sum {record.evidence.value} ({len(record.boxes[0].terms)})"
    names = list(dict.fromkeys(term.name for box in record.boxes for term in box.terms))
    if record.evidence is LayoutEvidence.VALUES or len(record.boxes[0].terms) > 1:
        paths = [term.path or "its value" for term in record.boxes[0].terms]
        every = " and ".join(paths if len(names) == 1 else map(display_name, names))
        what = every if len(paths) == 1 else f"sum of {every}"
    elif len(names) == 1:
        what = f"part of {display_name(names[0])}"
    else:
        what = f"{first_few([*map(display_name, names)])} side by side"
    return f"{what}; {record.evidence.value}"


def _of_calls(record: GlobalRecord) -> str:
    """``calls 0 to 3 side by side``, ``sum of calls 0 and 1``, ``part of call 0``."""
    calls = [term.call for box in record.boxes for term in box.terms]
    if len(calls) == 1:
        return f"part of call {calls[0]}"
    said = _in_words("call", calls)
    return f"sum of {said}" if len(record.boxes) == 1 else f"{said} side by side"


def largest_error_on(row: Row) -> str | None:
    """The ranks that hold the element with the largest error, or the first that is not finite."""
    record, metrics = row.candidate, row.metrics
    if not isinstance(record, GlobalRecord) or metrics is None:
        return None
    if record.evidence in _OF_ONE_RANK:
        return None
    index = metrics.nonfinite_index or metrics.max_abs_index
    return ", ".join(map(str, record.holders(index))) if index is not None else None


def wrong_on(row: Row, parts: Sequence[int] = ()) -> tuple[str, ...]:
    """One statement: the ranks that are wrong, or that hold the largest error of several ranks'.

    Args: ``parts``: those whose own parts are."""
    for remark in row.verdict.remarks:
        if isinstance(remark, RanksDiffer) and remark.wrong:
            return (f"wrong on {ranks_in_words(remark.wrong)}",)
        if isinstance(remark, NotRecordedOn):
            return (f"on {ranks_in_words(remark.ranks)}",)
        if isinstance(remark, TokensElsewhere) and remark.ranks:
            return (f"wrong on {ranks_in_words(remark.ranks)}",)
    record, on = row.candidate, largest_error_on(row)
    if isinstance(record, GlobalRecord) and record.evidence is LayoutEvidence.CALLS:
        return _in_call(record, row.metrics)
    if not isinstance(record, GlobalRecord) or not on or record.reduced:
        return ()
    if parts:
        return (f"wrong on {ranks_in_words(parts)}",)
    if len(record.ranks) == 1:
        return (f"on rank {on}",)
    several = len({each.rank for box in record.boxes for each in box.terms}) > 1
    return (f"the largest error is on rank {on}",) if several else ()


def _in_call(record: GlobalRecord, metrics: Metrics | None) -> tuple[str, ...]:
    """One statement: the call that holds the largest error, of several side by side."""
    index = None if metrics is None else metrics.nonfinite_index or metrics.max_abs_index
    at = None if index is None or len(record.boxes) == 1 else record.box_at(index)
    return () if at is None else (f"the largest error is in its call {at.terms[0].call}",)


def ranks_in_words(ranks: Sequence[int]) -> str:
    """``rank 0``, ``ranks 0 and 1``, ``ranks 0 to 7``."""
    return _in_words("rank", ranks)


def _in_words(word: str, numbers: Sequence[int]) -> str:
    first, last = numbers[0], numbers[-1]
    if len(numbers) == 1:
        return f"{word} {first}"
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{word}s {first} to {last}"
    return f"{word}s {', '.join(map(str, numbers[:-1]))} and {last}"
