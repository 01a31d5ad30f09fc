"""The NPU as a user meets it: the real torch_npu on a simulated runtime, from the command line,
each in a process of its own.
"""

from __future__ import annotations

import json
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import torch

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.records import Role
from accucompare.compare.rows.rows import Reason, Row
from accucompare.devices import DeviceName
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from accucompare.selection import FloatType
from fixtures.simnpu.launcher import environment
from tests.conftest import ROOT, run_cli
from tests.forkserver import AUTOLOAD, CLI, SIMULATED, simulated_npu, with_torch

try:
    environment({})
except RuntimeError as error:
    pytest.skip(f"no simulated NPU here: {error}", allow_module_level=True)

pytestmark = pytest.mark.xdist_group("npu")
TRAINED = ["cnn", "t5"]
SETTINGS = {"OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1", "COLUMNS": "100"}


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def npu(
    *arguments: str | Path, cwd: Path, program: str = CLI, **switches: str
) -> CompletedProcess[str]:
    """Run the command line where there is a simulated NPU, with its switches."""
    variables = environment({**os.environ, **SETTINGS}, **switches)
    if "devices" in switches:  # which torch_npu asks for while it is imported
        return with_torch()(AUTOLOAD + CLI, *arguments, cwd=cwd, variables=variables)
    return simulated_npu()(program, *arguments, cwd=cwd, variables=variables)


def captured(case: str, out: Path, *options: str, program: str = CLI, **switches: str) -> Path:
    """Capture a fixture on the simulated NPU."""
    arguments = ("capture", f"{ROOT}/fixtures/{case}", "--device", "npu", "--out", out, *options)
    done = npu(*arguments, cwd=out.parent, program=program, **switches)
    assert done.returncode == 0, done.stderr
    return out


def python(
    source: str, cwd: Path, base: dict[str, str] | None = None, **switches: str
) -> CompletedProcess[str]:
    """Run a program where there is a simulated NPU, as ``device``; ``npu`` is its backend, and it
    leaves what it saw in ``found``.
    """
    program = f"{PROGRAM}{textwrap.dedent(source)}\nprint(json.dumps(found))\n"
    done = simulated_npu()(
        program,
        cwd=cwd,
        variables=environment({**os.environ, **SETTINGS, **(base or {})}, **switches),
    )
    assert done.returncode == 0, done.stderr
    return done


PROGRAM = """
import ctypes, json, torch
from pathlib import Path
from accucompare.devices import DeviceName, backend, open_device
from accucompare.errors import AccucompareError
npu, device = backend("npu"), open_device(DeviceName("npu"))
values = torch.tensor([6e4, -6e4, 1], dtype=torch.float16).npu()

def calls():
    runtime = ctypes.CDLL("libascendcl.so")
    runtime.simnpu_dump_calls.restype = ctypes.c_char_p
    return runtime.simnpu_dump_calls().decode().splitlines()
"""


def rows(comparison: Comparison) -> list[Row]:
    """The compared rows, in golden's order."""
    found = [row for row in comparison.rows if row.metrics is not None]
    assert found
    return found


def within(comparison: Comparison, limit: float) -> bool:
    return all(row.metrics is not None and row.metrics.rel_l2 <= limit for row in rows(comparison))


@pytest.fixture(scope="module")
def goldens(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """``goldens("cnn.py")`` is a capture of a fixture on the CPU."""
    folder = tmp_path_factory.mktemp("golden")

    def golden(case: str, steps: int | None = None) -> Path:
        out = folder / case.replace(":", "-")
        return (
            out
            if out.exists()
            else capture_case(
                f"{ROOT}/fixtures/{case}", out, DeviceName("cpu"), CaptureOptions(steps=steps)
            )
        )

    return golden


# What is computed


@pytest.mark.parametrize("name", TRAINED)
def test_training_agrees_with_the_cpu(name: str, goldens: Any, tmp_path: Path) -> None:
    """Forward and backward: the second step's outputs depend on the first step's gradients."""
    candidate = captured(f"{name}.py:training", tmp_path / "npu", "--steps", "2")
    comparison = ac.diff(goldens(f"{name}.py:training", 2), candidate)
    assert {row.golden.step for row in rows(comparison) if row.golden} == {0, 1}
    # gradients and updates, too, whose rounding is that of all that was before
    assert comparison.passed
    forward = [
        row
        for row in rows(comparison)
        if row.golden and row.golden.role in (Role.INPUT, Role.OUTPUT)
    ]
    assert all(row.metrics is not None and row.metrics.rel_l2 <= 2e-6 for row in forward)
    assert {row.golden.role for row in rows(comparison) if row.golden} > {
        Role.GRAD_INPUT,
        Role.CALL_GRAD,
        Role.PARAM_GRAD,
        Role.PARAM_UPDATE,
    }


def test_hf32_in_convolutions_is_seen_there_and_in_what_follows(
    goldens: Any, tmp_path: Path
) -> None:
    """torch_npu allows it for convolutions and not for matrix products, unless told otherwise."""
    candidate = captured("cnn.py", tmp_path / "npu", "--steps", "1", numerics="hf32")
    comparison = ac.diff(goldens("cnn.py"), candidate, limits=ac.Tolerance(rel_l2=2e-6))
    first = comparison.first_divergence
    assert first is not None
    assert first.golden is not None
    assert (first.golden.name, first.golden.role) == ("stem.0", Role.OUTPUT)
    values = (Role.INPUT, Role.OUTPUT)
    compared = [
        row
        for row in rows(comparison)
        if row.golden and row.golden.step == 0 and row.golden.role in values
    ]
    place = compared.index(first)
    assert all(row.metrics is not None and row.metrics.rel_l2 <= 2e-6 for row in compared[:place])
    assert all(row.metrics is not None and row.metrics.rel_l2 > 2e-6 for row in compared[place:])
    assert first.metrics is not None
    assert 1e-4 < first.metrics.rel_l2 < 2e-4
    assert any(
        "candidate may compute float32 in fewer bits: npu.conv.allow_hf32" in each.message
        for each in comparison.preflight
    )


def test_hf32_in_convolutions_leaves_a_model_without_them_as_it_is(
    goldens: Any, tmp_path: Path
) -> None:
    candidate = captured("gpt2.py", tmp_path / "npu", numerics="hf32")
    assert within(ac.diff(goldens("gpt2.py"), candidate), 2e-6)


def test_a_fit_of_float32_turns_hf32_off(goldens: Any, tmp_path: Path) -> None:
    asked = ("--golden", goldens("cnn.py"), "--device", "npu", "--dtype", "float32")
    done = npu(
        "fit", f"{ROOT}/fixtures/cnn.py", *asked, "--rel-l2", "1e-5", "--report", "none",
        cwd=tmp_path, numerics="hf32",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "within 1e-05 with hf32 off" in done.stdout
    code = (tmp_path / "fit" / "keep_in_float32.py").read_text()
    assert "torch.npu.conv.allow_hf32 = False" in code


def test_hf32_can_be_forbidden_and_allowed(goldens: Any, tmp_path: Path) -> None:
    """By the real flags of the real torch_npu, which the simulated kernels obey."""
    forbidden = captured("cnn.py", tmp_path / "no", "--no-hf32", numerics="hf32")
    assert within(ac.diff(goldens("cnn.py"), forbidden), 2e-6)
    allowed = captured("gpt2.py", tmp_path / "yes", "--hf32", numerics="hf32")
    first = ac.diff(goldens("gpt2.py"), allowed, limits=ac.Tolerance(rel_l2=2e-6)).first_divergence
    assert first is not None
    assert first.golden is not None
    assert first.golden.name == "transformer.h.0.attn.c_attn"
    flags = [
        json.loads((path / "manifest.json").read_text())["environment"]["flags"]
        for path in (forbidden, allowed)
    ]
    assert [flag["npu.conv.allow_hf32"] for flag in flags] == [False, True]
    assert [flag["npu.matmul.allow_hf32"] for flag in flags] == [False, True]


def test_a_model_without_parameters_is_captured_with_the_devices_flags(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(
        "import torch\nfrom accucompare import Case\n"
        "class Product(torch.nn.Module):\n    def forward(self, x):\n        return x @ x\n"
        "def case():\n    return Case(Product(), torch.randn(16, 16))\n"
    )
    for out, *options in (("plain",), ("forbidden", "--no-hf32"), ("allowed", "--hf32")):
        done = npu(
            "capture", "--device", "npu", "--out", out, *options, cwd=tmp_path, numerics="hf32"
        )
        assert done.returncode == 0, done.stderr
    assert ac.diff(tmp_path / "plain", tmp_path / "forbidden").counts()[Reason.IDENTICAL] == 2
    assert not ac.diff(
        tmp_path / "plain", tmp_path / "allowed", limits=ac.Tolerance(rel_l2=1e-5)
    ).passed


def test_a_fault_in_one_operator_of_one_module_is_found_there(goldens: Any, tmp_path: Path) -> None:
    """Layer norm 3 of a GPT-2 with two a block is the second block's second."""
    candidate = captured("gpt2.py", tmp_path / "npu", fault="aten::native_layer_norm:3=scale1.01")
    first = ac.diff(goldens("gpt2.py"), candidate).first_divergence
    assert first is not None
    assert first.golden is not None
    assert (first.golden.name, first.golden.role) == ("transformer.h.1.ln_2", Role.OUTPUT)
    assert first.reason.value == "introduced"


@pytest.mark.parametrize("name", ["cnn", "t5"])
def test_every_copy_to_the_host_is_waited_for(name: str, goldens: Any, tmp_path: Path) -> None:
    candidate = captured(f"{name}.py", tmp_path / "npu", lazy_copies="1")
    comparison = ac.diff(goldens(f"{name}.py"), candidate, work=ac.Work(verify=True))
    assert comparison.passed
    assert within(comparison, 2e-6)


def test_random_numbers_agree_with_the_cpu(goldens: Any, tmp_path: Path) -> None:
    comparison = ac.diff(goldens("tricky.py"), captured("tricky.py", tmp_path / "npu"))
    assert comparison.passed


def test_half_precision_on_the_npu_is_that_of_the_cpu(tmp_path: Path) -> None:
    golden = capture_case(f"{ROOT}/fixtures/gpt2.py", tmp_path / "golden", DeviceName("cpu"))
    candidate = captured("gpt2.py", tmp_path / "npu", "--dtype", "bfloat16")
    with ac.open_bundle(candidate) as bundle:
        assert (
            next(record for record in bundle.records() if record.name == "lm_head").dtype
            == "bfloat16"
        )
    assert ac.diff(golden, candidate).passed


def test_locate_names_a_fault_of_the_device(tmp_path: Path) -> None:
    case = f"{ROOT}/fixtures/gpt2.py"
    done = npu(
        "locate",
        case,
        "--device",
        "npu",
        "--dtype",
        "bfloat16",
        cwd=tmp_path,
        fault="aten::native_layer_norm:3=scale1.02",
    )
    assert done.returncode == 1, done.stderr
    assert ": bug: transformer.h.1.ln_2, excess " in done.stdout


def test_half_types_are_sketched_on_the_npu_and_judged_by_that(tmp_path: Path) -> None:
    golden, options = (
        tmp_path / "golden",
        ("--dtype", "bfloat16", "--mode", "sketch", "--feed", str(tmp_path / "golden")),
    )
    capture_case(f"{ROOT}/fixtures/gpt2.py", golden, DeviceName("cpu"))
    fed = CaptureOptions(feed=golden, mode="sketch")
    baseline = capture_case(
        f"{ROOT}/fixtures/gpt2.py",
        tmp_path / "baseline",
        DeviceName("cpu"),
        fed,
        dtype=FloatType.BFLOAT16,
    )
    small_too = f"from accucompare.live.values import tensors\ntensors._WORTH_A_SKETCH = 0\n{CLI}"
    sound = captured("gpt2.py", tmp_path / "sound", *options, program=small_too)
    faulty = captured(
        "gpt2.py",
        tmp_path / "faulty",
        *options,
        program=small_too,
        fault="aten::native_layer_norm:3=scale1.02",
    )
    digests = []
    for out in (sound, faulty):
        with ac.open_bundle(out) as bundle:
            digests.append(
                {
                    record.key: str(record.digest)
                    for record in bundle.records()
                    if record.sketch is not None
                }
            )
    assert all(digest.startswith("device:") for digest in digests[0].values())
    # for each layer is fed
    assert [key.name for key in digests[0] if digests[0][key] != digests[1][key]] == [
        "transformer.h.1.ln_2"
    ]
    passed, failed = (
        ac.diff(golden, candidate, baseline=baseline) for candidate in (sound, faulty)
    )
    assert passed.passed
    assert passed.by_sketch > 50
    assert failed.culprits[0].name == "transformer.h.1.ln_2"


# What is recorded of it


def test_the_manifest_says_what_ran_and_how(tmp_path: Path) -> None:
    manifest = json.loads(
        (
            captured("cnn.py", tmp_path / "npu", "--steps", "1", "--deterministic")
            / "manifest.json"
        ).read_text()
    )
    environment = manifest["environment"]
    assert environment["device"]["type"] == "npu"
    assert "simulated" in environment["device"]["name"]
    assert environment["versions"]["torch_npu"] == "2.13.0"
    assert {"cann", "driver"} <= environment["device"].keys()
    flags = environment["flags"]
    assert flags["npu.conv.allow_hf32"] is True
    assert flags["npu.matmul.allow_hf32"] is False
    assert flags["deterministic_algorithms"] is True
    assert {"npu.jit_compile", "npu.deterministic_level", "npu.inf_nan_mode"} <= flags.keys()
    assert {
        "ASCEND_LAUNCH_BLOCKING",
        "TASK_QUEUE_ENABLE",
        "HCCL_DETERMINISTIC",
        "INF_NAN_MODE_ENABLE",
    } <= flags.keys()


def test_operators_that_fell_back_to_the_cpu_are_noted(tmp_path: Path) -> None:
    """Those that torch_npu itself warns of, in forward and backward, though its warnings are
    switched off here or there.
    """
    (tmp_path / "case.py").write_text(
        "import torch\nfrom accucompare import Case\nclass Net(torch.nn.Linear):\n    def"
        " forward(self, x):\n        return torch.linalg.inv(super().forward(x))\ndef case():\n   "
        " return Case(Net(4, 4), torch.randn(4, 4), loss=lambda y:"
        " torch.nn.functional.huber_loss(y, torch.zeros_like(y)))\n"
    )
    done = npu("capture", "--device", "npu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    warned = set(re.findall(r"The operator '([^']+)' is not currently supported", done.stderr))
    assert warned == {
        "aten::huber_loss",
        "aten::huber_loss_backward.out",
        "aten::linalg_inv_ex.inverse",
    }
    with ac.open_bundle(tmp_path / "npu") as bundle:
        noted = {
            note.partition(" ")[0]
            for note in bundle.manifest.notes
            if note.endswith("was run on the CPU")
        }
    assert noted == warned


def test_without_a_case_the_one_of_pyproject_is_captured_into_npu(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        f'[tool.accucompare]\ncase = "{ROOT}/fixtures/cnn.py"\n'
    )
    done = npu("capture", "--device", "npu", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "npu" / "manifest.json").is_file()


def test_standard_output_is_for_results_only(tmp_path: Path) -> None:
    """Also while torch_npu is imported, in a process that has not done so yet."""
    (tmp_path / "case.py").write_text(
        "import torch\nfrom accucompare import Case\ndef case():\n    return"
        " Case(torch.nn.Linear(2, 2), torch.ones(1, 2))\n"
    )
    variables = environment({**os.environ, **SETTINGS})
    done = with_torch()(
        SIMULATED + CLI, "capture", "--device", "npu", "--quiet", cwd=tmp_path, variables=variables
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_doctor_describes_the_npu_and_what_changes_its_numbers(tmp_path: Path) -> None:
    done = npu("doctor", "--device", "npu", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0
    assert found["devices"]["npu"]["count"] == 1
    assert "simulated" in found["devices"]["npu"]["description"]["name"]
    (hf32,) = [problem for problem in found["problems"] if "hf32" in problem["message"]]
    assert hf32["message"].startswith("npu.conv.allow_hf32 is True")
    assert "--no-hf32" in hf32["cure"]


# Overflow

SATURATING = [
    pytest.param({"soc": "Ascend910A"}, id="910A"),
    pytest.param({"soc": "Ascend310P3"}, id="310P"),
    pytest.param(
        {"base": {"INF_NAN_MODE_ENABLE": "0", "INF_NAN_MODE_FORCE_DISABLE": "1"}},
        id="910B told to saturate",
    ),
]


@pytest.mark.parametrize("switches", SATURATING)
def test_a_soc_that_saturates_has_its_flag_read_and_cleared(
    switches: dict[str, Any], tmp_path: Path
) -> None:
    """Seen by torch_npu's own function too, which reads and does not clear."""
    done = python(
        """
        found = {
            "saturates": npu.saturates(),
            "before": npu.overflowed(device),
            "doubled": (values * 2).tolist(),
        }
        found["raised"] = [torch.npu.get_npu_overflow_flag(), npu.overflowed(device)]
        found["cleared"] = [torch.npu.get_npu_overflow_flag(), npu.overflowed(device)]
        values / 2
        found["after one that is finite"] = npu.overflowed(device)
        values / 0
        found["raised again"] = npu.overflowed(device)
        """,
        tmp_path,
        **switches,
    )
    assert json.loads(done.stdout) == {
        "saturates": True,
        "before": False,
        "doubled": [65504, -65504, 2],
        "raised": [True, True],
        "cleared": [False, False],
        "after one that is finite": False,
        "raised again": True,
    }


@pytest.mark.parametrize("soc", ["Ascend910B1", "Ascend910_9391"])
def test_a_soc_with_inf_and_nan_has_no_flag_to_ask(soc: str, tmp_path: Path) -> None:
    """There torch_npu's function for the flag raises, and the one that clears it warns; Inf in the
    tensor is what shows overflow.
    """
    done = python(
        """
        found = [npu.saturates(), (values * 2).isinf().tolist(), npu.overflowed(device)]
        try:
            torch.npu.get_npu_overflow_flag()
        except RuntimeError as error:
            found.append(str(error).partition(",")[0])
        """,
        tmp_path,
        soc=soc,
    )
    assert json.loads(done.stdout) == [
        False,
        [True, True, False],
        None,
        "Unsupported api when soc_version >= Ascend910B1",
    ]
    assert "clear_npu_overflow_flag" not in done.stderr


def test_the_step_that_overflowed_on_a_soc_that_saturates_is_noted(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(
        "import torch\nfrom accucompare import Case\nclass Square(torch.nn.Module):\n    def"
        " forward(self, x):\n        return x * x\ndef case():\n    return Case(Square(),"
        " [torch.full((4,), each).half() for each in (2.0, 300.0, 3.0)])\n"
    )
    done = npu("capture", "--device", "npu", cwd=tmp_path, soc="Ascend910A")
    assert done.returncode == 0, done.stderr
    with ac.open_bundle(tmp_path / "npu") as bundle:
        noted = [note.partition(":")[0] for note in bundle.manifest.notes if "overflow" in note]
    assert noted == ["the device's overflow flag is up after step 1"]


# Kernel dumps


def test_a_kernel_dump_is_begun_configured_and_ended_in_cann_around_its_body(
    tmp_path: Path,
) -> None:
    """Twice in one process; and the device is waited for before each beginning and each end."""
    done = python(
        """
        found, waited, wait = [], [], torch.npu.synchronize
        torch.npu.synchronize = lambda *devices: (waited.append(calls()[-1:]), wait(*devices))
        for name in ("one/deeper", "two"):
            with npu.kernel_dump(Path(name)):
                values * 2
                found.append([calls(), json.loads(Path(name, "acl_dump.json").read_text())])
        found += [waited, [call for call in calls() if call != "synchronize"]]
        """,
        tmp_path,
    )
    *inside, waited, after = json.loads(done.stdout)
    first, second = (str(tmp_path / name) for name in ("one/deeper", "two"))
    begun = ["init", f"set {first}/acl_dump.json"]
    assert inside[0][0] == begun
    for (_, config), path in zip(inside, (first, second), strict=True):
        assert config == {
            "dump": {
                "dump_list": [],
                "dump_path": path,
                "dump_mode": "all",
                "dump_op_switch": "on",
                "dump_data": "tensor",
            }
        }
    assert after == [*begun, "finalize", "init", f"set {second}/acl_dump.json", "finalize"]
    last_call = [call[-1] if call else None for call in waited]
    assert last_call == [None, after[1], "finalize", after[4]]


def test_a_kernel_dump_is_ended_when_its_body_raises(tmp_path: Path) -> None:
    """With what the body raised, also when the end fails too."""
    done = python(
        """
        found = []
        for spoil in (lambda: None, torch.npu.finalize_dump):
            try:
                with npu.kernel_dump(Path("dump")):
                    spoil()
                    raise KeyError("mine")
            except KeyError as error:
                found.append(str(error))
        found.append([call for call in calls() if call != "synchronize"])
        """,
        tmp_path,
    )
    begun = ["init", f"set {tmp_path}/dump/acl_dump.json"]
    assert json.loads(done.stdout) == ["'mine'", "'mine'", [*begun, "finalize", *begun, "finalize"]]


DUMP_REFUSED = """
def refused(directory):
    try:
        with npu.kernel_dump(Path(directory)):
            return "the body was run"
    except AccucompareError as error:
        return [type(error).__name__, str(error)]
"""


def test_a_kernel_dump_that_cann_does_not_begin_is_told_and_not_ended(tmp_path: Path) -> None:
    """Someone else's is still going on."""
    done = python(
        f"{DUMP_REFUSED}\ntorch.npu.init_dump()\nfound = [*refused('dump'), calls()]", tmp_path
    )
    kind, message, calls = json.loads(done.stdout)
    assert kind == "DeviceError"
    assert message.startswith(
        "--kernel-dump dump: refused by the NPU's software (aclmdlInitDump(), error code is 100002;"
        " EP0008: "
    )
    assert "\n" not in message
    assert "finalize" not in calls


def test_a_kernel_dump_whose_configuration_cann_refuses_is_told_and_ended(tmp_path: Path) -> None:
    """A directory with a longer path than CANN takes."""
    directory = "/".join(["d" * 200] * 3)
    done = python(f"{DUMP_REFUSED}\nfound = [*refused('{directory}'), calls()]", tmp_path)
    kind, message, calls = json.loads(done.stdout)
    assert kind == "DeviceError"
    assert (
        "refused by the NPU's software (aclmdlSetDump(cfg_file.c_str()), error code is 100009;"
        " EP0003: " in message
    )
    assert "\n" not in message
    assert [calls[0], calls[-1]] == ["init", "finalize"]
    assert not any(call.startswith("set") for call in calls)


def test_a_kernel_dump_into_what_is_no_directory_is_refused_before_anything_begins(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").write_text("")
    done = python(f"{DUMP_REFUSED}\nfound = [*refused('file'), calls()]", tmp_path)
    assert json.loads(done.stdout) == [
        "UsageError",
        "--kernel-dump file: cannot be written (File exists)",
        [],
    ]


# What is said when it does not work


def refused(done: CompletedProcess[str]) -> str:
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "internal error" not in done.stderr
    assert done.stdout == ""
    return done.stderr


def test_the_real_torch_npu_without_any_cann(tmp_path: Path) -> None:
    """torch itself cannot be imported then, unless it is told not to load torch_npu."""
    wheel = environment({})["PYTHONPATH"].split(os.pathsep)[0]
    case = f"{ROOT}/fixtures/cnn.py"
    message = refused(
        run_cli(
            "capture",
            case,
            "--device",
            "npu",
            cwd=tmp_path,
            PYTHONPATH=wheel,
            TORCH_DEVICE_BACKEND_AUTOLOAD="1",
        )
    )
    assert "cannot open shared object file" in message
    assert "source /usr/local/Ascend/ascend-toolkit/set_env.sh" in message


def test_cann_without_a_device(tmp_path: Path) -> None:
    message = refused(
        npu("capture", f"{ROOT}/fixtures/cnn.py", "--device", "npu", cwd=tmp_path, devices="0")
    )
    assert message.endswith(
        "accucompare: --device npu: no NPU is available; see whether `npu-smi info` lists one\n"
    )


def test_a_busy_device(tmp_path: Path) -> None:
    message = refused(
        npu("capture", f"{ROOT}/fixtures/cnn.py", "--device", "npu", cwd=tmp_path, busy="1")
    )
    assert re.search(
        r"the NPU cannot be opened \(\S+, error code is \d+; E[A-Z]\d{4}: .*busy",
        message,
        re.IGNORECASE,
    )
    assert message.endswith(
        "see `npu-smi info` for its state and who uses it; --device npu:N takes another one\n"
    )


def test_a_device_that_does_not_exist(tmp_path: Path) -> None:
    message = refused(npu("capture", f"{ROOT}/fixtures/cnn.py", "--device", "npu:7", cwd=tmp_path))
    assert "--device npu:7: there are 1 NPU(s), numbered from 0" in message


def test_versions_of_torch_and_torch_npu_that_do_not_fit(tmp_path: Path) -> None:
    """The real torch_npu beside the metadata of another release, and without CANN, so that it
    cannot be loaded.
    """
    wheel = environment({})["PYTHONPATH"].split(os.pathsep)[0]
    info = tmp_path / "packages" / "torch_npu-2.12.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch-npu\nVersion: 2.12.0\n")
    path = os.pathsep.join([str(info.parent), wheel])
    message = refused(
        run_cli(
            "capture", f"{ROOT}/fixtures/cnn.py", "--device", "npu", cwd=tmp_path, PYTHONPATH=path
        )
    )
    assert "torch_npu 2.12.0 is made for torch 2.12.0, but torch 2." in message
    assert message.endswith("pip install torch==2.12.0\n")


def test_a_gpu_and_an_npu_in_one_process(tmp_path: Path) -> None:
    """The real torch_npu's own refusal, where torch says that it has a GPU."""
    with_a_gpu = "import torch\ntorch._C._get_accelerator = lambda: torch.device('cuda')\n"
    arguments = ("capture", f"{ROOT}/fixtures/cnn.py", "--device", "npu")
    wheel = environment({})["PYTHONPATH"].split(os.pathsep)[0]
    message = refused(
        with_torch()(
            with_a_gpu + CLI,
            *arguments,
            cwd=tmp_path,
            variables={**os.environ, "PYTHONPATH": wheel},
        )
    )
    assert "PyTorch cannot use an NPU and a GPU in one process" in message
    assert "--device cuda" in message


@pytest.mark.parametrize(
    "memory", ["1000000", "4000000"], ids=["too little for the model", "too little for its forward"]
)
def test_out_of_device_memory(memory: str, tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(
        "import torch\nfrom accucompare import Case\ndef case():\n    return"
        " Case(torch.nn.Sequential(torch.nn.Linear(1000, 700)), torch.ones(16, 1000).repeat(200,"
        " 1))\n"
    )
    message = refused(npu("capture", "--device", "npu", cwd=tmp_path, memory=memory))
    assert "out of memory" in message
    assert (
        "Use --dtype bfloat16 or smaller inputs, or free the device: see `npu-smi info` for who"
        " uses it" in message
    )


def test_an_operator_that_fails_is_told_with_its_module(tmp_path: Path) -> None:
    done = npu(
        "capture",
        f"{ROOT}/fixtures/gpt2.py",
        "--device",
        "npu",
        cwd=tmp_path,
        **{"raise": "aten::tanh"},
    )
    message = refused(done)
    assert "the model raised in transformer.h.0.mlp.act, step 0: RuntimeError: " in message
    with ac.open_bundle(tmp_path / "npu") as bundle:
        assert not bundle.complete


def test_graph_mode_is_a_backend_by_name(tmp_path: Path) -> None:
    """By torch_npu's own backend ``npu``: sound, and with an operator that is wrong in graphs."""
    (tmp_path / "model.py").write_text(
        "import torch\nfrom torch import nn\nfrom accucompare import Case\n"
        "def case():\n"
        "    model = nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.LayerNorm(8), nn.Linear(8, 3))\n"
        "    return Case(model.eval(), torch.randn(2, 5, 6))\n"
    )
    done = python(
        """
        import os, simnpu.switches
        import accucompare as ac
        found = []
        for fault in ("", "aten::gelu=scale1.01"):
            os.environ["SIMNPU_GRAPH_FAULT"] = fault
            simnpu.switches.value.cache_clear()
            torch._dynamo.reset()
            options = ac.LocateOptions(compile="npu")
            said = ac.locate("model.py", "npu", out="out" + fault[-4:], options=options)
            operator = said.compiled.operator
            found.append([said.answer.value, [each.name for each in said.culprits],
                          operator and operator.operator])
        """,
        tmp_path,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [
        ["rounding", [], None],
        ["bug", ["1"], "torch.nn.functional.gelu"],
    ]
