"""The comparison as a trace for Perfetto: golden and candidate as two tracks of slices of equal
width, with arrows between the pairs.

Each step of a rank is a process; time shows the order only. Perfetto reads Chromium's trace-event
JSON ("Trace Event Format", 2016)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accucompare.compare.rows import Status
from accucompare.report.files.call_tree import CallNode, Pass, passes, worst
from accucompare.report.files.exported import facts, log_of, write_text
from accucompare.report.files.written_comparison import Written
from accucompare.text import printable

TraceEvent = dict[str, Any]

#: Trace microseconds: a call without calls inside; free ends of one with calls; gap between stages.
WIDTH, MARGIN, PAUSE = 1000, 10, 500
#: Processes are numbered in tens, then their tracks: Perfetto names a track by its number alone.
TENS, GOLDEN, CANDIDATE = 10, 1, 2


def write_perfetto(written: Written, path: Path) -> Path:
    """Write the trace. Raises ReportError if it cannot be written."""
    trace = _Trace()
    begins: dict[int, int] = {}  # where a rank's next step begins; ranks run beside each other
    processes: dict[tuple[int, int], int] = {}
    for each in passes(written.rows):
        place = each.rank, each.step
        if place not in processes:
            processes[place] = TENS * (len(processes) + 1)
            trace.events += _titles(processes[place], each, written)
        begins[each.rank] = trace.stage(each, processes[place], begins.get(each.rank, 0)) + PAUSE
    about = {
        "golden": written.golden,
        "candidate": written.candidate,
        "conclusion": written.conclusion,
        "time": "the order of calls only",
    }
    shown = {name: printable(value) for name, value in about.items()}
    return write_text(
        {"traceEvents": trace.events, "displayTimeUnit": "ms", "metadata": shown}, path
    )


def _titles(process: int, each: Pass, written: Written) -> Iterator[TraceEvent]:
    """Names of a process and of its tracks."""
    place = {"ph": "M", "pid": process}
    yield {**place, "name": "process_name", "args": {"name": f"rank {each.rank}, step {each.step}"}}
    yield {**place, "name": "process_sort_index", "args": {"sort_index": process}}
    for track, side, path in (
        (GOLDEN, "golden", written.golden),
        (CANDIDATE, "candidate", written.candidate),
    ):
        yield {
            **place,
            "tid": process + track,
            "name": "thread_name",
            "args": {"name": printable(f"{side}: {path}")},
        }
        yield {
            **place,
            "tid": process + track,
            "name": "thread_sort_index",
            "args": {"sort_index": track},
        }


@dataclass
class _Trace:
    """The events so far."""

    events: list[TraceEvent] = field(default_factory=list)
    arrows: int = 0

    def stage(self, each: Pass, process: int, begin: int) -> int:
        """Draw a stage, and return where it ends."""
        number = len(self.events)
        end = self._inside(each.calls, None, process, begin + MARGIN) + MARGIN
        around = [
            _slice(str(each.stage), process, track, begin, end, {}) for track in (GOLDEN, CANDIDATE)
        ]
        self.events[number:number] = around
        return end

    def _inside(
        self, calls: Sequence[CallNode], around: CallNode | None, process: int, begin: int
    ) -> int:
        for call in calls:
            number = len(self.events)
            end = (
                self._inside(call.inside, call, process, begin + MARGIN) + MARGIN
                if call.inside
                else begin + WIDTH
            )
            self.events[number:number] = self._call(call, around, process, begin, end)
            begin = end
        return begin

    def _call(
        self, call: CallNode, around: CallNode | None, process: int, begin: int, end: int
    ) -> Iterator[TraceEvent]:
        """A call on both tracks, or on the one that has it, with its arrow and its error."""
        rows = call.rows.values()
        telling = worst(rows)
        title = printable(call.title(around))
        if telling is not None and telling.status is Status.FAIL:
            title = f"{title} [{telling.reason.value}]"
        told: dict[str, Any] = {
            "layer": printable(call.name or "(root)"),
            "class": printable(call.type),
        }
        told |= {row.value: facts(row) for row in rows}
        on_golden = not rows or any(row.golden for row in rows)
        on_candidate = not rows or any(row.candidate for row in rows)
        if on_golden:
            yield _slice(title, process, GOLDEN, begin, end, told)
        if on_candidate:
            yield _slice(title, process, CANDIDATE, begin, end, told)
        if on_golden and on_candidate:
            self.arrows += 1
            arrow = {"name": "pair", "cat": "pair", "id": self.arrows, "pid": process}
            yield {**arrow, "ph": "s", "tid": process + GOLDEN, "ts": begin + 1}
            yield {**arrow, "ph": "f", "bp": "e", "tid": process + CANDIDATE, "ts": begin + 2}
        if not call.inside and telling is not None:
            value = log_of(telling.rel_l2)
            if value is not None:
                yield {
                    "name": "relative L2",
                    "ph": "C",
                    "pid": process,
                    "ts": begin,
                    "args": {"log10": value},
                }


def _slice(
    name: str, process: int, track: int, begin: int, end: int, told: dict[str, Any]
) -> TraceEvent:
    return {
        "name": name,
        "cat": "call",
        "ph": "X",
        "pid": process,
        "tid": process + track,
        "ts": begin,
        "dur": end - begin,
        "args": told,
    }
