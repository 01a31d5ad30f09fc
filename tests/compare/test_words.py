"""No English is made in ``compare/``: facts are fields, and ``report.words`` says them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

COMPARE = Path(__file__).parent.parent.parent / "accucompare" / "compare"

FILES = sorted(COMPARE.rglob("*.py"))

#: Two words or more.
_WORDS = re.compile(r"[A-Za-z']{2,}[,;:]? [A-Za-z']{2,}")


def _said(node: ast.AST, place: str) -> Iterator[tuple[str, str]]:
    """The texts of several words in a tree, each with the function around it, without docstrings,
    errors, logs and values of Enums."""
    for child in ast.iter_child_nodes(node):
        inner = place
        if isinstance(child, (ast.FunctionDef, ast.ClassDef)):
            inner = f"{place}.{child.name}"
        called = ast.unparse(child.func) if isinstance(child, ast.Call) else ""
        if isinstance(child, ast.Raise) or called.endswith("Error") or called.startswith("_LOGGER"):
            continue
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.ClassDef) and {"Enum", "Word"} & {*map(ast.unparse, child.bases)}:
            continue
        if isinstance(child, ast.JoinedStr):
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in child.values
            )
            yield inner, text
            continue
        if isinstance(child, ast.Constant) and isinstance(child.value, str):
            yield inner, child.value
        yield from _said(child, inner)


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(COMPARE)))
def test_no_words_are_made_where_facts_are_found(file: Path) -> None:
    said = {
        (place, text)
        for place, text in _said(ast.parse(file.read_text()), file.stem)
        if _WORDS.search(text)
    }
    assert said == set()
