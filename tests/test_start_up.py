"""What each command imports: nothing heavy that it does not need."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.cli import cli
from accucompare.cli.help import COMMANDS
from tests.compare.builder import item, write
from tests.findings.logs import training
from tests.findings.logs import write as write_log

HEAVY = (
    *("torch", "numpy", "pandas", "openpyxl", "rich", "jinja2", "asyncio", "fsspec", "pyarrow"),
    *("matplotlib", "dask", "distributed"),
)
PRINTS = ["numpy", "rich"]


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two bundles, their comparison, and a watch's log."""
    folder = tmp_path_factory.mktemp("here")
    for name in ("golden", "npu"):
        write(folder / name, [item("fc", np.arange(4.0)), item("", np.arange(4.0), parent=None)])
    ac.diff(folder / "golden", folder / "npu").to_json(folder / "x.json")
    write_log(folder / "watch", *training(ranks=1))
    return folder


def imported(here: Path, code: str, *arguments: str) -> list[str]:
    """What of the heavy packages some code has imported by its end."""
    tell = "import atexit, sys; atexit.register(lambda: print(*sys.modules, file=sys.stderr))\n"
    done = subprocess.run(
        [sys.executable, "-c", tell + code, *arguments],
        cwd=here,
        env={**os.environ, "PYTHONPATH": str(Path(ac.__file__).parent.parent)},
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr
    return [name for name in HEAVY if name in done.stderr.split()]


@pytest.mark.parametrize(
    ("command", "needs"),
    [
        ("--version", []),
        ("completion zsh", []),
        ("verify golden", PRINTS),
        ("show golden fc", PRINTS),
        ("export x.json --to perfetto", ["numpy"]),
        ("export x.json --to model-explorer", ["numpy"]),
        ("overflow watch --report none", PRINTS),
        ("health watch", PRINTS),
        ("diff golden npu --report none --json out.json", PRINTS),
        ("diff golden npu --report out.xlsx", ["numpy", "openpyxl", "rich"]),
        ("health watch --report x.html", [*PRINTS, "jinja2"]),
        ("diff golden npu --report out.html", [*PRINTS, "jinja2"]),
    ],
)
def test_a_command_imports_what_it_needs(here: Path, command: str, needs: list[str]) -> None:
    assert imported(here, "from accucompare.cli import main; main()", *command.split()) == needs


def test_no_help_imports_anything_heavy(here: Path) -> None:
    code = """
from contextlib import suppress
from accucompare.cli import cli, main
for arguments in ([], *([name] for name in cli.commands)):
    with suppress(SystemExit):
        main([*arguments, "--help"])
"""
    assert imported(here, code) == []


def test_importing_the_package_imports_nothing_heavy(here: Path) -> None:
    assert imported(here, "import accucompare; dir(accucompare)") == []


def test_the_list_of_commands_says_what_each_says_itself() -> None:
    listed = {name: said for group in COMMANDS.values() for name, (_, said) in group.items()}
    assert listed == {
        name: command.get_short_help_str(1000) for name, command in cli.commands.items()
    }


def test_sets_of_names_have_one_order_in_all_captures(tmp_path: Path) -> None:
    """Models call layers in the order of a set of strings, which Python draws for each process."""
    (tmp_path / "case.py").touch()
    (tmp_path / "torch.py").write_text(
        "import os, sys\nprint(os.environ['PYTHONHASHSEED'], hash('layer'))\nsys.exit(3)\n"
    )
    path = os.pathsep.join(map(str, (tmp_path, Path(ac.__file__).parent.parent)))
    variables = {**os.environ, "PYTHONPATH": path}
    variables.pop("PYTHONHASHSEED", None)
    done = subprocess.run(
        [sys.executable, "-m", "accucompare", "capture", "case.py", "--out", "golden"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
    )
    fixed = subprocess.run(
        [sys.executable, "-c", "print('0', hash('layer'))"],
        env={**variables, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )
    assert fixed.stdout in done.stderr
