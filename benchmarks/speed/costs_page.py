"""The tables of docs/costs.md, made of ``results.json``: ``python -m benchmarks.speed.costs_page``
writes them.
"""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.figures import Figure, load, number, spread
from benchmarks.timing import CLOCKS, ROOT

RESULTS = ROOT / "benchmarks" / "speed" / "results.json"
PAGE = ROOT / "docs" / "costs.md"
#: Between these lines of the page stand the tables.
BEGIN, END = "<!-- begin: tables made by make bench -->", "<!-- end: tables made by make bench -->"
#: Of the median: a spread beyond this is shown.
WIDE = 0.1


def write() -> None:
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


def with_tables(page: str) -> str:
    """A page whose tables are those of the results; the rest stays."""
    content, figures = load(RESULTS)
    machine = content["machine"]
    about = (
        f"{machine['date'][:10]}, {machine['cpu']}, {machine['cores']} cores,"
        f" {machine['memory_gb']:.0f} GB, {machine['kernel']}, Python {machine['python']},"
        f" torch {machine['packages'].get('torch', 'missing')}."
    )
    said = [f"Note: {note}" for note in content["notes"]]
    if content["options"]["quick"]:
        said.insert(
            0, "Note: small data (`--quick`), which tries the benchmark out; do not quote it."
        )
    text = "\n\n".join([about, *said, _by_clock(figures), _others(figures)])
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def _by_clock(figures: Sequence[Figure]) -> str:
    """A line for each figure that has clocks: the median and the spread by each, and the first."""
    rows: dict[tuple[str, str], dict[str, Figure]] = {}
    for each in figures:
        if each.clock:
            rows.setdefault((each.what, each.unit), {})[each.clock] = each
    lines = ["|what|thread|process|wall|first time|to reach|", "|---|---|---|---|---|---|"]
    for (what, unit), by_clock in rows.items():
        cells = [_value(by_clock[clock]) if clock in by_clock else "" for clock in CLOCKS]
        aimed = [each for each in by_clock.values() if each.target is not None]
        first = [*aimed, *by_clock.values()][0]
        before = "" if first.first is None else f"{number(first.first)} {first.clock}"
        targets = "; ".join(f"{each.target:g} {each.clock}" for each in aimed)
        name = what if unit == "x" else f"{what}, {unit}"
        lines.append(f"|{name}|{'|'.join(cells)}|{before}|{targets}|")
    return "\n".join(lines)


def _others(figures: Sequence[Figure]) -> str:
    lines = ["|what|measured|to reach|", "|---|---|---|"]
    for each in figures:
        if not each.clock:
            target = "" if each.target is None else f"{each.target:g}"
            unit = "" if each.unit in ("", "x") else f" {each.unit}"
            lines.append(f"|{each.what}|{_value(each, unit)}|{target}|")
    return "\n".join(lines)


def _value(figure: Figure, unit: str = "") -> str:
    """The median, with the spread where that is wide."""
    values = figure.values
    wide = max(values) - min(values) > WIDE * figure.median
    return f"{number(figure.median)}{unit}" + (f" ({spread(values)})" if wide else "")


if __name__ == "__main__":
    write()
