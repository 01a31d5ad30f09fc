"""Which microbatch each call of a pipeline's stage has."""

from __future__ import annotations

from msgspec.structs import replace

from accucompare.bundle.format import Record
from accucompare.compare.layouts.microbatches import given_to_none, schedule_of
from tests.compare.builder import item


def test_a_stage_that_is_given_what_no_other_gave_has_its_calls_in_order() -> None:
    records = []
    for rank in range(4):  # the last one's are changed on their way
        for call in range(2):
            for role, at in (("input", rank // 2), ("output", rank // 2 + 1)):
                made = item("", rank=rank, call=call, role=role, parent=None).record
                given = f"{call} {at} {'changed' if rank == 3 else ''}"
                records.append(replace(made, digest=given))
    meshes = {rank: {"pp": [rank // 2, 2], "tp": [rank % 2, 2]} for rank in range(4)}
    found = schedule_of(records, {0: "", 1: ""}, meshes)
    assert (found.first[3, 0], found.odd, found.numbers) == (1, [], {})


def test_microbatches_that_no_rank_was_given_are_told() -> None:
    def calls(ranks: int, numbers: list[int]) -> list[Record]:
        return [
            replace(
                item("", [1.0], rank=rank, call=call, role="input", path="0", parent=None).record,
                digest=f"{number}",
            )
            for rank in range(ranks)
            for call, number in enumerate(numbers)
        ]

    golden = calls(1, [0, 1, 2, 3])
    told = given_to_none(golden, calls(2, [0, 1]), {})
    assert [(each.rank, each.dropped, each.doubled) for each in told] == [
        (0, (2, 3), ()),
        (1, (2, 3), ()),
    ]
    assert not given_to_none(golden, calls(2, [0, 1]), {0: {}})  # the rows are known
    assert not given_to_none(golden, calls(2, [0, 9]), {})  # others, which the inputs show
