"""What is recorded of a running model, and when."""

from __future__ import annotations

import copy
import io
import pickle
import threading
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.bundle.format.records import Layout
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.live.modules import hooks as calls
from accucompare.live.values.tensors import to_host
from accucompare.recorder.recording import making
from accucompare.recorder.recording import recorder as hooks
from tests.recorded import Glue, Opened, Record, places


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(3, 4)
        self.act = nn.ReLU()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.up(x))


def test_every_call_is_recorded_with_its_inputs_and_outputs_leaf_and_container(
    record: Record,
) -> None:
    bundle = record(nn.Sequential(Block(), nn.Linear(4, 2)), torch.ones(2, 3))
    assert places(bundle) == [
        "#0 input 0",
        "0#0 input 0",
        "0.up#0 input 0",
        "0.up#0 output",
        "0.act#0 input 0",
        "0.act#0 output",
        "0#0 output",
        "1#0 input 0",
        "1#0 output",
        "#0 output",
    ]


def test_records_carry_their_order_their_type_and_the_call_they_were_made_in(
    record: Record,
) -> None:
    records = list(record(nn.Sequential(Block()), torch.ones(2, 3)).records())
    assert [entry.order for entry in records] == list(range(len(records)))
    assert {(entry.name, entry.type, entry.parent) for entry in records} == {
        ("", "Sequential", None),
        ("0", "Block", ("", 0)),
        ("0.up", "Linear", ("0", 0)),
        ("0.act", "ReLU", ("0", 0)),
    }


def test_values_are_those_of_the_run(record: Record) -> None:
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    bundle = record(model, x)
    np.testing.assert_array_equal(bundle.load("", role="input"), x.numpy())
    np.testing.assert_array_equal(bundle.load(""), model(x).detach().numpy())


def test_keyword_arguments_are_recorded_under_their_names(record: Record) -> None:
    bundle = record(
        Glue(lambda self, *, hidden, mask: hidden * mask), hidden=torch.ones(2), mask=torch.zeros(2)
    )
    assert places(bundle) == ["#0 input hidden", "#0 input mask", "#0 output"]


def test_positional_and_keyword_arguments_cannot_be_confused(record: Record) -> None:
    bundle = record(Glue(lambda self, x, **rest: x), torch.ones(1), **{"0": torch.zeros(1)})
    assert bundle.load("", role="input", path="0") == 1
    assert bundle.load("", role="input", path="['0']") == 0


@dataclass
class Features:
    hidden: torch.Tensor
    extra: Any = None


Pair = namedtuple("Pair", "left right")


def test_nested_values_are_taken_apart(record: Record) -> None:
    from transformers.modeling_outputs import BaseModelOutput

    def forward(self: nn.Module, value: Any) -> Any:
        return BaseModelOutput(
            last_hidden_state=value["f"].hidden, hidden_states=(value["p"].left, value["p"].right)
        )

    t = torch.ones(1)
    bundle = record(
        Glue(forward), {"f": Features(t, [t + 1, {"deep": t + 2}]), "p": Pair(t + 3, t + 4)}
    )
    assert places(bundle) == [
        "#0 input 0.f.hidden",
        "#0 input 0.f.extra.0",
        "#0 input 0.f.extra.1.deep",
        "#0 input 0.p.left",
        "#0 input 0.p.right",
        "#0 output last_hidden_state",
        "#0 output hidden_states.0",
        "#0 output hidden_states.1",
    ]
    assert bundle.load("", role="input", path="0.f.extra.1.deep") == 3


def test_none_gives_no_record_and_a_module_may_return_it(record: Record) -> None:
    bundle = record(
        Glue(lambda self, x, y: self.child(x), child=Glue(lambda self, x: None)),
        torch.ones(1),
        None,
    )
    assert places(bundle) == ["#0 input 0", "child#0 input 0"]
    assert bundle.complete


def test_numbers_are_recorded_as_arrays_of_no_dimension(record: Record) -> None:
    bundle = record(Glue(lambda self: {"i": 3, "f": 0.1, "b": True, "c": 1j}))
    records = {entry.path: entry for entry in bundle.records()}
    assert {path: (entry.dtype, entry.shape, entry.layout) for path, entry in records.items()} == {
        "i": ("int64", (), Layout.SCALAR),
        "f": ("float64", (), Layout.SCALAR),
        "b": ("bool", (), Layout.SCALAR),
        "c": ("complex128", (), Layout.SCALAR),
    }
    assert bundle.load("", path="f")[()] == 0.1


def test_strings_can_be_compared_and_opaque_objects_are_listed(record: Record) -> None:
    class Cache:
        pass

    same, other = (
        record(Glue(lambda self, word=word: (word, Cache(), {1, 2}, 10**30)))
        for word in ("left", "right")
    )
    first, cache, group, huge = same.records()
    assert (first.layout, first.detail) == (Layout.OPAQUE, "str 'left'")
    assert first.digest != next(iter(other.records())).digest
    assert cache.detail.endswith("Cache")
    assert group.detail == "{1, 2}"
    assert (huge.detail, huge.digest is None) == ("int of 100 bits", False)
    assert {entry.member for entry in (first, cache, group, huge)} == {None}


def test_a_generator_is_listed_and_not_used_up(record: Record) -> None:
    outer = Glue(
        lambda self: torch.stack(list(self.inner())),
        inner=Glue(lambda self: (torch.ones(1) * i for i in range(3))),
    )
    bundle = record(outer)
    assert bundle.load("").tolist() == [[0], [1], [2]]
    assert next(entry for entry in bundle.records() if entry.name == "inner").detail == "generator"


def test_an_output_is_kept_although_the_next_module_overwrites_it(record: Record) -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(inplace=True))
    x = torch.randn(1, 1, 6, 6)
    before = model[0](x).detach().numpy()
    assert (before < 0).any()
    bundle = record(model, x)
    np.testing.assert_array_equal(bundle.load("0"), before)
    np.testing.assert_array_equal(bundle.load("1"), before.clip(0))


def test_the_input_of_a_module_that_works_in_place_is_as_it_was(record: Record) -> None:
    bundle = record(nn.ReLU(inplace=True), torch.tensor([-1.0, 2.0]))
    assert bundle.load("", role="input").tolist() == [-1, 2]
    assert bundle.load("").tolist() == [0, 2]


def test_an_operation_in_place_after_the_hook_changes_nothing_recorded(record: Record) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y = self.fc(x)
        y += 100
        return y

    bundle = record(Glue(forward, fc=nn.Identity()), torch.ones(2))
    assert bundle.load("fc").tolist() == [1, 1]
    assert bundle.load("").tolist() == [101, 101]


def test_a_view_is_recorded_by_its_own_values(record: Record) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    bundle = record(Glue(lambda self, x: (x.T, x[1:, ::2])), base)
    np.testing.assert_array_equal(bundle.load("", path="0"), base.T)
    np.testing.assert_array_equal(bundle.load("", path="1"), base[1:, ::2])


def test_a_module_called_twice_is_numbered_in_forward_order(record: Record) -> None:
    bundle = record(
        Glue(lambda self, x: self.norm(self.norm(x) * 3), norm=nn.Identity()), torch.ones(1)
    )
    assert [bundle.load("norm", call=call).tolist() for call in (0, 1)] == [[1], [3]]


def test_a_shared_module_has_its_first_name_and_the_other_as_alias(record: Record) -> None:
    shared = nn.Identity()
    bundle = record(Glue(lambda self, x: self.a(self.b(x)), a=shared, b=shared), torch.ones(1))
    assert bundle.manifest.model["aliases"] == {"b": "a"}
    assert places(bundle, "b") == []
    assert places(bundle, "a") == ["a#0 input 0", "a#0 output", "a#1 input 0", "a#1 output"]


def test_a_module_that_only_holds_others_is_not_listed_as_never_called(record: Record) -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(1))

    model = Glue(
        lambda self, x: self.blocks[0](x) * self.table.weight,
        blocks=nn.ModuleList([nn.ReLU(), nn.Tanh()]),
        table=Table(),
    )
    assert record(model, torch.ones(1)).manifest.model["not_called"] == ["blocks.1", "table"]


def test_a_module_never_called_is_listed(record: Record) -> None:
    bundle = record(
        Glue(lambda self, x: self.used(x), used=nn.ReLU(), idle=nn.Sequential(nn.Tanh())),
        torch.ones(1),
    )
    assert bundle.manifest.model["not_called"] == ["idle", "idle.0"]


def test_calls_inside_a_recursive_module_have_the_right_parents(record: Record) -> None:
    def forward(self: nn.Module, x: torch.Tensor, depth: int) -> torch.Tensor:
        return x if depth == 0 else self(x * 2, depth - 1)

    bundle = record(Glue(forward), torch.ones(1), 2)
    parents = {entry.call: entry.parent for entry in bundle.records()}
    assert parents == {0: None, 1: ("", 0), 2: ("", 1)}
    assert [bundle.load("", call=call).tolist() for call in (0, 1, 2)] == [[4], [4], [4]]


def fails(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
    raise ValueError("too hot")


def test_an_exception_that_the_model_catches_leaves_the_parents_of_later_calls_right(
    record: Record,
) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            return self.bad(x)
        except ValueError:
            return self.good(x)

    inner = Glue(lambda self, x: self.leaf(x), leaf=Glue(fails))
    bundle = record(Glue(forward, bad=inner, good=nn.Identity()), torch.ones(1))
    assert bundle.complete
    assert {entry.name: entry.parent for entry in bundle.records()} == {
        "": None,
        "bad": ("", 0),
        "bad.leaf": ("bad", 0),
        "good": ("", 0),
    }
    assert "bad#0 output" not in places(bundle)


def test_a_call_inside_an_exception_handler_is_recorded(record: Record) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        try:
            raise KeyError
        except KeyError:
            return self.child(x)

    assert "child#0 output" in places(record(Glue(forward, child=nn.Identity()), torch.ones(1)))


def test_a_loop_that_catches_the_models_exception_goes_on_with_outermost_calls(
    tmp_path: Path,
) -> None:
    model = Glue(lambda self, x, bad: fails(self, x) if bad else x)
    with ac.capture(model, tmp_path / "out"):
        with pytest.raises(ValueError, match="too hot"):
            model(torch.ones(1), True)
        model(torch.ones(1), False)
    bundle = ac.open_bundle(tmp_path / "out")
    assert bundle.complete
    assert {entry.parent for entry in bundle.records()} == {None}
    assert "0" in bundle.manifest.inputs["0"]


@pytest.mark.parametrize("broken", ["to_host", "leaves"])
def test_an_exception_in_our_hook_is_noted_and_never_changes_the_models_result(
    broken: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU(inplace=True)), torch.randn(3, 2)
    expected = model(x)

    def explode(*_: Any) -> Any:
        raise RuntimeError("our own bug")

    for module in (hooks, making, calls):
        monkeypatch.setattr(module, broken, explode, raising=False)
    with ac.capture(model, tmp_path / "out"):
        result = model(x)
    told = [
        record.name
        for record in caplog.records
        if "could not record 6 module call" in record.message
    ]
    assert told == ["accucompare.recorder.session.session"]
    assert torch.equal(result, expected)
    bundle = ac.open_bundle(tmp_path / "out")
    assert not bundle.complete
    assert any("our own bug" in note for note in bundle.manifest.notes)
    assert "could not be recorded" in bundle.manifest.stopped["error"]


def test_the_writers_failure_never_changes_the_models_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = nn.Linear(2, 2), torch.randn(3, 2)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device", "step0.npz")

    monkeypatch.setattr("accucompare.bundle.writing.archive_writer.ArchiveWriter.add", full)
    results = []
    with (  # noqa: PT012
        pytest.raises(ac.AccucompareError, match="No space left"),
        ac.capture(model, tmp_path / "out") as session,
    ):
        results += [model(x), model(x)]
        session.step()
    assert torch.equal(results[0], model(x))
    assert not model._forward_hooks


@pytest.mark.parametrize("reentrant", [False, True])
def test_the_recomputation_of_a_checkpoint_is_not_recorded_again(
    reentrant: bool, tmp_path: Path
) -> None:
    block = nn.Sequential(nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2))
    model = Glue(lambda self, x: checkpoint(self.block, x, use_reentrant=reentrant), block=block)
    calls: list[str] = []
    block[0].register_forward_hook(lambda *_: calls.append("ran"))
    with ac.capture(model, tmp_path / "out", record=ac.Recorded(roles="forward")):
        model(torch.randn(3, 2, requires_grad=True)).sum().backward()
    assert calls == ["ran", "ran"]  # it did run again
    assert places(ac.open_bundle(tmp_path / "out"), "block.0") == [
        "block.0#0 input 0",
        "block.0#0 output",
    ]


def test_a_forward_after_a_backward_is_recorded(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    with ac.capture(model, tmp_path / "out", record=ac.Recorded(roles="forward")):
        model(torch.ones(2)).sum().backward()
        model(torch.ones(2))
    assert places(ac.open_bundle(tmp_path / "out")) == [
        "#0 input 0",
        "#0 output",
        "#1 input 0",
        "#1 output",
    ]


def test_inference_mode(record: Record) -> None:
    model, x = Block(), torch.randn(2, 3)
    with torch.inference_mode():
        bundle = record(model, x)
    np.testing.assert_array_equal(bundle.load("up"), model.up(x).detach().numpy())
    assert bundle.complete


def test_autocast_outputs_keep_their_dtype_and_the_manifest_names_it(record: Record) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bundle = record(nn.Linear(3, 2), torch.randn(2, 3))
    assert bundle.find("").dtype == "bfloat16"
    assert bundle.find("", role="input").dtype == "float32"
    assert bundle.manifest.environment["autocast"] == {"device": "cpu", "dtype": "bfloat16"}


def test_a_model_without_arguments_under_autocast_has_it_in_the_manifest(record: Record) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bundle = record(Glue(lambda self: torch.ones(2)))
    assert bundle.manifest.environment["autocast"] == {"device": "cpu", "dtype": "bfloat16"}


def test_without_autocast_the_manifest_says_so(record: Record) -> None:
    assert record(nn.ReLU(), torch.ones(1)).manifest.environment["autocast"] is None


def test_a_model_that_moves_its_own_tensors(record: Record) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x.to("meta")).to(torch.float64).new_ones(2, device="cpu"))

    bundle = record(Glue(forward, first=nn.Identity(), second=nn.Identity()), torch.ones(2))
    assert bundle.find("first").layout is Layout.META
    assert bundle.load("second").dtype == np.float64


def test_lstm_attention_and_transformer_layers(record: Record) -> None:
    def forward(self: nn.Module, x: torch.Tensor) -> torch.Tensor:
        y, (h, _) = self.lstm(x)
        return self.layer(self.attention(y, y, y)[0]) + h[-1][:, None]

    model = Glue(
        forward,
        lstm=nn.LSTM(8, 8, batch_first=True),
        attention=nn.MultiheadAttention(8, 2, batch_first=True),
        layer=nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    ).eval()
    x = torch.randn(2, 5, 8)
    expected = model(x)
    bundle = record(model, x)
    assert places(bundle, "lstm") == [
        "lstm#0 input 0",
        "lstm#0 output 0",
        "lstm#0 output 1.0",
        "lstm#0 output 1.1",
    ]
    assert places(bundle, "attention")[-2:] == ["attention#0 output 0", "attention#0 output 1"]
    assert "layer.linear1#0 output" in places(bundle)
    assert any("TransformerEncoderLayer" in note for note in bundle.manifest.notes)
    np.testing.assert_allclose(bundle.load(""), expected.detach().numpy(), atol=1e-5)
    assert "attention.out_proj" in bundle.manifest.model["not_called"]


def test_parametrizations(record: Record) -> None:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    bundle = record(model, torch.randn(4, 3))
    assert "parametrizations.weight.0#0 output" in places(bundle)
    assert bundle.complete


def test_a_packed_sequence_is_taken_apart(record: Record) -> None:
    packed = nn.utils.rnn.pack_sequence([torch.randn(3, 2), torch.randn(1, 2)])
    bundle = record(nn.GRU(2, 2), packed)
    assert places(bundle)[:2] == ["#0 input 0.data", "#0 input 0.batch_sizes"]


def test_a_lazy_module(record: Record) -> None:
    bundle = record(nn.Sequential(nn.LazyLinear(3)), torch.randn(2, 5))
    assert bundle.load("0").shape == (2, 3)
    assert bundle.complete


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_traced_module_is_recorded_from_outside_and_noted(record: Record) -> None:
    model = Glue(lambda self, x: self.traced(x), traced=torch.jit.trace(Block(), torch.ones(2, 3)))
    bundle = record(model, torch.ones(2, 3))
    assert "traced#0 output" in places(bundle)
    assert any("scripted or traced" in note for note in bundle.manifest.notes)


def test_two_threads_record_without_mixing_up_their_calls(tmp_path: Path, opened: Opened) -> None:
    model = nn.Sequential(Block(), nn.Linear(4, 2))
    results: dict[int, torch.Tensor] = {}
    gate = threading.Barrier(2)

    def run(number: int) -> None:
        gate.wait()
        results[number] = model(torch.full((2, 3), float(number)))

    with ac.capture(model, tmp_path / "out"):
        threads = [threading.Thread(target=run, args=(number,)) for number in (1, 2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    bundle = opened(tmp_path / "out")
    assert bundle.complete
    calls = {
        float(bundle.load("", call=call, role="input")[0, 0]): bundle.load("", call=call)
        for call in (0, 1)
    }
    for number, result in results.items():
        np.testing.assert_array_equal(calls[number], result.detach().numpy())
    assert {entry.parent[0] for entry in bundle.records() if entry.name == "0.up"} == {"0"}


def test_one_thread_records_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Identity(), nn.Identity())
    inside: set[int] = set()
    together: list[set[int]] = []
    another = threading.Event()

    def watched(value: Any, writer: BundleWriter, *how: Any) -> Any:
        inside.add(threading.get_ident())
        if len(inside) > 1:
            together.append(set(inside))
            another.set()
        another.wait(0.01)  # long enough for another thread to come in, if it could
        inside.discard(threading.get_ident())
        return to_host(value, writer, *how)

    monkeypatch.setattr(making, "to_host", watched)
    with ac.capture(model, tmp_path / "out"):
        threads = [threading.Thread(target=model, args=(torch.ones(1),)) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert together == []


def test_a_copy_or_pickle_made_during_a_capture_records_nothing(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    with ac.capture(model, tmp_path / "out"):
        twins = [copy.deepcopy(model), pickle.loads(pickle.dumps(model))]
        torch.save(model, io.BytesIO())
        for twin in twins:
            twin(torch.ones(1, 2))
        model(torch.ones(1, 2))
    assert places(ac.open_bundle(tmp_path / "out"), "0") == ["0#0 input 0", "0#0 output"]


def test_a_users_hook_that_replaces_the_output_runs_before_ours(record: Record) -> None:
    model = nn.Identity()
    model.register_forward_hook(lambda module, args, output: output * 5)
    model.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    bundle = record(model, torch.ones(1))
    assert bundle.load("", role="input").tolist() == [2]
    assert bundle.load("").tolist() == [10]


def test_a_list_that_contains_itself_is_listed_once(record: Record) -> None:
    loop: list[Any] = [torch.ones(1)]
    loop.append(loop)
    bundle = record(Glue(lambda self, x: x[0]), loop)
    assert places(bundle) == ["#0 input 0.0", "#0 input 0.1", "#0 output"]
    assert bundle.complete


def test_only_what_a_step_begins_with_counts_as_its_inputs(tmp_path: Path) -> None:
    model = Glue(lambda self, x: x, first=nn.Linear(2, 2), second=nn.Linear(2, 2))
    with ac.capture(model, tmp_path / "out") as session:
        for _ in range(2):
            # the second is given what the first computed
            model.second(model.first(torch.ones(1, 2)))
            session.step()
    assert {
        step: list(inputs)
        for step, inputs in ac.open_bundle(tmp_path / "out").manifest.inputs.items()
    } == {"0": ["first.0"], "1": ["first.0"]}


def test_the_inputs_of_a_model_with_a_buffer_of_its_own_are_in_the_manifest(record: Record) -> None:
    """They tell whether both sides were given the same."""
    model = nn.Linear(2, 2)
    model.register_buffer("table", torch.ones(2), persistent=False)
    assert set(record(model, torch.ones(1, 2)).manifest.inputs["0"]) == {"0"}


def test_a_hook_that_is_put_on_inside_a_capture_is_seen(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    for name in ("golden", "candidate"):
        with ac.capture(model, tmp_path / name), torch.no_grad():
            if name == "candidate":
                model.register_forward_hook(lambda module, given, made: made * 1.5)
            model(torch.ones(1, 2))
    assert ac.diff(tmp_path / "golden", tmp_path / "candidate").exit_code == 1
