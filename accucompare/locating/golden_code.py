"""Running golden's code: here, or by the Python interpreter that has golden's versions."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from accucompare.bundle.format import Manifest
from accucompare.case import whole_target
from accucompare.devices import DeviceName
from accucompare.errors import CaptureError, UsageError
from accucompare.launched import as_one_process
from accucompare.places import Place, whole
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.selection import FloatType, RoundedType
from accucompare.text import without_credentials

#: What an interpreter must have.
_NEEDS = (
    "import accucompare.cli, importlib.util; assert importlib.util.find_spec('torch'),"
    " 'there is no torch'"
)


@dataclass(frozen=True)
class GoldenCode:
    """What runs golden's code."""

    python: str | Path | None  # the interpreter that has golden's versions; ``None`` for this one
    case: str | None  # the case that golden was captured from, if it was named

    def check(self) -> None:
        """Raise UsageError if the other interpreter cannot capture."""
        if self.python is None:
            return
        option = f"golden_python (--golden-python) {self.python}"
        try:
            done = subprocess.run(
                [self.python, "-c", _NEEDS], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UsageError(f"{option}: cannot be run ({error.strerror})") from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it does not run"])[-1]
            raise UsageError(
                f"{option}: cannot capture ({reason}); install accucompare[torch] there"
            )

    def case_of(self, golden: Manifest, target: str | None) -> str | None:
        """The case that golden was captured from: as named, or the candidate's if its name is
        equal.

        The case that a bundle names is never run: golden may come from anybody. The candidate's own
        case may have the fault.
        """
        own = whole_target(target)
        return self.case or (own if golden.case and whole_target(golden.case) == own else None)

    def capture(
        self,
        case: str | None,
        out: Place,
        options: CaptureOptions,
        dtype: FloatType | None = None,
        round_weights: RoundedType | None = None,
        repeat: int = 1,
    ) -> Place:
        """Capture a case on the CPU; arguments as of ``capture_case``."""
        more: dict[str, Any] = {"dtype": dtype, "round_weights": round_weights, "repeat": repeat}
        if self.python is None:
            from accucompare.recorder.session import capture_case

            return capture_case(case, out, DeviceName("cpu"), options, **more)
        arguments = capture_arguments(case, DeviceName("cpu"), out, options, **more)
        command = [str(self.python), "-m", "accucompare", *arguments]
        # such variables are options of the user's command; this one has all of its own
        environment = {
            name: value
            for name, value in as_one_process(os.environ).items()
            if not name.startswith("ACCUCOMPARE_CAPTURE_")
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            why = done.stderr.strip() or f"exit code {done.returncode}"
            raise CaptureError(
                f"--golden-python: {without_credentials(shlex.join(command))} failed: {why}"
            )
        return out


def capture_arguments(
    case: str | None, device: DeviceName, out: Place, options: CaptureOptions, **more: Any
) -> list[str]:
    """The arguments of the command that captures a case; ``more`` as of ``capture_case``."""
    given = {
        each.name: value
        for each in fields(options)
        if (value := getattr(options, each.name)) != each.default
    }
    return [
        "capture",
        *([case] if case else []),
        *("--device", str(device), "--out", whole(out), "-q"),
        *as_arguments({**given, **more}),
    ]


def as_arguments(options: Mapping[str, Any]) -> list[str]:
    """Command line arguments for these options, except those that are ``None``."""
    arguments: list[str] = []
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, (list, tuple)):
            arguments += [part for each in value for part in (option, whole(each))]
        elif value is True:
            arguments.append(option)
        elif value is False:
            arguments.append(f"--no-{option.removeprefix('--')}")
        elif value is not None:
            arguments += [option, whole(value)]
    return arguments
