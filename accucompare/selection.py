"""What a user can choose: layers by glob, and options with a few values. Needs no torch."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase


class Word(str, Enum):
    """A member is its value in every text that is made of it."""

    __str__ = str.__str__


class Mode(Word):
    """``mode``: what a capture keeps of a tensor."""

    TENSORS = "tensors"
    SKETCH = "sketch"
    STATS = "stats"
    DIGEST = "digest"


#: Numbers in a sketch: default, least, most.
SKETCH_SIZE, LEAST_SKETCH_SIZE, MOST_SKETCH_SIZE = 256, 16, 65536


class Level(Word):
    """``level``: whose inputs and outputs a capture records, or a watch looks at."""

    MODULE = "module"
    OP = "op"


class RoleGroup(Word):
    """``roles``: which records a capture makes.

    ``FORWARD``: inputs and outputs of every layer, and operators. ``BACKWARD``: their gradients,
    and what each call adds to a parameter's. ``GRADS``: each parameter's gradient when the update
    begins. ``UPDATE``: parameters, the optimizer's state, and their changes. ``SERIES``: no record;
    losses, norms and learning rates of each step are always there."""

    FORWARD = "forward"
    BACKWARD = "backward"
    GRADS = "grads"
    UPDATE = "update"
    SERIES = "series"

    @classmethod
    def parse(cls, given: str | Iterable[str]) -> tuple[RoleGroup, ...]:
        """The groups in a list such as ``grads,series``, each once and in the order above.
        ValueError if a name is unknown, or there is none."""
        names = [name.strip() for name in (given.split(",") if isinstance(given, str) else given)]
        known = [each.value for each in cls]
        for name in names or [""]:
            if name not in known:
                raise ValueError(
                    f"{name!r} is none of {', '.join(known)}; write for example grads,update"
                )
        return tuple(each for each in cls if each.value in names)


class FloatType(Word):
    """``dtype``: the type that a case is cast to."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class RoundedFeed(Word):
    """``round_feed``; ``float29`` is float32 without its last three bits, about as much as two
    devices' float32 differs."""

    FLOAT64 = "float64"
    FLOAT32 = "float32"
    FLOAT29 = "float29"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class RoundedType(Word):
    """``round_weights``."""

    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Precision(Word):
    """``emulate``: a format that matrix units round float32 operands to.

    Bits of sign, exponent and explicit mantissa: ``HF32`` 1 + 8 + 11 (Huawei, ATC user guide,
    ``--allow_hf32``; torch_npu sets it for convolutions, but not for matrix products), ``TF32`` 1 +
    8 + 10 (NVIDIA A100 Tensor Core GPU Architecture, whitepaper), ``BF16`` 1 + 8 + 7, ``FP16`` 1 +
    5 + 10 (IEEE 754 binary16)."""

    HF32 = "hf32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"


class CostKind(Word):
    """``by``: what a share that is kept in float32 is of."""

    FLOPS = "flops"
    BYTES = "bytes"


class OnFinding(Word):
    """``on_finding``: what a watch does when it finds something."""

    RAISE = "raise"
    WARN = "warn"
    SNAPSHOT = "snapshot"


class Standard(Word):
    """``accept``: a published standard for training (``accucompare.compare.runs.acceptance``)."""

    MINDFORMERS = "mindformers"


class Viewer(Word):
    MODEL_EXPLORER = "model-explorer"
    PERFETTO = "perfetto"


class DumpFormat(Word):
    """``import --from``; each has a reader in ``accucompare.dumps``."""

    MSPROBE = "msprobe"
    CANN = "cann"
    MSACCUCMP = "msaccucmp"
    SGLANG = "sglang"
    POLYGRAPHY = "polygraphy"
    HUGGING_FACE = "hugging-face"
    DEBUG_MODE = "debug-mode"
    MEGATRON_ROUTER = "megatron-router"
    FOLDER = "folder"


#: The longest list of steps.
_MOST_STEPS = 1_000_000
_TOO_MANY = f"a list can have {_MOST_STEPS:,} steps; for more, give a number of steps"


@dataclass(frozen=True)
class Steps:
    """Which steps of a run are recorded."""

    count: int  # the number after the last step that is run
    chosen: tuple[int, ...] | None = None  # the recorded steps, in order; ``None`` for all
    first: int = 0  # the first step of this run; earlier ones were run elsewhere

    @classmethod
    def of(cls, given: int | str | Iterable[int]) -> Steps:
        """A number of steps, or a list of step numbers, as text such as ``0,10,100-102`` (``10-10``
        is step 10 alone). ValueError if it is neither."""
        if isinstance(given, str):
            given = int(given) if re.fullmatch(r"\s*\d{1,18}\s*", given) else cls._listed(given)
        if isinstance(given, int):
            if given < 1:
                cure = "; 0-0 is step 0 alone" if given == 0 else ""
                raise ValueError(f"must be at least 1, but is {given}{cure}")
            return cls(given)
        numbers = list(given)
        if not numbers or not all(isinstance(number, int) and number >= 0 for number in numbers):
            raise ValueError(
                "must be a number of steps, or a list of step numbers from 0 on, but is"
                f" {str(numbers)[:80]}"
            )
        if len(numbers) > _MOST_STEPS:
            raise ValueError(_TOO_MANY)
        chosen = tuple(sorted(set(numbers)))
        return cls(chosen[-1] + 1, chosen)

    @classmethod
    def held(cls, numbers: Iterable[int]) -> Steps | None:
        """The steps that a bundle holds, by their numbers; ``None`` if it holds none."""
        held = tuple(sorted(set(numbers)))
        if not held:
            return None
        return cls(len(held)) if held[-1] == len(held) - 1 else cls(held[-1] + 1, held)

    @staticmethod
    def _listed(text: str) -> list[int]:
        numbers: list[int] = []
        for part in text.split(","):
            found = re.fullmatch(r"\s*(\d{1,18})(?:\s*-\s*(\d{1,18}))?\s*", part)
            if found is None:
                cure = (
                    "a number of steps (3: the first three) or a list of steps (0,10,100-102; 10-10"
                    " is step 10 alone)"
                )
                raise ValueError(f"{part.strip()!r} is no step; write {cure}")
            first, last = int(found[1]), int(found[2] or found[1])
            if last < first:
                raise ValueError(f"{part.strip()} goes down; write {last}-{first}")
            if last - first >= _MOST_STEPS - len(numbers):
                raise ValueError(_TOO_MANY)
            numbers += range(first, last + 1)
        return numbers

    def has(self, step: int) -> bool:
        if self.chosen is None:
            return self.first <= step < self.count
        place = bisect_left(self.chosen, step)
        return place < len(self.chosen) and self.chosen[place] == step

    @property
    def numbers(self) -> Iterable[int]:
        return range(self.first, self.count) if self.chosen is None else self.chosen

    def __str__(self) -> str:
        """As a user writes it."""
        if self.chosen is None:
            return str(self.count - self.first)
        runs: list[list[int]] = []
        for number in self.chosen:
            if runs and runs[-1][-1] == number - 1:
                runs[-1][-1:] = [runs[-1][-1], number] if len(runs[-1]) == 1 else [number]
            else:
                runs.append([number])
        text = ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
        return f"{text}-{text}" if text.isdigit() else text


@dataclass(frozen=True)
class Selection:
    """Qualified names that match any of ``only`` (all, if empty) and none of ``skip``.

    Globs match the whole name, case-sensitively, and ``*`` crosses dots: ``encoder.*`` means
    everything inside the encoder, ``*.attention`` every attention at any depth, ``""`` or
    ``(root)`` the root alone."""

    only: tuple[str, ...] = ()
    skip: tuple[str, ...] = ()

    @classmethod
    def of(cls, only: str | Iterable[str], skip: str | Iterable[str]) -> Selection:
        return cls(listed(only), listed(skip))

    def allows(self, name: str) -> bool:
        chosen = not self.only or any(_matches(name, glob) for glob in self.only)
        return chosen and not any(_matches(name, glob) for glob in self.skip)


def _matches(name: str, glob: str) -> bool:
    return fnmatchcase(name, glob) or (not name and glob == "(root)")  # the root is shown so


def listed(globs: str | Iterable[str]) -> tuple[str, ...]:
    return (globs,) if isinstance(globs, str) else tuple(globs)
