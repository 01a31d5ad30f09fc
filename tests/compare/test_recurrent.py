"""Recurrent modules: in half types composed of operators, of which each rounds, beside a baseline
by a fused kernel, which rounds less; in float32 by a device's own kernel.
"""

from __future__ import annotations

import contextlib
import copy
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.api import Comparison
from tests.combinations import pairwise
from tests.compare.builder import item, write

KINDS = {nn.LSTM: "lstm", nn.GRU: "gru", nn.RNN: "rnn_tanh"}
Kind = type[nn.LSTM] | type[nn.GRU] | type[nn.RNN]


class Model(nn.Module):
    def __init__(self, kind: Kind, layers: int) -> None:
        super().__init__()
        self.rnn, self.head = kind(16, 16, layers, batch_first=True), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.rnn(x)[0])
        return found


def fused(model: Model) -> Model:
    """Computes its recurrent module in float32, and rounds what comes out."""
    kind: Any = type(model.rnn)

    def forward(self: Any, x: torch.Tensor) -> Any:
        state = torch.zeros(self.num_layers, len(x), self.hidden_size)
        given, weights = (
            (state, state) if kind is nn.LSTM else state,
            [weight.float() for weight in self._flat_weights],
        )
        results = getattr(torch._VF, KINDS[kind])(
            x.float(), given, weights, True, self.num_layers, 0.0, self.training, False, True
        )
        output, *states = (each.to(x.dtype) for each in results)
        return output, tuple(states) if kind is nn.LSTM else states[0]

    model.rnn.forward = types.MethodType(forward, model.rnn)
    return model


def off(model: Model, what: str) -> Model:
    """With a fault: what goes into it is scaled, or what it makes of it."""
    kind: Any = type(model.rnn)

    def forward(self: Any, x: torch.Tensor) -> Any:
        output, state = kind.forward(self, x * 1.1 if what == "input" else x)
        return output * 1.05 if what == "output" else output, state

    model.rnn.__class__ = type(kind.__name__, (kind,), {"forward": forward})
    return model


@contextlib.contextmanager
def composed() -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()  # type: ignore[attr-defined]
    torch._C._set_mkldnn_enabled(False)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)  # type: ignore[attr-defined]


def compared(
    path: Path,
    kind: Kind,
    steps: int,
    dtype: torch.dtype,
    *,
    fed: bool = True,
    fault: str = "",
    judged: bool = True,
) -> Comparison:
    torch.manual_seed(0)
    model = Model(kind, 2).to(dtype).float()
    x = torch.randn(3, steps, 16).to(dtype).float()
    sides = {
        "golden": model,
        "candidate": copy.deepcopy(model).to(dtype),
        "baseline": fused(copy.deepcopy(model)).to(dtype),
    }
    if fault:
        off(sides["candidate"], fault)
    for name, side in sides.items():
        with (
            composed(),
            ac.capture(
                side, path / name, feed=path / "golden" if fed and name != "golden" else None
            ),
        ):
            side(x.to(next(side.parameters()).dtype)).float().square().mean().backward()
    return ac.diff(
        path / "golden", path / "candidate", baseline=path / "baseline" if judged else None
    )


@pytest.mark.parametrize(
    ("kind", "dtype", "judged"),
    pairwise(KINDS, (torch.bfloat16, torch.float16), ("fed, baseline", "free, baseline", "fed")),
)
def test_a_recurrent_module_composed_of_operators_is_rounding(
    tmp_path: Path, kind: Kind, dtype: torch.dtype, judged: str
) -> None:
    found = compared(
        tmp_path, kind, 100, dtype, fed=judged.startswith("fed"), judged="baseline" in judged
    )
    assert (found.answer.value, [culprit.place for culprit in found.culprits]) == ("rounding", [])


@pytest.mark.parametrize("fault", ["input", "output"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_recurrent_module_that_is_off_by_more_is_a_bug(
    tmp_path: Path, kind: Kind, fault: str
) -> None:
    found = compared(tmp_path, kind, 20, torch.bfloat16, fault=fault)
    assert (found.answer.value, found.culprits[0].place) == ("bug", "rnn")


@pytest.mark.parametrize("fed", [True, False])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_devices_own_kernel_is_rounding_in_float32_and_a_cpus_is_not(
    tmp_path: Path, device: str, fed: bool
) -> None:
    """An LSTM that is 5e-6 off, as cuDNN's is, and what is made of its output."""
    golden = np.random.default_rng(0).standard_normal((2, 4096))
    for name, dtype, off in (
        ("golden", "float32", 1.0),
        ("candidate", "float32", 1.0 + 5e-6),
        ("baseline", "float64", 1.0 + 1e-7),
    ):
        later = off if name != "candidate" or not fed else 1.0
        write(
            tmp_path / name,
            [
                item("rnn", golden[0] * off, dtype, type="LSTM"),
                item("fc", golden[1] * later, dtype),
            ],
            environment={"device": {"type": device if name == "candidate" else "cpu"}},
            **(
                {
                    "capture": {
                        "feed": {
                            "golden": "golden",
                            "identity": ac.open_bundle(tmp_path / "golden").identity(),
                            "not_fed": [],
                        }
                    }
                }
                if fed and name != "golden"
                else {}
            ),
        )
    found = ac.diff(tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline")
    assert found.passed is (device == "cuda")


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_devices_fused_adam_rounds_its_decay_and_a_cpus_does_not(
    tmp_path: Path, device: str
) -> None:
    """An update of biases of 0 that is 1e-5 off, as CUDA's, which computes 1 - beta2 in float32."""
    update = np.random.default_rng(0).standard_normal(4096)
    for name, dtype, off in (
        ("golden", "float32", 1.0),
        ("candidate", "float32", 1.0 + 1e-5),
        ("baseline", "float64", 1.0),
    ):
        write(
            tmp_path / name,
            [
                item("fc", np.zeros(4096), dtype, role="param_before", path="bias", parent=None),
                item("fc", update * off, dtype, role="param_update", path="bias", parent=None),
            ],
            environment={"device": {"type": device if name == "candidate" else "cpu"}},
        )
    found = ac.diff(tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline")
    assert [row.status.value for row in found.rows][1:] == ["pass" if device == "cuda" else "fail"]
