"""Commands in processes of their own, without the seconds that each would take to import torch, and
to take it down at its end.

One process imports what commands need, and forks itself for each. A child has the directory,
environment, streams and exit code of a fresh process. What is read while modules are imported, such
as ``OMP_NUM_THREADS``, and what happens at exit, needs a fresh one.

For what needs more modules, such as torch_npu where the NPU is simulated, the same process forks a
second server from itself, which goes on and imports them. Processes that test share the servers."""

from __future__ import annotations

import ctypes
import fcntl
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import cache, partial
from hashlib import md5
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from subprocess import CompletedProcess
from types import ModuleType
from typing import Any, NoReturn

ROOT = Path(__file__).parent.parent
#: Not that of the test which starts a server.
FOLDER = tempfile.gettempdir()
CLI = "from accucompare.cli import main; main()"
#: As ``python script.py …`` and ``python -m module …``, whose name is the first argument.
SCRIPT = """
import os, runpy, sys
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
MODULE = (
    "import runpy, sys; del sys.argv[0]; runpy.run_module(sys.argv[0], run_name='__main__',"
    " alter_sys=True)"
)
#: What most commands import; every optimizer imports the compiler, which takes nearly as long as
# torch itself.
MODULES = (
    *(
        "accucompare.cli.bundle_commands",
        "accucompare.cli.commands",
        "accucompare.cli.health",
        "accucompare.cli.watch",
        "accucompare.devices.cpu",
        "accucompare.locating",
        "accucompare.recorder.session.case_capture",
        "accucompare.report.page",
        "accucompare.report.terminal.terminal",
        "accucompare.scripts.captures",
        "accucompare.watcher.watch.case_watch",
        "ml_dtypes",
    ),
    "torch._dynamo",
)
#: What a diff imports.
DIFF = (
    "accucompare.api",
    "accucompare.report.excel.workbook",
    "accucompare.report.terminal.terminal",
    "openpyxl",
)
#: What the fixtures' models are made of.
MODELS = (
    "transformers.models.bert.modeling_bert",
    "transformers.models.gpt2.modeling_gpt2",
    "transformers.models.llama.modeling_llama",
    "transformers.models.t5.modeling_t5",
)
#: A process that has torch without torch_npu finds a simulated NPU when it imports torch_npu; and
# imports it, as ``import torch`` may.
SIMULATED = "from tests.forkserver import find_simulation; find_simulation()\n"
AUTOLOAD = f"{SIMULATED}import torch; torch._import_device_backends()\n"


_NPU = ("torch_npu",)
#: Bytes of a large page, and what Linux calls it to make one of many small ones.
_HUGE, _COLLAPSE = 2 << 20, 25

#: In the server and its children: where requests come from, which ends with the tests.
requests = -1


def _connected(name: str, start: Callable[[str], object]) -> socket.socket:
    """To a server of all test processes of a run, which the first of them starts."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID", str(os.getpid()))
    path = f"{FOLDER}/forkserver.{run[:12]}.{name}"
    with open(f"{path}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        server = socket.socket(socket.AF_UNIX)
        if server.connect_ex(path):
            start(path)
            server.connect(path)
    return server


def _listening(path: str) -> socket.socket:
    with suppress(FileNotFoundError):
        os.unlink(path)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(path)
    listening.listen()
    return listening


class Forkserver:
    """Processes that test ask one server, which the first of them starts, and which ends with the
    last.

    Args:
        variables: its environment, and so what is read while it imports.
        modules: what it imports.
    """

    def __init__(self, variables: Mapping[str, str], modules: tuple[str, ...] = MODULES) -> None:
        self._variables, self._modules = dict(variables), modules
        self._folder = tempfile.TemporaryDirectory(prefix="forkserver.", dir=FOLDER)
        self._servers: dict[tuple[str, ...], socket.socket] = {}
        self._servers[()] = _connected(_name(modules), self._start)

    def _start(self, path: str) -> None:
        with _listening(path) as listening:
            command = [
                sys.executable,
                "-c",
                (
                    f"import sys; sys.path.insert(0, {str(ROOT)!r}); from tests.forkserver import"
                    " serve; serve()"
                ),
            ]
            self._process = subprocess.Popen(
                [*command, str(listening.fileno()), path, *self._modules],
                env=self._variables,
                stdin=subprocess.DEVNULL,
                pass_fds=(listening.fileno(),),
            )

    def run(
        self,
        program: str,
        *arguments: str | Path,
        cwd: Path,
        variables: Mapping[str, str],
        more: tuple[str, ...] = (),
    ) -> CompletedProcess[str]:
        """Run a Python program; arguments and result as of ``subprocess.run([sys.executable, "-c",
        program, ...], text=True)``.

        Args:
            more: what the process finds imported, too.
        """
        if more not in self._servers:
            self._servers[more] = _connected(
                _name((*self._modules, *more)), lambda path: self._ask((), second=[path, more])
            )
        streams = [Path(self._folder.name, name) for name in ("out", "err")]
        argv = ["-c", *map(str, arguments)]
        code = self._ask(
            more,
            program=program,
            argv=argv,
            cwd=str(cwd),
            variables=dict(variables),
            streams=list(map(str, streams)),
        )
        out, err = (stream.read_text() for stream in streams)
        return CompletedProcess([program, *argv[1:]], code, out, err)

    def _ask(self, server: tuple[str, ...], **request: Any) -> int:
        self._servers[server].sendall(json.dumps(request).encode() + b"\n")
        answer = self._servers[server].recv(100)
        assert answer, "the server has died; what it printed is above"
        return int(answer)


def _name(modules: tuple[str, ...]) -> str:
    return md5(" ".join(modules).encode()).hexdigest()[:12]


def serve() -> None:
    """Import, and then fork for each process that tests."""
    _import(sys.argv[3:])
    _listen(socket.socket(fileno=int(sys.argv[1])), sys.argv[2])


def _listen(listening: socket.socket, path: str) -> NoReturn:
    """Fork for each client, until the last has gone."""
    clients: set[int] = set()
    listening.settimeout(1)
    while True:
        with suppress(TimeoutError):
            client, _ = listening.accept()
            child = os.fork()
            if not child:
                listening.close()
                _answer(client)
            client.close()
            clients.add(child)
        clients -= {child for child in clients if os.waitpid(child, os.WNOHANG)[0]}
        if not clients:
            for name in (path, f"{path}.lock"):
                with suppress(FileNotFoundError):
                    os.unlink(name)
            os._exit(0)


def _answer(client: socket.socket) -> NoReturn:
    """Fork for each line of requests, and answer with the child's exit code."""
    global requests
    client.settimeout(None)
    requests = client.fileno()
    with client.makefile() as lines:
        for line in lines:
            request = json.loads(line)
            code = _second_server(*request["second"]) if "second" in request else _forked(request)
            client.sendall(str(code).encode())
    os._exit(0)


def _second_server(path: str, modules: list[str]) -> int:
    """Fork a server that has more modules."""
    listening = _listening(path)
    if not os.fork():
        if modules == [*_NPU]:
            os.environ.update(_with_npu())
            sys.path[1:1] = os.environ["PYTHONPATH"].split(os.pathsep)
            exec(AUTOLOAD, {})
            _settle()
        else:
            _import(modules)
        _listen(listening, path)
    listening.close()
    return 0


def find_simulation() -> None:
    """What a process does at its start where the environment is the launcher's."""
    for folder in os.environ["PYTHONPATH"].split(os.pathsep):
        path = Path(folder, "sitecustomize.py")
        if path.parent.parent.name == "simnpu":
            spec = spec_from_file_location("sitecustomize", path)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(module_from_spec(spec))


def _import(modules: Iterable[str]) -> None:
    for module in modules:
        importlib.import_module(module)
    if randomness := sys.modules.get("accucompare.live.operators.randomness"):
        randomness.register_kernels()  # writes to the tables of all operators
    _settle()


def _settle() -> None:
    """Make forks cheap, of what is in memory by now."""
    gc.freeze()  # else each child goes through all that was imported, and so copies it
    gc.enable()
    # A fork, and its end, cost time by pages: have few large ones, where Linux can.
    with suppress(AttributeError, OSError):
        madvise = ctypes.CDLL(None).madvise
        for line in Path("/proc/self/maps").read_text().splitlines():
            limits, access, _, _, inode, *_ = line.split()
            begin, end = (int(limit, 16) for limit in limits.split("-"))
            if "w" in access and inode == "0":
                for place in range(-(-begin // _HUGE) * _HUGE, end - _HUGE + 1, _HUGE):
                    madvise(ctypes.c_void_p(place), ctypes.c_size_t(_HUGE), _COLLAPSE)


def _forked(request: dict[str, Any]) -> int:
    child = os.fork()
    if not child:
        become(**request)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def become(
    program: str, argv: list[str], cwd: str, variables: dict[str, str], streams: list[Any]
) -> NoReturn:
    """Go on as a process that runs a program; its output and errors go to files, or where
    descriptors lead.
    """
    for number, given in enumerate(streams, 1):
        is_file = isinstance(given, str)
        descriptor = os.open(given, os.O_WRONLY | os.O_CREAT | os.O_TRUNC) if is_file else given
        os.dup2(descriptor, number)
        os.close(descriptor)
        if not is_file:  # the server's own streams took their files for ones that can be searched
            stream = open(number, "w", buffering=-1 if number == 1 else 1, closefd=False)  # noqa: SIM115
            setattr(sys, ("stdout", "stderr")[number - 1], stream)
    os.chdir(cwd)
    os.environ.clear()
    os.environ.update(variables)
    # what they remember of the server's environment
    for name in ("simnpu.switches", "simnpu.faults"):
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


def _with_npu() -> dict[str, str]:
    from fixtures.simnpu.launcher import environment

    return environment({**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "1"})


@cache
def _server() -> Forkserver:
    """It could load CANN's libraries where they are simulated; imports torch without devices."""
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    with suppress(RuntimeError):  # there is no simulated NPU here
        # which is read once, when a process starts
        variables["LD_LIBRARY_PATH"] = _with_npu()["LD_LIBRARY_PATH"]
    return Forkserver(variables, MODULES + MODELS)


@cache
def without_torch() -> Callable[..., CompletedProcess[str]]:
    """The ``run`` of a server that has imported what a diff needs, and so little that its
    children's memory can be bounded.
    """
    return Forkserver(
        {**os.environ, "OPENBLAS_NUM_THREADS": "1"}, ("accucompare.cli.commands", *DIFF)
    ).run


def with_torch() -> Callable[..., CompletedProcess[str]]:
    """The ``run`` of a server that has imported torch, and no device."""
    return _server().run


def simulated_npu() -> Callable[..., CompletedProcess[str]]:
    """The ``run`` of a server that has imported torch_npu where there is a simulated NPU."""
    return partial(_server().run, more=_NPU)


def with_modules(*modules: str) -> Callable[..., CompletedProcess[str]]:
    """The ``run`` of a server that has imported torch, no device, and more."""
    return partial(_server().run, more=modules)
