"""Which microbatch each call of a pipeline's stage has."""

from __future__ import annotations

from msgspec.structs import replace

from accucompare.compare.layouts.microbatches import schedule_of
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
