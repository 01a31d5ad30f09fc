"""The operator level: what is recorded and fed inside a module's forward, and that the operator
with the fault is named.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.utils import _python_dispatch as dispatching

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.records import Record
from accucompare.bundle.reading.reader import Bundle
from accucompare.compare.rows.rows import Difference, Option
from accucompare.errors import UsageError
from accucompare.live.operators.operator_calls import source_line
from accucompare.recorder.recording import operators as capture_operators
from accucompare.report.words import verdict_words
from tests.asked import grouped
from tests.combinations import once
from tests.conftest import ROOT, Run, has_lstm_in_bfloat16
from tests.recorded import Glue, Opened

plain_softmax, plain_attention, plain_relu_ = (
    functional.softmax,
    functional.scaled_dot_product_attention,
    functional.relu_,
)


def gpt2(attention: str = "eager") -> tuple[nn.Module, torch.Tensor]:
    config = transformers.GPT2Config(
        vocab_size=97,
        n_embd=32,
        n_layer=2,
        n_head=4,
        n_positions=32,
        bos_token_id=None,
        eos_token_id=None,
        use_cache=False,
    )
    config._attn_implementation = attention
    return transformers.GPT2LMHeadModel(config).eval(), torch.randint(0, 97, (2, 8))


def bert() -> tuple[nn.Module, torch.Tensor]:
    sizes = {
        "vocab_size": 97,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    return transformers.BertModel(transformers.BertConfig(**sizes)).eval(), torch.randint(
        1, 97, (2, 12)
    )


class InPlace(nn.Module):
    """Writes into its tensors, into views of them, and into what it was given; holds them in
    another order than their shape's.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x.contiguous(memory_format=torch.channels_last)))
        functional.relu_(y[:, 1:3])
        y += y.mean((2, 3), keepdim=True)
        y[:, 0].mul_(0.5).add_(1)
        self.seen += 1
        kept = torch.zeros_like(y)
        kept[:, ::2] = y[:, ::2]
        with torch.no_grad():
            torch.add(kept.detach(), y, out=kept.detach())
        x.clamp_(min=0)
        return kept.flatten(1).t().contiguous() @ y.flatten(1) + x.sum()


def convnet() -> tuple[nn.Module, torch.Tensor]:
    return nn.Sequential(nn.Conv2d(3, 3, 1), InPlace()).train(), torch.randn(2, 3, 6, 6)


MODELS: dict[str, tuple[Callable[[], tuple[nn.Module, torch.Tensor]], str]] = {
    "gpt2": (gpt2, "transformer.h.1.attn"),
    "bert": (bert, "encoder.layer.1.attention.self"),
    "convnet": (convnet, "1"),
    "batch norm": (convnet, "1.norm"),
    "lstm": (
        lambda: (
            Glue(lambda self, x: self.lstm(x)[0], lstm=nn.LSTM(4, 5, 2)),
            torch.randn(3, 2, 4),
        ),
        "lstm",
    ),
    "all of gpt2": (lambda: gpt2("sdpa"), "*"),
}


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> tuple[nn.Module, torch.Tensor, str]:
    build, name = MODELS[request.param]
    return *build(), name


def run(model: nn.Module, x: torch.Tensor, out: Path, **options: Any) -> Any:
    """Capture one forward of a copy; the model and what it is given stay as they are."""
    context = options.pop("context", torch.no_grad)
    model = copy.deepcopy(model)
    with ac.capture(model, out, **grouped(overwrite=True, **options)), context():
        result = model(x.clone())
    return (
        [result.logits if "logits" in result else result[0]]
        if not isinstance(result, torch.Tensor)
        else [result, *model.buffers()]
    )


def digests(bundle: Bundle) -> dict[Any, Any]:
    return {record.key: (record.dtype, record.shape, record.digest) for record in bundle.records()}


def records(path: Path) -> list[Record]:
    with ac.open_bundle(path) as bundle:
        return list(bundle.records())


def operators(bundle: Bundle, name: str) -> list[str]:
    """Those of a module in their order."""
    found = [
        record.path.partition(".0")[0]
        for record in bundle.records()
        if record.name == name and record.role == "op_output"
    ]
    return [re.sub(r"\.\d+$", "", path) for path in found]


# --- without feed ---


@pytest.mark.parametrize(
    ("model", "context", "emulate"),
    [
        ("gpt2", torch.no_grad, None),
        ("gpt2", "autocast in inference mode", "hf32"),
        ("bert", torch.inference_mode, None),
        ("bert", torch.enable_grad, "hf32"),
        ("convnet", torch.enable_grad, None),
        ("convnet", "autocast in inference mode", None),
        ("batch norm", lambda: torch.autocast("cpu"), None),
        ("batch norm", torch.enable_grad, "hf32"),
        ("lstm", torch.enable_grad, None),
        ("lstm", "autocast in inference mode", None),
        ("all of gpt2", torch.enable_grad, None),
        ("all of gpt2", lambda: torch.autocast("cpu"), None),
    ],
    indirect=["model"],
)
def test_the_model_computes_what_it_computes_without(
    model: tuple[nn.Module, torch.Tensor, str],
    tmp_path: Path,
    opened: Opened,
    context: Any,
    emulate: str | None,
) -> None:
    @contextlib.contextmanager
    def both() -> Any:
        with torch.autocast("cpu"), torch.inference_mode():
            yield

    network, x, name = model
    autocast = isinstance(context, str) or isinstance(context(), torch.autocast)
    if (
        autocast
        and any(isinstance(module, nn.LSTM) for module in network.modules())
        and not has_lstm_in_bfloat16()
    ):
        pytest.skip("this processor runs no LSTM in bfloat16")
    if not isinstance(network, Glue):
        network.train()  # with dropout
    options = {"context": both if isinstance(context, str) else context, "emulate": emulate}
    plain = run(network, x, tmp_path / "plain", **options)
    watched = run(network, x, tmp_path / "ops", level="op", only=name, **options)
    assert all(torch.equal(one, other) for one, other in zip(plain, watched, strict=True))
    ours, theirs = digests(opened(tmp_path / "ops")), digests(opened(tmp_path / "plain"))
    assert {key: value for key, value in ours.items() if key in theirs} == {
        key: theirs[key] for key in ours if key in theirs
    }
    assert any(key.role == "op_output" for key in ours)


def test_an_operator_is_recorded_with_its_call_its_arguments_and_its_line(
    tmp_path: Path, opened: Opened
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.gelu(x, approximate="tanh") * 2 * 0.5

    inner = Glue(forward)
    x = torch.randn(3)
    run(
        Glue(lambda self, x: self.inner(self.inner(x)), inner=inner),
        x,
        tmp_path / "ops",
        level="op",
        only="inner",
    )
    bundle = opened(tmp_path / "ops")
    line = f"recorder/test_operators.py:{inspect.getsourcelines(forward)[1] + 1}"
    found = [
        record
        for record in bundle.records()
        if record.role.value.startswith("op_") and record.call == 1
    ]
    assert [(record.role.value, record.path) for record in found] == [
        ("op_input", "aten.gelu.default#0.self"),
        ("op_input", "aten.gelu.default#0.approximate"),
        ("op_output", "aten.gelu.default#0"),
        ("op_input", "aten.mul.Tensor#0.self"),
        ("op_input", "aten.mul.Tensor#0.other"),
        ("op_output", "aten.mul.Tensor#0"),
        ("op_input", "aten.mul.Tensor#1.self"),
        ("op_input", "aten.mul.Tensor#1.other"),
        ("op_output", "aten.mul.Tensor#1"),
    ]
    assert {(record.source_line, record.parent, record.name) for record in found} == {
        (line, ("inner", 1), "inner")
    }
    assert (found[1].detail, found[1].source_line) == ("str 'tanh'", line)
    assert found[0].type == "aten.gelu.default"
    assert bundle.load("inner", call=1, role="op_input", path="aten.mul.Tensor#1.other") == 0.5
    np.testing.assert_array_equal(
        bundle.load("inner", role="op_output", path="aten.gelu.default#0"),
        functional.gelu(x, approximate="tanh"),
    )


def test_a_childs_operators_are_its_own_and_its_calls_are_recorded(
    tmp_path: Path, opened: Opened
) -> None:
    inner = Glue(lambda self, x: self.fc(x).relu() + 1, fc=nn.Linear(2, 2))
    run(
        Glue(lambda self, x: self.inner(x).exp(), inner=inner),
        torch.randn(3, 2),
        tmp_path / "ops",
        level="op",
        only="inner",
    )
    bundle = opened(tmp_path / "ops")
    assert operators(bundle, "inner") == ["aten.relu.default#0", "aten.add.Tensor#0"]
    assert [
        (record.name, record.role.value) for record in bundle.records() if not record.source_line
    ] == [
        ("", "input"),
        ("inner", "input"),
        ("inner.fc", "input"),
        ("inner.fc", "output"),
        ("inner", "output"),
    ]


def test_what_moves_values_or_draws_them_is_left_out(tmp_path: Path, opened: Opened) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = torch.empty_like(x)
        y.copy_(x.view(3, 2).t().reshape(2, 3).to(torch.float64))
        return functional.dropout(y, 0.5, training=True) + torch.rand(2, 3)

    run(Glue(forward), torch.randn(2, 3), tmp_path / "ops", level="op", only="")
    assert operators(opened(tmp_path / "ops"), "") == [
        "aten.div_.Scalar#0",
        "aten.mul.Tensor#0",
        "aten.add.Tensor#0",
    ]


def test_memory_that_holds_no_values_yet_is_not_recorded_as_an_input(
    tmp_path: Path, opened: Opened
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        inverse = torch.empty_like(x)
        inverse[x] = torch.arange(len(x))
        inverse[x] = inverse + 1
        return inverse

    run(Glue(forward), torch.randperm(8), tmp_path / "ops", level="op", only="")
    paths = [
        record.path for record in opened(tmp_path / "ops").records() if record.role == "op_input"
    ]
    assert "aten.index_put_.default#0.self" not in paths
    assert {"aten.index_put_.default#0.values", "aten.index_put_.default#1.self"} <= set(paths)


def test_no_mode_is_left_behind_even_if_the_forward_raises(tmp_path: Path) -> None:
    def fail(self: Any, x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no")

    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        with contextlib.suppress(RuntimeError):
            self.inner(x)
        return x + 1

    model = Glue(forward, inner=Glue(fail))
    with ac.capture(model, tmp_path / "ops", record=ac.Recorded(level="op", only="*")):
        model(torch.ones(2))
        assert dispatching._get_current_dispatch_mode() is None
    broken = Glue(fail)
    with (
        pytest.raises(RuntimeError, match="no"),
        ac.capture(broken, tmp_path / "broken", record=ac.Recorded(level="op", only="*")),
    ):
        broken(torch.ones(2))
    assert dispatching._get_current_dispatch_mode() is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"level": "op"}, "level op (--level): name the modules"),
        ({"level": "layer"}, "level must be 'module' or 'op', but is 'layer'"),
        (
            {"level": "op", "only": "fc", "feed": "golden"},
            "holds no operators; capture it with --level op --only fc",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    model = Glue(lambda self, x: self.fc(x), fc=nn.Linear(2, 2))
    run(model, torch.ones(1, 2), tmp_path / "golden")
    if "feed" in options:
        options = {**options, "feed": tmp_path / "golden"}
    with pytest.raises(UsageError, match=re.escape(message)):
        run(model, torch.ones(1, 2), tmp_path / "ops", **options)
    assert not (tmp_path / "ops" / "manifest.json").exists()


# --- fed ---


def test_fed_with_itself_everything_is_the_same(
    model: tuple[nn.Module, torch.Tensor, str], tmp_path: Path, opened: Opened
) -> None:
    network, x, name = model
    given = run(network, x, tmp_path / "golden", level="op", only=name)
    fed = run(network, x, tmp_path / "fed", level="op", feed=tmp_path / "golden")
    golden, candidate = opened(tmp_path / "golden"), opened(tmp_path / "fed")
    assert digests(golden) == digests(candidate)
    assert [
        entry
        for entry in candidate.manifest.capture["feed"]["not_fed"]
        if entry["role"].startswith("op_")
    ] == []
    assert all(torch.equal(one, other) for one, other in zip(given, fed, strict=True))


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_fed_a_rounded_model_goes_on_with_goldens_values(
    tmp_path: Path, opened: Opened, context: Any
) -> None:
    """Every operator is given golden's values, in place or not, so no error is handed on: what
    arrives is golden's, rounded once.
    """
    network, x = convnet()
    run(network, x, tmp_path / "golden", level="op", only="1", context=context)
    fed = run(
        network.to(torch.bfloat16),
        x.bfloat16(),
        tmp_path / "fed",
        level="op",
        feed=tmp_path / "golden",
        force=True,
        context=context,
    )
    golden, candidate = opened(tmp_path / "golden"), opened(tmp_path / "fed")
    theirs = {record.key: record for record in golden.records()}
    seen = 0
    for record in candidate.records():
        state = re.search(r"#0\.(self)?$", record.path) and record.shape == (1,)
        if (
            record.name == "1"
            and record.role == "op_input"
            and record.dtype == "bfloat16"
            and not state
        ):
            values = torch.from_numpy(golden.values(theirs[record.key])).bfloat16().float().numpy()
            np.testing.assert_array_equal(candidate.values(record), values, str(record.key))
            seen += 1
    assert seen > 8
    expected = torch.from_numpy(golden.load("1")).bfloat16()
    assert torch.equal(fed[0], expected)


def test_operators_compute_with_parameters_and_buffers_of_the_models_own(
    tmp_path: Path, opened: Opened
) -> None:
    def net(scale: float) -> nn.Module:
        model = Glue(lambda self, x: functional.linear(x, self.weight) + self.kept.add_(1))
        model.weight = nn.Parameter(torch.full((2, 2), scale))
        model.register_buffer("kept", torch.full((2,), scale))
        return model

    run(net(1.0), torch.ones(1, 2), tmp_path / "golden", level="op", only="")
    own = net(3.0)
    with ac.capture(
        own,
        tmp_path / "fed",
        record=ac.Recorded(level="op"),
        feed=ac.FedWith(tmp_path / "golden", force=True),
    ):
        own(torch.ones(1, 2))
    assert (own.weight == 3).all()
    assert opened(tmp_path / "fed").load("", role="buffer_update", path="kept").tolist() == [4, 4]
    assert (own.kept == 2).all()  # golden's, when the call is over
    np.testing.assert_array_equal(
        opened(tmp_path / "fed").load("", role="op_output", path="aten.mm.default#0"), [[6.0, 6.0]]
    )


def test_operators_that_golden_lacks_are_passed_on_and_listed(
    tmp_path: Path, opened: Opened
) -> None:
    x = torch.rand(4)
    run(Glue(lambda self, x: (x + 1).exp()), x, tmp_path / "golden", level="op", only="")
    given = run(
        Glue(lambda self, x: (x + 1).tanh().atanh().exp()),
        x,
        tmp_path / "fed",
        level="op",
        feed=tmp_path / "golden",
        force=True,
    )
    entries = opened(tmp_path / "fed").manifest.capture["feed"]["not_fed"]
    assert [(entry["path"], entry["why"]) for entry in entries] == [
        ("aten.tanh.default#0", "golden runs no such operator here"),
        ("aten.atanh.default#0", "golden runs no such operator here"),
    ]
    assert torch.equal(given[0], (x + 1).exp())


def test_an_operator_more_of_the_same_name_takes_no_other_ones_place(
    tmp_path: Path, opened: Opened
) -> None:
    """The candidate's first product is not golden's first one: neither its line nor what goes into
    it is golden's.
    """

    def golden(self: Any, x: torch.Tensor) -> torch.Tensor:
        return (x.exp() * 2).log() * 3

    def candidate(self: Any, x: torch.Tensor) -> torch.Tensor:
        return ((x * 50).div(50).exp() * 2).log() * 3

    x = torch.rand(8)
    run(Glue(golden), x, tmp_path / "golden", level="op", only="")
    run(Glue(candidate), x, tmp_path / "fed", level="op", feed=tmp_path / "golden", force=True)
    bundle = opened(tmp_path / "fed")
    assert operators(bundle, "")[-1] == "aten.mul.Tensor#1"
    np.testing.assert_array_equal(
        bundle.load("", role="op_input", path="aten.mul.Tensor#1.other"), 3
    )


def test_operators_are_never_fed_out_of_sequence(tmp_path: Path, opened: Opened) -> None:
    """The candidate runs golden's two the other way round: one finds its own by what goes in, and
    the other comes too late.
    """

    def forward(self: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return [each.exp() for each in ((y, x) if self.turned else (x, y))][self.turned]

    model, given = Glue(forward), (torch.randn(8), torch.randn(8))
    for out, turned in (("golden", 0), ("fed", 1)):
        model.turned = turned
        with (
            ac.capture(
                model,
                tmp_path / out,
                record=ac.Recorded(level="op", only=""),
                feed=tmp_path / "golden" if turned else None,
            ),
            torch.no_grad(),
        ):
            assert torch.equal(model(*given), given[0].exp())
    assert operators(opened(tmp_path / "fed"), "") == ["aten.exp.default#1", "aten.exp.default#2"]
    assert ac.diff(tmp_path / "golden", tmp_path / "fed").answer.value == "identical"


# --- naming the operator ---


def compared(
    network: nn.Module, x: torch.Tensor, only: str, tmp_path: Path, dtype: torch.dtype
) -> Comparison:
    """Fed captures of one module's operators, with a baseline; ``network`` may be broken since
    golden was captured.
    """
    floating = x.to(dtype) if x.is_floating_point() else x
    run(
        copy.deepcopy(network).to(dtype),
        floating,
        tmp_path / "candidate",
        level="op",
        feed=tmp_path / "golden",
        force=True,
    )
    return ac.diff(tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline")


def prepare(
    network: nn.Module, x: torch.Tensor, only: str, tmp_path: Path, dtype: torch.dtype
) -> None:
    exact = {torch.float32: torch.float64}.get(dtype, dtype)
    floating = x.to(exact) if x.is_floating_point() else x
    run(network, x, tmp_path / "golden", level="op", only=only)
    run(
        copy.deepcopy(network).to(exact),
        floating,
        tmp_path / "baseline",
        level="op",
        feed=tmp_path / "golden",
        force=True,
    )


def line_of(function: Any, text: str) -> str:
    """Where a line of a function is, as a source line is given."""
    lines, first = inspect.getsourcelines(function)
    (number,) = (number for number, line in enumerate(lines, first) if text in line)
    return f"{'/'.join(Path(inspect.getsourcefile(function) or '').parts[-2:])}:{number}"


def scaled_softmax(*args: Any, **kwargs: Any) -> torch.Tensor:
    return plain_softmax(*args, **kwargs) * 1.05


def wrong_scale(*args: Any, scale: Any = None, **kwargs: Any) -> torch.Tensor:
    return plain_attention(*args, scale=9.0, **kwargs)


def leaky(x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu_(x, 0.1)


ATTENTION = transformers.models.gpt2.modeling_gpt2.eager_attention_forward
FAULTS = {
    "softmax, scaled": (
        lambda: gpt2(),
        "transformer.h.1.attn",
        "softmax",
        scaled_softmax,
        (
            "transformer.h.1.attn: only the candidate runs aten.mul"
            f" ({line_of(scaled_softmax, '1.05')})"
        ),
    ),
    "attention's scale": (
        bert,
        "encoder.layer.1.attention.self",
        "scaled_dot_product_attention",
        wrong_scale,
        (
            "encoder.layer.1.attention.self: aten._scaled_dot_product_flash_attention_for_cpu"
            f" ({line_of(wrong_scale, '9.0')}): golden gives scale {8**-0.5}, the candidate 9.0"
        ),
    ),
    "another operator, in place": (
        convnet,
        "1",
        "relu_",
        leaky,
        (
            f"1: only golden runs aten.relu_ ({line_of(InPlace.forward, 'relu_')}); "
            f"only the candidate runs aten.leaky_relu_ ({line_of(leaky, '0.1')})"
        ),
    ),
}


@pytest.mark.parametrize(("fault", "dtype"), once(FAULTS, [torch.float32, torch.bfloat16]))
def test_the_operator_with_the_fault_is_named_with_its_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: str, dtype: torch.dtype
) -> None:
    build, only, name, broken, place = FAULTS[fault]
    network, x = build()
    prepare(network, x, only, tmp_path, dtype)
    assert compared(network, x, only, tmp_path, dtype).culprits == []
    monkeypatch.setattr(functional, name, broken)
    comparison = compared(network, x, only, tmp_path, dtype)
    assert comparison.culprits[0].place == place
    assert comparison.conclusion.startswith(f"bug: {place}, excess ")


def test_what_is_given_differently_is_named_and_is_no_failure_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, x = bert()
    prepare(network, x, "encoder.layer.1.attention.self", tmp_path, torch.float32)
    monkeypatch.setattr(functional, "scaled_dot_product_attention", wrong_scale)
    comparison = compared(network, x, "encoder.layer.1.attention.self", tmp_path, torch.float32)
    assert comparison.culprits[0].difference == Difference(
        options=(Option("scale", str(8**-0.5), "9.0"),)
    )
    (row,) = (row for row in comparison.rows if row.place.endswith(".scale"))
    assert row.status.value == "not compared"


def test_a_view_that_is_wrong_is_found_in_what_the_next_operator_takes(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return (x + 1) @ (x.exp().flip(0) if self.broken else x.exp().t().t())

    network, x = Glue(forward), torch.randn(6, 6)
    network.broken = False
    prepare(network, x, "", tmp_path, torch.float32)
    network.broken = True
    comparison = compared(network, x, "", tmp_path, torch.float32)
    line = line_of(forward, "flip")
    assert comparison.culprits[0].place == f"(root): only the candidate runs aten.flip ({line})"
    assert comparison.culprits[0].hints[0] == f"seen in what aten.mm ({line}) takes as mat2"


def test_other_ways_to_compute_the_same_align_and_fail_nothing(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        if self.other:
            y = (x - x.amax(-1, keepdim=True)).exp()
            y = y / y.sum(-1, keepdim=True)
        else:
            y = x.softmax(-1)
        return y @ x.t()

    network, x = Glue(forward), torch.randn(6, 6)
    network.other = False
    run(network, x, tmp_path / "golden", level="op", only="")
    network.other = True
    for out, feed in (("free", None), ("fed", tmp_path / "golden")):
        run(network, x, tmp_path / out, level="op", only="", feed=feed, force=feed is not None)
        comparison = ac.diff(tmp_path / "golden", tmp_path / out)
        assert (comparison.passed, comparison.culprits) == (True, [])
        details = [
            verdict_words.detail(row)
            for row in comparison.rows
            if row.reason.value == "not comparable"
        ]
        assert {
            "only golden runs this operator here",
            "only the candidate runs this operator here",
        } == set(details)
        (product,) = (
            row for row in comparison.rows if row.place == "(root) op_output.aten.mm.default#0"
        )
        assert product.status.value == "pass"


# --- other operators on the two sides: free-running and fed ---


def chain(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    if self.scaled:
        y = y * 3
    y = y.sin()
    y = y * 0.5
    return y.cos()


def loop(self: Any, x: torch.Tensor) -> torch.Tensor:
    for count in range(self.times):
        x = x * (count + 2)
        x = x.sin() + 1
    return x.mul(5).cos()


def repeated(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y = y.repeat(1, 2) if self.wrong else y.repeat_interleave(2, 1)  # which is composed of views
    return (y * 2 + torch.arange(8)).sum(-1)


def turned(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    y = y.roll(1, 0) if self.wrong else y.flip(0)
    return (y * 2 + torch.arange(4)).sum(-1)


def normed(self: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.layer_norm(x * 1e-3, (4,), eps=self.eps).relu()


def scaled(self: Any, x: torch.Tensor) -> torch.Tensor:
    return x.exp().add(x, alpha=self.alpha).tanh()


def ended(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.exp().sum(-1)
    return y * 3 if self.scaled else y


def used_later(self: Any, x: torch.Tensor) -> torch.Tensor:
    y = x.exp()
    z = y.mul(3) if self.scaled else y
    w = y.tanh().sqrt()
    return w + z


#: The module's code; what the code is told on golden's side and on the candidate's; what is then
# named, and the line that is.
CHANGES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], str, str]] = {
    "one less": (
        chain,
        {"scaled": True},
        {"scaled": False},
        "only golden runs aten.mul ({})",
        "y * 3",
    ),
    "one more": (
        chain,
        {"scaled": False},
        {"scaled": True},
        "only the candidate runs aten.mul ({})",
        "y * 3",
    ),
    "one more round": (
        loop,
        {"times": 2},
        {"times": 3},
        "only the candidate runs aten.mul ({})",
        "count + 2",
    ),
    "one round less": (
        loop,
        {"times": 3},
        {"times": 2},
        "only golden runs aten.mul ({})",
        "count + 2",
    ),
    "for views": (
        repeated,
        {"wrong": False},
        {"wrong": True},
        "only the candidate runs aten.repeat ({})",
        "y.repeat",
    ),
    "another": (
        turned,
        {"wrong": False},
        {"wrong": True},
        "only golden runs aten.flip ({0}); only the candidate runs aten.roll ({0})",
        "flip",
    ),
    "eps": (
        normed,
        {"eps": 1e-5},
        {"eps": 1e-6},
        "aten.native_layer_norm ({}): golden gives eps 1e-05, the candidate 1e-06",
        "layer_norm",
    ),
    "a number": (
        scaled,
        {"alpha": 2},
        {"alpha": 3},
        "aten.add.Tensor ({}): golden gives alpha 2, the candidate 3",
        "alpha",
    ),
    "at the end": (
        ended,
        {"scaled": True},
        {"scaled": False},
        "only golden runs aten.mul ({})",
        "y * 3",
    ),
    "used later": (
        used_later,
        {"scaled": True},
        {"scaled": False},
        "only golden runs aten.mul ({})",
        "y.mul(3)",
    ),
}


def changed(
    tmp_path: Path,
    fed: bool,
    code: Any,
    golden: dict[str, Any],
    candidate: dict[str, Any],
    x: Any = None,
) -> Comparison:
    """Golden and candidate of one code that is told different things."""
    x = torch.linspace(0.1, 2.0, 12).reshape(3, 4) if x is None else x
    for out, told in (("golden", golden), ("candidate", candidate)):
        model = Glue(code)
        vars(model).update(told)
        feed = tmp_path / "golden" if fed and out == "candidate" else None
        run(model, x, tmp_path / out, level="op", only="", feed=feed, force=fed)
    return ac.diff(tmp_path / "golden", tmp_path / "candidate")


@pytest.mark.parametrize(("change", "fed"), once(CHANGES, [False, True]))
def test_what_the_two_sides_run_or_give_differently_is_named_first(
    tmp_path: Path, change: str, fed: bool
) -> None:
    code, golden, candidate, place, line = CHANGES[change]
    comparison = changed(tmp_path, fed, code, golden, candidate)
    assert comparison.culprits[0].place.startswith(
        f"(root): {place.format(line_of(code, line))}"
    ), comparison.culprits
    assert comparison.culprits[0].difference is not None
    keys = [
        [record.key for record in opened]
        for opened in map(records, (tmp_path / "golden", tmp_path / "candidate"))
    ]
    assert [row.golden.key for row in comparison.rows if row.golden] == keys[0]
    assert sorted(row.candidate.key for row in comparison.rows if row.candidate) == sorted(keys[1])


@pytest.mark.parametrize("fed", [False, True], ids=["free", "fed"])
def test_the_same_composed_otherwise_is_not_blamed_for_what_is_wrong_later(
    tmp_path: Path, fed: bool
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * x.sigmoid() if self.other else functional.silu(x)
        y = y * x
        return torch.fmod(y, 7.0).tanh() * (0.7 if self.other else 0.5)

    comparison = changed(tmp_path, fed, forward, {"other": False}, {"other": True})
    rows = {row.place: row for row in comparison.rows}
    assert all(
        rows[f"(root) op_input.aten.{name}.self"].status.value == "pass"
        for name in ("fmod.Scalar#0", "tanh.default#0")
    )
    line = line_of(forward, "fmod")
    call = 1 if fed else 2  # fed, it has golden's number
    assert (
        comparison.culprits[0].place
        == f"(root): aten.mul.Tensor call {call} ({line}): golden gives other 0.5, the"
        " candidate 0.7"
    )
    assert not any(
        culprit.difference.only_candidate for culprit in comparison.culprits if culprit.difference
    )


@pytest.mark.parametrize("fed", [False, True], ids=["free", "fed"])
def test_operators_that_change_nothing_behind_them_are_no_culprits(
    tmp_path: Path, fed: bool
) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        if self.more:
            y.amax() * y.abs().sum()
            y = y * 1
        return y.sin().mul(0.5).cos()

    comparison = changed(tmp_path, fed, forward, {"more": False}, {"more": True})
    assert (comparison.answer.value, comparison.passed, comparison.culprits) == (
        "identical",
        True,
        [],
    )
    assert {verdict_words.detail(row) for row in comparison.rows if row.golden is None} == {
        "only the candidate runs this operator here"
    }


def test_an_operator_is_not_fed_values_that_are_not_like_those_that_arrive(
    tmp_path: Path, opened: Opened
) -> None:
    changed(tmp_path, True, chain, {"scaled": False}, {"scaled": True})
    fed = opened(tmp_path / "candidate")
    x = torch.linspace(0.1, 2.0, 12).reshape(3, 4)
    np.testing.assert_array_equal(
        fed.load("", role="op_output", path="aten.sin.default#0"), (x.exp() * 3).sin()
    )
    why = {entry["path"]: entry["why"] for entry in fed.manifest.capture["feed"]["not_fed"]}
    assert why["aten.mul.Tensor#1"] == "golden runs no such operator here"
    assert why["aten.sin.default#0"] == "what arrives is not like what golden's takes"


@pytest.mark.parametrize("fed", [False, True], ids=["free", "fed"])
def test_code_that_has_moved_is_the_same_code_and_both_lines_are_told(
    tmp_path: Path, fed: bool
) -> None:
    def golden(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        y = y * 3
        return (y.tanh() * 0.5).cos() + torch.arange(4)

    def candidate(self: Any, x: torch.Tensor) -> torch.Tensor:
        y = x.exp()
        return (y.tanh() * 0.5).cos() + torch.arange(4)

    for out, code in (("golden", golden), ("candidate", candidate)):
        feed = tmp_path / "golden" if fed and out == "candidate" else None
        run(
            Glue(code),
            torch.linspace(-2, 2, 4),
            tmp_path / out,
            level="op",
            only="",
            feed=feed,
            force=feed is not None,
        )
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert (
        comparison.culprits[0].place
        == f"(root): only golden runs aten.mul ({line_of(golden, 'y * 3')})"
    )
    if not fed:  # fed, what arrives at the next one is not like golden's, so it finds no partner
        taker, theirs = line_of(candidate, "tanh"), line_of(golden, "tanh")
        assert (
            comparison.culprits[0].hints[0]
            == f"seen in what aten.tanh ({taker}) takes as self, in golden at {theirs}"
        )


def test_a_number_that_one_side_alone_gives_is_one_that_differs(tmp_path: Path) -> None:
    def forward(self: Any, x: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(x, x, x, scale=self.scale)

    x = torch.randn(1, 1, 4, 8)
    comparison = changed(tmp_path, False, forward, {"scale": None}, {"scale": 9.0}, x)
    difference = comparison.culprits[0].difference
    assert difference == Difference(options=(Option("scale", "", "9.0"),))
    assert (
        verdict_words.difference_words(difference) == "golden gives scale none, the candidate 9.0"
    )
    (row,) = (row for row in comparison.rows if row.place.endswith(".scale"))
    assert (row.golden, verdict_words.detail(row)) == (
        None,
        "golden gives scale none, the candidate 9.0",
    )


@pytest.mark.parametrize("fed", [False, True], ids=["free", "fed"])
def test_bundles_whose_lines_name_no_folder_align_as_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fed: bool
) -> None:
    with monkeypatch.context() as older:
        older.setattr(capture_operators, "source_line", lambda folders=0: source_line())
        run(
            Glue(lambda self, x: (x.exp() * 2).cos()),
            torch.ones(3),
            tmp_path / "golden",
            level="op",
            only="",
        )
    feed = tmp_path / "golden" if fed else None
    run(
        Glue(lambda self, x: (x.exp() * 3).cos()),
        torch.ones(3),
        tmp_path / "candidate",
        level="op",
        only="",
        feed=feed,
        force=fed,
    )
    lines = {
        record.source_line.partition(":")[0]
        for record in records(tmp_path / "golden")
        if record.source_line
    }
    assert lines == {"test_operators.py"}
    comparison = ac.diff(tmp_path / "golden", tmp_path / "candidate")
    assert "golden gives other 2, the candidate 3" in comparison.culprits[0].place
    assert all(row.golden and row.candidate for row in comparison.rows)


def test_what_went_into_the_chosen_module_is_not_its_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only that module is fed; what comes from above carries the whole model's error."""
    network, x = gpt2()
    prepare(network, x, "transformer.h.1.attn", tmp_path, torch.float32)
    monkeypatch.setattr(functional, "softmax", scaled_softmax)
    comparison = compared(network, x, "transformer.h.1.attn", tmp_path, torch.float32)
    (row,) = (row for row in comparison.rows if row.place == "transformer.h.1.attn input.0")
    assert row.reason.value == "inherited"
    assert [culprit.place for culprit in comparison.culprits[1:]] == [
        "transformer.h.1.attn (glue, at its end)"
    ]


def test_locate_goes_on_to_the_operator(cli: Run, tmp_path: Path) -> None:
    case = ROOT / "fixtures" / "minilm.py"
    assert cli("capture", case, "--out", "golden", "--quiet").returncode == 0
    done = cli(
        "locate",
        f"{case}:faulty",
        "--device",
        "cpu",
        "--golden",
        "golden",
        "--golden-case",
        case,
        "--ops",
        "--quiet",
        COLUMNS="200",
    )
    assert done.returncode == 1, done.stderr
    first, second = (line for line in done.stdout.splitlines() if "bug:" in line)
    assert "bug: encoder.layer.2.attention.output.LayerNorm, excess" in first
    name = "encoder.layer.2.attention.output.LayerNorm: aten.native_layer_norm"
    assert re.search(
        rf"bug: {re.escape(name)} \(fixtures/minilm\.py:\d+\): golden gives eps 1e-12, the"
        r" candidate 0.01, excess",
        second,
    )
    assert (tmp_path / "reports" / "locate-ops.xlsx").is_file()
    assert sorted(path.name for path in (tmp_path / "locate" / "ops").iterdir()) == [
        "baseline",
        "candidate",
        "golden",
    ]
