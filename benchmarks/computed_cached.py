"""Group ``cached``: faults of caches by ``locate --decode``, and right models of transformers."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import accucompare as ac
from accucompare.report.words import decode_words
from benchmarks.computed import ComputedTrial, Outcome
from planted.computed_decode import DECODE_FAULTS, DecodeFault
from planted.computed_decode_models import DECODE_CLEAN, STEPS

#: Faults of the cache's type that bfloat16 models do not have.
_OF_FLOAT32 = ("rounded to bfloat16", "rounded to float16")
_DTYPES = (None, "bfloat16")


def trials() -> Iterator[ComputedTrial]:
    for name, fault in DECODE_FAULTS.items():
        for dtype in _DTYPES:
            if dtype is None or not name.endswith(_OF_FLOAT32):
                yield ComputedTrial(
                    f"{name}, {dtype or 'float32'}",
                    partial(_decoded, f"planted.computed_decode:{name}", dtype),
                    partial(_is_named, fault),
                    partial(_has_token, fault),
                )
    for name in DECODE_CLEAN:
        for dtype in _DTYPES:
            yield ComputedTrial(
                f"clean {name}, {dtype or 'float32'}",
                partial(_decoded, f"planted.computed_decode_models:{name}", dtype),
            )


def _decoded(case: str, dtype: str | None, folder: Path) -> Outcome:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = ac.check_decode(case, steps=STEPS, dtype=dtype)
    first = found.first
    told = decode_words.decode_headline(found)
    if first is None:
        return Outcome(found.exit_code, told)
    detail = f"{found.failing[0].way}|{first.token}|{first.argument}"
    return Outcome(found.exit_code, told, first.maker, detail)


def _is_named(fault: DecodeFault, outcome: Outcome) -> bool:
    return outcome.module in fault.names


def _has_token(fault: DecodeFault, outcome: Outcome) -> bool:
    way, token, argument = outcome.detail.split("|")
    return (
        fault.token in (None, int(token))
        and argument.startswith(fault.argument)
        and (fault.way is None or way == fault.way)
    )
