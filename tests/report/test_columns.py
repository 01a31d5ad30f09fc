"""The table of columns, and the data frame made from it."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.result import Side
from accucompare.compare.rows.rows import Reason, Row, Verdict
from accucompare.numbers.statistics import Statistics
from accucompare.report.table.columns import COLUMNS, to_dataframe
from tests.compare.builder import item, write


def record(
    name: str, shape: tuple[int, ...] = (2, 3), dtype: str = "float32", call: int = 0
) -> Record:
    statistics = Statistics(min=-1.0, max=2.0, mean=0.5, l2=3.0, nan=0, inf=0)
    return Record(
        0,
        0,
        name,
        call,
        Role.OUTPUT,
        "",
        1,
        "Linear",
        None,
        shape,
        dtype,
        Layout.STRIDED,
        "m",
        "d",
        statistics,
    )


def comparison(*rows: Row) -> Comparison:
    return Comparison(Side(Path("golden"), Manifest()), Side(Path("npu"), Manifest()), list(rows))


def frame_of(*rows: Row) -> dict[str, list[object]]:
    return {
        str(title): values
        for title, values in to_dataframe(comparison(*rows)).to_dict("list").items()
    }


def test_titles_are_unique() -> None:
    assert len({column.title for column in COLUMNS}) == len(COLUMNS)


def test_data_frame_has_a_line_per_row_and_every_column() -> None:
    rows = [
        Row(record(name), record(name), Verdict(Reason.OK), Metrics(), module=name)
        for name in ("a", "b", "c")
    ]
    frame = to_dataframe(comparison(*rows))
    assert list(frame.columns) == [column.title for column in COLUMNS]
    assert list(frame["layer"]) == ["a", "b", "c"]
    assert list(frame["#"]) == [1, 2, 3]


def test_data_frame_of_no_rows_has_every_column() -> None:
    assert list(to_dataframe(comparison()).columns) == [column.title for column in COLUMNS]


def test_floats_stay_floats_nan_and_infinity_included() -> None:
    metrics = [Metrics(rel_l2=value) for value in (0.25, math.inf, math.nan)]
    frame = to_dataframe(
        comparison(
            *(
                Row(record("a"), record("a"), Verdict(Reason.OK), each, module="a")
                for each in metrics
            )
        )
    )
    assert frame["relative L2"].dtype == "float64"
    assert list(frame["relative L2"])[:2] == [0.25, math.inf]
    assert math.isnan(frame["relative L2"][2])


def test_counts_stay_integers_beside_rows_that_have_none() -> None:
    paired = Row(
        record("a", call=2), record("a", call=2), Verdict(Reason.OK), Metrics(max_ulp=7), module="a"
    )
    uncalled = Row(None, None, Verdict(Reason.NOT_CALLED), module="b")
    frame = to_dataframe(comparison(paired, uncalled))
    assert (frame["call"][0], frame["max ULP"][0]) == (2, 7)
    assert frame["call"].isna().tolist() == [False, True]


def test_root_module_is_shown_by_a_name() -> None:
    assert frame_of(Row(record(""), record(""), Verdict(Reason.OK), Metrics()))["layer"] == [
        "(root)"
    ]


def test_candidate_shape_is_called_the_same_where_it_is_goldens() -> None:
    same = Row(record("a"), record("a"), Verdict(Reason.OK), module="a")
    other = Row(record("a"), record("a", shape=(3, 2)), Verdict(Reason.SHAPE), module="a")
    extra = Row(None, record("a"), Verdict(Reason.EXTRA), module="a")
    frame = frame_of(same, other, extra)
    assert frame["golden shape"] == ["[2, 3]", "[2, 3]", ""]
    assert frame["candidate shape"] == ["same", "[3, 2]", "[2, 3]"]


def test_candidate_layer_is_called_the_same_unless_renaming_matched_it() -> None:
    same = Row(record("a"), record("a"), Verdict(Reason.OK), module="a")
    renamed = Row(record("a"), record("b"), Verdict(Reason.OK), module="a")
    assert frame_of(same, renamed)["candidate layer"] == ["same", "b"]


def test_row_without_partner_has_its_nearest_name_and_no_metrics() -> None:
    frame = frame_of(
        Row(record("fc1"), None, Verdict(Reason.MISSING), nearest="fc_1", module="fc1")
    )
    assert (frame["nearest name"], frame["status"], frame["reason"]) == (
        ["fc_1"],
        ["fail"],
        ["missing"],
    )
    assert math.isnan(float(str(frame["relative L2"][0])))
    assert frame["golden max"] == [2.0]


def test_importing_the_columns_does_not_import_pandas() -> None:
    code = "import sys, accucompare.report.table.columns; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_distance_beyond_int64_fits_the_frame(tmp_path: Path) -> None:
    golden, candidate = (
        write(tmp_path / name, [item("a", np.array([value]))])
        for name, value in (("g", -1.7e308), ("c", 1.7e308))
    )
    frame = ac.diff(golden, candidate).to_dataframe()
    assert frame["max ULP"][0] > 1 << 63


def test_integers_that_no_float_holds_stay_exact(tmp_path: Path) -> None:
    large = (1 << 53) + 1
    golden, candidate = (
        write(
            tmp_path / name,
            [item("a", np.array([value])), item("b", np.array([0.5])), item("c", layout="meta")],
        )
        for name, value in (("golden", large), ("candidate", large + 2))
    )
    frame = ac.diff(golden, candidate).to_dataframe()
    for title, value in {
        "golden there": large,
        "candidate there": large + 2,
        "golden max": large,
        "candidate min": large + 2,
    }.items():
        assert int(frame[title][0]) == value
    assert frame["golden max"][1:].astype(float).isna().tolist() == [False, True]
    assert frame["golden mean"].dtype == "float64"


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ((-(1 << 62) - 1, (1 << 62) + 1), "Int64"),
        (((1 << 63) + 1, (1 << 64) - 1), "UInt64"),
        (((1 << 64) - 1, -1), "object"),
    ],
)
def test_a_column_of_integers_alone_is_a_nullable_integer_that_is_exact(
    values: tuple[int, int], dtype: str, tmp_path: Path
) -> None:
    arrays = [np.array([value], np.int64 if value < 1 << 63 else np.uint64) for value in values]
    bundle = write(
        tmp_path / "golden", [item("a", arrays[0]), item("b", arrays[1]), item("c", layout="meta")]
    )
    column = ac.diff(bundle, bundle).to_dataframe()["golden max"]
    assert column.dtype == dtype
    assert tuple(map(int, column[:2])) == values
    assert column.isna().tolist() == [False, False, True]


def test_what_could_not_be_measured_for_want_of_finite_values_is_shown_nowhere_as_zero(
    tmp_path: Path,
) -> None:
    golden = write(tmp_path / "golden", [item("a", np.ones(3, np.float32))])
    candidate = write(tmp_path / "candidate", [item("a", np.full(3, np.nan, np.float32))])
    found = ac.diff(golden, candidate)
    line = to_dataframe(found).iloc[0]
    assert (
        line[["relative L2", "1 − cosine", "max abs diff", "RMSE", "bias", "max ULP", "over 1e-3"]]
        .isna()
        .all()
    )
    assert line["candidate NaN"] == 3
    metrics = json.loads(found.to_json(tmp_path / "x.json").read_text())["rows"][0]["metrics"]
    assert {name: value for name, value in metrics.items() if value is not None} == {
        "elements": 3, "compared": 0, "golden_nan": 0, "candidate_nan": 3, "golden_inf": 0,
        "candidate_inf": 0,
        "nonfinite_mismatch": 3, "nonfinite_index": [0], "masked": 0,
    }  # fmt: skip
