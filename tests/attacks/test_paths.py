"""Files to be written that are links, pipes, devices, each other, or a bundle's own; files to be
read that never end.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openpyxl
import pytest

import accucompare as ac
from accucompare.bundle.writing.directory import forget_previous, prepare_directory
from accucompare.errors import ReportError
from tests.attacks.conftest import Command, Done
from tests.compare.builder import item, write
from tests.findings.logs import end, found, start, step
from tests.findings.logs import write as write_log


def whole_json(path: Path) -> None:
    assert json.loads(path.read_text())["rows"]


def whole_excel(path: Path) -> None:
    with path.open("rb") as file:  # whatever its name ends in
        assert openpyxl.load_workbook(file).sheetnames


def whole_array(path: Path) -> None:
    np.testing.assert_array_equal(np.load(path), [2.0])


class Output:
    """An option that writes a file: the command that has it, its exit code, a name to write to, and
    a check of what was written.
    """

    def __init__(
        self, command: list[str], option: str, code: int, name: str, whole: Callable[[Path], None]
    ) -> None:
        self.command, self.option, self.code, self.name, self.whole = (
            command,
            option,
            code,
            name,
            whole,
        )

    def to(self, command: Command, path: Path | str) -> Done:
        return command(*self.command, self.option, path)


OUTPUTS = {
    "json": Output(
        ["diff", "golden", "npu", "--report", "other.xlsx"], "--json", 1, "x.json", whole_json
    ),
    "report": Output(["diff", "golden", "npu"], "--report", 1, "x.xlsx", whole_excel),
    "overflow": Output(["overflow", "watch"], "--report", 1, "x.xlsx", whole_excel),
    "save": Output(["show", "npu", "fc"], "--save", 0, "x.npy", whole_array),
}


@pytest.fixture(params=OUTPUTS.values(), ids=OUTPUTS)
def output(request: pytest.FixtureRequest, tmp_path: Path) -> Output:
    for name, value in (("golden", 1.0), ("npu", 2.0)):
        write(
            tmp_path / name,
            [item("", [1.0], role="input", path="x", parent=None), item("fc", [value])],
        )
    write_log(tmp_path / "watch" / "rank0.jsonl", start(), found(), step(0), end())
    found_output: Output = request.param
    return found_output


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_a_pipe_is_written_through_and_stays(
    command: Command, output: Output, tmp_path: Path
) -> None:
    pipe, copy = tmp_path / output.name, tmp_path / "copy"
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: copy.write_bytes(pipe.read_bytes()), daemon=True)
    reader.start()
    assert output.to(command, pipe).code == output.code
    reader.join()
    output.whole(copy)
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("linked", [False, True], ids=["itself", "a link to it"])
def test_a_device_is_written_through_and_stays(
    command: Command, output: Output, tmp_path: Path, linked: bool
) -> None:
    device, path = tmp_path / "device", tmp_path / output.name
    try:
        os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(1, 3))  # another /dev/null
        device.write_bytes(b"x")
    except PermissionError:
        pytest.skip("only root makes devices, and only outside of containers")
    if linked:
        path.symlink_to(device)
    else:
        device.rename(path)
    assert output.to(command, path).code == output.code
    assert stat.S_ISCHR(path.stat().st_mode)
    assert path.is_symlink() == linked


@pytest.mark.parametrize("descriptor", ["/dev/fd/{}", "/proc/self/fd/{}"])
def test_an_open_file_is_written_where_it_stands(
    command: Command, output: Output, tmp_path: Path, descriptor: str
) -> None:
    with (tmp_path / "open").open("wb") as file:
        file.write(b"before ")
        file.flush()
        assert output.to(command, descriptor.format(file.fileno())).code == output.code
        assert file.tell() > len("before ")
    content = (tmp_path / "open").read_bytes()
    assert content.startswith(b"before ")
    (tmp_path / "rest").write_bytes(content.removeprefix(b"before "))
    output.whole(tmp_path / "rest")


@pytest.mark.parametrize("path", ["-", "/dev/stdout", "/dev/fd/1", "link"])
def test_standard_output_gets_json_alone(command: Command, tmp_path: Path, path: str) -> None:
    for name, value in (("golden", 1.0), ("npu", 2.0)):
        write(tmp_path / name, [item("fc", [value])])
    (tmp_path / "link").symlink_to("/dev/stdout")
    done = command("diff", "golden", "npu", "--json", path)
    assert done.code == 1
    assert json.loads(done.out)["rows"]
    assert done.err.startswith("FAIL  npu against golden")
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize("there", [True, False], ids=["a file", "nothing yet"])
def test_the_target_of_a_link_is_written_and_the_link_stays(
    command: Command, output: Output, tmp_path: Path, there: bool
) -> None:
    target, link = tmp_path / "elsewhere" / f"target-{output.name}", tmp_path / output.name
    target.parent.mkdir()
    if there:
        target.write_text("old")
    link.symlink_to(target)
    assert output.to(command, link).code == output.code
    assert link.is_symlink()
    output.whole(target)
    assert [path.name for path in target.parent.iterdir()] == [target.name]


@pytest.mark.parametrize("kind", ["circle", "directory", "file as directory", "full"])
def test_what_cannot_be_written_is_one_message(
    command: Command, output: Output, tmp_path: Path, kind: str
) -> None:
    path = tmp_path / output.name
    if kind == "circle":
        path.symlink_to(tmp_path / "back")
        (tmp_path / "back").symlink_to(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "file as directory":
        path.write_text("x")
        path = path / output.name
    else:
        path = Path("/dev/full")
    before = contents(tmp_path)
    done = output.to(command, path)
    assert done.code == 2
    assert done.err.count("\n") <= 4  # click's usage, where it is the one to complain
    assert path.name in done.err
    assert {name: before[name] for name in before if name in contents(tmp_path)} == before
    if kind == "circle":
        assert path.is_symlink()


@pytest.mark.parametrize(
    "where", ["{}/x.xlsx", "{}/rank0/x.xlsx", "{}/new/x.xlsx", "link/x.xlsx", "{}/../{}/x.xlsx"]
)
@pytest.mark.parametrize("bundle", ["golden", "npu", "third"])
def test_nothing_is_written_into_a_bundle(
    command: Command, output: Output, tmp_path: Path, where: str, bundle: str
) -> None:
    shutil.copytree(tmp_path / "golden", tmp_path / "third")
    (tmp_path / "link").symlink_to(tmp_path / bundle)
    before = contents(tmp_path)
    done = output.to(command, where.format(bundle, bundle))
    assert (done.code, done.out) == (2, "")
    assert f"lies in the bundle {tmp_path / bundle}; choose another {output.option}" in done.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["manifest.json", "rank0/step0.npz", "rank0/step0.jsonl"])
def test_no_file_of_a_bundle_is_replaced(
    command: Command, output: Output, tmp_path: Path, name: str
) -> None:
    link = tmp_path / output.name
    link.symlink_to(tmp_path / "golden" / name)
    before = contents(tmp_path)
    assert output.to(command, link).code == 2
    assert contents(tmp_path) == before


def one_name(path: Path) -> Path:
    return path


def dotted(path: Path) -> Path:
    return path.parent / "." / ".." / path.parent.name / path.name


def linked(path: Path) -> Path:
    link = path.with_name("link.json")
    link.symlink_to(path)
    return link


def hard_linked(path: Path) -> Path:
    path.write_text("old")
    link = path.with_name("hard.json")
    os.link(path, link)
    return link


@pytest.mark.parametrize("other", [one_name, dotted, linked, hard_linked])
@pytest.mark.parametrize(
    "arguments",
    [["diff", "golden", "npu"], ["locate", "case.py", "--device", "cpu"]],
    ids=["diff", "locate"],
)
def test_two_reports_in_one_file_are_refused_before_any_work(
    command: Command, tmp_path: Path, other: Callable[[Path], Path], arguments: list[str]
) -> None:
    for name in ("golden", "npu"):
        write(tmp_path / name, [item("fc", [1.0])])
    report = tmp_path / "x.xlsx"
    json_path = other(report)
    before = contents(tmp_path)
    done = command(*arguments, "--report", report, "--json", json_path)
    assert (done.code, done.out) == (2, "")
    assert "is the same file as --report" in done.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["golden", "candidate", "baseline", "ops/golden"])
def test_locate_reports_into_none_of_the_bundles_that_it_will_make(
    command: Command, tmp_path: Path, name: str
) -> None:
    done = command(
        "locate",
        "case.py",
        "--device",
        "cpu",
        "--out",
        "out",
        "--json",
        f"out/{name}/manifest.json",
    )
    assert done.code == 2
    assert "lies in the bundle" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/urandom", "sparse", "pipe"])
def test_a_file_of_tolerances_without_end_is_refused(
    command: Command, tmp_path: Path, path: str
) -> None:
    for name in ("golden", "npu"):
        write(tmp_path / name, [item("fc", [1.0])])
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    os.mkfifo(tmp_path / "pipe")
    if path == "pipe":
        threading.Thread(target=endless, args=(tmp_path / "pipe",), daemon=True).start()
    done = command("diff", "golden", "npu", "--tolerances", path)
    assert done.code == 2
    assert done.err == f"accucompare: {path}: is larger than 16 MiB, or without end; refused\n"


def endless(pipe: Path) -> None:
    with pipe.open("wb") as file:
        try:
            while True:
                file.write(bytes(1 << 20))
        except BrokenPipeError:
            return


@pytest.mark.parametrize(
    "manifest",
    ['{"name": "an app", "version": 1}', "[]", '{"format": "accucompare bun', "", "null"],
)
@pytest.mark.parametrize("overwrite", [["--overwrite"], []], ids=["overwrite", "plain"])
def test_a_manifest_of_others_is_no_bundle_to_overwrite(
    command: Command, tmp_path: Path, manifest: str, overwrite: list[str]
) -> None:
    for name in ("manifest.json", "rank0/step0.npz", "repeat1/thesis.tex"):
        (tmp_path / "out" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "out" / name).write_text(manifest)
    before = contents(tmp_path)
    done = command("capture", "case.py", "--out", "out", *overwrite)
    assert done.code == 2
    assert (
        "out: its manifest.json is no bundle's, or damaged, so nothing there is touched" in done.err
    )
    assert contents(tmp_path) == before


OTHERS = [
    "rankings.csv",
    "rank0/notes.txt",
    "rank0/step0.npz.bak",
    "rank_of_matrix/x",
    "repeat1/thesis.tex",
    "repeat2.log",
    "ranks",
    "rank0/x/y",
]


@pytest.mark.parametrize("name", OTHERS)
def test_what_lies_beside_or_in_a_bundle_survives_its_overwriting(
    tmp_path: Path, name: str
) -> None:
    bundle = write(tmp_path / "b", [item("fc", [1.0])], ranks=2)
    write(bundle / "repeat3", [item("fc", [1.0])])
    (bundle / name).parent.mkdir(exist_ok=True)
    (bundle / name).write_text("mine")
    prepare_directory(bundle, overwrite=True)
    assert (bundle / name).read_text() == "mine"
    write(bundle, [item("fc", [2.0])])
    forget_previous(bundle)
    assert contents(bundle).keys() == {
        "manifest.json",
        "rank0/step0.npz",
        "rank0/step0.jsonl",
        name,
    }


def test_what_a_link_in_a_bundle_leads_to_survives_its_overwriting(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", [item("fc", [1.0])])
    other = write(tmp_path / "other", [item("fc", [1.0])])
    (bundle / "rank7").symlink_to(other / "rank0")
    (bundle / "repeat1").symlink_to(other)
    before = contents(other)
    prepare_directory(bundle, overwrite=True)
    forget_previous(bundle)
    assert contents(other) == before


@pytest.mark.parametrize(
    "left", [["rank0/"], ["rank0/", "manifest.json.part"], ["rank0/", "rank1/"]]
)
def test_what_a_capture_left_that_hardly_began_is_not_in_the_way(
    tmp_path: Path, left: list[str]
) -> None:
    (tmp_path / "b").mkdir()
    for name in left:
        (tmp_path / "b" / name).mkdir() if name.endswith("/") else (tmp_path / "b" / name).touch()
    prepare_directory(tmp_path / "b", overwrite=False)


LONG = "x" * 300
#: Each names a file that no file system takes.
TOO_LONG = {
    "report": ["diff", "golden", "npu", "--report", f"{LONG}.xlsx"],
    "json": ["diff", "golden", "npu", "--json", f"{LONG}.json"],
    "tolerances": ["diff", "golden", "npu", "--tolerances", f"{LONG}.toml"],
    "golden": ["diff", LONG, "npu"],
    "show": ["show", LONG],
    "save": ["show", "npu", "fc", "--save", f"{LONG}.npy"],
    "overflow": ["overflow", LONG],
    "import": ["import", LONG, "--out", "imported"],
    "out": ["import", "golden/rank0/step0.npz", "--out", LONG],
}


@pytest.mark.parametrize("arguments", TOO_LONG.values(), ids=TOO_LONG)
def test_a_name_that_is_too_long_is_told(
    command: Command, tmp_path: Path, arguments: list[str]
) -> None:
    for name, value in (("golden", 1.0), ("npu", 2.0)):
        write(
            tmp_path / name,
            [item("", [1.0], role="input", path="x", parent=None), item("fc", [value])],
        )
    done = command(*arguments)
    assert (
        done.code,
        "internal error" in done.err,
        LONG in done.err,
        "ile name too long" in done.err,
    ) == (2, False, True, True)


@pytest.mark.parametrize(
    "arguments",
    [
        ["health", "log", "--json", "log/rank0.jsonl"],
        ["health", "log/rank0.jsonl", "--json", "log/rank0.jsonl"],
        ["health", "log", "--json", "log/../log/rank0-step0.py"],
        ["health", "log", "--thresholds", "limits.toml", "--json", "limits.toml"],
        ["diff", "golden", "npu", "--tolerances", "limits.toml", "--json", "limits.toml"],
        ["locate", "case.py:other", "--device", "cpu", "--json", "case.py"],
    ],
    ids=" ".join,
)
def test_what_is_read_is_not_written_over(
    command: Command, tmp_path: Path, arguments: list[str]
) -> None:
    (tmp_path / "log").mkdir()
    for name in ("log/rank0.jsonl", "log/rank0-step0.py", "limits.toml", "case.py"):
        (tmp_path / name).write_text("mine")
    for name in ("golden", "npu"):
        write(tmp_path / name, [item("fc", [1.0])])
    before = contents(tmp_path)
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert "choose another --json" in done.err
    assert contents(tmp_path) == before


@pytest.mark.parametrize(
    ("option", "name", "endings"),
    [
        ("--json", "case.py", ".json, .jsonl or .ndjson"),
        ("--json", "weights.parquet", ".json, .jsonl or .ndjson"),
        ("--parquet", "case.py", ".parquet"),
    ],
)
def test_a_file_of_another_kind_is_not_written_over(
    command: Command, tmp_path: Path, option: str, name: str, endings: str
) -> None:
    (tmp_path / name).write_text("mine")
    for side in ("golden", "npu"):
        write(tmp_path / side, [item("fc", [1.0])])
    before = contents(tmp_path)
    done = command("diff", "golden", "npu", option, name)
    found = f"accucompare: {option} {name}: must end in {endings}\n"
    assert (done.code, done.out, done.err) == (2, "", found)
    write_file = getattr(ac.diff(tmp_path / "golden", tmp_path / "npu"), f"to_{option[2:]}")
    with pytest.raises(ReportError, match=f"name must end in {re.escape(endings)}, such as"):
        write_file(tmp_path / name)
    assert contents(tmp_path) == before


def test_the_checklist_is_not_written_over_a_file_of_another_kind(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "case.py").write_text("mine")
    done = command("health", "log", "--json", "case.py")
    assert (done.code, done.err) == (2, "accucompare: --json case.py: must end in .json\n")
    assert (tmp_path / "case.py").read_text() == "mine"


@pytest.mark.parametrize("kind", ["json", "parquet", "excel", "html"])
@pytest.mark.parametrize("side", ["golden", "candidate", "baseline", "other"])
def test_no_report_is_written_into_a_bundle(tmp_path: Path, kind: str, side: str) -> None:
    for name in ("golden", "candidate", "baseline", "other"):
        write(tmp_path / name, [item("fc", [1.0])])
    comparison = ac.diff(
        tmp_path / "golden", tmp_path / "candidate", baseline=tmp_path / "baseline"
    )
    before = contents(tmp_path)
    for name in ("manifest.json", "rank0/x"):
        with pytest.raises(ReportError, match=f"lies in the bundle .*{side}; choose another path"):
            getattr(comparison, f"to_{kind}")(tmp_path / side / name)
    assert contents(tmp_path) == before
