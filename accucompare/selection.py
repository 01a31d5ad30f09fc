"""What a user can choose: layers by glob (``--only``, ``--skip``), and the values of options that have a few. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase


class _Value(str, Enum):
    """A value of an option, which is written as the user writes it."""

    __str__ = str.__str__


class Mode(_Value):
    """What ``mode`` can be: what a capture keeps of a tensor."""

    TENSORS = "tensors"
    STATS = "stats"


class Level(_Value):
    """What ``level`` can be: whose inputs and outputs a capture records, or a watch looks at."""

    MODULE = "module"
    OP = "op"


class FloatType(_Value):
    """What ``dtype`` can be: the type that a case is cast to."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class RoundedType(_Value):
    """What ``round_weights`` can be."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Precision(_Value):
    """What ``emulate`` can be: a format that matrix units round float32 operands to.

    ``HF32`` has 1 + 8 + 11 bits of sign, exponent and explicit mantissa (Huawei, ATC user guide, ``--allow_hf32``); on Ascend NPUs
    torch_npu sets it for convolutions, but not for matrix products. ``TF32`` has 1 + 8 + 10 (NVIDIA A100 Tensor Core GPU
    Architecture, whitepaper), ``BF16`` 1 + 8 + 7, and ``FP16`` 1 + 5 + 10 (IEEE 754 binary16).
    """

    HF32 = "hf32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class OnFinding(_Value):
    """What ``on_finding`` can be: what a watch does when it finds something."""

    RAISE = "raise"
    WARN = "warn"
    SNAPSHOT = "snapshot"


class Standard(_Value):
    """What ``accept`` can be: a standard of others that a run of training must meet (``accucompare.compare.acceptance``)."""

    MINDFORMERS = "mindformers"


@dataclass(frozen=True)
class Selection:
    """Which qualified names are meant: those that match any of ``only`` (all, if empty) and none of ``skip``.

    Globs are matched against the whole name, case counts, and ``*`` crosses dots: ``encoder.*`` means everything inside the
    encoder, ``*.attention`` every attention at any depth, ``""`` the root alone.
    """

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @classmethod
    def of(cls, only: str | Iterable[str], skip: str | Iterable[str]) -> Selection:
        """Build one from a single glob or several."""
        return cls(_tuple(only), _tuple(skip))

    def allows(self, name: str) -> bool:
        chosen = not self.only or any(fnmatchcase(name, glob) for glob in self.only)
        return chosen and not any(fnmatchcase(name, glob) for glob in self.skip)


def _tuple(globs: str | Iterable[str]) -> tuple[str, ...]:
    return (globs,) if isinstance(globs, str) else tuple(globs)
