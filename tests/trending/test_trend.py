"""``accucompare trend``: since when each layer fails, of bundles, JSON results and folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pytest

import accucompare as ac
from accucompare.compare.trends import TREND_EXIT_CODES, NotInTrendWhy, PlaceState
from accucompare.errors import ReportError, UsageError
from tests.compare.builder import Item, edit_manifest, item, write
from tests.conftest import Run

RNG = np.random.default_rng(0)
VALUES = RNG.normal(size=(8, 16)).astype(np.float32)
NOISE = RNG.normal(size=VALUES.shape)
LAYERS = [f"blocks.{block}.{child}" for block in range(3) for child in ("attn", "mlp")]


def values(error: float) -> np.ndarray:
    return (VALUES * (1 + error * NOISE)).astype(np.float32)


def items(faulty: dict[str, float], layers: list[str] = LAYERS, width: int = 16) -> list[Item]:
    made = [
        item(name, values(faulty.get(name, faulty.get("", 1e-7)))[:, :width], parent=None)
        for name in layers
    ]
    root = (item("", VALUES[:, :width], role=role, parent=None) for role in ("input", "output"))
    return [next(root), *made, *root]


def run(folder: Path, day: int, faulty: dict[str, float] | None = None, **more: Any) -> Path:
    """A bundle of that day of the month."""
    created = {"created": f"2026-11-{day:02}T04:00:00+00:00"}
    return write(folder, items(faulty or {}, **more), environment=created)


@pytest.fixture(scope="module")
def nightly(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Golden and five nights, whose names are not in the order of their time: blocks.1.mlp fails
    since the second of them, blocks.0.attn failed in the third alone."""
    folder = tmp_path_factory.mktemp("nightly")
    run(folder / "reference", 1, {"": 0.0})
    run(folder / "zero", 2)
    run(folder / "one", 3, {"blocks.1.mlp": 3e-2})
    run(folder / "two", 4, {"blocks.1.mlp": 4e-2, "blocks.0.attn": 2e-3})
    run(folder / "three", 5, {"blocks.1.mlp": 4e-2})
    return folder


@pytest.fixture(scope="module")
def results(nightly: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as JSON results, and a JSON of something else."""
    folder = tmp_path_factory.mktemp("results")
    for name, ending in (("zero", "json"), ("one", "jsonl"), ("two", "json"), ("three", "ndjson")):
        ac.diff(nightly / "reference", nightly / name).to_json(folder / f"{name}.{ending}")
    (folder / "settings.json").write_text('{"candidate": 1}')
    return folder


@pytest.fixture(scope="module")
def found(nightly: Path) -> ac.Trend:
    return ac.trend(nightly)


def of(trend: ac.Trend, layer: str) -> Any:
    return next(place for place in trend.places if place.layer == layer)


def test_nan_has_no_finite_error(nightly: Path, tmp_path: Path) -> None:
    broken = values(1e-7)
    broken[0, 0] = np.nan
    made = [item(LAYERS[0], broken, parent=None), *items({}, LAYERS[1:])]
    last = write(tmp_path / "last", made)
    told = ac.diff(nightly / "reference", last).to_json(tmp_path / "last.json")
    for newest in (last, told):
        place = of(ac.trend([nightly / "reference", nightly / "zero", newest]), LAYERS[0])
        assert (place.state, place.error_after, place.factor) == (
            PlaceState.FELL_OUT, np.inf, np.inf,
        )  # fmt: skip


def test_a_layer_that_failed_and_is_gone_is_no_pass(nightly: Path, tmp_path: Path) -> None:
    runs = []
    for name, faulty, layers in (
        ("one", 0.0, LAYERS),
        ("two", 3e-2, LAYERS),
        ("few", 0, LAYERS[:4]),
    ):
        golden, candidate = tmp_path / f"{name}-golden", tmp_path / name
        run(golden, 1, {"": 0.0}, layers=layers)
        run(candidate, 2, {LAYERS[-1]: faulty}, layers=layers)
        runs.append(ac.diff(golden, candidate).to_json(tmp_path / f"{name}.json"))
    found = ac.trend(runs)
    assert ([place.layer for place in found.lost], found.exit_code) == ([LAYERS[-1]], 2)
    assert ac.trend([runs[0], runs[2]]).exit_code == 0


def test_every_answer_has_its_exit_code() -> None:
    assert {each.value: code for each, code in TREND_EXIT_CODES.items()} == {
        "within": 0,
        "fails": 1,
        "not sure": 2,
    }


def test_a_folder_is_in_the_order_of_its_captures_and_the_oldest_is_golden(found: ac.Trend) -> None:
    assert [each.name for each in found.runs] == ["zero", "one", "two", "three"]
    assert {Path(each.golden).name for each in found.runs} == {"reference"}
    assert found.exit_code == 1


def test_a_layer_that_fell_out_has_its_run_and_its_error_before_and_after(found: ac.Trend) -> None:
    place = of(found, "blocks.1.mlp")
    assert place.state is PlaceState.FELL_OUT
    assert (found.runs[place.before].name, found.runs[place.since].name) == ("zero", "one")
    assert place.error_before == pytest.approx(1e-7, rel=0.5)
    assert place.error_after == pytest.approx(3e-2, rel=0.5)
    assert place.factor == pytest.approx(place.error_after / place.error_before)


def test_a_layer_that_failed_for_one_night_came_back(found: ac.Trend) -> None:
    place = of(found, "blocks.0.attn")
    assert place.state is PlaceState.CAME_BACK
    assert found.runs[place.since].name == "two"
    assert of(found, "blocks.2.mlp").state is PlaceState.OK


def test_json_results_tell_the_same_as_the_bundles(found: ac.Trend, results: Path) -> None:
    told = ac.trend(results)
    assert [each.name for each in told.runs] == [each.name for each in found.runs]
    for place in found.places:
        other = of(told, place.layer)
        assert (other.state, other.since, other.errors) == (place.state, place.since, place.errors)
    assert [each.why for each in told.left_out] == [NotInTrendWhy.NO_COMPARISON]
    assert told.exit_code == 1


def test_an_older_json_without_the_time_of_capture_goes_by_its_file(results: Path) -> None:
    content = json.loads((results / "zero.json").read_text())
    del content["captured"]
    old = results.parent / "old.json"
    old.write_text(json.dumps(content))
    told = ac.trend(old).newest
    assert not told.dated
    assert told.captured == old.stat().st_mtime


@pytest.mark.parametrize(("against", "run"), [("best", "zero"), ("first", "zero"), ("two", "two")])
def test_the_newest_is_held_against_a_run(nightly: Path, against: str, run: str) -> None:
    told = ac.trend(nightly, against=against)
    place = of(told, "blocks.1.mlp")
    assert told.runs[place.against].name == run
    assert place.factor_against == pytest.approx(
        place.newest.rel_l2 / place.error_in(place.against)
    )


def test_only_the_newest_run_decides(nightly: Path) -> None:
    mended = ac.trend([nightly / name for name in ("reference", "one", "two", "zero")])
    assert (mended.newest.name, mended.exit_code) == ("zero", 0)
    assert of(mended, "blocks.1.mlp").state is PlaceState.CAME_BACK
    always = ac.trend([nightly / name for name in ("reference", "one", "three")])
    assert of(always, "blocks.1.mlp").state is PlaceState.ALWAYS
    assert always.exit_code == 1


def test_a_run_of_another_model_is_named_and_not_mixed_in(nightly: Path, tmp_path: Path) -> None:
    other = run(tmp_path / "other", 6, layers=[f"stage.{n}" for n in range(6)])
    wider = run(tmp_path / "narrow", 6, width=8)
    golden = run(tmp_path / "narrow-golden", 1, {"": 0.0}, width=8)
    ac.diff(golden, wider).to_json(tmp_path / "narrow.json")
    runs = [
        nightly / "reference",
        nightly / "zero",
        nightly / "one",
        other,
        tmp_path / "narrow.json",
    ]
    told = ac.trend(runs)
    assert [each.name for each in told.runs] == ["zero", "one"]
    assert [(Path(each.path).name, each.why) for each in told.left_out] == [
        ("other", NotInTrendWhy.OTHER_MODEL),
        ("narrow.json", NotInTrendWhy.OTHER_MODEL),
    ]
    assert told.exit_code == 2


def test_a_run_of_a_few_layers_is_of_the_same_model(nightly: Path) -> None:
    told = ac.trend([nightly / "reference", nightly / "zero"], only="blocks.0.*")
    whole = ac.trend([nightly / "reference", nightly / "zero"])
    assert not told.left_out
    assert whole.exit_code == 0


def test_layers_that_the_newest_left_out_do_not_pass(nightly: Path, tmp_path: Path) -> None:
    ac.diff(nightly / "reference", nightly / "zero").to_json(tmp_path / "all.json")
    ac.diff(nightly / "reference", nightly / "zero", skip="blocks.1.*").to_json(
        tmp_path / "few.json"
    )
    told = ac.trend([tmp_path / "all.json", tmp_path / "few.json"])
    assert {place.layer for place in told.lost} == {"blocks.1.attn", "blocks.1.mlp"}
    assert told.exit_code == 2


def test_what_cannot_be_read_is_named_and_the_rest_is_shown(
    nightly: Path, tmp_path: Path, cli: Run
) -> None:
    folder = shutil.copytree(nightly, tmp_path / "nightly")
    (folder / "two" / "manifest.json").write_text("{")
    (folder / "torn.json").write_text('{"golden": "')
    ended = cli("trend", str(folder))
    assert ended.returncode == 2
    assert "torn.json" in ended.stdout
    assert "two" in ended.stdout
    assert "since one (ok in zero), first blocks.1.mlp" in ended.stdout


def test_an_incomplete_newest_run_is_not_sure(nightly: Path, tmp_path: Path) -> None:
    half = run(tmp_path / "half", 9)
    edit_manifest(half, lambda manifest: manifest.update(complete=False))
    assert ac.trend([nightly / "reference", nightly / "zero", half]).exit_code == 2


@pytest.mark.parametrize(
    ("runs", "options", "told"),
    [
        (["nowhere"], {}, "does not exist"),
        (["zero"], {}, "the only bundle"),
        (["empty"], {}, "holds no bundle"),
        (["reference", "reference"], {}, "no run beside golden"),
        (["reference", "zero"], {"against": "nowhere"}, "best, first or one of zero"),
        (["x.json"], {"atol": 1e-3}, "judged already"),
    ],
)
def test_what_makes_no_sense_is_said(
    nightly: Path,
    results: Path,
    tmp_path: Path,
    runs: list[str],
    options: dict[str, Any],
    told: str,
) -> None:
    (tmp_path / "empty").mkdir()
    shutil.copy(results / "zero.json", tmp_path / "x.json")
    places = [tmp_path / name if name in ("empty", "x.json") else nightly / name for name in runs]
    with pytest.raises(UsageError, match=told):
        ac.trend(places, **options)


def test_the_command_prints_and_writes(nightly: Path, tmp_path: Path, cli: Run) -> None:
    files = {ending: tmp_path / f"trend.{ending}" for ending in ("xlsx", "json")}
    options = ["--report", str(files["xlsx"]), "--json", str(files["json"]), "--against", "best"]
    ended = cli("trend", str(nightly), *options)
    assert ended.returncode == 1
    assert ended.stdout.startswith("FAIL  1 layer fails in three since one (ok in zero), first")
    told = json.loads(files["json"].read_text())
    fell = next(each for each in told["layers"] if each["layer"] == "blocks.1.mlp")
    assert (fell["since"], fell["before"], fell["state"]) == ("one", "zero", "fell out")
    book = openpyxl.load_workbook(files["xlsx"])
    assert book.sheetnames == ["Since when", "Runs", "Layer by run", "Error by run"]
    cells = {cell.value for row in book["Since when"].iter_rows() for cell in row}
    assert {"blocks.1.mlp", "fell out", "one", "zero"} <= cells


def test_a_report_does_not_take_the_place_of_a_run(nightly: Path, results: Path, cli: Run) -> None:
    ended = cli("trend", str(results / "zero.json"), "--json", str(results / "zero.json"))
    assert ended.returncode == 2
    with pytest.raises(ReportError, match="lies in the bundle"):
        ac.trend(nightly).to_json(nightly / "one" / "x.json")
