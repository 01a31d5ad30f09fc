"""What each process of a script tells the command: what it saw, and which rank it writes as.

Without torch."""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

import msgspec

from accucompare.text import without_credentials

#: The variable with the pids of the processes that started one.
_WITHIN = "ACCUCOMPARE_SCRIPT_WITHIN"
#: What a process writes for each step.
_RECORDED, _PASSED = b"r", b"."


class SeenModel(msgspec.Struct, kw_only=True):
    """A module that a process called from outside all modules."""

    name: str  # its class, ``Class:2`` for the second; the whole's if only parts of it are called
    parameters: int = 0  # how many numbers
    trained_by: list[str] = []  # the classes of the optimizers that updated it
    calls: int = 0  # how many were counted while outermost calls were looked at
    steps: int = 0  # how many updates, in a list of models
    part: bool = False  # whether it is called as a part of the chosen model
    chosen: bool = False  # whether it was captured or watched


class Seen(msgspec.Struct, kw_only=True):
    """What one process has seen."""

    pid: int
    argv: list[str] = msgspec.field(
        default_factory=lambda: [without_credentials(each) for each in sys.argv]
    )
    python: str = msgspec.field(default_factory=lambda: sys.executable)
    rank: int | None = None  # under a launcher
    torch: str = ""  # its version; empty if our part never started
    models: list[SeenModel] = []  # in the order of their first calls
    steps: int = 0  # how many steps of the chosen model were counted
    recorded: list[int] = []  # the numbers of the steps that were captured or watched
    evaluations: int = 0  # the chosen model's calls without gradients between steps; not recorded
    notes: list[str] = []  # for a reader, one sentence each
    error: str | None = None  # what failed in our code; ``None`` if nothing did
    ended: bool = False  # whether Python ended normally; false after a kill or ``os._exit``
    began: float = msgspec.field(default_factory=time.time)

    def write(self, folder: str | Path) -> None:
        """Write it whole, in place of an earlier one."""
        path = Path(folder) / f"{self.pid}-{self.began:.6f}.json"
        part = path.with_suffix(".part")
        part.write_bytes(msgspec.json.encode(self))
        os.replace(part, path)

    def count(self, folder: str | Path, recorded: bool) -> None:
        """Note that a step is over, in case this process is killed."""
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
        """Discard the counts, which were of another model."""
        self.steps, self.recorded = 0, []
        Path(self._counted(folder)).unlink(missing_ok=True)

    def _counted(self, folder: str | Path) -> str:
        return f"{folder}/{self.pid}-{self.began:.6f}.steps"


def read_seen(folder: str | Path) -> list[Seen]:
    """The handshakes of all processes, in starting order; with the counted steps of killed ones."""
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
    """Which process writes as a rank."""

    pid: int
    within: list[int]  # the pids of the processes that started it
    trains: bool  # whether its model is trained


def claim(folder: str | Path, rank: int, own: Claim) -> tuple[bool, str]:
    """Claim a rank. The first process to ask gets it; the one that started it takes it over once it
    has ended. Returns whether the claim holds, and a note for a reader."""
    path = Path(folder) / f"rank{rank}.claim"
    try:
        with path.open("xb") as file:
            file.write(msgspec.json.encode(own))
        return True, ""
    except FileExistsError:
        content = path.read_bytes()
    # empty while another process writes it
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
    """The pids of the processes that started this one, as ``boot/sitecustomize.py`` notes them."""
    return [
        int(each)
        for each in os.environ.get(_WITHIN, "").split(":")
        if each and int(each) != os.getpid()
    ]
