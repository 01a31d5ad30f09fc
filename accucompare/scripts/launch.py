"""Running the command of a script, with our way in set up for all of its Python processes. Needs no
torch."""

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
from accucompare.scripts.plan import Plan, Seen, read_seen

#: Signals that are handed on to the script, as far as the system has them.
_HANDED_ON = ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGINT")


#: Bytes that there must be room for at the end, or else processes may not have been able to say
# what they have seen.
_LEFT_AT_END = 1 << 16


@dataclass(frozen=True)
class Ended:
    """A script that has ended.

    Attributes:
        code: its exit code; of one that a signal has ended 128 and the signal's number, as in a
            shell.
        seen: what its processes have seen.
        unheard: why they could not leave it for this process; ``None`` if they could.
    """

    code: int
    seen: list[Seen]
    unheard: str | None = None


def run(
    command: Sequence[str], plan: Plan, variables: Mapping[str, str] = MappingProxyType({})
) -> Ended:
    """Run a command, and what it starts, under a plan.

    Args:
        command: with its arguments; its input, output and errors are this process's.
        plan: without its folder, which is made here, and removed.
        variables: of its environment, beside this process's.

    Raises:
        UsageError: if the command cannot be run.
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
    """Why processes could not leave what they have seen; ``None`` if there is room for it."""
    try:
        (folder / "room").write_bytes(bytes(_LEFT_AT_END))
    except OSError as error:
        return str(_unkept(folder, error))
    return None


def environment(plan: Path) -> dict[str, str]:
    """The environment of a script: ours, with the plan's path and the directory of our
    ``sitecustomize``."""
    boot = str(Path(__file__).parent / "boot")
    before = os.environ.get("PYTHONPATH")
    return {
        **os.environ,
        VARIABLE: str(plan),
        "PYTHONPATH": f"{boot}{os.pathsep}{before}" if before else boot,
    }


@contextlib.contextmanager
def _handing_on(child: subprocess.Popen[bytes]) -> Iterator[None]:
    """Hand signals on to the script, and go on waiting for its end: it decides what it makes of
    them."""

    def hand_on(number: int, frame: object) -> None:
        # a terminal sends that to the script itself, too
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
    """Whether this process runs in the foreground of a terminal, whose Ctrl-C all its processes
    get."""
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
