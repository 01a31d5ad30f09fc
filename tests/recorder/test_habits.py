"""Captures of the backward of models with habits that autograd makes much of."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import accucompare as ac
from accucompare.bundle.format.records import GRADIENT_ROLES
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.origins.sites import Stage
from accucompare.compare.rows.rows import Reason, Status
from accucompare.live.modules.hooks import Call
from planted.training_faults import of_input
from tests.asked import grouped
from tests.combinations import once
from tests.recorded import Opened
from tests.recorder.habits import HABITS, Habit, HandedOn, build, loss_of, train, values

Found = dict[tuple[str, int, str, str], np.ndarray[Any, Any]]


def gradients(bundle: Bundle) -> Found:
    """Recorded gradients by (name, call, role, path)."""
    chosen = [record for record in bundle.records() if record.role in GRADIENT_ROLES]
    return {
        (record.name, record.call, record.role.value, record.path): bundle.values(record)
        for record in chosen
    }


@pytest.mark.parametrize(("name", "backwards"), once(HABITS, [1, 2]))
def test_fed_with_itself_every_row_agrees_and_every_gradient_is_fed(
    name: str, backwards: int, tmp_path: Path
) -> None:
    plain = train(build(name), backwards=backwards)
    recorded = train(build(name), tmp_path / "golden", backwards)
    assert all(torch.equal(one, other) for one, other in zip(plain, recorded, strict=True))
    train(build(name), tmp_path / "fed", backwards, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    # a sum of uses may be added in another order
    assert {row.reason for row in comparison.rows} <= {Reason.IDENTICAL, Reason.OK}
    assert not [note for note in comparison.candidate.manifest.notes if "not fed" in note]


@pytest.mark.parametrize("name", [name for name in HABITS if name != "a loss that is used inside"])
def test_a_fault_beside_a_habit_is_named(name: str, tmp_path: Path) -> None:
    train(build(name), tmp_path / "golden")
    faulty = build(name)
    of_input("last", "x 1.01").plant(faulty)
    train(faulty, tmp_path / "fed", feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert {(culprit.name, culprit.stage) for culprit in comparison.culprits} == {
        ("last", Stage.BACKWARD)
    }


@pytest.mark.parametrize(
    ("wrong", "failing"),
    [
        (HandedOn(factor=0.98), ("handed", "grad_input")),
        (HandedOn(detached=True), ("handed", "grad_output")),
    ],
    ids=["scaled", "detached"],
)
def test_the_backward_of_what_was_written_in_place_and_handed_on_is_judged(
    wrong: HandedOn, failing: tuple[str, str], tmp_path: Path
) -> None:
    name = "in place, handed on by a function"
    train(build(name), tmp_path / "golden", steps=1)
    faulty = build(name)
    faulty.handed = wrong
    train(faulty, tmp_path / "fed", steps=1, feed=tmp_path / "golden")
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert not comparison.passed
    assert failing in {
        (row.record.name, row.record.role.value)
        for row in comparison.rows
        if row.status is Status.FAIL and row.record
    }


def test_a_backward_that_is_interrupted_leaves_what_was_recorded_and_the_next_is_recorded(
    tmp_path: Path, opened: Opened
) -> None:
    def interrupt(grad: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    model = build("a frozen layer")
    with ac.capture(model, tmp_path / "golden"):
        output = model(values(2, 4))
        output.register_hook(interrupt)
        with pytest.raises(KeyboardInterrupt):
            output.sum().backward()
        model(values(2, 4)).sum().backward()
    found = gradients(opened(tmp_path / "golden"))
    assert {call for name, call, *_ in found if name == "first"} == {1}
    assert ("first", 1, "call_grad", "weight") in found


def test_what_a_module_that_works_in_place_adds_to_a_view_is_what_autograd_gives(
    tmp_path: Path, opened: Opened
) -> None:
    model = build("in place on a part")
    train(model, tmp_path / "golden", steps=1)
    found = gradients(opened(tmp_path / "golden"))
    hidden = torch.from_numpy(opened(tmp_path / "golden").load("first").copy())
    whole = found["last", 0, "grad_input", "0"]
    np.testing.assert_array_equal(
        found["relu", 0, "grad_input", "0"], np.where(hidden[:, :2] > 0, whole[:, :2], 0)
    )


def test_what_arrives_at_a_view_that_is_written_into_is_what_autograd_gives(
    tmp_path: Path, opened: Opened
) -> None:
    train(build("an output that is a view, written into"), tmp_path / "golden", steps=1)
    found = gradients(opened(tmp_path / "golden"))
    arrived = found["first", 0, "grad_output", ""]
    np.testing.assert_allclose(
        arrived.sum((0, 1)), found["first", 0, "call_grad", "bias"], rtol=1e-6
    )
    written = arrived[0, 0] / found["last", 0, "grad_input", "0"][0, 0]
    np.testing.assert_allclose(written, 0.5, rtol=1e-6)


def test_parts_of_an_input_that_are_written_into_are_told_and_fed_as_in_golden(
    tmp_path: Path, opened: Opened
) -> None:
    def halves(lost: bool) -> Habit:
        def forward(model: Any, x: torch.Tensor) -> Any:
            one, other = model.halves(model.first(x))
            early = (one.detach() if lost else one).tanh()
            one.mul_(0.5)
            return model.last(torch.cat((early * one, other), 1))

        torch.manual_seed(0)
        return Habit(forward, halves=Habit(lambda m, x: (x[:, :2], x[:, 2:])))

    golden = tmp_path / "golden"
    train(halves(False), golden, steps=1)
    bundle = opened(golden)
    assert ("halves", 0, "grad_output", "0") not in gradients(bundle)
    assert any("was written into later (halves)" in note for note in bundle.manifest.notes)
    for lost in (False, True):
        train(halves(lost), tmp_path / "fed", steps=1, feed=golden)
        comparison = ac.diff(golden, tmp_path / "fed")
        assert {each.name for each in comparison.culprits} == ({""} if lost else set())
        passed_by = [row.golden for row in comparison.rows if row.reason is Reason.NOT_COMPARABLE]
        assert [each and (each.name, each.role) for each in passed_by] == [("halves", "grad_input")]


def test_a_hook_of_the_users_has_been_through_what_arrives_at_an_output(
    tmp_path: Path, opened: Opened
) -> None:
    train(build("a hook on an output"), tmp_path / "golden", steps=1)
    found = gradients(opened(tmp_path / "golden"))
    np.testing.assert_array_equal(
        found["first", 0, "grad_output", ""], 2 * found["last", 0, "grad_input", "0"]
    )


def test_a_parameter_given_as_an_argument_has_its_gradient_in_the_call_that_gives_it(
    tmp_path: Path, opened: Opened
) -> None:
    train(build("weight norm"), tmp_path / "golden", steps=1)
    found = gradients(opened(tmp_path / "golden"))
    owners = {
        (name, path) for name, _, role, path in found if role == "call_grad" and "original" in path
    }
    assert owners == {
        ("normed.parametrizations.weight", "original0"),
        ("normed.parametrizations.weight", "original1"),
    }
    for index in "01":
        np.testing.assert_array_equal(
            found["normed.parametrizations.weight", 0, "call_grad", f"original{index}"],
            found["normed.parametrizations.weight.0", 0, "grad_input", index],
        )


def test_each_call_under_autocast_has_its_own_part_of_a_weight(
    tmp_path: Path, opened: Opened
) -> None:
    def once(out: Path, kept: bool) -> Found:
        torch.manual_seed(0)
        model = Habit(lambda m, x: m.last(m.first(m.first(x))))
        with ac.capture(model, out):
            # without it, each call makes a cast of its own
            with torch.autocast("cpu", torch.bfloat16, cache_enabled=kept):
                loss = model(values(2, 4)).square().sum()
            loss.backward()
        return gradients(opened(out))

    found, expected = once(tmp_path / "kept", True), once(tmp_path / "apart", False)
    assert {
        call
        for name, call, role, path in found
        if (name, role, path) == ("first", "call_grad", "weight")
    } == {0, 1}
    assert found.keys() == expected.keys()
    for key, grad in found.items():
        np.testing.assert_array_equal(grad, expected[key])


def test_a_fault_behind_an_output_that_its_call_uses_as_well_is_seen(tmp_path: Path) -> None:
    def once(out: Path, factor: float, **options: Any) -> Path:
        torch.manual_seed(0)
        model = Habit(lambda m, x: (lambda y: (y, m.last(y)))(m.first(x)))
        with ac.capture(model, out, **grouped(backward=True, **options)):
            one, other = model(values(2, 4))
            (factor * one.square().sum() + other.sum()).backward()
        return out

    golden = once(tmp_path / "golden", 1.0)
    assert ac.diff(golden, once(tmp_path / "same", 1.0, feed=golden)).passed
    comparison = ac.diff(golden, once(tmp_path / "fed", 1.02, feed=golden))
    # its value, and its backward
    assert {culprit.stage for culprit in comparison.culprits} == {Stage.LOSS}


def test_of_a_step_with_calls_in_several_threads_no_gradient_is_recorded_and_that_is_told(
    tmp_path: Path, opened: Opened
) -> None:
    def in_threads(model: Any, x: torch.Tensor) -> torch.Tensor:
        found: dict[int, torch.Tensor] = {}
        threads = [
            threading.Thread(target=lambda each=each: found.update({each: model.first(x * each)}))
            for each in (1, 2)
        ]
        for thread in threads:
            thread.start()
            thread.join()
        return model.last(found[1] + found[2])  # type: ignore[no-any-return]

    torch.manual_seed(0)
    train(Habit(in_threads), tmp_path / "golden", steps=1)
    bundle = opened(tmp_path / "golden")
    assert not gradients(bundle)
    assert any("several threads" in note for note in bundle.manifest.notes)


def test_nothing_of_a_step_waits_for_the_collection_of_cycles(tmp_path: Path) -> None:
    """Python looks for cycles seldom, and through all that there is: with many small layers that
    takes longer than the capture itself.
    """
    model = build("a frozen layer")
    gc.collect()
    gc.disable()
    try:
        with ac.capture(model, tmp_path / "out") as session:
            loss = loss_of(model(values(2, 4)))
            del loss
            session.step()
            left = [each for each in gc.get_objects() if issubclass(type(each), Call)]
    finally:
        gc.enable()
    assert not left
