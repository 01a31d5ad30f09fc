"""A comparison read back from ``accucompare diff --json``, as far as exports and trends need it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, TypeVar

import msgspec

from accucompare.bundle.format import Role
from accucompare.compare.rows import Reason, Status
from accucompare.errors import UsageError
from accucompare.files import ROW_LINES, bounded
from accucompare.numbers import Count
from accucompare.text import printable

_MOST_BYTES = 4 << 30  # a row takes 2 to 3 KB


class WrittenMetrics(msgspec.Struct, frozen=True, gc=False):
    """A pair's metrics, as in ``compare.measuring.measure.Metrics``."""

    rel_l2: float | None = None
    one_minus_cosine: float | None = None
    max_abs: float | None = None
    nonfinite_mismatch: int = 0


class WrittenSide(msgspec.Struct, frozen=True, gc=False):
    name: str
    shape: tuple[Count, ...]
    dtype: str


class WrittenRow(msgspec.Struct, frozen=True, gc=False):
    """One row; a module that was never called has no role."""

    name: str
    status: Status
    reason: Reason
    golden: WrittenSide | None
    candidate: WrittenSide | None
    metrics: WrittenMetrics | None
    producer: Annotated[int, msgspec.Meta(ge=1)] | None
    rank: Count = 0
    step: Count = 0
    call: Count = 0
    role: Role | None = None
    path: str = ""
    type: str = ""
    parent: tuple[str, Count] | None = None
    used: float | None = None
    excess: float | None = None
    tolerance: str = ""
    detail: str = ""

    @property
    def rel_l2(self) -> float | None:
        return None if self.metrics is None else self.metrics.rel_l2

    @property
    def value(self) -> str:
        """Which value of its call it is about: ``output.0``."""
        role = "" if self.role is None else self.role.value
        return printable(f"{role}.{self.path}" if self.path else role)


class WrittenCulprit(msgspec.Struct, frozen=True):
    place: str


class WrittenHead(msgspec.Struct, frozen=True):
    """Everything but the rows; what older files lack has a default."""

    golden: str
    candidate: str
    conclusion: str
    answer: str = "not sure"
    exit_code: int = 2
    tolerance: str = ""
    # when the candidate was captured, as its manifest says; ``""`` if it does not
    captured: str = ""
    fed: bool = False
    left_out: Count = 0  # how many records ``--only`` and ``--skip`` left out
    culprits: tuple[WrittenCulprit, ...] = ()


class Written(WrittenHead, frozen=True, kw_only=True):
    """A whole comparison."""

    rows: list[WrittenRow]


class _Head(WrittenHead, frozen=True, kw_only=True):
    """The first of its JSON lines."""

    row_count: Count


_T = TypeVar("_T")


def read_written(path: Path) -> Written:
    """Read what ``accucompare diff --json`` wrote. Raises UsageError if it cannot be read, or is
    something else."""
    content = bounded(path, _MOST_BYTES)
    try:
        written = _of_lines(content) if is_lines(path) else _decoded(content, Written)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        # never over a report
        name = (
            path.name
            if path.suffix.lower() == ".json" or is_lines(path)
            else path.with_suffix(".json").name
        )
        raise UsageError(
            f"{path}: is not a comparison of this version ({str(error)[:200]}); "
            f"write one with `accucompare diff GOLDEN CANDIDATE --json {name}`"
        ) from None
    if all(row.role is None for row in written.rows):
        raise UsageError(f"{path}: compares no call of any layer; there is nothing to draw")
    if any(
        row.producer is not None and row.producer >= number
        for number, row in enumerate(written.rows, 1)
    ):
        raise UsageError(
            f"{path}: is damaged (a producer does not come before its row); write it again with"
            " `accucompare diff --json`"
        )
    return written


def is_lines(path: Path) -> bool:
    """Whether a file holds JSON lines: a head, and one row a line."""
    return path.suffix.lower() in ROW_LINES


def _of_lines(content: bytes) -> Written:
    first, *others = content.removesuffix(b"\n").split(b"\n")
    head = _decoded(first, _Head)
    if head.row_count != len(others):
        raise ValueError(f"it has {len(others):,} of {head.row_count:,} rows")
    shared = {name: getattr(head, name) for name in WrittenHead.__struct_fields__}
    return Written(**shared, rows=[_decoded(line, WrittenRow) for line in others])


def _decoded(content: bytes, kind: type[_T]) -> _T:
    """Not strict: a number that JSON lacks is a text, ``"nan"``, ``"inf"`` or ``"-inf"``."""
    try:
        return msgspec.json.decode(content, type=kind, strict=False)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:  # it refuses half surrogates, which names of files may have
        return msgspec.convert(json.loads(content), kind, strict=False)
