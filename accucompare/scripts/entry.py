"""The way into a process: called when torch has been imported, by torch itself or by our ``sitecustomize``."""

from __future__ import annotations

import os

#: Names the file of the plan. Without it nothing happens. The command sets it; its name stands in boot/sitecustomize.py, too.
VARIABLE = "ACCUCOMPARE_SCRIPT"

_installed: list[str] = []


def autoload() -> None:
    """Torch calls this at the end of ``import torch`` (its group of entry points ``torch.backends``); it never raises."""
    if VARIABLE in os.environ:
        install("entry point")


def install(way: str) -> None:
    """Set up what the plan says, once in a process, whoever comes first.

    Args:
        way: who calls, for the handshake.
    """
    if _installed or not os.environ.get(VARIABLE):
        return
    _installed.append(way)
    try:
        from accucompare.scripts.script import begin

        begin(os.environ[VARIABLE], way)
    except Exception as error:
        _tell(error)


def _tell(error: Exception) -> None:
    """Leave word of what went wrong, as far as that is possible."""
    try:
        from accucompare.scripts.plan import Seen, read_plan

        seen = Seen(pid=os.getpid(), error=f"{type(error).__name__}: {error}")
        seen.write(read_plan(os.environ[VARIABLE]).folder)
    except Exception:
        return
