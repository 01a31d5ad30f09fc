"""What this machine offers and what is wrong: versions, kernel, devices, settings of numbers.

Each type of device is examined in a process of its own, all at once. torch can be imported only
once and with one setting; a torch_npu without CANN prevents that import; a broken driver may crash
or hang; torch_npu prints to standard output. None of this hides another device or spoils the
output."""

from __future__ import annotations

import contextlib
import importlib.metadata
import json
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from accucompare.bundle.flags import FLAGS
from accucompare.devices import (
    ENVIRONMENT,
    PACKAGE,
    SEE,
    TYPES,
    DeviceName,
    backend,
    mismatch,
    open_device,
    release,
    version,
)
from accucompare.errors import DeviceError
from accucompare.text import printable
from accucompare.version import __version__

#: Seconds to wait for a device. The first use of an NPU may take half of it.
_PATIENCE = 60.0

_REINSTALL = "pip install --force-reinstall accucompare"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, or could be better."""

    topic: str
    message: str
    cure: str  # what to do; ``""`` if the message says it
    # whether accucompare cannot work at all, or not on the device that was asked for
    serious: bool = False


@dataclass(frozen=True)
class DeviceReport:
    """One type of device."""

    available: bool  # whether a capture can run on it
    message: str = ""  # why not, and the cure
    count: int = 0
    # its name, and versions of its software
    description: dict[str, Any] = field(default_factory=dict)
    flags: dict[str, Any] = field(default_factory=dict)  # the current settings that change numbers


@dataclass(frozen=True)
class Examination:
    """This machine, and its problems."""

    ok: bool
    accucompare: str
    location: str
    python: str
    executable: str
    platform: str
    processors: int  # how many may be used
    memory: int | None  # bytes that may be used; ``None`` where the system does not say
    # kernel, crc, digests: the implementations in use; ``None`` where they cannot be imported
    kernel: str | None
    crc: str | None
    digests: str | None
    # of relevant packages, by name; ``None`` for those not installed
    versions: dict[str, str | None]
    devices: dict[str, DeviceReport]
    environment: dict[str, str]  # relevant variables that are set
    problems: list[Problem]  # the serious ones first


def examine(device: DeviceName | None = None, timeout: float = _PATIENCE) -> Examination:
    """Look at this machine.

    Args:
        device: examine this one only; its absence is then a serious problem.
        timeout: seconds to wait for a device.
    """
    names = [DeviceName(each) for each in TYPES] if device is None else [device]
    with _probes(names) as processes:  # they import torch meanwhile
        deadline = time.monotonic() + timeout
        parts, problems = _parts()
        packages = _requirements()
        problems += _package_problems(packages)
        devices = {
            str(name): _answer(name, process, deadline, timeout)
            for name, process in zip(names, processes, strict=True)
        }
    problems += _device_problems(devices, device)
    if (wrong := mismatch()) is not None:
        problems.append(Problem("versions", wrong, ""))
    return Examination(
        ok=not any(problem.serious for problem in problems),
        accucompare=__version__,
        location=str(Path(__file__).parent),
        python=platform.python_version(),
        executable=sys.executable,
        platform=platform.platform(),
        processors=(
            len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count() or 1
        ),
        memory=_memory(),
        **parts,
        versions={name: version(name) for name in packages},
        devices=devices,
        environment={name: os.environ[name] for name in ENVIRONMENT if name in os.environ},
        problems=sorted(problems, key=lambda problem: not problem.serious),
    )


def _memory() -> int | None:
    """Bytes of the machine's memory, or of the container's share of it."""
    sizes = []
    with contextlib.suppress(ValueError, OSError):
        sizes.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(ValueError, OSError):
            sizes.append(int(Path(limit).read_text()))  # "max" where there is none
    return min(sizes, default=None)


def _parts() -> tuple[dict[str, str | None], list[Problem]]:
    """The kernel, CRC and digests in use, and their problems."""
    try:
        from accucompare.bundle.writing import archive_writer
        from accucompare.numbers import digests, kernel
    except Exception as error:
        message = (
            f"bundles can neither be read nor written ({type(error).__name__}:"
            f" {_first_line(error)})"
        )
        return dict.fromkeys(("kernel", "crc", "digests")), [
            Problem("bundle", message, _REINSTALL, serious=True)
        ]
    crc, hashing = (
        _with_version(module)
        for module in (
            archive_writer.crc32.__module__,  # type: ignore[attr-defined]
            digests.xxhash.__name__,  # type: ignore[attr-defined]
        )
    )
    parts: dict[str, str | None] = {"kernel": kernel.description(), "crc": crc, "digests": hashing}
    if parts["kernel"] == "compiled":
        return parts, []
    switched_off = os.environ.get("ACCUCOMPARE_KERNEL")
    cure = (
        "unset ACCUCOMPARE_KERNEL"
        if switched_off
        else f"install a C compiler, such as gcc, and then {_REINSTALL} --no-deps"
    )
    return parts, [
        Problem(
            "kernel",
            "NumPy does the compiled kernel's work: the same results, several times slower",
            cure,
        )
    ]


def _requirements() -> dict[str, tuple[str, bool]]:
    """The packages that accucompare works with: the oldest version, and whether it is required."""
    try:
        lines = importlib.metadata.requires("accucompare") or []
    # run from source, not installed
    except importlib.metadata.PackageNotFoundError:
        lines = []
    found = {}
    for line in lines:
        match = re.fullmatch(r'([\w.-]+)\s*>=\s*([\d.]+)(?:\s*;\s*extra == "(?:torch|npu)")?', line)
        if match:
            found[match[1]] = (match[2], ";" not in line)
    return found


def _package_problems(packages: dict[str, tuple[str, bool]]) -> Iterator[Problem]:
    for name, (oldest, needed) in packages.items():
        installed = version(name)
        cure = f"pip install '{name}>={oldest}'"
        if installed is None and needed:
            yield Problem("packages", f"{name} is not installed", cure, serious=True)
        elif installed is not None and release(installed) < release(oldest):
            yield Problem(
                "packages",
                f"{name} {installed} is older than {oldest}, which accucompare needs",
                cure,
                serious=True,
            )


def _with_version(module: str) -> str:
    package = module.partition(".")[0]
    return f"{package} {version(package) or ''}".strip()


def _device_problems(
    devices: dict[str, DeviceReport], asked: DeviceName | None
) -> Iterator[Problem]:
    """The problems of devices; if none was asked for, only broken software."""
    for name, found in devices.items():
        if asked is not None and not found.available:
            yield Problem(name, found.message, "", serious=True)
        elif name == "cpu" and not found.available and version("torch") is not None:
            cure = "pip install --force-reinstall torch, if `python -c 'import torch'` fails too"
            yield Problem("torch", found.message, cure, serious=True)
        elif not found.available and name in PACKAGE and version(PACKAGE[name]) is not None:
            yield Problem(name, found.message, "")
        for flag in FLAGS:
            if (
                DeviceName.parse(name).type in flag.types
                and found.flags.get(flag.name) in flag.values
            ):
                yield Problem(
                    name, f"{flag.name} is {found.flags[flag.name]}: {flag.effect}", flag.cure
                )


# Examining a device


@contextlib.contextmanager
def _probes(names: Iterable[DeviceName]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """One process for each device to examine; all are ended on exit."""
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for name in names:
            program = (  # to search for garbage takes a quarter of the time to import torch
                f"import gc, sys; gc.disable(); sys.path[:] = {sys.path!r};"
                f" from accucompare.doctor import probe; probe({str(name)!r})"
            )
            command = [sys.executable, "-c", program]
            pipe = subprocess.PIPE
            processes.append(
                subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=pipe,
                    stderr=pipe,
                    start_new_session=True,
                )
            )
        yield processes
    finally:
        for process in processes:
            if process.poll() is None:
                with contextlib.suppress(ProcessLookupError, PermissionError):  # it has just ended
                    os.killpg(process.pid, signal.SIGKILL)  # and what a driver may have started
                # a process that hangs in a driver cannot be killed
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1.0)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()


def _answer(
    name: DeviceName, process: subprocess.Popen[bytes], deadline: float, timeout: float
) -> DeviceReport:
    try:
        answer, noise = process.communicate(timeout=max(deadline - time.monotonic(), 1.0))
    except subprocess.TimeoutExpired:
        return DeviceReport(
            False,
            f"no answer within {timeout:g} s; {SEE[name.type]}, or wait longer with --timeout",
        )
    with contextlib.suppress(ValueError):
        return DeviceReport(**json.loads(answer))
    how = (
        f"signal {-process.returncode}"
        if process.returncode < 0
        else f"exit code {process.returncode}"
    )
    last = printable(noise.decode(errors="replace").strip().rpartition("\n")[2])
    return DeviceReport(
        False,
        f"looking for it ended the process ({how}{': ' + last if last else ''}); {SEE[name.type]}",
    )


def probe(name: str) -> None:
    answer = os.dup(1)
    os.dup2(2, 1)  # libraries print to it
    content = json.dumps(asdict(_look(DeviceName.parse(name))), default=str)
    with open(answer, "w") as file:
        file.write(content)
    os._exit(0)  # skips what the device's software does at exit


def _look(name: DeviceName) -> DeviceReport:
    try:
        device = open_device(name)
        import torch

        (torch.ones(8, device=device) + 1).cpu()  # being listed does not mean that it works
        used = backend(name.type)
        flags = {"threads": torch.get_num_threads(), **used.flags()}
        return DeviceReport(True, "", used.count(), used.describe(device.index), flags)
    except DeviceError as error:
        return DeviceReport(False, re.sub(r"^--device \S+: ", "", str(error)))
    except Exception as error:
        return DeviceReport(
            False, f"{type(error).__name__}: {_first_line(error)}; {SEE[name.type]}"
        )


def _first_line(error: Exception) -> str:
    return printable(str(error).strip().partition("\n")[0])
