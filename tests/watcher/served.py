"""A process that runs one command line after another, for torch is imported only once then: ``python -m tests.watcher.served``."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.conftest import ROOT


class Served:
    """Starts the process, and asks it.

    Args:
        folder: where commands run.
        variables: its environment; this process's if not given.
    """

    def __init__(self, folder: Path, variables: dict[str, str] | None = None) -> None:
        self.folder = folder
        given = dict(os.environ if variables is None else variables)
        given |= {"OMP_NUM_THREADS": "1", "COLUMNS": "100", "PYTHONPATH": os.pathsep.join([str(ROOT), given.get("PYTHONPATH", "")])}
        self._log = (folder / "served.log").open("w")
        command = [sys.executable, "-m", "tests.watcher.served"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(command, cwd=folder, env=given, stdin=pipe, stdout=pipe, stderr=self._log, text=True)

    def __enter__(self) -> Served:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._process.kill()  # it has nothing to lose
        self._process.communicate()
        self._log.close()

    def __call__(self, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        """Run ``accucompare`` with these arguments."""
        return self._ask(arguments=[str(argument) for argument in arguments])

    def script(self, path: str | Path) -> subprocess.CompletedProcess[str]:
        """Run a Python file."""
        return self._ask(script=str(path))

    def found(self, code: str) -> Any:
        """What some code leaves in ``found``."""
        done = self._ask(code=textwrap.dedent(code))
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def _ask(self, **request: Any) -> subprocess.CompletedProcess[str]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, (self.folder / "served.log").read_text()
        return subprocess.CompletedProcess(str(request), *json.loads(answer))


def _serve() -> None:
    """Answer each line of standard input with exit code, standard output and standard error."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = _do(**json.loads(line))
        answers.write(json.dumps([code, out.getvalue(), err.getvalue()]) + "\n")
        answers.flush()


def _do(arguments: list[str] | None = None, script: str = "", code: str = "") -> int:
    import runpy
    import traceback

    from accucompare.cli import main

    try:
        if arguments is not None:
            main(arguments)
        elif script:
            runpy.run_path(script, run_name="__main__")
        else:
            namespace: dict[str, Any] = {"__name__": "code"}
            exec(code, namespace)
            print(json.dumps(namespace["found"]))
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
        return 70
    return 0


if __name__ == "__main__":
    _serve()
