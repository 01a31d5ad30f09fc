"""Which files a command writes, whether each can be written, and the writing.

``compare.decide`` decides a diff's exit code."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from accucompare.errors import ReportError, UsageError
from accucompare.files import (
    COMPARISON_FILE,
    JSON_FILE,
    PARQUET_FILE,
    Endings,
    is_stdout,
    is_stream,
    same_place,
)
from accucompare.places import Place

if TYPE_CHECKING:
    from accucompare.api import Comparison

_NONE = Path("none")


def reports_to_write(given: tuple[Path, ...], usual: Path | None) -> tuple[Path, ...]:
    """The reports to write, each checked to be writable before any work is done. Raises UsageError
    if one is neither .xlsx nor .html, or ``none`` is given beside others; ReportError if a
    directory is not writable.

    Args:
        given: as on the command line.
        usual: the report if none was given; ``None`` for none.
    """
    if _NONE in given and len(given) > 1:
        raise UsageError("--report none: writes no report, so that no other can be given")
    reports = given or ((usual,) if usual is not None else ())
    reports = tuple(report for report in reports if report != _NONE)
    for report in reports:
        _refuse_report(report)
    return reports


def is_page(report: Path) -> bool:
    """Whether a report is a page; a stream (pipe, /dev/stdout) without suffix gets a workbook."""
    return report.suffix.lower() == ".html"


def _refuse_report(report: Path) -> None:
    if is_stream(report):
        return
    if report.suffix.lower() not in (".xlsx", ".html"):
        raise UsageError(
            f"--report {report}: must end in .xlsx or .html (or be none, to write no report)"
        )
    _refuse_unwritable("--report", report)


def refuse_file(option: str, path: Path | None, endings: Endings) -> None:
    """Raise UsageError if a file's name has another ending, ReportError if it cannot be written."""
    if path is None:
        return
    if not endings.fit(path):
        raise UsageError(f"{option} {path}: must end in {endings}")
    _refuse_unwritable(option, path)


def _refuse_unwritable(option: str, path: Path) -> None:
    """Raise ReportError if a file cannot be written there, before hours of captures."""
    if is_stream(path):
        return
    if os.path.isdir(path):
        raise ReportError(f"{option} {path}: is a directory; name a file in it")
    place = next(folder for folder in path.absolute().parents if os.path.exists(folder))
    if not place.is_dir():
        raise ReportError(
            f"{path}: cannot be written ({place} is a file, not a directory); choose another"
            f" {option}"
        )
    if not _takes_files(place):
        raise ReportError(
            f"{path}: cannot be written (no permission to write to {place}); choose another"
            f" {option}"
        )


def _takes_files(folder: Path) -> bool:
    """Whether a file can be made there, which permissions do not tell of every file system."""
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError:
        return False
    return True


class Outputs(NamedTuple):
    """Where a comparison is written: reports, and the files of ``--json`` and ``--parquet``."""

    reports: tuple[Path, ...]
    json: Path | None
    parquet: Path | None

    def checked(
        self, bundles: Iterable[Path] = (), inputs: Mapping[str, Path | None] = MappingProxyType({})
    ) -> Outputs:
        """The same, each checked to be writable before any work is done. Raises UsageError if one
        would overwrite another, one of the ``inputs``, or a file in a bundle; ``bundles`` are those
        that will be written; ReportError if a directory is not writable, or pyarrow is missing and
        needed."""
        refuse_places(
            {"--report": self.reports, "--json": self.json, "--parquet": self.parquet},
            bundles,
            inputs,
        )
        refuse_file("--json", self.json, COMPARISON_FILE)
        refuse_file("--parquet", self.parquet, PARQUET_FILE)
        if self.parquet is not None:
            from accucompare.report.files import require_pyarrow

            require_pyarrow()
        return self

    def each(self, change: Callable[[Path], Path]) -> Outputs:
        return Outputs(
            tuple(map(change, self.reports)),
            self.json and change(self.json),
            self.parquet and change(self.parquet),
        )


def refuse_places(
    outputs: Mapping[str, Path | tuple[Path, ...] | None],
    bundles: Iterable[Place] = (),
    inputs: Mapping[str, Path | None] = MappingProxyType({}),
) -> None:
    """Raise UsageError if an output would overwrite another, an input, or a bundle's file.

    Args:
        outputs: paths of each output by its option; before them, files that are read.
        bundles: directories that will hold bundles; existing bundles are recognised.
        inputs: files that are read; several options may name the same one.
    """
    from accucompare.bundle.format import bundle_around

    listed = (
        (option, paths if isinstance(paths, tuple) else (paths,))
        for option, paths in outputs.items()
    )
    given = [(option, path) for option, paths in listed for path in paths if path is not None]
    read = [(option, path) for option, path in inputs.items() if path is not None]
    for number, (option, path) in enumerate(given):
        for other, earlier in [*read, *given[:number]]:
            if same_place(path, earlier):
                raise UsageError(
                    f"{option} {path}: is the same file as {other} {earlier}; choose another"
                    f" {option}"
                )
        if (folder := bundle_around(path, bundles)) is not None:
            raise UsageError(
                f"{option} {path}: lies in the bundle {folder}; choose another {option}"
            )


def refuse_json(
    json_path: Path | None,
    others: Mapping[str, Path | tuple[Path, ...] | None] = MappingProxyType({}),
    bundles: Iterable[Place] = (),
    inputs: Mapping[str, Path | None] = MappingProxyType({}),
) -> None:
    """``refuse_places``, and ``refuse_file`` of ``--json``."""
    refuse_places({**others, "--json": json_path}, bundles, inputs)
    refuse_file("--json", json_path, JSON_FILE)


def answered(
    found: Any,
    show: Callable[[Any, bool], None],
    quiet: bool,
    json_path: Path | None,
    reports: tuple[Path, ...] = (),
) -> int:
    """Write an answer's reports and JSON, print it by ``show``, and return its exit code."""
    from accucompare.report.console import reader_may_leave

    for report in reports:
        (found.to_html if is_page(report) else found.to_excel)(report)
    if json_path is not None:
        found.to_json(json_path)
    with reader_may_leave():
        show(found, quiet)
    code: int = found.exit_code
    return code


def logs_of(log: Path) -> tuple[Path, ...]:
    if os.path.isdir(log):
        return tuple(path for path in log.glob("rank*") if path.is_file())
    return (log,)


def stem(path: Place) -> str:
    """The name of the report of a bundle or log."""
    return path.resolve().name or "bundle"


def finish(comparison: Comparison, outputs: Outputs, quiet: bool) -> int:
    """Write the reports, print the result, and return the exit code. ReportError if one could not
    be written; the others are, and the result is printed."""
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_comparison

    wanted = [
        (comparison.to_html if is_page(report) else comparison.to_excel, report)
        for report in outputs.reports
    ]
    more = (comparison.to_json, outputs.json), (comparison.to_parquet, outputs.parquet)
    wanted += [(write, path) for write, path in more if path is not None]
    # streams last: if a pipe's reader leaves, the files are already written
    wanted.sort(key=lambda each: is_stream(each[1]))
    failures = [
        (path, failure) for write, path in wanted if (failure := _failure(write, path)) is not None
    ]
    failed = {path for path, _ in failures}
    on_stdout = any(is_stdout(path) for _, path in wanted)
    with reader_may_leave(), contextlib.redirect_stdout(sys.stderr if on_stdout else sys.stdout):
        print_comparison(
            comparison, [report for report in outputs.reports if report not in failed], quiet
        )
    if failures:
        raise ReportError("\n".join(str(failure) for _, failure in failures))
    return comparison.exit_code


def _failure(write: Callable[[Path], Path], path: Path) -> ReportError | None:
    """Write a report; return why it could not be written, or ``None``."""
    try:
        write(path)
    except ReportError as error:
        return error
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{path} is not written") from None
    return None
