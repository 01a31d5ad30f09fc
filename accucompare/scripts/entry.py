"""The way into a process: our ``sitecustomize`` calls it when torch has been imported."""

from __future__ import annotations

import os

#: Names the file of the plan. Without it nothing happens. The command sets it; its name stands in
# boot/sitecustomize.py, too.
VARIABLE = "ACCUCOMPARE_SCRIPT"

_begun = False


def install() -> None:
    """Set up what the plan says, once in a process; it never raises."""
    global _begun
    if _begun or not os.environ.get(VARIABLE):
        return
    _begun = True
    try:
        from accucompare.scripts.script import begin

        begin(os.environ[VARIABLE])
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
