"""manifest.json: what is kept, and what a damaged one says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.bundle.manifest import FORMAT, FORMAT_VERSION, NEWEST_FORMAT, Manifest, StepEntry
from accucompare.errors import BundleError


def written(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({"format": FORMAT, "format_version": FORMAT_VERSION, "accucompare": "0.1.0", **fields}))
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
        model={"parameters": {"w": {"dtype": "float32", "shape": [1], "digests": {"float32": "00"}}}, "modules": {"": "Net"}},
        inputs={"0": {"x": {"dtype": "int64", "shape": [], "digests": {}}}},
        notes=["one"],
    )
    manifest.write(tmp_path / "manifest.json")
    assert Manifest.read(tmp_path / "manifest.json") == manifest
    assert [path.name for path in tmp_path.iterdir()] == ["manifest.json"]


def test_a_failed_write_leaves_the_old_manifest_and_nothing_half_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    assert error_of(tmp_path / "nowhere" / "manifest.json") == "DIR: not a bundle (there is no such directory)"


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match=r"file: not a bundle \(a file; a bundle is a directory\)"):
        ac.open_bundle(tmp_path / "file")


def test_a_directory_without_manifest_is_no_bundle(tmp_path: Path) -> None:
    assert error_of(tmp_path / "manifest.json") == "DIR: not a bundle (it has no manifest.json)"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a": 1e', b"1" * 5000])
def test_what_is_not_json_is_damaged(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    assert error_of(tmp_path / "manifest.json").startswith("DIR/manifest.json: damaged; it is not valid JSON (")


@pytest.mark.parametrize("content", ["[]", "{}", "null", '"x"', '{"format": "other"}'])
def test_other_json_is_no_manifest(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    assert error_of(tmp_path / "manifest.json") == "DIR/manifest.json: not the manifest of an accucompare bundle"


@pytest.mark.parametrize("version", [NEWEST_FORMAT + 1, 0, -1, "1", None, [], 1e300, 1.0, True])
def test_another_format_version_is_refused_with_both_named(tmp_path: Path, version: object) -> None:
    message = error_of(written(tmp_path, format_version=version, accucompare="9.9.9"))
    assert message == (
        f"DIR/manifest.json: bundle format version {str(version)[:20]}, but this accucompare {ac.__version__} reads version "
        f"{NEWEST_FORMAT} and older; install the accucompare that wrote it (9.9.9) or a newer one"
    )


@pytest.mark.parametrize("version", range(FORMAT_VERSION, NEWEST_FORMAT + 1))
def test_every_format_up_to_the_newest_is_read(tmp_path: Path, version: int) -> None:
    assert Manifest.read(written(tmp_path, format_version=version)).format_version == version


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
        {"capture": {"feed": {"identity": "", "not_fed": [{"step": 0, "name": "a", "call": 0, "role": 1}]}}},
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
def test_a_malformed_field_is_damage_and_never_a_traceback(tmp_path: Path, fields: dict[str, Any]) -> None:
    assert error_of(written(tmp_path, **fields)).startswith("DIR/manifest.json: damaged; a field is malformed (")


def test_fields_that_are_not_there_have_defaults(tmp_path: Path) -> None:
    assert Manifest.read(written(tmp_path)) == Manifest()


def test_fields_of_a_later_minor_change_are_passed_over(tmp_path: Path) -> None:
    assert Manifest.read(written(tmp_path, something_new=1)) == Manifest()


def test_a_file_too_large_for_a_manifest_is_refused_unread(tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(1 << 30)
    assert error_of(tmp_path / "manifest.json") == "DIR/manifest.json: too large for a manifest; refused"
