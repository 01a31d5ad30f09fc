"""The examples of the public names run, and show what they say."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.devices import DeviceName
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import capture_case
from accucompare.selection import FloatType
from tests.compare.builder import item, write

CASE = Path(__file__).parent.parent / "fixtures" / "cnn.py"
PUBLIC = {name: getattr(ac, name) for name in sorted(ac.__all__)}
VERBS = [name for name, each in PUBLIC.items() if inspect.isfunction(each)]
EXAMPLES = {
    name: found
    for name, each in PUBLIC.items()
    for found in doctest.DocTestFinder(recurse=False).find(each)
    if found.examples
}


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with ``model.py``, its bundle ``golden``, and ``npu`` of the same model with a
    fault, in bfloat16.
    """
    folder = tmp_path_factory.mktemp("examples")
    (folder / "model.py").write_text(CASE.read_text())
    (folder / "batch.py").write_text(
        "import torch\nfrom accucompare import Case\n\n"
        "def case():\n    return Case(torch.nn.ReLU().eval(), torch.randn(4, 8))\n"
    )
    (folder / "decode.py").write_text(
        "import torch\nfrom accucompare import Case\n"
        "from transformers import GPT2Config, GPT2LMHeadModel\n\n"
        "def case():\n"
        "    config = GPT2Config(vocab_size=11, n_positions=16, n_embd=8, n_layer=1, n_head=2)\n"
        "    inputs = {'input_ids': torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])}\n"
        "    return Case(GPT2LMHeadModel(config).eval(), inputs)\n"
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        capture_case("model.py", "golden", DeviceName("cpu"), CaptureOptions(steps=1))
        capture_case(
            "model.py:faulty",
            "npu",
            DeviceName("cpu"),
            CaptureOptions(steps=1),
            dtype=FloatType.BFLOAT16,
        )
        weight = {"dtype": "float32", "shape": [2], "digests": {"float32": "0" * 32}}
        write(
            folder / "tp2dp2",
            [item("fc", np.ones(2, "f4"), rank=rank) for rank in range(4)],
            ranks=4,
            model={"parameters": {"fc.weight": weight}},
        )
    return folder


def names(folder: Path) -> dict[str, Any]:
    """What every example may take for granted."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    ported = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    ported.load_state_dict(model.state_dict())
    batch = torch.ones(2, 4)
    return {
        "ac": ac,
        "accucompare": ac,
        "torch": torch,
        "nn": nn,
        "model": model,
        "original": model,
        "ported": ported,
        "batch": batch,
        "loader": [batch, batch],
        "optimizer": torch.optim.SGD(model.parameters(), 0.1),
        "writer": Mock(spec=["add_scalar", "add_text", "flush"]),
        **PUBLIC,
    }


def test_each_public_verb_has_an_example() -> None:
    assert [name for name in VERBS if name not in EXAMPLES] == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_shows_what_it_says(
    name: str, bundles: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(bundles)
    example = EXAMPLES[name]
    example.globs.update(names(bundles))
    assert not [each.source for each in example.examples if doctest.SKIP in each.options]
    printed: list[str] = []
    failed = (
        doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)
        .run(example, out=printed.append, clear_globs=False)
        .failed
    )
    assert not failed, "".join(printed)
