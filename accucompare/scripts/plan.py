"""The command's plan for a script's processes. Without torch."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from accucompare.errors import UsageError
from accucompare.selection import Steps
from accucompare.version import __version__


class Action(str, Enum):
    """What is done with the found model."""

    CAPTURE = "capture"
    WATCH = "watch"
    LIST = "list"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of the script is to do."""

    action: Action
    folder: str  # where processes leave their handshakes
    # the bundle, or the log's directory; absolute, since a script may change its directory
    out: str = ""
    options: dict[str, Any] = {}  # of ``accucompare.capture`` or ``accucompare.watch``, by name
    # which to record, or how many to watch; from the step where ``arm`` appears, if given
    steps: str | None = None
    # ``SeenModel.name`` or a class; ``None``: the first one trained, or else called
    model: str | None = None
    # for Python, NumPy and torch when torch is imported; ``None`` leaves generators alone
    seed: int | None = None
    deterministic: bool = False  # use deterministic algorithms from then on
    arm: str | None = None  # nothing is done before this file exists
    version: str = __version__  # of the package that made the plan

    @property
    def chosen(self) -> Steps | None:
        return None if self.steps is None else Steps.of(self.steps)

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))


def read_plan(path: str | Path) -> Plan:
    """Read a plan that the command has written; UsageError if another version wrote it."""
    content = Path(path).read_bytes()
    version = msgspec.json.decode(content, type=_Version).version
    if version != __version__:
        raise UsageError(
            f"the command is accucompare {version}, and the script's Python has {__version__}:"
            " install the same in both"
        )
    return msgspec.json.decode(content, type=Plan)


class _Version(msgspec.Struct):
    version: str
