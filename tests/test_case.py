"""Finding and loading the case that the user means."""

from __future__ import annotations

import sys
from collections import namedtuple
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import BatchEncoding

from accucompare.case import Case, load_case, steps_of
from accucompare.errors import CaseError

CASE = """
from accucompare import Case
def case():
    return Case('model', 'of {here}')
def other():
    return Case('other', 'of {here}')
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what a case imports or puts on sys.path is forgotten again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("net", "front", "helper", "half", "package"):  # another test's
        monkeypatch.delitem(sys.modules, name, raising=False)
    before = dict(sys.modules)
    yield tmp_path
    for name in sys.modules.keys() - before.keys():
        del sys.modules[name]
    sys.modules.update(before)


def write(path: Path, content: str = CASE) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content.replace("{here}", path.name))
    return path


@pytest.mark.parametrize(
    ("target", "model"),
    [
        ("net.py", "model"),
        ("net.py:case", "model"),
        ("net.py:other", "other"),
        ("./net.py:other", "other"),
        ("net", "model"),
        ("net:other", "other"),
        ("net.py:", "model"),
    ],
)
def test_a_file_or_a_module_with_or_without_a_callable(
    target: str, model: str, folder: Path
) -> None:
    write(folder / "net.py")
    case, name = load_case(target)
    assert (case.model, name) == (model, target)


def test_a_module_in_a_package(folder: Path) -> None:
    write(folder / "package" / "__init__.py", "")
    write(folder / "package" / "net.py")
    assert load_case("package.net:other")[0].model == "other"


def test_an_absolute_path(folder: Path) -> None:
    assert load_case(f"{write(folder / 'deep' / 'net.py')}:other")[0].model == "other"


def test_a_callable_that_is_imported_from_elsewhere(folder: Path) -> None:
    write(folder / "net.py")
    write(folder / "front.py", "from net import case")
    assert load_case("front.py")[0].model == "model"


def test_a_case_file_may_import_its_neighbours_and_define_dataclasses(folder: Path) -> None:
    write(folder / "deep" / "helper.py", "VALUE = 3")
    source = """
from __future__ import annotations
from dataclasses import dataclass
import helper
from accucompare import Case
@dataclass
class Settings:
    width: int = helper.VALUE
def case():
    return Case(Settings().width)
"""
    write(folder / "deep" / "net.py", source)
    assert load_case("deep/net.py")[0].model == 3


def test_a_file_called_like_an_imported_module_does_not_replace_it(folder: Path) -> None:
    write(folder / "json.py")
    before = sys.modules["json"]
    assert load_case("json.py")[0].inputs == "of json.py"
    assert sys.modules["json"] is before


def test_two_files_of_one_name_are_two_cases(folder: Path) -> None:
    write(
        folder / "a" / "net.py", "from accucompare import Case\ndef case():\n    return Case('a')"
    )
    write(
        folder / "b" / "net.py", "from accucompare import Case\ndef case():\n    return Case('b')"
    )
    assert [load_case(f"{name}/net.py")[0].model for name in "ab"] == ["a", "b"]


def test_without_a_target_the_nearest_pyproject_names_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "pyproject.toml", '[tool.accucompare]\ncase = "cases/net.py:other"')
    write(folder / "cases" / "net.py")
    (folder / "src" / "deep").mkdir(parents=True)
    monkeypatch.chdir(folder / "src" / "deep")
    assert load_case(None)[0].model == "other"


def test_a_pyproject_may_name_a_module(folder: Path) -> None:
    write(folder / "pyproject.toml", '[tool.accucompare]\ncase = "net:other"')
    write(folder / "net.py")
    assert load_case(None)[1] == "net:other"


def test_without_a_pyproject_case_py_is_taken(folder: Path) -> None:
    write(folder / "case.py")
    assert load_case(None) == (Case("model", "of case.py"), "case.py")


def test_a_pyproject_that_names_none_leaves_case_py(folder: Path) -> None:
    write(folder / "pyproject.toml", "[tool.other]\ncase = 'x.py'")
    write(folder / "case.py")
    assert load_case(None)[1] == "case.py"


def test_only_the_nearest_pyproject_counts(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder / "pyproject.toml", '[tool.accucompare]\ncase = "net.py"')
    write(folder / "net.py")
    write(folder / "inner" / "pyproject.toml", "")
    write(folder / "inner" / "case.py")
    monkeypatch.chdir(folder / "inner")
    assert load_case(None)[1] == "case.py"


def test_a_case_py_in_a_parent_directory_is_not_taken(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder / "pyproject.toml", "")
    write(folder / "case.py")
    (folder / "src").mkdir()
    monkeypatch.chdir(folder / "src")
    with pytest.raises(CaseError, match="no case given"):
        load_case(None)


ERRORS = {
    "nothing": ("", "", "^'': names no file or module; type one, as in model.py:case$"),
    "no file": ("", "gone.py", r"^gone\.py: there is no file gone\.py$"),
    "a directory": ("", "./", r"^\./: is a directory; name the file in it, as in \./model\.py$"),
    "no module": ("", "gone", r"^gone: no module 'gone'; give a file as path/to/file\.py$"),
    "no submodule": ("", "os.gone:case", r"no module 'os\.gone'"),
    "no callable": (
        "def build(): pass\nx = 1",
        "net.py",
        r"net\.py has no callable 'case'; it has build$",
    ),
    "no callables": ("x = 1", "net.py:x", r"net\.py has no callable 'x'; it has none$"),
    "wrong result": (
        "def case(): return 3",
        "net.py",
        r"case\(\) must return an accucompare\.Case, but returned an int$",
    ),
    "raises": (
        "def case():\n    return 1 / 0",
        "net.py",
        r"case\(\) raised ZeroDivisionError: division by zero \(.*net\.py:2\)$",
    ),
    "needs arguments": (
        "def case(x): return x",
        "net.py",
        r"case\(\) raised TypeError: case\(\) missing 1 required",
    ),
    "syntax": ("def case(:", "net.py", r"net\.py: cannot be imported: SyntaxError: "),
    "import raises": (
        "\nraise OSError('no weights')",
        "net.py",
        r"cannot be imported: OSError: no weights \(.*net\.py:2\)$",
    ),
    "missing dependency": (
        "import nonexistent_package_x",
        "net",
        r"cannot be imported: ModuleNotFoundError: No module named 'nonexist",
    ),
    "exits": (
        "import sys\nsys.exit(0)",
        "net.py",
        r"cannot be imported: SystemExit: 0 \(.*net\.py:2\)$",
    ),
    "case exits": ("def case():\n    raise SystemExit", "net.py", r"case\(\) raised SystemExit: "),
    "no source": ("", ":case", r"^:case: names no file or module; type one, as in model.py:case$"),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_what_is_wrong_with_a_case_is_said_in_one_line(kind: str, folder: Path) -> None:
    source, target, message = ERRORS[kind]
    write(folder / "net.py", source)
    with pytest.raises(CaseError, match=message) as raised:
        load_case(target)
    assert "\n" not in str(raised.value)


def test_a_case_that_cannot_be_imported_leaves_no_half_of_it_behind(folder: Path) -> None:
    write(folder / "half.py", "x = 1\nraise OSError")
    with pytest.raises(CaseError):
        load_case("half.py")
    assert "half" not in sys.modules


def test_no_case_at_all() -> None:
    with pytest.raises(
        CaseError,
        match=(
            r"no case given: name one .*model\.py:case.*\[tool\.accucompare\] case, or write"
            r" \./case\.py"
        ),
    ):
        load_case(None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[tool.accucompare]\ncase = 3", r"\[tool\.accucompare\] case must be a string, but is 3"),
        ("[tool", r"pyproject\.toml: cannot be read \("),
        ("tool = 3", r"pyproject\.toml: cannot be read \("),
        ("[tool]\naccucompare = 3", r"pyproject\.toml: cannot be read \("),
    ],
)
def test_a_pyproject_that_makes_no_sense(content: str, message: str, folder: Path) -> None:
    write(folder / "pyproject.toml", content)
    with pytest.raises(CaseError, match=message):
        load_case(None)


Point = namedtuple("Point", "x y")
T = torch.ones(2)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (T, [((T,), {})]),
        ((T, 3), [((T, 3), {})]),
        (Point(T, 3), [((T, 3), {})]),
        ((), [((), {})]),
        ({"x": T}, [((), {"x": T})]),
        (BatchEncoding({"x": T}), [((), {"x": T})]),
        ([T, (T, 3), {"x": T}], [((T,), {}), ((T, 3), {}), ((), {"x": T})]),
        (([T, T],), [(([T, T],), {})]),
        ([], []),
    ],
    ids=[
        "tensor",
        "tuple",
        "named tuple",
        "no arguments",
        "dict",
        "BatchEncoding",
        "several steps",
        "a list as argument",
        "no steps",
    ],
)
def test_inputs_become_the_arguments_of_each_step(inputs: object, expected: list[Any]) -> None:
    found = steps_of(inputs)
    assert [tuple(args) for args, _ in found] == [args for args, _ in expected]
    assert [kwargs for _, kwargs in found] == [kwargs for _, kwargs in expected]


@pytest.mark.parametrize("target", ["models", "models:other", "./models/"])
def test_a_directory_without_code_is_no_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        CaseError, match=r"is a directory; name the file in it, as in \.?/?models/model\.py"
    ):
        load_case(target)
