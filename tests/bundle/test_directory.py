"""The directory of a capture: what is refused, what is replaced, and when."""

from __future__ import annotations

from pathlib import Path

import pytest

import accucompare as ac
from accucompare.bundle.writing.directory import forget_previous, prepare_directory
from accucompare.errors import CaptureError
from tests.bundle.test_writer import files
from tests.compare.builder import item, write


def test_a_new_directory_is_made_with_its_parents(tmp_path: Path) -> None:
    prepare_directory(tmp_path / "a/b", overwrite=False)
    assert (tmp_path / "a/b").is_dir()


def test_an_empty_directory_is_taken(tmp_path: Path) -> None:
    prepare_directory(tmp_path, overwrite=False)


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_directory_with_other_things_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(
        CaptureError,
        match=r"is not empty and holds no bundle, so it is not touched; choose another",
    ):
        prepare_directory(tmp_path, overwrite)
    assert files(tmp_path) == ["thesis.tex"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_file_is_never_touched(tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "out").write_text("x")
    with pytest.raises(CaptureError, match="exists and is not a directory"):
        prepare_directory(tmp_path / "out", overwrite)
    assert (tmp_path / "out").read_text() == "x"


def test_a_bundle_is_only_replaced_when_asked(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", [item("a", [1.0]), item("a", [1.0], step=1)])
    (bundle / "notes.txt").write_text("mine")
    before = files(bundle)
    with pytest.raises(CaptureError, match="already holds a bundle; overwrite it"):
        prepare_directory(bundle, overwrite=False)
    assert files(bundle) == before
    prepare_directory(bundle, overwrite=True)
    forget_previous(bundle)
    assert files(bundle) == ["notes.txt"]


def test_a_bundle_is_kept_until_its_replacement_is_complete(tmp_path: Path) -> None:
    bundle = write(tmp_path / "b", [item("a", [1.0])])
    prepare_directory(bundle, overwrite=True)
    write(bundle, [item("b", [2.0])])  # fails, say; and is tried again
    prepare_directory(bundle, overwrite=True)
    with ac.open_bundle(bundle / ".previous") as previous:
        assert previous.load("a").tolist() == [1.0]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(CaptureError, match=r"file/b: cannot be written \(Not a directory\)"):
        prepare_directory(tmp_path / "file" / "b", overwrite=False)
