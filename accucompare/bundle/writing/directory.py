"""Where a capture writes: what may be overwritten, and where the previous bundle waits."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from accucompare.bundle.format import BASELINES, PREVIOUS, PROOF, ROUNDED_RUN, holds_bundle
from accucompare.errors import CaptureError
from accucompare.places import Place, Url
from accucompare.storage_errors import NoBucketError, cure_of


def refuse_directory(directory: Place, overwrite: bool) -> None:
    """Raise CaptureError if a capture may not write into a directory: something is there that may
    not be overwritten, or a URL cannot be read or written. Changes nothing."""
    if isinstance(directory, Url):
        _refuse_url(directory, overwrite)
        return
    if directory.exists() and not directory.is_dir():
        raise CaptureError(
            f"{directory}: exists and is not a directory; choose another place (--out, out=)"
        )
    if not directory.is_dir() or _hardly_begun(directory) or _left_behind(directory):
        return
    if not (directory / "manifest.json").is_file():
        raise CaptureError(
            f"{directory}: is not empty and holds no bundle, so it is not touched; choose another"
            " place (--out, out=)"
        )
    if not holds_bundle(directory):
        raise CaptureError(
            f"{directory}: its manifest.json is no bundle's, or damaged, so nothing there is"
            " touched; choose another place (--out, out=) or remove it"
        )
    if not overwrite:
        raise CaptureError(
            f"{directory}: already holds a bundle; overwrite it (--overwrite, overwrite=True) or"
            " choose another place (--out, out=)"
        )


def prepare_directory(directory: Place, overwrite: bool) -> None:
    """Make the directory that a capture writes into; ``overwrite`` moves an earlier bundle into
    ``.previous``.

    It stays there until ``forget_previous``, so that a failed capture destroys nothing. If an
    earlier capture moved a bundle aside and never began, that bundle is put back first. A URL
    cannot move: its earlier bundle is removed. Raises CaptureError if something is there that may
    not be overwritten, or it cannot be made."""
    try:
        if isinstance(directory, Url):
            refuse_directory(directory, overwrite)
            _remove_own(directory)
            return
        restore_previous(directory)
        refuse_directory(directory, overwrite)
        if holds_bundle(directory):
            _move_aside(directory)
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CaptureError(
            f"{error.filename or directory}: cannot be written ({error.strerror or error});"
            f" {cure_of(error)}"
        ) from None


def forget_previous(directory: Place) -> None:
    """Remove the bundle that a finished capture has replaced; never raises."""
    if isinstance(directory, Url):
        return
    with contextlib.suppress(OSError):
        for path in _own_files(directory / PREVIOUS):
            path.unlink()
            _remove_empty(path.parent, directory)


def discard_unfinished(directory: Place) -> None:
    """Remove an unfinished bundle and put back the one that was moved aside; never raises."""
    with contextlib.suppress(OSError):
        if isinstance(directory, Url):
            _remove_own(directory)
            return
        for path in _own_files(directory):
            path.unlink()
            _remove_empty(path.parent, directory)
        for folder in directory.glob("rank*"):
            _remove_empty(folder, directory)
        restore_previous(directory)
        directory.rmdir()  # if nothing was there before


def restore_previous(directory: Place) -> None:
    """Put back the bundle that was moved aside, unless a new one has begun. May raise OSError."""
    if isinstance(directory, Path) and _left_behind(directory):
        # the manifest comes last, so that an interrupted move can be repeated
        for path in reversed(_own_files(directory / PREVIOUS)):
            _move(path, directory / path.relative_to(directory / PREVIOUS), directory)


def previous_of(directory: Place) -> Path | None:
    """The bundle that a capture was to replace; ``None`` if there is none."""
    kept = directory / PREVIOUS if isinstance(directory, Path) else None
    return kept if kept is not None and kept.exists() else None


def _refuse_url(url: Url, overwrite: bool) -> None:
    """``refuse_directory`` of a URL."""
    if url.read_only:
        raise CaptureError(
            f"{url}: {url.scheme}:// is for reading only; write to a directory, or to storage such"
            " as s3://"
        )
    try:
        (url / "manifest.json").described()
    except NoBucketError as error:
        raise CaptureError(f"{url}: cannot be written ({error.strerror})") from None
    except FileNotFoundError:
        _refuse_other_objects(url)
        return
    except OSError as error:
        raise CaptureError(f"{url}: cannot be looked into ({error.strerror})") from None
    if not holds_bundle(url):
        raise CaptureError(
            f"{url}: its manifest.json is no bundle's, or damaged, so nothing there is touched;"
            " choose another place (--out, out=)"
        )
    if not overwrite:
        raise CaptureError(
            f"{url}: already holds a bundle; overwrite it (--overwrite, overwrite=True) or choose"
            " another place (--out, out=)"
        )


def _refuse_other_objects(url: Url) -> None:
    """Raise CaptureError if anything at a URL was not written by a capture."""
    try:
        others = [name for name in url.below() if not _OWN.fullmatch(name)]
    except OSError as error:
        raise CaptureError(f"{url}: cannot be looked into ({error.strerror})") from None
    if others:
        raise CaptureError(
            f"{url}: is not empty and holds no bundle, so it is not touched; choose another"
            " place (--out, out=)"
        )


def _remove_own(url: Url) -> None:
    """Remove a URL's bundle, the manifest first, so that nobody opens half of it."""
    for name in sorted(
        filter(_OWN.fullmatch, url.below()), key=lambda name: name != "manifest.json"
    ):
        (url / name).call("rm_file")


def _left_behind(directory: Path) -> bool:
    """Whether a capture was stopped after it moved a bundle aside and before it began its own."""
    return not (directory / "manifest.json").exists() and holds_bundle(directory / PREVIOUS)


def _hardly_begun(directory: Path) -> bool:
    """Whether a directory holds only what a capture leaves before its manifest."""
    return all(
        path.name == "manifest.json.part"
        or (re.fullmatch(r"rank\d+", path.name) and path.is_dir() and not any(path.iterdir()))
        for path in directory.iterdir()
    )


def _move_aside(directory: Path) -> None:
    previous = directory / PREVIOUS
    # otherwise what is in the way comes from a capture that failed to replace it
    keep = not holds_bundle(previous)
    for path in _own_files(directory):
        if keep:
            _move(path, previous / path.relative_to(directory), directory)
        else:
            path.unlink()
            _remove_empty(path.parent, directory)


def _move(path: Path, target: Path, directory: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.replace(path, target)
    _remove_empty(path.parent, directory)


def _remove_empty(folder: Path, directory: Path) -> None:
    """Remove a bundle's folder and the folders around it, as long as they are empty."""
    with contextlib.suppress(OSError):
        while folder != directory:
            folder.rmdir()
            folder = folder.parent


#: The files that a capture writes into its directory and the ranks'; nothing else is ever moved or
#: removed.
_MANIFEST = re.compile(r"manifest\.json(\.part)?")
_OF_RANK = re.compile(rf"(step\d+|state)\.(npz|jsonl)(\.part)?|{_MANIFEST.pattern}")
_BESIDE = re.compile(rf"repeat\d+|{PROOF}|{ROUNDED_RUN}")
_OWN = re.compile(
    rf"(({_BESIDE.pattern})/|{BASELINES}/[^/]+/)*({_MANIFEST.pattern}|rank\d+/({_OF_RANK.pattern}))"
)


def _own_files(directory: Path) -> list[Path]:
    """The files of a directory's bundle and of those captured beside it, the manifest first."""
    if not directory.is_dir():
        return []
    files, folders = [], []
    for path in sorted(directory.iterdir()):
        if path.is_symlink() or not path.is_dir():
            files += [path] if _MANIFEST.fullmatch(path.name) else []
        elif re.fullmatch(r"rank\d+", path.name):
            folders += [each for each in sorted(path.iterdir()) if _OF_RANK.fullmatch(each.name)]
        elif _BESIDE.fullmatch(path.name) and holds_bundle(path):
            folders += _own_files(path)
        elif path.name == BASELINES:
            folders += [
                file
                for each in sorted(path.iterdir())
                if holds_bundle(each)
                for file in _own_files(each)
            ]
    return files + folders
