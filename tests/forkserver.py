"""Commands in processes of their own, without the seconds that each would take to import torch, and to take it down at its end.

One process imports what commands need, and forks itself for each. A child has the directory, environment, streams and exit code of a fresh
process. What is read while modules are imported, such as ``OMP_NUM_THREADS``, and what happens at exit, needs a fresh one.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import NoReturn

ROOT = Path(__file__).parent.parent
CLI = "from accucompare.cli import main; main()"
#: As ``python script.py …`` and ``python -m module …``, whose name is the first argument.
SCRIPT = """
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MODULE = "import runpy, sys; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__', alter_sys=True)"
#: What most commands import; every optimizer imports the compiler, which takes nearly as long as torch itself.
MODULES = (
    *("accucompare.locate", "accucompare.recorder.capture_case", "accucompare.report.terminal", "accucompare.watcher.watch_case"),
    "torch._dynamo",
)
#: What the fixtures' models are made of.
MODELS = (
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
)


class Forkserver:
    """Starts the process; it ends when this object does, or the process that has it.

    Args:
        variables: its environment, and so what is read while it imports.
        modules: what it imports.
    """

    def __init__(self, variables: Mapping[str, str], modules: tuple[str, ...] = MODULES) -> None:
        requests, self._requests = os.pipe()
        self._answers, answers = os.pipe()
        self._folder = tempfile.TemporaryDirectory(prefix="forkserver.")
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.forkserver import serve; serve()"]
        self._process = subprocess.Popen(
            [*command, str(requests), str(answers), *modules], env=dict(variables), stdin=subprocess.DEVNULL, pass_fds=(requests, answers)
        )
        os.close(requests)
        os.close(answers)

    def run(self, program: str, *arguments: str | Path, cwd: Path, variables: Mapping[str, str]) -> CompletedProcess[str]:
        """Run a Python program; arguments and result as of ``subprocess.run([sys.executable, "-c", program, ...], text=True)``."""
        streams = [Path(self._folder.name, name) for name in ("out", "err")]
        argv = ["-c", *map(str, arguments)]
        request = {"program": program, "argv": argv, "cwd": str(cwd), "variables": dict(variables), "streams": list(map(str, streams))}
        os.write(self._requests, json.dumps(request).encode() + b"\n")
        answer = os.read(self._answers, 100)
        assert answer, "the server has died; what it printed is above"
        out, err = (stream.read_text() for stream in streams)
        return CompletedProcess([program, *argv[1:]], int(answer), out, err)


def serve() -> None:
    """Fork for each line of requests, and answer with the child's exit code."""
    requests, answers = map(int, sys.argv[1:3])
    for module in sys.argv[3:]:
        importlib.import_module(module)
    with os.fdopen(requests) as lines:
        for line in lines:
            child = os.fork()
            if not child:
                _become(**json.loads(line))
            status = os.waitpid(child, 0)[1]
            os.write(answers, str(os.waitstatus_to_exitcode(status)).encode())


def _become(program: str, argv: list[str], cwd: str, variables: dict[str, str], streams: list[str]) -> NoReturn:
    for number, stream in enumerate(streams, 1):
        descriptor = os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    for name in ("simnpu.switches", "simnpu.faults"):  # what they remember of the server's environment
        for function in vars(sys.modules.get(name, ModuleType(name))).values():
            with suppress(AttributeError):
                function.cache_clear()
    sys.argv, sys.path[0] = argv, ""
    sys.path[1:1] = filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))
    code = 0
    try:
        exec(compile(program, "<string>", "exec"), {"__name__": "__main__"})
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@cache
def with_torch() -> Callable[..., CompletedProcess[str]]:
    """The ``run`` of a server without any device; one for each process that tests."""
    return Forkserver({**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}).run


@cache
def simulated_npu() -> Callable[..., CompletedProcess[str]]:
    """The ``run`` of a server where there is a simulated NPU; one for each process that tests."""
    from fixtures.simnpu.launcher import environment

    return Forkserver(environment({**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}), MODULES + MODELS).run
