"""The command line, in real processes: what a user types, reads, and gets back as exit code."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import openpyxl
import pytest
from click.testing import CliRunner

from accucompare.cli import cli as commands
from tests.conftest import Run
from tests.forkserver import CLI, with_torch

CASE = """
import os, signal
import torch
from torch import nn
from accucompare import Case

class Net(nn.Module):
    def __init__(self, factor=1.0):
        super().__init__()
        self.factor = factor
        self.up = nn.Linear(6, 12)
        self.drop = nn.Dropout(0.5)
        self.act = nn.ReLU(inplace=True)
        self.down = nn.Linear(12, 3)

    def forward(self, x):
        y = self.up(x) * self.factor
        return self.down(self.act(self.drop(y)))

def case():
    return Case(Net().train(), torch.randn(4, 6))

def scaled():
    return Case(Net(1.01).train(), torch.randn(4, 6))

def other():
    return Case(nn.Sequential(nn.Conv1d(6, 2, 1)), torch.randn(1, 6, 5))

def odd_names():
    model = nn.Sequential()
    for name in ("=1+1", "a b", "层1", "a/b", "-x", "@SUM(A1)", "[red]", "n" * 300):
        model.add_module(name, nn.Linear(3, 3))
    return Case(model, torch.randn(2, 3))

def raising():
    case = globals()["case"]()
    case.model.down = nn.Linear(5, 3)
    return case

class Stopping(nn.Module):
    def __init__(self, how):
        super().__init__()
        self.how, self.steps, self.inner = how, 0, nn.Linear(3, 3)

    def forward(self, x):
        self.steps += 1
        if self.steps == 3:
            self.how()
        return self.inner(x)

def kill(number):
    return lambda: os.kill(os.getpid(), number)

def interrupted():
    return Case(Stopping(kill(signal.SIGINT)), [torch.randn(2, 3)] * 5)

def terminated():
    return Case(Stopping(kill(signal.SIGTERM)), [torch.randn(2, 3)] * 5)

def wait_for_two_steps(out):
    while (
        '"step": 1' not in open(f"{out}/manifest.json").read()
    ):  # steps are written in the background
        os.sched_yield()

def killed():
    def kill():
        wait_for_two_steps("stopped")
        os.kill(os.getpid(), signal.SIGKILL)

    return Case(Stopping(kill), [torch.randn(2, 3)] * 5)

def disk_full():
    def fill():
        import resource

        wait_for_two_steps("full")
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 14, 1 << 14))

    return Case(Stopping(fill), [torch.randn(2000, 3)] * 5)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a case and four bundles: golden, its twin, one in bfloat16, and one with a
    fault.
    """
    folder = tmp_path_factory.mktemp("cli")
    (folder / "case.py").write_text(CASE)
    for out, *arguments in (
        ("golden", "--save-state"),
        ("twin",),
        ("bf16", "--dtype", "bfloat16"),
        ("faulty", "case.py:scaled"),
        ("other", "case.py:other"),
        ("odd", "case.py:odd_names"),
    ):
        done = with_torch()(
            CLI, "capture", *arguments, "--out", out, cwd=folder, variables=os.environ
        )
        assert done.returncode == 0, done.stderr
    return folder


def clean(done: subprocess.CompletedProcess[str]) -> str:
    """Standard error of a process that ended with a message and not with a traceback."""
    assert "Traceback" not in done.stderr
    return done.stderr


@pytest.mark.parametrize(("candidate", "code"), [("twin", 0), ("faulty", 1)])
def test_verdict_stands_though_the_reader_of_its_output_has_gone(
    folder: Path, tmp_path: Path, candidate: str, code: int
) -> None:
    done = into_a_pipe_that_nobody_reads(tmp_path, "diff", folder / "golden", folder / candidate)
    assert (done.returncode, done.stderr) == (code, "")
    assert (tmp_path / "reports" / f"golden-vs-{candidate}.xlsx").is_file()


@pytest.mark.parametrize("command", ["--help", "diff --help", "completion bash"])
def test_without_an_answer_a_reader_that_has_gone_is_neither_a_pass_nor_a_difference(
    tmp_path: Path, command: str
) -> None:
    done = into_a_pipe_that_nobody_reads(tmp_path, *command.split())
    assert (done.returncode, done.stderr) == (141, "")


def into_a_pipe_that_nobody_reads(
    cwd: Path, *arguments: str | Path
) -> subprocess.CompletedProcess[str]:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "accucompare", *arguments]
    done = subprocess.run(command, cwd=cwd, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    return done


@pytest.mark.parametrize(
    "command",
    [["show", "golden"], ["diff", "golden", "twin"], ["--help"]],
    ids=lambda command: command[0],
)
def test_output_that_cannot_be_written_is_one_clear_message(
    folder: Path, command: list[str]
) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "accucompare", *command],
            cwd=folder,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (
        2,
        (
            "accucompare: standard output: cannot be written (No space left on device); free some"
            " space, or choose another disk\n"
        ),
    )


@pytest.mark.parametrize("command", ["capture", "diff", "show"])
def test_every_command_has_help_with_examples(cli: Run, command: str) -> None:
    done = cli(command, "--help")
    assert done.returncode == 0
    assert (
        f"accucompare {command} golden" in done.stdout
        or f"accucompare {command} model.py" in done.stdout
    )


def test_equal_captures_pass_with_exit_code_0(folder: Path, cli: Run) -> None:
    done = cli("diff", folder / "golden", folder / "twin")
    assert done.returncode == 0
    assert done.stdout.startswith("IDENTICAL")
    assert "10 identical" in done.stdout


def test_bfloat16_candidate_is_measured_and_passes_by_the_default_table(
    folder: Path, cli: Run, tmp_path: Path
) -> None:
    done = cli("diff", folder / "golden", folder / "bf16", "--json", "out.json")
    assert done.returncode == 0, done.stdout
    rows = [
        row for row in json.loads((tmp_path / "out.json").read_text())["rows"] if row["metrics"]
    ]
    assert all(0 < row["metrics"]["rel_l2"] < 0.05 for row in rows)
    assert rows[-1]["tolerance"] == "rel_l2 0.05"
    assert rows[-1]["rule"] == "default for bfloat16"


def test_differences_give_exit_code_1_and_name_the_first_divergence(folder: Path, cli: Run) -> None:
    done = cli("diff", folder / "golden", folder / "faulty")
    assert done.returncode == 1
    assert "FAIL" in done.stdout
    # up's output agrees; the factor is the root's own code
    assert "different: (root) (glue, before drop), x limit" in done.stdout
    assert "glue" in done.stdout


def test_report_is_written_where_the_readme_says(folder: Path, cli: Run, tmp_path: Path) -> None:
    done = cli("diff", folder / "golden", folder / "faulty")
    assert "reports/golden-vs-faulty.xlsx" in done.stdout
    workbook = openpyxl.load_workbook(tmp_path / "reports" / "golden-vs-faulty.xlsx")
    assert {"Summary", "Layers", "Divergence", "Unmatched", "Environment"} <= set(
        workbook.sheetnames
    )


def test_quiet_diff_prints_one_line(folder: Path, cli: Run) -> None:
    done = cli("diff", folder / "golden", folder / "faulty", "--quiet")
    assert done.stdout.count("\n") == 1


def test_output_fits_100_columns(folder: Path, cli: Run) -> None:
    done = cli("diff", folder / "odd", folder / "odd", "--atol", "0")
    lines = done.stdout.splitlines()
    assert max(len(line) for line in lines if not line.startswith(("IDENTICAL", "report:"))) <= 100


def test_two_different_models_end_in_trouble_with_a_table_of_unmatched_names(
    folder: Path, cli: Run
) -> None:
    done = cli("diff", folder / "golden", folder / "other", "--skip", "")
    assert done.returncode == 2
    assert "nothing could be compared" in done.stdout
    assert "Only on one side" in done.stdout


def test_map_renames_layers(folder: Path, cli: Run) -> None:
    done = cli("diff", folder / "golden", folder / "twin", "--map", "up=up", "--only", "up")
    assert done.returncode == 0
    assert "2 identical; 16 records left out" in done.stdout


def test_odd_names_are_kept_and_never_become_formulas(
    folder: Path, cli: Run, tmp_path: Path
) -> None:
    done = cli("diff", folder / "odd", folder / "odd", "--report", "odd.xlsx")
    assert done.returncode == 0
    cells = [
        cell for row in openpyxl.load_workbook(tmp_path / "odd.xlsx")["Layers"] for cell in row
    ]
    assert {"=1+1", "a b", "层1", "a/b", "-x", "@SUM(A1)", "[red]", "n" * 300} <= {
        cell.value for cell in cells
    }
    assert all(cell.data_type != "f" for cell in cells)


def test_tolerances_that_make_no_sense_are_refused(folder: Path, cli: Run) -> None:
    done = cli("diff", folder / "golden", folder / "twin", "--cosine", "1e-3")
    assert done.returncode == 2
    assert "it is not 1 - cosine" in clean(done)


def test_unknown_option_gives_exit_code_2(cli: Run) -> None:
    done = cli("diff", "a", "b", "--nope")
    assert done.returncode == 2
    assert "No such option" in clean(done)


def test_show_lists_every_record(folder: Path, cli: Run) -> None:
    done = cli("show", folder / "golden")
    assert done.returncode == 0
    assert [line.split()[1] for line in done.stdout.splitlines()[1:]] == [
        "(root)", "up", "up", "drop", "drop", "act", "act", "down", "down", "(root)",
    ]  # fmt: skip


def test_show_prints_and_saves_a_slice(folder: Path, cli: Run, tmp_path: Path) -> None:
    done = cli("show", folder / "golden", "up", "--slice", "1, :4", "--save", "up.npy")
    assert done.returncode == 0
    with np.load(folder / "golden" / "rank0" / "step0.npz") as stored:
        whole = next(stored[name] for name in stored.files if "up.output" in name)
    np.testing.assert_array_equal(np.load(tmp_path / "up.npy"), whole[1, :4])


def test_show_prints_the_statistics_of_a_layer_without_values(folder: Path, cli: Run) -> None:
    done = cli("capture", "--mode", "stats", "--out", "stats", cwd=folder)
    assert done.returncode == 0, done.stderr
    whole, statistics = (cli("show", folder / bundle, "up") for bundle in ("golden", "stats"))
    assert statistics.returncode == 0, statistics.stderr
    assert statistics.stdout.splitlines() == [
        *whole.stdout.splitlines()[:2],
        "its values were not recorded (--mode stats)",
    ]
    assert "has no data" in clean(cli("show", folder / "stats", "up", "--slice", "0"))


def test_show_breaks_no_number_over_two_lines(folder: Path, cli: Run) -> None:
    done = cli("show", folder / "odd", COLUMNS="60")
    numbers = [
        line.split()[-5:] for line in done.stdout.splitlines()[1:] if line.rstrip().endswith("0/0")
    ]
    assert len(numbers) == 18
    for *cells, _ in numbers:
        assert [float(cell) for cell in cells]


def test_show_lists_one_step_if_asked(folder: Path, cli: Run) -> None:
    assert "up" not in cli("show", folder / "golden", "--step", "1").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no such record"),
        (["up", "--slice", "9"], "cannot be taken of shape [4, 12]"),
        (["up", "--slice", "a"], "write it as in NumPy, such as '0, :4'; the shape is [4, 12]"),
        (["up", "--save", "/proc/x.npy"], "cannot be written"),
        (["--slice", "0"], "need the NAME of a layer"),
    ],
)
def test_show_refuses_what_is_not_there(
    folder: Path, cli: Run, arguments: list[str], message: str
) -> None:
    done = cli("show", folder / "golden", *arguments)
    assert done.returncode == 2
    assert message in clean(done)


def test_candidate_like_golden_needs_only_the_model(folder: Path, cli: Run, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        CASE + "\ndef bare():\n    torch.manual_seed(99)  # other weights than golden's\n    return"
        " Case(Net().eval())\n"
    )
    done = cli("capture", "model.py:bare", "--like", folder / "golden", "--out", "like")
    assert done.returncode == 0, done.stderr
    done = cli("diff", folder / "golden", "like")
    assert done.returncode == 0, done.stdout
    assert "10 identical" in done.stdout


def test_existing_bundle_is_refused_without_overwrite(folder: Path, cli: Run) -> None:
    before = (folder / "golden" / "manifest.json").read_bytes()
    done = cli("capture", folder / "case.py", "--out", folder / "golden")
    assert done.returncode == 2
    assert "overwrite it (--overwrite" in clean(done)
    assert (folder / "golden" / "manifest.json").read_bytes() == before


def test_overwrite_replaces_a_bundle_but_nothing_else(
    folder: Path, cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    done = cli("capture", folder / "case.py", "--out", "precious", "--overwrite")
    assert done.returncode == 2
    assert "holds no bundle, so it is not touched" in clean(done)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_model_that_raises_is_named_and_its_records_kept(folder: Path, cli: Run) -> None:
    done = cli("capture", folder / "case.py:raising", "--out", "raised")
    assert done.returncode == 2
    assert "the model raised in down, step 0: RuntimeError" in clean(done)
    shown = cli("show", "raised")
    assert "raised is incomplete" in shown.stdout
    assert "act" in shown.stdout
    compared = cli("diff", folder / "golden", "raised")
    assert compared.returncode == 2
    assert "candidate is incomplete: stopped in down in step 0" in compared.stdout


def test_failed_capture_destroys_no_bundle_that_it_was_to_replace(folder: Path, cli: Run) -> None:
    assert cli("capture", folder / "case.py", "--out", "kept").returncode == 0
    done = cli("capture", folder / "case.py:raising", "--out", "kept", "--overwrite")
    assert done.returncode == 2
    assert "the bundle that it was to replace is in kept/.previous" in clean(done)
    assert cli("diff", "kept/.previous", folder / "golden", "-q").returncode == 0
    assert cli("capture", folder / "case.py", "--out", "kept", "--overwrite").returncode == 0
    assert cli("show", "kept/.previous").returncode == 2


def test_two_captures_that_failed_alike_do_not_pass(folder: Path, cli: Run) -> None:
    assert cli("capture", folder / "case.py:raising", "--out", "raised").returncode == 2
    done = cli("diff", "raised", "raised", "-q")
    assert done.returncode == 2
    assert "TROUBLE" in done.stdout
    assert "did not run to its end" in done.stdout


def test_debug_shows_the_traceback(folder: Path, cli: Run) -> None:
    done = cli("capture", folder / "case.py:raising", "--out", "raised", "--debug")
    assert done.returncode == 2
    assert "Traceback" in done.stderr


@pytest.mark.parametrize(
    ("name", "code"), [("interrupted", 130), ("terminated", 130), ("killed", -9)]
)
def test_stopped_capture_leaves_its_finished_steps_readable(
    folder: Path, forked: Run, tmp_path: Path, name: str, code: int
) -> None:
    done = forked("capture", folder / f"case.py:{name}", "--out", "stopped")
    assert done.returncode == code
    clean(done)
    manifest = json.loads((tmp_path / "stopped" / "manifest.json").read_text())
    assert not manifest["complete"]
    shown = forked("show", "stopped", "inner", "--step", "1")
    assert shown.returncode == 0, shown.stderr
    if code == 130:
        assert "interrupted" in done.stderr
        assert not list((tmp_path / "stopped").rglob("*.part"))


def test_full_disk_is_one_clear_message_and_finished_steps_stay(
    folder: Path, forked: Run, tmp_path: Path
) -> None:
    done = forked("capture", folder / "case.py:disk_full", "--out", "full")
    assert done.returncode == 2
    assert "cannot be written (File too large)" in clean(done)
    assert "2 finished step(s) in full stay readable" in done.stderr
    assert not list((tmp_path / "full").rglob("*.part"))
    assert forked("show", "full", "inner", "--step", "1").returncode == 0


def test_unwritable_report_is_one_clear_message(folder: Path, cli: Run, tmp_path: Path) -> None:
    (tmp_path / "taken.xlsx").mkdir()
    done = cli("diff", folder / "golden", folder / "twin", "--report", "taken.xlsx")
    assert done.returncode == 2
    assert "taken.xlsx" in clean(done)


def test_json_is_written_though_the_report_cannot_be(
    folder: Path, cli: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link.xlsx").symlink_to("file/x.xlsx")
    done = cli(
        "diff", folder / "golden", folder / "twin", "--report", "link.xlsx", "--json", "out.json"
    )
    assert done.returncode == 2
    assert "link.xlsx" in clean(done)
    assert json.loads((tmp_path / "out.json").read_text())["passed"]


@pytest.mark.parametrize(
    ("command", "explanation"),
    [
        ("diff", "A culprit is the place where an error is made"),
        ("diff", "glue (a layer's own code between its children)"),
        (
            "diff",
            (
                "x limit is the error as a multiple of its limit, excess as a multiple of the"
                " baseline's error"
            ),
        ),
        ("diff", "A fed candidate was captured with --feed: each layer ran on golden's inputs"),
        ("locate", "glue (a layer's own code between its children)"),
        ("locate", "Its excess is its error as a multiple of rounding's"),
        ("locate", "Each layer runs on golden's inputs (it is fed)"),
    ],
)
def test_help_explains_the_words_that_it_and_the_answers_use(
    command: str, explanation: str
) -> None:
    done = CliRunner().invoke(commands, [command, "--help"])
    assert explanation in " ".join(done.output.split())


def test_force_without_a_golden_is_refused(cli: Run) -> None:
    done = cli("capture", "case.py", "--force")
    assert done.returncode == 2
    assert "--force: feeds even from a golden with other weights, and none is named" in done.stderr
