"""A watch in two processes, as torchrun starts them: what goes wrong on one rank is named by that
rank, and nothing waits for it.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.log.events import (
    Alert,
    Cause,
    Direction,
    End,
    Finding,
    Site,
    Step,
    WatchStart,
)
from accucompare.findings.log.log import read_log
from accucompare.report.watch_words import said
from tests.conftest import ROOT
from tests.forkserver import with_torch
from tests.made_once import folder_for_all, locked_for_all

SHARDED = ("fsdp2", "fsdp1", "fsdp1_flat")


@dataclass
class Ranks:
    """What two ranks left behind.

    Attributes:
        folder: of all checks.
        stderr: what they wrote there.
    """

    folder: Path
    stderr: str

    def seen(self, check: str, rank: int) -> dict[str, Any]:
        seen: dict[str, Any] = json.loads((self.folder / f"{check}-{rank}.json").read_text())
        if "skip" in seen:
            pytest.skip(f"{check} does not run on gloo here: {seen['skip']}")
        return seen

    def of(self, check: str, rank: int, kind: type[Any]) -> list[Any]:
        """The events of one kind in a rank's log."""
        return [
            event
            for event in read_log(self.folder / check / f"rank{rank}.jsonl")[-1]
            if isinstance(event, kind)
        ]

    def origins(self, check: str, rank: int, step: int = 1) -> list[Finding]:
        """In the step in which something goes wrong, if not in another one."""
        return [
            found for found in self.of(check, rank, Finding) if found.origin and found.step == step
        ]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    """What they leave behind, once for all test processes."""
    folder = folder_for_all(tmp_path_factory, "two ranks")
    with locked_for_all(folder):
        if not (folder / "stderr.txt").exists():
            (folder / "stderr.txt").write_text(_run(folder))
    assert (folder / "command-1.json").exists(), (folder / "stderr.txt").read_text()
    return Ranks(folder, (folder / "stderr.txt").read_text())


#: Runs a script as two ranks, forked from a process that has imported torch, which torchrun's
# would each import.
RANKS = """
import os, runpy, sys, traceback

del sys.argv[0]
for rank in range(2):
    if not os.fork():
        os.environ.update(
            RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2"
        )
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except BaseException:
            traceback.print_exc()
        os._exit(0)
for rank in range(2):
    os.wait()
"""


def _run(folder: Path) -> str:
    return with_torch()(
        RANKS, ROOT / "tests" / "watcher" / "two_ranks.py", folder, cwd=folder, variables=os.environ
    ).stderr


@pytest.mark.parametrize(
    "check", ["alone", "ddp", "ddp-accumulated", *(f"{name}-gradient" for name in SHARDED)]
)
def test_a_gradient_of_one_rank_is_named_by_that_rank_only(ranks: Ranks, check: str) -> None:
    ranks.seen(check, 0)
    (found,) = ranks.origins(check, 1)
    assert (found.name, found.direction, found.operator) == (
        "second",
        Direction.BACKWARD,
        "SpoiltBackward",
    )
    assert found.parameters == [
        "_flat_param" if check.startswith("fsdp1_flat") else "second.weight"
    ]
    assert ranks.origins(check, 0) == []


@pytest.mark.parametrize(
    "check",
    ["ddp", "ddp-accumulated", "ddp-input", "ddp-forward", "fsdp2-gradient", "fsdp2-forward"],
)
def test_the_other_rank_warns_of_what_it_was_given_by_the_sum(ranks: Ranks, check: str) -> None:
    ranks.seen(check, 0)
    (warned,) = ranks.of(check, 0, Alert)
    assert (warned.kind, warned.step) == ("note", 1)
    assert "another rank made it" in said(warned.text)
    assert ranks.of(check, 0, Step)[1].grad_norm == "nan"
    assert ranks.of(check, 1, Alert) == []


def test_without_a_sum_the_other_rank_has_nothing_to_say(ranks: Ranks) -> None:
    assert ranks.of("alone", 0, Finding) == ranks.of("alone", 0, Alert) == []


def test_the_backward_is_run_again_under_ddp(ranks: Ranks) -> None:
    (found,) = ranks.origins("ddp", 1)
    assert found.line.startswith("two_ranks.py:")
    assert found.notes == []
    assert (ranks.folder / "ddp" / found.reproducer).is_file()


def test_an_input_of_one_rank(ranks: Ranks) -> None:
    (found,) = ranks.origins("ddp-input", 1)
    assert (found.site, found.name) == (Site.INPUT, "")
    assert ranks.origins("ddp-input", 0) == []


@pytest.mark.parametrize("check", ["ddp-forward", "ddp-unused"])
def test_a_forward_is_run_again_under_ddp_and_the_other_rank_notices_nothing(
    ranks: Ranks, check: str
) -> None:
    (found,) = ranks.origins(check, 1)
    assert (found.name, found.operator, found.notes) == ("second", "aten.log.default", [])
    assert found.line.startswith("two_ranks.py:")
    assert ranks.origins(check, 0) == []


@pytest.mark.parametrize("check", [f"{name}-forward" for name in SHARDED])
def test_a_forward_of_sharded_parameters_is_not_run_again(ranks: Ranks, check: str) -> None:
    ranks.seen(check, 1)
    (found,) = ranks.origins(check, 1)
    assert (found.name, found.direction, found.site) == ("second", Direction.FORWARD, Site.MODULE)
    assert list(map(said, found.notes)) == [
        "the step was not run again: its parameters are sharded over ranks"
    ]
    assert ranks.origins(check, 0) == []


@pytest.mark.parametrize("check", ["ddp-unused", *(f"{name}-clean" for name in SHARDED)])
def test_results_are_those_of_a_run_that_nobody_watches(ranks: Ranks, check: str) -> None:
    for rank in (0, 1):
        assert ranks.seen(check, rank) == {"same": True}
        assert all(step.grad_norm not in (None, "nan") for step in ranks.of(check, rank, Step))
        assert [end.reason for end in ranks.of(check, rank, End)] == ["finished"]


def test_what_goes_wrong_does_so_in_the_same_way_when_watched(ranks: Ranks) -> None:
    seen = {path.stem: json.loads(path.read_text()) for path in ranks.folder.glob("*.json")}
    assert [check for check, each in seen.items() if not each.get("same", True)] == []


@pytest.mark.parametrize(
    "check", ["ddp-raised", "ddp-clipped", "ddp-unused-agreed", "fsdp2-agreed"]
)
def test_no_rank_updates_with_what_another_one_has_found(ranks: Ranks, check: str) -> None:
    seen = [ranks.seen(check, rank) for rank in (0, 1)]
    assert [each["finite"] for each in seen] == [True, True]
    assert [each["step"] for each in seen] == [1, 1]
    assert "another rank has found it, and its log names where" in seen[0]["raised"]
    assert "in second" in seen[1]["raised"]
    assert [(found.site, found.origin) for found in ranks.of(check, 0, Finding)] == [
        (Site.RANK, False)
    ]
    first = read_logs(ranks.folder / check).first
    assert first is not None
    assert (first[0].start.rank, first[1].name) == (1, "second")


@pytest.mark.parametrize("check", ["megatron", "plain"])
def test_what_does_not_talk_to_other_ranks_is_run_again_whatever_it_is_wrapped_in(
    ranks: Ranks, check: str
) -> None:
    (found,) = ranks.origins(check, 1)
    assert (found.name, found.line.partition(":")[0], found.notes) == ("second", "two_ranks.py", [])
    assert (ranks.folder / check / found.reproducer).is_file()


@pytest.mark.parametrize("check", ["talks-forward", "talks-backward"])
def test_of_what_talks_to_other_ranks_this_ranks_part_is_saved(ranks: Ranks, check: str) -> None:
    (found,) = ranks.origins(check, 1)
    assert (found.name, found.operator) == ("second", "SpoiltBackward")
    assert said(found.notes[0]).startswith(
        "the step was not run again: (root) talks to other ranks"
    )
    assert "every rank is needed" in said(found.reproducer_notes[0])
    with ac.open_bundle((ranks.folder / check / found.reproducer).with_suffix("")) as bundle:
        saved = {record.name for record in bundle.state()}
        assert {"first.weight", "second.bias", "random.cpu"} < saved
        assert [record.shape for record in bundle.records()] == [(3, 4)]


def test_a_rank_that_stops_with_another_saves_its_part_of_the_call_too(ranks: Ranks) -> None:
    (found,) = ranks.of("talks-forward", 0, Finding)
    assert (found.site, (ranks.folder / "talks-forward" / found.reproducer).is_file()) == (
        Site.RANK,
        True,
    )
    assert "every rank is needed" in said(found.reproducer_notes[0])


def test_a_rank_that_is_given_a_nan_inside_a_module_does_not_say_that_it_was_made_there(
    ranks: Ranks,
) -> None:
    for rank in (0, 1):
        (found,) = ranks.origins("tensor-parallel", rank, step=0)
        assert (found.name, found.cause) == ("1", Cause.RANKS)
    assert [step.grad_norm for step in ranks.of("tensor-parallel", 0, Step)] == [None]


@pytest.mark.parametrize(
    ("way", "expected"),
    [
        ("none", [{}, {}]),
        ("mesh", [{"pp": 0, "tp": 0}, {"pp": 0, "tp": 1}]),
        ("dtensor", [{"dim 0": 0}, {"dim 0": 1}]),
        ("megatron", [{"tp": 0, "pp": 0, "dp": 3}, {"tp": 1, "pp": 0, "dp": 3}]),
    ],
)
def test_coordinates(ranks: Ranks, way: str, expected: list[dict[str, int]]) -> None:
    assert [ranks.seen("places", rank)[way] for rank in (0, 1)] == expected


def test_the_mesh_of_sharded_parameters_is_found_by_itself(ranks: Ranks) -> None:
    ranks.seen("fsdp2-clean", 1)
    (start,) = ranks.of("fsdp2-clean", 1, WatchStart)
    assert (start.rank, start.ranks, start.coordinates) == (1, 2, {"dp": 1})


@pytest.mark.parametrize("rank", [0, 1])
def test_each_process_of_the_command_tells_its_own_rank(ranks: Ranks, rank: int) -> None:
    """The other one's log may not have ended yet."""
    path = ranks.folder / "command" / f"rank{rank}.jsonl"
    first, *_ = ranks.seen("command", rank)["printed"].splitlines()
    assert first == f"FINITE  {path}: everything was finite in 2 watched steps"


def test_an_error_says_on_which_rank(ranks: Ranks) -> None:
    assert "NonFiniteError: NaN in second, backward (Layer), step 1, rank 1 (dp 1)" in ranks.stderr
    first = read_logs(ranks.folder / "raised").first
    assert first is not None
    assert (first[0].start.rank, first[1].parameters) == (1, ["second.weight"])
