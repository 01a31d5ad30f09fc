"""A capture's options, its steps and its end; and that it leaves everything as a plain run
would."""

from __future__ import annotations

import copy
import io
import pickle
import random
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.errors import CaptureError, UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import recording
from tests.asked import grouped
from tests.recorded import Glue, Opened, Record, places


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(inplace=True), nn.Linear(6, 2))


def fails(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    raise ValueError("too hot")


# steps and options


def test_each_step_numbers_its_calls_anew(tmp_path: Path, opened: Opened) -> None:
    model = nn.Identity()
    with ac.capture(model, tmp_path / "out") as session:
        for value in (1.0, 2.0, 3.0):
            assert session.step_number == value - 1
            model(torch.full((1,), value))
            session.step()
    bundle = opened(tmp_path / "out")
    assert [bundle.load("", step=step).tolist() for step in range(3)] == [[1], [2], [3]]
    assert [(entry.step, entry.records, entry.partial) for entry in bundle.manifest.steps] == [
        (0, 2, False),
        (1, 2, False),
        (2, 2, False),
    ]


def test_a_finished_step_is_readable_while_the_capture_goes_on(tmp_path: Path) -> None:
    model = nn.Identity()
    with recording(model, tmp_path / "out", CaptureOptions(queue_bytes=1)) as session:
        model(torch.ones(1))
        session.step()
        for value in range(3):  # with a queue of one byte, each of these waits for all before it
            model(torch.full((1,), float(value)))
        with ac.open_bundle(tmp_path / "out") as bundle:
            assert bundle.load("").tolist() == [1]
            assert not bundle.complete


def test_what_follows_the_last_step_is_a_step_too(tmp_path: Path, opened: Opened) -> None:
    model = nn.Identity()
    with ac.capture(model, tmp_path / "out") as session:
        model(torch.ones(1))
        session.step()
        model(torch.ones(1))
    assert [entry.step for entry in opened(tmp_path / "out").manifest.steps] == [0, 1]


def test_a_step_in_which_nothing_ran_is_kept_empty(tmp_path: Path, opened: Opened) -> None:
    model = nn.Identity()
    with ac.capture(model, tmp_path / "out") as session:
        session.step()
        model(torch.ones(1))
        session.step()
    bundle = opened(tmp_path / "out")
    assert [entry.records for entry in bundle.manifest.steps] == [0, 2]
    assert {entry.step for entry in bundle.records()} == {1}
    assert np.load(tmp_path / "out" / "rank0" / "step0.npz").files == []


def test_a_capture_in_which_nothing_ran_has_no_steps(tmp_path: Path, opened: Opened) -> None:
    with ac.capture(nn.Identity(), tmp_path / "out"):
        pass
    bundle = opened(tmp_path / "out")
    assert (bundle.manifest.steps, bundle.manifest.model["not_called"]) == ([], [""])


def test_recording_stops_after_the_given_number_of_steps(tmp_path: Path, opened: Opened) -> None:
    model = nn.Identity()
    with ac.capture(model, tmp_path / "out", steps=2) as session:
        for _ in range(4):
            model(torch.ones(1))
            session.step()
    bundle = opened(tmp_path / "out")
    assert {entry.step for entry in bundle.records()} == {0, 1}
    assert bundle.complete


def test_only_records_the_layers_that_match_and_the_outermost_inputs(record: Record) -> None:
    bundle = record(net(), torch.randn(3, 4), options={"only": ["0", "3"]})
    assert places(bundle) == [
        "#0 input 0",
        "0#0 input 0",
        "0#0 output",
        "3#0 input 0",
        "3#0 output",
    ]
    assert bundle.manifest.capture["only"] == ["0", "3"]


def test_skip_leaves_layers_out(record: Record) -> None:
    bundle = record(net(), torch.randn(3, 4), options={"skip": "[0-2]"})
    assert places(bundle) == ["#0 input 0", "3#0 input 0", "3#0 output", "#0 output"]


def test_the_empty_glob_is_the_root(record: Record) -> None:
    assert places(record(net(), torch.randn(3, 4), options={"only": ""})) == [
        "#0 input 0",
        "#0 output",
    ]


@pytest.mark.parametrize(
    ("options", "given"),
    [({"only": "encoder.*"}, r"--only encoder\.\*"), ({"skip": ["*"]}, r"--skip \*")],
)
def test_a_selection_that_leaves_nothing_is_an_error_that_names_layers(
    options: dict[str, Any], given: str, tmp_path: Path
) -> None:
    told = rf"selection \({given}\) leaves no module to record; the model has 0, 1, 2"
    with (
        pytest.raises(UsageError, match=told),
        ac.capture(net(), tmp_path / "o", **grouped(**options)),
    ):
        pass
    assert not (tmp_path / "o").exists()


def test_parents_of_records_stay_true_when_layers_between_are_left_out(record: Record) -> None:
    bundle = record(nn.Sequential(nn.Sequential(nn.ReLU())), torch.ones(1), options={"only": "0.0"})
    assert {entry.parent for entry in bundle.records() if entry.name == "0.0"} == {("0", 0)}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "steps must be at least 1"),
        (
            {"mode": "all"},
            "mode must be one of 'tensors', 'sketch', 'stats', 'digest', but is 'all'",
        ),
    ],
)
def test_options_that_make_no_sense_are_refused(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with (
        pytest.raises(UsageError, match=message),
        ac.capture(net(), tmp_path / "out", **grouped(**options)),
    ):
        pass


def test_something_that_is_no_module_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match=r"model must be a torch\.nn.Module, but is a function"),
        ac.capture(net, tmp_path / "out"),
    ):  # type: ignore[arg-type]
        pass


def test_a_queue_of_one_byte_still_works(record: Record) -> None:
    model, x = net().eval(), torch.randn(3, 4)
    np.testing.assert_array_equal(
        record(model, x, options={"queue_bytes": 1}).load(""), model(x).detach().numpy()
    )


def test_an_earlier_bundle_is_kept_unless_overwriting(tmp_path: Path, opened: Opened) -> None:
    for _ in range(2):
        with ac.capture(nn.Identity(), tmp_path / "out", overwrite=True) as session:
            session.step()
    with (
        pytest.raises(CaptureError, match="already holds a bundle; overwrite it"),
        ac.capture(nn.Identity(), tmp_path / "out"),
    ):
        pass
    assert opened(tmp_path / "out").complete


def test_a_second_capture_into_a_directory_is_refused_while_the_first_goes_on(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Identity()
    with ac.capture(model, tmp_path / "out"):
        model(torch.ones(1))
        with (
            pytest.raises(CaptureError, match="another capture is writing to it"),
            ac.capture(nn.Identity(), tmp_path / "out", overwrite=True),
        ):
            pass
    bundle = opened(tmp_path / "out")
    assert (bundle.complete, bundle.load("").tolist()) == (True, [1])
    with ac.capture(model, tmp_path / "out", overwrite=True):
        pass


def test_overwriting_leaves_nothing_of_the_earlier_bundle(tmp_path: Path, opened: Opened) -> None:
    model = nn.Identity()
    for steps in (3, 1):
        with ac.capture(model, tmp_path / "out", overwrite=True, save_state=steps == 3) as session:
            for _ in range(steps):
                model(torch.ones(1))
                session.step()
    assert sorted(path.name for path in (tmp_path / "out" / "rank0").iterdir()) == [
        "step0.jsonl",
        "step0.npz",
    ]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_that_is_no_bundle_is_never_touched(overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    with (
        pytest.raises(CaptureError, match="holds no bundle, so it is not touched"),
        ac.capture(net(), tmp_path, overwrite=overwrite),
    ):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


# exceptions


def test_an_exception_in_the_model_keeps_the_bundle_names_the_module_and_is_raised_unchanged(
    tmp_path: Path, opened: Opened
) -> None:
    model = nn.Sequential(
        nn.Identity(), Glue(lambda self, x: self.inner(x), inner=Glue(fails)), nn.Identity()
    )
    with (  # noqa: PT012
        pytest.raises(ValueError, match=r"^too hot$") as raised,
        ac.capture(model, tmp_path / "out") as session,
    ):
        model[0](torch.ones(1))
        session.step()
        model(torch.ones(1))
    assert raised.value.__cause__ is None
    bundle = opened(tmp_path / "out")
    assert not bundle.complete
    assert bundle.manifest.stopped == {
        "step": 1,
        "module": "1.inner",
        "error": "ValueError: too hot",
    }
    assert [(entry.step, entry.partial) for entry in bundle.manifest.steps] == [
        (0, False),
        (1, True),
    ]
    assert bundle.load("0", step=1).tolist() == [1]
    assert all(
        not module._forward_hooks and not module._forward_pre_hooks for module in model.modules()
    )


def test_an_exception_between_calls_blames_no_module(tmp_path: Path, opened: Opened) -> None:
    model = nn.Identity()
    with pytest.raises(KeyError), ac.capture(model, tmp_path / "out"):  # noqa: PT012
        model(torch.ones(1))
        raise KeyError("loader")
    assert opened(tmp_path / "out").manifest.stopped == {
        "step": 0,
        "module": None,
        "error": "KeyError: 'loader'",
    }


def test_an_exception_that_the_model_caught_is_not_blamed_for_a_later_one(
    tmp_path: Path, opened: Opened
) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.child(x)
        except ValueError:
            return x

    model = Glue(forward, child=Glue(fails))
    with pytest.raises(KeyError), ac.capture(model, tmp_path / "out"):  # noqa: PT012
        model(torch.ones(1))
        raise KeyError("loader")
    assert opened(tmp_path / "out").manifest.stopped["module"] is None


def test_an_interrupt_inside_the_model_keeps_the_bundle_and_names_the_module(
    tmp_path: Path, opened: Opened
) -> None:
    def interrupted(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    model = nn.Sequential(nn.Identity(), Glue(interrupted))
    with pytest.raises(KeyboardInterrupt), ac.capture(model, tmp_path / "out"):
        model(torch.ones(1))
    assert opened(tmp_path / "out").manifest.stopped == {
        "step": 0,
        "module": "1",
        "error": "interrupted",
    }
    assert not model[0]._forward_hooks


def test_the_models_exception_matters_more_than_our_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accucompare.recorder.recording.making.to_host", lambda *_: 1 / 0)
    model = nn.Sequential(nn.Identity(), Glue(fails))
    with warnings.catch_warnings(), pytest.raises(ValueError, match="too hot"):  # noqa: PT012
        warnings.simplefilter("error")
        with ac.capture(model, tmp_path / "out"):
            model(torch.ones(1))


def test_an_exception_while_the_capture_is_set_up_leaves_no_hooks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = net()
    installed: list[nn.Module] = []
    register = nn.Module.register_forward_hook

    def third_time_unlucky(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        installed.append(self)
        if len(installed) == 3:
            raise RuntimeError("no more hooks")
        return register(self, *args, **kwargs)

    monkeypatch.setattr(nn.Module, "register_forward_hook", third_time_unlucky)
    with pytest.raises(RuntimeError, match="no more hooks"), ac.capture(model, tmp_path / "out"):
        pass
    assert all(
        not module._forward_hooks and not module._forward_pre_hooks for module in model.modules()
    )
    assert not included_keys()


# as a plain run would leave it


def included_keys() -> bool:
    """Whether our dispatch key is switched on in this thread."""
    key = torch._C._parse_dispatch_key("TESTING_ONLY_GenericMode")
    return bool(torch._C._dispatch_tls_is_dispatch_key_included(key))


def train_step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output: torch.Tensor = model(x)
    output.square().mean().backward()
    return output


def random_states() -> list[Any]:
    return [torch.get_rng_state().tolist(), random.getstate(), pickle.dumps(np.random.get_state())]


MODELS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "batch norm": lambda: (net(), torch.randn(5, 4)),
    "spectral norm": lambda: (
        nn.utils.parametrizations.spectral_norm(nn.Linear(4, 3)),
        torch.randn(2, 4),
    ),
    "frozen": lambda: (net().requires_grad_(False).append(nn.Linear(2, 2)), torch.randn(5, 4)),
    "eval": lambda: (net().eval(), torch.randn(5, 4)),
    "checkpoint": lambda: (
        Glue(lambda self, x: checkpoint(self.block, x, use_reentrant=False), block=net()),
        torch.randn(5, 4),
    ),
}


@pytest.mark.parametrize("kind", MODELS)
def test_outputs_gradients_buffers_and_modes_equal_a_plain_runs_bit_for_bit(
    kind: str, tmp_path: Path
) -> None:
    model, x = MODELS[kind]()
    plain = copy.deepcopy(model)
    modes = [module.training for module in model.modules()]
    with ac.capture(model, tmp_path / "out"):
        result = train_step(model, x)
    assert torch.equal(result, train_step(plain, x))
    assert model.state_dict().keys() == plain.state_dict().keys()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    for (name, ours), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert ours.requires_grad == theirs.requires_grad
        assert (ours.grad is None) == (theirs.grad is None)
        if ours.grad is not None:
            assert torch.equal(ours.grad, theirs.grad), name
    assert [module.training for module in model.modules()] == modes


RANDOM_MODELS: dict[str, Callable[[], nn.Module]] = {
    "nothing random": net,
    "dropout": lambda: nn.Sequential(
        nn.Linear(4, 6), nn.Dropout(0.5), nn.Dropout1d(0.5), nn.AlphaDropout(0.1)
    ),
    "attention dropout": lambda: Glue(
        lambda self, x: (
            nn.functional.scaled_dot_product_attention(x[None], x[None], x[None], dropout_p=0.3)
            * self.w(x)
        ),
        w=nn.Linear(4, 1),
    ),
    "drawing": lambda: Glue(
        lambda self, x: (
            self.w(x)
            + torch.rand(1)
            + torch.randn(7).sum()
            + torch.randint(3, (1,))
            + torch.randperm(5)[0]
        ),
        w=nn.Linear(4, 1),
    ),
    "sampling": lambda: Glue(
        lambda self, x: (
            self.w(x)
            + torch.multinomial(torch.ones(9), 3)[0]
            + torch.poisson(torch.ones(2))[0]
            + torch.normal(torch.ones(1))
        ),
        w=nn.Linear(4, 1),
    ),
    "lstm": lambda: Glue(lambda self, x: self.lstm(x[None])[0], lstm=nn.LSTM(4, 4, 2, dropout=0.5)),
    "rrelu": lambda: nn.Sequential(nn.Linear(4, 6), nn.RReLU()),
}


@pytest.mark.parametrize("fails_inside", [False, True], ids=["runs", "raises"])
@pytest.mark.parametrize("kind", RANDOM_MODELS)
def test_the_global_random_states_are_left_as_a_plain_run_leaves_them(
    kind: str, fails_inside: bool, tmp_path: Path
) -> None:
    model = nn.Sequential(RANDOM_MODELS[kind](), Glue(fails) if fails_inside else nn.Identity())
    x = torch.randn(6, 4)
    after = []
    for capturing in (False, True):
        torch.manual_seed(5)
        random.seed(5)
        np.random.seed(5)
        try:
            if capturing:
                with ac.capture(model, tmp_path / "out"):
                    train_step(model, x)
            else:
                train_step(model, x)
        except ValueError:
            assert fails_inside
        after.append(random_states())
    assert after[0] == after[1]


def test_user_hooks_are_still_there_in_order(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    order: list[int] = []
    for number in range(3):
        model.register_forward_hook(
            lambda *_, number=number: order.append(number), prepend=number == 2
        )
    before = list(model._forward_hooks.items())
    with ac.capture(model, tmp_path / "out"):
        model(torch.ones(2))
    model(torch.ones(2))
    assert order == [2, 0, 1, 2, 0, 1]
    assert list(model._forward_hooks.items()) == before


@pytest.mark.parametrize("fails_inside", [False, True], ids=["runs", "raises"])
def test_no_hook_of_ours_is_left(fails_inside: bool, tmp_path: Path) -> None:
    model = nn.Sequential(net().eval(), Glue(fails) if fails_inside else nn.Identity())
    names = [name for name in vars(model) if "hook" in name]
    assert len(names) > 5
    try:
        with ac.capture(model, tmp_path / "out"):
            model(torch.randn(3, 4))
    except ValueError:
        assert fails_inside
    for module in model.modules():
        assert not any(getattr(module, name) for name in names)
    assert not included_keys()
    copied = pickle.loads(pickle.dumps(copy.deepcopy(model[0])))
    torch.save(model[0], io.BytesIO())
    assert copied(torch.ones(1, 4)).shape == (1, 2)


def test_grad_mode_inference_mode_and_dispatch_keys_are_restored(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for mode in (torch.no_grad, torch.enable_grad, torch.inference_mode):
        with mode():
            before = (torch.is_grad_enabled(), torch.is_inference_mode_enabled())
            with ac.capture(model, tmp_path / "out", overwrite=True):
                assert included_keys()
                model(torch.ones(2))
                assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
            assert (torch.is_grad_enabled(), torch.is_inference_mode_enabled()) == before
        assert not included_keys()


def test_a_gradient_flows_through_recorded_tensors_as_ever(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    x = torch.randn(2, 3, requires_grad=True)
    (expected,) = torch.autograd.grad(model(x).sum(), x)
    with ac.capture(model, tmp_path / "out"):
        (found,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(found, expected)


def test_two_captures_of_one_model_may_be_nested(tmp_path: Path, opened: Opened) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), torch.ones(3, 2)
    with ac.capture(model, tmp_path / "outer"):
        with ac.capture(model, tmp_path / "inner"):
            model(x)
        model(x)
    inner, outer = opened(tmp_path / "inner"), opened(tmp_path / "outer")
    assert places(inner, "0") == ["0#0 input 0", "0#0 output"]
    assert places(outer, "0") == ["0#0 input 0", "0#0 output", "0#1 input 0", "0#1 output"]


def test_hooks_of_a_finished_capture_copy_nothing_even_on_a_shallow_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = nn.Sequential(nn.Identity())
    with ac.capture(model, tmp_path / "out"):
        replica = model._replicate_for_data_parallel()
        replica._forward_hooks = replica._forward_hooks.copy()
    copied: list[Any] = []
    monkeypatch.setattr(
        "accucompare.recorder.recording.making.to_host", lambda *arguments: copied.append(arguments)
    )
    replica(torch.ones(1))
    assert copied == []
