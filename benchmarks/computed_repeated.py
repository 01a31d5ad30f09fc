"""Group ``repeated``: trainings that do not agree with themselves, in one run or in all, and right
ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import accucompare as ac
from accucompare.compare.reruns import Replays
from benchmarks.computed import ComputedTrial, Outcome
from planted.computed_repeats import REPEAT_CLEAN, REPEAT_FAULTS, RepeatFault

_TIMES = 5
_FIXTURES = ("gpt2.py:training", "llama.py:training")
_CASE = "from planted import computed_repeats\ndef case():\n    return computed_repeats.{}({!r})\n"


def trials() -> Iterator[ComputedTrial]:
    for name, fault in REPEAT_FAULTS.items():
        yield ComputedTrial(
            name, partial(_try, f"faulty {name}"), partial(_names, fault), partial(_tells, fault)
        )
    for name in REPEAT_CLEAN:
        yield ComputedTrial(f"clean {name}", partial(_try, f"clean {name}"))
    for name in _FIXTURES:
        yield ComputedTrial(f"clean {name}", partial(_check, f"fixtures/{name}", 3))


def _try(what: str, folder: Path) -> Outcome:
    kind, _, name = what.partition(" ")
    (folder / "repeated.py").write_text(_CASE.format(kind, name))
    return _check(str(folder / "repeated.py"), _TIMES, folder)


def _check(case: str, times: int, folder: Path) -> Outcome:
    made = ac.check_repeat(case, "cpu", times=times)
    first, replays = made.found.first, made.replays
    if first is None:
        return Outcome(made.exit_code, str(made), "nothing")
    again = isinstance(replays, Replays) and replays.found.first is not None
    detail = f"{first.role} step {first.step}{', replayed' if again else ''}"
    return Outcome(made.exit_code, str(made), first.name, detail)


def _names(fault: RepeatFault, outcome: Outcome) -> bool:
    return outcome.module == fault.place


def _tells(fault: RepeatFault, outcome: Outcome) -> bool:
    role, _, rest = outcome.detail.partition(" step ")
    step = rest.partition(",")[0]
    return role in fault.roles and fault.step in (None, int(step) if step.isdecimal() else None)
