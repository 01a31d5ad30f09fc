"""One trial: what a watch, and Hugging Face's DebugUnderflowOverflow, say of one planted origin in
one model.
"""

from __future__ import annotations

import contextlib
import io
import re
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accucompare.bundle.format.records import display_name
from accucompare.findings.log.events import Finding, Site
from planted import origins_backward, origins_legal, origins_odd
from planted.origins_catalogue import ORIGINS, Right
from planted.origins_models import Subject, fresh

#: The modules that add to the catalogue when they are imported.
CATALOGUES = (origins_backward, origins_legal, origins_odd)

RIGHT, BESIDE, WRONG, SILENT, ALARM, RAISES = (
    "right",
    "beside",
    "wrong",
    "silent",
    "false alarm",
    "raises",
)

_WRAPPERS = re.compile(r"(_orig_mod|_checkpoint_wrapped_module|module)(\.|$)")
_FRAME = re.compile(r"^ {18}(\S*) (\w+)$", re.MULTILINE)
_INPUT = re.compile(r"^\s*(nan|inf|\S+)\s+(nan|inf)\s+input", re.MULTILINE)


@dataclass(frozen=True)
class Said:
    """What was said, and whether it is right.

    Attributes:
        verdict: ``right``; ``beside``: a module that was only given what the right place had made;
            ``wrong``; ``silent``; ``false alarm``; ``raises``: an error that is no finding.
        place: what was named; of an error, its text.
        seconds: what the step took.
    """

    verdict: str
    place: str
    seconds: float = 0.0

    def is_right(self, legal: bool) -> bool:
        return self.verdict == (SILENT if legal else RIGHT)


@dataclass(frozen=True)
class Trial:
    """One origin in one model.

    Attributes:
        model, dtype, origin: keys of ``PLACES``, ``DTYPES`` and ``ORIGINS``.
        legal: whether nothing must be said.
        right: what is right to say.
        said: by each tool.
        skipped: why it was not tried.
    """

    model: str
    dtype: str
    origin: str
    legal: bool
    right: str
    said: dict[str, Said]
    skipped: str = ""


def run(model: str, dtype: str, name: str) -> Trial:
    """Plant an origin, and let each tool watch the same step."""
    origin = ORIGINS[name]
    if reason := origin.skipped(model, dtype):
        return Trial(model, dtype, name, origin.legal, "", {}, reason)
    said = {}
    right: Right | None = None
    for tool, ask in TOOLS.items():
        subject, right = plant(model, dtype, name)
        said[tool] = ask(subject, right)
    return Trial(model, dtype, name, origin.legal, str(right or "nothing"), said)


def plant(model: str, dtype: str, name: str) -> tuple[Subject, Right | None]:
    """A fresh model with an origin in it, and what is right to say."""
    torch._dynamo.reset()
    subject = fresh(model, dtype)
    return subject, ORIGINS[name].plant(subject)


# a watch


def ask_watch(subject: Subject, right: Right | None) -> Said:
    began = time.perf_counter()
    try:
        found = findings(subject)
    except Exception as error:
        return Said(RAISES, f"{type(error).__name__}: {error}"[:300])
    seconds = time.perf_counter() - began
    if not found:
        return Said(SILENT, "", seconds)
    place = f"{found[0].place}: {', '.join(found[0].kinds)}"
    if right is None:
        return Said(ALARM, place, seconds)
    wrong = [*differences(found[0], right), *later(found)]
    return (
        Said(WRONG, f"{place} [{'; '.join(wrong)}]", seconds)
        if wrong
        else Said(RIGHT, place, seconds)
    )


def findings(subject: Subject) -> list[Finding]:
    """What a watch finds in a step; origins only, the first one first."""
    import accucompare as ac

    with tempfile.TemporaryDirectory() as folder, quiet():
        with ac.watch(
            subject.model,
            ac.Loop(subject.optimizer, scaler=subject.scaler),
            out=folder,
            on_finding="warn",
            look=ac.LookAt(**subject.options),
        ) as watch:
            subject.step()
            watch.step()
        return [found for found in watch.findings if found.origin]


def differences(found: Finding, right: Right) -> list[str]:
    """What of a finding is not right."""
    wrong = [
        f"{what} is {said!r}, not {true!r}"
        for what, said, true in (
            ("name", found.name, right.name),
            ("call", found.call, right.call),
            ("site", str(found.site), str(right.site)),
            ("direction", str(found.direction), str(right.direction)),
        )
        if said != true
    ]
    if right.near and found.near not in right.near:
        wrong.append(f"near is {found.near!r}, not {' or '.join(right.near)}")
    if not found.kinds or not set(found.kinds) <= set(right.kinds):
        wrong.append(f"kinds are {found.kinds}, not of {list(right.kinds)}")
    if right.path and not any(seen.path == right.path for seen in found.tensors):
        wrong.append(f"paths are {[seen.path for seen in found.tensors]}, not {right.path!r}")
    if right.parameter and right.parameter not in found.parameters:
        wrong.append(f"parameters are {found.parameters}, not {right.parameter!r}")
    return wrong


def later(found: list[Finding]) -> list[str]:
    """An origin spoils what comes after it, which must not be called an origin as well."""
    return (
        [f"also called an origin: {', '.join(each.place for each in found[1:4])}"]
        if len(found) > 1
        else []
    )


# Hugging Face's class


def ask_hugging_face(subject: Subject, right: Right | None) -> Said:
    """The class with its defaults, over one step; what it names is the last frame of its report."""
    from transformers.debug_utils import DebugUnderflowOverflow

    report = io.StringIO()
    began = time.perf_counter()
    try:
        with quiet(), contextlib.redirect_stdout(report):
            DebugUnderflowOverflow(subject.model)  # type: ignore[no-untyped-call]
            subject.step()
        return Said(SILENT, "", time.perf_counter() - began)
    except ValueError as error:
        if "DebugUnderflowOverflow" not in str(error):
            return Said(RAISES, f"ValueError: {error}"[:300])
    except Exception as error:
        return Said(RAISES, f"{type(error).__name__}: {error}"[:300])
    seconds = time.perf_counter() - began
    name, frame = last_frame(report.getvalue())
    verdict = (
        ALARM
        if right is None
        else RIGHT
        if _names(name, right)
        else BESIDE
        if _is_beside(name, frame, right)
        else WRONG
    )
    return Said(verdict, display_name(name), seconds)


def last_frame(report: str) -> tuple[str, str]:
    """The name of the module that a report ends with, without wrappers, and the lines on it."""
    last = list(_FRAME.finditer(report))[-1]
    return _WRAPPERS.sub("", last[1]).rstrip("."), report[last.end() :]


def _names(name: str, right: Right) -> bool:
    """Whether the module is the right one; it knows no more of an input, and nothing of a
    gradient."""
    return right.site is not Site.INPUT and name == right.name


def _is_beside(name: str, frame: str, right: Right) -> bool:
    """Whether it is the child next to the right place, or the first module with a bad input where
    the input of the model is bad.
    """
    if right.site is Site.INPUT:
        return _INPUT.search(frame) is not None
    children = {near.split()[1] for near in right.near}
    return right.site is Site.GLUE and name in {
        f"{right.name}.{child}".lstrip(".") for child in children
    }


TOOLS: dict[str, Callable[[Subject, Right | None], Said]] = {
    "watch": ask_watch,
    "Hugging Face": ask_hugging_face,
}


@contextlib.contextmanager
def quiet() -> Iterator[Any]:
    """Without warnings, and without what a finding prints."""
    with (
        warnings.catch_warnings(),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
    ):
        warnings.simplefilter("ignore")
        yield
