"""CUDA GPUs: settings, which any build of torch has; and what needs a GPU (`pytest -m gpu`)."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import accucompare as ac
from accucompare.devices import DeviceName
from accucompare.devices.cuda import Cuda
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from accucompare.selection import FloatType
from tests.conftest import ROOT

MATMUL, CUDNN = torch.backends.cuda.matmul, torch.backends.cudnn
NEW_WAY = hasattr(MATMUL, "fp32_precision")  # torch 2.9


@pytest.fixture(autouse=True)
def _settings_of_its_own() -> Iterator[None]:
    yield
    if NEW_WAY:
        MATMUL.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision = (
            "none",
            "tf32",
            "tf32",
        )
    MATMUL.allow_tf32, CUDNN.allow_tf32 = False, True


def tf32() -> tuple[Any, Any]:
    flags = Cuda().flags()
    return flags["cuda.matmul.allow_tf32"], flags["cudnn.allow_tf32"]


@pytest.mark.parametrize("allow", [True, False])
def test_tf32_is_set_for_products_convolutions_and_rnns_and_put_back(allow: bool) -> None:
    before = tf32()
    with Cuda().numerics(deterministic=False, reduced=allow):
        assert tf32() == (allow, allow)
    assert tf32() == before == (False, True)


@pytest.mark.skipif(not NEW_WAY, reason="fp32_precision comes with torch 2.9")
@pytest.mark.parametrize("allow", [True, False])
def test_tf32_is_set_the_way_the_user_did_who_must_not_mix_the_two(allow: bool) -> None:
    MATMUL.fp32_precision, CUDNN.conv.fp32_precision = "tf32", "ieee"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        _ = CUDNN.allow_tf32
    assert tf32() == (True, True)  # RNNs still may
    with Cuda().numerics(deterministic=False, reduced=allow):
        assert tf32() == (allow, allow)
    assert (MATMUL.fp32_precision, CUDNN.conv.fp32_precision, CUDNN.rnn.fp32_precision) == (
        "tf32",
        "ieee",
        "tf32",
    )


@pytest.mark.skipif(not NEW_WAY, reason="fp32_precision comes with torch 2.9")
def test_flags_are_recorded_where_torch_refuses_to_tell_them_the_old_way(tmp_path: Path) -> None:
    MATMUL.fp32_precision = "tf32"
    with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
        torch.get_float32_matmul_precision()
    with ac.capture(torch.nn.ReLU(), tmp_path / "golden"):
        pass
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert bundle.manifest.environment["flags"]["float32_matmul_precision"] == "mixed"


@pytest.mark.skipif(not NEW_WAY, reason="fp32_precision comes with torch 2.9")
@pytest.mark.parametrize("allow", [True, False])
@pytest.mark.parametrize("said", ["cudnn", "all", "medium"])
def test_tf32_is_set_whatever_was_said_before_and_all_of_it_put_back(
    said: str, allow: bool
) -> None:
    mkldnn = torch.backends.mkldnn.matmul
    try:
        if said == "medium":
            torch.set_float32_matmul_precision("medium")
        else:
            owner: Any = CUDNN if said == "cudnn" else torch.backends
            owner.fp32_precision = "tf32"
        before = (
            tf32(),
            MATMUL.fp32_precision,
            CUDNN.conv.fp32_precision,
            CUDNN.rnn.fp32_precision,
            mkldnn.fp32_precision,
        )
        with Cuda().numerics(deterministic=False, reduced=allow):
            effective = {each.fp32_precision for each in (MATMUL, CUDNN.conv, CUDNN.rnn)}
            assert effective == {"tf32" if allow else "ieee"}
        assert before == (
            tf32(),
            MATMUL.fp32_precision,
            CUDNN.conv.fp32_precision,
            CUDNN.rnn.fp32_precision,
            mkldnn.fp32_precision,
        )
        if said == "medium":
            assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.backends.fp32_precision, CUDNN.fp32_precision = "none", "none"
        torch.backends.mkldnn.matmul.fp32_precision = "none"
        MATMUL.fp32_precision = "none"
        torch.set_float32_matmul_precision("highest")


def test_tf32_is_left_alone_unless_asked() -> None:
    MATMUL.allow_tf32 = True
    with Cuda().numerics(deterministic=True, reduced=None):
        assert tf32() == (True, True)


def test_deterministic_sets_what_cublas_and_cudnn_need_and_puts_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(CUDNN, "benchmark", True)
    with Cuda().numerics(deterministic=True, reduced=None):
        flags = Cuda().flags()
        assert flags["deterministic_algorithms"] is True
        assert (flags["cudnn.deterministic"], flags["cudnn.benchmark"]) == (True, False)
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    flags = Cuda().flags()
    assert (
        flags["cudnn.deterministic"],
        flags["cudnn.benchmark"],
        flags["deterministic_algorithms"],
    ) == (False, True, False)
    assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ


def test_a_users_own_workspace_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    with Cuda().numerics(deterministic=True, reduced=None):
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"


# With a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["cnn", "gpt2", "llama", "minilm", "t5", "tricky"])
def test_a_gpu_in_float32_agrees_with_the_cpu(name: str, tmp_path: Path) -> None:
    case = f"{ROOT}/fixtures/{name}.py"
    golden = capture_case(case, tmp_path / "golden", DeviceName("cpu"))
    candidate = capture_case(
        case, tmp_path / "cuda", DeviceName("cuda"), CaptureOptions(tf32=False, deterministic=True)
    )
    comparison = ac.diff(golden, candidate, work=ac.Work(verify=True))
    assert comparison.passed
    with ac.open_bundle(candidate) as bundle:
        assert bundle.manifest.environment["flags"]["cudnn.allow_tf32"] is False


@pytest.mark.gpu
def test_tf32_on_a_gpu_is_seen_in_the_first_product(tmp_path: Path) -> None:
    case = f"{ROOT}/fixtures/gpt2.py"
    golden = capture_case(case, tmp_path / "golden", DeviceName("cpu"))
    candidate = capture_case(case, tmp_path / "cuda", DeviceName("cuda"), CaptureOptions(tf32=True))
    first = ac.diff(golden, candidate, limits=ac.Tolerance(rel_l2=1e-5)).first_divergence
    assert first is not None
    assert first.golden is not None
    assert first.golden.name == "transformer.h.0.attn.c_attn"
    assert first.metrics is not None
    assert 1e-4 < first.metrics.rel_l2 < 1e-3


@pytest.mark.gpu
def test_bfloat16_on_a_gpu_is_within_the_default_limits(tmp_path: Path) -> None:
    case = f"{ROOT}/fixtures/minilm.py"
    golden = capture_case(case, tmp_path / "golden", DeviceName("cpu"))
    assert ac.diff(
        golden, capture_case(case, tmp_path / "cuda", DeviceName("cuda"), dtype=FloatType.BFLOAT16)
    ).passed


@pytest.mark.gpu
def test_a_cuda_graph_is_captured_as_without_us_and_its_values_are_unreadable(
    tmp_path: Path,
) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU()).cuda()
    value = torch.randn(8, 64, device="cuda")
    with torch.no_grad(), ac.capture(model, tmp_path / "bundle"):
        model(value)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            output = model(value)
        graph.replay()
        assert torch.equal(output, model(value))
    with ac.open_bundle(tmp_path / "bundle") as bundle:
        layouts = {record.layout.value for record in bundle.records() if record.call == 1}
    assert layouts == {"unreadable"}
