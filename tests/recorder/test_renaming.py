"""Golden's layers under the names that another version of the model has: ``map`` with ``like`` and
with ``feed``.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.rows.rows import Reason
from accucompare.devices import DeviceName
from accucompare.errors import AccucompareError, CaptureError, UsageError
from accucompare.live.modules.names import name_modules
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from accucompare.report.words import verdict_words
from tests.asked import grouped
from tests.recorded import Glue, Opened

X = torch.ones(2, 4)
WEIGHTS = (Role.PARAM, Role.BUFFER)


class Layer(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.rand(4))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.fc(x) * self.scale * self.factor
        return y


def stack(*factors: float) -> nn.Sequential:
    return nn.Sequential(*(Layer(factor) for factor in factors))


def run(self: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = self.head(self.get_submodule(self.inside)(x))
    return y


def old(*factors: float) -> nn.Module:
    model = Glue(run, encoder=stack(*(factors or (1, 1))), head=nn.Linear(4, 2))
    model.inside = "encoder"
    return model


def new(*factors: float) -> nn.Module:
    """The same with ``encoder`` in a module ``model``, and called ``layers``."""
    model = Glue(
        run,
        model=Glue(lambda self, x: self.layers(x), layers=stack(*(factors or (1, 1)))),
        head=nn.Linear(4, 2),
    )
    model.inside = "model.layers"
    return model


WEIGHTS = (Role.PARAM, Role.BUFFER)
MAP = "encoder.*=model.layers.*"


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    return captured(old(), tmp_path / "golden", save_state=True)


def captured(model: nn.Module, out: Path, **options: Any) -> Path:
    with ac.capture(model, out, **grouped(**options)), torch.no_grad():
        model(X)
    return out


@pytest.mark.parametrize(
    "given", [MAP, [MAP], "auto", ["encoder.0.*=model.layers.0.*", "auto"]], ids=str
)
def test_weights_go_to_the_layers_that_are_called_otherwise(
    given: Any, golden: Path, tmp_path: Path, opened: Opened
) -> None:
    bundle = opened(captured(new(), tmp_path / "out", like=golden, map=given))
    ours, theirs = opened(golden).manifest.model["parameters"], bundle.manifest.model["parameters"]
    for name, entry in ours.items():
        assert theirs[name.replace("encoder", "model.layers")] == entry, name
    assert bundle.manifest.capture["map"][-1] == MAP
    assert ac.diff(golden, bundle.path, map=bundle.manifest.capture["map"]).first_divergence is None


@pytest.mark.parametrize("given", [MAP, "auto"])
def test_a_layer_is_fed_with_what_golden_recorded_of_the_other_name(
    given: str, golden: Path, tmp_path: Path, opened: Opened
) -> None:
    candidate = new(1, 2)
    captured(candidate, tmp_path / "like", like=golden, map=given)  # golden's weights are in it now
    fed = opened(captured(candidate, tmp_path / "fed", feed=golden, map=given))
    comparison = ac.diff(golden, fed.path, map=fed.manifest.capture["map"])
    wrong = [
        row.place
        for row in comparison.rows
        if row.golden and row.candidate and row.reason is not Reason.IDENTICAL
    ]
    assert wrong == ["encoder.1 output"]  # and nothing of it reaches what comes after
    assert [culprit.name for culprit in comparison.culprits] == ["encoder.1"]


def test_like_and_feed_go_together(golden: Path, tmp_path: Path, opened: Opened) -> None:
    fed = opened(captured(new(), tmp_path / "fed", like=golden, feed=golden, map="auto"))
    comparison = ac.diff(golden, fed.path, map=fed.manifest.capture["map"])
    assert {row.reason.value for row in comparison.rows if row.golden and row.candidate} == {
        "identical"
    }


def test_what_auto_took_is_noted(golden: Path, tmp_path: Path, opened: Opened) -> None:
    notes = opened(captured(new(), tmp_path / "out", like=golden, map="auto")).manifest.notes
    assert f"--map auto took --map '{MAP}'" in notes


def test_auto_with_nothing_to_rename_says_so(golden: Path, tmp_path: Path, opened: Opened) -> None:
    bundle = opened(captured(old(), tmp_path / "out", like=golden, map="auto"))
    assert "--map auto found nothing to rename" in bundle.manifest.notes
    assert bundle.manifest.capture["map"] == []


def test_a_wrapper_around_everything_is_mapped_with_its_own_parameters(tmp_path: Path) -> None:
    golden = captured(Layer(), tmp_path / "golden", save_state=True)
    model = Glue(lambda self, x: self.model(x), model=Layer())
    captured(model, tmp_path / "out", like=golden, map="*=model.*")
    state = {
        record.name: ac.open_bundle(golden).raw(record)
        for record in ac.open_bundle(golden).state()
        if record.role in WEIGHTS
    }
    assert set(state) == {"scale", "fc.weight", "fc.bias"}
    assert all(
        (model.state_dict()[f"model.{name}"].numpy() == value).all()
        for name, value in state.items()
    )


def test_a_parameter_is_mapped_by_its_whole_name(tmp_path: Path) -> None:
    class Norm(nn.Module):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name
            self.register_parameter(name, nn.Parameter(torch.rand(4)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = x * getattr(self, self.name)
            return y

    golden = captured(nn.Sequential(Norm("gamma")), tmp_path / "golden", save_state=True)
    out = captured(
        nn.Sequential(Norm("weight")), tmp_path / "out", like=golden, map="*.gamma=*.weight"
    )
    assert ac.diff(golden, out).conclusion.startswith(
        "identical; 1 of the case's own weights were not golden's"
    )


def test_goldens_selection_is_taken_over_under_the_new_names(
    tmp_path: Path, opened: Opened
) -> None:
    golden = captured(old(), tmp_path / "golden", save_state=True, only="encoder.1*")
    out = opened(captured(new(), tmp_path / "out", like=golden, map=MAP))
    assert {record.name for record in out.records()} == {"", "model.layers.1", "model.layers.1.fc"}


def test_a_modules_own_mode_is_taken_over_under_the_new_name(tmp_path: Path) -> None:
    model, other = old().eval(), new().eval()
    model.encoder[1].train()
    captured(
        other, tmp_path / "out", like=captured(model, tmp_path / "golden", save_state=True), map=MAP
    )
    assert [name for name, module in other.named_modules() if module.training] == [
        "model.layers.1",
        "model.layers.1.fc",
    ]


def test_what_was_not_fed_is_known_of_a_layer_that_is_called_otherwise(tmp_path: Path) -> None:
    """Its output was computed from what was not golden's, and is blamed with that reserve."""

    def build(inside: str, shape: tuple[int, ...]) -> nn.Module:
        layer = Glue(lambda self, x, shift: x + shift.sum())
        return Glue(
            lambda self, x: self.get_submodule(inside)(x, torch.ones(shape)), **{inside: layer}
        )

    golden = captured(build("old", (3,)), tmp_path / "golden")
    out = captured(build("new", (4,)), tmp_path / "fed", feed=golden, force=True, map="old=new")
    (row,) = [row for row in ac.diff(golden, out, map="old=new").rows if row.place == "old output"]
    assert row.verdict.not_all_fed
    assert verdict_words.detail(row) == "not all that went in was fed"


# what does not fit


def test_weights_that_do_not_fit_are_refused_with_the_maps_to_give(
    golden: Path, tmp_path: Path
) -> None:
    message = rf"lacks: 'encoder\.0\.fc\.bias' .*; try --map '{MAP}', or --map auto".replace(
        ".*=", r"\.\*="
    ).replace("layers.*", r"layers\.\*")
    with pytest.raises(CaptureError, match=message):
        captured(new(), tmp_path / "out", like=golden)


def test_a_golden_that_cannot_feed_is_refused_with_the_maps_to_give(tmp_path: Path) -> None:
    model = old()
    golden = captured(model, tmp_path / "golden")
    candidate = new()
    candidate.model.layers, candidate.head = model.encoder, model.head
    with pytest.raises(
        UsageError,
        match=(
            r"golden has it, the model lacks it; try --map 'encoder\.\*=model\.layers\.\*', or"
            r" --map auto"
        ),
    ):
        captured(candidate, tmp_path / "out", feed=golden)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "decoder.*=model.layers.*",
            (
                r"map 'decoder\.\*=model\.layers\.\*' \(--map\): matches none of golden's layers"
                r" \(such as"
                r" encoder, encoder\.0, "
            ),
        ),
        (
            "encoder.*=blocks.*",
            (
                r"map 'encoder\.\*=blocks\.\*' \(--map\): leads to no layer that the model has"
                r" \('blocks',"
                r" for one\)"
            ),
        ),
        (
            ["encoder.*=model.layers.*", "head=model.layers"],
            r"'encoder' and 'head' of golden both become 'model\.layers'",
        ),
        ("abc", r"map 'abc' \(--map\): must be OLD=NEW"),
    ],
)
def test_a_map_that_nobody_can_mean_is_refused(
    given: Any, message: str, golden: Path, tmp_path: Path
) -> None:
    model = new()
    before = model.head.weight.clone()
    for source in ("like", "feed"):
        with pytest.raises(UsageError, match=message):
            captured(model, tmp_path / "out", **{source: golden}, map=given)
    assert torch.equal(model.head.weight, before)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "capture",
    [
        lambda out: captured(old(), out, map="a=b"),
        lambda out: capture_case("none.py", out, DeviceName("cpu"), CaptureOptions(map=["auto"])),
    ],
)
def test_a_map_without_a_bundle_to_rename_is_refused(
    capture: Callable[[Path], Any], tmp_path: Path
) -> None:
    with pytest.raises(
        UsageError,
        match=(
            "--map: renames the layers of the bundle that --like or --feed names; give one of them"
        ),
    ):
        capture(tmp_path / "out")


def test_auto_that_finds_nothing_leaves_the_error_that_there_is(
    golden: Path, tmp_path: Path
) -> None:
    model = Glue(lambda self, x: self.a(x), a=nn.Linear(4, 3))
    with pytest.raises(
        AccucompareError, match=r"has a parameter that the model lacks: .*is it the same model\?"
    ):
        captured(model, tmp_path / "out", like=golden, map="auto")


# arguments by position and by name


class Attention(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(
        self, hidden_states: torch.Tensor, position_embeddings: Any = None, mask: Any = None
    ) -> torch.Tensor:
        cos, sin = position_embeddings
        y: torch.Tensor = hidden_states * cos + sin * self.factor + mask
        return y


def by_position(self: Any, x: torch.Tensor) -> torch.Tensor:
    y: torch.Tensor = self.attention(x, (x + 1, x + 2), x * 0)
    return y


def by_name(self: Any, x: torch.Tensor) -> torch.Tensor:
    x = x + 0.5 if self.wrong else x
    y: torch.Tensor = self.attention(
        hidden_states=x, mask=x * 0, position_embeddings=(x + 1, x + 2)
    )
    return y


def calling(forward: Callable[..., Any], wrong: bool = False) -> nn.Module:
    model = Glue(forward, attention=Attention())
    model.wrong = wrong
    return model


@pytest.mark.parametrize(("first", "second"), [(by_position, by_name), (by_name, by_position)])
def test_an_argument_given_by_name_is_compared_with_the_one_given_by_position(
    first: Any, second: Any, tmp_path: Path
) -> None:
    golden, candidate = (
        captured(calling(first), tmp_path / "golden"),
        captured(calling(second), tmp_path / "candidate"),
    )
    comparison = ac.diff(golden, candidate)
    assert comparison.answer.value == "identical"
    pairs = {
        (row.golden.path, row.candidate.path)
        for row in comparison.rows
        if row.module == "attention" and row.golden and row.candidate
    }
    assert {tuple(sorted(pair)) for pair in pairs} == {
        ("", ""),
        ("0", "hidden_states"),
        ("1.0", "position_embeddings.0"),
        ("1.1", "position_embeddings.1"),
        ("2", "mask"),
    }


@pytest.mark.parametrize(("first", "second"), [(by_position, by_name), (by_name, by_position)])
def test_an_argument_given_by_name_is_fed_with_the_one_given_by_position(
    first: Any, second: Any, tmp_path: Path, opened: Opened
) -> None:
    golden = captured(calling(first), tmp_path / "golden")
    fed = opened(captured(calling(second, wrong=True), tmp_path / "fed", feed=golden, force=True))
    assert fed.manifest.capture["feed"]["not_fed"] == []
    comparison = ac.diff(golden, fed.path)
    if second is by_name:
        assert comparison.culprits[0].place == "(root) (glue, before attention)"
    assert all(
        row.reason.value == "identical"
        for row in comparison.rows
        if row.record.role.value == "output"
    )


def test_the_manifest_tells_the_positional_parameters_of_classes(
    tmp_path: Path, opened: Opened
) -> None:
    bundle: Bundle = opened(captured(calling(by_name), tmp_path / "golden"))
    assert bundle.manifest.model["signatures"] == {
        "Attention": ["hidden_states", "position_embeddings", "mask"]
    }


def test_classes_of_one_name_that_differ_tell_no_signature() -> None:
    other = type("Attention", (nn.Module,), {"forward": lambda self, x: x})
    assert name_modules(nn.ModuleList([Attention(), other()])).signatures().get("Attention") is None
