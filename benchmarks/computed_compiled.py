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
from planted.faults_models import ARCHITECTURES

_MODELS = "planted.computed_models"
_PLANTED = "planted"
#: AOTAutograd with its decompositions, and no code generated.
_QUICK = "aot_eager_decomp_partition"


def trials() -> Iterator[ComputedTrial]:
    for fault in WRONG_LOWERINGS:
        yield ComputedTrial(
            str(fault),
            partial(_try_fault, fault),
            partial(_matches, fault.module),
            partial(_in_detail, fault.operator),
        )
    for number, model in enumerate(ARCHITECTURES):
        yield _clean(f"architecture_{model}", "bfloat16" if number % 2 else "float32", _QUICK)
    for model in ("blocks_training", "llama_training", "gpt2", "odd_training", "conv_training"):
        for dtype in ("float32", "bfloat16"):
            yield _clean(model, dtype, _QUICK)
    for model in ("blocks_training", "llama_training", "gpt2", "odd_training", "conv_training"):
        for dtype in ("float32", "bfloat16"):
            yield _clean(model, dtype, "inductor")
    for model, dtype in (("bert", "float32"), ("t5", "bfloat16"), ("mixtral", "float32")):
        if model in ARCHITECTURES:
            yield _clean(f"architecture_{model}", dtype, "inductor")


def _clean(model: str, dtype: str, backend: str) -> ComputedTrial:
    return ComputedTrial(
        f"clean {model} {dtype} {backend}",
        partial(_try_clean, f"{_MODELS}:{model}", dtype, backend),
    )


def _try_fault(fault: WrongLowering, folder: Path) -> Outcome:
    _BACKENDS.pop(_PLANTED, None)
    _COMPILER_FNS.pop(_PLANTED, None)
    torch._dynamo.register_backend(fault.backend(), name=_PLANTED)
    torch._dynamo.reset()
    case = f"{_MODELS}:{fault.model}{'_training' if fault.backward or fault.trains else ''}"
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
