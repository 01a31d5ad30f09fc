"""manifest.json: what is kept, and what a damaged one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.bundle.format.manifest import FORMAT, FORMAT_VERSION, Manifest, StepEntry, sealed
from accucompare.errors import BundleError


def written(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "manifest.json"
    path.write_text(
        json.dumps(
            {"format": FORMAT, "format_version": FORMAT_VERSION, "accucompare": "0.1.0", **fields}
        )
    )
    return path


def error_of(path: Path) -> str:
    with pytest.raises(BundleError) as caught:
        Manifest.read(path)
    return str(caught.value).replace(str(path.parent), "DIR")


def test_a_manifest_reads_as_it_was_written(tmp_path: Path) -> None:
    manifest = Manifest(
        stopped={"step": 1, "module": "层1", "error": "x"},
        ranks=2,
        steps=[StepEntry(0, 3, "ab"), StepEntry(1, 2, "cd", partial=True)],
        state={"records": 1, "digest": "ef"},
        capture={"seed": 0, "only": ["=1+1"]},
        model={
            "parameters": {"w": {"dtype": "float32", "shape": [1], "digests": {"float32": "00"}}},
            "modules": {"": "Net"},
        },
        inputs={"0": {"x": {"dtype": "int64", "shape": [], "digests": {}}}},
        notes=["one"],
    )
    manifest.write(tmp_path / "manifest.json")
    assert Manifest.read(tmp_path / "manifest.json") == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_failed_write_leaves_the_old_manifest_and_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "manifest.json"
    Manifest(notes=["old"]).write(path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        Manifest(notes=["new"]).write(path)
    assert Manifest.read(path).notes == ["old"]
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_directory_that_is_not_there_is_no_bundle(tmp_path: Path) -> None:
    assert (
        error_of(tmp_path / "nowhere" / "manifest.json")
        == "DIR: not a bundle (there is no such directory)"
    )


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(
        BundleError, match=r"file: not a bundle \(a file; a bundle is a directory\)"
    ):
        ac.open_bundle(tmp_path / "file")


def test_a_directory_without_manifest_is_no_bundle(tmp_path: Path) -> None:
    assert error_of(tmp_path / "manifest.json") == "DIR: not a bundle (it has no manifest.json)"
    (tmp_path / "rank0.jsonl").touch()
    assert "no manifest.json; it is the log of a watch: accucompare overflow" in error_of(
        tmp_path / "manifest.json"
    )
    for name in ("golden", "candidate"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "manifest.json").touch()
    assert error_of(tmp_path / "manifest.json") == (
        "DIR: not a bundle (it has no manifest.json; bundles in it: candidate, golden)"
    )


@pytest.mark.parametrize(
    "content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1e', b"1" * 5000]
)
def test_what_is_not_json_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    assert error_of(tmp_path / "manifest.json").startswith(
        "DIR/manifest.json: damaged; it is not valid JSON ("
    )


@pytest.mark.parametrize("content", ["[]", "{}", "null", '"x"', '{"format": "other"}'])
def test_other_json_is_no_manifest(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert (
        error_of(tmp_path / "manifest.json")
        == "DIR/manifest.json: not the manifest of an accucompare bundle"
    )


@pytest.mark.parametrize(
    "version", [FORMAT_VERSION + 1, FORMAT_VERSION - 1, 0, "1", None, [], 1e300, 1.0, True]
)
def test_another_format_version_is_refused_with_both_named(tmp_path: Path, version: object) -> None:
    message = error_of(written(tmp_path, format_version=version, accucompare="9.9.9"))
    assert (
        message
        == f"DIR/manifest.json: bundle format version {str(version)[:20]}, but this accucompare"
        f" {ac.__version__} reads version {FORMAT_VERSION}; install the accucompare that wrote it"
        " (9.9.9) or a newer one, or capture again"
    )


ENTRY = {"dtype": "float32", "shape": [1], "digests": {}}


@pytest.mark.parametrize(
    "fields",
    [
        {"complete": "yes"},
        {"stopped": "here"},
        {"ranks": 0},
        {"ranks": 10**9},
        {"ranks": "2"},
        {"steps": {}},
        {"steps": [3]},
        {"steps": [{"step": 0}]},
        {"steps": [{"step": -1, "records": 0, "digest": ""}]},
        {"steps": [{"step": True, "records": 0, "digest": ""}]},
        {"steps": [{"step": 10**30, "records": 0, "digest": ""}]},
        {"steps": [{"step": 0, "records": 1.5, "digest": ""}]},
        {"steps": [{"step": 0, "records": 0, "digest": None}]},
        {"steps": [{"step": 0, "records": 0, "digest": "", "more": 1}]},
        {"steps": [{"step": 0, "records": 0, "digest": ""}] * 2},
        {"state": []},
        {"state": {"records": 1}},
        {"capture": None},
        {"capture": {"feed": 5}},
        {"capture": {"feed": {"identity": "", "not_fed": [7]}}},
        {
            "capture": {
                "feed": {
                    "identity": "",
                    "not_fed": [{"step": 0, "name": "a", "call": 0, "role": 1}],
                }
            }
        },
        {"capture": {"fallback": ["a"]}},
        {"capture": {"dtype": 32}},
        {"capture": {"only": 1}},
        {"environment": {"case": ["model.py"]}},
        {"environment": []},
        {"environment": {"versions": ["2.5"]}},
        {"environment": {"flags": [1]}},
        {"model": "x"},
        {"model": {"sources": ["net"]}},
        {"model": {"sources": {"net": 1}}},
        {"model": {"class_sources": {"net": 1}}},
        {"model": {"configuration": {"norm": [1e-5]}}},
        {"model": {"classes": {"Norm": 1}}},
        {"model": {"parameters": []}},
        {"model": {"parameters": {"w": 1}}},
        {"model": {"parameters": {"w": {**ENTRY, "digests": None}}}},
        {"model": {"buffers": {"w": {"dtype": "float32"}}}},
        {"model": {"modules": [1]}},
        {"model": {"modules": {"a": 1}}},
        {"model": {"not_called": {"a": 1}}},
        {"model": {"not_called": [[]]}},
        {"inputs": {"0": []}},
        {"inputs": {"0": {"x": {**ENTRY, "dtype": 3}}}},
        {"notes": [1]},
        {"notes": "x"},
    ],
    ids=str,
)
def test_a_malformed_field_is_damage_and_never_a_traceback(
    tmp_path: Path, fields: dict[str, Any]
) -> None:
    assert error_of(written(tmp_path, **fields)).startswith(
        "DIR/manifest.json: damaged; a field is malformed ("
    )


def test_fields_that_are_not_there_have_defaults(tmp_path: Path) -> None:
    assert Manifest.read(written(tmp_path)) == Manifest()


def test_fields_of_a_later_minor_change_are_passed_over(tmp_path: Path) -> None:
    assert Manifest.read(written(tmp_path, something_new=1)) == Manifest()


def test_a_file_too_large_for_a_manifest_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(1 << 30)
    assert (
        error_of(tmp_path / "manifest.json")
        == "DIR/manifest.json: too large for a manifest; refused"
    )


# Whether it is as it was written, and what it says of completeness


def complete(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "manifest.json"
    Manifest(
        complete=True, steps=[StepEntry(0, 3, "ab"), StepEntry(1, 3, "cd")], notes=["层"], **fields
    ).write(path)
    return path


def test_a_byte_that_is_changed_in_a_manifest_is_refused(tmp_path: Path) -> None:
    path = complete(tmp_path)
    content = path.read_bytes()
    for place in range(0, len(content), 3):
        path.write_bytes(
            content[:place] + bytes([content[place] ^ 1 << place % 7]) + content[place + 1 :]
        )
        with pytest.raises(BundleError):
            Manifest.read(path)
    path.write_bytes(content)
    assert Manifest.read(path).complete


@pytest.mark.parametrize("kind", ["left out", "twice", "before the next"])
def test_any_line_that_is_moved_in_a_manifest_is_refused(tmp_path: Path, kind: str) -> None:
    path = complete(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    for place in range(len(lines) - 1):
        line, following = lines[place : place + 2]
        if kind == "before the next" and line == following:
            continue
        changed = {
            "left out": [following],
            "twice": [line, line, following],
            "before the next": [following, line],
        }[kind]
        path.write_bytes(b"".join([*lines[:place], *changed, *lines[place + 2 :]]))
        with pytest.raises(BundleError):
            Manifest.read(path)


@pytest.mark.parametrize(
    "fields",
    [
        {"complete": False},
        {"steps": []},
        {"ranks": 1},
        {"new": 1},
        {"stopped": {"error": "x"}},
        {"digest": ""},
    ],
)
def test_an_edited_manifest_is_corrupt(tmp_path: Path, fields: dict[str, Any]) -> None:
    path = complete(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **fields}, indent=1))
    assert (
        error_of(path)
        == "DIR/manifest.json: is corrupt (its digest does not match); capture it again"
    )


@pytest.mark.parametrize("older", [True, False])
def test_why_a_capture_stopped_beside_that_it_did_not_is_damage(
    tmp_path: Path, older: bool
) -> None:
    fields = {"complete": True, "stopped": {"error": "x"}}
    path = written(tmp_path, **fields)
    if not older:
        path.write_bytes(sealed(json.loads(path.read_bytes())))
    assert (
        "damaged; a field is malformed (it says both that the capture ran to its end and why it did"
        " not)" in error_of(path)
    )


STEP = {"records": 1, "digest": ""}


@pytest.mark.parametrize(
    ("capture", "steps", "lacking"),
    [
        ({"steps": 2}, [0], "the run ended after 1 of 2 step(s)"),
        ({"steps": 2}, [0, 1], ""),
        ({"steps": 2, "started": {"step": 5}}, [5, 6], ""),
        ({"case_steps": 2}, [0], "the run ended after 1 of 2 step(s)"),
        (
            {"case_steps": 1, "steps": 2},
            [0],
            "",
        ),  # fed with golden's first step, which alone can be
        (
            {"chosen_steps": [0, 5, 6]},
            [0],
            "the run ended before step(s) 5-6 of --steps 0,5-6, which are not recorded",
        ),
        (
            {"chosen_steps": [0, 5]},
            [0],
            "the run ended before step(s) 5 of --steps 0,5, which are not recorded",
        ),
        ({"chosen_steps": [0, 5]}, [0, 5], ""),
        ({}, [], ""),
    ],
)
@pytest.mark.parametrize("older", [True, False])
def test_a_bundle_without_the_steps_that_were_asked_for_is_incomplete_whatever_it_says(
    tmp_path: Path, capture: dict[str, Any], steps: list[int], lacking: str, older: bool
) -> None:
    path = written(
        tmp_path, complete=True, capture=capture, steps=[{"step": step, **STEP} for step in steps]
    )
    if not older:
        path.write_bytes(sealed(json.loads(path.read_bytes())))
    manifest = Manifest.read(path)
    assert (manifest.complete, manifest.stopped) == (
        not lacking,
        {"error": lacking} if lacking else None,
    )
