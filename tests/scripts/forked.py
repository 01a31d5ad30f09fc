"""Runs scripts as a command does that captures them, in processes forked from one that has imported
what they import.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent
from typing import Any

import msgspec

from accucompare.scripts.handshake import Seen, read_seen
from accucompare.scripts.plan import Action, Plan
from tests.forkserver import with_modules, with_torch

Server = Callable[[], Callable[..., subprocess.CompletedProcess[str]]]

UNEDITED = Path(__file__).parent / "unedited"

#: The plan's path, or an empty one to run plainly; the script; its arguments.
PROGRAM = """
import atexit, gc, os, runpy, sys, traceback
plan, *sys.argv = sys.argv[1:]
sys.path[0] = os.path.dirname(sys.argv[0])
if plan:
    from accucompare.scripts.script import begin
    begin(plan)
code = 0
try:
    runpy.run_path(sys.argv[0], run_name="__main__")
except SystemExit as error:
    code = error.code
except BaseException as error:
    sys.last_value, code = error, 1
    traceback.print_exc()
atexit._run_exitfuncs()  # which the server's processes skip
sys.exit(code)
"""

#: Of scripts that use more than torch, where it is installed.
LIBRARIES = {
    name: bool(find_spec(name.partition(".")[0]))
    for name in ("transformers.trainer", "accelerate", "pytorch_lightning", "diffusers", "trl")
}
#: What cannot be imported without accelerate.
_ON_ACCELERATE = ("transformers.trainer", "trl")


def with_libraries() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The ``run`` of a process that has imported those that are installed."""
    return with_modules(
        *(
            name
            for name, there in LIBRARIES.items()
            if there and (name not in _ON_ACCELERATE or LIBRARIES["accelerate"])
        )
    )


@dataclass(frozen=True)
class Ran:
    """A script that was run; with what it and its children have seen, if it was captured."""

    code: int
    out: str
    err: str
    seen: list[Seen]
    bundle: Path


def run(
    folder: Path,
    script: str | Path,
    *arguments: str,
    plan: dict[str, Any] | None = None,
    server: Server = with_torch,
) -> Ran:
    """Run a script: a path, or its text.

    Args:
        folder: where to run it, and to write the bundle ``golden``, or what ``plan`` has as
            ``out``.
        plan: of ``Plan``; without one it is run plainly.
        server: gives what forks.
    """
    if isinstance(script, str):
        path = folder / "script.py"
        path.write_text(dedent(script))
        script = path
    hands = folder / f"hands{len(list(folder.glob('hands*')))}"
    hands.mkdir()
    plan_path, out = "", folder / "golden"
    if plan is not None:
        asked = Plan(action=Action.CAPTURE, folder=str(hands), out=str(out), steps="1")
        asked = msgspec.structs.replace(asked, **plan)
        asked.write(hands / "plan")
        plan_path, out = str(hands / "plan"), Path(asked.out)
    done = server()(PROGRAM, plan_path, script, *arguments, cwd=folder, variables=os.environ)
    return Ran(done.returncode, done.stdout, done.stderr, read_seen(hands), out)
