"""Reports of very many rows: which ones a workbook and a page hold, what all of them come to, and
every row for programs.
"""

from __future__ import annotations

import json
import math
import re
import resource
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace
from openpyxl import load_workbook

from accucompare.api import Comparison
from accucompare.compare.origins.sites import Culprit
from accucompare.compare.rows.rows import Reason, Row, Status
from accucompare.errors import ReportError
from accucompare.numbers.statistics import Statistics
from accucompare.report.excel import worksheets
from accucompare.report.table import heat, overview, sheets
from accucompare.report.table.columns import COLUMNS
from accucompare.report.table.extremes import Extremes, first_of, second_of
from benchmarks.made_rows import ManyRows, many
from tests.attacks.conftest import Command, command  # noqa: F401
from tests.compare.builder import item, write
from tests.report.test_excel import comparison, every_reason, missing, pair, target, values

MOST = 150


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few rows are very many here."""
    monkeypatch.setattr(overview, "MOST_ROWS", MOST)
    monkeypatch.setattr(sheets, "MAX_POINTS", 10)


def made(found: Comparison) -> ManyRows:
    rows: Any = found.rows
    assert isinstance(rows, ManyRows)
    return rows


def size(row: Row) -> float:
    """How bad a row is, by the rules of the heat maps, written down once more."""
    if row.status is Status.NOT_COMPARED:
        return -1.0
    used = row.verdict.over_limit or 0.0
    return used if row.status is Status.PASS or used > 1 else math.inf


@pytest.fixture(scope="module")
def workbook(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Comparison, Any]]:
    found = many(ranks=6, steps=2, layers=60)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(overview, "MOST_ROWS", MOST)
        patch.setattr(sheets, "MAX_POINTS", 10)
        yield found, load_workbook(found.to_excel(tmp_path_factory.mktemp("many") / "x.xlsx"))


def table(sheet: Any) -> list[dict[str, Any]]:
    """A table below its heading, whose last line is short."""
    lines = list(sheet.iter_rows(values_only=True))
    header = next(
        at for at, line in enumerate(lines) if line[1] is not None and line[2] is not None
    )
    return [dict(zip(lines[header], line, strict=True)) for line in lines[header + 1 :]]


# The workbook


def test_up_to_the_bound_every_row_is_there_in_its_order(tmp_path: Path) -> None:
    found = many(layers=MOST)
    sheet = load_workbook(found.to_excel(tmp_path / "x.xlsx"))["Layers"]
    assert values(sheet, "#") == list(range(1, MOST + 1))


def test_of_more_rows_those_that_fail_come_first_and_then_the_nearest_to_their_limit(
    workbook: tuple[Comparison, Any],
) -> None:
    found, book = workbook
    rows = list(found.rows)
    lines = table(book["Layers"])
    failing = [number for number, row in enumerate(rows, 1) if row.status is Status.FAIL]
    near = sorted(
        (number for number, row in enumerate(rows, 1) if row.verdict.near),
        key=lambda at: -(rows[at - 1].verdict.over_limit or 0),
    )
    numbers = [line["#"] for line in lines]
    assert numbers[: len(failing) + len(near)] == [*failing, *near]
    assert len(numbers) <= MOST
    for line in lines:
        row = rows[line["#"] - 1]
        assert (line["layer"], line["rank"], line["step"], line["reason"]) == (
            row.module,
            row.golden.rank,
            row.golden.step,
            row.reason.value,
        )


def test_what_is_left_out_is_said_and_adds_up(workbook: tuple[Comparison, Any]) -> None:
    found, book = workbook
    said = book["Layers"]["A1"].value
    held = len(table(book["Layers"]))
    assert f"holds {held} of 720 rows: all 39 that fail" in said
    left_out = {
        name: int(count)
        for count, name in re.findall(
            r"(\d+) (ok|identical|inherited)", said.partition("Left out:")[2]
        )
    }
    assert held + sum(left_out.values()) == len(found.rows)
    assert "--parquet PATH and --json PATH.jsonl write every row" in said
    assert any("holds" in str(line[2]) for line in book["Summary"].iter_rows(values_only=True))


@pytest.mark.parametrize("name", ["layer", "rank", "step"])
def test_summaries_count_every_row_and_lead_to_the_worst(
    workbook: tuple[Comparison, Any], name: str
) -> None:
    found, book = workbook
    groups: dict[Any, list[tuple[int, Row]]] = {}
    for number, row in enumerate(found.rows, 1):
        assert row.golden is not None
        groups.setdefault(row.module if name == "layer" else getattr(row.golden, name), []).append(
            (number, row)
        )
    lines = table(book[f"By {name}"])
    assert [line[name] for line in lines] == list(groups)
    for line in lines:
        own = groups[line[name]]
        number, worst = max(own, key=lambda each: (size(each[1]), -each[0]))
        assert (line["rows"], line["failing"]) == (
            len(own),
            sum(row.status is Status.FAIL for _, row in own),
        )
        assert line["worst x limit"] == pytest.approx(size(worst), rel=1e-12)
        assert line["worst relative L2"] == max(row.metrics.rel_l2 for _, row in own if row.metrics)
        assert line["#"] == number
    linked = [
        cell.hyperlink for line in book[f"By {name}"].iter_rows() for cell in line if cell.hyperlink
    ]
    assert len(linked) == len(lines)
    assert [target(book, link).value for link in linked] == [
        found.rows[line["#"] - 1].module for line in lines
    ]


@pytest.mark.parametrize("across", ["rank", "step"])
def test_a_heat_map_shows_powers_of_ten_of_the_worst_error_over_its_limit(
    workbook: tuple[Comparison, Any], across: str
) -> None:
    found, book = workbook
    sheet = book[f"Layer by {across}"]
    worst: dict[tuple[str, str], float] = {}
    for row in found.rows:
        place = row.module, str(getattr(row.golden, across))
        worst[place] = max(worst.get(place, 0.0), size(row))
    shown = {
        (line["layer"], title): value
        for line in table(sheet)
        for title, value in line.items()
        if title != "layer"
    }
    assert shown == {
        place: "=" if not worst[place] else pytest.approx(math.log10(worst[place]), abs=1e-12)
        for place in worst
    }
    (scale,) = [
        rule
        for area in sheet.conditional_formatting
        for rule in area.rules
        if rule.type == "colorScale"
    ]
    assert [float(each.val) for each in scale.colorScale.cfvo] == [-3, 0, 3]


def test_a_comparison_of_every_reason_is_summed_up(tmp_path: Path) -> None:
    rows = [
        replace(row, golden=row.golden and replace(row.golden, rank=rank))
        for rank in range(2)
        for row in every_reason()
    ]
    book = load_workbook(comparison(*rows).to_excel(tmp_path / "x.xlsx"))
    lines = {line["layer"]: line for line in table(book["By layer"])}
    assert (
        lines["not called"]["rows"],
        lines["not called"]["not compared"],
        lines["not called"]["worst x limit"],
    ) == (2, 2, None)
    assert (lines["shape"]["failing"], lines["shape"]["worst x limit"]) == (2, "inf")
    heats = {line["layer"]: line for line in table(book["Layer by rank"])}
    assert (heats["shape"]["0"], heats["ok"]["0"], heats["identical"]["1"]) == (
        "inf",
        pytest.approx(-2),
        "=",
    )
    assert "not comparable" not in heats  # nothing of it was compared


def test_more_failing_rows_than_fit_keep_the_first_ones_and_what_links_lead_to(
    tmp_path: Path,
) -> None:
    rows = [pair(f"a{number}", 1e-3 * (1 + number)) for number in range(3 * MOST)]
    last = rows[-1].module
    found = comparison(
        *rows, culprits=[Culprit(last, 0, "module", "", rows[-1], 31.0, Reason.INTRODUCED)]
    )
    book = load_workbook(found.to_excel(tmp_path / "x.xlsx"))
    numbers = [line["#"] for line in table(book["Layers"])]
    assert len(numbers) == MOST
    assert numbers == sorted(numbers)
    assert numbers[0] == 1
    assert numbers[-1] == 3 * MOST
    culprit = next(
        cell
        for line in book["Summary"].iter_rows()
        for cell in line
        if cell.hyperlink and str(cell.value).startswith(last)
    )
    assert target(book, culprit.hyperlink).value == last
    assert f"{MOST} of {3 * MOST} that fail" in book["Layers"]["A1"].value


def test_a_sheet_has_no_more_links_than_excel_opens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worksheets, "_MOST_LINKS", 9)
    book = load_workbook(many(ranks=2, layers=30).to_excel(tmp_path / "x.xlsx"))
    linked = [
        cell.value for line in book["By layer"].iter_rows() for cell in line if cell.hyperlink
    ]
    assert len(linked) == 9


def test_rows_without_partner_beyond_the_bound_are_counted(tmp_path: Path) -> None:
    book = load_workbook(
        comparison(*(missing(f"a{number}") for number in range(MOST + 7))).to_excel(
            tmp_path / "x.xlsx"
        )
    )
    assert book["Unmatched"]["A1"].value == "… and 7 more below these, which this sheet leaves out."
    assert len(table(book["Unmatched"])) == MOST


# How often rows are made, and what is kept of them


def test_every_row_is_looked_at_once_for_all_reports() -> None:
    found = many(ranks=20, layers=100)
    overview.overview_of(found)
    assert 2_000 <= made(found).made <= 2_000 + 400  # the first ones also for the first divergence
    before = made(found).made
    overview.overview_of(found)
    assert made(found).made == before


@pytest.mark.parametrize("name", ["x.json", "x.jsonl"])
def test_rows_are_streamed_to_json(tmp_path: Path, name: str) -> None:
    few_rows, more_rows = many(layers=20), many(layers=170)
    peaks = []
    for found in (few_rows, few_rows, more_rows):  # the first one fills caches
        tracemalloc.start()
        found.to_json(tmp_path / name)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[2] < peaks[1] + 200_000  # 150 rows as dicts take 1 MB


# Small parts


def test_places_are_found_of_rows_that_are_made_anew() -> None:
    found = many(ranks=3, layers=30)
    finder = overview.Finder([found.rows[70], None, found.rows[5]])
    for at, rows in enumerate(overview.blocks(found.rows, 16)):
        finder.look(rows, 16 * at)
    assert finder.places == [70, None, 5]


def test_of_rows_about_the_same_the_very_one_is_found() -> None:
    rows = [pair("a"), pair("a"), pair("b")]
    finder = overview.Finder([rows[1]])
    finder.look(rows, 0)
    assert finder.places == [1]


def test_the_worst_of_pairs_is_the_same_as_by_a_dict() -> None:
    draw = np.random.default_rng(4)
    layers, ranks, used = (
        draw.integers(0, 9, 2_000),
        draw.integers(0, 5, 2_000),
        draw.integers(-1, 12, 2_000).astype(float),
    )
    reference: dict[tuple[int, int], tuple[float, int]] = {}
    for at, place in enumerate(zip(layers.tolist(), ranks.tolist(), strict=True)):
        reference[place] = max(reference.get(place, (-2.0, 0)), (used[at], -at))
    found = Extremes(np.arange(2_000), used, np.arange(2_000), used + 1, -used).by(
        layers << 32 | ranks
    )
    pairs = list(
        zip(first_of(found.groups).tolist(), second_of(found.groups).tolist(), strict=True)
    )
    assert pairs == sorted(reference)
    assert found.over_limit.tolist() == [reference[each][0] for each in pairs]
    assert found.places.tolist() == [-reference[each][1] for each in pairs]
    assert found.rel_l2.tolist() == (found.over_limit + 1).tolist()


def test_many_ranks_share_columns_and_the_worst_layers_are_shown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(heat, "MOST_COLUMNS", 4)
    monkeypatch.setattr(heat, "MOST_LAYERS", 5)
    found = many(ranks=7, layers=12)
    (of_ranks,) = heat.heat_maps(overview.overview_of(found))
    rows = list(found.rows)
    worst = {
        name: max(size(row) for row in rows if row.module == name)
        for name in dict.fromkeys(row.module for row in rows)
    }
    assert of_ranks.columns == ["0–1", "2–3", "4–5", "6"]
    assert (of_ranks.left_out, of_ranks.together) == (7, 2)
    assert sorted(of_ranks.layers) == sorted(sorted(worst, key=lambda name: -worst[name])[:5])
    for name, line in zip(of_ranks.layers, of_ranks.sizes.tolist(), strict=True):
        assert line == [
            max(
                size(row)
                for row in rows
                if row.module == name and row.golden and row.golden.rank // 2 == at
            )
            for at in range(4)
        ]
    assert "Of every 2 neighbouring ranks the worst" in heat.heat_note(of_ranks)
    assert "7 more are left out" in heat.heat_note(of_ranks)


# JSON lines


def hostile() -> Comparison:
    """NaN and infinities, half a surrogate, an integer of more than 64 bits, rows of one side."""
    rows = [
        *every_reason(),
        pair("a\udc80\u202e\n=1+1", math.inf),
        pair("nan", math.nan, Reason.NON_FINITE),
    ]
    golden = rows[0].golden
    assert golden is not None
    statistics = Statistics(-(1 << 63), (1 << 64) + 1, 0.5, 1.0, 0, 0)
    return comparison(
        *rows,
        replace(
            rows[0],
            golden=msgspec.structs.replace(golden, name="int", statistics=statistics),
            module="int",
        ),
    )


def test_json_lines_hold_what_the_document_does(tmp_path: Path) -> None:
    found = hostile()
    document = json.loads(found.to_json(tmp_path / "x.json").read_text())
    head, *rows = [
        json.loads(line)
        for line in (found.to_json(tmp_path / "x.NDJSON")).read_bytes().splitlines()
    ]
    assert rows == document.pop("rows")
    assert head == {**document, "row_count": len(rows)}
    assert rows[20]["used"] == "inf"
    assert rows[22]["golden"]["statistics"]["max"] == (1 << 64) + 1


def test_the_document_is_what_json_itself_would_write(tmp_path: Path) -> None:
    for found in (hostile(), comparison()):
        text = found.to_json(tmp_path / "x.json").read_text()
        again = json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n"
        assert text.encode() == again.encode("utf-8", "backslashreplace")


def test_export_reads_json_lines_and_tells_of_lost_ones(command: Command, tmp_path: Path) -> None:  # noqa: F811
    many(layers=9).to_json(tmp_path / "x.jsonl")
    assert command("export", "x.jsonl", "--to", "perfetto", "--out", "x.trace.json").code == 0
    whole = (tmp_path / "x.jsonl").read_bytes().splitlines(keepends=True)
    (tmp_path / "cut.jsonl").write_bytes(b"".join(whole[:-2]))
    done = command("export", "cut.jsonl", "--to", "perfetto")
    assert done.code == 2
    assert "it has 7 of 9 rows" in done.err


# Parquet


@pytest.fixture
def parquet() -> Any:
    return pytest.importorskip("pyarrow.parquet")


def test_parquet_holds_every_value_of_layers(parquet: Any, tmp_path: Path) -> None:
    found = hostile()
    whole = parquet.read_table(found.to_parquet(tmp_path / "x.parquet")).to_pydict()
    for column in COLUMNS:
        expected = [
            number if column.get is None else column.get(row)
            for number, row in enumerate(found.rows, 1)
        ]
        for value, kept in zip(expected, whole[column.title], strict=True):
            if isinstance(value, str):
                assert kept == value.replace("\udc80", r"\udc80")
            elif value is None:
                assert kept is None
            else:
                assert kept == float(value) or (math.isnan(value) and math.isnan(kept))
    assert whole["golden max (exact)"] == [None] * (len(found.rows) - 1) + [Decimal((1 << 64) + 1)]


def test_integers_beyond_float64_are_exact_in_parquet(parquet: Any, tmp_path: Path) -> None:
    first = pair("a")
    assert first.golden is not None
    statistics = Statistics(-(1 << 63) + 1, (1 << 64) - 1, 0.5, 1.0, 0, 0)
    rows = [
        first,
        replace(
            first,
            golden=msgspec.structs.replace(first.golden, statistics=statistics, name="b"),
            module="b",
        ),
    ]
    path = comparison(*rows).to_parquet(tmp_path / "x.parquet")
    whole = parquet.read_table(path).to_pydict()
    assert whole["golden min (exact)"] == [None, Decimal(-(1 << 63) + 1)]
    assert whole["golden max (exact)"] == [None, Decimal((1 << 64) - 1)]
    assert whole["golden min"] == [-1.0, -(2.0**63)]


def test_parquet_has_one_schema_for_all_and_the_head_beside_it(
    parquet: Any, tmp_path: Path
) -> None:
    schemas = [
        parquet.read_schema(each.to_parquet(tmp_path / "x.parquet"))
        for each in (comparison(), comparison(missing("a")), many(layers=20))
    ]
    assert all(schema.equals(schemas[0], check_metadata=False) for schema in schemas)
    types = {field.name: str(field.type) for field in schemas[0]}
    assert (types["#"], types["layer"], types["relative L2"]) == (
        "uint64",
        "dictionary<values=string, indices=int32, ordered=0>",
        "double",
    )
    head = json.loads(schemas[2].metadata[b"accucompare"])
    assert (head["verdict"], head["row_count"]) == ("FAIL", 20)


def test_pandas_reads_parquet_as_the_data_frame(parquet: Any, tmp_path: Path) -> None:
    import pandas

    found = many(ranks=2, layers=30)
    frame = pandas.read_parquet(found.to_parquet(tmp_path / "x.parquet"))
    ours = found.to_dataframe()
    assert (frame["relative L2"] == ours["relative L2"]).all()
    assert (frame["layer"].astype(str) == ours["layer"]).all()
    assert (
        frame.groupby("rank")["x limit"].max().to_list()
        == ours.groupby("rank")["x limit"].max().to_list()
    )


def test_parquet_is_written_group_by_group(
    parquet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("accucompare.report.files.parquet._IN_BLOCK", 4)
    monkeypatch.setattr("accucompare.report.files.parquet._BLOCKS", 2)
    file = parquet.ParquetFile(many(layers=20).to_parquet(tmp_path / "x.parquet"))
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [8, 8, 4]
    assert file.read(["#"]).to_pydict()["#"] == list(range(1, 21))


def test_without_pyarrow_one_message_comes_before_any_work(
    command: Command,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    done = command("diff", "no-bundle", "no-other", "--parquet", "x.parquet")
    assert done.code == 2
    assert "pip install 'accucompare[parquet]'" in done.err
    assert done.err.count("\n") == 1


# What cannot be written


@pytest.fixture
def bundles(tmp_path: Path) -> Path:
    for name, value in (("golden", 1.0), ("npu", 2.0)):
        write(
            tmp_path / name,
            [item("", [1.0], role="input", path="x", parent=None), item("fc", [value])],
        )
    return tmp_path


@pytest.mark.parametrize("kind", ["xlsx", "html", "json", "jsonl", "parquet"])
def test_a_full_disk_leaves_what_was_there_and_nothing_half(tmp_path: Path, kind: str) -> None:
    found = comparison(
        *(pair(f"{np.random.default_rng(number).bytes(600).hex()}") for number in range(300))
    )
    path = tmp_path / f"x.{kind}"
    path.write_text("old")
    write: Callable[[Path], Path] = {
        "xlsx": found.to_excel,
        "html": found.to_html,
        "parquet": found.to_parquet,
    }.get(kind, found.to_json)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(ReportError, match=rf"x\.{kind}: cannot be written \(.+\); "):
            write(path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]
    assert path.read_text() == "old"


def test_the_verdict_and_the_other_reports_are_there_where_one_cannot_be_written(
    command: Command,  # noqa: F811
    bundles: Path,
) -> None:
    done = command(
        "diff",
        "golden",
        "npu",
        "--report",
        "x.xlsx",
        "--json",
        "/dev/full",
        "--parquet",
        "x.parquet",
    )
    assert done.code == 2
    assert done.out.startswith("FAIL  npu against golden")
    assert "report: x.xlsx" in done.out
    assert done.err.startswith(
        "accucompare: /dev/full: cannot be written (No space left on device); free some space"
    )
    assert (bundles / "x.xlsx").is_file()
    assert (bundles / "x.parquet").is_file()


def test_parquet_is_refused_in_a_bundle_and_over_another_report(
    command: Command,  # noqa: F811
    bundles: Path,
) -> None:
    done = command("diff", "golden", "npu", "--parquet", "golden/x.parquet")
    assert (done.code, done.out) == (2, "")
    assert "lies in the bundle" in done.err
    done = command("diff", "golden", "npu", "--json", "x", "--parquet", "x")
    assert (done.code, done.out) == (2, "")
    assert "--parquet x: is the same file as --json x" in done.err


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_an_interrupt_says_what_is_not_written_and_leaves_nothing(
    command: Command,  # noqa: F811
    bundles: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
) -> None:
    def interrupted(*_: Any) -> Iterator[Any]:
        yield from ()
        raise KeyboardInterrupt

    monkeypatch.setattr("accucompare.report.files.json.with_producers", interrupted)
    monkeypatch.setattr("accucompare.report.files.parquet.value_blocks", interrupted)
    done = command("diff", "golden", "npu", "--report", "none", f"--{kind}", f"x.{kind}")
    assert done.code == 130
    assert f"interrupted; x.{kind} is not written" in done.err
    assert sorted(each.name for each in bundles.iterdir()) == ["golden", "npu"]
