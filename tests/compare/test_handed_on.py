"""What a fed call hands on of a call in it is judged as what the inner call gave."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from accucompare.compare.judging.handed_on import judge_handed_on
from accucompare.compare.limits import Tolerance
from accucompare.compare.pairing import Pair
from accucompare.compare.rows import PairOutcome, Reason, Task, Verdict
from accucompare.errors import BundleError
from tests.compare.builder import item


def row(name: str, digest: str, reason: Reason, parent: str | None) -> tuple[Task, PairOutcome]:
    golden, candidate = (
        replace(item(name, parent=None if parent is None else (parent, 0)).record, digest=each)
        for each in ("golden", digest)
    )
    return Task(Pair(golden, candidate), Tolerance()), PairOutcome(None, Verdict(reason))


@pytest.mark.parametrize(
    ("digest", "not_fed", "passes"),
    [
        ("same", True, True),
        ("other", True, False),  # the outer call changed it
        ("same", False, False),  # golden's was handed on
    ],
)
def test_the_same_bits_are_judged_once_where_they_were_not_fed(
    digest: str, not_fed: bool, passes: bool
) -> None:
    inner, outer = row("mlp.fc", "same", Reason.OK, "mlp"), row("mlp", digest, Reason.OVER, "")
    outcomes: list[PairOutcome | BundleError] = [inner[1], outer[1]]
    places = [(0, "mlp.fc", 0, "output", "")] if not_fed else []
    judge_handed_on([inner[0], outer[0]], outcomes, places)
    assert (outcomes[1] is inner[1]) is passes
