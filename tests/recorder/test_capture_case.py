"""Running a case from beginning to end in this process: devices, dtypes, steps, loss and
optimizer."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.case import load_case
from accucompare.devices import DeviceName
from accucompare.errors import CaptureError, CaseError, UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from accucompare.selection import FloatType, RoundedType
from tests.conftest import ROOT
from tests.recorded import Opened

CPU = DeviceName("cpu")
HEAD = (
    "import random\nimport numpy as np\nimport torch\nfrom torch import nn\nfrom accucompare import"
    " Case\n"
)
WriteCase = Callable[..., str]


@pytest.fixture
def case(tmp_path: Path) -> WriteCase:
    """``case("Case(nn.Linear(2, 2), torch.ones(2))")`` writes a case file and gives its name."""

    def write(expression: str, before: str = "") -> str:
        path = tmp_path / "written.py"
        path.write_text(f"{HEAD}{before}\ndef case():\n    return {expression}\n")
        return str(path)

    return write


def test_parameters_depend_on_the_seed_alone(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    target = case("Case(nn.Linear(2, 2), torch.randn(2))")
    outputs = []
    for number, seed in enumerate((1, 1, 2)):
        torch.manual_seed(1000 + number)
        outputs.append(
            opened(capture_case(target, tmp_path / str(number), CPU, CaptureOptions(seed=seed)))
            .load("")
            .tolist()
        )
    assert outputs[0] == outputs[1] != outputs[2]


def test_python_and_numpy_random_numbers_depend_on_the_seed_too(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    net = "class Net(nn.Module):\n    def forward(self, *args):\n        return args"
    target = case("Case(Net(), (random.random(), np.random.rand()))", net)
    bundles = [
        opened(capture_case(target, tmp_path / str(number), CPU, CaptureOptions(seed=seed)))
        for number, seed in enumerate((1, 1, 2))
    ]
    for path in ("0", "1"):
        first, second, third = (bundle.load("", path=path).item() for bundle in bundles)
        assert first == second != third


@pytest.mark.parametrize("dtype", list(FloatType), ids=lambda dtype: dtype.value)
def test_parameters_buffers_and_inputs_are_cast(
    dtype: FloatType, case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    target = case(
        "Case(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).train(), torch.randn(4, 2))"
    )
    bundle = opened(capture_case(target, tmp_path / "out", CPU, dtype=dtype))
    assert {entry.dtype for entry in bundle.records() if entry.path != "num_batches_tracked"} == {
        dtype.value
    }
    assert bundle.manifest.model["dtypes"] == [dtype.value]
    assert bundle.manifest.model["buffers"]["1.running_mean"]["dtype"] == dtype.value
    assert bundle.manifest.model["buffers"]["1.num_batches_tracked"]["dtype"] == "int64"


def test_integers_and_complex_numbers_are_not_cast(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    net = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("turns", torch.polar(torch.ones(3), torch.arange(3.0)))
        self.scale = nn.Parameter(torch.ones(3))

    def forward(self, ids, phase):
        return torch.view_as_real(self.turns * phase) * self.scale[:, None]
"""
    target = case("Case(Net(), (torch.arange(3), torch.full((3,), 1j)))", net)
    bundle = opened(capture_case(target, tmp_path / "out", CPU, dtype=FloatType.BFLOAT16))
    assert [entry.dtype for entry in bundle.records()] == ["int64", "complex64", "float32"]
    assert bundle.load("")[0].tolist() == [0, 1]


def test_without_a_dtype_everything_stays_as_it_is(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    bundle = opened(
        capture_case(
            case("Case(nn.Linear(2, 2).double(), torch.ones(2).double())"), tmp_path / "out", CPU
        )
    )
    assert bundle.find("").dtype == "float64"


def test_inputs_are_used_again_when_there_are_fewer_than_steps(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    target = case("Case(nn.ReLU(inplace=True), [torch.tensor([-1.0]), torch.tensor([-2.0])])")
    bundle = opened(capture_case(target, tmp_path / "out", CPU, CaptureOptions(steps=3)))
    assert [bundle.load("", role="input", step=step).tolist() for step in range(3)] == [
        [-1],
        [-2],
        [-1],
    ]


def test_fewer_steps_than_inputs(case: WriteCase, tmp_path: Path, opened: Opened) -> None:
    target = case("Case(nn.Identity(), [torch.ones(1)] * 3)")
    assert (
        len(
            opened(
                capture_case(target, tmp_path / "out", CPU, CaptureOptions(steps=2))
            ).manifest.steps
        )
        == 2
    )


def test_progress_is_told_after_each_step(case: WriteCase, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    target = case("Case(nn.Identity(), [torch.ones(1)] * 2)")
    capture_case(
        target, tmp_path / "out", CPU, progress=lambda done, total: told.append((done, total))
    )
    assert told == [(1, 2), (2, 2)]


def test_a_case_without_a_loss_runs_without_gradients(case: WriteCase, tmp_path: Path) -> None:
    net = """
class Net(nn.Linear):
    def forward(self, x):
        assert not torch.is_grad_enabled()
        return super().forward(x)
"""
    assert (
        capture_case(case("Case(Net(2, 2), torch.ones(2))", net), tmp_path / "out", CPU)
        == tmp_path / "out"
    )


def test_loss_and_optimizer_train_as_a_plain_loop_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two steps: parameters, buffers and momentum-free SGD agree bit for bit with the same loop
    without a capture.
    """
    target = f"{ROOT}/fixtures/cnn.py:training"
    torch.manual_seed(3)
    ours, _ = load_case(target)
    plain = copy.deepcopy(ours)
    monkeypatch.setattr(
        "accucompare.recorder.session.case_capture.load_case", lambda _: (ours, "training")
    )
    capture_case(target, tmp_path / "out", CPU, CaptureOptions(seed=3, steps=2))
    initial = copy.deepcopy(plain.model.state_dict())
    for _ in range(2):
        plain.loss(plain.model(plain.inputs)).backward()
        plain.optimizer.step()
        plain.optimizer.zero_grad()
    assert not torch.equal(plain.model.fc.weight, initial["fc.weight"])
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], tensor), name
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert not np.array_equal(bundle.load("fc", step=0), bundle.load("fc", step=1))


SCALED = """
def build():
    model = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1)).train()
    optimizers = [
        torch.optim.AdamW(model[0].parameters(), 0.1),
        torch.optim.SGD(model[2].parameters(), 0.1),
    ]
    at_plateaus = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizers[1], patience=0)
    schedulers = [torch.optim.lr_scheduler.StepLR(optimizers[0], 1, 0.5), at_plateaus]
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    return Case(
        model,
        [torch.ones(3, 2), torch.ones(3, 2) / 2],
        lambda y: y.square().mean(),
        optimizers,
        schedulers,
        scaler,
    )
"""


def test_scheduler_and_scaler_are_stepped_as_a_plain_loop_does(
    case: WriteCase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = case("build()", SCALED)
    cases = []
    for _ in range(2):
        torch.manual_seed(3)
        cases.append(load_case(target)[0])
    ours, plain = cases
    monkeypatch.setattr(
        "accucompare.recorder.session.case_capture.load_case", lambda _: (ours, "training")
    )
    capture_case(target, tmp_path / "out", CPU, CaptureOptions(seed=3, steps=4))
    with ac.capture(plain.model, tmp_path / "plain", seed=3) as session:
        for step in range(4):
            loss = plain.loss(plain.model(plain.inputs[step % 2]))
            plain.scaler.scale(loss).backward()
            for optimizer in plain.optimizer:
                plain.scaler.step(optimizer)
            plain.scaler.update()
            for optimizer in plain.optimizer:
                optimizer.zero_grad()
            plain.scheduler[0].step()
            plain.scheduler[1].step(loss.item())
            session.step()
    for name, tensor in plain.model.state_dict().items():
        assert torch.equal(ours.model.state_dict()[name], tensor), name
    for mine, theirs in zip(ours.scheduler, plain.scheduler, strict=True):
        assert mine.state_dict() == theirs.state_dict()
    assert ours.scheduler[0].get_last_lr() == [0.1 / 16]


def test_a_case_starts_with_the_training_state_that_another_saved(
    case: WriteCase, tmp_path: Path
) -> None:
    """As one does whose code loads a checkpoint that the other machine lacks."""
    resumed = """
    loaded = build()
    for _ in range(2):
        loaded.scaler.scale(loaded.loss(loaded.model(loaded.inputs[0]))).backward()
        for optimizer in loaded.optimizer:
            loaded.scaler.step(optimizer)
        loaded.scaler.update()
"""
    target = case("build()", SCALED)
    path = Path(target)
    path.write_text(path.read_text() + f"def resumed():{resumed}    return loaded\n")
    options = CaptureOptions(save_state=True, backward=True)
    golden = capture_case(f"{target}:resumed", tmp_path / "golden", CPU, options)
    capture_case(
        f"{target}:build", tmp_path / "fresh", CPU, CaptureOptions(like=golden, backward=True)
    )
    assert ac.diff(golden, tmp_path / "fresh").answer.value == "identical"


def test_a_model_that_raises_becomes_an_error_that_names_the_module_and_the_step(
    case: WriteCase, tmp_path: Path
) -> None:
    target = case(
        "Case(nn.Sequential(nn.Identity(), nn.Linear(2, 2)), [torch.ones(2), torch.ones(3)])"
    )
    with pytest.raises(
        CaptureError,
        match=(
            r"written.py: the model raised in 1, step 1: RuntimeError: .*\nWhat was recorded .*"
            r" incomplete"
        ),
    ):
        capture_case(target, tmp_path / "out", CPU)
    with ac.open_bundle(tmp_path / "out") as bundle:
        assert bundle.load("").tolist()
        assert not bundle.complete


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("Case(nn.Linear(1, 1))", "the case has no inputs; give Case"),
        ("Case(nn.Linear(1, 1), [])", "the case's list of inputs is empty"),
        ("Case(lambda x: x, torch.ones(1))", r"must be a torch\.nn\.Module, but is a function"),
    ],
)
def test_cases_that_cannot_be_run_are_refused(
    expression: str, message: str, case: WriteCase, tmp_path: Path
) -> None:
    with pytest.raises(CaseError, match=message):
        capture_case(case(expression), tmp_path / "out", CPU)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", [-1, 1 << 32])
def test_a_seed_out_of_range_is_refused(seed: int, case: WriteCase, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be a whole number from 0 to"):
        capture_case(
            case("Case(nn.Linear(1, 1), torch.ones(1))"),
            tmp_path / "out",
            CPU,
            CaptureOptions(seed=seed),
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            "loss=lambda y: y",
            r"loss must return a tensor of one element, but returned a tensor of shape \[2, 2\]",
        ),
        ("loss=lambda y: 1.0", "loss must return a tensor of one element, but returned a float"),
        ("loss=lambda y: y.detach().sum()", "the case's loss has no gradient"),
        ("optimizer=object()", "has an optimizer but no loss"),
        (
            "loss=lambda y: y.sum(), optimizer=3",
            "the case's optimizer must be an optimizer, or a list of them, but is an int",
        ),
        ("loss=lambda y: y.sum(), scheduler=object()", "has a scheduler but no optimizer"),
        ("loss=lambda y: y.sum(), scaler=object()", "has a scaler but no optimizer"),
    ],
)
def test_a_loss_that_cannot_be_sent_backward_is_named_as_such(
    tmp_path: Path, options: str, message: str
) -> None:
    (tmp_path / "net.py").write_text(
        "import torch\nfrom accucompare import Case\ndef case():\n    return"
        f" Case(torch.nn.Linear(2, 2), torch.ones(2, 2), {options})\n"
    )
    with pytest.raises(CaseError, match=message):
        capture_case(f"{tmp_path}/net.py", tmp_path / "out", CPU)


FAILS = """
def fail(grad):
    with open(__file__ + ".runs", "a") as runs:
        runs.write("x")
    raise ValueError("in a hook")
"""


def test_a_backward_that_fails_is_not_run_a_second_time(case: WriteCase, tmp_path: Path) -> None:
    target = case(
        "Case(nn.Linear(2, 2), torch.ones(2, 2), loss=lambda y: (y.register_hook(fail),"
        " y.sum())[1])",
        FAILS,
    )
    with pytest.raises(CaptureError, match="in a hook") as failure:
        capture_case(target, tmp_path / "out", CPU)
    assert Path(f"{target}.runs").read_text() == "x"
    assert ".previous" not in str(failure.value)


@pytest.mark.parametrize("rounded", list(RoundedType), ids=lambda rounded: rounded.value)
def test_weights_buffers_and_inputs_are_rounded_and_keep_their_types(
    rounded: RoundedType, case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    target = case(
        "Case(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval(), torch.randn(4, 2))"
    )
    plain = opened(capture_case(target, tmp_path / "plain", CPU))
    bundle = opened(capture_case(target, tmp_path / "rounded", CPU, round_weights=rounded))
    assert bundle.manifest.capture["round_weights"] == rounded.value
    assert plain.manifest.capture["round_weights"] is None
    for ours, theirs in (
        (
            plain.manifest.model["parameters"]["0.weight"],
            bundle.manifest.model["parameters"]["0.weight"],
        ),
        (plain.manifest.inputs["0"]["0"], bundle.manifest.inputs["0"]["0"]),
    ):
        assert theirs["dtype"] == "float32"
        assert theirs["digests"]["float32"] != ours["digests"]["float32"]
        assert theirs["digests"][rounded.value] == ours["digests"][rounded.value]
    values = torch.from_numpy(bundle.load("", role="input"))
    assert values.equal(values.to(getattr(torch, rounded.value)).float())


def test_rounded_weights_are_cast_afterwards(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    target = case("Case(nn.Linear(2, 3), torch.randn(4, 2))")
    bundle = opened(
        capture_case(
            target,
            tmp_path / "out",
            CPU,
            round_weights=RoundedType.BFLOAT16,
            dtype=FloatType.FLOAT16,
        )
    )
    assert bundle.manifest.capture["dtype"] == "float16"
    values = bundle.load("", role="input").astype(np.float32)
    assert torch.from_numpy(values).bfloat16().float().equal(torch.from_numpy(values))


def test_rounding_is_taken_over_with_the_saved_state_and_cannot_be_another(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    target = case("Case(nn.Linear(2, 3), torch.randn(4, 2))")
    capture_case(
        target,
        tmp_path / "golden",
        CPU,
        CaptureOptions(save_state=True),
        round_weights=RoundedType.BFLOAT16,
    )
    bundle = opened(
        capture_case(target, tmp_path / "out", CPU, CaptureOptions(like=tmp_path / "golden"))
    )
    assert bundle.manifest.capture["round_weights"] == "bfloat16"
    assert bundle.load("").tolist() == opened(tmp_path / "golden").load("").tolist()
    with pytest.raises(
        UsageError, match="--round-weights float16: the weights are those of --like"
    ):
        capture_case(
            target,
            tmp_path / "other",
            CPU,
            CaptureOptions(like=tmp_path / "golden"),
            round_weights=RoundedType.FLOAT16,
        )


def test_a_repeated_capture_is_a_second_bundle_of_the_same_case(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    target = case(
        "Case(nn.Sequential(nn.Linear(2, 3), nn.Dropout(0.5)).train(), torch.randn(4, 2))"
    )
    seen: list[tuple[int, int]] = []
    capture_case(
        target,
        tmp_path / "out",
        CPU,
        CaptureOptions(seed=5),
        repeat=2,
        progress=lambda done, count: seen.append((done, count)),
    )
    first, second = opened(tmp_path / "out"), opened(tmp_path / "out" / "repeat1")
    assert list(first.records()) == list(second.records())
    assert first.identity() == second.identity()
    assert second.complete
    assert second.manifest.capture == first.manifest.capture
    assert seen == [(1, 2), (2, 2)]


def test_overwriting_replaces_a_repeated_capture_too(case: WriteCase, tmp_path: Path) -> None:
    target = case("Case(nn.Linear(2, 3), torch.randn(4, 2))")
    capture_case(target, tmp_path / "out", CPU, repeat=3)
    capture_case(target, tmp_path / "out", CPU, CaptureOptions(overwrite=True), repeat=2)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "manifest.json",
        "rank0",
        "repeat1",
    ]
    capture_case(target, tmp_path / "out", CPU, CaptureOptions(overwrite=True))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["manifest.json", "rank0"]


def test_a_repetition_that_fails_leaves_the_first_bundle_complete(
    case: WriteCase, tmp_path: Path, opened: Opened
) -> None:
    net = """
class Net(nn.Module):
    def forward(self, x):
        import os
        if os.path.exists(OUT + "/repeat1"):
            raise RuntimeError("again")
        return x
"""
    target = case("Case(Net(), torch.randn(4, 2))", f"OUT = {str(tmp_path / 'out')!r}\n{net}")
    with pytest.raises(CaptureError, match="again"):
        capture_case(target, tmp_path / "out", CPU, repeat=2)
    assert opened(tmp_path / "out").complete
    assert not opened(tmp_path / "out" / "repeat1").complete


def test_an_operator_of_torchs_own_modules_has_no_source_line(
    case: Callable[..., str], tmp_path: Path, opened: Opened
) -> None:
    target = case("Case(nn.Sequential(nn.Linear(2, 2)), torch.ones(1, 2))")
    bundle = opened(
        capture_case(target, tmp_path / "out", CPU, CaptureOptions(level="op", only=["*"]))
    )
    assert {record.source_line for record in bundle.records() if record.role is Role.OP_OUTPUT} == {
        ""
    }
