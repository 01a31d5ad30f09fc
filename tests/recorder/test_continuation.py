"""States that do not fit what starts from them, or are damaged: a clear message, and nothing is
changed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.errors import BundleError, CaptureError, UsageError
from tests.asked import grouped
from tests.recorder.looped import Loop, edited, interrupted, run


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Loop]:
    return interrupted(tmp_path_factory.mktemp("golden") / "golden")


def sgd(loop: Loop) -> Any:
    return torch.optim.SGD(loop.model.parameters(), 0.1)


def two_groups(loop: Loop) -> Any:
    parameters = list(loop.model.parameters())
    return torch.optim.AdamW([{"params": parameters[:2]}, {"params": parameters[2:]}])


def fewer(loop: Loop) -> Any:
    return torch.optim.AdamW(list(loop.model.parameters())[1:])


@pytest.mark.parametrize(
    ("optimizer", "message"),
    [
        (
            sgd,
            (
                r"start \(--like\): optimizer 0 is a torch\.optim\.sgd\.SGD here, but a"
                r" torch\.optim\.adamw\.AdamW in "
            ),
        ),
        (two_groups, r"start \(--like\): optimizer 0 has 2 parameter group\(s\) here, but 1 in "),
        (
            fewer,
            (
                r"start \(--like\): optimizer 0: other parameter groups: 'first\.weight' is in"
                r" group 0 in .*"
                r" only"
            ),
        ),
        (
            lambda loop: [sgd(loop), sgd(loop)],
            r"start \(--like\): there are 2 optimizers here, but",
        ),
    ],
    ids=["class", "groups", "parameters", "number"],
)
def test_an_optimizer_that_does_not_fit_is_refused_and_nothing_is_changed(
    optimizer: Callable[[Loop], Any], message: str, golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    loop = Loop.new(seed=9)
    before = loop.model.first.weight.clone()
    with (
        pytest.raises(CaptureError, match=message),
        ac.capture(loop.model, tmp_path / "out", start=golden[0], loop=optimizer(loop)),
    ):
        pass
    assert torch.equal(loop.model.first.weight, before)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["optimizer", "scheduler", "scaler"])
def test_something_else_in_place_of_an_optimizer_is_a_usage_error(
    name: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=rf"^{name} must be an? .*, but is a dict"):
        ac.capture(nn.Linear(1, 1), tmp_path / "out", **grouped(**{name: {}}))
    with pytest.raises(UsageError, match=rf"^{name} must be an? .*, but is the class SGD"):
        ac.capture(nn.Linear(1, 1), tmp_path / "out", **grouped(**{name: torch.optim.SGD}))


def test_a_bundle_of_an_older_version_cannot_continue_a_training(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    old = edited(golden[0], tmp_path / "old", lambda capture: capture.pop("training_state"))
    loop = Loop.new()
    with pytest.raises(
        CaptureError,
        match=(
            "was written by an older accucompare, which saved weights and inputs, but not the state"
            " of the"
        ),
    ):
        run(loop, tmp_path / "out", range(3, 6), like=old, **loop.parts)
    with ac.capture(loop.model, tmp_path / "forward", start=old):  # of weights alone it still can
        pass


HOSTILE: dict[str, Callable[[dict[str, Any]], object]] = {
    "step": lambda state: state.update(step=-1),
    "step too large": lambda state: state.update(step=1 << 70),
    "options": lambda state: state["optimizers"][0].update(options=[1]),
    "tensor": (
        lambda state: state["optimizers"][0]["state"]["first.weight"]["dict"][1].__setitem__(
            1, {"tensor": "99"}
        )
    ),
    "no state": (
        lambda state: state["optimizers"][0]["state"].update({"first.weight": {"value": 3}})
    ),
    "unhashable": (
        lambda state: state["schedulers"][0]["options"].update(
            last_epoch={"dict": [[[], {"value": 3}]]}
        )
    ),
    "random": lambda state: state["random"]["dict"][1][1]["list"].__setitem__(1, {"value": 7}),
    "random devices": (
        lambda state: state["random"]["dict"][0][1]["dict"][0].__setitem__(1, {"tensor": "1"})
    ),
    "draws": lambda state: state["draws"].update(numbers={"no hex": 1}),
    "draws' count": lambda state: state["draws"].update(count=1.5),
    "gradients": lambda state: state.update(gradients={"dict": [["first.weight", {"value": 1}]]}),
    "no gradients": lambda state: state.update(gradients={"value": 1}),
    "attributes": lambda state: state.update(attributes={"": {"calls": [1]}}),
    "a method": lambda state: state.update(attributes={"": {"forward": "x"}}),
    "a table": lambda state: state.update(attributes={"": {"_modules": 1}}),
    "component": lambda state: state.update(missing=[{"component": "nothing", "reason": ""}]),
}


@pytest.mark.parametrize("damage", HOSTILE)
def test_a_damaged_state_is_an_error_that_names_the_file(
    damage: str, golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    path = edited(
        golden[0], tmp_path / "bad", lambda capture: HOSTILE[damage](capture["training_state"])
    )
    loop = Loop.new()
    with pytest.raises(BundleError, match=f"^{path}") as raised:
        run(loop, tmp_path / "out", range(3, 6), like=path, **loop.parts)
    assert len(str(raised.value)) < 600


def test_a_flipped_bit_in_a_saved_moment_is_found_and_named(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    shutil.copytree(golden[0], tmp_path / "bad")
    with ac.open_bundle(tmp_path / "bad") as bundle:
        record = next(
            record for record in bundle.state() if record.name == "optimizer 0 first.weight 1"
        )
        _, offset = bundle.locate(record)
    with (tmp_path / "bad/rank0/state.npz").open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))
    loop = Loop.new()
    with pytest.raises(
        BundleError, match=r"rank0/state\.npz: optimizer 0 first\.weight 1 .* is corrupt"
    ):
        run(loop, tmp_path / "out", range(3, 6), like=tmp_path / "bad", **loop.parts)


def test_steps_before_the_state_are_refused(golden: tuple[Path, Loop], tmp_path: Path) -> None:
    with (
        pytest.raises(
            UsageError, match=r"steps 2-4 \(--steps\): the state of .* is that before step 3"
        ),
        ac.capture(Loop.new().model, tmp_path / "out", steps="2-4", start=golden[0]),
    ):
        pass


def test_a_golden_of_a_later_step_is_not_fed_to_the_weights_of_the_first(
    golden: tuple[Path, Loop], tmp_path: Path
) -> None:
    with (
        pytest.raises(
            UsageError,
            match=(
                r"begins with the weights of step 3, and the model has those of step 0: start"
                rf" from it \(start=, --like {golden[0]}\)"
            ),
        ),
        ac.capture(Loop.new().model, tmp_path / "out", feed=golden[0]),
    ):
        pass
