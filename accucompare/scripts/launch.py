"""Runs a script's command and sets up our way into all its Python processes. Needs no torch."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import msgspec

from accucompare.errors import UsageError
from accucompare.scripts.entry import VARIABLE
from accucompare.scripts.handshake import Seen, read_seen
from accucompare.scripts.plan import Plan

#: Signals handed on to the script, where the system has them.
_HANDED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT")


#: Bytes. With less free space at the end, processes may have failed to write what they saw.
_LEFT_AT_END = 1 << 16


@dataclass(frozen=True)
class Ended:
    """A script that has ended."""

    code: int  # its exit code; 128 plus the signal's number if a signal ended it, as in a shell
    seen: list[Seen]  # what its processes have seen
    unheard: str | None = None  # why they could not write what they saw; ``None`` if they could


def run(
    command: Sequence[str], plan: Plan, variables: Mapping[str, str] = MappingProxyType({})
) -> Ended:
    """Run a command, and what it starts, under a plan. Raises UsageError if the command cannot be
    run.

    Args:
        command: shares this process's input, output and errors.
        plan: without its folder, which exists only during the run.
        variables: for its environment, beside this process's.
    """
    try:
        folder = Path(tempfile.mkdtemp(prefix="accucompare-"))
    except OSError as error:
        raise _unkept(None, error) from None
    try:
        path = folder / "plan"
        try:
            msgspec.structs.replace(plan, folder=str(folder)).write(path)
        except OSError as error:
            raise _unkept(folder, error) from None
        try:
            child = subprocess.Popen(command, env={**environment(path), **variables})
        except OSError as error:
            raise UsageError(f"{command[0]}: cannot be run ({error.strerror or error})") from None
        with _handing_on(child):
            code = child.wait()
        return Ended(128 - code if code < 0 else code, read_seen(folder), _why_unheard(folder))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _unkept(folder: Path | None, error: OSError) -> UsageError:
    place = os.environ.get("TMPDIR", "/tmp") if folder is None else folder.parent
    what = f"{place}: what the script's processes see cannot be kept there ({error.strerror})"
    return UsageError(f"{what}; set TMPDIR to another disk, or free some space there")


def _why_unheard(folder: Path) -> str | None:
    """Why processes could not write what they saw; ``None`` if the disk has room."""
    try:
        (folder / "room").write_bytes(bytes(_LEFT_AT_END))
    except OSError as error:
        return str(_unkept(folder, error))
    return None


def environment(plan: Path) -> dict[str, str]:
    """A script's environment: ours, the plan's path, the directory of our ``sitecustomize``."""
    boot = str(Path(__file__).parent / "boot")
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        VARIABLE: str(plan),
        "PYTHONPATH": f"{boot}{os.pathsep}{before}" if before else boot,
    }


@contextlib.contextmanager
def _handing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals on to the script and keep waiting: the script decides how to react."""

    def hand_on(number: int, frame: object) -> None:
        # a terminal sends SIGINT to the script itself, too
        if number != signal.SIGINT or not _from_the_keyboard():
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)

    before: dict[int, Callable[[int, object], object] | int | None] = {}
    for name in _HANDED_ON:
        # not in the main thread; not on this system
        with contextlib.suppress(ValueError, AttributeError):
            number = getattr(signal, name)
            before[number] = signal.signal(number, hand_on)  # type: ignore[assignment]
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _from_the_keyboard() -> bool:
    """Whether this process is in a terminal's foreground, where Ctrl-C reaches all processes."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
