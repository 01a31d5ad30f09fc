"""One line of stepN.jsonl."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from accucompare.bundle.format.records import Key, Layout, Record, Role
from accucompare.errors import BundleError
from accucompare.numbers.statistics import Statistics

_SIX = Record(
    0, 0, "fc", 0, Role.OUTPUT, "0", 3, "Linear", ("", 0), (2, 3), "float32", Layout.STRIDED
)
GOOD: dict[str, Any] = json.loads(
    replace(
        _SIX, member="000000.fc", digest="ab", statistics=Statistics(0, 1, 0.5, 1, 0, 0)
    ).to_line()
)


@given(
    st.builds(
        Record,
        st.integers(0, 9),
        st.integers(0, 9),
        st.text(),
        st.integers(0, 2**63 - 1),
        st.sampled_from(Role),
        st.text(),
        st.integers(0, 2**63 - 1),
        st.text(),
        st.none() | st.tuples(st.text(), st.integers(0, 9)),
        st.lists(st.integers(0, 9), max_size=9).map(tuple),
        st.sampled_from(["float32", "bfloat16", "int64"]),
        st.sampled_from(Layout),
        st.none() | st.text(),
        st.none() | st.text(),
        st.none()
        | st.builds(
            Statistics,
            st.floats(-9, 9),
            st.integers(-(2**63), 2**64),
            st.none(),
            st.floats(0, 1e308),
            st.just(1),
            st.just(0),
        ),
        st.text(),
    )
)
def test_a_record_reads_as_it_was_written(record: Record) -> None:
    assert Record.from_line(record.to_line(), record.rank, record.step) == record


@pytest.mark.parametrize(
    "statistics",
    [
        Statistics(-1e-05, 1e16, 0.1, 5e-324, 0, 0),
        Statistics(False, True, 0.5, 1.0, 0, 0),
        Statistics(-1.7e308, 1.7e308, 0.0, None, 1, 2, 0.25),
    ],
)
def test_a_line_is_what_the_standard_library_writes(statistics: Statistics) -> None:
    record = replace(
        _SIX, name='a"\n\u2028', parent=("é", 1), statistics=statistics, components=((2,), (1,))
    )
    line = record.to_line()
    compact = json.dumps(json.loads(line), ensure_ascii=False, separators=(",", ":"))
    assert line == f"{compact}\n".encode()


def test_a_lone_surrogate_is_written_escaped() -> None:
    record = replace(_SIX, path="\udc80", parent=("\udc81", 0))
    read = Record.from_line(record.to_line(), 0, 0)
    assert (read.path, read.parent) == ("\\udc80", ("\\udc81", 0))


@pytest.mark.parametrize("detail", ["", "a slice", "a slice at most"])
@pytest.mark.parametrize("line", ["", "bert/modeling_bert.py:187"])
def test_an_operator_s_source_line_is_read_apart_from_its_detail(detail: str, line: str) -> None:
    record = replace(
        Record.from_line(json.dumps(GOOD).encode(), 0, 0),
        role=Role.OP_INPUT,
        detail=detail,
        source_line=line,
    )
    assert Record.from_line(record.to_line(), 0, 0) == record
    assert json.loads(record.to_line())["detail"] == (f"{detail} at {line}" if detail else line)


def test_the_key_of_the_root_is_readable() -> None:
    assert str(Key(1, 2, "", 0, Role.INPUT, "x")) == "(root) call 0 input.x (step 2, rank 1)"


@pytest.mark.parametrize("field", sorted(GOOD))
def test_a_field_that_is_missing_is_damage(field: str) -> None:
    line = {name: value for name, value in GOOD.items() if name != field}
    with pytest.raises(BundleError, match=f"missing required field `{field}`"):
        Record.from_line(json.dumps(line).encode(), 0, 0)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", 3),
        ("name", None),
        ("call", -1),
        ("call", 1.0),
        ("call", True),
        ("call", 10**30),
        ("role", "outputs"),
        ("role", []),
        ("path", None),
        ("order", "1"),
        ("order", -5),
        ("parent", "ab"),
        ("parent", []),
        ("parent", ["a", -1]),
        ("parent", 3),
        ("shape", 3),
        ("shape", [-1]),
        ("shape", [1.5]),
        ("shape", [True]),
        ("shape", [2**31, 2**31]),
        ("shape", [0, 2**62]),
        ("shape", [10**400]),
        ("shape", [1] * 65),
        ("dtype", "float31"),
        ("dtype", None),
        ("layout", "dense"),
        ("member", 3),
        ("digest", 3),
        ("statistics", []),
        ("statistics", {"min": 0}),
        ("statistics", {**GOOD["statistics"], "min": "0"}),
        ("statistics", {**GOOD["statistics"], "max": float("nan")}),
        ("statistics", {**GOOD["statistics"], "mean": float("inf")}),
        ("statistics", {**GOOD["statistics"], "l2": 10**400}),
        ("statistics", {**GOOD["statistics"], "nan": -1}),
        ("statistics", {**GOOD["statistics"], "inf": 1.5}),
        ("detail", None),
    ],
    ids=str,
)
def test_a_malformed_field_is_damage_and_never_a_traceback(field: str, value: object) -> None:
    with pytest.raises(BundleError):
        Record.from_line(json.dumps({**GOOD, field: value}).encode(), 0, 0)


def test_a_record_without_data_may_have_any_dtype() -> None:
    assert (
        Record.from_line(
            json.dumps({**GOOD, "member": None, "dtype": "quint8"}).encode(), 0, 0
        ).dtype
        == "quint8"
    )
