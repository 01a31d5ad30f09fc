"""No sentence is made in ``findings/``: it states facts, and the report has a sentence for each."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from accucompare.errors import UsageError
from accucompare.findings.checklist import CHECKS
from accucompare.findings.checklist.checks import Need
from accucompare.findings.checklist.health_checklist import THRESHOLDS
from accucompare.places import place_of
from accucompare.report.watch_words import CHECK_WORDS, THRESHOLD_WORDS
from accucompare.report.watch_words.remark_words import SENTENCES
from accucompare.text import with_article

PACKAGE = Path(__file__).parent.parent / "accucompare"
WORDLESS = sorted((PACKAGE / "findings").rglob("*.py"))
#: Four words running are a sentence; fewer may be a name.
SENTENCE = re.compile(r"[A-Za-z']+(?: [A-Za-z']+){3}")
FIELD = re.compile(r"\{(\w+)")


def is_of_an_error(node: ast.AST) -> bool:
    """Errors carry their message, and what is raised or logged is no report."""
    if isinstance(node, ast.Raise):
        return True
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return name.endswith("Error") or name.startswith("_LOGGER.")


def is_named(node: ast.AST) -> bool:
    """The members of an Enum are names, whatever their values are."""
    return isinstance(node, ast.ClassDef) and bool(
        {"Enum", "Word"} & {*map(ast.unparse, node.bases)}
    )


def sentences(node: ast.AST) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if is_of_an_error(child) or is_named(child):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):  # a docstring
            continue
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield from SENTENCE.findall(child.value)
        yield from sentences(child)


@pytest.mark.parametrize("file", WORDLESS, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_sentence_is_made_here(file: Path) -> None:
    assert list(sentences(ast.parse(file.read_text()))) == []


def calls() -> Iterator[tuple[str, set[str]]]:
    """The remarks that are made with a name that stands there, and their values."""
    for room in ("findings", "watcher"):
        for file in (PACKAGE / room).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if (
                    isinstance(node, ast.Call)
                    and ast.unparse(node.func) in ("remark", "_UnfitError")
                    and isinstance(node.args[0], ast.Constant)
                ):
                    yield str(node.args[0].value), {str(each.arg) for each in node.keywords}


def test_each_remark_has_a_sentence_that_says_all_of_its_values() -> None:
    made = list(calls())
    assert len(made) > 200
    wrong = [
        (fact, values)
        for fact, values in made
        if set(FIELD.findall(SENTENCES.get(fact, "{missing}"))) != values
    ]
    assert wrong == []


def test_each_sentence_is_of_a_remark() -> None:
    named = {
        node.value
        for room in ("findings", "watcher")
        for file in (PACKAGE / room).rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    assert SENTENCES.keys() - named == set()


def test_each_check_need_and_threshold_has_its_words() -> None:
    assert CHECK_WORDS.keys() == {check.id for check in CHECKS}
    assert THRESHOLD_WORDS.keys() == THRESHOLDS.keys()
    unjudged = {check.id for check in CHECKS if check.judge is None}
    assert {each.value for each in Need} | unjudged <= SENTENCES.keys()


@pytest.mark.parametrize(
    "said",
    [
        "an int",
        "an Embedding",
        "an LSTM",
        "an Unflatten",
        "an unreadable value",
        "a str",
        "a UNet",
        "a Unit",
        "a Linear",
    ],
)
def test_a_type_has_its_article(said: str) -> None:
    assert with_article(said.partition(" ")[2]) == said


def test_a_message_has_the_article(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is an int; give the path"):
        place_of(3)  # type: ignore[arg-type]
