"""What a process of a script does: the model is found, its steps are recorded, and nothing of the
script changes.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import accucompare as ac
from accucompare.findings.analysis.analysis import read_logs
from accucompare.scripts.outcome import others
from accucompare.scripts.plan import Action
from tests.scripts.forked import UNEDITED, Ran, run

BEGINNING = """
import torch
from torch import nn
torch.manual_seed(0)
class Net(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(3, 3), nn.Tanh())
x = torch.ones(2, 3)
def train(net, optimizer, steps=1, calls=1):
    for _ in range(steps):
        optimizer.zero_grad()
        for call in range(calls):
            net(x + call).sum().backward()
        optimizer.step()
"""


def recorded(ran: Ran) -> dict[int, list[str]]:
    """The names of the modules whose inputs were recorded, by step, a call each."""
    with ac.open_bundle(ran.bundle) as bundle:
        assert bundle.complete
        found: dict[int, list[str]] = {entry.step: [] for _, entry in bundle.steps()}
        for record in bundle.records():
            if record.role.value == "input" and not record.path.startswith("_"):
                found[record.step].append(record.name)
        return found


def names(ran: Ran) -> dict[str, list[str]]:
    return {model.name: model.trained_by for model in ran.seen[0].models}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(tmp_path_factory.mktemp("plain"), UNEDITED / "loop.py", "--lr", "1")


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(
        tmp_path_factory.mktemp("captured"),
        UNEDITED / "loop.py",
        "--lr",
        "1",
        plan={"steps": "0,2-3"},
    )


def test_a_captured_script_prints_and_computes_what_it_does_without(
    plain: Ran, captured: Ran
) -> None:
    assert (captured.out, captured.err, captured.code) == (plain.out, plain.err, 0)


def test_two_captures_of_a_script_are_identical(captured: Ran, tmp_path: Path) -> None:
    again = run(tmp_path, UNEDITED / "loop.py", plan={"steps": "0,2-3"})
    comparison = ac.diff(captured.bundle, again.bundle)
    assert comparison.answer.value == "identical"
    assert len(comparison.rows) == 3 * 65


def test_the_chosen_steps_are_recorded_with_their_numbers(captured: Ran) -> None:
    assert list(recorded(captured)) == captured.seen[0].recorded == [0, 2, 3]


def test_its_manifest_says_that_it_is_a_scripts(captured: Ran) -> None:
    with ac.open_bundle(captured.bundle) as bundle:
        assert bundle.manifest.options.script


def test_the_first_call_of_the_model_is_recorded_whole(captured: Ran) -> None:
    with ac.open_bundle(captured.bundle) as bundle:
        assert bundle.load("", role="input", path="x", step=0).shape == (4, 8)


def test_a_capture_that_begins_later_says_with_which_steps_weights(tmp_path: Path) -> None:
    ran = run(tmp_path, UNEDITED / "loop.py", plan={"steps": "3-3"})
    with ac.open_bundle(ran.bundle) as bundle:
        assert bundle.manifest.described_at == 3


def test_evaluations_between_steps_are_not_recorded(captured: Ran) -> None:
    assert recorded(captured)[2].count("") == 1
    assert captured.seen[0].evaluations > 0


def test_when_the_window_is_over_every_hook_is_gone(captured: Ran) -> None:
    assert captured.out.splitlines()[-1] == "0 True"


def test_the_trained_model_is_told_from_teachers_copies_and_losses(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + """
import copy
net, teacher, loss = Net(), nn.Linear(3, 3), nn.MSELoss()
ema = copy.deepcopy(net)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
with torch.no_grad():
    target = teacher(x)
    ema(x)
loss(net(x), target).backward()
optimizer.step()
""",
        plan={},
    )
    assert names(ran) == {"Linear": [], "Net": [], "Net:2": ["SGD"], "MSELoss": []}
    assert [model.name for model in ran.seen[0].models if model.chosen] == ["Net:2"]
    assert recorded(ran) == {0: ["", "0", "1"]}
    assert ac.diff(ran.bundle, ran.bundle).passed


def test_a_model_is_chosen_by_name_and_the_first_trained_one_without(tmp_path: Path) -> None:
    script = (
        BEGINNING
        + """
generator, critic = Net(), nn.Linear(3, 1)
one, two = torch.optim.SGD(generator.parameters(), 0.1), torch.optim.Adam(critic.parameters())
for _ in range(2):
    critic(generator(x).detach()).sum().backward()
    two.step()
    critic(generator(x)).sum().backward()
    one.step()
"""
    )
    default, chosen = (
        run(tmp_path, script, plan={}),
        run(tmp_path, script, plan={"model": "Linear", "out": str(tmp_path / "critic")}),
    )
    assert recorded(default) == {0: ["", "0", "1"] * 2}
    assert recorded(chosen) == {0: [""]}
    assert ac.diff(chosen.bundle, chosen.bundle).passed
    doubt = "models of the script were not captured: Linear; choose by --model"
    assert ac.diff(default.bundle, default.bundle).conclusion.endswith(doubt)


@pytest.mark.parametrize(
    ("other", "code"), [("nn.Linear(3, 3)", 0), ("nn.Bilinear(3, 3, 1)", 2)], ids=["copied", "own"]
)
def test_a_second_model_of_a_script_that_trains_none_is_told(
    tmp_path: Path, other: str, code: int
) -> None:
    """What the model may have copied, as an encoder copies a layer, is none."""
    ran = run(tmp_path, f"{BEGINNING}\nnet, other = Net(), {other}\nnet(x)\n", plan={})
    assert ac.diff(ran.bundle, ran.bundle).exit_code == code


def test_models_that_one_optimizer_trains_are_recorded_as_one(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + """
encoder, decoder = Net(), nn.Linear(3, 2)
optimizer = torch.optim.SGD([*encoder.parameters(), *decoder.parameters()], 0.1)
decoder(encoder(x)).sum().backward()
optimizer.step()
""",
        plan={},
    )
    assert recorded(ran) == {0: ["Net", "Net.0", "Net.1", "Linear"]}


def test_a_model_whose_optimizer_trains_a_tensor_beside_it_is_observed_as_it_is_called(
    tmp_path: Path,
) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + """
model, centre = nn.Sequential(nn.Flatten(), Net()), nn.Parameter(torch.ones(1))
optimizer = torch.optim.SGD([*model.parameters(), centre], 0.1)
(model(x) * centre).sum().backward()
optimizer.step()
""",
        plan={},
    )
    assert recorded(ran) == {0: ["", "0", "1", "1.0", "1.1"]}


def test_the_whole_of_a_model_is_found_whose_parts_are_called(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + """
class Task(nn.Module):  # never called itself, as a LightningModule
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = Net(), nn.Linear(3, 2)
task = Task()
optimizer = torch.optim.SGD(task.parameters(), 0.1)
task.decoder(task.encoder(x)).sum().backward()
optimizer.step()
""",
        plan={},
    )
    assert recorded(ran) == {0: ["encoder", "encoder.0", "encoder.1", "decoder"]}
    assert [model.name for model in ran.seen[0].models if model.chosen] == ["Task"]


def test_a_process_that_is_forked_before_any_model_is_called_is_captured(tmp_path: Path) -> None:
    script = (
        BEGINNING + "import multiprocessing\ndef work():\n    net = Net()\n    train(net,"
        " torch.optim.SGD(net.parameters(), 0.1), 2)\n"
        "process ="
        " multiprocessing.get_context('fork').Process(target=work)\nprocess.start()\nprocess.join()"
    )
    ran = run(tmp_path, script, plan={"steps": "0,1"})
    assert list(recorded(ran)) == [0, 1]
    assert sorted(len(seen.models) for seen in ran.seen) == [0, 1]


def test_a_process_that_is_forked_later_leaves_the_bundle_alone(tmp_path: Path) -> None:
    script = (
        BEGINNING
        + "import os\nnet = Net()\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\ntrain(net,"
        " optimizer)\nif not os.fork():\n    train(net, optimizer)\n   "
        " os._exit(0)\nos.wait()\ntrain(net, optimizer)"
    )
    ran = run(tmp_path, script, plan={"steps": "2"})
    assert recorded(ran) == {0: ["", "0", "1"], 1: ["", "0", "1"]}
    assert len(ran.seen) == 1


def test_an_error_of_the_model_is_printed_as_without_a_capture(tmp_path: Path) -> None:
    script = (
        BEGINNING + "net = Net()\ntrain(net, torch.optim.SGD(net.parameters(), 0.1))\nnn.Linear(3,"
        " 3)(x)\nNet()(x[:, :2])"
    )
    plain, captured = run(tmp_path, script), run(tmp_path, script, plan={"steps": "5-5"})
    assert "mat1 and mat2" in plain.err
    assert captured.err == plain.err


def test_a_script_that_leaves_by_os_exit_keeps_its_finished_steps_and_its_code(
    tmp_path: Path,
) -> None:
    script = (
        BEGINNING + "import os\nnet = Net()\ntrain(net, torch.optim.SGD(net.parameters(), 0.1),"
        " 3)\nnet(x)\nos._exit(5)"
    )
    ran = run(tmp_path, script, plan={"steps": "2-3"})
    assert (ran.code, list(recorded(ran))) == (5, [2, 3])


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit()", "os._exit(0)"])
@pytest.mark.parametrize("optimizer", [True, False], ids=["trained", "called"])
def test_a_script_that_ends_inside_of_a_forward_leaves_an_incomplete_bundle(
    tmp_path: Path, end: str, optimizer: bool
) -> None:
    script = (
        BEGINNING
        + f"import os, sys\ndef leave(x):\n    if len(seen) == 2:\n        {end}\n    return"
        " x.tanh()\nnet, seen = Net(), []\nnet[1].forward = leave\noptimizer ="
        " torch.optim.SGD(net.parameters(), 0.1)\nfor step in range(5):\n   "
        f" {'train(net, optimizer)' if optimizer else 'net(x)'}\n    seen.append(step)"
    )
    ran = run(
        tmp_path,
        (
            script
            if optimizer
            else script.replace("optimizer = torch.optim.SGD(net.parameters(), 0.1)", "")
        ),
        plan={"steps": "3"},
    )
    assert ran.code == 0
    with ac.open_bundle(ran.bundle) as bundle:
        assert not bundle.complete
        assert [(entry.step, entry.partial) for _, entry in bundle.steps()] == [
            (0, False),
            (1, False),
            (2, True),
        ]
        assert bundle.manifest.stopped == {
            "step": 2,
            "module": "1",
            "error": "the process ended inside of the forward",
        }


@pytest.mark.parametrize(
    ("steps", "stopped"),
    [
        ("5", "the run ended after 3 of 5 step(s)"),
        ("0,2,9", "the run ended before step(s) 9 of --steps 0,2,9, which are not recorded"),
        ("3", None),
        ("0-2", None),
        ("2", None),
    ],
)
def test_a_script_that_ends_before_a_step_that_was_asked_for_leaves_an_incomplete_bundle(
    tmp_path: Path, steps: str, stopped: str | None
) -> None:
    ran = run(
        tmp_path,
        BEGINNING + "net = Net()\ntrain(net, torch.optim.SGD(net.parameters(), 0.1), 3)",
        plan={"steps": steps},
    )
    with ac.open_bundle(ran.bundle) as bundle:
        assert (bundle.complete, bundle.manifest.stopped) == (
            stopped is None,
            stopped and {"error": stopped},
        )


def test_ctrl_c_in_the_middle_keeps_the_finished_steps(tmp_path: Path) -> None:
    script = (
        BEGINNING + "import os, signal\nnet = Net()\noptimizer = torch.optim.SGD(net.parameters(),"
        " 0.1)\nnet[1].register_forward_hook(lambda *call: os.kill(os.getpid(), signal.SIGINT) if"
        " len(seen) == 2 else None)\nseen = []\nfor step in range(5):\n    train(net,"
        " optimizer)\n    seen.append(step)"
    )
    ran = run(tmp_path, script, plan={"steps": "5"})
    assert "KeyboardInterrupt" in ran.err
    with ac.open_bundle(ran.bundle) as bundle:
        assert not bundle.complete
        assert [entry.step for _, entry in bundle.steps() if not entry.partial] == [0, 1]
        assert bundle.manifest.stopped["error"] == "interrupted"


def test_without_an_optimizer_each_call_is_a_step(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + """
net = Net().eval()
for token in range(4):  # as generate() does
    with torch.no_grad():
        x = net(x)
""",
        plan={"steps": "0,2"},
    )
    assert recorded(ran) == {0: ["", "0", "1"], 2: ["", "0", "1"]}


def test_a_step_that_updates_by_hand_has_its_backward(tmp_path: Path) -> None:
    by_hand = """
net = Net()
for _ in range(3):
    net(x).sum().backward()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter -= 0.1 * parameter.grad
            parameter.grad = None
"""
    ran = run(tmp_path, BEGINNING + by_hand, plan={"steps": "0,2"})
    with ac.open_bundle(ran.bundle) as bundle:
        backward = {
            (record.step, record.name)
            for record in bundle.records()
            if record.role.value == "grad_output"
        }
    assert (ran.seen[0].steps, backward) == (
        3,
        {(step, name) for step in (0, 2) for name in ("", "0", "1")},
    )


def test_what_ran_before_its_optimizer_was_made_is_dropped(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + "net = Net()\nnet(x[:1])\ntrain(net, torch.optim.SGD(net.parameters(), 0.1), 2)",
        plan={},
    )
    assert recorded(ran) == {0: ["", "0", "1"]}
    with ac.open_bundle(ran.bundle) as bundle:
        assert bundle.load("", role="input").shape == (2, 3)
        assert any(record.role.value == "param_update" for record in bundle.records())


@pytest.mark.parametrize(
    ("training", "calls"),
    [
        pytest.param("train(net, sgd, 2, calls=2)", 2, id="accumulation"),
        pytest.param(
            "for _ in range(2):\n    net(x).sum().backward()\n    sgd.step()\n    adam.step()",
            1,
            id="two optimizers",
        ),
        pytest.param(
            "lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=2)\ndel sgd, adam\ndef"
            " closure():\n    lbfgs.zero_grad()\n    loss = net(x).square().sum()\n   "
            " loss.backward()\n    return loss\nfor _ in range(2):\n    lbfgs.step(closure)",
            2,
            id="closure",
        ),
        pytest.param(
            "scaler = torch.amp.GradScaler('cpu', init_scale=2.0**127)\ndel adam\nfor _ in"
            " range(2):\n    sgd.zero_grad()\n    scaler.scale(net(x).sum() * 1e9).backward()\n   "
            " scaler.step(sgd)\n    scaler.update()",
            1,
            id="skipped by a scaler",
        ),
    ],
)
def test_a_step_ends_with_its_update(tmp_path: Path, training: str, calls: int) -> None:
    made = (
        "net = Net()\nsgd = torch.optim.SGD(net[0].parameters(), 0.1)\nadam ="
        " torch.optim.Adam(net[0].parameters())\n"
    )
    if "adam" not in training:
        made += "del adam\n"
    ran = run(tmp_path, BEGINNING + made + training, plan={"steps": "0,1"})
    assert {step: found.count("") for step, found in recorded(ran).items()} == {0: calls, 1: calls}


def test_a_script_that_raises_leaves_a_bundle_that_says_where(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + "net = Net()\ntrain(net, torch.optim.SGD(net.parameters(), 0.1))\nnet(x[:, :2])",
        plan={"steps": "2"},
    )
    assert ran.code == 1
    assert "RuntimeError" in ran.err
    with ac.open_bundle(ran.bundle) as bundle:
        assert [entry.step for _, entry in bundle.steps() if not entry.partial] == [0]
        assert bundle.manifest.stopped is not None
        assert (bundle.manifest.stopped["step"], bundle.manifest.stopped["module"]) == (1, "0")


def test_a_failure_of_ours_reaches_the_handshake_and_not_the_script(
    plain: Ran, tmp_path: Path
) -> None:
    ran = run(tmp_path, UNEDITED / "loop.py", "--lr", "1", plan={"options": {"only": ["nothing"]}})
    assert (ran.out, ran.err, ran.code) == (plain.out, plain.err, 0)
    assert ran.seen[0].error is not None
    assert "leaves no module to record" in ran.seen[0].error


def test_workers_that_load_data_record_nothing(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + """
net, table = Net(), nn.Embedding(8, 3)
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return table(torch.tensor(index)).detach() + net(x)[0].detach()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for batch in torch.utils.data.DataLoader(Data(), batch_size=2, num_workers=1):
    net(batch).sum().backward()
    optimizer.step()
""",
        plan={"steps": "0,1"},
    )
    assert len(ran.seen) == 1
    assert recorded(ran) == {0: ["", "0", "1"], 1: ["", "0", "1"]}


def test_steps_count_from_where_the_file_appears(tmp_path: Path) -> None:
    ran = run(
        tmp_path,
        BEGINNING
        + """
import time
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1)
train(net, optimizer, 3)
open("now", "w").close()
time.monotonic = lambda: 1e9  # the file is looked for once a second
train(net, optimizer, 5)
""",
        plan={"steps": "2", "arm": str(tmp_path / "now")},
    )
    steps = list(recorded(ran))
    assert len(steps) == 2
    assert steps[0] >= 3


def test_seeds_and_flags_are_set_only_if_that_is_asked(tmp_path: Path) -> None:
    script = (
        "import random, numpy, torch\nprint(random.random(), numpy.random.rand(), torch.rand(1),"
        " torch.are_deterministic_algorithms_enabled())"
    )
    first, second = (
        run(tmp_path, script, plan={"seed": 3, "deterministic": True}) for _ in range(2)
    )
    assert first.out == second.out
    assert "True" in first.out
    assert "False" in run(tmp_path, script, plan={}).out


def test_a_watch_finds_what_a_script_computes_and_lets_it_go_on(tmp_path: Path) -> None:
    script = (
        BEGINNING
        + "net = Net()\noptimizer = torch.optim.SGD(net.parameters(), 0.1)\ntrain(net, optimizer)\n"
        "x = x * float('inf')\ntrain(net, optimizer)\nprint('done')"
    )
    plan = {
        "action": Action.WATCH,
        "out": str(tmp_path / "watch"),
        "steps": None,
        "options": {"on_finding": "snapshot"},
    }
    ran, plain = run(tmp_path, script, plan=plan), run(tmp_path, script)
    assert (ran.out, ran.err, ran.code) == (plain.out, plain.err, 0)
    assert read_logs(tmp_path / "watch").findings


#: Steps of a net, whose first gradients overflow in float16 at a scale of 2.0**18.
SCALED = """
def scaled(net, optimizer, scaler, steps=4):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(x).sum()
        loss = loss if scaler is None else scaler.scale(loss.half() * 1.0)
        loss.backward()
        (optimizer.step if scaler is None else lambda: (scaler.step(optimizer), scaler.update()))()
def made(model):
    return model, torch.optim.SGD(model.parameters(), 0.01)
class Other(Net): pass
"""


def watched_scales(
    tmp_path: Path, training: str, **options: str
) -> tuple[list[float | None], list[int]]:
    """The scale of each step's line in the log, and the steps that were skipped."""
    plan = {
        "action": Action.WATCH,
        "out": str(tmp_path / "watch"),
        "steps": None,
        "options": {"on_finding": "warn"},
        **options,
    }
    run(tmp_path, BEGINNING + SCALED + training, plan=plan)
    log = read_logs(tmp_path / "watch").ranks[0]
    return [each.scale for each in log.steps], [each.step for each in log.scaled if each.skipped]


@pytest.mark.parametrize("before", [False, True])
def test_a_training_is_not_judged_by_the_scaler_of_another(tmp_path: Path, before: bool) -> None:
    first = "first = torch.amp.GradScaler('cpu', init_scale=8.0)\n"
    training = f"{first}scaled(*made(Net()), first)\n" if before else first
    scales, _ = watched_scales(tmp_path, training + "scaled(*made(Other()), None)", model="Other")
    assert scales == [None] * 4


@pytest.mark.parametrize("late", [False, True])
def test_a_training_is_judged_by_the_scaler_that_steps_its_optimizer(
    tmp_path: Path, late: bool
) -> None:
    training = (
        "own, other = (torch.amp.GradScaler('cpu', init_scale=each) for each in (4.0, 8.0))\n"
    )
    if late:
        training = (
            "first = torch.amp.GradScaler('cpu', init_scale=8.0)\nscaled(*made(Net()), first)\n"
        )
        training += "own = torch.amp.GradScaler('cpu', init_scale=4.0)\n"
    scales, skipped = watched_scales(
        tmp_path, training + "scaled(*made(Other()), own)", model="Other"
    )
    assert (scales, skipped) == ([4.0] * 4, [])


def test_an_update_that_a_scaler_skips_is_of_the_step_that_overflowed(tmp_path: Path) -> None:
    scales, skipped = watched_scales(
        tmp_path, "scaled(*made(Net()), torch.amp.GradScaler('cpu', init_scale=2.0**18))"
    )
    assert skipped == list(range(len(skipped)))
    assert 0 < len(skipped) < 4
    assert scales[0] == 2.0**17


def test_a_step_whose_scale_is_never_updated_ends_when_the_model_is_called_again(
    tmp_path: Path,
) -> None:
    training = "scaler = torch.amp.GradScaler('cpu', init_scale=4.0)\n"
    training += (
        "net, sgd = made(Net())\nfor _ in range(3):\n    sgd.zero_grad()\n   "
        " scaler.scale(net(x).sum()).backward()\n"
    )
    scales, _ = watched_scales(
        tmp_path, training + "    scaler.step(sgd)\n    scaler._per_optimizer_states.clear()"
    )
    assert scales == [4.0] * 3


def test_a_step_that_a_finding_has_ended_was_watched(tmp_path: Path) -> None:
    script = (
        BEGINNING
        + "net = Net()\nx = x * float('inf')\ntrain(net, torch.optim.SGD(net.parameters(), 0.1))"
    )
    plan = {
        "action": Action.WATCH,
        "out": str(tmp_path / "watch"),
        "steps": None,
        "options": {"on_finding": "raise"},
    }
    assert run(tmp_path, script, plan=plan).seen[0].recorded == [0]


@pytest.mark.parametrize("action", [Action.WATCH, Action.CAPTURE])
def test_an_evaluation_takes_the_fused_path_that_hooks_would_keep_it_from(
    tmp_path: Path, action: Action
) -> None:
    script = """
        import torch
        from torch import nn

        torch.manual_seed(0)
        net = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        optimizer = torch.optim.SGD(net.parameters(), 0.1)
        x = torch.randn(2, 5, 8)
        layers = []
        torch._transformer_encoder_layer_fwd = (
            lambda *args, own=torch._transformer_encoder_layer_fwd: (layers.append(1), own(*args))[
                1
            ]
        )
        for step in range(2):
            net.train()(x).square().sum().backward()
            optimizer.step()
            with torch.no_grad():
                print(net.eval()(x).sum().item().hex(), len(layers))
    """
    plan = {"action": action, "out": str(tmp_path / "out"), "steps": None, "options": {}}
    ran, plain = run(tmp_path, script, plan=plan), run(tmp_path, script)
    assert (ran.out, ran.code) == (plain.out, 0)
    assert plain.out.split()[-1] == "4"


def test_what_is_seen_is_listed_with_its_trainers_and_steps(tmp_path: Path) -> None:
    ran = run(tmp_path, UNEDITED / "loop.py", plan={"action": Action.LIST})
    assert [
        (model.name, model.trained_by, model.steps, model.calls) for model in ran.seen[0].models
    ] == [("Net", ["AdamW"], 5, 10), ("CrossEntropyLoss", [], 0, 5)]


def test_a_compiled_model_is_compiled_as_without_a_capture_outside_the_window(
    tmp_path: Path,
) -> None:
    script = (
        BEGINNING
        + """
net = Net()
graphs = []
def backend(graph, inputs):
    graphs.append(len(list(graph.graph.nodes)))
    return graph.forward
compiled = torch.compile(net, backend=backend)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
teacher = torch.compile(nn.Linear(3, 3), backend=backend)
for step in range(4):
    with torch.no_grad():
        target = teacher(x)
    loss = (compiled(x) - target).square().sum()
    loss.backward()
    optimizer.step()
    print(loss.item().hex(), graphs)
"""
    )
    plain, ran = run(tmp_path, script), run(tmp_path, script, plan={"steps": "2-2"})
    assert (ran.out, ran.err) == (plain.out, plain.err)
    assert recorded(ran) == {2: ["", "0", "1"]}


def test_a_second_run_is_fed_with_the_first(captured: Ran, tmp_path: Path) -> None:
    changed = (
        (UNEDITED / "loop.py")
        .read_text()
        .replace("return self.head(self.inner(x))", "return self.head(self.inner(x) * 1.01)")
    )
    ran = run(
        tmp_path,
        changed,
        plan={
            "steps": "1",
            "options": {"feed": str(captured.bundle)},
            "out": str(tmp_path / "fed"),
        },
    )
    assert ran.seen[0].error is None
    comparison = ac.diff(captured.bundle, ran.bundle)
    assert [(culprit.name, culprit.site) for culprit in comparison.culprits[:1]] == [("", "glue")]


#: What calls a part of a model before there is an optimizer: a parametrization, and a module that
# looks for a shape, while it is made; and : the script itself.
EARLY = {
    "parametrization": "model = Around(nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)))",
    "dummy forward": (
        "class Shaped(Around):\n"
        "    def __init__(self):\n"
        "        super().__init__(nn.Sequential(nn.Linear(3, 4), nn.Flatten()))\n"
        "        self.head = nn.Linear(self.inner(x).shape[1], 3)\n"
        "model = Shaped()"
    ),
    "a part called apart": (
        "model = Around(nn.Sequential(nn.Linear(3, 3), nn.Tanh()))\nmodel.inner(x)"
    ),
}


@pytest.mark.parametrize("early", EARLY)
def test_what_is_called_before_the_training_does_not_keep_a_second_run_from_being_fed(
    tmp_path: Path, early: str
) -> None:
    script = (
        BEGINNING
        + """
class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner, self.head = inner, nn.Identity()
    def forward(self, x):
        return self.head(self.inner(x))
"""
        + EARLY[early]
        + "\ntrain(model, torch.optim.SGD(model.parameters(), 0.1))\n"
    )
    golden = run(tmp_path, script, plan={"seed": 0})
    fed = run(
        tmp_path,
        script,
        plan={"seed": 0, "options": {"feed": str(golden.bundle)}, "out": str(tmp_path / "fed")},
    )
    assert fed.seen[0].error is None
    assert others(golden.seen) == []
    assert ac.diff(golden.bundle, fed.bundle).answer.value == "identical"


def test_golden_of_another_model_is_refused_where_no_other_is_called(
    captured: Ran, tmp_path: Path
) -> None:
    script = BEGINNING + "nn.Bilinear(3, 3, 3)(x, x)\nnn.Sequential(Net())(x)\n"
    ran = run(
        tmp_path,
        script,
        plan={"options": {"feed": str(captured.bundle)}, "out": str(tmp_path / "fed")},
    )
    assert "is of another model" in (ran.seen[0].error or "")
    assert not any(model.chosen for model in ran.seen[0].models)


def test_a_model_that_golden_is_not_of_is_looked_at_once(captured: Ran, tmp_path: Path) -> None:
    script = (
        BEGINNING
        + """
class Counting(nn.Bilinear):
    looks = 0
    def named_modules(self, *args, **kwargs):
        Counting.looks += 1
        return super().named_modules(*args, **kwargs)
model = Counting(3, 3, 3)
model(x, x)
first = Counting.looks
model(x, x)
print(first > 1, Counting.looks - first)
"""
    )
    ran = run(
        tmp_path,
        script,
        plan={"options": {"feed": str(captured.bundle)}, "out": str(tmp_path / "fed")},
    )
    assert ran.out == "True 0\n", "there is no optimizer that may train it"
    assert "is of another model" in (ran.seen[0].error or "")


def test_a_saved_state_is_that_before_the_first_recorded_step(tmp_path: Path) -> None:
    script = (
        BEGINNING
        + "net = Net()\noptimizer = torch.optim.SGD(net.parameters(), 1.0)\ntrain(net, optimizer,"
        " 2)\ntorch.save(net[0].weight.detach(), 'before')\ntrain(net, optimizer)\n"
    )
    ran = run(tmp_path, script, plan={"steps": "2-2", "options": {"save_state": True}})
    with ac.open_bundle(ran.bundle) as bundle:
        (weight,) = (record for record in bundle.state() if record.name == "0.weight")
        assert bundle.values(weight).tolist() == torch.load(tmp_path / "before").tolist()
