"""The simulated NPU: the real torch_npu works on it as on a device, agrees with the CPU, and each
switch does what it says.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from fixtures.simnpu.launcher import environment
from tests.conftest import ROOT
from tests.forkserver import AUTOLOAD, simulated_npu, with_torch

try:
    environment()
except RuntimeError as error:
    pytest.skip(f"no simulated NPU here: {error}", allow_module_level=True)

OUTPUTS, GRADIENTS = 2e-6, 5e-6  # relative L2; another order of summation makes 3e-7 and 6e-7
LAUNCHER = (sys.executable, str(ROOT / "fixtures" / "simnpu"))


def forked(
    code: str, base: dict[str, str] | None = None, **switches: str
) -> subprocess.CompletedProcess[str]:
    """Run Python with a simulated NPU, in a process that finds torch imported; torch_npu too,
    unless a switch is for its import.
    """
    made = environment({**os.environ, **(base or {})}, **switches)
    asked_at_import = bool({"fallback", "devices"} & switches.keys())
    done = (
        with_torch()(AUTOLOAD + code, cwd=ROOT, variables=made)
        if asked_at_import
        else simulated_npu()(code, cwd=ROOT, variables=made)
    )
    assert done.returncode == 0, done.stderr
    return done


def printed(code: str, base: dict[str, str] | None = None, **switches: str) -> Any:
    """What some code leaves in ``found``, and standard error."""
    code = (
        "import json, torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        + textwrap.dedent(code)
        + "\nprint(json.dumps(found))"
    )
    done = forked(code, base, **switches)
    return json.loads(done.stdout.splitlines()[-1]), done.stderr


def test_models_agree_with_the_cpu() -> None:
    found = json.loads(forked((ROOT / "tests/simnpu/agreement.py").read_text()).stdout)
    for name, (output, gradient, _) in found.items():
        assert output < OUTPUTS, name
        assert gradient < GRADIENTS, name
    assert found["cnn"][:2] == [0, 0]
    assert {name: count for name, (*_, count) in found.items() if count < 5} == {
        "embedding": 4,
        "lstm": 1,
        "gru": 1,
    }


def test_what_pytorch_does_with_a_device() -> None:
    assert (
        json.loads(forked((ROOT / "tests/simnpu/features.py").read_text()).stdout.splitlines()[-1])
        == {}
    )


def test_hf32_where_the_real_flags_allow_it() -> None:
    found, _ = printed(
        """
        import copy

        layers = {
            "conv": (nn.Conv2d(3, 8, 3), torch.randn(1, 3, 8, 8)),
            "matmul": (nn.Linear(64, 64), torch.randn(4, 64)),
        }

        def errors():
            found = {}
            for name, (layer, values) in layers.items():
                results = []
                for device in ("cpu", "npu"):
                    moved, leaf = (
                        copy.deepcopy(layer).to(device),
                        values.detach().to(device).requires_grad_(),
                    )
                    output = moved(leaf)
                    output.pow(2).sum().backward()
                    results.append(
                        [
                            each.detach().cpu().double()
                            for each in (output, leaf.grad, moved.weight.grad)
                        ]
                    )
                found[name] = [((a - b).norm() / b.norm()).item() for a, b in zip(*results)]
            return found

        found = [errors()]
        torch.npu.conv.allow_hf32, torch.npu.matmul.allow_hf32 = False, True
        found.append(errors())
        """,
        numerics="hf32",
    )
    by_default, exchanged = found
    assert by_default["matmul"] == exchanged["conv"] == [0, 0, 0]
    for error in (*by_default["conv"], *exchanged["matmul"]):
        assert 5e-5 < error < 5e-4


def test_accumulation_faults_and_fallbacks() -> None:
    found, stderr = printed(
        """
        import warnings

        a, b = torch.randn(64, 512).half(), torch.randn(512, 64).half()
        exact = a.double() @ b.double()
        found = {
            "fp16": [
                ((c.cpu().double() - exact).norm() / exact.norm()).item()
                for c in (a @ b, a.npu() @ b.npu())
            ]
        }

        norm, values = nn.LayerNorm(4).npu(), torch.arange(8.0).view(2, 4).npu()
        outputs = [norm(values).detach().cpu() for _ in range(3)]
        found["scaled"] = [
            torch.allclose(output, outputs[0] * factor, atol=0)
            for output, factor in zip(outputs, (1, 1.5, 1))
        ]

        try:
            values.erf()
        except RuntimeError as error:
            found["raised"] = str(error)

        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            leaf = values.requires_grad_()
            leaf.tanh().tanh().sum().backward()
            torch.linalg.eig(torch.ones(2, 2).npu())
        found["warnings"] = [str(warning.message) for warning in caught]
        found["device"] = leaf.tanh().device.type
        """,
        numerics="fp16-accumulation",
        fault="aten::native_layer_norm:1=scale1.5",
        fallback="aten::tanh",
        **{"raise": "aten::erf"},
    )
    host, device = found["fp16"]
    assert device > 2 * host
    assert found["scaled"] == [True, True, True]
    assert found["raised"].startswith("call aclnnErf failed, detail:EZ1001: ")
    assert "ERR01100 OPS call acl api failed" in found["raised"]
    assert found["warnings"] == []  # torch_npu does not ask Python
    assert found["device"] == "npu"
    cautions = [line for line in stderr.splitlines() if "CAUTION: The operator 'aten::" in line]
    assert ["aten::tanh" in cautions[0], "aten::linalg_eig" in cautions[1], len(cautions)] == [
        True,
        True,
        2,
    ]


@pytest.mark.parametrize(
    ("kind", "expected"), [("nan", ["nan", "2.0", "3.0"]), ("channel", ["2.0", "2.0", "3.0"])]
)
def test_kinds_of_fault(kind: str, expected: list[str]) -> None:
    found, _ = printed(
        "found = [str(value) for value in torch.tensor([1, 2, 3.0]).npu().abs().tolist()]",
        fault=f"aten::abs={kind}",
    )
    assert found == expected


@pytest.mark.parametrize(
    "switches",
    [
        {"numerics": "saturate"},
        {"soc": "Ascend910A"},
        {"base": {"INF_NAN_MODE_ENABLE": "0", "INF_NAN_MODE_FORCE_DISABLE": "1"}},
    ],
)
def test_saturation(switches: dict[str, Any]) -> None:
    found, _ = printed(
        """
        values = torch.tensor([6e4, -6e4, 1.0]).half().npu()
        found = [
            (values * 2).tolist(),
            (values * 0 / 0).tolist(),
            torch.full((1,), float("-inf"), device="npu").item(),
        ]
        """,
        **switches,
    )
    # what a mask is filled with stays
    assert found == [[65504, -65504, 2], [0, 0, 0], float("-inf")]


def test_the_overflow_flag_is_up_until_it_is_cleared() -> None:
    """Put up by what is computed, forward, backward or in a cast, and not by a mask that is
    moved."""
    found, _ = printed(
        """
        def flag(overflow):
            torch.npu.clear_npu_overflow_flag()
            overflow()
            return [torch.npu.get_npu_overflow_flag(), torch.npu.get_npu_overflow_flag()]

        half, leaf = torch.full((2,), 300.0).half().npu(), torch.zeros(2).npu().requires_grad_()
        root = leaf.sqrt().sum()
        found = {
            "a product": flag(lambda: half * half),
            "a sum": flag(lambda: half + half),
            "a cast": flag(lambda: torch.full((2,), 1e6, device="npu").half()),
            "a gradient": flag(root.backward),
            "a mask": flag(lambda: half.masked_fill(half > 0, float("-inf"))),
        }
        """,
        soc="Ascend910A",
    )
    up = {"a product", "a cast", "a gradient"}
    assert found == {name: [name in up] * 2 for name in found}


def test_autograds_thread_is_left_asleep_at_exit() -> None:
    """Torch wakes it while static objects are destroyed, and does not wait for it; a debugger that
    stops it there shows that.
    """
    code = """
        import os

        torch.zeros(2).npu().requires_grad_().sqrt().sum().backward()
        names = [
            open(f"/proc/self/task/{task}/comm").read().strip()
            for task in os.listdir("/proc/self/task")
        ]
        found = ["pt_autograd_0" in names, os.environ["TORCH_AUTOGRAD_SHUTDOWN_WAIT_LIMIT"]]
        """
    assert printed(code)[0] == [True, "0"]


def test_a_kernel_dump_out_of_order_is_an_error_where_torch_npu_asks_for_one(
    tmp_path: Path,
) -> None:
    """torch_npu's functions of one name: those of ``npu.utils`` raise what CANN says, those of
    ``torch.npu`` do not.
    """
    (tmp_path / "dump.json").write_text("{}")
    found, _ = printed(f"""
        import ctypes, torch_npu.npu.utils as utils
        runtime = ctypes.CDLL("libascendcl.so")
        runtime.simnpu_dump_calls.restype = ctypes.c_char_p

        def codes(module):
            codes = []
            for name in ("finalize", "set", "init", "init", "set", "finalize"):
                try:
                    arguments = ["{tmp_path}/dump.json"] if name == "set" else []
                    getattr(module, name + "_dump")(*arguments)
                    codes.append(0)
                except RuntimeError as error:
                    codes.append(int(str(error).partition("error code is ")[2][:6]))
            return codes

        torch.npu.init()
        found = [codes(utils), codes(torch.npu)]
        found.append(runtime.simnpu_dump_calls().decode().replace("synchronize\\n", ""))
        """)
    assert found[:2] == [[100045, 100045, 0, 100002, 0, 0], [0] * 6]
    assert found[2] == f"init\nset {tmp_path}/dump.json\nfinalize\n" * 2


def test_lazy_copies_land_when_they_are_waited_for() -> None:
    found, _ = printed(
        """
        def begin(stream=None):
            pinned, source = torch.empty(2, pin_memory=True), torch.ones(2).npu()
            with torch.npu.stream(stream or torch.npu.current_stream()):
                pinned.copy_(source, non_blocking=True)
                event = torch.npu.Event()
                event.record()
            source.zero_()  # after the copy was enqueued: it is not to be seen
            return pinned, event

        found, current = [], torch.npu.current_stream()
        pinned, event = begin()
        found.append([pinned.isnan().all().item(), event.query()])
        later, _ = begin()
        event.synchronize()
        found.append([pinned.tolist(), event.query(), later.isnan().all().item()])
        current.synchronize()
        found.append(later.tolist())

        side = torch.npu.Stream()
        pinned, event = begin(side)
        current.synchronize()
        found.append(pinned.isnan().all().item())
        current.wait_stream(side)
        current.synchronize()
        found.append(pinned.tolist())
        pinned, event = begin()
        torch.npu.synchronize()
        found.append(pinned.tolist())
        """,
        lazy_copies="1",
    )
    assert found == [[True, False], [[1, 1], True, True], [1, 1], True, [1, 1], [1, 1]]


def test_memory_and_number_of_devices() -> None:
    found, _ = printed(
        """
        found = {"count": torch.npu.device_count(), "info": torch.npu.mem_get_info(1)[1]}
        found["device"] = str(nn.Linear(2, 2).to("npu:1")(torch.ones(2, device="npu:1")).device)
        try:
            torch.empty(1 << 28, device="npu")
        except torch.OutOfMemoryError as error:
            found["error"] = str(error)
        """,
        memory="100000000",
        devices="2",
    )
    assert [found["count"], found["device"], found["info"]] == [2, "npu:1", 100000000]
    assert found["error"].startswith(
        "NPU out of memory. Tried to allocate 1.00 GiB (NPU 0; 95.37 MiB total capacity;"
    )


@pytest.mark.parametrize(
    ("switches", "available", "code"),
    [({"devices": "0"}, [False, 0], "107001"), ({"busy": "1"}, [True, 1], "507033")],
)
def test_a_device_that_cannot_be_opened(
    switches: dict[str, str], available: list[Any], code: str
) -> None:
    found, _ = printed(
        """
        found = [torch.npu.is_available(), torch.npu.device_count()]
        try:
            torch.npu.set_device(0)
        except RuntimeError as error:
            found.append(str(error))
        """,
        **switches,
    )
    assert found[:2] == available
    assert f"c10_npu::SetDevice(device_id_), error code is {code}" in found[2]


def test_the_launcher(tmp_path: Path) -> None:
    def launch(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*LAUNCHER, *arguments], env=os.environ | variables, capture_output=True, text=True
        )

    (tmp_path / "sitecustomize.py").write_text("print('mine')")
    show = (
        "import os; print({name: value for name, value in os.environ.items() if 'SIMNPU' in name});"
        " raise SystemExit(3)"
    )
    done = launch(
        "--hf32",
        "--busy",
        "--devices",
        "2",
        "--",
        sys.executable,
        "-c",
        show,
        PYTHONPATH=str(tmp_path),
    )
    assert done.returncode == 3
    assert (
        done.stdout
        == "mine\n" * 2 + "{'SIMNPU_NUMERICS': 'hf32', 'SIMNPU_DEVICES': '2', 'SIMNPU_BUSY': '1'}\n"
    )

    for arguments, variables, message in (
        (["--numerics", "hf23", "--", "true"], {}, "SIMNPU_NUMERICS=hf23: "),
        (["--fault", "aten::x=big", "--", "true"], {}, "SIMNPU_FAULT=aten::x=big: "),
        (
            ["--", "true"],
            {"SIMNPU_TORCH_NPU": str(tmp_path)},
            f"torch_npu for this Python is not in {tmp_path}; pip install ",
        ),
        (["--", "no-such-command"], {}, "no-such-command: No such file"),
    ):
        done = launch(*arguments, **variables)
        assert done.returncode == 2
        assert message in done.stderr


def test_two_builds_at_once(tmp_path: Path) -> None:
    """Whoever is second takes the first one's."""
    code = (
        "import sys; from pathlib import Path; from fixtures.simnpu import stubs; stubs._CACHE ="
        " Path(sys.argv[1]); print(stubs.build())"
    )
    builds = [
        subprocess.Popen(
            [sys.executable, "-c", code, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
        )
        for _ in range(4)
    ]
    homes = {build.communicate()[0].strip() for build in builds}
    assert len(homes) == 1
    assert [str(path) for path in tmp_path.iterdir()] == list(homes)
