"""Paths that cannot be read, or written to, given to the Python interface: always an
AccucompareError that says which, and why.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import accucompare as ac
from accucompare.text import with_article
from tests.asked import grouped, looking
from tests.combinations import once, spread
from tests.compare.builder import item, write

_BAD = {
    "a file": "file",
    "below a file": "file/below",
    "too long": "n" * 300,
    "below what is too long": f"{'n' * 300}/below",
    "a place that cannot be made": "/proc/none/below",
    "below a device": "/dev/full/below",
    "a circle of links": "circle",
    "a null character": "a\0b",
    "no path": 3,
    "nothing": None,
    "bytes": b"golden",
    "a list": ["golden"],
}


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "circle").symlink_to("circle")


@pytest.mark.parametrize(("name", "told"), [("r.xlsx", True), ("r.html", False), ("r.json", False)])
def test_excel_is_suspected_of_a_workbook_alone(
    monkeypatch: pytest.MonkeyPatch, name: str, told: bool
) -> None:
    def locked(source: object, destination: object) -> None:
        raise PermissionError(13, "Permission denied")

    compared = ac.diff(write(Path("golden"), [item()]), Path("golden"))
    monkeypatch.setattr(os, "replace", locked)
    with pytest.raises(ac.AccucompareError) as refusal:
        {"xlsx": compared.to_excel, "html": compared.to_html, "json": compared.to_json}[
            name.partition(".")[2]
        ](name)
    assert ("open in Excel" in str(refusal.value), "may write to" in str(refusal.value)) == (
        told,
        True,
    )


def capture(path: Any, **options: Any) -> None:
    with ac.capture(torch.nn.Linear(2, 2), path, **grouped(**options)):
        raise AssertionError("it began")


def watch(path: Any, **options: Any) -> None:
    with ac.watch(torch.nn.Linear(2, 2), **looking(out=path, quiet=True, **options)):
        raise AssertionError("it began")


@pytest.fixture
def comparison(tmp_path: Path) -> ac.Comparison:
    return ac.diff(
        *(write(tmp_path / side, [item("fc", [1.0])]) for side in ("golden", "candidate"))
    )


def refused(call: Callable[[Any], object], bad: str) -> str:
    with pytest.raises(ac.AccucompareError) as caught:
        call(_BAD[bad])
    message = str(caught.value)
    assert (
        str(_BAD[bad]).split("\0")[0][:10] in message
        or f"is {with_article(type(_BAD[bad]).__name__)}" in message
    )
    assert "Errno" not in message
    return message


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux")
@pytest.mark.parametrize(("bad", "verb"), once(_BAD, ("capture", "watch")))
def test_a_place_that_cannot_be_written_to_is_refused(verb: str, bad: str) -> None:
    assert "; " in refused({"capture": capture, "watch": watch}[verb], bad) or bad in (
        "nothing",
        "no path",
        "bytes",
        "a list",
    )


@pytest.mark.parametrize(
    ("bad", "verb"),
    spread(
        _BAD,
        (
            "open_bundle",
            "golden",
            "candidate",
            "baseline",
            "like",
            "feed",
            "like of a watch",
            "tolerances",
        ),
        3,
    ),
)
def test_what_is_no_bundle_and_no_file_is_refused(verb: str, bad: str, tmp_path: Path) -> None:
    bundle = write(tmp_path / "golden", [item("fc", [1.0])])
    if bad == "nothing" and verb not in ("open_bundle", "golden", "candidate"):
        pytest.skip("None is no path there")
    call: dict[str, Callable[[Any], object]] = {
        "open_bundle": ac.open_bundle,
        "golden": lambda path: ac.diff(path, bundle),
        "candidate": lambda path: ac.diff(bundle, path),
        "baseline": lambda path: ac.diff(bundle, bundle, baseline=path),
        "like": lambda path: capture("out", like=path),
        "feed": lambda path: capture("out", feed=path),
        "like of a watch": lambda path: watch("out", like=path),
        "tolerances": lambda path: ac.diff(bundle, bundle, limits=ac.Tolerance(tolerances=path)),
    }
    refused(call[verb], bad)


@pytest.mark.parametrize(
    ("bad", "kind"),
    spread((each for each in _BAD if each != "a file"), ("excel", "html", "json", "parquet"), 2),
)
def test_a_report_that_cannot_be_written_is_refused(
    kind: str, bad: str, comparison: ac.Comparison
) -> None:
    before = sorted(os.listdir())
    refused(getattr(comparison, f"to_{kind}"), bad)
    assert sorted(os.listdir()) == before
