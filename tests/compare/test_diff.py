"""Two bundles compared as a whole: rows, counts, options, damage."""

from __future__ import annotations

import json
import shutil
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import accucompare as ac
from accucompare.bundle.reading.archive import Archive
from accucompare.bundle.reading.reader import open_bundle
from accucompare.compare import task_batches
from accucompare.compare.decide import Answer
from accucompare.compare.judging import small_pairs
from accucompare.compare.limits.tolerance import EXACT
from accucompare.compare.origins.unseen import unseen_rows
from accucompare.compare.pairing.align import Pair
from accucompare.compare.rows.outcomes import Task, nbytes
from accucompare.compare.rows.rows import Reason, Status
from accucompare.errors import BundleError, RecordError, UsageError
from accucompare.numbers import sums
from accucompare.numbers.dtypes import DTYPES, DType
from accucompare.report.terminal.terminal import print_comparison
from accucompare.report.words import limit_words, verdict_words
from tests.compare.builder import Item, compare, edit_manifest, item, random_bits, set_lines, write

ONES = np.ones(3, np.float32)


def chain(*names: str, values: object = ONES) -> list[Item]:
    return [item(name, values) for name in names]


def flip_bit(path: Path, marker: bytes) -> None:
    """Flip one bit of the data that follows the first ``marker``."""
    content = bytearray(path.read_bytes())
    place = content.index(marker)
    content[place + len(marker) - 1] ^= 1
    path.write_bytes(content)


# Rows and counts


def test_a_bundle_is_identical_to_itself(tmp_path: Path) -> None:
    items = [
        item("", ONES, role="input", parent=None),
        *chain("a", "b"),
        item("c", [1, 2]),
        item("d", [True]),
        item("", ONES, parent=None),
    ]
    comparison = compare(tmp_path, items, items)
    assert comparison.passed
    assert comparison.counts() == Counter({Reason.IDENTICAL: 6})
    assert (comparison.compared, comparison.first_divergence, comparison.worst()) == (6, None, [])


def test_a_difference_of_digests_alone_is_concluded_without_a_size(tmp_path: Path) -> None:
    sides = ([item("a", dtype="float32", shape=(2,), digest=word * 32)] for word in "ab")
    comparison = compare(tmp_path, *sides)
    assert comparison.conclusion.startswith("different: a, other bits is the first over tolerance")


def test_identical_by_digests_alone_is_said_for_values_that_were_not_read_may_be_damaged(
    tmp_path: Path,
) -> None:
    golden, candidate = (
        write(tmp_path / name, chain("a", "b")) for name in ("golden", "candidate")
    )
    read = ac.diff(golden, candidate, work=ac.Work(verify=True))
    assert (read.conclusion, read.by_digests) == ("identical", 0)
    flip_bit(candidate / "rank0" / "step0.npz", np.float32(1).tobytes())
    unread = ac.diff(golden, candidate)
    assert (unread.conclusion, unread.by_digests) == (
        "identical; by digests alone, no values were read",
        2,
    )
    with pytest.raises(RecordError, match="corrupt"):
        ac.diff(golden, candidate, work=ac.Work(verify=True))


NAMES = st.sampled_from(["a", "b", "a.b", "=1+1", "层1"])
VALUES = st.sampled_from([[1.0, 2.0], [1.5, 2.0], [1.0], [float("nan"), 2.0], None])
ITEMS = st.lists(
    st.builds(
        lambda name, values, role, call, step, rank, integers: item(
            name, values if values is None or not integers else [1] * len(values), role=role,
            call=call, step=step, rank=rank,
            layout="strided" if values is not None else "sparse",
        ),
        NAMES, VALUES, st.sampled_from(["input", "output"]), st.integers(0, 1), st.integers(0, 1),
        st.integers(0, 1), st.booleans(),
    ),
    max_size=10,
    unique_by=lambda each: each.record.key,
)  # fmt: skip


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(ITEMS, ITEMS, st.booleans())
def test_every_record_is_in_exactly_one_row_and_counts_add_up(
    tmp_path: Path, golden: list[Item], candidate: list[Item], selecting: bool
) -> None:
    number = len(list(tmp_path.iterdir()))
    sides = [
        write(tmp_path / f"{number}.{side}", items, steps=2, ranks=2)
        for side, items in enumerate((golden, candidate))
    ]
    comparison = ac.diff(*sides, only="a*" if selecting else ())
    chosen = [
        [each.record.key for each in items if not selecting or each.record.name.startswith("a")]
        for items in (golden, candidate)
    ]
    assert Counter(row.golden.key for row in comparison.rows if row.golden) == Counter(chosen[0])
    assert Counter(row.candidate.key for row in comparison.rows if row.candidate) == Counter(
        chosen[1]
    )
    assert comparison.left_out == len(golden) + len(candidate) - len(chosen[0]) - len(chosen[1])
    assert (
        sum(comparison.counts().values())
        == sum(comparison.counts_by_status().values())
        == len(comparison.rows)
    )
    passing = any(row.status is Status.PASS for row in comparison.rows) and all(
        row.status is not Status.FAIL for row in comparison.rows
    )
    assert comparison.passed == (passing and unseen_rows(comparison.rows, comparison.fed) is None)


def test_missing_and_extra_records_fail_and_do_not_diverge(tmp_path: Path) -> None:
    comparison = compare(tmp_path, chain("a", "encoder.fc"), chain("a", "encoder.fc1", "b"))
    assert [(row.module, row.reason.value) for row in comparison.rows] == [
        ("a", "identical"),
        ("encoder.fc1", "extra"),
        ("b", "extra"),
        ("encoder.fc", "missing"),
    ]
    assert comparison.rows[3].nearest == "encoder.fc1"
    assert not comparison.passed
    assert (comparison.compared, comparison.first_divergence, len(comparison.unmatched())) == (
        1,
        None,
        3,
    )


def test_modules_never_called_come_last_and_fail_nothing(tmp_path: Path) -> None:
    model = {"modules": {"": "Net", "a": "Linear", "pooler": "Pooler"}, "not_called": ["pooler"]}
    sides = [write(tmp_path / side, chain("a"), model=model) for side in ("golden", "candidate")]
    comparison = ac.diff(*sides)
    last = comparison.rows[-1]
    assert (last.module, last.reason, last.status, verdict_words.detail(last)) == (
        "pooler",
        Reason.NOT_CALLED,
        Status.NOT_COMPARED,
        "Pooler, never called",
    )
    assert comparison.passed
    assert len(ac.diff(*sides, skip="pooler").rows) == 1


def test_a_module_never_called_on_one_side_says_on_which(tmp_path: Path) -> None:
    modules = {"a": "Linear", "b": "Linear"}
    golden = write(tmp_path / "golden", chain("a"), model={"modules": modules, "not_called": ["b"]})
    candidate = write(
        tmp_path / "candidate", chain("a", "b"), model={"modules": modules, "not_called": []}
    )
    assert [
        (row.reason.value, verdict_words.detail(row)) for row in ac.diff(golden, candidate).rows
    ] == [("identical", ""), ("extra", ""), ("not called", "Linear, never called in golden")]


# What must never pass


def test_nothing_compared_never_passes(tmp_path: Path) -> None:
    sparse = item("a", dtype="float32", layout="sparse", shape=(2,))
    for golden, candidate in (
        ([], []),
        ([sparse], [sparse]),
        (chain("a"), []),
        (chain("a"), chain("b")),
    ):
        comparison = compare(tmp_path, golden, candidate)
        assert (comparison.passed, comparison.compared) == (False, 0)
    assert not compare(tmp_path, chain("a"), chain("a"), only="nothing").passed


def test_swapped_outputs_of_a_tuple_fail(tmp_path: Path) -> None:
    first, second = np.arange(4.0), np.arange(4.0) + 1
    golden = [item("a", first, path="0"), item("a", second, path="1")]
    comparison = compare(
        tmp_path, golden, [item("a", second, path="0"), item("a", first, path="1")]
    )
    assert [row.status for row in comparison.rows] == [Status.FAIL, Status.FAIL]


def test_a_layer_of_zeros_against_garbage_fails(tmp_path: Path) -> None:
    assert not compare(
        tmp_path,
        [item("a", np.zeros(3))],
        [item("a", np.full(3, 7.0))],
        rtol=1.0,
        limits=ac.Tolerance(rel_l2=10.0),
    ).passed


def test_one_failing_row_among_many_fails(tmp_path: Path) -> None:
    names = [f"layer.{number}" for number in range(30)]
    candidate = [item(name, ONES if name != "layer.17" else ONES * 2) for name in names]
    comparison = compare(tmp_path, chain(*names), candidate)
    assert (
        comparison.passed,
        comparison.first_divergence and comparison.first_divergence.module,
    ) == (False, "layer.17")
    assert [row.module for row in comparison.worst()] == ["layer.17"]


# Options


def test_a_map_pairs_renamed_layers(tmp_path: Path) -> None:
    sides = (
        chain("encoder.layers.0.fc", "encoder.layers.1.fc", "head"),
        chain("blocks.0.fc", "blocks.1.fc", "head"),
    )
    assert not compare(tmp_path, *sides).passed
    comparison = compare(tmp_path, *sides, map="encoder.layers.*=blocks.*")
    assert (comparison.passed, comparison.compared, comparison.preflight) == (True, 3, [])
    assert compare(tmp_path, *sides, map=[r"re:encoder\.layers\.(.*)=blocks.\1"]).passed


def test_options_that_match_nothing_are_reported(tmp_path: Path) -> None:
    comparison = compare(
        tmp_path, chain("a"), chain("a"), map=["b.*=c.*"], only=["a", "x*"], skip="y*"
    )
    assert [
        (finding.topic, finding.message, finding.serious) for finding in comparison.preflight
    ] == [
        ("map", "--map b.*=c.* matches none of golden's layers", False),
        ("only", "--only x* matches none of golden's layers", False),
        ("skip", "--skip y* matches none of golden's layers", False),
    ]


def test_a_map_that_leads_to_no_layer_is_reported(tmp_path: Path) -> None:
    comparison = compare(tmp_path, chain("a", "b"), chain("a", "c"), map=["a=zzz", "b=c"])
    assert [(each.topic, each.message, each.serious) for each in comparison.preflight] == [
        ("map", "--map a=zzz leads to no layer of the candidate", False)
    ]


def test_a_tolerance_rule_that_judges_nothing_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "limits.toml"
    path.write_text('[[rule]]\nlayer = "a"\nrel_l2 = 1.0\n[[rule]]\nlayer = "b*"\nrel_l2 = 1e-9\n')
    comparison = compare(tmp_path, chain("a"), chain("a"), limits=ac.Tolerance(tolerances=path))
    assert [
        (finding.topic, finding.message, finding.serious) for finding in comparison.preflight
    ] == [
        (
            "tolerances",
            (
                f"{path}, rule 2, applies to none of the candidate's records, so its limit judges"
                " nothing"
            ),
            True,
        )
    ]


def test_a_bad_option_is_refused_before_any_bundle_is_read(tmp_path: Path) -> None:
    for options in (
        {"map": "abc"},
        {"atol": -1},
        {"limits": ac.Tolerance(tolerances=tmp_path / "none.toml")},
        {"atol": 1, "limits": ac.Tolerance(atol=1)},
    ):
        with pytest.raises(UsageError):
            ac.diff("nowhere", "nowhere", **options)


@pytest.mark.parametrize(
    ("options", "names", "left_out"),
    [
        ({}, ["a", "a.b", "c"], 0),
        ({"only": "a*"}, ["a", "a.b"], 2),
        ({"only": ["a", "c"]}, ["a", "c"], 2),
        ({"skip": "a*"}, ["c"], 4),
        ({"only": "a*", "skip": ["*.b"]}, ["a"], 4),
    ],
)
def test_only_and_skip_choose_layers_and_count_what_they_leave_out(
    tmp_path: Path, options: dict[str, str], names: list[str], left_out: int
) -> None:
    comparison = compare(tmp_path, chain("a", "a.b", "c"), chain("a", "a.b", "c"), **options)
    assert ([row.module for row in comparison.rows], comparison.left_out) == (names, left_out)


def test_a_file_of_rules_judges_before_the_limits_given(tmp_path: Path) -> None:
    (tmp_path / "limits.toml").write_text('[[rule]]\nlayer = "a"\natol = 2.0')
    comparison = compare(
        tmp_path,
        chain("a", "b"),
        chain("a", "b", values=ONES + np.float32(1)),
        limits=ac.Tolerance(tolerances=tmp_path / "limits.toml"),
        atol=0.5,
    )
    assert [
        (row.status, limit_words.judging_limits(row.verdict.limit)) for row in comparison.rows
    ] == [(Status.PASS, "atol 2"), (Status.FAIL, "atol 0.5")]


def test_progress_ends_at_its_total(tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    sparse = item("c", dtype="float32", layout="sparse", shape=(2,))
    compare(
        tmp_path,
        [*chain("a", "b"), sparse],
        [*chain("a"), sparse],
        work=ac.Work(progress=lambda done, total: seen.append((done, total))),
    )
    assert seen == sorted(seen)
    assert seen[-1] == (36, 36)


def test_a_second_run_of_golden_counts_as_bytes_to_read() -> None:
    record = replace(item("a", ONES).record, member="0.a")
    task = Task(Pair(record, record), EXACT)
    assert (
        nbytes(replace(task, golden_repeat=record))
        == nbytes(replace(task, repeat=record))
        == nbytes(task) * 3 // 2
    )


def test_the_limits_told_as_needed_pass_when_given(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    golden = {name: rng.normal(size=50) for name in "abc"}
    candidate = {name: values + 1e-3 * rng.normal(size=50) for name, values in golden.items()}
    sides = (
        [item(name, values, "float32") for name, values in side.items()]
        for side in (golden, candidate)
    )
    paths = [write(tmp_path / str(number), items) for number, items in enumerate(sides)]
    for name, start in (("atol", 0.0), ("rtol", 1e-9), ("rel_l2", 0.0), ("cosine", 1.0)):
        rows = ac.diff(*paths, limits=ac.Tolerance(**{name: start})).rows
        limits = [float(row.verdict.needed.removeprefix(name)) for row in rows]
        assert not any(row.status is Status.PASS for row in rows)
        assert ac.diff(
            *paths, limits=ac.Tolerance(**{name: min(limits) if name == "cosine" else max(limits)})
        ).passed


# Steps and ranks


def test_several_steps_and_ranks_are_compared_in_one(tmp_path: Path) -> None:
    def bundle(name: str, last: np.ndarray) -> Path:
        places = [(rank, step) for rank in range(2) for step in range(3)]
        items = [
            item("a", last if place == (1, 2) else ONES, rank=place[0], step=place[1])
            for place in places
        ]
        return write(tmp_path / name, items, ranks=2)

    comparison = ac.diff(bundle("golden", ONES), bundle("candidate", ONES * 2))
    assert [(row.record.rank, row.record.step) for row in comparison.rows if row.record] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert [row.status.value for row in comparison.rows] == ["pass"] * 5 + ["fail"]


def test_records_of_a_step_that_only_one_side_has_are_missing(tmp_path: Path) -> None:
    golden = [item("a", ONES), item("a", ONES, step=1)]
    comparison = compare(tmp_path, golden, golden[:1])
    assert [row.reason.value for row in comparison.rows] == ["identical", "missing"]
    assert [finding.topic for finding in comparison.preflight] == ["steps"]


# Damage


def test_a_flipped_bit_is_found_and_named(tmp_path: Path) -> None:
    values = np.frombuffer(b"golden values 16", np.uint8)
    golden, candidate = (
        write(tmp_path / side, [item("a", ONES), item("b", values)])
        for side in ("golden", "candidate")
    )
    flip_bit(candidate / "rank0/step0.npz", b"golden val")
    with pytest.raises(
        RecordError,
        match=r"candidate/rank0/step0\.npz: b call 0 output \(step 0, rank 0\) is corrupt",
    ):
        ac.diff(golden, candidate, work=ac.Work(verify=True))


def test_a_flipped_bit_in_a_tensor_that_differs_is_found_without_asking(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("a", np.frombuffer(b"golden values 16", np.uint8))])
    candidate = write(
        tmp_path / "candidate", [item("a", np.frombuffer(b"another values16", np.uint8))]
    )
    flip_bit(candidate / "rank0/step0.npz", b"another val")
    with pytest.raises(RecordError, match="is corrupt"):
        ac.diff(golden, candidate)


def test_tensors_with_equal_digests_are_not_read(tmp_path: Path) -> None:
    golden, candidate = (
        write(tmp_path / side, [item("a", np.frombuffer(b"golden values 16", np.uint8))])
        for side in ("g", "c")
    )
    flip_bit(candidate / "rank0/step0.npz", b"golden val")
    assert ac.diff(golden, candidate).counts() == Counter({Reason.IDENTICAL: 1})


def test_equal_bits_of_different_types_are_no_identical_tensors(tmp_path: Path) -> None:
    bits = np.array([0x3F80, 0x4000], np.uint16)  # 1 and 2 in bfloat16
    golden, candidate = item("a", bits, "bfloat16"), item("a", bits.view(np.float16), "float16")
    assert compare(tmp_path, [golden], [candidate]).first_divergence is not None


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.sampled_from(list(DTYPES.values())),
    st.integers(0, 40),
    st.integers(0, 10**6),
    st.sampled_from([{}, {"atol": 0.0}]),
)
def test_what_is_said_of_identical_tensors_unread_is_what_reading_them_says(
    tmp_path: Path, dtype: DType, count: int, seed: int, options: dict[str, float]
) -> None:
    items = [item("a", random_bits(dtype, count, seed), dtype.name)]
    for side in ("golden", "candidate"):
        shutil.rmtree(tmp_path / side, ignore_errors=True)
        write(tmp_path / side, items)
    unread, read = (
        ac.diff(tmp_path / "golden", tmp_path / "candidate", work=ac.Work(verify=verify), **options)
        for verify in (False, True)
    )
    assert repr(unread.rows[0].metrics) == repr(read.rows[0].metrics)
    assert unread.rows[0].verdict == read.rows[0].verdict


@pytest.mark.parametrize("first_is_right", [True, False])
def test_a_bundle_that_changes_between_two_passes_is_said_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first_is_right: bool
) -> None:
    """The angle between float64 tensors that differ by a factor is measured in a second pass."""
    values = np.linspace(1, 2, 10_000)  # a small tensor is read once
    golden, candidate = (
        write(tmp_path / side, [item("a", values * factor)])
        for side, factor in (("g", 1.0), ("c", 1.5))
    )
    path = candidate / "rank0/step0.npz"
    right = path.read_bytes()
    wrong = right.replace((values * 1.5).tobytes(), (values * 1.00001).tobytes())
    first, second = (right, wrong) if first_is_right else (wrong, right)
    path.write_bytes(first)
    read_into, reads = Archive.read_into, []

    def read_what_changes(self: Archive, buffer: memoryview, offset: int) -> None:
        reads.append(self.path)
        if reads.count(path) == 2:
            with path.open("r+b") as file:
                file.write(second)
        read_into(self, buffer, offset)

    monkeypatch.setattr(Archive, "read_into", read_what_changes)
    with pytest.raises(RecordError, match="changed while it was read"):
        ac.diff(golden, candidate)
    assert reads.count(path) == 2


def test_a_bundle_that_changes_while_it_is_read_is_said_to(tmp_path: Path) -> None:
    values = np.linspace(1, 2, 10_000)  # a small tensor is read with its header
    with open_bundle(write(tmp_path / "candidate", [item("a", values)])) as bundle:
        (record,) = bundle.records()
        stored = bundle.stored(record)
        flip_bit(tmp_path / "candidate/rank0/step0.npz", values.tobytes())
        list(stored.blocks(0, 10_000))
        with pytest.raises(
            RecordError,
            match=r"step0\.npz: changed while it was read; compare again when nothing writes to it",
        ):
            stored.verify()


def test_keep_going_compares_the_other_records_and_does_not_pass(tmp_path: Path) -> None:
    values = np.frombuffer(b"golden values 16", np.uint8)
    golden, candidate = (
        write(tmp_path / side, [item("b", values), item("a", ONES)])
        for side in ("golden", "candidate")
    )
    flip_bit(candidate / "rank0/step0.npz", b"golden val")
    comparison = ac.diff(golden, candidate, work=ac.Work(verify=True, keep_going=True))
    assert [row.reason.value for row in comparison.rows] == ["not comparable", "identical"]
    assert verdict_words.detail(comparison.rows[0]).startswith("unreadable: ")
    assert len(comparison.damage) == 1
    assert "b call 0 output" in comparison.damage[0]
    assert not comparison.passed


@pytest.mark.parametrize("suffix", ["npz", "jsonl"])
def test_keep_going_compares_the_other_steps_when_one_cannot_be_read(
    tmp_path: Path, suffix: str
) -> None:
    items = [item(name, ONES, step=step) for step in range(2) for name in "ab"]
    golden, candidate = (write(tmp_path / side, items) for side in ("golden", "candidate"))
    path = candidate / f"rank0/step0.{suffix}"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(BundleError, match=rf"step0\.{suffix}"):
        ac.diff(golden, candidate)
    comparison = ac.diff(golden, candidate, work=ac.Work(keep_going=True))
    assert [row.reason.value for row in comparison.rows] == {
        "npz": ["not comparable", "not comparable", "identical", "identical"],
        "jsonl": ["missing", "missing", "identical", "identical"],
    }[suffix]
    assert len(comparison.damage) == 1
    assert not comparison.passed


def test_bundles_can_be_opened_again_after_a_diff(tmp_path: Path) -> None:
    items = chain("a")
    golden = write(tmp_path / "golden", items)
    ac.diff(golden, golden)
    assert ac.open_bundle(golden).load("a").tolist() == [1.0, 1.0, 1.0]


# What may not pass, and what must


@pytest.mark.parametrize("incomplete", ["golden", "candidate", "both"])
def test_a_capture_that_did_not_run_to_its_end_never_passes(
    tmp_path: Path, incomplete: str
) -> None:
    paths = [
        write(tmp_path / side, chain("a"), complete=incomplete not in (side, "both"))
        for side in ("golden", "candidate")
    ]
    comparison = ac.diff(*paths)
    assert comparison.counts() == Counter({Reason.IDENTICAL: 1})
    assert not comparison.passed
    assert "did not run to its end" in comparison.trouble


def of_steps(count: int, last: float = 1.0) -> list[Item]:
    return [item("fc", [1.0 if step < count - 1 else last], step=step) for step in range(count)]


@pytest.mark.parametrize(
    ("held", "complete", "answer"),
    [
        (of_steps(2), False, Answer.NOT_SURE),
        (of_steps(2), True, Answer.DIFFERENT),
        (of_steps(2, last=2.0), False, Answer.DIFFERENT),
        ([*of_steps(2), item("other", [1.0], step=0)], False, Answer.DIFFERENT),
        (of_steps(5), False, Answer.DIFFERENT),
    ],
    ids=[
        "agrees as far as it goes",
        "complete and shorter",
        "differs in what it holds",
        "a row of its own",
        "holds more than golden",
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_steps_that_a_killed_capture_did_not_come_to_are_no_difference_and_no_pass(
    tmp_path: Path, held: list[Item], complete: bool, answer: Answer, swapped: bool
) -> None:
    sides = [
        write(tmp_path / "whole", of_steps(4)),
        write(tmp_path / "killed", held, complete=complete),
    ]
    comparison = ac.diff(*(reversed(sides) if swapped else sides))
    assert comparison.answer is answer
    assert not comparison.passed


def test_the_default_limit_follows_the_coarsest_type_that_values_have_passed_through(
    tmp_path: Path,
) -> None:
    golden = chain("before", "low", "after")
    candidate = [
        item("before", ONES * np.float32(1.001)),
        item("low", ONES, "bfloat16"),
        item("after", ONES * np.float32(1.001)),
    ]
    before, _, after = compare(tmp_path, golden, candidate).rows
    assert (before.status, limit_words.rule(before.verdict.limit)) == (
        Status.FAIL,
        "default for float32",
    )
    assert (after.status, limit_words.rule(after.verdict.limit)) == (
        Status.PASS,
        "default for bfloat16, which earlier values passed through",
    )


def test_a_type_that_both_sides_hold_with_the_same_bits_leaves_the_limits_of_what_follows(
    tmp_path: Path,
) -> None:
    values = np.linspace(1, 2, 50)
    before = item("before", values, "bfloat16")
    comparison = compare(
        tmp_path,
        [before, item("after", np.float32(values))],
        [before, item("after", np.float32(values * 1.01))],
    )
    assert comparison.rows[1].verdict.rel_l2_limit == 1e-4
    assert comparison.first_divergence is comparison.rows[1]


def test_of_two_types_with_as_many_digits_the_rule_names_the_pairs_own(tmp_path: Path) -> None:
    sides = [
        [
            item("before", ONES * (1 + 1j) * factor, "complex64"),
            *chain("after", values=ONES * factor),
        ]
        for factor in (1, 2)
    ]
    before, after = compare(tmp_path, *sides).rows
    assert (limit_words.rule(before.verdict.limit), limit_words.rule(after.verdict.limit)) == (
        "default for complex64",
        "default for float32",
    )


def test_scales_leave_the_limits_of_what_follows(tmp_path: Path) -> None:
    sides = [
        [item("scale", [factor], "float8_e8m0fnu"), *chain("after", values=ONES * factor)]
        for factor in (1.0, 2.0)
    ]
    assert compare(tmp_path, *sides).rows[1].verdict.rel_l2_limit == 1e-4


def test_the_coarsest_type_is_that_of_the_step_alone(tmp_path: Path) -> None:
    golden = [item("low", ONES), item("a", ONES, step=1)]
    candidate = [item("low", ONES, "bfloat16"), item("a", ONES * np.float32(1.001), step=1)]
    assert (
        limit_words.rule(compare(tmp_path, golden, candidate).rows[1].verdict.limit)
        == "default for float32"
    )


def test_values_without_data_that_are_known_to_differ_fail(tmp_path: Path) -> None:
    sides = ([item("a", layout="opaque", detail=word, digest=word * 32)] for word in "ab")
    assert not compare(tmp_path, *sides).passed


def test_sparse_tensors_of_different_kinds_fail(tmp_path: Path) -> None:
    sides = (
        [item("a", dtype=dtype, layout="sparse", shape=(2,))] for dtype in ("float32", "int64")
    )
    assert [row.reason for row in compare(tmp_path, *sides).rows] == [Reason.DTYPE]


def test_a_record_on_one_side_only_makes_nothing_inherited(tmp_path: Path) -> None:
    root = item("", ONES, role="input", parent=None)
    extra = item("new", ONES)
    golden = [root, item("a", ONES), item("b", ONES, role="input"), item("b", ONES)]
    candidate = [
        root,
        item("a", ONES),
        extra,
        item("b", ONES * 2, role="input"),
        item("b", ONES * 2),
    ]
    reasons = {row.place: row.reason for row in compare(tmp_path, golden, candidate).rows}
    assert (reasons["new output"], reasons["b input"]) == (Reason.EXTRA, Reason.GLUE)


def test_an_outermost_input_that_follows_a_difference_is_inherited(tmp_path: Path) -> None:
    sides = (
        [
            item("g", ONES, role="input", parent=None),
            item("g", ONES * factor, parent=None),
            item("d", ONES * factor, role="input", parent=None),
        ]
        for factor in (1, 2)
    )
    assert [row.reason for row in compare(tmp_path, *sides).rows] == [
        Reason.IDENTICAL,
        Reason.INTRODUCED,
        Reason.INHERITED,
    ]


def test_a_renamed_layer_has_the_first_choice_of_a_partner(tmp_path: Path) -> None:
    comparison = compare(
        tmp_path, [item("b1", ONES), item("b2", ONES * 2)], [item("b1", ONES * 2)], map="b2=b1"
    )
    assert {row.module: row.reason for row in comparison.rows} == {
        "b1": Reason.MISSING,
        "b2": Reason.IDENTICAL,
    }


def test_a_layer_keeps_its_name_where_the_new_one_is_not_there(tmp_path: Path) -> None:
    golden = [item("b.0.f", ONES), item("b.1.f", ONES)]
    comparison = compare(
        tmp_path, golden, [item("b.0.f", ONES), item("b.1.g", ONES)], map="b.*.f=b.*.g"
    )
    assert comparison.counts() == Counter({Reason.IDENTICAL: 2})


def test_an_all_zero_golden_is_told_the_absolute_limit_that_would_pass(tmp_path: Path) -> None:
    (row,) = compare(tmp_path, [item("a", np.zeros(2))], [item("a", np.full(2, 1e-12))]).rows
    assert (
        verdict_words.detail(row)
        == "golden is all zeros, so no relative limit would pass; atol 1.01e-12 would"
    )


def test_a_comparison_and_its_rows_print_in_one_line(tmp_path: Path) -> None:
    comparison = compare(tmp_path, chain("a"), chain("a", values=ONES * 2))
    assert repr(comparison).endswith(f" with {comparison.golden.path}: different; 1 introduced>")
    assert repr(comparison.rows) == "[<Row a output: introduced, relative L2 1>]"


# Workers


@pytest.mark.parametrize(("workers", "split"), [(2, 1 << 30), (3, 10_000), (7, 10_000)])
def test_the_number_of_workers_changes_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int, split: int
) -> None:
    monkeypatch.setattr(task_batches, "WORTH_A_WORKER", 1)
    monkeypatch.setattr(task_batches, "BATCH_BYTES", 1000)
    monkeypatch.setattr(task_batches, "SPLIT", split)
    monkeypatch.setattr(sums, "SEGMENT", sums.CHUNK)
    rng = np.random.default_rng(0)
    golden = [
        item(f"layer{number}", rng.normal(size=rng.integers(1, 30_000)).astype("f4"))
        for number in range(40)
    ]
    candidate = [
        item(each.record.name, each.array * (1 + 1e-3 * rng.normal(size=each.array.size)))
        for each in golden
    ]
    paths = [write(tmp_path / str(number), side) for number, side in enumerate((golden, candidate))]
    assert (
        ac.diff(*paths, work=ac.Work(workers=workers), atol=1e-3).rows
        == ac.diff(*paths, work=ac.Work(workers=1), atol=1e-3).rows
    )


def test_the_first_damaged_record_in_order_is_the_one_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_batches, "WORTH_A_WORKER", 1)
    monkeypatch.setattr(task_batches, "BATCH_BYTES", 1)
    items = [item(f"layer{number}", np.full(3, number + 0.5, np.float32)) for number in range(8)]
    paths = [write(tmp_path / str(number), items) for number in range(2)]
    for number in (5, 2):
        flip_bit(paths[0] / "rank0" / "step0.npz", np.full(3, number + 0.5, np.float32).tobytes())
    with pytest.raises(RecordError, match="layer2 call 0 output"):
        ac.diff(*paths, work=ac.Work(workers=4, verify=True))


def test_no_workers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="workers must be at least 1, but is 0"):
        compare(tmp_path, chain("a"), chain("a"), work=ac.Work(workers=0))


def test_a_diff_that_fails_has_ended_its_threads_before_it_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(task_batches, "WORTH_A_WORKER", 1)
    monkeypatch.setattr(task_batches, "BATCH_BYTES", 1)
    write(tmp_path / "golden", chain("a", "b", "c"))
    write(tmp_path / "candidate", chain("a", "b", "c"))
    flip_bit(tmp_path / "candidate/rank0/step0.npz", ONES.tobytes())
    with pytest.raises(RecordError, match="digest"):
        ac.diff(tmp_path / "golden", tmp_path / "candidate", work=ac.Work(verify=True))
    names = {thread.name for thread in threading.enumerate() if "accucompare" in thread.name}
    assert names <= {"accucompare-helper_0"}  # which waits for work that others share with it


class ThreadError(Exception):
    pass


@pytest.mark.parametrize("error", [KeyboardInterrupt, ThreadError, MemoryError])
@pytest.mark.parametrize("where", ["in a thread", "in the progress bar"])
def test_a_diff_that_is_interrupted_ends_its_threads_and_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException], where: str
) -> None:
    monkeypatch.setattr(task_batches, "WORTH_A_WORKER", 1)
    monkeypatch.setattr(task_batches, "BATCH_BYTES", 1)

    def die(*arguments: object, **options: object) -> None:
        raise error

    if where == "in a thread":
        monkeypatch.setattr(small_pairs, "measure_small", die)
    golden, candidate = (
        write(tmp_path / side, chain(*"abcdef", values=ONES * factor))
        for side, factor in (("g", 1), ("c", 2))
    )
    with pytest.raises(error):
        ac.diff(
            golden,
            candidate,
            work=ac.Work(workers=3, progress=die if where == "in the progress bar" else None),
        )
    names = {thread.name for thread in threading.enumerate() if "accucompare" in thread.name}
    assert names <= {"accucompare-helper_0"}  # which waits for work that others share with it


# Statistics only


def without_values(bundle: Path) -> Path:
    """Make it a bundle as ``capture --mode stats`` writes it."""
    lines = [json.loads(text) for text in (bundle / "rank0/step0.jsonl").read_bytes().splitlines()]
    set_lines(
        bundle, b"".join(json.dumps({**line, "member": None}).encode() + b"\n" for line in lines)
    )
    edit_manifest(bundle, lambda manifest: manifest.update(capture={"mode": "stats"}))
    (bundle / "rank0/step0.npz").unlink()
    return bundle


@pytest.mark.parametrize("golden_too", [True, False])
def test_statistics_prove_a_difference_and_bound_it(tmp_path: Path, golden_too: bool) -> None:
    values = np.arange(1, 9, dtype=np.float32)
    golden = write(tmp_path / "golden", [*chain("same"), item("a", values), item("b", values)])
    candidate = write(
        tmp_path / "candidate",
        [*chain("same"), item("a", values * 1.5), item("b", values * (1 + 1e-6))],
    )
    comparison = ac.diff(
        without_values(golden) if golden_too else golden, without_values(candidate)
    )
    assert [row.reason for row in comparison.rows] == [
        Reason.IDENTICAL,
        Reason.INTRODUCED,
        Reason.OK,
    ]
    assert [row.by_statistics for row in comparison.rows] == [False, True, True]
    metrics = comparison.rows[1].metrics
    assert metrics is not None
    assert metrics.rel_l2 == pytest.approx(0.5, rel=1e-6)
    assert (metrics.max_abs, metrics.max_rel) == (4.0, None)
    assert "by statistics alone: relative L2 error at least" in verdict_words.detail(
        comparison.rows[1]
    )
    assert any(
        "statistics only: errors are lower bounds" in finding.message
        for finding in comparison.preflight
    )


def test_verify_reads_the_values_that_one_side_alone_holds(tmp_path: Path) -> None:
    golden, candidate = (
        write(tmp_path / side, [item("a", np.frombuffer(b"golden values 16", np.uint8))])
        for side in ("g", "c")
    )
    without_values(candidate)
    flip_bit(golden / "rank0/step0.npz", b"golden val")
    assert ac.diff(golden, candidate).passed
    with pytest.raises(RecordError, match="is corrupt"):
        ac.diff(golden, candidate, work=ac.Work(verify=True))


def test_statistics_do_not_see_another_order_and_the_verdict_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.arange(8, dtype=np.float32)
    golden, candidate = (
        without_values(write(tmp_path / side, [item("a", each)]))
        for side, each in (("g", values), ("c", values[::-1].copy()))
    )
    comparison = ac.diff(golden, candidate)
    assert comparison.passed
    print_comparison(comparison, [Path("x.xlsx")], quiet=True)
    assert (
        "1 judged by statistics alone, which show neither values in another order"
        in capsys.readouterr().out
    )
