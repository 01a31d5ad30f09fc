"""A baseline judges where golden's own code, run beside it in golden's precision, gives golden's
values.
"""

from __future__ import annotations

import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import accucompare as ac
from accucompare.compare.decide import Answer, decide
from accucompare.compare.limits.baseline import floor
from accucompare.compare.rows.rows import Reason
from accucompare.errors import UsageError
from accucompare.numbers.dtypes import DTYPES
from accucompare.report.words import verdict_words
from tests.compare.builder import item, write

SIZE = 4096
RANDOM = np.random.default_rng(0)
GOLDEN = RANDOM.standard_normal(SIZE).astype("float32")
#: At right angles to golden and to each other, of golden's norm.
CANDIDATES, BASELINES, FAULT = np.linalg.qr(
    np.stack([GOLDEN, *RANDOM.standard_normal((3, SIZE))]).T
)[0].T[1:] * np.linalg.norm(GOLDEN)
U = DTYPES["float32"].rounding


def off(**errors: float) -> np.ndarray:
    """Golden, off by so much along each direction."""
    directions = {"own": CANDIDATES, "rounding": BASELINES, "fault": FAULT}
    return GOLDEN.astype("float64") + sum(size * directions[name] for name, size in errors.items())


def capture(golden: Path | None, dtype: str, **more: Any) -> dict[str, Any]:
    feed = (
        {}
        if golden is None
        else {
            "feed": {
                "golden": str(golden),
                "identity": ac.open_bundle(golden).identity(),
                "not_fed": [],
            }
        }
    )
    return {"capture": {"dtype": dtype, **feed, **more}}


def compared(
    tmp_path: Path,
    candidate: np.ndarray,
    baseline: np.ndarray,
    proof: np.ndarray | None,
    *,
    dtype: str = "bfloat16",
    exact: str = "bfloat16",
    again: np.ndarray | None = None,
    rounded: np.ndarray | None = None,
) -> ac.Comparison:
    """One row: of a candidate of a type, with a baseline of another or the same, and what was run
    beside that.
    """
    for name in ("golden", "candidate", "baseline"):
        shutil.rmtree(tmp_path / name, ignore_errors=True)
    golden = write(tmp_path / "golden", [item(values=GOLDEN)], **capture(None, "float32"))
    theirs = write(
        tmp_path / "candidate",
        [item(values=candidate.astype("float32"), dtype=dtype)],
        **capture(golden, dtype),
    )
    held = baseline.astype("float64" if exact == "float64" else "float32")
    own = write(tmp_path / "baseline", [item(values=held, dtype=exact)], **capture(golden, exact))
    beside = {"proof": proof, "proof/repeat1": again, "conditioned": rounded}
    for name, values in beside.items():
        if values is not None:
            more = {"round_feed": dtype} if name == "conditioned" else {}
            write(
                own / name,
                [item(values=values.astype("float32"))],
                **capture(golden, "float32", **more),
            )
    return ac.diff(golden, theirs, baseline=own)


def test_without_a_proof_the_baseline_judges_as_ever(tmp_path: Path) -> None:
    found = compared(tmp_path, off(own=0.02, fault=0.02), off(rounding=0.02, fault=0.02), None)
    assert (found.passed, found.unproved) == (True, [])


@pytest.mark.parametrize(
    ("dtype", "exact"), [("bfloat16", "bfloat16"), ("float16", "float16"), ("float32", "float64")]
)
def test_a_fault_in_candidate_baseline_and_proof_is_a_bug(
    tmp_path: Path, dtype: str, exact: str
) -> None:
    rounding, fault = (1e-7, 1e-4) if dtype == "float32" else (2e-3, 2e-2)
    faulty = off(fault=fault)
    found = compared(
        tmp_path,
        off(own=rounding, fault=fault),
        off(rounding=rounding, fault=fault),
        faulty,
        dtype=dtype,
        exact=exact,
    )
    (row,) = found.unproved
    assert (found.passed, row.reason, decide(found).answer) == (
        False,
        Reason.INTRODUCED,
        Answer.BUG,
    )
    assert "does not compute golden's own values, also in float32: fc output" in str(
        found.conclusion
    )
    assert row.verdict.excess is not None
    assert row.verdict.excess > 5
    sound = compared(
        tmp_path,
        off(own=rounding),
        off(rounding=rounding),
        off(rounding=U),
        dtype=dtype,
        exact=exact,
    )
    assert (sound.passed, sound.unproved) == (True, [])


@pytest.mark.parametrize(("share", "proved"), [(0.24, True), (0.26, False)])
def test_a_deviation_far_below_the_candidates_rounding_hides_nothing(
    tmp_path: Path, share: float, proved: bool
) -> None:
    deviation = share * floor("bfloat16")
    found = compared(tmp_path, off(own=3e-3), off(rounding=3e-3), off(fault=deviation))
    assert (found.unproved == [], found.passed) == (proved, proved)
    assert decide(found).answer is (Answer.ROUNDING if proved else Answer.NOT_SURE)


@pytest.mark.parametrize(("share", "proved"), [(0.9, True), (1.1, False)])
def test_golden_may_be_missed_by_as_much_as_its_precision_allows(
    tmp_path: Path, share: float, proved: bool
) -> None:
    deviation = share * 32 * U
    baseline = off(rounding=U, fault=deviation)
    found = compared(
        tmp_path,
        off(own=U, fault=deviation),
        baseline,
        off(fault=deviation),
        dtype="float32",
        exact="float64",
    )
    assert (found.unproved == []) is proved


@pytest.mark.parametrize(("magnified", "proved"), [(0.9, True), (1.1, False)])
def test_what_magnifies_rounding_magnifies_that_of_both_precisions(
    tmp_path: Path, magnified: float, proved: bool
) -> None:
    """Where float16 is off by 2 %, float32 may be off, too, by as much less as it rounds more
    finely.
    """
    error, share, half = 0.02, 32 * U / DTYPES["float16"].rounding, "float16"
    assert share * error > 0.25 * floor(half)
    found = compared(
        tmp_path,
        off(own=error),
        off(rounding=error),
        off(fault=magnified * share * error),
        dtype=half,
        exact=half,
    )
    assert (found.unproved == []) is proved


@pytest.mark.parametrize(("times", "proved"), [(3.0, True), (6.0, False)])
def test_beside_an_exact_baseline_the_proof_shows_its_own_rounding(
    tmp_path: Path, times: float, proved: bool
) -> None:
    """Where float32 itself is off by 1e-5 of what float64 gives, golden may be off by as much more
    as chance and slack allow.
    """
    own = 1e-5
    baseline = off(rounding=own, fault=times * own)
    found = compared(
        tmp_path, off(own=own), baseline, off(fault=times * own), dtype="float32", exact="float64"
    )
    assert (found.unproved == []) is proved


@pytest.mark.parametrize(("apart", "answer"), [(0.5, Answer.NOT_SURE), (0.001, Answer.BUG)])
def test_a_golden_that_two_runs_of_its_own_code_do_not_give_is_no_reference(
    tmp_path: Path, apart: float, answer: Answer
) -> None:
    """Memory that was never written, for example."""
    found = compared(
        tmp_path,
        off(own=0.02, fault=0.4),
        off(rounding=0.02, fault=0.4),
        off(fault=0.4),
        again=off(fault=0.4 + apart),
    )
    (row,) = found.rows
    assert decide(found).answer is answer
    assert ("golden's value is no reference here" in verdict_words.detail(row)) is (
        answer is Answer.NOT_SURE
    )
    assert (row.reason is Reason.NOT_DETERMINISTIC) is (answer is Answer.NOT_SURE)


@pytest.mark.parametrize(("size", "proved"), [(5e-4, True), (2e-3, False)])
def test_what_is_far_beyond_goldens_precision_is_never_its_rounding(
    tmp_path: Path, size: float, proved: bool
) -> None:
    found = compared(
        tmp_path,
        off(own=size),
        off(rounding=size),
        off(fault=size),
        dtype="float32",
        exact="float64",
    )
    assert (not found.unproved) is proved


def test_a_limit_of_the_users_needs_no_proof(tmp_path: Path) -> None:
    compared(tmp_path, off(own=0.02, fault=0.02), off(rounding=0.02, fault=0.02), off(fault=0.02))
    found = ac.diff(
        tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline", atol=10
    )
    assert (found.answer, found.unproved) == (Answer.WITHIN, [])


@pytest.mark.parametrize(
    ("size", "changed", "passes"),
    [(1, 1, False), (8, 1, False), (SIZE, 1, True), (SIZE, 40, False)],
)
def test_an_integer_that_goldens_own_code_does_not_give_is_proved_only_as_one_of_many(
    tmp_path: Path, size: int, changed: int, passes: bool
) -> None:
    """A count or a length is never rounding; of many choices between equals, one may be another on
    another processor.
    """
    golden, other = (np.arange(size, dtype="int64") for _ in range(2))
    other[:changed] += 1
    trusted = write(
        tmp_path / "golden", [item(values=golden), item("b", GOLDEN)], **capture(None, "float32")
    )
    theirs = write(
        tmp_path / "candidate",
        [item(values=other), item("b", GOLDEN, "bfloat16")],
        **capture(trusted, "bfloat16"),
    )
    own = write(
        tmp_path / "baseline",
        [item(values=other), item("b", GOLDEN, "bfloat16")],
        **capture(trusted, "bfloat16"),
    )
    write(own / "proof", [item(values=other), item("b", GOLDEN)], **capture(trusted, "float32"))
    assert ac.diff(trusted, theirs, baseline=own).passed is passes


def test_a_value_that_the_proof_lacks_is_not_proved(tmp_path: Path) -> None:
    for proof in (GOLDEN[:7], np.full(SIZE, math.nan)):
        found = compared(tmp_path, off(own=2e-3), off(rounding=2e-3), proof)
        assert (len(found.unproved), decide(found).answer) == (1, Answer.NOT_SURE)


@pytest.mark.parametrize(("driven", "passes"), [(0.3, True), (0.01, False)])
def test_an_error_far_beyond_rounding_is_rounding_where_goldens_own_code_does_the_same(
    tmp_path: Path, driven: float, passes: bool
) -> None:
    errors = off(own=0.3), off(rounding=0.3)
    found = compared(tmp_path, *errors, GOLDEN, rounded=off(fault=driven))
    assert (found.passed, decide(found).answer is Answer.ROUNDING) == (passes, passes)
    if passes:
        assert (
            str(found.conclusion)
            == "rounding; 1 row far off, as golden's own code is on rounded values"
        )
    else:
        assert "so computing in bfloat16 makes it" in found.conclusion
    # of a baseline that is not proved
    assert not compared(tmp_path, *errors, None, rounded=off(fault=driven)).passed


@pytest.mark.parametrize(
    ("dtype", "size", "driven", "passes"),
    [
        ("bfloat16", 0.3, 0.3, True),
        ("bfloat16", 0.05, 0.05, False),  # of code that may keep results in float32
        ("float32", 100 * U, 100 * U, True),
        ("float32", 100 * U, 5 * U, False),
    ],
)
def test_so_is_one_that_the_baseline_happens_not_to_make(
    tmp_path: Path, dtype: str, size: float, driven: float, passes: bool
) -> None:
    exact = "float64" if dtype == "float32" else dtype
    baseline = off(rounding=DTYPES[dtype].rounding)
    rounded = off(fault=driven)
    found = compared(
        tmp_path, off(own=size), baseline, GOLDEN, dtype=dtype, exact=exact, rounded=rounded
    )
    assert found.passed is passes


def test_a_larger_error_than_there_is_a_bug_all_the_same(tmp_path: Path) -> None:
    found = compared(tmp_path, off(own=0.9), off(rounding=0.3), GOLDEN, rounded=off(fault=0.3))
    assert (found.passed, decide(found).answer) == (False, Answer.BUG)


@pytest.mark.parametrize(
    ("of_another", "problem"),
    [
        ({"dtype": "float64"}, "is of another precision than"),
        ({"round_feed": "bfloat16"}, "must be captured without --round-feed"),
        ({"feed": {"golden": "other", "identity": "0", "not_fed": []}}, "was not fed with"),
    ],
)
def test_what_lies_beside_a_baseline_has_to_be_a_proof_of_it(
    tmp_path: Path, of_another: dict[str, Any], problem: str
) -> None:
    compared(tmp_path, off(own=2e-3), off(rounding=2e-3), None)
    golden, own = tmp_path / "golden", tmp_path / "baseline"
    made = capture(golden, "float32")
    write(own / "proof", [item(values=GOLDEN)], capture={**made["capture"], **of_another})
    with pytest.raises(UsageError, match=problem):
        ac.diff(golden, tmp_path / "candidate", baseline=own)
