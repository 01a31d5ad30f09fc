"""The words of a verdict: every remark has some, on either side and on both."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

import accucompare as ac
from accucompare.compare.remarks import BareRemark
from accucompare.compare.rows import Row
from accucompare.report.words import verdict_words
from tests.compare.builder import item, write


@pytest.fixture(scope="module")
def row(tmp_path_factory: pytest.TempPathFactory) -> Row:
    folder = tmp_path_factory.mktemp("pair")
    golden, candidate = (
        write(folder / name, [item("fc", np.full(4, value, np.float32))])
        for name, value in (("golden", 1.0), ("candidate", np.nan))
    )
    (found,) = ac.diff(golden, candidate).rows
    return found


#: Remarks that only a pair has, not a record of one side; the first says the options of its row.
OF_PAIRS = (
    "option",
    "kinds",
    "known",
    "golden",
    "components",
    "shapes",
    "parts",
    "bits",
    "digests",
    "broadcast",
    "not broadcast",
    "reshaped",
    "rounded",
    "masks",
    "counts",
    "counts by statistics",
    "counts at least",
    "bounds",
)


def said(row: Row, remark: BareRemark, **fields: None) -> str:
    verdict = msgspec.structs.replace(row.verdict, remarks=(remark,))
    return verdict_words.detail(msgspec.structs.replace(row, verdict=verdict, **fields))


@pytest.mark.parametrize("remark", [each for each in BareRemark if each.value != OF_PAIRS[0]])
def test_a_pair_says_every_bare_remark(row: Row, remark: BareRemark) -> None:
    assert len(said(row, remark)) > 3


@pytest.mark.parametrize("lacking", ["golden", "candidate"])
@pytest.mark.parametrize("remark", [each for each in BareRemark if each.value not in OF_PAIRS])
def test_one_side_alone_says_its_remarks(row: Row, remark: BareRemark, lacking: str) -> None:
    assert len(said(row, remark, **{lacking: None})) > 3
