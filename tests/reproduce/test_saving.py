"""The reproducer: one module call, saved and run again from the written script, in a process of its
own.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.errors import CaptureError
from accucompare.live.numerics.autocast import autocast_now, autocast_then
from accucompare.reproduce.reproducer import Reproducer
from accucompare.reproduce.saving import save_reproducer
from accucompare.reproduce.snapshot import Snapshot
from tests.forkserver import MODULE, SCRIPT, with_torch
from tests.reproduce.reproduced import (
    INF,
    NAN,
    InPlace,
    ManyTypes,
    Root,
    Taken,
    Tied,
    Unkept,
    found,
    poisoned,
    rerun,
    run,
    run_here,
    save,
    take,
)

ROOT = Path(__file__).parent.parent.parent
Planted = Callable[[], Taken]
#: name: (what makes it, a piece of text that its script must have)
PLANTED: dict[str, tuple[Planted, str]] = {}


def planted(text: str) -> Callable[[Planted], Planted]:
    """Adds a test case: a call whose output or gradient is not finite, and how its script makes the
    module.
    """

    def add(make: Planted) -> Planted:
        PLANTED[make.__name__] = make, text
        return make

    return add


@planted("return nn.Linear(4, 2, bias=False)")
def linear_overflow_in_float16() -> Taken:
    model = nn.Sequential(nn.ReLU(), nn.Linear(4, 2, bias=False).half())
    nn.init.ones_(model[1].weight)
    return take(model, "1", torch.full((3, 4), 60000.0, dtype=torch.float16))


@planted("return nn.LayerNorm((4,), eps=0.0)")
def norm_of_a_constant() -> Taken:
    return take(nn.LayerNorm(4, eps=0.0), "", torch.ones(2, 4))


@planted("return nn.Embedding(5, 3, padding_idx=1)")
def embedding_with_a_nan_weight() -> Taken:
    model = nn.Embedding(5, 3, padding_idx=1)
    poisoned(model.weight)
    return take(model, "", torch.tensor([[0, 2]], dtype=torch.int32))


@planted("return nn.Conv2d(3, 4, (3, 3), padding=(1, 1))")
def convolution_in_channels_last() -> Taken:
    model = nn.Conv2d(3, 4, 3, padding=1).to(memory_format=torch.channels_last).bfloat16()
    nn.init.ones_(model.weight)  # terms of one sign overflow in whatever order they are summed
    return take(
        model,
        "",
        torch.full((2, 3, 5, 5), 3e38, dtype=torch.bfloat16).to(memory_format=torch.channels_last),
    )


@planted("nn.LSTM(3, 4, num_layers=2, dropout=0.5, bidirectional=True)")
def lstm_with_a_nan_weight() -> Taken:
    model = nn.LSTM(3, 4, 2, bidirectional=True, dropout=0.5)
    poisoned(model.weight_hh_l0)
    return take(model, "", torch.randn(5, 2, 3))


@planted("return nn.MultiheadAttention(8, 2, batch_first=True)")
def attention_with_a_masked_row() -> Taken:
    model, x = nn.MultiheadAttention(8, 2, batch_first=True), torch.randn(2, 3, 8)
    return take(model, "", x, x, x, attn_mask=torch.full((3, 3), -INF))


@planted("dim_feedforward=16,")
def encoder_layer_with_dropout() -> Taken:
    model = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, activation="gelu"), 2
    )
    poisoned(model.layers[1].linear2.weight, INF)
    return take(model, "layers.1", torch.randn(2, 3, 8))


@planted(
    "nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(), nn.BatchNorm1d(6), nn.ReLU())"
)
def batch_norm_in_both_modes() -> Taken:
    model = nn.Sequential(
        nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.BatchNorm1d(6), nn.ReLU()
    )
    model(torch.randn(5, 4))
    model[3].eval()
    model[3].running_var.fill_(INF)
    poisoned(model[0].weight)
    return take(model, "", torch.randn(3, 4))


@planted("assemble(")
def module_that_keeps_no_arguments() -> Taken:
    return take(Unkept(4, torch.tanh), "", torch.randn(2, 4))


@planted("'again': nn.PReLU(),")
def tied_weights_and_shared_modules() -> Taken:
    model = Tied(5, 3)
    poisoned(model.embed.weight)
    return take(model, "", torch.tensor([0, 1]), backward=True)


@planted("nn.utils.weight_norm(nn.Linear(3, 2), 'weight', 0)")
def weight_norm_of_a_zero_row() -> Taken:
    with pytest.warns(FutureWarning):
        model = nn.utils.weight_norm(nn.Linear(3, 2))
    with torch.no_grad():
        model.weight_v[0] = 0
    return take(model, "", torch.randn(2, 3))


@planted("parametrize.register_parametrization(")
def parametrized_weight_norm_of_a_zero_row() -> Taken:
    model = nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    with torch.no_grad():
        model.parametrizations.weight.original1[0] = 0
    return take(model, "", torch.randn(2, 3))


@planted("nn.utils.parametrizations.spectral_norm(")
def spectral_norm_of_nothing() -> Taken:
    model = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).eval()
    with torch.no_grad():
        model.parametrizations.weight.original.zero_()
    return take(model, "", torch.randn(2, 3))


@planted("return ManyTypes()")
def inputs_of_every_type() -> Taken:
    x = torch.randn(3)
    given = {
        "half": torch.randn(2).half(),
        "bfloat16": torch.randn(2).bfloat16(),
        "float8": torch.randn(2).to(torch.float8_e4m3fn),
        "double": torch.randn((), dtype=torch.float64),
        "complex": torch.randn(2, dtype=torch.complex64),
        "bool": torch.tensor([True, False]),
        "int": [
            torch.arange(3, dtype=torch.int8),
            torch.tensor(7),
            (torch.zeros(0, 3), None, True, 3, -INF),
        ],
        "expanded": torch.randn(1, 3).expand(4, 3),
        "turned": torch.randn(2, 3).t(),
    }
    return take(ManyTypes(), "", given, x, x, option="a 'word'\n", scale=INF)


@planted("return nn.Linear(4, 4)")
def autocast_to_bfloat16() -> Taken:
    model = nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        return take(model, "", torch.full((2, 4), 3.4e38))


@planted("Root()")
def gradient_of_a_root_at_zero() -> Taken:
    return take(
        nn.Sequential(nn.Linear(2, 2), nn.ReLU(), Root()), "2", torch.zeros(1, 2), backward=True
    )


@planted("InPlace()")
def written_into_in_place() -> Taken:
    return take(
        nn.Sequential(nn.Identity(), InPlace()),
        "1",
        torch.ones(3).requires_grad_() * 1,
        backward=True,
    )


@planted("return nn.MultiheadAttention(8, 2, dropout=0.5)")
def attention_backward() -> Taken:
    model, x = nn.MultiheadAttention(8, 2, dropout=0.5), torch.randn(3, 1, 8, requires_grad=True)
    poisoned(model.in_proj_weight, INF)
    return take(model, "", x, x, x, backward=True)


@planted("return nn.LayerNorm((4,), eps=0.0)")
def norm_backward() -> Taken:
    return take(nn.LayerNorm(4, eps=0.0), "", torch.ones(2, 4, requires_grad=True), backward=True)


def gpt2() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            vocab_size=31,
            n_positions=16,
            n_embd=16,
            n_layer=2,
            n_head=2,
            bos_token_id=0,
            eos_token_id=0,
        )
    ).train()


@planted("n_embd=16,")
def gpt2_block() -> Taken:
    model = gpt2()
    poisoned(model.transformer.h[1].mlp.c_fc.weight)
    return take(model, "transformer.h.1", input_ids=torch.randint(0, 31, (2, 5)), use_cache=False)


@planted("layer_idx=1")
def gpt2_block_backward() -> Taken:
    model = gpt2()
    poisoned(model.transformer.h[1].ln_1.weight, INF)
    return take(
        model,
        "transformer.h.1",
        input_ids=torch.randint(0, 31, (2, 5)),
        use_cache=False,
        backward=True,
    )


@planted("BertLayer(")
def bert_layer() -> Taken:
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=16,
        num_attention_heads=2,
        num_hidden_layers=2,
        intermediate_size=32,
    )
    model = transformers.BertModel(config, add_pooling_layer=False).to(torch.bfloat16)
    poisoned(model.encoder.layer[1].attention.self.key.bias)
    return take(
        model,
        "encoder.layer.1",
        input_ids=torch.randint(0, 31, (2, 5)),
        attention_mask=torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]),
    )


def t5() -> Any:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 31,
        "d_model": 16,
        "d_kv": 8,
        "d_ff": 32,
        "num_layers": 2,
        "num_heads": 2,
        "decoder_start_token_id": 0,
    }
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))


@planted("has_relative_attention_bias=True")
def t5_block() -> Taken:
    model, ids = t5(), torch.randint(1, 31, (2, 5))
    poisoned(model.encoder.block[0].layer[0].SelfAttention.q.weight)
    return take(model, "encoder.block.0", input_ids=ids, decoder_input_ids=ids, use_cache=False)


@planted("is_decoder=True")
def t5_decoder_block_backward() -> Taken:
    model, ids = t5(), torch.randint(1, 31, (2, 5))
    poisoned(model.decoder.block[1].layer[2].DenseReluDense.wo.weight, INF)
    return take(
        model,
        "decoder.block.1",
        input_ids=ids,
        decoder_input_ids=ids,
        use_cache=False,
        backward=True,
    )


_RUN_ALL = """
import contextlib, io, json, runpy, sys
answers = {}
for script in sys.argv[1:]:
    sys.argv, said = [script], io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            runpy.run_path(script, run_name="__main__")
        except SystemExit as error:
            answers[script] = error.code
    answers[script] = answers.get(script), said.getvalue()
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Taken]]:
    """Every planted case's script."""
    folder = tmp_path_factory.mktemp("watch")
    all_of: dict[str, tuple[Path, Taken]] = {}
    for name, (make, _) in PLANTED.items():
        torch.manual_seed(20)
        taken = make()
        torch.manual_seed(0)
        all_of[name] = save(taken, folder / name)[0], taken
    return all_of


@pytest.fixture(scope="module")
def answers(written: dict[str, tuple[Path, Taken]]) -> dict[str, tuple[int, str]]:
    """Exit code and text of every script, run in another process than that which wrote them."""
    ran = with_torch()(
        _RUN_ALL, *(script for script, _ in written.values()), cwd=Path("/"), variables=os.environ
    )
    assert ran.returncode == 0, ran.stderr
    table = json.loads(ran.stdout)
    return {name: tuple(table[str(script)]) for name, (script, _) in written.items()}


@pytest.mark.parametrize("name", PLANTED)
def test_the_script_shows_the_value_again(name: str, answers: dict[str, tuple[int, str]]) -> None:
    code, said = answers[name]
    assert code == 1, said
    assert "It shows again: " in said


@pytest.mark.parametrize("name", PLANTED)
def test_the_script_says_how_the_module_is_made(
    name: str, written: dict[str, tuple[Path, Taken]]
) -> None:
    text = written[name][0].read_text()
    assert PLANTED[name][1] in text
    assert "MISSING" not in text


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
@pytest.mark.parametrize("name", PLANTED)
def test_the_module_gives_what_it_gave_to_the_last_bit(
    name: str, written: dict[str, tuple[Path, Taken]]
) -> None:
    script, taken = written[name]
    outcome = rerun(script)
    for _, path, value in outcome.outputs:
        assert_same(value, taken.outputs[path])
    gradients = {
        path: value for what, path, value in outcome.gradients if what == "parameter's gradient"
    }
    # their blocks' parameters have no other use
    if name not in ("gpt2_block_backward", "t5_decoder_block_backward"):
        assert gradients.keys() == taken.gradients.keys()
    for path, value in gradients.items():
        assert_same(value, taken.gradients[path])


def assert_same(value: Any, expected: Any) -> None:
    if isinstance(value, torch.Tensor):
        torch.testing.assert_close(value.detach(), expected, rtol=0, atol=0, equal_nan=True)
    else:
        assert value == expected


# what is restored


def test_one_tensor_given_twice_stays_one(written: dict[str, tuple[Path, Taken]]) -> None:
    assert {path: value for _, path, value in rerun(written["inputs_of_every_type"][0]).outputs}[
        "same"
    ] is True


def test_tied_weights_and_shared_modules_stay_so(written: dict[str, tuple[Path, Taken]]) -> None:
    reproducer = Reproducer.open(written["tied_weights_and_shared_modules"][0])
    with reproducer.bundle:
        model = reproducer.restore(Tied(5, 3))
        untied = Tied(5, 3)
        untied.head.weight, untied.again = nn.Parameter(torch.zeros(5, 3)), nn.PReLU()
        again = reproducer.restore(untied)
    assert model.head.weight is model.embed.weight
    assert again.head.weight is again.embed.weight
    assert again.act is again.again


def test_memory_formats_come_back(written: dict[str, tuple[Path, Taken]]) -> None:
    script, taken = written["convolution_in_channels_last"]
    reproducer = Reproducer.open(script)
    with reproducer.bundle:
        module = reproducer.restore(nn.Conv2d(3, 4, 3, padding=1))
        outcome = reproducer.run(module)
    assert module.weight.dtype == torch.bfloat16
    assert module.weight.stride() == taken.snapshot.module.weight.stride()
    assert outcome.outputs[0][2].is_contiguous(memory_format=torch.channels_last)


def test_modes_frozen_parameters_and_tensor_attributes_come_back(tmp_path: Path) -> None:
    model = nn.Sequential(Unkept(2, torch.relu), nn.Dropout(0.1)).eval()
    model[1].train()
    model[0].first.requires_grad_(False)
    script, _ = save(take(model, "", torch.ones(1, 2)), tmp_path / "r")
    reproducer = Reproducer.open(script)
    with reproducer.bundle:
        other = nn.Sequential(Unkept(2, torch.relu), nn.Dropout(0.1))
        other[0].table = torch.zeros(2)
        reproducer.restore(other)
    assert [module.training for module in other.modules()] == [
        module.training for module in model.modules()
    ]
    assert [each.requires_grad for each in other.parameters()] == [
        each.requires_grad for each in model.parameters()
    ]
    assert other[0].table.tolist() == [INF, INF]


def test_buffers_are_those_before_the_call(tmp_path: Path) -> None:
    model = nn.BatchNorm1d(2)
    script, _ = save(take(model, "", torch.ones(3, 2) * 5), tmp_path / "r")
    assert model.running_mean.tolist() == [0.5, 0.5]
    with ac.open_bundle(tmp_path / "r") as bundle:
        saved = {
            record.name: bundle.values(record).tolist()
            for record in bundle.state()
            if record.role is Role.BUFFER
        }
    assert saved["running_mean"] == [0.0, 0.0]
    assert run_here(script).returncode == 0


@pytest.mark.parametrize("enabled", [True, False])
def test_autocast_is_put_back_as_it_was(enabled: bool) -> None:
    with torch.autocast("cpu", torch.float16, enabled=enabled):
        table = autocast_now()
    with torch.autocast("cpu", torch.bfloat16), autocast_then(table):
        assert autocast_now()["cpu"] == table["cpu"]
    assert table["cpu"]["enabled"] is enabled


# what is written


def test_the_bundle_is_one_that_show_lists_and_opens(
    written: dict[str, tuple[Path, Taken]],
) -> None:
    from click.testing import CliRunner

    from accucompare.cli import cli

    shown = CliRunner().invoke(cli, ["show", str(written["gpt2_block"][0].with_suffix(""))])
    assert shown.exit_code in (0, None), shown.output
    assert "transformer.h.1" in shown.output
    assert "input.0" in shown.output
    with ac.open_bundle(written["linear_overflow_in_float16"][0].with_suffix("")) as bundle:
        assert bundle.load("1", role="input", step=7).tolist() == [[60000.0] * 4] * 3
        assert {record.role for record in bundle.state()} == {Role.PARAM, Role.CASE_INPUT}


def test_the_script_is_short_and_says_what_was_found(
    written: dict[str, tuple[Path, Taken]],
) -> None:
    text = written["linear_overflow_in_float16"][0].read_text()
    assert text.startswith('"""NaN in 1, a Linear, in step 7; made inside.\n')
    code = [line for line in text.partition('"""\n\nimport')[2].splitlines() if line.strip()]
    assert len(code) <= 13, text


def test_words_that_would_end_the_docstring_do_not(tmp_path: Path) -> None:
    script, _ = save(
        take(nn.Linear(1, 1), "", torch.tensor([NAN])), tmp_path / "r", line='a\\b"""c.py:3'
    )
    assert run_here(script).returncode == 1


def test_a_second_finding_of_that_name_replaces_the_first(tmp_path: Path) -> None:
    save(take(nn.Linear(1, 1), "", torch.ones(1)), tmp_path / "r")
    script, _ = save(take(nn.Linear(3, 1), "", torch.ones(3)), tmp_path / "r")
    assert "Linear(3, 1)" in script.read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.py"]
    assert rerun(script).inputs[0][2].shape == (3,)


def test_a_module_of_a_case_is_taken_from_it(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\nfrom accucompare import Case\ndef case():\n    f ="
        " lambda: nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))\n   "
        " return Case(f())\n"
    )
    model = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))
    poisoned(model[1][1].weight)
    script, _ = save(
        take(model, "1", torch.ones(2)), tmp_path / "r", case=f"{tmp_path}/net.py:case"
    )
    assert run_here(script).returncode == 1
    assert "module_of_case(str(HERE / 'net.py') + ':case', '1')" in script.read_text()
    (tmp_path / "net.py").write_text(
        (tmp_path / "net.py").read_text().replace("nn.Linear(2, 2), nn.Seq", "nn.Seq")
    )
    ran = run_here(script)
    assert ran.returncode == 2
    assert (
        "net.py:case: its model has no module '1' (any more)" in ran.stderr
        or "build() made a" in ran.stderr
    )


# where classes come from

_TRAINING = """
import sys, torch
from pathlib import Path
from torch import nn
sys.path.insert(0, {root!r})
from tests.reproduce.reproduced import take, save

class Block(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, width)
    def forward(self, x):
        return (-self.fc(x).abs()).log()

def main():
    script, finding = save(take(Block(2), "", torch.full((1, 2), -1e9)), Path(sys.argv[1]))
    print(finding.reproducer_notes)
"""


@pytest.mark.parametrize("as_module", [False, True], ids=["python train.py", "python -m"])
def test_a_class_of_a_guarded_script_is_imported_from_it(as_module: bool, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        _TRAINING.format(root=str(ROOT)) + 'if __name__ == "__main__":\n    main()\n'
    )
    how = (MODULE, "train") if as_module else (SCRIPT, tmp_path / "train.py")
    assert with_torch()(*how, tmp_path / "r", cwd=tmp_path, variables=os.environ).returncode == 0
    ran = run(tmp_path / "r.py")
    assert ran.returncode == 1, ran.stderr


def test_a_class_of_an_unguarded_script_is_missing(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(_TRAINING.format(root=str(ROOT)) + "main()\n")
    assert (
        with_torch()(
            SCRIPT, tmp_path / "train.py", tmp_path / "r", cwd=tmp_path, variables=os.environ
        ).returncode
        == 0
    )
    ran = run(tmp_path / "r.py")
    assert ran.returncode == 2
    assert "importing it would run the training again" in ran.stderr
    assert "a __main__.Block" in ran.stderr


def test_a_class_of_a_file_beside_the_training_is_found_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "layers_of_mine").mkdir(parents=True)
    (tmp_path / "project" / "layers_of_mine" / "__init__.py").write_text(
        "from torch import nn\nclass Log(nn.Module):\n    class Inner(nn.Module):\n        def"
        " forward(self, x): return x.log()\n"
    )
    monkeypatch.syspath_prepend(tmp_path / "project")
    import layers_of_mine  # type: ignore[import-not-found]

    script, _ = save(take(layers_of_mine.Log.Inner(), "", torch.tensor([-1.0])), tmp_path / "r")
    ran = run(script)
    assert ran.returncode == 1, ran.stderr
    (tmp_path / "project" / "layers_of_mine" / "__init__.py").unlink()
    ran = run(script)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    assert "the module cannot be built here" in ran.stderr


# what cannot be rebuilt or saved


def local_module(**attributes: Any) -> nn.Module:
    class Local(nn.Linear):
        def forward(self, x: torch.Tensor, cache: Any = None) -> torch.Tensor:
            return super().forward(x) if cache is None else super().forward(x) * cache

    return Local(2, 1)


def test_a_module_that_cannot_be_rebuilt_is_said_to_be_missing(tmp_path: Path) -> None:
    script, finding = save(take(local_module(), "", torch.tensor([INF, -INF])), tmp_path / "r")
    ran = run_here(script)
    assert (ran.returncode, ran.stderr.count("\n")) == (2, 1)
    for text in (
        ran.stderr,
        script.read_text().replace("\n    # ", " "),
        *finding.reproducer_notes,
    ):
        assert "local_module.<locals>.Local is defined inside a function" in text
    script.write_text(
        script.read_text().replace("module = ...", "from torch import nn; module = nn.Linear(2, 1)")
    )
    assert run_here(script).returncode == 1


@pytest.mark.parametrize(
    ("attribute", "reason"),
    [
        (lambda x: x, "<lambda>"),
        (object(), "its attribute 'thing' is a builtins.object"),
        ([torch.ones(1)], "its attribute 'thing' is a torch.Tensor"),
    ],
)
def test_an_attribute_that_cannot_be_written_down_is_named(
    attribute: Any, reason: str, tmp_path: Path
) -> None:
    model = nn.Linear(2, 1)
    model.thing = attribute
    _, finding = save(take(model, "", torch.ones(2)), tmp_path / "r")
    assert reason in finding.reproducer_notes[0]


def test_a_value_set_after_construction_is_not_lost(tmp_path: Path) -> None:
    model = nn.Sequential(nn.LayerNorm(2), nn.Softplus(beta=2.0))
    model[0].eps = 0.0
    model[1].extra = 3
    script, _ = save(take(model, "", torch.ones(1, 2)), tmp_path / "r")
    assert "nn.LayerNorm((2,), eps=0.0)" in script.read_text()
    assert "'extra': 3" in script.read_text()
    assert run_here(script).returncode == 1


def test_a_scripted_module_is_missing(tmp_path: Path) -> None:
    traced = torch.jit.trace(nn.Linear(2, 1), torch.ones(2))
    finding = found(Taken(Snapshot(traced, "", 0, (torch.ones(2),), {}), {}, {}))
    script, _ = save_reproducer(
        tmp_path / "r", finding, Snapshot(traced, "", 0, (torch.ones(2),), {}), None
    )
    assert "scripted or traced" in script.read_text()


def test_an_object_among_the_inputs_is_named_and_can_be_put_in(tmp_path: Path) -> None:
    class Cache:
        def __rmul__(self, other: torch.Tensor) -> torch.Tensor:
            return other * NAN

    class Outer(nn.Linear):
        pass

    model = local_module()
    script, finding = save(take(model, "", torch.ones(2), cache=Cache()), tmp_path / "r")
    script.write_text(
        script.read_text().replace(
            "module = ...",
            "from torch import nn\n    class Local(nn.Linear):\n        def forward(self, x,"
            " cache=None):\n            return super().forward(x) * (1 if cache is None else"
            " cache)\n    module = Local(2, 1)",
        )
    )
    assert any(note.startswith("cache could not be saved (") for note in finding.reproducer_notes)
    ran = run_here(script)
    assert ran.returncode == 2
    assert "None was passed for cache, which could not be saved" in ran.stdout
    script.write_text(script.read_text().replace("'cache': None,", "'cache': float('inf'),"))
    assert run_here(script).returncode == 1


@pytest.mark.parametrize(
    "value",
    [
        torch.ones(2, device="meta"),
        torch.ones(2).to_sparse(),
        print,
        torch.nn.utils.rnn.pack_sequence([torch.ones(2, 1)]),
    ],
    ids=["meta", "sparse", "function", "packed"],
)
def test_whatever_cannot_be_saved_is_noted_and_never_raises(value: Any, tmp_path: Path) -> None:
    snapshot = Snapshot(
        nn.Linear(2, 1), "fc", 0, (torch.ones(2), [value, {"x": value}]), {"more": value}
    )
    finding = found(Taken(snapshot, {}, {}))
    script, notes = save_reproducer(tmp_path / "r", finding, snapshot, None)
    assert len(notes) == 3
    assert "'argument 1, 0': None,  # could not be saved" in script.read_text()
    with ac.open_bundle(tmp_path / "r") as bundle:
        assert len(list(bundle.records())) >= 4


def test_a_parameter_without_memory_is_noted_and_the_script_says_so(tmp_path: Path) -> None:
    model = nn.Linear(2, 1)
    taken = take(model, "", torch.ones(2))
    model.weight.untyped_storage().resize_(0)
    script, finding = save(taken, tmp_path / "r")
    assert (
        "weight could not be saved (a tensor whose memory was given back, as FSDP does between"
        " calls)" in finding.reproducer_notes[0]
    )
    ran = run_here(script)
    assert ran.returncode == 2
    assert (
        "'weight' of the module could not be saved (a tensor whose memory was given back"
        in ran.stderr
    )


# a disk that is full


@contextlib.contextmanager
def limited(size: int) -> Iterator[None]:
    """No file may become larger meanwhile, as on a full disk; afterwards pytest writes its own log
    again.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [0, 300, 2000, 6000])
def test_a_full_disk_is_a_capture_error_and_leaves_nothing(size: int, tmp_path: Path) -> None:
    taken = take(nn.Linear(60, 60), "", torch.ones(60))
    with (
        limited(size),
        pytest.raises(
            CaptureError, match=r"r: the reproducer cannot be written \(File too large\)"
        ),
    ):
        save(taken, tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_the_earlier_reproducer(tmp_path: Path) -> None:
    script, _ = save(take(nn.Linear(2, 1), "", torch.ones(2)), tmp_path / "r")
    taken = take(nn.Linear(60, 60), "", torch.ones(60))
    with limited(6000), pytest.raises(CaptureError):
        save(taken, tmp_path / "r")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r", "r.py"]
    assert rerun(script).inputs[0][2].shape == (2,)


def test_an_input_that_raises_when_it_is_looked_at_is_a_capture_error(tmp_path: Path) -> None:
    inside_itself: list[Any] = []
    inside_itself.append(inside_itself)
    finding = found(Taken(Snapshot(nn.Identity(), "", 0, (inside_itself,), {}), {}, {}))
    with pytest.raises(CaptureError, match="RecursionError"):
        save_reproducer(
            tmp_path / "r", finding, Snapshot(nn.Identity(), "", 0, (inside_itself,), {}), None
        )
    assert list(tmp_path.iterdir()) == []


def test_an_interrupt_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("accucompare.bundle.format.manifest.Manifest.write", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save(take(nn.Linear(2, 1), "", torch.ones(2)), tmp_path / "r")
    assert list(tmp_path.iterdir()) == []


def test_a_directory_of_another_kind_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "r").mkdir()
    (tmp_path / "r" / "mine.txt").write_text("keep")
    with pytest.raises(CaptureError, match="holds no bundle, so it is not touched"):
        save(take(nn.Linear(2, 1), "", torch.ones(2)), tmp_path / "r")
    assert (tmp_path / "r" / "mine.txt").read_text() == "keep"


def test_saving_changes_neither_random_numbers_nor_the_module(tmp_path: Path) -> None:
    taken = take(Unkept(3, torch.tanh), "", torch.ones(3))
    state, before = (
        torch.get_rng_state(),
        {name: each.clone() for name, each in taken.snapshot.module.state_dict().items()},
    )
    save(taken, tmp_path / "r")
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(value, before[name])
        for name, value in taken.snapshot.module.state_dict().items()
    )


def test_an_example_reads_well(written: dict[str, tuple[Path, Taken]]) -> None:
    text = written["module_that_keeps_no_arguments"][0].read_text()
    assert (
        textwrap.indent(
            textwrap.dedent("""\
                return assemble(
                    Unkept,
                    {
                        'nothing': None,
                        'function': torch.tanh,
                        'scale': parameter(4),
                        'offset': buffer(4),
                        'first': nn.Linear(4, 8),
                        'second': nn.Linear(8, 4, bias=False),
                    },
                )
                """),
            "    ",
        )
        in text
    )
