"""A wrapped model has the names that it has unwrapped."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

from accucompare import Case
from accucompare.live.modules.names import name_modules
from accucompare.recorder.session import case_capture
from accucompare.selection import FloatType
from tests.recorded import Glue, Record, places

NAMES = ["#0 input 0", "0#0 input 0", "0#0 output", "1#0 input 0", "1#0 output", "#0 output"]


def model() -> nn.Sequential:
    return nn.Sequential(nn.Linear(2, 2), nn.ReLU())


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1
    )
    yield
    torch.distributed.destroy_process_group()


def test_ddp(record: Record, process_group: None) -> None:
    bundle = record(nn.parallel.DistributedDataParallel(model()), torch.ones(1, 2))
    assert places(bundle) == NAMES
    assert set(bundle.manifest.model["parameters"]) == {"0.weight", "0.bias"}


def test_dtensor_outputs_are_recorded_whole(record: Record, process_group: None) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (1,))
    x = torch.randn(4, 3)
    seen: list[type] = []
    linear = nn.Identity()
    linear.register_forward_hook(lambda module, args, output: seen.append(type(output)))
    bundle = record(linear, distribute_tensor(x, mesh, [Shard(0)]))
    assert seen == [DTensor]
    assert bundle.load("").tolist() == x.tolist()


@pytest.mark.filterwarnings("ignore:DTensor random operators")
def test_random_numbers_of_a_dtensor_are_those_of_the_whole_tensor(
    record: Record, process_group: None
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    x = distribute_tensor(torch.ones(4, 3), init_device_mesh("cpu", (1,)), [Replicate()])
    bundle = record(nn.Dropout(0.5), x)
    assert np.array_equal(bundle.load(""), record(nn.Dropout(0.5), torch.ones(4, 3)).load(""))
    assert not any("DTensor" in note for note in bundle.manifest.notes)


@pytest.mark.parametrize("dtype", [None, FloatType.BFLOAT16])
def test_hooks_of_a_cases_dtensors_run(
    process_group: None, monkeypatch: pytest.MonkeyPatch, dtype: FloatType | None
) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, distribute_tensor

    layer, ran = nn.Linear(2, 2, bias=False), list[str]()
    whole = distribute_tensor(torch.ones(2, 2), init_device_mesh("cpu", (1,)), [Replicate()])
    layer.weight = nn.Parameter(whole)
    layer.weight.register_hook(lambda grad: ran.append("gradient"))
    layer.weight.register_post_accumulate_grad_hook(lambda parameter: ran.append("accumulated"))
    made = Case(layer, torch.ones(1, 2))
    monkeypatch.setattr(case_capture, "load_case", lambda target: (made, "case"))
    built = case_capture.build(None, torch.device("cpu"), case_capture.Casting(None, dtype), 0)
    built.model.weight.sum().backward()  # type: ignore[operator, union-attr]
    assert ran == ["gradient", "accumulated"]


def test_data_parallel(record: Record) -> None:
    assert places(record(nn.DataParallel(model()), torch.ones(1, 2))) == NAMES


def test_averaged_model(record: Record) -> None:
    assert places(record(torch.optim.swa_utils.AveragedModel(model()), torch.ones(1, 2))) == NAMES


def test_checkpoint_wrapper_around_the_model_and_around_a_layer(record: Record) -> None:
    inner = model()
    inner[0] = checkpoint_wrapper(inner[0])
    assert places(record(checkpoint_wrapper(inner), torch.ones(1, 2))) == NAMES


def test_wrappers_around_wrappers(process_group: None) -> None:
    wrapped = nn.parallel.DistributedDataParallel(checkpoint_wrapper(model()))
    assert list(name_modules(torch.compile(wrapped, backend="eager")).named) == ["", "0", "1"]


def test_a_users_own_attribute_called_module_stays(record: Record) -> None:
    bundle = record(Glue(lambda self, x: self.module(x), module=nn.Linear(2, 2)), torch.ones(1, 2))
    assert places(bundle, "module") == ["module#0 input 0", "module#0 output"]


def test_names_with_any_character_are_kept_exactly(record: Record) -> None:
    names = ["=1+1", "层1", "a b", "a/b", "-x", "@SUM(A1)", "/x", "é" * 300, "a:b\\c*"]
    bundle = record(nn.Sequential(dict_of(names)), torch.ones(1))
    assert [entry.name for entry in bundle.records() if entry.role.value == "output"] == [
        *names,
        "",
    ]
    assert all(bundle.load(name).tolist() == [1] for name in names)


def dict_of(names: list[str]) -> dict[str, nn.Module]:
    from collections import OrderedDict

    return OrderedDict((name, nn.Identity()) for name in names)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_model_is_recorded_and_stays_compiled(backend: str, record: Record) -> None:
    import torch._dynamo.testing

    torch._dynamo.reset()
    inner = model()
    frames = torch._dynamo.testing.CompileCounterWithBackend(backend)
    compiled = torch.compile(inner, backend=frames)
    x = torch.randn(3, 2)
    expected = compiled(x)
    assert frames.frame_count == 1
    bundle = record(compiled, x)
    assert places(bundle) == NAMES
    assert bundle.load("").tolist() == expected.tolist()
    assert torch.equal(compiled(x), expected)
    assert frames.frame_count == 1  # it neither ran eagerly nor was it compiled again


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # dynamo itself looks at it
def test_a_compiled_layer_is_recorded(record: Record) -> None:
    torch._dynamo.reset()
    inner = model()
    inner[0].compile(backend="eager")
    inner[1] = torch.compile(inner[1], backend="eager")
    inner(torch.ones(1, 2))
    assert places(record(inner, torch.ones(1, 2))) == NAMES
