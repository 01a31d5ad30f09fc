"""Group ``batched``: models whose samples depend on their batch, and right ones."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import accucompare as ac
from benchmarks.computed import ComputedTrial, Outcome
from planted.batch_faults import BATCH_CLEAN, BATCH_FAULTS

_CASE = "from planted import batch_faults\ndef case():\n    return batch_faults.{}({!r})\n"
_DTYPES = (None, "bfloat16")


def trials() -> Iterator[ComputedTrial]:
    for dtype in _DTYPES:
        for name, fault in BATCH_FAULTS.items():
            yield ComputedTrial(
                f"{name}, {dtype or 'float32'}",
                partial(_try, "faulty", name, dtype),
                partial(_names, fault.place),
                partial(_shows, fault.shows.value),
            )
        for name in BATCH_CLEAN:
            yield ComputedTrial(
                f"clean {name}, {dtype or 'float32'}", partial(_try, "clean", name, dtype)
            )
    yield ComputedTrial(
        "other bits in larger blocks", partial(_bits, "larger blocks"), partial(_names, "1")
    )


def _try(kind: str, name: str, dtype: str | None, folder: Path) -> Outcome:
    (folder / "batched.py").write_text(_CASE.format(kind, name))
    found = ac.check_invariance(
        str(folder / "batched.py"), "cpu", dtype=dtype, batch_axis=int(name == "sequence first")
    )
    failing = [
        (each.variant, seen.first_more)
        for each in found.failing
        if (seen := each if each.fails_itself else each.exact) is not None
    ]
    first = next((more.name for _, more in failing if more is not None), "nothing")
    shown = ", ".join(variant.kind.value for variant, _ in failing)
    return Outcome(found.exit_code, str(found), first, shown)


def _bits(name: str, folder: Path) -> Outcome:
    """With ``--bitwise``: the first layer whose bits change."""
    (folder / "batched.py").write_text(_CASE.format("clean", name))
    found = ac.check_invariance(str(folder / "batched.py"), "cpu", bitwise=True)
    larger = next(each for each in found.changed if each.first is not None)
    assert larger.first is not None
    return Outcome(found.exit_code, str(found), larger.first.name, larger.variant.kind.value)


def _names(place: str, outcome: Outcome) -> bool:
    return outcome.module == place


def _shows(kind: str, outcome: Outcome) -> bool:
    return kind in outcome.detail.split(", ")
