"""What ``accucompare doctor`` prints: JSON, or verdict, problems and the rest."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from rich.table import Table
from rich.text import Text

from accucompare.devices import ENVIRONMENT
from accucompare.doctor import DeviceReport, Examination
from accucompare.report.console import ReportConsole, open_console, reader_may_leave
from accucompare.report.headline import Headline

Rows = list[tuple[str, str]]


def print_examination(
    examination: Examination, *, as_json: bool = False, quiet: bool = False
) -> None:
    console = open_console()
    with reader_may_leave():
        if as_json:
            console.say(Text(json.dumps(asdict(examination), indent=1)))
            return
        console.say(_verdict(examination))
        if quiet:
            return
        for problem in examination.problems:
            console.print(
                Text(
                    f"  ! {problem.topic}: {problem.message}",
                    "red" if problem.serious else "yellow",
                )
            )
            if problem.cure:
                # can be copied whole
                console.say(Text(f"    cure: {problem.cure}"))
        _print_section(console, "Installation", _installation(examination))
        _print_section(
            console,
            "Devices",
            [(name, _device(device)) for name, device in examination.devices.items()],
        )
        flags = [
            (name, _listed(device.flags))
            for name, device in examination.devices.items()
            if device.flags
        ]
        _print_section(console, "Settings that change numbers, as a capture would find them", flags)
        _print_section(
            console,
            "Environment",
            [
                (name, f"{value!a}  ({ENVIRONMENT[name]})")
                for name, value in examination.environment.items()
            ],
        )


def _verdict(examination: Examination) -> Text:
    if not examination.ok:
        serious = "; ".join(
            f"{problem.topic}: {problem.message}"
            for problem in examination.problems
            if problem.serious
        )
        return Text.assemble((Headline.TROUBLE.value, "bold red"), f"  {serious}")
    able = [name for name, device in examination.devices.items() if device.available]
    captures = (
        f"captures can run on {', '.join(able)}"
        if able
        else "comparisons can run here, captures cannot"
    )
    broken = [
        problem.topic
        for problem in examination.problems
        if problem.topic in (*examination.devices, "versions")
    ]
    wrong = (
        f"accucompare can work here, but see what is said of {', '.join(dict.fromkeys(broken))}"
        if broken
        else _NOTHING_WRONG
    )
    return Text.assemble((Headline.OK.value, "bold green"), f"  {wrong}; {captures}")


_NOTHING_WRONG = "nothing is wrong with this installation"


def _installation(examination: Examination) -> Rows:
    memory = (
        ""
        if examination.memory is None
        else f", {examination.memory / (1 << 30):.1f} GiB of memory"
    )
    return [
        ("accucompare", f"{examination.accucompare} in {examination.location}"),
        ("Python", f"{examination.python}, {examination.executable}"),
        ("machine", f"{examination.platform}; {examination.processors} processor(s){memory}"),
        ("kernel", examination.kernel or "-"),
        ("CRC, digests", f"{examination.crc or '-'}, {examination.digests or '-'}"),
        (
            "packages",
            ", ".join(f"{name} {version or '-'}" for name, version in examination.versions.items())
            or "-",
        ),
    ]


def _device(device: DeviceReport) -> str:
    if not device.available:
        return f"not available: {device.message}"
    description = {
        name: value for name, value in device.description.items() if name not in ("type", "name")
    }
    several = f"{device.count} of " if device.count > 1 else ""
    return ", ".join(
        part
        for part in (f"{several}{device.description.get('name', '')}", _listed(description))
        if part
    )


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


def _print_section(console: ReportConsole, title: str, rows: Rows) -> None:
    if not rows:
        return
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=None,
        padding=(0, 1),
        pad_edge=False,
        show_header=False,
    )
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold", ratio=1)
    for name, text in rows:
        table.add_row(Text(name), Text(text))
    console.print()
    console.print(table)
