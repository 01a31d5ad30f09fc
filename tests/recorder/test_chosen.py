"""Recording some steps only, or some roles only: ``steps`` with a list, and ``roles``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import GRADIENT_ROLES, GROUP_OF, Role
from accucompare.compare.origins.sites import Stage
from accucompare.compare.rows.rows import Reason, Status
from accucompare.devices import DeviceName
from accucompare.errors import UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from accucompare.report.words import verdict_words
from accucompare.selection import FloatType, RoleGroup, Steps
from planted.training_faults import of_parameter
from tests.conftest import Run
from tests.recorded import Opened
from tests.recorder.trained import build, train

CASE = """
import torch
from torch import nn
from accucompare import Case

def case(optimizer=torch.optim.AdamW, factor=1.0):
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.1), nn.Linear(4, 2))
    inputs = [torch.randn(3, 4) for _ in range(2)]
    loss = lambda out: out.square().mean() * factor
    return Case(model, inputs, loss=loss, optimizer=optimizer(model.parameters(), 0.01))

def sgd():
    return case(torch.optim.SGD)
"""


@pytest.fixture
def target(tmp_path: Path) -> str:
    (tmp_path / "chosen_case.py").write_text(CASE)
    return str(tmp_path / "chosen_case.py")


def captured(target: str, out: Path, **options: Any) -> Path:
    return capture_case(
        target, out, DeviceName("cpu"), CaptureOptions(**{"backward": True, **options})
    )


def step_numbers(path: Path) -> list[int]:
    with ac.open_bundle(path) as bundle:
        return [entry.step for entry in bundle.manifest.steps]


def digests(path: Path, step: int) -> dict[Any, str | None]:
    with ac.open_bundle(path) as bundle:
        return {
            (r.name, r.call, r.role, r.path): r.digest for r in bundle.records() if r.step == step
        }


@pytest.mark.parametrize(
    ("given", "count", "chosen", "text"),
    [
        (3, 3, None, "3"),
        ("3", 3, None, "3"),
        ("0,10,100-102", 103, (0, 10, 100, 101, 102), "0,10,100-102"),
        (" 5 , 2-3,2", 6, (2, 3, 5), "2-3,5"),
        ("10-10", 11, (10,), "10-10"),
        ([4, 1, 4], 5, (1, 4), "1,4"),
        ([10], 11, (10,), "10-10"),
    ],
)
def test_steps_are_a_number_or_a_list(
    given: Any, count: int, chosen: tuple[int, ...] | None, text: str
) -> None:
    steps = CaptureOptions(steps=given).asked
    assert steps is not None
    assert (steps.count, steps.chosen, str(steps)) == (count, chosen, text)
    assert Steps.of(text) == steps
    assert [number for number in range(count + 2) if steps.has(number)] == list(steps.numbers)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": "3-1"}, "steps: 3-1 goes down; write 1-3"),
        ({"steps": "x"}, "steps: 'x' is no step; write a number of steps"),
        ({"steps": "1,,2"}, "steps: '' is no step"),
        ({"steps": "-1"}, "steps: '-1' is no step"),
        (
            {"steps": "0-99999999999"},
            "steps: a list can have 1,000,000 steps; for more, give a number of steps",
        ),
        (
            {"steps": []},
            "steps must be a number of steps, or a list of step numbers from 0 on, but is []",
        ),
        (
            {"steps": [-1]},
            "steps must be a number of steps, or a list of step numbers from 0 on, but is [-1]",
        ),
        ({"steps": 1.5}, "steps: 'float' object is not iterable"),
        (
            {"roles": "grad"},
            (
                "roles: 'grad' is none of forward, backward, grads, update, series; write for"
                " example grads,update"
            ),
        ),
        ({"roles": ""}, "roles: '' is none of forward"),
        ({"roles": []}, "roles: '' is none of forward"),
        (
            {"roles": "grads", "level": "op"},
            "roles (--roles): level op records operators of the forward; add forward",
        ),
    ],
)
def test_steps_and_roles_that_make_no_sense_are_refused(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        CaptureOptions(**given)
    assert str(refused.value).startswith(message)


def test_chosen_steps_are_the_same_as_in_a_capture_of_all(
    target: str, tmp_path: Path, opened: Opened
) -> None:
    captured(target, tmp_path / "all", steps=6)
    captured(target, tmp_path / "some", steps="1,4-5")
    assert step_numbers(tmp_path / "some") == [1, 4, 5]
    for step in (1, 4, 5):
        assert digests(tmp_path / "some", step) == digests(tmp_path / "all", step)
    manifest = opened(tmp_path / "some").manifest
    assert [entry.step for entry in manifest.series] == [1, 4, 5]
    assert manifest.series == [
        entry for entry in opened(tmp_path / "all").manifest.series if entry.step in (1, 4, 5)
    ]
    assert manifest.options.chosen_steps == (1, 4, 5)


def test_a_step_that_is_not_chosen_has_no_hooks_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accucompare.live.modules import hooks
    from accucompare.live.values import tensors
    from accucompare.recorder.recording import backward, making, updates

    model = build("tied")
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    done: list[str] = []

    def noting(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: (done.append(name), original(*args, **kwargs))[1]

    monkeypatch.setattr(making, "to_host", noting("a tensor was read", tensors.to_host))
    monkeypatch.setattr(hooks.Listener, "run", noting("a hook ran", hooks.Listener.run))
    monkeypatch.setattr(backward, "reachable", noting("a graph was walked", backward.reachable))
    monkeypatch.setattr(
        updates.Updates, "held_by", noting("an update was looked at", updates.Updates.held_by)
    )
    monkeypatch.setattr(
        backward, "hook_arriving", noting("a tensor got a hook", backward.hook_arriving)
    )
    ids = torch.randint(97, (2, 8))
    per_step = []
    with ac.capture(model, tmp_path / "golden", steps="1-1") as session:
        for _ in range(3):
            done.clear()
            out = model(ids)
            out["logits"].square().mean().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            per_step.append(set(done))
            session.step()
    assert per_step[0] == per_step[2] == set()
    assert len(per_step[1]) == 5


def test_chosen_steps_are_fed_and_a_fault_in_one_is_named_there(tmp_path: Path) -> None:
    train("tied", tmp_path / "golden", 4, chosen="1,3")
    candidate = build("tied", torch.bfloat16)
    of_parameter("block", "weight", "x 1.02", lambda grad: grad * 1.02).plant(candidate)
    train("tied", tmp_path / "fed", 4, model=candidate, feed=tmp_path / "golden")
    train(
        "tied",
        tmp_path / "baseline",
        4,
        model=build("tied", torch.bfloat16),
        feed=tmp_path / "golden",
    )
    assert step_numbers(tmp_path / "fed") == [1, 3]
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed", baseline=tmp_path / "baseline")
    first = comparison.culprits[0]
    assert (first.name, first.stage) == ("block", Stage.BACKWARD)


def test_chosen_steps_fed_with_themselves_differ_nowhere(target: str, tmp_path: Path) -> None:
    captured(target, tmp_path / "golden", steps="2,5")
    captured(target, tmp_path / "fed", feed=tmp_path / "golden")
    assert step_numbers(tmp_path / "fed") == [2, 5]
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert {row.reason for row in comparison.rows} <= {Reason.IDENTICAL}
    assert comparison.passed


def test_like_takes_over_the_chosen_steps(target: str, tmp_path: Path) -> None:
    captured(target, tmp_path / "golden", steps="0,3", save_state=True)
    captured(target, tmp_path / "candidate", like=tmp_path / "golden")
    assert step_numbers(tmp_path / "candidate") == [0, 3]
    assert ac.diff(tmp_path / "golden", tmp_path / "candidate").passed


@pytest.mark.parametrize(
    ("held", "asked", "message"),
    [
        (2, 5, "steps 5 (--steps): {golden} holds only 2 step(s) to feed; give 2, or leave it out"),
        (
            "0,3",
            "0-1",
            (
                "steps 0-1 (--steps): {golden} holds no step 1 to feed, of 0,3; give 0,3, or leave"
                " it out"
            ),
        ),
    ],
)
def test_more_steps_than_golden_has_are_refused(
    held: Any, asked: Any, message: str, target: str, tmp_path: Path
) -> None:
    captured(target, tmp_path / "golden", steps=held)
    with pytest.raises(UsageError) as refused:
        captured(target, tmp_path / "fed", steps=asked, feed=tmp_path / "golden")
    assert str(refused.value) == message.format(golden=tmp_path / "golden")


def test_steps_that_one_side_was_not_asked_for_are_no_difference(
    target: str, tmp_path: Path
) -> None:
    captured(target, tmp_path / "golden", steps=3)
    captured(target, tmp_path / "candidate", steps="0,2")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert comparison.passed
    alone = {
        verdict_words.detail(row)
        for row in comparison.rows
        if row.candidate is None and row.golden is not None
    }
    assert alone == {"the candidate was captured with --steps 0,2"}
    assert {row.golden.step for row in comparison.rows if row.golden and row.candidate} == {0, 2}


@pytest.mark.parametrize("group", RoleGroup)
def test_roles_choose_what_is_recorded(
    group: RoleGroup, target: str, tmp_path: Path, opened: Opened
) -> None:
    captured(target, tmp_path / "all", steps=2)
    captured(target, tmp_path / "some", steps=2, roles=group.value)
    some, everything = (opened(tmp_path / name) for name in ("some", "all"))
    assert {GROUP_OF[record.role] for record in some.records()} == {group} - {RoleGroup.SERIES}
    expected = {
        record.key: record.digest
        for record in everything.records()
        if GROUP_OF[record.role] is group
    }
    assert {record.key: record.digest for record in some.records()} == expected
    ours, theirs = (
        [entry.losses for entry in bundle.manifest.series] for bundle in (some, everything)
    )
    assert len(ours) == 2
    assert ours == theirs


def test_roles_that_one_side_was_not_asked_for_are_no_difference(
    target: str, tmp_path: Path
) -> None:
    captured(target, tmp_path / "golden")
    captured(target, tmp_path / "candidate", roles="grads,update")
    for sides in (("golden", "candidate"), ("candidate", "golden")):
        comparison = ac.diff(*(tmp_path / side for side in sides))
        assert comparison.passed
        alone = [
            row
            for row in comparison.rows
            if None in (row.golden, row.candidate) and row.record is not None
        ]
        who = "golden" if sides[0] == "candidate" else "the candidate"
        assert {(row.status, verdict_words.detail(row)) for row in alone} == {
            (Status.NOT_COMPARED, f"{who} was captured with --roles grads,update")
        }


def test_a_fed_capture_records_what_golden_holds(
    target: str, tmp_path: Path, opened: Opened
) -> None:
    captured(target, tmp_path / "golden", roles="forward,backward", steps=1)
    captured(target, tmp_path / "fed", feed=tmp_path / "golden")
    found = {record.role for record in opened(tmp_path / "fed").records()}
    assert found <= {Role.INPUT, Role.OUTPUT, *GRADIENT_ROLES}
    assert Role.GRAD_OUTPUT in found
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert {row.reason for row in comparison.rows} == {Reason.IDENTICAL}


@pytest.mark.parametrize("roles", ["grads", "series"])
def test_golden_without_a_forward_cannot_feed(target: str, tmp_path: Path, roles: str) -> None:
    captured(target, tmp_path / "golden", roles=roles)
    with pytest.raises(
        UsageError,
        match=(
            r"holds no inputs and outputs to feed \(--roles\); capture it with forward among its"
            r" roles \(--roles\)"
        ),
    ):
        captured(target, tmp_path / "fed", feed=tmp_path / "golden")


def test_steps_of_a_series_are_steps_that_a_bundle_holds(target: str, tmp_path: Path) -> None:
    captured(target, tmp_path / "golden", roles="series", steps=2)
    captured(target, tmp_path / "candidate", roles="forward,series", steps=1)
    messages = [
        finding.message
        for finding in ac.diff(tmp_path / "golden", tmp_path / "candidate").preflight
    ]
    assert "golden holds 2 steps of 1 rank, the candidate 1 step of 1 rank" in messages


def test_a_later_step_of_a_golden_without_updates_cannot_be_fed(
    target: str, tmp_path: Path
) -> None:
    captured(target, tmp_path / "golden", roles="forward,backward", steps="2-2")
    with pytest.raises(
        UsageError, match="lacks the weights that golden's optimizer had made for step 2"
    ):
        captured(target, tmp_path / "fed", feed=tmp_path / "golden")


def test_an_update_by_another_class_of_optimizer_is_told(
    target: str, tmp_path: Path, opened: Opened
) -> None:
    captured(target, tmp_path / "golden")
    captured(f"{target}:sgd", tmp_path / "fed", feed=tmp_path / "golden")
    notes = opened(tmp_path / "fed").manifest.notes
    assert any(
        "the optimizer is torch.optim.sgd.SGD, golden's torch.optim.adamw.AdamW" in note
        for note in notes
    )


def test_a_golden_without_gradients_of_layers_feeds_the_forward_only(
    target: str, tmp_path: Path, opened: Opened
) -> None:
    captured(target, tmp_path / "golden", roles="forward,grads,update", steps=1)
    captured(target, tmp_path / "fed", feed=tmp_path / "golden")
    assert {GROUP_OF[record.role] for record in opened(tmp_path / "fed").records()} == {
        RoleGroup.FORWARD
    }
    assert any(
        note.startswith("nothing of the backward and the update was run")
        for note in opened(tmp_path / "fed").manifest.notes
    )
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").passed


def test_gradients_are_fed_whatever_is_recorded(target: str, tmp_path: Path) -> None:
    captured(target, tmp_path / "golden", steps=2)
    captured(target, tmp_path / "fed", feed=tmp_path / "golden", roles="grads,update")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    both = [row for row in comparison.rows if row.golden and row.candidate]
    assert {row.reason for row in both} == {Reason.IDENTICAL}
    assert {row.golden.role for row in both if row.golden} >= {
        Role.PARAM_GRAD,
        Role.PARAM_UPDATE,
        Role.STATE_AFTER,
    }


@pytest.mark.parametrize(
    ("steps", "stopped"),
    [
        (
            "1,3,7-8",
            "the run ended before step(s) 3,7-8 of --steps 1,3,7-8, which are not recorded",
        ),
        ("5", "the run ended after 3 of 5 step(s)"),
        ("1-2", None),
        ("3", None),
        ("2", None),
        (None, None),
    ],
)
@pytest.mark.parametrize("roles", [None, "series"])
def test_a_run_that_ends_before_a_step_that_was_asked_for_is_incomplete(
    tmp_path: Path, opened: Opened, steps: str | None, stopped: str | None, roles: str | None
) -> None:
    train("recurrent", tmp_path / "golden", 3, chosen=steps, roles=roles)
    bundle = opened(tmp_path / "golden")
    assert (bundle.complete, bundle.manifest.stopped) == (
        stopped is None,
        stopped and {"error": stopped},
    )
    comparison = ac.diff(tmp_path / "golden", tmp_path / "golden")
    assert comparison.passed is (stopped is None)


def test_a_baseline_needs_a_forward_to_be_fed_with(target: str, tmp_path: Path, cli: Any) -> None:
    refused = cli(
        "capture", target, "--roles", "grads", "--with-baseline", "--out", tmp_path / "golden"
    )
    assert refused.returncode == 2
    assert "add forward to --roles" in refused.stderr


def test_the_optimizer_of_a_case_holds_the_parameters_that_the_device_has_made(
    target: str, tmp_path: Path, opened: Opened
) -> None:
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        captured(target, tmp_path / "golden", steps=2)
        capture_case(
            target,
            tmp_path / "cast",
            DeviceName("cpu"),
            CaptureOptions(backward=True, steps=2),
            dtype=FloatType.FLOAT64,
        )
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)
    for name in ("golden", "cast"):
        updates = [
            record
            for record in opened(tmp_path / name).records()
            if record.role is Role.PARAM_UPDATE
        ]
        assert len(updates) == 2 * 4
        assert all(record.statistics and record.statistics.l2 for record in updates)


def test_an_optimizer_of_other_parameters_is_an_error_of_the_case(tmp_path: Path) -> None:
    (tmp_path / "other_case.py").write_text(
        CASE.replace("optimizer(model.parameters()", "optimizer(nn.Linear(2, 2).parameters()")
    )
    with pytest.raises(UsageError, match="the AdamW holds no parameter of the model"):
        captured(str(tmp_path / "other_case.py"), tmp_path / "golden")


@pytest.mark.parametrize("roles", ["series", "grads,update"])
def test_roles_that_follow_from_a_loss_are_refused_without_one(
    cli: Run, tmp_path: Path, roles: str
) -> None:
    (tmp_path / "plain.py").write_text(
        "import torch\nfrom accucompare import Case\n"
        "def case():\n    return Case(torch.nn.Linear(2, 2), torch.ones(1, 2))\n"
    )
    done = cli("capture", "plain.py", "--device", "cpu", "--roles", roles)
    assert (done.returncode, done.stdout) == (2, "")
    assert "the case has none; give Case(…, loss=…)" in done.stderr
    assert f"--roles forward,{roles}" in done.stderr
    assert not (tmp_path / "cpu").exists()


def test_the_command_line_reads_both(target: str, tmp_path: Path, cli: Any) -> None:
    out = tmp_path / "golden"
    done = cli("capture", target, "--steps", "0,3-4", "--roles", "grads, series", "--out", out)
    assert done.returncode == 0, done.stderr
    assert step_numbers(out) == [0, 3, 4]
    done = cli("capture", target, "--roles", "series", "--steps", 2, "--out", tmp_path / "series")
    assert done.stdout.startswith(
        f"captured the series of 2 steps, no records in {tmp_path / 'series'}"
    )
    refused = cli("capture", target, "--steps", "3-1", "--out", tmp_path / "no")
    assert refused.returncode == 2
    assert "3-1 goes down; write 1-3" in refused.stderr


def test_no_steps_at_all_are_refused_with_how_step_0_is_chosen() -> None:
    with pytest.raises(ValueError, match="must be at least 1, but is 0; 0-0 is step 0 alone"):
        Steps.of("0")
