"""The pages: their links lead somewhere, and the reference has every public name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import accucompare
from accucompare.cli import cli
from benchmarks.speed.costs_page import PAGE, with_tables

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_or_a_heading_leads_there(page: Path) -> None:
    targets = re.findall(r"\]\(([^)\s]+)\)", _prose(page))
    assert [
        target for target in targets if not target.startswith("http") and not _leads(page, target)
    ] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_of_a_page_is_understood(page: Path) -> None:
    for name, *words in _commands(page):
        context = click.Context(cli, **cli.context_settings)
        command = cli.get_command(context, name)
        assert command is not None, name
        command.make_context(name, words, parent=context)  # raises for what it does not know


def test_the_reference_has_each_public_name_once() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert sorted(re.findall(r"^::: accucompare\.(\w+)$", page, re.MULTILINE)) == sorted(
        accucompare.__all__
    )


def test_the_navigation_of_the_site_has_each_page_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    assert sorted(re.findall(r"([\w-]+\.md)$", navigation, re.MULTILINE)) == sorted(
        page.name for page in (ROOT / "docs").glob("*.md")
    )


def test_the_costs_are_those_that_the_benchmark_measured() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page == with_tables(page)


def test_every_path_in_contributing_exists() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = re.findall(r"`((?:[\w.*-]+/)+[\w.*-]*)`", page)
    missing = [
        path
        for path in paths
        if not any(any(root.glob(path.rstrip("/"))) for root in (ROOT, ROOT / "accucompare"))
    ]
    assert paths
    assert missing == []


def test_every_class_that_contributing_places_stands_there() -> None:
    page = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = page.partition("## Where is\n")[2].partition("\n## ")[0]
    places = re.findall(r"\| ([^|]*`[A-Z][^|]*) \| `([\w/]+\.py)`", table)
    assert places
    for names, path in places:
        content = (ROOT / "accucompare" / path).read_text(encoding="utf-8")
        defined = re.findall(r"^class (\w+)", content, re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", names)) <= set(defined), path


def _commands(page: Path) -> Iterator[list[str]]:
    """The words behind ``accucompare`` of each command in a console or in a cell of a table."""
    text = page.read_text(encoding="utf-8")
    consoles = "\n".join(re.findall(r"^```console\n(.*?)^```", text, re.MULTILINE | re.DOTALL))
    lines = re.findall(r"^\$ (.*)$", consoles, re.MULTILINE)
    lines += re.findall(r"\| `(accucompare [a-z]+ [^`]+)` \|", text)
    for line in lines:
        for part in re.split(r" (?:&&|&|>) ?", line):
            words = shlex.split(part, comments=True)
            if "accucompare" in words:
                yield words[words.index("accucompare") + 1 :]


def _leads(page: Path, target: str) -> bool:
    name, _, heading = target.partition("#")
    file = (page.parent / name).resolve() if name else page
    return file.exists() and (not heading or heading in _headings(file))


def _headings(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def _prose(page: Path) -> str:
    """The page without its code."""
    return re.sub(
        r"^```.*?^```$|`[^`\n]+`",
        "",
        page.read_text(encoding="utf-8"),
        flags=re.MULTILINE | re.DOTALL,
    )
