"""What the command tells the processes of a script, and what each of them leaves behind for it: its
handshake. Needs no torch."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec

from accucompare.errors import UsageError
from accucompare.selection import Steps
from accucompare.text import without_credentials
from accucompare.version import __version__

#: The variable with the pids of the processes that started one.
_WITHIN = "ACCUCOMPARE_SCRIPT_WITHIN"
#: What a process leaves of each step.
_RECORDED, _PASSED = b"r", b"."


class Action(str, Enum):
    """What is done with the model that is found."""

    CAPTURE = "capture"
    WATCH = "watch"
    LIST = "list"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of the script is to do.

    Attributes:
        action: what is done with the model.
        folder: where processes leave their handshakes.
        out: the bundle, or the directory of the watch's log; absolute, for a script may change its
            directory.
        options: of ``accucompare.capture`` or ``accucompare.watch``, under their names.
        steps: numbers of the steps to record, or how many to watch; counted from the step where
            ``arm`` appears, if that is given.
        model: which model, as ``SeenModel.name``, or a class; ``None`` for the first that is
            trained, or else called.
        seed: for the generators of Python, NumPy and torch when torch is imported; ``None`` leaves
            them alone.
        deterministic: use deterministic algorithms from then on.
        arm: nothing is done before this file exists.
        version: of the package that made the plan.
    """

    action: Action
    folder: str
    out: str = ""
    options: dict[str, Any] = {}
    steps: str | None = None
    model: str | None = None
    seed: int | None = None
    deterministic: bool = False
    arm: str | None = None
    version: str = __version__

    @property
    def chosen(self) -> Steps | None:
        """The steps; ``None`` for all."""
        return None if self.steps is None else Steps.of(self.steps)

    def write(self, path: Path) -> None:
        path.write_bytes(msgspec.json.encode(self))


def read_plan(path: str | Path) -> Plan:
    """Read a plan that the command has written.

    Raises:
        UsageError: if it is another version's.
    """
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


class SeenModel(msgspec.Struct, kw_only=True):
    """A module that a process called, and no other module did.

    Attributes:
        name: its class; the second one of a class is ``Class:2``. Of a trained model that is never
            called itself, but whose parts are, the class of the whole.
        parameters: how many numbers.
        trained_by: the classes of the optimizers that updated it.
        calls: how many were counted: as long as outermost calls are looked at.
        steps: how many updates of it, of a list of what was seen.
        part: whether it is called as a part of the model that was captured or watched.
        chosen: whether it is the model that was captured or watched.
    """

    name: str
    parameters: int = 0
    trained_by: list[str] = []
    calls: int = 0
    steps: int = 0
    part: bool = False
    chosen: bool = False


class Seen(msgspec.Struct, kw_only=True):
    """What one process has seen.

    Attributes:
        pid, argv, python: which process.
        rank: under a launcher.
        torch: its version; empty if ours did not come as far.
        models: in the order of their first calls.
        steps: how many steps the chosen model made, as far as they were counted.
        recorded: the numbers of the steps that were captured, or watched.
        evaluations: calls of the chosen model without gradients between steps of training; they are
            not recorded.
        notes: what a reader should know, one sentence each.
        error: what went wrong with us; ``None`` if nothing did.
        ended: whether the process came to its end as Python knows it; not if it was killed, or
            called ``os._exit``.
    """

    pid: int
    argv: list[str] = msgspec.field(
        default_factory=lambda: [without_credentials(each) for each in sys.argv]
    )
    python: str = msgspec.field(default_factory=lambda: sys.executable)
    rank: int | None = None
    torch: str = ""
    models: list[SeenModel] = []
    steps: int = 0
    recorded: list[int] = []
    evaluations: int = 0
    notes: list[str] = []
    error: str | None = None
    ended: bool = False
    began: float = msgspec.field(default_factory=time.time)

    def write(self, folder: str | Path) -> None:
        """Write it whole, in the place of what this process has written before."""
        path = Path(folder) / f"{self.pid}-{self.began:.6f}.json"
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(self))
        os.replace(part, path)

    def count(self, folder: str | Path, recorded: bool) -> None:
        """A step is over: leave word of it, in case this process is killed."""
        if recorded:
            self.recorded.append(self.steps)
        self.steps += 1
        with suppress(OSError):
            # opened each time (3 us): a script may close a descriptor that it does not know
            flags = os.O_CREAT | os.O_WRONLY | os.O_APPEND
            descriptor = os.open(self._counted(folder), flags, 0o600)
            try:
                os.write(descriptor, _RECORDED if recorded else _PASSED)
            finally:
                os.close(descriptor)

    def begin_anew(self, folder: str | Path) -> None:
        """What was counted was of another model."""
        self.steps, self.recorded = 0, []
        Path(self._counted(folder)).unlink(missing_ok=True)

    def _counted(self, folder: str | Path) -> str:
        return f"{folder}/{self.pid}-{self.began:.6f}.steps"


def read_seen(folder: str | Path) -> list[Seen]:
    """The handshakes of all processes, in the order of their beginning; of one that was killed,
    with the steps that it had counted."""
    found = []
    for path in Path(folder).glob("*.json"):
        seen = msgspec.json.decode(path.read_bytes(), type=Seen)
        if not seen.ended and (counted := path.with_suffix(".steps")).exists():
            steps = counted.read_bytes()
            seen.steps = len(steps)
            seen.recorded = [number for number, each in enumerate(steps) if each == _RECORDED[0]]
        found.append(seen)
    return sorted(found, key=lambda seen: seen.began)


class Claim(msgspec.Struct, kw_only=True):
    """Which process writes as a rank.

    Attributes:
        pid: of it.
        within: the pids of those that started it.
        trains: whether its model is trained.
    """

    pid: int
    within: list[int]
    trains: bool


def claim(folder: str | Path, rank: int, own: Claim) -> tuple[bool, str]:
    """Write as a rank from now on: the first process that asks may, or the one that started it,
    once that one has ended.

    Returns:
        Whether it may, and what a reader should know of that.
    """
    path = Path(folder) / f"rank{rank}.claim"
    try:
        with path.open("xb") as file:
            file.write(msgspec.json.encode(own))
        return True, ""
    except FileExistsError:
        content = path.read_bytes()
    # it is empty while another process writes it
    first = msgspec.json.decode(content, type=Claim) if content else None
    if (
        first is None
        or own.pid not in first.within
        or (first.trains and not own.trains)
        or len([*Path(folder).glob("rank*.claim")]) > 1
    ):
        looked_at = "and is the one that was looked at"
        return False, f"another process was rank {rank} before this one, {looked_at}"
    if not any(seen.pid == first.pid and seen.ended for seen in read_seen(folder)):
        still = f"process {first.pid}, which this one had started, still ran"
        return False, f"{still}, and is the one that was looked at"
    path.write_bytes(msgspec.json.encode(own))
    before = f"process {first.pid}, which process {own.pid} had started, ran a model before"
    return True, f"{before}; the one of {own.pid} took its place"


def started_by() -> list[int]:
    """The processes of the script that started this one, as ``boot/sitecustomize.py`` notes them
    when each begins."""
    return [
        int(each)
        for each in os.environ.get(_WITHIN, "").split(":")
        if each and int(each) != os.getpid()
    ]
