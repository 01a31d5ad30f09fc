"""Group ``compiled``: wrong lowerings by a backend of ours, and right models by real backends."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch._dynamo
from torch._dynamo.backends.registry import _BACKENDS, _COMPILER_FNS

import accucompare as ac
from benchmarks.computed import ComputedTrial, Outcome
from planted.computed_lowerings import WRONG_LOWERINGS, WrongLowering

_MODELS = "planted.computed_models"
_PLANTED = "planted"


def trials() -> Iterator[ComputedTrial]:
    for fault in WRONG_LOWERINGS:
        yield ComputedTrial(
            str(fault),
            partial(_try_fault, fault),
            partial(_matches, fault.module),
            partial(_in_detail, fault.operator),
        )
    for model in ("blocks", "llama", "gpt2", "odd", "conv"):
        training = "" if model == "gpt2" else "_training"
        for dtype in ("float32", "bfloat16"):
            for backend in ("aot_eager", "inductor"):
                yield ComputedTrial(
                    f"clean {model}{training} {dtype} {backend}",
                    partial(_try_clean, f"{_MODELS}:{model}{training}", dtype, backend),
                )


def _try_fault(fault: WrongLowering, folder: Path) -> Outcome:
    _BACKENDS.pop(_PLANTED, None)
    _COMPILER_FNS.pop(_PLANTED, None)
    torch._dynamo.register_backend(fault.backend(), name=_PLANTED)
    torch._dynamo.reset()
    case = f"{_MODELS}:{fault.model}{'_training' if fault.backward else ''}"
    return _located(case, fault.dtype, _PLANTED, folder)


def _try_clean(case: str, dtype: str, backend: str, folder: Path) -> Outcome:
    torch._dynamo.reset()
    return _located(case, dtype, backend, folder)


def _located(case: str, dtype: str, backend: str, folder: Path) -> Outcome:
    found = ac.locate(
        case,
        "cpu",
        dtype=None if dtype == "float32" else dtype,
        out=folder / "located",
        options=ac.LocateOptions(compile=backend),
    )
    operator = None if found.compiled is None else found.compiled.operator
    return Outcome(
        found.exit_code,
        found.conclusion,
        found.culprits[0].name if found.culprits else "",
        "" if operator is None else f"{operator.operator} ({operator.line})",
    )


def _matches(module: str, outcome: Outcome) -> bool:
    return re.fullmatch(module, outcome.module) is not None


def _in_detail(operator: str, outcome: Outcome) -> bool:
    return re.search(operator, outcome.detail.partition(" (")[0]) is not None
