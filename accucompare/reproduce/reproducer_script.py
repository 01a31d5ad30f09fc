"""The text of a reproducer's script."""

from __future__ import annotations

import textwrap
from pathlib import Path

from accucompare.findings.log import Finding, Site
from accucompare.reproduce.recipe import Recipe
from accucompare.reproduce.snapshot import Snapshot
from accucompare.text import with_article

_SCRIPT = '''\
"""{headline}

{help}
"""

import sys

try:
    from accucompare.reproduce import Reproducer
except Exception as error:
    print(f"this needs torch and accucompare: {{error}}", file=sys.stderr)
    sys.exit(2)


def build():
{build}

{given}
if __name__ == "__main__":
    sys.exit(Reproducer.open(__file__).main(build, sys.argv[1:]{last}))
'''

_HELP = """\
Runs that module alone on what it was given, which is in the bundle {name}/, and says whether the \
value shows again:
    python {name}.py [cpu | cuda | cuda:N | npu | npu:N]
Exit code: 1 it shows again, 0 everything is finite here, 2 trouble."""


def script_text(
    script: Path, finding: Finding, snapshot: Snapshot, making: Recipe | str, lost: dict[str, str]
) -> str:
    given = {place: what for place, what in lost.items() if _is_input(place, snapshot)}
    return _SCRIPT.format(
        headline=_docstring(_headline(finding, snapshot)),
        help=_docstring(_HELP.format(name=script.stem)),
        build=textwrap.indent(_build(making, snapshot), "    "),
        given=_given(given),
        last=", given" if given else "",
    )


def _headline(finding: Finding, snapshot: Snapshot) -> str:
    kinds = " and ".join(finding.kinds) or "A value that is not finite"
    made = f", by {finding.operator}" if finding.operator else ""
    where = f" at {finding.line}" if finding.line else ""
    cause = (
        f"; {finding.cause.value}" if finding.site in (Site.MODULE, Site.GLUE, Site.POINT) else ""
    )
    return textwrap.fill(
        f"{kinds} in {finding.place}, {with_article(type(snapshot.module).__name__)}, in step"
        f" {finding.step}{cause}{made}{where}.",
        120,
    )


def _build(making: Recipe | str, snapshot: Snapshot) -> str:
    if isinstance(making, Recipe):
        text = "\n".join([*making.imports, making.text])
        here = (
            ["from pathlib import Path", "", "HERE = Path(__file__).resolve().parent"]
            if "HERE / " in text
            else []
        )
        return "\n".join(
            [*here, *making.imports, *([""] if making.imports else []), f"return {making.text}"]
        )
    kind = type(snapshot.module)
    wanted = textwrap.fill(
        "MISSING: write here how to make"
        f" {with_article(f'{kind.__module__}.{kind.__qualname__}')}. It could not be"
        f" told: {' '.join(making.split())}",
        110,
        initial_indent="# ",
        subsequent_indent="# ",
        break_long_words=False,
    )
    return f"{wanted}\nmodule = ...\nreturn module"


def _given(lost: dict[str, str]) -> str:
    if not lost:
        return ""
    lines = [
        f"    {place!r}: None,  # could not be saved: {' '.join(what.split())}"
        for place, what in lost.items()
    ]
    return "\n".join(
        [
            "\n# MISSING: None is passed for these, unless you put something else.",
            "given = {",
            *lines,
            "}\n\n",
        ]
    )


def _is_input(place: str, snapshot: Snapshot) -> bool:
    """Whether the lost value is an input of the call, which the user can give."""
    first = place.partition(",")[0]
    return first in snapshot.kwargs or first in {
        f"argument {index}" for index in range(len(snapshot.args))
    }


def _docstring(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"""', "'''")
