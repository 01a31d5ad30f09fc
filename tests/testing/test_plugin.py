"""The pytest plugin, in other people's projects: what a run is told, writes and fails at."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import accucompare.recorder.session.model_capture  # noqa: F401 - the runs in this process forget what they import, and hooks may be put on once only
from accucompare.testing.regression import LayersRegression, bundle_name

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parents[2]
PLUGIN = ("-p", "accucompare.testing.plugin", "-p", "no:cacheprovider")
TESTS = """
    import os
    import pytest
    import torch
    from accucompare import Case

    X = torch.linspace(-1, 1, 24).reshape(3, 8)

    def model():
        torch.manual_seed(3)
        net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
        with torch.no_grad():
            net[2].weight *= float(os.environ.get("FACTOR", "1"))
        return net

    def test_net(layers_regression):
        layers_regression.check(model(), X)
"""
TWO_CHECKS = """
    def test_two(layers_regression):
        layers_regression.check(model(), X, name="first")
        layers_regression.check(Case(model(), X), name="second", mode="tensors")

    @pytest.mark.parametrize("width", ["a/b", "a:b"])
    def test_widths(layers_regression, width):
        layers_regression.check(model(), X)

    class TestNet:
        def test_net(self, layers_regression):
            layers_regression.check(model(), X)
"""


NET = """
import torch

net = torch.nn.Linear(4, 4)  # of other weights than those that were kept
"""
#: What the README shows.
THREE_LINES = """
import torch
from net import net


def test_net(layers_regression):
    layers_regression.check(net, torch.ones(2, 4))
"""


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    """``run("--accucompare-update", factor=1.1)`` runs the project's tests in this process."""
    pytester.makepyfile(test_net=TESTS)

    def run(*arguments: str, factor: float = 1.0) -> pytest.RunResult:
        monkeypatch.setenv("FACTOR", str(factor))
        # two plugins of one name may not be registered: where the package is installed with its
        # entry point, that is the one
        return pytester.runpytest_inprocess(*arguments, *([] if installed() else PLUGIN))

    return run


def installed() -> bool:
    from importlib.metadata import entry_points

    return any(
        point.value == "accucompare.testing.plugin" for point in entry_points(group="pytest11")
    )


def test_a_bundle_is_written_only_when_asked_and_then_a_planted_regression_fails(
    run, pytester: pytest.Pytester
) -> None:  # type: ignore[no-untyped-def]
    kept = pytester.path / "test_net" / "test_net"
    first = run()
    first.assert_outcomes(failed=1)
    first.stdout.fnmatch_lines(
        [
            "*There is nothing to compare with yet: *test_net/test_net is missing*pytest"
            " --accucompare-update*"
        ]
    )
    assert not kept.exists()

    written = run("--accucompare-update")
    written.assert_outcomes(passed=1)
    written.stdout.fnmatch_lines([f"accucompare: wrote {kept}"])
    assert sum(file.stat().st_size for file in kept.rglob("*") if file.is_file()) < 20_000

    run().assert_outcomes(passed=1)
    failed = run(factor=1.1)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        [
            "E  *AssertionError: Layers are not close! First: 2; 2 of 8 rows fail",
            "E  *Report: *test_net.xlsx",
        ]
    )
    (report,) = re.findall(r"^E  +Report: (.*xlsx)", failed.stdout.str(), re.MULTILINE)
    assert Path(report).is_file()

    run("--accucompare-update", factor=1.1).assert_outcomes(passed=1)
    run(factor=1.1).assert_outcomes(passed=1)
    run().assert_outcomes(failed=1)


def test_the_traceback_ends_at_the_users_line(run) -> None:  # type: ignore[no-untyped-def]
    run("--accucompare-update")
    text = run(factor=1.1).stdout.str()
    assert "layers_regression.check(model(), X)" in text
    assert "closeness.py" not in text
    assert "regression.py" not in text


@pytest.mark.parametrize("how", ["option", "ini"])
def test_reports_go_where_they_are_asked_to(how: str, run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    if how == "ini":
        pytester.makeini("[pytest]\naccucompare_reports = out")
    options = ["--accucompare-reports", "out"] if how == "option" else []
    run("--accucompare-update")
    run(*options, factor=1.1).assert_outcomes(failed=1)
    assert (pytester.path / "out" / "test_net" / "test_net.xlsx").is_file()


def test_every_test_and_every_check_has_a_bundle_of_its_own_and_xdist_says_which_were_written(
    run, pytester: pytest.Pytester
) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile(test_net=TESTS + TWO_CHECKS)
    written = run("--accucompare-update", "-n", "1")
    written.assert_outcomes(passed=5)
    names = {path.name for path in (pytester.path / "test_net").iterdir()}
    assert len(names) == 6
    assert {"test_net", "TestNet.test_net", "test_two.first", "test_two.second"} < names
    assert written.stdout.str().count("accucompare: wrote ") == 6
    run().assert_outcomes(passed=5)
    run(factor=1.1).assert_outcomes(failed=5)


def test_two_checks_of_one_name_are_refused(run, pytester: pytest.Pytester) -> None:  # type: ignore[no-untyped-def]
    pytester.makepyfile(test_net=TESTS + "        layers_regression.check(model(), X)\n")
    done = run("--accucompare-update")
    done.assert_outcomes(failed=1)
    done.stdout.fnmatch_lines(
        ["*UsageError: layers_regression: test_net checks twice; give the second check a name: *"]
    )


@pytest.mark.parametrize(
    ("test", "name", "expected"),
    [
        ("test_net", "", "test_net"),
        ("TestNet::test_net", "", "TestNet.test_net"),
        ("test_net", "late", "test_net.late"),
    ],
)
def test_a_bundle_is_called_as_its_test(test: str, name: str, expected: str) -> None:
    assert bundle_name(test, name) == expected


def test_names_that_are_no_files_are_made_safe_and_stay_apart() -> None:
    hostile = [
        "test[../../etc]",
        "test[a/b]",
        "test[a:b]",
        "test[层]",
        "test[\x1b\u202e]",
        "..",
        "x" * 300,
        "x" * 301,
        "test[a\nb]",
    ]
    made = [bundle_name(each) for each in hostile]
    assert len(set(made)) == len(hostile)
    assert all(re.fullmatch(r"[\w.-]{1,90}", each, re.ASCII) and each.strip(".") for each in made)


def test_a_strangers_project_needs_three_lines(tmp_path: Path) -> None:
    """In a process of its own, with warnings as errors, and the plugin found as pip installs it: by
    its entry point.
    """
    info = tmp_path / "site" / "stranger_accucompare-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: stranger-accucompare\nVersion: 1\n"
    )
    if not installed():
        (info / "entry_points.txt").write_text(
            "[pytest11]\naccucompare = accucompare.testing.plugin\n"
        )
    project = tmp_path / "project"
    project.mkdir()
    (project / "pytest.ini").write_text("[pytest]\nfilterwarnings = error\n")
    (project / "net.py").write_text(NET)
    (project / "test_net.py").write_text(THREE_LINES)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path / "site"), str(ROOT)])}

    LayersRegression(
        file=project / "test_net.py",
        test="test_net",
        update=True,
        scratch=tmp_path,
        reports=None,
        note_written=lambda _: None,
    ).check(torch.nn.Linear(4, 4), torch.ones(2, 4))
    failed = subprocess.run(
        [sys.executable, "-m", "pytest", "-q"],
        cwd=project,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 1, failed.stdout + failed.stderr
    assert "Layers are not close! First: (root)" in failed.stdout


def test_the_plugin_imports_nothing_that_a_run_of_pytest_does_not_have() -> None:
    program = (
        "import sys, pytest; before = set(sys.modules); import accucompare.testing.plugin;"
        " print(*sorted(name for name in set(sys.modules) - before if not"
        " name.startswith('accucompare'))); print(*sorted(name for name in sys.modules if"
        " name.startswith('accucompare')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    others, own = done.stdout.splitlines()
    assert not {"torch", "numpy", "pandas", "rich", "click"} & set(others.split())
    assert own.split() == [
        "accucompare",
        "accucompare.testing",
        "accucompare.testing.plugin",
        "accucompare.version",
    ]
