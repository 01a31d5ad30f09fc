"""The fed capture: who is given what, what is recorded of it, and what is refused."""

from __future__ import annotations

import contextlib
import copy
import shutil
from collections import UserDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.utils.checkpoint import checkpoint

import accucompare as ac
from accucompare.bundle.format import Role
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.rows.rows import Reason
from accucompare.devices import DeviceName
from accucompare.errors import AccucompareError, CaptureError, RecordError, UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from tests.asked import grouped
from tests.combinations import once
from tests.compare.builder import edit_manifest
from tests.conftest import ROOT, Run, has_lstm_in_bfloat16
from tests.recorded import Glue, Opened

CPU = DeviceName("cpu")
OPAQUE = "which cannot be looked into"
FeedInto = Callable[..., Bundle]


@pytest.fixture
def feed_into(tmp_path: Path, opened: Opened) -> FeedInto:
    """``feed_into(candidate, x, of=model)`` captures golden of a model (of the candidate itself),
    feeds a candidate, and opens that.
    """

    def run(
        candidate: nn.Module,
        *args: Any,
        of: nn.Module | None = None,
        golden_args: Any = None,
        **options: Any,
    ) -> Bundle:
        of = copy.deepcopy(candidate) if of is None else of
        with ac.capture(of, tmp_path / "golden", overwrite=True), torch.no_grad():
            of(*copy.deepcopy(args if golden_args is None else golden_args))
        with ac.capture(
            candidate,
            tmp_path / "fed",
            **grouped(feed=tmp_path / "golden", overwrite=True, force=True, **options),
        ):
            candidate(*copy.deepcopy(args))
        return opened(tmp_path / "fed")

    return run


def different(golden: Bundle, fed: Bundle) -> list[str]:
    """The records of either bundle that the other has not with the same bits, as ``name#call role
    path``.
    """
    sides = [
        {record.key: (record.dtype, record.shape, record.digest) for record in bundle.records()}
        for bundle in (golden, fed)
    ]
    keys = [key for key in sides[0] | sides[1] if sides[0].get(key) != sides[1].get(key)]
    return [f"{key.name}#{key.call} {key.role.value} {key.path}".rstrip() for key in keys]


def not_fed(bundle: Bundle) -> list[str]:
    return [
        f"{value['name']} {value['role']} {value['path']}: {value['why']}"
        for value in bundle.manifest.capture["feed"]["not_fed"]
    ]


class Scale(nn.Module):
    def __init__(self, factor: float = 1.0) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


def net(*factors: float) -> nn.Module:
    return Glue(lambda self, x: self.b(self.a(x) + 1) + x, a=Scale(factors[0]), b=Scale(factors[1]))


def test_what_torch_func_leaves_plain_stays_plain(tmp_path: Path, feed_into: FeedInto) -> None:
    def forward(self: Any, x: torch.Tensor) -> dict[str, torch.Tensor]:
        def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
            found: torch.Tensor = torch.func.functional_call(self.inner, weights, (x,))
            return found.sum()

        weights = {name: each.detach() for name, each in self.inner.named_parameters()}
        return torch.func.grad(loss)(weights)

    feed_into(Glue(forward, inner=nn.Sequential(nn.Linear(3, 3), nn.Tanh())), torch.randn(2, 3))
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").exit_code == 0


# --- models ---


def _language(kind: str, **options: Any) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    def build() -> tuple[nn.Module, dict[str, Any]]:
        sizes = {
            "vocab_size": 97,
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
        }
        config = getattr(transformers, f"{kind}Config")(**{**sizes, **options})
        mask = torch.tensor([[1] * 12, [0] * 4 + [1] * 8])
        model = getattr(
            transformers, f"{kind}{'Model' if kind in ('Bert', 'DebertaV2') else 'ForCausalLM'}"
        )(config).eval()
        return model, {"input_ids": torch.randint(1, 97, (2, 12)), "attention_mask": mask}

    return build


def _encoder_decoder(kind: str, **options: Any) -> Callable[[], tuple[nn.Module, dict[str, Any]]]:
    def build() -> tuple[nn.Module, dict[str, Any]]:
        config = getattr(transformers, f"{kind}Config")(vocab_size=97, d_model=32, **options)
        heard = (
            {"input_features": torch.randn(2, 8, 32)}
            if kind == "Whisper"
            else {"input_ids": torch.randint(1, 97, (2, 12))}
        )
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config).eval()
        return model, {**heard, "decoder_input_ids": torch.randint(3, 97, (2, 5))}

    return build


def _resnet() -> tuple[nn.Module, dict[str, Any]]:
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"
    )
    return transformers.ResNetModel(config).train(), {"pixel_values": torch.randn(2, 3, 32, 32)}


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 8, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        hidden, state = self.lstm(x)
        return self.lstm(hidden, state)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(16, 4, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        own, _ = self.attention(x, x, x)
        crossed, _ = self.attention(own, x, x, need_weights=False)
        out: torch.Tensor = self.layer(crossed)
        return out


class InPlace(nn.Module):
    """Writes into what its caller keeps, and ignores what is returned; holds its values in another
    order than their shape's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.relu = nn.ReLU(inplace=True)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.conv(x.contiguous(memory_format=torch.channels_last))
        self.relu(x)
        y: torch.Tensor = self.norm(x)
        y += x
        self.relu(y[:, 1:3])
        return y


MODELS: dict[str, Callable[[], tuple[nn.Module, dict[str, Any]]]] = {
    "llama": _language("Llama", num_key_value_heads=2),
    "mixtral": _language(
        "Mixtral", num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2
    ),
    "qwen2_moe": _language(
        "Qwen2Moe",
        num_key_value_heads=2,
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=16,
        shared_expert_intermediate_size=16,
    ),
    "bert": _language("Bert"),
    "deberta": _language("DebertaV2"),
    "mamba": _language("Mamba", state_size=4),
    "t5": _encoder_decoder("T5", d_kv=8, d_ff=64, num_layers=2, num_heads=4),
    "whisper": _encoder_decoder(
        "Whisper",
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=64,
        decoder_ffn_dim=64,
        num_mel_bins=8,
        max_source_positions=16,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    ),
    "resnet": _resnet,
    "lstm": lambda: (Recurrent().eval(), {"x": torch.randn(2, 5, 8)}),
    "attention": lambda: (Attending().eval(), {"x": torch.randn(2, 5, 16)}),
    "in place": lambda: (InPlace().train(), {"x": torch.randn(2, 4, 8, 8)}),
}


def as_type(dtype: torch.dtype, inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value.to(dtype) if value.is_floating_point() else value.clone()
        for name, value in inputs.items()
    }


def capture_pair(
    folder: Path,
    golden: nn.Module,
    candidate: nn.Module,
    inputs: dict[str, Any],
    around: Callable[[], Any] = torch.no_grad,
) -> None:
    """Capture golden, and the candidate fed from it, into ``golden`` and ``fed``."""
    for model, out, options in (
        (golden, "golden", {}),
        (candidate, "fed", {"feed": folder / "golden", "force": True}),
    ):
        with around(), ac.capture(model, folder / out, **grouped(**options)):
            model(**as_type(next(iter(model.parameters())).dtype, inputs))


# --- what is exchanged, and what is recorded ---


@pytest.mark.parametrize(("name", "dtype"), once(MODELS, [torch.float32, torch.bfloat16]))
def test_a_model_fed_from_itself_gives_the_same_bits_everywhere(
    name: str, dtype: torch.dtype, tmp_path: Path, opened: Opened
) -> None:
    model, inputs = MODELS[name]()
    model = model.to(dtype)
    capture_pair(tmp_path, model, copy.deepcopy(model), inputs)
    fed = opened(tmp_path / "fed")
    assert different(opened(tmp_path / "golden"), fed) == []
    assert fed.complete
    assert all(line.endswith(OPAQUE) for line in not_fed(fed))


@pytest.mark.parametrize("name", list(MODELS))
def test_a_fault_in_one_module_is_seen_in_its_own_output_and_nowhere_else(
    name: str, tmp_path: Path, opened: Opened
) -> None:
    model, inputs = MODELS[name]()
    called = [
        own
        for own, module in model.named_modules()
        if next(module.parameters(recurse=False), None) is not None
    ]
    # MultiheadAttention's is not called
    called = [own for own in called if not own.endswith("out_proj")]
    faulty = copy.deepcopy(model)
    culprit = called[len(called) // 2]
    with torch.no_grad():
        for parameter in faulty.get_submodule(culprit).parameters(recurse=False):
            parameter.mul_(1.5).add_(0.1)
    capture_pair(tmp_path, model, faulty, inputs)
    found = different(opened(tmp_path / "golden"), opened(tmp_path / "fed"))
    assert found
    assert {place.split("#")[0] for place in found} == {culprit}
    assert {place.split(" ")[1] for place in found} == {"output"}


@pytest.mark.parametrize(
    "around",
    [torch.inference_mode, lambda: _both(torch.no_grad(), torch.autocast("cpu", torch.bfloat16))],
    ids=["inference", "autocast"],
)
@pytest.mark.parametrize("name", ["llama", "in place", "lstm"])
def test_feeding_works_in_inference_mode_and_under_autocast(
    name: str, around: Any, tmp_path: Path, opened: Opened
) -> None:
    if name == "lstm" and around is not torch.inference_mode and not has_lstm_in_bfloat16():
        pytest.skip("this processor runs no LSTM in bfloat16")
    model, inputs = MODELS[name]()
    capture_pair(tmp_path, model, copy.deepcopy(model), inputs, around)
    assert different(opened(tmp_path / "golden"), opened(tmp_path / "fed")) == []


@contextlib.contextmanager
def _both(*contexts: Any) -> Any:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(context) for context in contexts]


def test_outputs_show_the_error_of_the_module_and_inputs_that_of_the_glue_before(
    feed_into: FeedInto,
) -> None:
    x = torch.tensor([1.0, 2.0])
    wrong = Glue(lambda self, x: self.b(self.a(x) + 1.5) + x, a=Scale(2.0), b=Scale(4.0))
    fed = feed_into(wrong, x, of=net(2.0, 3.0))
    assert fed.load("a").tolist() == [2.0, 4.0]
    # golden's a, and the candidate's own 1.5
    assert fed.load("b", role="input").tolist() == [3.5, 5.5]
    assert fed.load("b").tolist() == [4 * 3.0, 4 * 5.0]  # of golden's input
    assert fed.load("").tolist() == [3 * 3.0 + 1, 3 * 5.0 + 2]  # golden's b, golden's x


def test_the_caller_is_given_goldens_outputs(tmp_path: Path) -> None:
    x = torch.ones(2)
    golden = net(2.0, 3.0)
    with ac.capture(golden, tmp_path / "golden"):
        expected = golden(x)
    candidate = net(5.0, 7.0)
    with ac.capture(candidate, tmp_path / "fed", feed=tmp_path / "golden"):
        assert candidate(x).equal(expected)
    assert not candidate(x).equal(expected)  # and no hook is left


def test_golden_in_bfloat16_feeds_float64_and_the_other_way_round(
    tmp_path: Path, opened: Opened
) -> None:
    model, inputs = MODELS["llama"]()
    for golden, candidate in ((torch.bfloat16, torch.float64), (torch.float64, torch.bfloat16)):
        shutil.rmtree(tmp_path / "golden", ignore_errors=True)
        shutil.rmtree(tmp_path / "fed", ignore_errors=True)
        capture_pair(
            tmp_path, copy.deepcopy(model).to(golden), copy.deepcopy(model).to(candidate), inputs
        )
        ours, theirs = opened(tmp_path / "golden"), opened(tmp_path / "fed")
        assert all(line.endswith(OPAQUE) for line in not_fed(theirs))
        for record in theirs.records():
            if record.dtype in ("float64", "bfloat16"):
                assert record.dtype == str(candidate).removeprefix("torch.")
                key = record.key
                expected = ours.load(key.name, call=key.call, role=key.role, path=key.path).astype(
                    float
                )
                error = np.linalg.norm(theirs.values(record) - expected) / max(
                    np.linalg.norm(expected), 1e-30
                )
                assert error < 0.02, key


def test_integers_and_booleans_are_fed(feed_into: FeedInto) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        counts, mask = self.split(x)
        return self.join(counts, mask)

    def split(amount: int) -> Glue:
        return Glue(lambda self, x: (x.long() + amount, x > 1 + amount))

    models = [
        Glue(forward, split=split(amount), join=Glue(lambda self, n, mask: n * mask))
        for amount in (0, 1)
    ]
    fed = feed_into(models[1], torch.tensor([1.0, 2.0]), of=models[0])
    assert fed.load("split", path="0").tolist() == [2, 3]
    assert fed.load("join").tolist() == [0, 2]


def test_what_a_module_writes_into_its_input_its_caller_sees(
    feed_into: FeedInto, opened: Opened, tmp_path: Path
) -> None:
    def write(self: Any, store: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        store[0].add_(x)
        return x + 1

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        store = torch.zeros(2, 2)
        y = self.write(store, x)
        self.relu(y)
        self.write(store=store, x=y)
        return store.sum(0) + y

    model = Glue(forward, write=Glue(write), relu=nn.ReLU(inplace=True))
    fed = feed_into(model, torch.tensor([1.0, -2.0]))
    assert different(opened(tmp_path / "golden"), fed) == []
    assert fed.load("").tolist() == [5.0, -2.0]


@pytest.mark.parametrize(
    "change",
    [
        lambda x: x.unsqueeze_(0),
        lambda x: x.mul_(2).squeeze_(1),
        lambda x: x.transpose_(0, 2),
        lambda x: x.resize_(2, 1, 2),
        lambda x: x.resize_(6, 1, 3).fill_(1.0),
    ],
    ids=["unsqueeze_", "squeeze_", "transpose_", "smaller", "larger"],
)
def test_the_shape_that_a_module_gives_its_input_its_caller_sees(
    change: Any, feed_into: FeedInto, opened: Opened, tmp_path: Path
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        self.m(y)
        out: torch.Tensor = self.l(y)
        return out

    model = Glue(forward, m=Glue(lambda self, x: change(x).sum()), l=Scale(3.0))
    fed = feed_into(model, torch.arange(12.0).reshape(4, 1, 3))
    assert different(opened(tmp_path / "golden"), fed) == []
    assert not_fed(fed) == []


def test_what_a_module_adds_to_a_list_or_a_dict_its_caller_sees(
    feed_into: FeedInto, opened: Opened, tmp_path: Path
) -> None:
    def add(
        self: Any, seen: list[torch.Tensor], state: dict[str, torch.Tensor], x: torch.Tensor
    ) -> torch.Tensor:
        seen.append(x * 2)
        state["last"] = x * 3
        return x + 1

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        seen, state = [x], {"first": x}
        x = self.add(seen, state, x)
        x = self.add(seen, state, x)
        assert len(seen) == 3
        assert seen[0] is state["first"]
        return torch.stack([*seen, *state.values()])

    fed = feed_into(Glue(forward, add=Glue(add)), torch.tensor([1.0]))
    assert different(opened(tmp_path / "golden"), fed) == []


def test_no_tensor_that_was_handed_out_is_handed_out_again(tmp_path: Path) -> None:
    given: list[torch.Tensor] = []
    model = Glue(
        lambda self, x: self.a(self.a(x)) + self.a(x),
        a=Glue(lambda self, x: (given.append(x), x.add_(1))[1]),
    )
    with ac.capture(model, tmp_path / "golden"):
        model(torch.zeros(3))
    given.clear()
    with ac.capture(model, tmp_path / "fed", feed=tmp_path / "golden"):
        model(torch.zeros(3))
    assert len({tensor.data_ptr() for tensor in given}) == 3


def test_a_tensor_given_twice_stays_one_tensor(feed_into: FeedInto) -> None:
    attention = Glue(lambda self, query, key, value: torch.tensor([query is key, key is value]))
    model = Glue(lambda self, x: self.attention(x + 1, key=x, value=x), attention=attention)
    assert feed_into(model, torch.ones(2)).load("attention").tolist() == [False, True]


def test_copies_lie_in_memory_as_what_arrived_did(feed_into: FeedInto) -> None:
    strides: list[Any] = []
    look = Glue(lambda self, *tensors: strides.append([tensor.stride() for tensor in tensors]))

    def forward(self: Any, x: torch.Tensor) -> None:
        self.look(x.t(), x[:, ::2], x[None].expand(3, 4, 6), x.unfold(1, 3, 1), x[:0], x.sum())

    feed_into(Glue(forward, look=look), torch.arange(24.0).view(4, 6))
    assert strides[0][:3] == strides[1][:3] == [(1, 6), (6, 2), (0, 6, 1)]


def test_a_mask_of_lowest_numbers_stays_finite_in_a_narrower_type(feed_into: FeedInto) -> None:
    mask = torch.tensor([torch.finfo(torch.float32).min, 0.0, -torch.inf, torch.nan])
    seen: list[torch.Tensor] = []
    model = Glue(lambda self, x: self.a(x), a=Glue(lambda self, x: seen.append(x)))
    for dtype in (torch.float16, torch.bfloat16):
        feed_into(copy.copy(model), torch.zeros(4, dtype=dtype), golden_args=(mask,))
        lowest = torch.finfo(dtype).min
        assert seen[-1].dtype == dtype
        assert torch.equal(
            seen[-1].nan_to_num(nan=7.0, neginf=-1.0),
            torch.tensor([lowest, 0.0, -1.0, 7.0], dtype=dtype),
        )


@dataclass(frozen=True)
class Frozen:
    hidden: torch.Tensor
    note: str


class Named(NamedTuple):
    left: torch.Tensor
    right: list[torch.Tensor]


def test_nested_values_keep_their_structure_and_their_types(feed_into: FeedInto) -> None:
    def nest(self: Any, x: torch.Tensor) -> Any:
        output = transformers.modeling_outputs.BaseModelOutput(last_hidden_state=x * self.factor)
        batch = transformers.BatchEncoding({"x": x * self.factor})
        y = x * self.factor
        return (
            {
                7: (y, None, "word", 3),
                "frozen": Frozen(y, "n"),
                "named": Named(y, [y]),
                "output": output,
            },
            batch,
            UserDict(a=y),
            y.max(0),
        )

    def look(self: Any, value: Any, **more: Any) -> torch.Tensor:
        tables, batch, user, most = value
        assert [type(part) for part in value] == [
            dict,
            transformers.BatchEncoding,
            UserDict,
            torch.return_types.max,
        ]
        assert tables[7][1:] == (None, "word", 3)
        assert tables["frozen"].note == "n"
        assert isinstance(more["view"], MappingProxyType)
        parts = [
            tables[7][0],
            tables["frozen"].hidden,
            tables["named"].left,
            tables["named"].right[0],
        ]
        return (
            torch.stack(
                [
                    *parts,
                    tables["output"].last_hidden_state,
                    batch["x"],
                    user["a"],
                    more["view"]["x"],
                ]
            )
            + most.values
        )

    def model(factor: float) -> nn.Module:
        nested = Glue(nest)
        nested.factor = factor  # type: ignore[assignment]
        forward = lambda self, x: self.look(self.nest(x), view=MappingProxyType({"x": x * factor}))  # noqa: E731
        return Glue(forward, nest=nested, look=Glue(look))

    fed = feed_into(model(2.0), torch.tensor([1.0, 3.0]), of=model(1.0))
    assert fed.load("look").tolist() == [[4.0, 6.0]] * 8
    assert not_fed(fed) == []


@pytest.mark.parametrize(
    ("choose", "where"),
    [
        (lambda s: s.topk(1)[1], "topk.default"),
        (lambda s: s.argmax(-1, keepdim=True), "argmax.default"),
        (lambda s: s.sort(0, descending=True)[1], "sort.default"),
        (lambda s: s.unsqueeze(1).max(2)[1], "max.dim"),
        (lambda s: s > 2.5, "gt.Scalar"),
    ],
)
def test_a_call_goes_on_with_what_golden_chose(
    feed_into: FeedInto, choose: Callable[[torch.Tensor], torch.Tensor], where: str
) -> None:
    look = Glue(lambda self, chosen: chosen * 1)

    def model(bias: float) -> nn.Module:
        return Glue(
            lambda self, x: self.look(choose(x + torch.tensor([bias, -bias]))),
            look=copy.deepcopy(look),
        )

    scores = torch.tensor([[2.4, 2.6], [1.0, 3.0], [2.7, 2.45]])
    fed = feed_into(model(0.15), scores, of=model(0.0))
    own = {each.role: each for each in fed.records() if f"aten.{where}#0" in each.path}
    assert own.keys() >= {Role.OP_INPUT, Role.OP_OUTPUT}
    golden = choose(scores).flatten()
    given = next(each for each in fed.records() if each.key[2:] == ("look", 0, Role.OUTPUT, ""))
    assert fed.values(given).flatten().tolist() == golden.tolist()
    assert fed.values(own[Role.OP_OUTPUT]).flatten().tolist() != golden.tolist()


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_what_is_run_again_in_a_backward_chooses_as_it_did(
    reentrant: bool | None, tmp_path: Path
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        def part(x: torch.Tensor) -> torch.Tensor:
            x = torch.where(x + self.bias > 2.5, x * 3, x)
            return torch.where(x - self.bias > 7.7, x * 2, x)

        first, x = part(x), self.l(x)
        again = {"use_reentrant": reentrant}
        x = part(x) if reentrant is None else checkpoint(part, x, **again)  # type: ignore
        return first + x

    for out, bias, feed in (("golden", 0.0, None), ("fed", 0.2, tmp_path / "golden")):
        model = Glue(forward, l=Scale(1.0))
        model.bias = bias
        with ac.capture(model, tmp_path / out, **grouped(feed=feed)):
            model(torch.tensor([2.4, 2.6, 1.0, 2.55], requires_grad=True)).sum().backward()
        bundle = ac.open_bundle(tmp_path / out)
        of_l = [each for each in bundle.records() if each.key[2:5:2] == ("l", Role.GRAD_OUTPUT)]
        assert [bundle.values(each).tolist() for each in of_l] == [[1.0, 6.0, 1.0, 3.0]]


def test_several_steps_are_fed_each_from_its_own(tmp_path: Path, opened: Opened) -> None:
    for model, out, options in (
        (net(2.0, 3.0), "golden", {}),
        (net(2.0, 4.0), "fed", {"feed": tmp_path / "golden"}),
    ):
        with ac.capture(model, tmp_path / out, **grouped(**options)) as session:
            for step in range(3):
                model(torch.full((2,), float(step)))
                session.step()
    fed = opened(tmp_path / "fed")
    assert [fed.load("b", step=step).tolist()[0] for step in range(3)] == [4.0, 12.0, 20.0]
    assert fed.manifest.capture["feed"]["identity"] == opened(tmp_path / "golden").identity()


def test_a_compiled_model_is_fed(tmp_path: Path, opened: Opened) -> None:
    model, x = net(2.0, 3.0), torch.ones(2)
    compiled = torch.compile(net(2.0, 4.0), backend="eager")
    with ac.capture(model, tmp_path / "golden"):
        model(x)
    with ac.capture(compiled, tmp_path / "fed", feed=tmp_path / "golden"):
        compiled(x)
        compiled(x * 2)  # golden has no second call
    assert different(opened(tmp_path / "golden"), opened(tmp_path / "fed"))[0] == "b#0 output"


def test_dropout_and_batch_norm_in_training_agree(
    feed_into: FeedInto, opened: Opened, tmp_path: Path
) -> None:
    model = nn.Sequential(
        nn.Linear(4, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Dropout(0.5)
    ).train()
    fed = feed_into(model, torch.randn(8, 4))
    assert different(opened(tmp_path / "golden"), fed) == []


# --- tensors that are one memory, and numbers ---


class Passing(nn.Module):
    """Gives on what it was given, or a part of it, by a function."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


def written(self: Any, x: torch.Tensor) -> torch.Tensor:
    """The model of the tests: what ``m`` returns is written into, and what ``m`` was given is
    read."""
    h = x * 2
    y = self.m(h)
    y = y if isinstance(y, torch.Tensor) else y[-1]
    y.add_(1)
    out: torch.Tensor = self.l(h)
    return out


PASSING = {
    "identity": nn.Identity,
    "in-place ReLU": lambda: nn.ReLU(inplace=True),
    "dropout": lambda: nn.Dropout(0.5).eval(),
    "flatten": lambda: nn.Flatten(0),
    "view": lambda: Passing(lambda x: x.view(2, 3, 4)),
    "transposed": lambda: Passing(lambda x: x.t()),
    "expanded": lambda: Passing(lambda x: x[:, :1]),
    "chunks": lambda: Passing(lambda x: x.chunk(2, -1)),
    "in-place, and a part": lambda: Passing(lambda x: x.mul_(3)[1:, ::2]),
    "twice": lambda: nn.Sequential(nn.Identity(), nn.Flatten(0)),
    "the whole, and a part": lambda: Passing(lambda x: (x, x[1:])),
}


@pytest.mark.parametrize(
    ("name", "columns"),
    [
        (name, columns)
        for name in PASSING
        for columns in (False, True)
        if not (columns and name in ("view", "flatten", "twice"))
    ],
)
def test_what_is_returned_stays_the_memory_of_what_was_given(
    name: str, columns: bool, feed_into: FeedInto, opened: Opened, tmp_path: Path
) -> None:
    x = torch.randn(6, 4).t() if columns else torch.randn(4, 6)
    fed = feed_into(Glue(written, m=PASSING[name](), l=Scale(3.0)), x)
    assert different(opened(tmp_path / "golden"), fed) == []
    assert not_fed(fed) == []


@pytest.mark.parametrize("around", [torch.inference_mode, torch.enable_grad])
def test_so_it_does_in_inference_mode_and_with_gradients(
    around: Any, tmp_path: Path, opened: Opened
) -> None:
    model = Glue(written, m=nn.Identity(), l=nn.Linear(6, 2))
    for out, options in (("golden", {}), ("fed", {"feed": tmp_path / "golden"})):
        torch.manual_seed(0)
        with around(), ac.capture(model, tmp_path / out, **grouped(**options)), around():
            model(torch.randn(4, 6))
    fed = opened(tmp_path / "fed")
    assert different(opened(tmp_path / "golden"), fed) == []
    assert not_fed(fed) == []


def test_the_callers_own_then_holds_goldens_values(feed_into: FeedInto) -> None:
    def model(factor: float) -> nn.Module:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            h = x * factor
            y = self.m(h)
            y[0] = 7.0
            out: torch.Tensor = self.l(h)
            return out

        return Glue(forward, m=nn.ReLU(inplace=True), l=Scale(3.0))

    fed = feed_into(model(2.5), torch.ones(4), of=model(2.0))
    assert fed.load("m", role="input").tolist() == [2.5] * 4  # recorded as it arrived
    assert fed.load("l", role="input").tolist() == [7.0, 2.0, 2.0, 2.0]


def test_what_a_module_only_hands_on_is_not_written_into(tmp_path: Path) -> None:
    """It may be anything of the user's: a table that the model keeps, or a batch that is used
    again.
    """

    class Kept(nn.Module):
        def __init__(self, table: torch.Tensor) -> None:
            super().__init__()
            self.m, self.l, self.table = nn.Identity(), Scale(3.0), table

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.l(x + self.m(self.table))
            return out

    kept = torch.full((4,), 1.001)
    with ac.capture(golden := Kept(torch.ones(4)), tmp_path / "golden"):
        golden(torch.ones(4))
    with ac.capture(model := Kept(kept), tmp_path / "fed", feed=tmp_path / "golden"):
        model(torch.ones(4))
    assert kept.tolist() == torch.full((4,), 1.001).tolist()


def test_a_fault_that_returns_the_input_writes_into_nothing(
    feed_into: FeedInto, opened: Opened, tmp_path: Path
) -> None:
    def residual(m: nn.Module) -> nn.Module:
        return Glue(lambda self, x: (h := x * 2) + self.m(h), m=m)

    fed = feed_into(residual(nn.Identity()), torch.tensor([-1.0, 2.0]), of=residual(nn.ReLU()))
    assert different(opened(tmp_path / "golden"), fed) == ["m#0 output"]
    assert not_fed(fed) == []


def test_two_outputs_that_overlap_are_copies_where_golden_has_two(feed_into: FeedInto) -> None:
    def model(part: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
        parts = Glue(lambda self, x: (y := x.mul_(1), part(y)))
        return Glue(
            lambda self, x: self.l(*self.m(x * 2)), m=parts, l=Glue(lambda self, a, b: a[0] + b)
        )

    fed = feed_into(model(lambda x: x[0]), torch.tensor([1.0, 2.0]), of=model(lambda x: x[0] * 5))
    assert fed.load("l").tolist() == 12.0
    assert not_fed(fed) == ["m output 0: it shares memory with an input; a copy was passed on"]


@pytest.mark.parametrize(
    "layout", [lambda x: x.expand(3, 4), lambda x: x.unfold(0, 3, 1)], ids=["expanded", "unfolded"]
)
def test_memory_that_cannot_be_written_into_is_copied(layout: Any, feed_into: FeedInto) -> None:
    def model(factor: float) -> nn.Module:
        return Glue(lambda self, x: self.l(self.m(layout(x * factor))), m=nn.Identity(), l=Scale())

    why = "m output : it shares memory with an input; a copy was passed on"
    for factor, notes in ((2.0, []), (3.0, [why])):
        fed = feed_into(model(factor), torch.ones(4), of=model(2.0))
        assert not_fed(fed) == notes
        assert fed.load("l").ravel()[0] == 2.0


def test_tensors_of_an_inference_mode_that_has_ended_are_copied(feed_into: FeedInto) -> None:
    def model(factor: float) -> nn.Module:
        def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
            with torch.inference_mode():
                h = x * factor
            out: torch.Tensor = self.l(self.m(h))
            return out

        return Glue(forward, m=nn.Identity(), l=Scale())

    fed = feed_into(model(3.0), torch.ones(2), of=model(2.0))
    assert fed.load("l").tolist() == [2.0, 2.0]
    assert not_fed(fed) == ["m output : it shares memory with an input; a copy was passed on"]


def test_another_type_of_the_same_memory_is_copied(feed_into: FeedInto) -> None:
    model = Glue(lambda self, x: self.m(x * 2), m=Passing(lambda x: x.view(torch.int32)))
    assert not_fed(feed_into(model, torch.ones(2))) == [
        "m output : it shares memory with an input; a copy was passed on"
    ]


def test_neither_the_users_inputs_nor_the_state_of_the_model_are_written_into(
    tmp_path: Path, opened: Opened
) -> None:
    class Learned(nn.Module):
        def __init__(self, value: float) -> None:
            super().__init__()
            self.position = nn.Parameter(torch.full((3,), value))
            self.register_buffer("scale", torch.full((3,), value))
            self.m = nn.Identity()

        def forward(self, x: torch.Tensor) -> Any:
            return self.m(x), self.m(self.position) + self.m(self.scale[:2].sum())

    golden, candidate = Learned(1.0), Learned(2.0)
    x = torch.zeros(3)
    with ac.capture(golden, tmp_path / "golden"):
        golden(torch.ones(3))
    with ac.capture(candidate, tmp_path / "fed", feed=ac.FedWith(tmp_path / "golden", force=True)):
        given, _ = candidate(x)
    assert given.tolist() == [1.0] * 3
    assert x.tolist() == [0.0] * 3
    assert candidate.position.tolist() == candidate.get_buffer("scale").tolist() == [2.0] * 3
    assert {line.split(":")[0] for line in not_fed(opened(tmp_path / "fed"))} == {
        "m output ",
        " output 0",
    }


@pytest.mark.parametrize("kind", ["buffer", "attribute", "parameter"])
def test_what_a_module_keeps_and_returns_its_caller_sees_written_later(
    kind: str, feed_into: FeedInto, opened: Opened, tmp_path: Path
) -> None:
    def write(self: Any, x: torch.Tensor, row: int) -> torch.Tensor:
        self.table[row] = x
        rows: torch.Tensor = self.table[:2]
        return rows

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        first = self.around(x, 0)
        self.around(self.l(x), 1)
        out: torch.Tensor = self.l(first)  # of two rows
        return out

    cache = Glue(write)
    if kind == "attribute":
        cache.table = torch.zeros(3, 2)
    elif kind == "buffer":
        cache.register_buffer("table", torch.zeros(3, 2))
    else:
        cache.table = nn.Parameter(torch.zeros(3, 2), requires_grad=False)
    around = Glue(lambda self, x, row: self.cache(x, row), cache=cache)
    fed = feed_into(Glue(forward, around=around, l=Scale(3.0)), torch.ones(2))
    assert different(opened(tmp_path / "golden"), fed) == []
    assert not_fed(fed) == []


class Small(IntEnum):
    ONE = 1


def scaled(number: Any, inside: bool) -> nn.Module:
    """A model that hands a number to a module; made by its own code, or by a module."""
    kind = type(number)
    made = Glue(lambda self, x: (x, number))
    return Glue(
        lambda self, x: self.l(*self.made(x)) if inside else self.l(x, number=number),
        made=made,
        l=Glue(lambda self, x, number: x * number * (1 if type(number) is kind else 0)),
    )


@pytest.mark.parametrize("inside", [False, True], ids=["glue", "module"])
@pytest.mark.parametrize(
    ("golden", "wrong"),
    [(0.5, 0.7), (3, -4), (True, False), (1 + 2j, 1j), (np.float64(0.5), np.float64(2.0))],
)
def test_numbers_are_fed_as_what_they_arrived(
    golden: Any, wrong: Any, inside: bool, feed_into: FeedInto, tmp_path: Path, opened: Opened
) -> None:
    fed = feed_into(scaled(wrong, inside), torch.ones(2), of=scaled(golden, inside))
    assert different(opened(tmp_path / "golden"), fed) == [
        "made#0 output 1" if inside else "l#0 input number"
    ]
    assert not_fed(fed) == []


@pytest.mark.parametrize(
    ("golden", "wrong", "why"),
    [
        (1, 2.0, "golden's is int64, this one float64"),
        (7, Small.ONE, "no Small can be made of golden's"),
        (1 << 70, 1, "golden has no number of it (opaque)"),
        (1, 1 << 70, "golden's int is another, which cannot be fed"),
        ("a", "b", "golden's str is another, which cannot be fed"),
        (None, "b", "golden has no such value"),
        ("a", "a", ""),
        (1 << 70, 1 << 70, ""),
        (float("nan"), float("nan"), ""),
        ("a", None, ""),
    ],
)
def test_numbers_and_strings_that_cannot_be_fed_are_listed(
    golden: Any, wrong: Any, why: str, feed_into: FeedInto
) -> None:
    def model(number: Any) -> nn.Module:
        return Glue(lambda self, x: self.l(x, number=number), l=Glue(lambda self, x, number: x * 2))

    assert (
        not_fed(feed_into(model(wrong), torch.ones(2), of=model(golden)))
        == [f"l input number: {why}"][: bool(why)]
    )


# --- what is passed on as it comes ---


class Thing:
    pass


def test_what_golden_lacks_is_passed_on_and_listed(feed_into: FeedInto) -> None:
    def forward(self: Any, x: torch.Tensor) -> Any:
        for _ in range(self.times):
            x = self.a(x)
        return self.odd(x[: self.length], x.to(self.dtype), Thing(), 1, "s", None)

    def model(times: int, length: int, dtype: torch.dtype) -> nn.Module:
        made = Glue(
            forward,
            a=Scale(2.0),
            odd=Glue(
                lambda self, *parts: [part for part in parts if isinstance(part, torch.Tensor)]
            ),
        )
        made.times, made.length, made.dtype = times, length, dtype  # type: ignore[assignment]
        return made

    fed = feed_into(model(2, 3, torch.int64), torch.ones(4), of=model(1, 2, torch.float32))
    assert not_fed(fed) == [
        "a input 0: golden has no such call",
        "a output : golden has no such call",
        "odd input 0: golden's shape is [2], this one's [3]",
        "odd input 1: golden's is float32, this one int64",
        f"odd input 2: it is a {__name__}.Thing, {OPAQUE}",
        "odd output 0: golden's shape is [2], this one's [3]",
        "odd output 1: golden's is float32, this one int64",
        " output 0: golden's shape is [2], this one's [3]",
        " output 1: golden's is float32, this one int64",
    ]
    assert any(
        "not fed: 2 values, since golden has no such call (such as a input 0)" in note
        for note in fed.manifest.notes
    )


def test_integers_that_do_not_fit_are_passed_on(feed_into: FeedInto) -> None:
    model = Glue(lambda self, n, x: x)
    fed = feed_into(
        model,
        torch.tensor([1], dtype=torch.int32),
        torch.ones(1),
        golden_args=(torch.tensor([1 << 40]), torch.ones(1)),
    )
    assert not_fed(fed) == [" input 0: golden's int64 are too large for int32"]


def test_sparse_tensors_and_subclasses_that_act_by_themselves_are_passed_on(
    feed_into: FeedInto,
) -> None:
    class Marked(torch.Tensor):
        @classmethod
        def __torch_dispatch__(cls, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise TypeError("not with me")

    model = Glue(
        lambda self, x: self.a(x.to_sparse(), x.as_subclass(Marked)),
        a=Glue(lambda self, *parts: None),
    )
    assert not_fed(feed_into(model, torch.eye(2))) == [
        "a input 0: it has no plain data (sparse)",
        "a input 1: it is a Marked",
    ]


def test_a_golden_of_some_layers_feeds_those(tmp_path: Path, opened: Opened) -> None:
    model = net(2.0, 3.0)
    with ac.capture(model, tmp_path / "golden", record=ac.Recorded(only="b")):
        model(torch.ones(2))
    candidate = net(5.0, 3.0)
    with ac.capture(candidate, tmp_path / "fed", feed=tmp_path / "golden"):
        candidate(torch.ones(2))
    fed = opened(tmp_path / "fed")
    assert fed.manifest.capture["only"] == ["b"]
    assert fed.load("b").tolist() == [9.0, 9.0]
    assert "a output : golden has no such call" in not_fed(fed)


def test_what_is_not_selected_is_fed_all_the_same(tmp_path: Path, opened: Opened) -> None:
    for model, out, options in (
        (net(2.0, 3.0), "golden", {}),
        (net(5.0, 3.0), "fed", {"feed": tmp_path / "golden", "only": "b"}),
    ):
        with ac.capture(model, tmp_path / out, **grouped(**options)):
            model(torch.ones(2))
    assert opened(tmp_path / "fed").load("b", role="input").tolist() == [3.0, 3.0]


# --- what is refused, and what stops a capture ---


def refused(
    model: nn.Module,
    out: Path,
    feed: Path,
    match: str,
    error: type[AccucompareError] = UsageError,
    **options: Any,
) -> None:
    before = sorted(out.parent.rglob("*"))
    with pytest.raises(error, match=match), ac.capture(model, out, **grouped(feed=feed, **options)):
        raise AssertionError("the capture began")
    assert sorted(out.parent.rglob("*")) == before


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)).eval()
    torch.save(model, tmp_path / "model.pt")
    with ac.capture(model, tmp_path / "golden") as session:
        model(torch.ones(1, 2))
        session.step()
    return tmp_path / "golden"


def saved(golden: Path) -> nn.Module:
    model: nn.Module = torch.load(golden.parent / "model.pt", weights_only=False)
    return model


def test_a_golden_that_cannot_feed_is_refused_and_nothing_is_written(
    golden: Path, tmp_path: Path
) -> None:
    out = tmp_path / "fed"
    with ac.capture(saved(golden), tmp_path / "stats", record="stats"):
        saved(golden)(torch.ones(1, 2))
    refused(saved(golden), out, tmp_path / "stats", "holds no tensors")
    with ac.capture(saved(golden), tmp_path / "empty"):
        pass
    refused(saved(golden), out, tmp_path / "empty", "no finished step")
    refused(saved(golden), out, tmp_path / "nowhere", "no such directory", AccucompareError)
    refused(saved(golden), out, golden, r"steps 2 \(--steps\): .* holds only 1 step", steps=2)
    refused(saved(golden), golden, golden, "choose another place", overwrite=True)


def test_a_golden_of_another_model_is_refused(golden: Path, tmp_path: Path) -> None:
    refused(
        Glue(lambda self, x: x, fc=nn.Linear(2, 2)),
        tmp_path / "fed",
        golden,
        "another model: no module has the same name.*'0' and 'fc'",
    )
    other = Glue(lambda self, x: x, **dict(saved(golden).named_children()))
    refused(other, tmp_path / "fed", golden, "another model, a Sequential; this one is a Glue")
    with ac.capture(other, tmp_path / "fed", feed=ac.FedWith(golden, force=True)):
        other(torch.ones(1, 2))


@pytest.mark.parametrize(("name", "word"), [("0.bias", "parameter"), ("1.running_mean", "buffer")])
def test_a_golden_of_other_weights_is_refused_unless_forced(
    name: str, word: str, golden: Path, tmp_path: Path
) -> None:
    model = saved(golden)
    model.state_dict()[name][1] += 1
    refused(model, tmp_path / "fed", golden, f"other weights: {word} '{name}': it differs.*--force")
    with ac.capture(model, tmp_path / "fed", feed=ac.FedWith(golden, force=True)):
        model(torch.ones(1, 2))


def test_a_missing_weight_is_another_weight(golden: Path, tmp_path: Path) -> None:
    model = saved(golden)
    model[0].bias = None  # type: ignore[index]
    refused(
        model, tmp_path / "fed", golden, "parameter '0.bias': golden has it, the model lacks it"
    )


def test_weights_that_agree_after_rounding_are_the_same(
    golden: Path, tmp_path: Path, opened: Opened
) -> None:
    model = saved(golden).bfloat16()
    with ac.capture(model, tmp_path / "fed", feed=golden):
        model(torch.ones(1, 2, dtype=torch.bfloat16))
    assert not_fed(opened(tmp_path / "fed")) == []


def test_a_golden_of_several_ranks_is_refused(golden: Path, tmp_path: Path) -> None:
    edit_manifest(golden, lambda manifest: manifest.update(ranks=2))
    refused(
        saved(golden),
        tmp_path / "fed",
        golden,
        r"captured by 2 rank\(s\) and lacks rank 1, but this capture has 1",
    )


def test_a_damaged_record_stops_the_capture(golden: Path, tmp_path: Path, opened: Opened) -> None:
    bundle = opened(golden)
    archive, offset = bundle.locate(bundle.find("0"))
    with archive.path.open("r+b") as file:
        file.seek(offset)
        file.write(b"\xff\xff")
    model = saved(golden)
    with (
        pytest.raises(RecordError, match=r"0 call 0 output .* is corrupt"),
        ac.capture(model, tmp_path / "fed", feed=golden),
    ):
        model(torch.ones(1, 2))
    assert not opened(tmp_path / "fed").complete


def test_a_model_that_catches_the_error_does_not_get_away_with_it(
    golden: Path, tmp_path: Path, opened: Opened
) -> None:
    (golden / "rank0" / "step0.npz").write_bytes(b"")
    model = saved(golden)
    with (  # noqa: SIM117
        pytest.raises(AccucompareError, match=r"step0\.npz"),
        ac.capture(model, tmp_path / "fed", feed=golden),
    ):
        with contextlib.suppress(Exception):
            model(torch.ones(1, 2))
    assert not opened(tmp_path / "fed").complete


class Split(nn.Module):
    """Rows, each group of them times another number."""

    def forward(self, rows: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        parts = torch.split(rows, counts.tolist())
        return torch.cat([(number + 1) * part for number, part in enumerate(parts)])


class Dropping(nn.Module):
    def __init__(self, kept: int) -> None:
        super().__init__()
        self.kept, self.experts = kept, Split()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.experts(x[: self.kept], torch.tensor([2, self.kept - 2])).sum(0)  # type: ignore[no-any-return]


def test_a_call_with_other_rows_keeps_the_counts_that_fit_them(feed_into: FeedInto) -> None:
    fed = feed_into(Dropping(3), torch.arange(8.0).view(4, 2), of=Dropping(4))
    assert [each.split(":")[0] for each in not_fed(fed)] == [
        "experts input 0",
        "experts input 1",
        "experts output ",
    ]


def test_a_hook_of_the_users_that_replaces_an_output_is_refused(
    golden: Path, tmp_path: Path
) -> None:
    model = saved(golden)
    model[0].register_forward_hook(lambda module, args, output: output + 1)  # type: ignore[index]
    with (
        pytest.raises(CaptureError, match="hook on 0 replaces what the module returns"),
        ac.capture(model, tmp_path / "fed", feed=golden),
    ):
        model(torch.ones(1, 2))


def test_so_is_one_that_is_added_while_the_model_is_fed(golden: Path, tmp_path: Path) -> None:
    model = saved(golden)
    model[0].register_forward_pre_hook(  # type: ignore[index]
        lambda module, args: (
            module.register_forward_hook(lambda module, args, output: output + 1) and None
        )
    )
    with (
        pytest.raises(CaptureError, match="hook on 0 replaces what the module returns"),
        ac.capture(model, tmp_path / "fed", feed=golden),
    ):
        model(torch.ones(1, 2))


def test_a_hook_of_the_users_that_only_looks_is_welcome(golden: Path, tmp_path: Path) -> None:
    model, seen = saved(golden), []
    model[0].register_forward_hook(lambda module, args, output: seen.append(1))  # type: ignore[index]
    with ac.capture(model, tmp_path / "fed", feed=golden):
        model(torch.ones(1, 2))
    assert seen == [1]


def test_a_capture_that_fed_nothing_fails(golden: Path, tmp_path: Path) -> None:
    model = saved(golden)
    with (
        pytest.raises(CaptureError, match=r"nothing of it was fed; .* golden's shape"),
        ac.capture(model, tmp_path / "fed", feed=golden),
    ):
        model(torch.ones(3, 2))


# --- cases, and the command line ---


def test_a_case_with_an_optimizer_is_fed_every_step(tmp_path: Path, opened: Opened) -> None:
    target = f"{ROOT}/fixtures/llama.py:training"
    capture_case(target, tmp_path / "golden", CPU, CaptureOptions(seed=3, backward=True))
    capture_case(
        target, tmp_path / "fed", CPU, CaptureOptions(feed=tmp_path / "golden", backward=True)
    )
    fed = opened(tmp_path / "fed")
    assert fed.manifest.capture["seed"] == 3
    assert len(fed.steps()) == 2
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert comparison.passed
    # a sum may be added in another order
    assert comparison.counts()[Reason.IDENTICAL] > 0.95 * len(comparison.rows)


@pytest.mark.parametrize("who", ["golden", "fed"])
def test_without_a_backward_a_case_with_an_optimizer_is_fed_its_first_step_only(
    who: str, tmp_path: Path, opened: Opened
) -> None:
    target = f"{ROOT}/fixtures/llama.py:training"
    capture_case(target, tmp_path / "golden", CPU, CaptureOptions(backward=who != "golden"))
    capture_case(
        target,
        tmp_path / "fed",
        CPU,
        CaptureOptions(feed=tmp_path / "golden", backward=who != "fed"),
    )
    fed = opened(tmp_path / "fed")
    assert len(fed.steps()) == 1
    assert any("only step 0 of 2 was run" in note for note in fed.manifest.notes)
    comparison = ac.diff(tmp_path / "golden", tmp_path / "fed")
    assert comparison.passed
    assert (
        "forward only: the case has a loss, but no gradient was compared" in comparison.conclusion
    )


def test_like_and_feed_go_together(tmp_path: Path, opened: Opened) -> None:
    target = f"{ROOT}/fixtures/llama.py"
    capture_case(target, tmp_path / "golden", CPU, CaptureOptions(seed=3, save_state=True))
    capture_case(
        target,
        tmp_path / "fed",
        CPU,
        CaptureOptions(feed=tmp_path / "golden", like=tmp_path / "golden", seed=5),
    )
    assert different(opened(tmp_path / "golden"), opened(tmp_path / "fed")) == []


def test_the_command_line_feeds_and_refuses(cli: Run, tmp_path: Path) -> None:
    case = f"{ROOT}/fixtures/tricky.py"
    capture_case(case, tmp_path / "golden", CPU)
    fed = cli("capture", case, "--out", "fed", "--feed", "golden", "--repeat", "2")
    assert fed.returncode == 0, fed.stderr
    assert (tmp_path / "fed" / "repeat1" / "manifest.json").is_file()
    other = cli("capture", case, "--out", "other", "--feed", "golden", "--seed", "1")
    assert other.returncode == 2
    assert "is of other weights: parameter" in other.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.gpu
def test_golden_of_the_cpu_feeds_a_gpu(tmp_path: Path, opened: Opened) -> None:
    model, inputs = MODELS["llama"]()
    with ac.capture(model, tmp_path / "golden"), torch.no_grad():
        model(**inputs)
    model.cuda()
    with ac.capture(model, tmp_path / "fed", feed=tmp_path / "golden"), torch.no_grad():
        model(**{name: value.cuda() for name, value in inputs.items()})
    assert all(line.endswith(OPAQUE) for line in not_fed(opened(tmp_path / "fed")))
