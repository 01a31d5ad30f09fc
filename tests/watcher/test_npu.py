"""A watch on a simulated NPU: on one that saturates and keeps an overflow flag, and on one that
gives Inf and NaN.
"""

from __future__ import annotations

import json
import os
import textwrap
from dataclasses import dataclass
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.log.events import Alert, Event, Finding, Step, WatchStart
from accucompare.findings.log.log import read_log
from accucompare.report.watch_words import said
from fixtures.simnpu.launcher import environment
from tests.forkserver import CLI, SCRIPT, simulated_npu

try:
    environment()
except RuntimeError as error:
    pytest.skip(f"no simulated NPU here: {error}", allow_module_level=True)

CASE = """
import torch
from torch import nn
from accucompare import Case

class Cube(nn.Module):
    def forward(self, x):
        return x * x.abs() * x.abs()

class Hidden(nn.Module):
    def forward(self, x):
        return (
            x.abs() * 1e4
        ) * 1e-4  # what is between overflows, what comes out is far below the limit

class Net(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.up, self.inner, self.down = nn.Linear(6, 12), inner, nn.Linear(12, 3)

    def forward(self, x):
        return self.down(self.inner(self.up(x)))

def training(inner, factors):
    torch.manual_seed(0)
    model = Net(inner)
    inputs = [torch.randn(4, 6) * factor for factor in factors]
    return Case(
        model,
        inputs,
        loss=lambda output: output.float().pow(2).mean(),
        optimizer=torch.optim.SGD(model.parameters(), 0.01),
    )

def case():
    return training(Cube(), (1, 100, 1))

def hidden():
    return training(Hidden(), (1, 60, 1))

def clean():
    return training(nn.Tanh(), (1, 1, 1))
"""

#: Counts torch_npu's calls for the flag, before a watch.
COUNTING = """
import torch
counts = {"get": 0, "clear": 0}
for name in counts:
    def counted(*arguments, of=getattr(torch.npu, name + "_npu_overflow_flag"), name=name):
        counts[name] += 1
        return of(*arguments)
    setattr(torch.npu, name + "_npu_overflow_flag", counted)
"""


#: Runs the command line, and goes on with its exit code.
COMMAND = """
from accucompare.cli import main
try:
    main()
except SystemExit as ended:
    code = ended.code
"""


@dataclass(frozen=True)
class Machine:
    """Runs processes where there is a simulated NPU of some kind, in a folder with the case."""

    folder: Path
    soc: str

    def run(self, program: str, *arguments: str | Path) -> CompletedProcess[str]:
        variables = {
            **os.environ,
            "OMP_NUM_THREADS": "1",
            "TORCH_DEVICE_BACKEND_AUTOLOAD": "1",
            "COLUMNS": "100",
        }
        return simulated_npu()(
            program, *arguments, cwd=self.folder, variables=environment(variables, soc=self.soc)
        )

    def found(self, code: str, *arguments: str) -> Any:
        """What some code leaves in ``found``."""
        done = self.run(
            f"{textwrap.dedent(code)}\nimport json\nprint(json.dumps(found))", *arguments
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


def machine(folder: Path, soc: str) -> Machine:
    (folder / "case.py").write_text(CASE)
    return Machine(folder, soc)


@pytest.fixture
def saturating(tmp_path: Path) -> Machine:
    return machine(tmp_path, "Ascend910A")


@pytest.fixture
def ordinary(tmp_path: Path) -> Machine:
    """One with Inf and NaN."""
    return machine(tmp_path, "Ascend910B1")


def watching(case: str, out: str, *options: str) -> list[str]:
    return [
        "watch",
        f"case.py:{case}",
        "--device",
        "npu",
        "--dtype",
        "float16",
        "--out",
        out,
        *options,
    ]


def events(machine: Machine, out: str) -> list[Event]:
    return read_log(machine.folder / out / "rank0.jsonl")[-1]


def watch(machine: Machine, case: str, out: str, *options: str) -> tuple[int, str, list[Event]]:
    """Watch a case in float16; the exit code, what was printed, and the log."""
    done = machine.run(CLI, *watching(case, out, *options))
    assert done.returncode in (0, 1), done.stderr
    return done.returncode, done.stdout, events(machine, out)


def origins(log: list[Event]) -> list[Finding]:
    return [event for event in log if isinstance(event, Finding) and event.origin]


def flags(log: list[Event]) -> list[bool | None]:
    return [event.overflowed for event in log if isinstance(event, Step)]


def test_the_largest_number_is_an_overflow_where_it_takes_the_place_of_inf(
    saturating: Machine,
) -> None:
    code, printed, log = watch(saturating, "case", "saturated")
    found = origins(log)[0]
    assert (code, found.name, found.step, found.kinds, found.operator) == (
        1,
        "inner",
        1,
        ["saturated"],
        "aten.mul.Tensor",
    )
    assert found.line == "case.py:8"
    assert "saturated in inner (Cube), forward, step 1\n" in printed
    assert isinstance(log[0], WatchStart)
    assert (log[0].device, log[0].saturates) == ("npu:0", True)
    done = saturating.run(SCRIPT, saturating.folder / "saturated" / found.reproducer)
    assert (done.returncode, "It shows again" in done.stdout) == (1, True), done.stderr


def test_the_flag_is_cleared_and_read_for_each_step(saturating: Machine) -> None:
    """What overflowed before the watch is not its first step's, and what overflows in one step is
    not the next one's.
    """
    found = saturating.found(
        COUNTING
        + """
from accucompare.watcher.watch import watching
from accucompare.watcher.watch_options import WatchOptions
model = torch.nn.Identity()
half = torch.full((2,), 300.0, device="npu").half()
half * half
flags = []
options = WatchOptions(on_finding="warn", quiet=True)
with watching(model, "steps", options, device=torch.device("npu:0")) as watch:
    for step in range(3):
        counts.update(get=0, clear=0)
        model(half)
        if step == 1:
            half * half
        flags.append(watch.overflowed)
        watch.step()
        flags.append(dict(counts))
found = flags
"""
    )
    assert found[0::2] == [False, True, False]
    assert [counts["clear"] for counts in found[1::2]] == [0, 1, 0]
    assert all(counts["get"] <= 3 for counts in found[1::2])


def test_a_flag_that_no_value_explains(saturating: Machine) -> None:
    code, printed, log = watch(saturating, "hidden", "hidden")
    assert (code, origins(log), flags(log)) == (1, [], [False, True, False])
    (warned,) = (event for event in log if isinstance(event, Alert) and event.kind == "device flag")
    assert warned.step == 1
    assert "--flag-per-module" in said(warned.text)
    assert said(warned.text) in printed


def test_the_flag_of_each_module_names_the_one_that_overflows(saturating: Machine) -> None:
    code, printed, log = watch(saturating, "hidden", "named", "--flag-per-module")
    found = origins(log)[0]
    assert (code, found.name, found.step, found.kinds) == (1, "inner", 1, ["overflow flag"])
    assert "overflow flag in inner (Hidden), forward, step 1" in printed


def test_a_loop_skips_what_overflowed(saturating: Machine) -> None:
    """As a loss scaler would: gradients that overflow because the loss was scaled too much are no
    finding, if nothing is updated.
    """
    found = saturating.found("""
        import accucompare as ac, torch
        from case import clean

        torch.manual_seed(0)
        model = clean().model.half().npu()
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        before, found = [each.detach().clone() for each in model.parameters()], []
        with ac.watch(model, optimizer, out="loop", quiet=True) as watch:
            for scale in (1e6, 1.0):
                (model(torch.ones(4, 6).half().npu()).sum() * scale).backward()
                found.append(watch.overflowed)
                if not watch.overflowed:
                    optimizer.step()
                found.append(
                    all(torch.equal(one, other) for one, other in zip(before, model.parameters()))
                )
                optimizer.zero_grad()
                watch.step()
        found.append(len(watch.findings))
        """)
    assert found == [True, True, False, False, 0]


def test_a_kernel_dump_is_of_the_first_step(saturating: Machine) -> None:
    code, calls = saturating.found(
        COMMAND
        + """
import ctypes

runtime = ctypes.CDLL("libascendcl.so")
runtime.simnpu_dump_calls.restype = ctypes.c_char_p
found = [
    code,
    [call for call in runtime.simnpu_dump_calls().decode().splitlines() if call != "synchronize"],
]
""",
        *watching("clean", "dumped", "--kernel-dump", "dump"),
    )
    assert code == 0
    assert calls == ["init", f"set {saturating.folder}/dump/acl_dump.json", "finalize"]


def test_each_rank_dumps_into_its_own_directory_until_its_first_step_ends(
    saturating: Machine,
) -> None:
    found = saturating.found("""
        import accucompare as ac, torch
        from accucompare.devices import npu
        from torch.testing._internal.distributed.fake_pg import FakeStore
        made = []
        for name in ("init_dump", "set_dump", "finalize_dump"):
            def noted(*arguments, name=name, of=getattr(npu._utils(), name)):
                made.append([name, *arguments])
                return of(*arguments)
            setattr(npu._utils(), name, noted)
        model = torch.nn.Linear(2, 2).npu()
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=1, world_size=2)
        try:
            look = ac.LookAt(kernel_dump="dumps")
            with ac.watch(model, out="two", look=look, quiet=True) as watch:
                for step in range(2):
                    model(torch.ones(1, 2).npu())
                    watch.step()
                    made.append(step)
        finally:
            torch.distributed.destroy_process_group()
        found = made
        """)
    config = str(saturating.folder / "dumps" / "rank1" / "acl_dump.json")
    assert found == [["init_dump"], ["set_dump", config], ["finalize_dump"], 0, 1]


def test_inf_is_found_and_no_flag_is_asked_for(ordinary: Machine) -> None:
    code, counts = ordinary.found(
        f"{COUNTING}{COMMAND}found = [code, counts]", *watching("case", "infinite")
    )
    log = events(ordinary, "infinite")
    found = origins(log)[0]
    assert (code, found.name, found.kinds, found.operator) == (
        1,
        "inner",
        ["+Inf", "-Inf"],
        "aten.mul.Tensor",
    )
    assert found.line == "case.py:8"
    assert len(found.parameters) == 4
    assert flags(log) == [None, None]
    assert counts == {"get": 0, "clear": 0}
    done = ordinary.run(SCRIPT, ordinary.folder / "infinite" / found.reproducer)
    assert (done.returncode, "It shows again" in done.stdout) == (1, True), done.stderr


def test_asking_for_a_flag_where_there_is_none_is_told(ordinary: Machine) -> None:
    code, printed, log = watch(ordinary, "clean", "flagless", "--flag-per-module")
    assert (code, origins(log)) == (0, [])
    assert "this device has no overflow flag" in printed


def test_no_tensor_is_waited_for_alone(ordinary: Machine) -> None:
    """As many reads of the device in a step of eight layers as in one of two, forward and
    backward."""
    found = ordinary.found("""
        import accucompare as ac, torch
        from torch.utils._python_dispatch import TorchDispatchMode

        class Waits(TorchDispatchMode):
            def __init__(self):
                super().__init__()
                self.count = 0

            def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
                output = operator(*args, **(kwargs or {}))
                moved = isinstance(output, torch.Tensor) and output.device.type == "cpu"
                from_device = any(
                    isinstance(each, torch.Tensor) and each.device.type == "npu" for each in args
                )
                self.count += operator is torch.ops.aten._local_scalar_dense.default or (
                    moved and from_device
                )
                return output

        def waits(layers):
            model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(layers))).npu()
            optimizer, counts = torch.optim.SGD(model.parameters(), 0.1, foreach=True), []
            with ac.watch(model, optimizer, out="waits", quiet=True) as watch:
                for step in range(2):
                    with Waits() as waits:
                        model(torch.ones(2, 4).npu()).sum().backward()
                        counts.append(waits.count)
                        optimizer.step()
                        optimizer.zero_grad()
                        watch.step()
                        counts.append(waits.count)
            return counts

        found = [waits(2), waits(8)]
        """)
    few, many = found
    assert few == many
    assert few[0] == 0
    assert 0 < few[1] <= 4


def test_the_report_of_a_watch_on_an_npu(ordinary: Machine) -> None:
    watch(ordinary, "case", "reported")
    done = ordinary.run(CLI, "overflow", "reported")
    assert (done.returncode, done.stdout.splitlines()[2]) == (
        1,
        "+Inf and -Inf in inner (Cube), forward, step 1",
    )
    assert (ordinary.folder / "reports" / "reported-overflow.xlsx").is_file()
    assert read_logs(ordinary.folder / "reported").first is not None
