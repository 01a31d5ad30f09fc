"""The house: an import points down only, and takes no private name of another file.

The lists below are the architecture. A room is a package or a file of ``accucompare/``; what is
above may import what is below."""

from __future__ import annotations

import ast
import pkgutil
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from functools import cache
from pathlib import Path
from typing import Any

import accucompare as ac

PACKAGE = Path(__file__).parent.parent / "accucompare"

FLOORS = [
    ["__main__"],
    ["cli"],
    ["__init__", "scripts"],
    ["fitting", "locating", "rerunning", "testing", "tracking", "trending"],
    ["api", "watcher"],
    ["report", "recorder", "reproduce"],
    ["compare", "dumps", "findings", "live", "doctor"],
    ["asked", "bundle", "case", "devices"],
    ["files", "markup", "places"],
    ["numbers", "selection", "errors", "version", "text", "storage_errors", "launched"],
]
FLOOR = {room: len(FLOORS) - number for number, rooms in enumerate(FLOORS) for room in rooms}

#: Rooms whose files are loaded one by one: commands start without what they do not need, and a
# script's process likewise.
FLAT = ("cli", "scripts", "testing")

#: What imports from which sub-room: a sub-room imports from those before it in its room, never
# from those after it.
SUB_ROOMS = {
    "bundle": ["format", "writing", "reading"],
    "compare": [
        "measuring",
        "pairing",
        "layouts",
        "fusions",
        "tokens",
        "invariants",
        "limits",
        "rows",
        "judging",
        "reruns",
        "fits",
        "trends",
        "shape",
        "origins",
        "runs",
        "trust",
        "cluster",
    ],
    "report": [
        "words",
        "watch_words",
        "table",
        "contents",
        "terminal",
        "watched",
        "excel",
        "files",
        "page",
        "watch_files",
    ],
    "recorder": ["feeding", "state", "recording", "session"],
    "live": ["values", "modules", "around", "operators", "layouts", "autograd", "numerics"],
    "watcher": ["looking", "again", "vitals", "custom", "watch"],
    "findings": ["log", "analysis", "origins", "checklist"],
}

#: Imports inside functions. Commands import what they need when they run; beside theirs only these
# are, for the reason given.
LATE = {
    "accucompare.__main__": {"accucompare.cli"},  # Ctrl-C meanwhile is no traceback
    # pandas, openpyxl and matplotlib, which a diff without report needs none of; and what runs it
    # on a cluster
    "accucompare.api": {"accucompare.report", "accucompare.compare.cluster"},
    "accucompare.trending.trends": {"accucompare.report"},
    "accucompare.bundle.writing.writer": {"accucompare.bundle.writing.uploads"},  # only to a URL
    # only a failing diff describes errors
    "accucompare.compare.origins.describing": {"accucompare.compare.shape"},
    # a page needs no openpyxl
    "accucompare.report.watch_files.health_files": {"accucompare.report.excel"},
    "accucompare.report.watch_files.watch_workbook": {"accucompare.report.excel"},
    # what is broken here is what it tells
    "accucompare.doctor": {"accucompare.bundle", "accucompare.numbers"},
    "accucompare.fitting.fit_result": {"accucompare.report.excel"},  # a page needs no openpyxl
    # torch, after the device was opened
    "accucompare.locating.case_locate": {"accucompare.locating.compiled_levels"},
    "accucompare.locating.fed_comparison": {"accucompare.recorder.session"},
    "accucompare.locating.golden_code": {"accucompare.recorder.session"},
    # what a process of a script may never need, or may not have
    "accucompare.scripts.boot.sitecustomize": {"accucompare.scripts.entry"},
    "accucompare.scripts.entry": {
        "accucompare.scripts.handshake",
        "accucompare.scripts.plan",
        "accucompare.scripts.script",
    },
    "accucompare.scripts.observing": {"accucompare.recorder", "accucompare.watcher"},
    "accucompare.scripts.script": {"accucompare.recorder.session", "accucompare.scripts.observing"},
    # torch, which bundles are compared without
    "accucompare.testing.closeness": {"accucompare.recorder.session"},
    # every run of pytest loads the plugin
    "accucompare.testing.plugin": {"accucompare.testing.regression"},
    # only a finding is printed
    "accucompare.watcher.watch.reporting": {"accucompare.report.watched"},
}

FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = {
    file: ".".join(["accucompare", *file.relative_to(PACKAGE).with_suffix("").parts]).removesuffix(
        ".__init__"
    )
    for file in FILES
}


@cache
def imports(file: Path) -> list[tuple[str, str, bool]]:
    """What a file imports of this package: module, name, and whether it does so inside a
    function."""
    found = []
    tree = ast.parse(file.read_text())
    late = {
        node
        for function in ast.walk(tree)
        if isinstance(function, ast.FunctionDef)
        for node in ast.walk(function)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "accucompare":
            found += [(node.module or "", alias.name, node in late) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [
                (alias.name, "", node in late)
                for alias in node.names
                if alias.name.split(".")[0] == "accucompare"
            ]
    return found


def broken_by(rule: Callable[[Path], Collection[str]], files: list[Path] = FILES) -> dict[str, Any]:
    """What breaks a rule, by file."""
    return {NAMES[file]: found for file in files if (found := rule(file))}


def room_of(module: str, name: str = "") -> str:
    parts = [*module.split("."), name]
    return parts[1] if len(parts) > 2 or parts[1] in FLOOR else "__init__"


def test_an_import_points_down_or_stays_in_its_room() -> None:
    def up(file: Path) -> set[str]:
        own = room_of(NAMES[file]) if NAMES[file] != "accucompare" else "__init__"
        return {
            f"{module} ({name})"
            for module, name, _ in imports(file)
            if (to := room_of(module, name)) != own and FLOOR[to] >= FLOOR[own]
        }

    assert broken_by(up) == {}


def door_of(module: str) -> str:
    """What is imported of a module: its sub-room or its room, by the face; or itself, if it stands
    alone.
    """
    room, *inner = [*module.split("."), "", ""][1:-1]
    if room in SUB_ROOMS:
        return ".".join(["accucompare", room, *filter(None, inner[:1])])
    return module if not any(inner) or room in FLAT else f"accucompare.{room}"


def test_a_room_imports_the_faces_of_others() -> None:
    def past_the_face(file: Path) -> set[str]:
        return {
            module
            for module, _, _ in imports(file)
            if module in NAMES.values() and door_of(module) not in (door_of(NAMES[file]), module)
        }

    assert broken_by(past_the_face) == {}


FACES = [file for file in FILES if file.name == "__init__.py"]


def test_a_face_says_what_it_is_for_and_what_it_shows() -> None:
    def lacks(file: Path) -> set[str]:
        tree = ast.parse(file.read_text())
        shows = {ast.unparse(node.targets[0]) for node in tree.body if isinstance(node, ast.Assign)}
        needs_none = (
            NAMES[file] == "accucompare" or not imports(file) or NAMES[file].split(".")[1] in FLAT
        )
        return {
            *(() if ast.get_docstring(tree) else ("docstring",)),
            *(() if needs_none or "__all__" in shows else ("__all__",)),
        }

    assert broken_by(lacks, FACES) == {}


def test_a_sub_room_imports_from_those_before_it() -> None:
    def ahead(file: Path) -> set[str]:
        _, room, *inner = [*NAMES[file].split("."), ""]
        order = SUB_ROOMS.get(room, [])
        if not inner or inner[0] not in order:
            return set()
        before = order[: order.index(inner[0]) + 1]
        within = {
            module.split(".")[2]
            for module, _, _ in imports(file)
            if module.startswith(f"accucompare.{room}.")
        }
        return (within & {*order}) - {*before}

    assert broken_by(ahead) == {}


def test_every_sub_room_has_its_place() -> None:
    packages = {
        file.parent
        for file in FILES
        if file.name == "__init__.py" and len(file.relative_to(PACKAGE).parts) == 3
    }
    there = {f"{folder.parent.name}/{folder.name}" for folder in packages if folder.name != "boot"}
    assert there == {f"{room}/{name}" for room, names in SUB_ROOMS.items() for name in names}


def test_no_module_takes_the_place_of_a_public_name() -> None:
    """An import of ``accucompare.NAME``, as by doctest or ``pkgutil.walk_packages``, makes
    ``ac.NAME`` that module.
    """
    assert not {module.name for module in pkgutil.iter_modules(ac.__path__)} & set(ac.__all__)


def test_there_is_no_import_circle() -> None:
    modules = set(NAMES.values())
    wanted = {
        NAMES[file]: {
            full if (full := f"{module}.{name}") in modules else module
            for module, name, _ in imports(file)
            if name != "_kernel"
        }
        for file in FILES
    }
    while free := {
        module for module, needed in wanted.items() if not needed & (wanted.keys() - {module})
    }:
        wanted = {module: needed for module, needed in wanted.items() if module not in free}
    assert not wanted, "these import each other, or what does"


def test_an_import_inside_a_function_is_for_a_fast_start() -> None:
    def not_allowed(file: Path) -> set[str]:
        allowed = LATE.get(NAMES[file], set())
        return {
            module
            for module, _, inside in imports(file)
            if inside and not any(f"{module}.".startswith(f"{each}.") for each in allowed)
        }

    commands = [file for file in FILES if NAMES[file].split(".")[1:2] == ["cli"]]
    assert broken_by(not_allowed, [file for file in FILES if file not in commands]) == {}


def test_no_file_takes_a_private_name_of_another() -> None:
    def private(file: Path) -> set[str]:
        names = {name for _, name, _ in imports(file)} - {"_kernel"}
        return {name for name in names if name.startswith("_") and not name.startswith("__")}

    assert broken_by(private) == {}


#: Functions of one name in two files: a command, and what it calls; a command has its function's
# name.
VERBS = {
    "capture",
    "capture_script",
    "diff",
    "fit",
    "locate",
    "locate_script",
    "main",
    "run",
    "verify",
    "watch",
}


@cache
def defined(file: Path) -> frozenset[str]:
    """The public names that a file defines: classes, functions, constants."""
    found = set()
    for node in ast.parse(file.read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {
                target.id
                for target in targets
                if isinstance(target, ast.Name) and target.id[0].isupper()
            }
    return frozenset(name for name in found if not name.startswith("_"))


def twice(names: Iterable[str]) -> set[str]:
    return {name for name, times in Counter(names).items() if times > 1}


def test_no_public_name_means_two_things() -> None:
    assert twice(name for file in FILES for name in defined(file)) == VERBS


def test_no_two_files_have_one_name() -> None:
    assert (
        twice(file.name for file in FILES if file.name not in {"__init__.py", "__main__.py"})
        == set()
    )
