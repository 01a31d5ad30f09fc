"""Operators of two captures aligned as sequences."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import accucompare as ac
from accucompare.bundle.format.records import Record
from accucompare.compare.pairing import sequences
from accucompare.compare.pairing.renames import Renaming
from accucompare.compare.pairing.sequences import align_operators, numbered_as
from accucompare.numbers.dtypes import DTYPES
from accucompare.numbers.statistics import summarize
from tests.compare.builder import Item, item, write

VALUES = np.random.default_rng(1).normal(size=(3, 4)).astype(np.float32)


def operators(*ran: str, call: int = 0, name: str = "attention") -> list[Item]:
    """A module call's: each as ``mul``, ``mul 2`` (what it is given), ``mul 2 @a/b.py:7``, ``mul 2
    x10`` (times the usual values); ``[fc]`` is a call of a child."""
    found: list[Item] = []
    counts = Counter[str]()
    for text in ran:
        if text.startswith("["):
            found += [
                item(text[1:-1], VALUES, role=role, parent=(name, call))
                for role in ("input", "output")
            ]
            continue
        kind, *rest = text.split()
        line = next((part[1:] for part in rest if part.startswith("@")), "")
        factor = next((float(part[1:]) for part in rest if part.startswith("x")), 1.0)
        path = f"aten.{kind}.Tensor#{counts[kind]}"
        place: dict[str, Any] = {
            "name": name,
            "call": call,
            "parent": (name, call),
            "type": f"aten.{kind}.Tensor",
        }
        counts[kind] += 1
        found.append(
            item(
                values=VALUES * np.float32(factor),
                role="op_input",
                path=f"{path}.self",
                source_line=line,
                **place,
            )
        )
        for number in (part for part in rest if part[0] not in "@x"):
            digest = f"digest of {number}"
            found.append(
                item(
                    role="op_input",
                    path=f"{path}.other",
                    layout="scalar",
                    digest=digest,
                    dtype="float64",
                    source_line=line,
                    **place,
                )
            )
        found.append(
            item(
                values=VALUES * np.float32(factor + 1),
                role="op_output",
                path=path,
                source_line=line,
                **place,
            )
        )
    return found


def records(items: Sequence[Item]) -> list[Record]:
    """What a writer would write of them, in memory."""
    found = []
    for order, (record, array, _) in enumerate(items):
        fields = {name: getattr(record, name) for name in Record.__struct_fields__} | {
            "order": order
        }
        if array is not None:
            fields |= {
                "statistics": summarize(array, DTYPES[record.dtype]),
                "digest": record.digest or str(array.tobytes()),
            }
        found.append(Record(**fields))
    return found


def paired(golden: Sequence[Item], candidate: Sequence[Item]) -> list[str]:
    """Golden's operator and the candidate's, by name and number, of each output row."""
    rows = []
    for pair in align_operators(records(golden), records(candidate)):
        sides = [
            "-"
            if each is None
            else each.path.removeprefix("aten.").replace(".Tensor", "") or each.name
            for each in (pair.golden, pair.candidate)
        ]
        if pair.record.role in ("op_output", "output"):
            rows.append(" ".join(sides))
    return rows


@pytest.mark.parametrize(
    ("golden", "candidate", "expected"),
    [
        (
            ["exp", "mul", "mul"],
            ["exp", "mul", "mul"],
            ["exp#0 exp#0", "mul#0 mul#0", "mul#1 mul#1"],
        ),
        # one more, one less
        (
            ["exp", "mul 2", "mul 3"],
            ["mul 9", "exp", "mul 2", "mul 3"],
            ["- mul#0", "exp#0 exp#0", "mul#0 mul#1", "mul#1 mul#2"],
        ),
        (
            ["exp", "mul 2", "sin", "mul 3"],
            ["exp", "sin", "mul 3"],
            ["exp#0 exp#0", "mul#0 -", "sin#0 sin#0", "mul#1 mul#0"],
        ),
        (["mul 2", "mul 3"], ["mul 3"], ["mul#0 -", "mul#1 mul#0"]),
        # another in its place
        (
            ["exp", "flip", "cos"],
            ["exp", "roll", "cos"],
            ["exp#0 exp#0", "- roll#0", "flip#0 -", "cos#0 cos#0"],
        ),
        # another number
        (
            ["exp", "mul 2", "cos"],
            ["exp", "mul 3", "cos"],
            ["exp#0 exp#0", "mul#0 mul#0", "cos#0 cos#0"],
        ),
        # one round more, between other changes: the last one has no partner
        (
            ["exp", "mul", "add", "mul", "add", "cos"],
            ["sin", "mul", "add", "mul", "add", "mul", "add", "tan"],
            [
                "- sin#0",
                "exp#0 -",
                "mul#0 mul#0",
                "add#0 add#0",
                "mul#1 mul#1",
                "add#1 add#1",
                "- mul#2",
                "- add#2",
                "- tan#0",
                "cos#0 -",
            ],
        ),
        # of equal ones, by the values and then by the line
        (
            ["silu", "mul x9"],
            ["sigmoid", "mul", "mul x9"],
            ["- sigmoid#0", "- mul#0", "silu#0 -", "mul#0 mul#1"],
        ),
        (
            ["exp", "mul @a/b.py:7"],
            ["mul @a/b.py:5", "mul @b.py:7"],
            ["- mul#0", "exp#0 -", "mul#0 mul#1"],
        ),
        # moved lines shift nothing
        (
            ["mul @b.py:3", "mul @b.py:5"],
            ["mul @b.py:5", "mul @b.py:7"],
            ["mul#0 mul#0", "mul#1 mul#1"],
        ),
        # a call of a child stays between
        (["mul", "[fc]", "mul"], ["[fc]", "mul"], ["mul#0 -", "fc fc", "mul#1 mul#0"]),
        (["mul"], [], ["mul#0 -"]),
        ([], ["mul"], ["- mul#0"]),
    ],
)
def test_operators_are_paired_in_sequence(
    golden: list[str], candidate: list[str], expected: list[str]
) -> None:
    assert paired(operators(*golden), operators(*candidate)) == expected


def test_each_call_is_aligned_by_itself_and_renamed_modules_as_others() -> None:
    golden = records([*operators("exp", "mul"), *operators("mul", call=1)])
    candidate = records(
        [*operators("mul", name="attn"), *operators("mul", "mul", name="attn", call=1)]
    )
    pairs = align_operators(golden, candidate, [Renaming.parse("attention=attn")])
    both = [
        (pair.golden.path, pair.candidate.call, pair.candidate.path)
        for pair in pairs
        if pair.golden and pair.candidate
    ]
    assert [each for each in both if each[0].endswith("0")] == [
        ("aten.mul.Tensor#0", 0, "aten.mul.Tensor#0"),
        ("aten.mul.Tensor#0", 1, "aten.mul.Tensor#0"),
    ]


def test_another_shape_is_another_operator() -> None:
    golden, candidate = operators("mul"), operators("mul")
    candidate[0] = candidate[0]._replace(array=VALUES[:2], record=item(values=VALUES[:2]).record)
    candidate[0] = item(
        "attention",
        VALUES[:2],
        role="op_input",
        path="aten.mul.Tensor#0.self",
        type="aten.mul.Tensor",
        parent=("attention", 0),
    )
    assert paired(golden, candidate) == ["- mul#0", "mul#0 -"]


SIDE = st.lists(
    st.sampled_from(["exp", "mul", "mul 2", "mul 3", "add x5", "[fc]"]), max_size=12
).filter(lambda ran: ran.count("[fc]") < 2)


@given(SIDE, SIDE)
def test_every_record_is_in_exactly_one_pair_in_goldens_order(
    golden: list[str], candidate: list[str]
) -> None:
    ours, theirs = records(operators(*golden)), records(operators(*candidate))
    pairs = align_operators(ours, theirs)
    assert [pair.golden for pair in pairs if pair.golden] == ours
    assert Counter(id(pair.candidate) for pair in pairs if pair.candidate) == Counter(
        map(id, theirs)
    )


@given(SIDE, SIDE)
def test_as_many_are_paired_as_can_be_in_order(golden: list[str], candidate: list[str]) -> None:
    """Against the longest common subsequence by its definition, of operators by name."""
    names = [[text.split()[0] for text in side] for side in (golden, candidate)]
    lengths = np.zeros((len(golden) + 1, len(candidate) + 1), int)
    for one, other in itertools.product(range(len(golden)), range(len(candidate))):
        same = lengths[one, other] + (names[0][one] == names[1][other])
        lengths[one + 1, other + 1] = max(same, lengths[one, other + 1], lengths[one + 1, other])
    found = [
        row for row in paired(operators(*golden), operators(*candidate)) if "-" not in row.split()
    ]
    if "[fc]" not in golden or "[fc]" not in candidate:
        assert len(found) == lengths[-1, -1]


def test_long_sequences_are_aligned_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sequences, "SEQUENCE_WINDOW", 16)
    kinds = ["exp", "mul", "add", "cos", "sin"]
    golden = [kinds[number * number % 5] for number in range(200)]
    candidate = ["tan", *golden[:60], "tan", "tan", *golden[60:120], *golden[123:], "tan"]
    pairs = [row.split() for row in paired(operators(*golden), operators(*candidate))]
    assert sum("-" not in pair for pair in pairs) >= 190  # of 197, at best


def test_thousands_of_operators_take_seconds_at_most() -> None:
    kinds = (
        np.random.default_rng(0)
        .choice(["exp", "mul", "add", "cos", "sin", "mul 2"], 2_000)
        .tolist()
    )
    golden, candidate = (
        records(operators(*side)) for side in (kinds, ["tan", *kinds[:1000], *kinds[1001:], "tan"])
    )
    start = time.process_time()
    numbered_as(golden, candidate)
    assert time.process_time() - start < 10


def test_a_free_running_baseline_is_aligned_as_well(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", operators("exp", "mul 2", "cos"))
    candidate = write(tmp_path / "candidate", operators("exp", "mul 2", "cos"))
    baseline = write(tmp_path / "baseline", operators("mul 9", "exp", "mul 2", "cos"))
    rows = ac.diff(golden, candidate, baseline=baseline).rows
    assert [row.baseline_error for row in rows if row.golden and row.golden.member is not None] == [
        0.0
    ] * 6
