"""The page, in a real browser: what is seen, filtered, sorted, followed; hostile names; 100,000
rows; no error in the console.
"""

from __future__ import annotations

import math
import re
from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.records import Role
from accucompare.compare.fits import (
    CurvePoint,
    Fit,
    FitAnswer,
    FitGoal,
    FitOutput,
    FitRun,
    KeptPlaces,
    PlaceShare,
)
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.rows.rows import Reason, Row, Verdict
from accucompare.errors import ReportError
from accucompare.findings.analysis.analysis import read_logs
from accucompare.findings.checklist.health_checklist import judge_log
from accucompare.findings.log.vital_events import ParameterFacts, TrainingSetup, Vitals
from accucompare.report.page.page_comparison import anchor
from accucompare.report.page.page_data import leading_bits
from accucompare.report.page.page_fit import write_fit_page
from accucompare.report.table import overview, sheets
from accucompare.report.table.columns import to_dataframe
from accucompare.report.watch_files.log_page import write_health_page, write_log_page
from accucompare.report.watched.health_columns import headline
from accucompare.report.watched.watch_columns import MEASURES
from accucompare.text import printable
from benchmarks.made_rows import many
from tests.compare.builder import item, write
from tests.compare.test_ladder import changed, run, steps
from tests.findings.logs import NASTY, end, found, frames, start, step, training
from tests.findings.logs import write as write_log
from tests.frozen.test_frozen import mixed, several
from tests.report.browser import Browser
from tests.report.test_columns import comparison as of_rows
from tests.report.test_columns import record
from tests.report.test_one_answer import train

EVIL = (
    "</script><script>document.title='taken'</script>",
    "<img src=x onerror=\"document.title='taken'\">",
    "a\u202eb\x1b[2J",
    *NASTY,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pages")


@pytest.fixture(scope="module")
def every_reason(folder: Path) -> Comparison:
    return mixed(folder / "mixed")


@pytest.fixture(scope="module")
def page(every_reason: Comparison, folder: Path) -> Path:
    return every_reason.to_html(folder / "mixed.html")


@pytest.fixture(scope="module")
def steps_and_ranks(folder: Path) -> Path:
    return several(folder / "several").to_html(folder / "several.html")


@pytest.fixture(scope="module")
def hostile(folder: Path) -> Comparison:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(8, 8)).astype(np.float32)
    off = [
        item(name, values * (1 + (at == 2) * 1e-2), type=EVIL[0], path=EVIL[1])
        for at, name in enumerate(EVIL)
    ]
    golden = write(
        folder / "hostile",
        [item(name, values, type=EVIL[0], path=EVIL[1]) for name in EVIL],
        environment={"note": EVIL[0]},
    )
    return ac.diff(golden, write(folder / "hostile-npu", off, environment={"note": EVIL[1]}))


def log(folder: Path) -> Path:
    """A log with everything in it, and the numbers of three parameters in four steps."""
    names = ("a.weight", "a.bias", "b.weight")
    setup = TrainingSetup(
        0, [ParameterFacts(name, (4,), "float32", "Linear", True) for name in names], every=1
    )
    vitals = [
        Vitals(
            n,
            layers={
                "grad": [0.1, None, "nan"],
                "weight": [1.0, 2.0, 3.0],
                "update": [1e-3, 0.0, 1e-2],
            },
        )
        for n in range(4)
    ]
    *events, last = training(0, 1)
    write_log(folder / "rank0.jsonl", *events[:1], setup, *events[1:], *vitals, last)
    return folder


@pytest.fixture(scope="module")
def log_page(folder: Path) -> Path:
    return write_log_page(read_logs(log(folder / "watch")), folder / "watch.html")


# The file


def test_a_page_is_one_file_that_runs_our_own_script_alone(page: Path) -> None:
    text = page.read_text()
    script, style = (
        re.search(f"<{tag}>(.*?)</{tag}>", text, re.DOTALL) for tag in ("script", "style")
    )
    assert script
    assert style
    policy = re.search('Content-Security-Policy" content="(.*?)"', text)
    assert policy
    given = policy[1].replace("&#39;", "'").replace("&#43;", "+")
    assert given.startswith("default-src 'none'")
    for name, own in (("script-src", script[1]), ("style-src", style[1])):
        assert f"{name} 'sha256-{b64encode(sha256(own.encode()).digest()).decode()}';" in given
    assert not re.search(r"<(link|img|iframe|script src)", text)


def test_the_library_in_the_page_keeps_its_licence(page: Path) -> None:
    assert "uPlot (v1.6.32)" in page.read_text()
    licence = Path(ac.__file__).parent / "report" / "page" / "uPlot.LICENSE"
    assert "Permission is hereby granted" in licence.read_text()


def test_a_page_must_be_called_html(every_reason: Comparison, tmp_path: Path) -> None:
    with pytest.raises(ReportError, match=r"must end in \.html, such as x\.html"):
        every_reason.to_html(tmp_path / "x.pdf")


@pytest.mark.parametrize(("count", "digits"), [(3, 1e-3), (4, 1e-6), (8, 0.0)])
def test_numbers_are_kept_to_the_digits_that_are_shown(count: int, digits: float) -> None:
    numbers = [3.14159265358979e-300, -2.7e-7, 1.0, 999.5, 1.7976931348623157e308, 5e-324, 0.0]
    kept = leading_bits(numbers, count).view(np.float64)
    assert np.all(np.isfinite(kept))
    assert kept[:5] == pytest.approx(numbers[:5], rel=max(digits, 1e-15))
    assert kept[6] == 0


def test_the_page_shows_the_last_digit_that_the_number_has(browser: Browser, folder: Path) -> None:
    """Of a number that is kept in a few bytes; ``format`` stands for the workbook, and for every
    other report.
    """
    rng = np.random.default_rng(0)
    errors = [*(10.0 ** rng.uniform(-9, 2, 300)), 9.9949e-3, 9.995e-3, 1.0]
    excesses = [*(rng.uniform(100, 999, 300)), 166.4949, 79.3151, 0.5]
    sides = [record(f"m{number}") for number in range(len(errors))]
    rows = [
        Row(
            side,
            side,
            Verdict(Reason.OK, over_limit=excess),
            Metrics(rel_l2=error),
            module=side.name,
        )
        for side, error, excess in zip(sides, errors, excesses, strict=True)
    ]
    browser.open(of_rows(*rows).to_html(folder / "digits.html"))
    told = browser.run(
        "return unpack().then(({ head: { tables: { rows } } }) => ['relative L2', 'x"
        " limit'].map((title) => rows.column(title)).map((column) => Array.from({ length: rows.rows"
        " }, (_, row) => shown(column, column.value(row)))))"
    )
    assert told == [[f"{error:.2e}" for error in errors], [f"{excess:.2f}" for excess in excesses]]


def test_what_is_no_number_is_told_from_nan_and_infinities() -> None:
    first = [int(bits) >> 48 for bits in leading_bits([math.nan, None, "", math.inf, -math.inf], 3)]
    assert first == [0x7FF8, 0x7FFC, 0x7FFC, 0x7FF0, 0xFFF0]


# The first screen


def test_the_sentence_and_the_culprits_come_first(browser: Browser, page: Path) -> None:
    browser.open(page)
    assert browser.text(".verdict") == "FAIL"
    assert browser.text("h1").startswith(
        "different: b.fc, x limit 98.7 is the first over tolerance"
    )
    assert (
        browser.text(".meaning")
        == "4 of 20 rows fail, the first at b.fc output. 1 could not be compared."
    )
    assert browser.texts(".culprits .place") == ["b.fc", "shape", "kind", "nan"]
    assert "train mode: golden off, candidate on" in browser.text(".preflight")


def test_a_culprit_leads_to_its_row(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('.culprits .place').click()")
    browser.until("return !document.getElementById('details').hidden")
    assert browser.text("#details h3") == "b.fc output"


def test_the_chart_names_the_layer_below_the_pointer_and_a_click_leads_to_its_row(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    point_at = """const over = document.querySelector("#divergence .u-over");
    const box = over.getBoundingClientRect();
    const at = { clientX: box.left + box.width * 3 / 8, clientY: box.top + 20, bubbles: true };
    for (const type of arguments[0]) over.dispatchEvent(new MouseEvent(type, at));"""
    browser.run(point_at, ["mouseenter", "mousemove"])
    browser.until("return !document.querySelector('#divergence .tip').hidden")
    assert browser.text("#divergence .tip").splitlines() == [
        "b.fc output",
        "relative L2 9.87e-03",
        "limit 1.00e-04",
        "introduced",
    ]
    browser.run(point_at, ["mousedown", "mouseup", "click"])
    assert browser.text("#details h3") == "b.fc output"


# The table


def test_every_reason_and_every_row_are_in_the_table(
    browser: Browser, page: Path, every_reason: Comparison
) -> None:
    browser.open(page)
    assert browser.column("reason") == [row.reason.value for row in every_reason.rows]
    assert browser.text("#rows .count") == "20 rows"


def test_cells_say_what_the_data_frame_holds(
    browser: Browser, page: Path, every_reason: Comparison
) -> None:
    frame = to_dataframe(every_reason)
    browser.open(page)
    measured = [
        "" if math.isnan(each) else "0" if not each else f"{each:.2e}"
        for each in frame["relative L2"]
    ]
    assert browser.column("relative L2") == measured
    assert browser.column("layer") == list(frame["layer"])


def test_a_filter_leaves_the_rows_that_hold_its_text(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.type("#rows input[type=search]", "B.FC")
    assert browser.column("layer") == ["b.fc", "b.fc"]
    assert browser.text("#rows .count") == "2 of 20 rows"


def test_a_filter_can_be_a_regular_expression_and_a_wrong_one_is_marked(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    browser.run("document.querySelector('#rows label[title*=regular] input').click()")
    browser.type("#rows input[type=search]", r"^[ab]\.norm$")
    assert browser.column("layer") == ["a.norm"] * 2 + ["b.norm"] * 2
    browser.type("#rows input[type=search]", "(")
    assert browser.run(
        "return document.querySelector('#rows input[type=search]').matches(':invalid')"
    )
    assert browser.text("#rows .nothing").startswith("The filter is no regular expression: ")


def test_a_click_on_a_title_sorts_and_the_third_one_restores_the_order(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    usual = browser.column("#")
    browser.click("#rows .header button", "relative L2")
    assert browser.column("layer")[0] == "b.fc"
    assert browser.column("relative L2")[-1] == ""  # what was not measured comes last
    browser.click("#rows .header button", "relative L2")
    assert [browser.column("relative L2")[0], browser.column("relative L2")[-1]] == ["0", ""]
    browser.click("#rows .header button", "relative L2")
    assert browser.column("#") == usual


def test_boxes_choose_status_and_role(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelector('[data-of=status] input[value=pass]').click()")
    reasons = [
        "introduced",
        "shape",
        "dtype",
        "non-finite",
        "one-sided",
        "one-sided",
        "not comparable",
        "not called",
    ]
    assert browser.column("reason") == reasons
    browser.run("document.querySelector('[data-of=role] input[value=output]').click()")
    assert browser.column("layer") == ["idle"]


def test_columns_can_be_shown(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run(
        "[...document.querySelectorAll('#rows .choices label')].find((each) =>"
        " each.textContent.trim() === 'golden L2').click()"
    )
    assert len(browser.column("golden L2")) == 20


def test_keys_walk_through_the_table_and_escape_closes_the_details(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    for key in ("ArrowDown", "ArrowDown", "End", "ArrowUp"):
        browser.press("#rows .scroller", key)
    assert browser.run("return document.querySelector('.line.current').dataset.row") == "18"
    browser.press("body", "Escape")
    assert browser.run("return document.getElementById('details').hidden")


def test_details_show_both_sides(browser: Browser, page: Path, every_reason: Comparison) -> None:
    row = next(row for row in every_reason.rows if row.reason is Reason.NON_FINITE)
    browser.open(page, anchor(row))
    shown = browser.text("#details")
    assert row.golden
    assert row.golden.statistics
    assert f"{row.golden.statistics.max:.5e}" in shown
    assert re.search(r"NaN\s+1", shown)
    assert "NaN or Inf on one side only" in shown


def test_nan_infinities_and_zeros_survive(browser: Browser, folder: Path) -> None:
    sizes = [math.nan, math.inf, 0.0, 1.5e-300, 1.79e308, 2.5e-7]
    rows = [
        Row(
            record(f"m{n}"),
            record(f"m{n}"),
            Verdict(Reason.OK),
            Metrics(max_abs=size),
            module=f"m{n}",
        )
        for n, size in enumerate(sizes)
    ]
    browser.open(of_rows(*rows).to_html(folder / "numbers.html"))
    assert browser.column("max abs diff") == [
        "NaN",
        "inf",
        "0",
        "1.50e-300",
        "1.79e+308",
        "2.50e-07",
    ]
    browser.click("#rows .header button", "max abs diff")
    assert browser.column("layer") == ["m0", "m1", "m4", "m5", "m3", "m2"]


# The tree, switches, links


def test_the_tree_is_open_at_the_first_divergence_and_marks_it(
    browser: Browser, page: Path
) -> None:
    browser.open(page)
    labels = browser.texts("#tree .label")
    assert labels[:5] == ["(root)", "a", "b", "fc", "norm"]
    assert browser.texts("#tree .node:has(.here) .label") == ["fc"]


@pytest.mark.parametrize("role", [Role.INPUT, Role.GRAD_OUTPUT])
def test_what_glue_made_fails_in_the_module_whose_code_it_is(
    browser: Browser, folder: Path, role: Role
) -> None:
    given = replace(record("net.attn.list.proj"), role=role, parent=("net.attn", 0))
    rows = [Row(given, given, Verdict(Reason.GLUE), Metrics(rel_l2=0.1), module=given.name)]
    browser.open(of_rows(*rows).to_html(folder / f"glue-{role.value}.html"))
    assert browser.texts("#tree .node:has(.fails) .label") == ["(root)", "net", "attn"]
    assert "proj" in browser.texts("#tree .label")


def test_a_click_on_a_module_shows_its_rows_alone(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.click("#tree .node", "b")
    assert set(browser.column("layer")) == {"b", "b.fc", "b.norm"}
    browser.click("#rows .chip")
    assert browser.text("#rows .count") == "20 rows"


def test_arrow_keys_fold_and_unfold_modules(browser: Browser, page: Path) -> None:
    browser.open(page)
    browser.run("document.querySelectorAll('#tree .node')[1].focus()")
    browser.press("#tree .node:focus", "ArrowRight")
    assert browser.texts("#tree .label")[1:4] == ["a", "fc", "norm"]
    browser.press("#tree .node:focus", "ArrowLeft")
    assert browser.texts("#tree .label")[1:3] == ["a", "b"]


def test_parts_of_a_step_are_apart_in_chart_and_tree(browser: Browser, folder: Path) -> None:
    parts = (
        ("fc", Role.OUTPUT, 1e-6),
        ("fc", Role.GRAD_INPUT, 1e-5),
        ("fc", Role.PARAM_UPDATE, 1e-4),
    )
    sides = [(replace(record(name), role=role), error) for name, role, error in parts]
    rows = [
        Row(side, side, Verdict(Reason.OK), Metrics(rel_l2=error), module="fc")
        for side, error in sides
    ]
    browser.open(of_rows(*rows).to_html(folder / "parts-of-a-step.html"))
    shown = {}
    for phase in browser.texts("#phases button"):
        browser.click("#phases button", phase)
        shown[phase] = browser.text("#divergence-note"), browser.texts("#tree .error")[-1]
    values = {"forward": "1.00e-06", "backward": "1.00e-05", "update": "1.00e-04"}
    assert shown == {phase: (f"1 {phase} values.", error) for phase, error in values.items()}


def test_switches_choose_the_step_and_the_rank(browser: Browser, steps_and_ranks: Path) -> None:
    browser.open(steps_and_ranks)
    change = (
        "const box = document.getElementById(arguments[0]); box.value = arguments[1];"
        " box.dispatchEvent(new Event('change'))"
    )
    browser.run(change, "switch-step", "1")
    assert set(browser.column("step")) == {"1"}
    browser.run(change, "switch-rank", "0")
    assert browser.text("#rows .count") == "12 of 48 rows"
    assert browser.text("#divergence-note").startswith("7 forward values")
    assert browser.texts("#tree .fails") == []


def test_a_link_leads_to_its_row_with_every_name(
    browser: Browser, hostile: Comparison, folder: Path
) -> None:
    page = hostile.to_html(folder / "links.html")
    for number in (0, 2, len(EVIL) - 1):
        browser.open(page, anchor(hostile.rows[number]))
        assert browser.run("return document.querySelector('.line.current').dataset.row") == str(
            number
        )


def test_a_link_of_a_layer_alone_leads_to_the_row_that_fails(browser: Browser, page: Path) -> None:
    browser.open(page, "b.fc")
    assert browser.text("#details h3") == "b.fc output"


def test_the_address_follows_the_chosen_row(
    browser: Browser, page: Path, every_reason: Comparison
) -> None:
    browser.open(page)
    browser.press("#rows .scroller", "End")
    browser.until("return location.hash !== ''")
    browser.open(page, browser.run("return location.hash").removeprefix("#"))
    assert browser.run("return document.querySelector('.line.current').dataset.row") == str(
        len(every_reason.rows) - 1
    )


def test_a_link_to_what_is_not_there_is_passed_over(browser: Browser, page: Path) -> None:
    browser.open(page, "no.such;role=%E0%A4%A")
    assert browser.run("return document.getElementById('details').hidden")


# Looks


def test_dark_and_light_follow_the_system(browser: Browser, page: Path) -> None:
    colors = []
    for dark in (False, True):
        browser.open(page, dark=dark)
        colors.append(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert colors == ["rgb(244, 246, 248)", "rgb(16, 21, 27)"]


def test_a_narrow_screen_is_not_scrolled_sideways(
    browser: Browser, page: Path, log_page: Path
) -> None:
    for each in (page, log_page):
        browser.open(each, width=390, height=844)
        assert browser.run("return document.documentElement.scrollWidth") <= 390


def test_printing_puts_rows_into_the_document_that_were_not_in_view(
    browser: Browser, steps_and_ranks: Path
) -> None:
    browser.open(steps_and_ranks, height=500)
    assert len(browser.column("#")) < 48
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert len(browser.column("#")) == 48


# Hostile names


def test_names_are_shown_as_text_whatever_is_in_them(
    browser: Browser, hostile: Comparison, folder: Path
) -> None:
    browser.open(hostile.to_html(folder / "hostile.html"))
    assert browser.column("layer") == [printable(name) for name in EVIL]
    assert set(browser.column("type")) == {EVIL[0]}
    assert "taken" not in browser.run("return document.title")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert EVIL[1] in browser.text("#section-environment")


def test_names_in_a_log_are_shown_as_text_too(browser: Browser, folder: Path) -> None:
    findings = [found(name, step=0, order=order) for order, name in enumerate(EVIL)]
    path = write_log(
        folder / "evil" / "rank0.jsonl",
        start(model=EVIL[0]),
        *findings,
        frames(*EVIL),
        step(0, finite=False),
        end(1),
    )
    browser.open(write_log_page(read_logs(path), folder / "evil.html"))
    assert browser.column("place", "#findings") == [printable(name) for name in EVIL]
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert "taken" not in browser.run("return document.title")


# Training, logs


def test_a_page_of_fed_steps_has_its_tables(browser: Browser, tmp_path: Path) -> None:
    """Such steps have no sentence of their own."""
    golden = train(tmp_path / "golden")
    compared = ac.diff(golden, train(tmp_path / "npu", feed=golden))
    browser.open(compared.to_html(tmp_path / "x.html"))
    assert "Each step was fed golden's values" in browser.text("#section-training")
    assert "cannot be shown" not in browser.text("body")


def test_a_training_comparison_shows_histories_and_where_the_runs_part(
    browser: Browser, folder: Path
) -> None:
    candidate = changed(changed(steps(), 12, grad_norm=4.0), 15, lr={"AdamW.0": 2e-3})
    compared = ac.diff(
        run(folder / "parts", steps()), run(folder / "parts-npu", candidate), accept="mindformers"
    )
    browser.open(compared.to_html(folder / "parts.html"))
    assert "The runs part at step 12 in the gradients" in browser.text("#section-training")
    titles = [title.removesuffix(" (logarithmic)") for title in browser.texts("#charts figcaption")]
    assert titles == [
        "loss",
        "gradient norm",
        "relative difference of the gradient norm",
        "learning rate",
    ]
    browser.run("document.getElementById('steps-box').open = true")
    browser.until("return document.querySelectorAll('#steps .line').length > 1")
    assert browser.column("candidate norm", "#steps")[11:13] == ["3", "4"]


def test_a_log_shows_the_answer_findings_frames_and_histories(
    browser: Browser, log_page: Path
) -> None:
    browser.open(log_page)
    assert browser.text(".verdict") == "NOT FINITE"
    assert "transformer.h.3.attn (glue, before c_proj)" in browser.text("h1")
    assert browser.column("begins here", "#findings") == ["origin"] + ["passed on"] * 9
    assert browser.column("grad_norm", "#steps")[-1] == "NaN"
    assert len(browser.column("module", "#frames")) > 4
    assert [
        title.removesuffix(" (logarithmic)") for title in browser.texts("#charts figcaption")
    ] == ["loss", "gradient norm", "loss scale"]
    assert browser.column("result", "#checklist")
    links, sections = browser.texts("nav a"), browser.texts("main h2")
    # as they stand on the page
    assert all(heading.startswith(link) for link, heading in zip(links, sections, strict=True))
    assert sections[-1] == "Environment"  # of one rank, nothing differs


def test_the_page_of_the_checklist_begins_with_it_and_with_what_is_worst(
    browser: Browser, folder: Path
) -> None:
    ranks = read_logs(log(folder / "checked"))
    health = judge_log(ranks)
    browser.open(write_health_page(ranks, health, folder / "health.html"))
    assert browser.text(".verdict") == headline(health)
    assert browser.texts("main h2")[0].startswith("Checklist")
    results = browser.column("result", "#checklist")
    assert results == sorted(results, key=["FAIL", "WARN", "NOT LOOKED AT", "PASS"].index)
    assert results[0] == health.status.value


def test_histories_have_the_loss_and_the_learning_rate_that_were_seen(
    browser: Browser, folder: Path
) -> None:
    vitals = [
        Vitals(number, loss=2.0 - number, lr={"AdamW.0": 1e-3, "AdamW.1": 1e-2})
        for number in range(3)
    ]
    path = write_log(
        folder / "seen" / "rank0.jsonl",
        start(),
        *vitals,
        *(step(number, grad_norm=1.0) for number in range(3)),
        end(3),
    )
    browser.open(write_log_page(read_logs(path), folder / "seen.html"))
    assert browser.texts("#charts figcaption") == [
        "loss",
        "gradient norm (logarithmic)",
        "learning rate",
    ]
    assert browser.column("loss", "#steps") == ["2.00000e+00", "1.00000e+00", "0"]
    assert set(browser.column("learning rate", "#steps")) == {"1.00e-03"}


def test_heat_maps_show_each_parameter_in_each_step(browser: Browser, log_page: Path) -> None:
    browser.open(log_page)
    assert len(browser.texts("#heats figure")) == 3
    script = """const canvas = document.querySelector("#heats canvas");
    const context = canvas.getContext("2d");
    const left = Math.min(230, Math.round(canvas.getBoundingClientRect().width * 0.35)) + 5;
    return [0, 1, 2].map((row) => [...context.getImageData(left, 19 + row * 14, 1, 1).data]);"""
    smallest, missing, not_finite = browser.run(script)
    assert smallest == [68, 1, 84, 255]
    assert missing == [0, 0, 0, 0]
    assert not_finite == [198, 40, 40, 255]


def test_a_click_on_a_heat_map_shows_the_curves_of_that_parameter(
    browser: Browser, log_page: Path
) -> None:
    browser.open(log_page)
    names = browser.texts("#curves figcaption b")
    browser.run(
        """const canvas = document.querySelector("#heats canvas");
        const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new MouseEvent("click", { clientX: box.left + 5,
    clientY: box.top + 14 + 14 + 5, bubbles: true }));"""
    )
    names += browser.texts("#curves figcaption b")
    assert names == [
        fact.name for fact in read_logs(log_page.parent / "watch").ranks[0].setups[0].parameters[:2]
    ]
    assert browser.texts("#curves .legend span") == [measure.title for measure in MEASURES]
    assert len(browser.texts("#curves figure")) == 1


#: What is drawn of texts: each with its left and right end.
DRAWN = """const drawn = [];
    const ctx = { measureText: (text) => ({ width: 6 * String(text).length }),
    fillText: (text, x) => drawn.push([String(text),
        ctx.textAlign === "right" ? x - 6 * text.length : x, x + 6 * String(text).length]),
    save() {}, restore() {}, setLineDash() {}, beginPath() {}, moveTo() {}, lineTo() {},
    stroke() {} };"""


@pytest.mark.parametrize(
    "script",
    [
        (
            "HeatMap.prototype.numbers.call({ about: { steps: [...Array(60).keys()] }, left: 200,"
            " cell: 9 }, ctx);"
        ),
        """const marks = [...Array(60).keys()]
            .map((step) => ({ at: step, color: "muted", title: `step ${step}` }));
        const valToPos = (at) => 9 * at;
        const bbox = { left: 0, width: 540, top: 0, height: 9 };
        LineChart.prototype.marks.call({ options: { marks } }, { ctx, valToPos, bbox });""",
    ],
    ids=["above a heat map", "in a chart"],
)
def test_the_numbers_of_many_steps_do_not_overlap(
    browser: Browser, log_page: Path, script: str
) -> None:
    browser.open(log_page)
    drawn = browser.run(f"{DRAWN} {script} return drawn;")
    assert drawn[0][0].endswith("0")
    assert 10 <= len(drawn) < 60
    assert all(before[2] < after[1] for before, after in pairwise(drawn))


# 100,000 rows


def test_a_hundred_thousand_rows_are_filtered_with_few_of_them_in_the_document(
    browser: Browser, folder: Path
) -> None:
    names = [f"layers.{number // 10}.fc{number % 10}" for number in range(1000)]
    some = [
        Row(record(name), record(name), Verdict(Reason.OK), Metrics(rel_l2=1e-6), module=name)
        for name in names
    ]
    path = of_rows(*some * 100).to_html(folder / "large.html")
    assert path.stat().st_size < 8e6
    browser.open(path)
    assert browser.text("#rows .count") == "100,000 rows"
    assert browser.run("return document.querySelectorAll('*').length") < 4000
    browser.type("#rows input[type=search]", "layers.7.")
    assert browser.text("#rows .count") == "1,000 of 100,000 rows"
    browser.type("#rows input[type=search]", "")
    browser.press("#rows .scroller", "End")
    assert browser.column("#")[-1] == "100,000"


# The commands

Cli = Callable[..., Any]


@pytest.fixture
def two(tmp_path: Path) -> Path:
    values = np.ones((4, 4), np.float32)
    write(tmp_path / "golden", [item("fc", values)])
    write(tmp_path / "npu", [item("fc", values)])
    return tmp_path


def test_several_reports_are_written_each_as_its_ending_says(cli: Cli, two: Path) -> None:
    done = cli("diff", "golden", "npu", "--report", "x.xlsx", "--report", "x.html")
    assert done.returncode == 0
    assert (two / "x.xlsx").read_bytes().startswith(b"PK")
    assert (two / "x.html").read_text().startswith("<!doctype html>")
    assert done.stdout.splitlines()[-2:] == ["report: x.xlsx", "report: x.html"]


def test_report_none_writes_none(cli: Cli, two: Path) -> None:
    done = cli("diff", "golden", "npu", "--report", "none")
    assert done.returncode == 0
    assert "report:" not in done.stdout
    assert {each.name for each in two.iterdir()} == {"golden", "npu"}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["x.pdf"], "--report x.pdf: must end in .xlsx or .html"),
        (["none", "x.html"], "--report none: writes no report, so that no other can be given"),
        (["x.html", "./x.html"], "is the same file as --report x.html"),
    ],
)
def test_a_report_that_cannot_be_is_refused_before_any_work(
    cli: Cli, two: Path, given: list[str], said: str
) -> None:
    done = cli("diff", "golden", "npu", *(word for path in given for word in ("--report", path)))
    assert done.returncode == 2
    assert said in done.stderr
    assert not list(two.glob("*.html"))


@pytest.mark.parametrize("command", ["overflow", "health"])
def test_a_log_is_written_as_a_page(cli: Cli, tmp_path: Path, command: str) -> None:
    log(tmp_path / "watch")
    cli(command, "watch", "--report", "x.html")
    assert "transformer.h.3.attn" in (tmp_path / "x.html").read_text()


# A fit


def fitted() -> Fit:
    kept = KeptPlaces(("layers.*.norm", EVIL[0]), ("",))
    runs = [
        FitRun(KeptPlaces(), 0.0, 0.0, 1.2e-2),
        FitRun(KeptPlaces(("*",)), 1.0, 1.0, 0.0),
        FitRun(kept, 0.25, 0.1, 7e-3, (7e-3,), 6.8e-3),
        FitRun(KeptPlaces((), ("",)), 0.05, 0.0, math.inf, (), 9e-3, "it raised"),
    ]
    return Fit(
        "model.py", "golden", "cpu", "bfloat16", FitGoal(rel_l2=8e-3),
        [FitOutput("", 0, "logits", 0, "logits")], FitAnswer.FITS, runs, runs[2],
        [PlaceShare("layers.0", "Block", 0.75, 0.4, 0.5), PlaceShare(EVIL[1], "", 0.25, 0.6, 0.5)],
        [CurvePoint(0.0, 0.0, 1.2e-2), CurvePoint(0.5, 0.5, 4e-3), CurvePoint(1.0, 1.0, 0.0)],
        backwards=8,
    )  # fmt: skip


def test_a_fit_shows_curve_runs_blocks_and_code(browser: Browser, tmp_path: Path) -> None:
    browser.open(write_fit_page(fitted(), tmp_path / "fit.html"))
    assert (
        browser.text("h1") == "within 0.008 with 25% of the operations in float32: off by 7.00e-03"
    )
    assert browser.column("relative L2", "#runs") == ["1.20e-02", "0", "7.00e-03", ""]
    assert browser.column("share of the error", "#blocks") == ["75.00 %", "25.00 %"]
    assert browser.texts("#curve .legend span") == ["estimate", "run", "tolerance"]
    drawn = """const canvas = document.querySelector("#curve canvas");
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return data.some((value) => value > 0)"""
    assert browser.run(drawn)
    assert "\ndef fitted(model: nn.Module" in browser.text("#code")
    assert browser.run("return document.title") != "taken"


# Very many rows


def test_a_page_of_very_many_rows_holds_few_and_sums_up_all(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "MOST_ROWS", 150)
    monkeypatch.setattr(sheets, "MAX_POINTS", 10)
    found = many(ranks=6, steps=2, layers=60)
    first = found.first_divergence
    assert first is not None
    browser.open(found.to_html(tmp_path / "x.html"))
    held = overview.overview_of(found).places
    assert held is not None
    assert "This page holds" in browser.text("p.warn")
    assert browser.text("#rows .count") == f"{len(held)} rows"
    assert browser.text("#by-layer .count") == "60 rows"
    assert browser.column("failing", "#by-rank") == ["0", "0", "0", "39", "0", "0"]
    assert browser.column("rows", "#by-step") == ["360", "360"]
    browser.click(".first a")
    browser.until("return !document.getElementById('details').hidden")
    assert browser.text("#details h3").startswith(first.module)
    hover = """const canvas = document.querySelector("#heats canvas");
    const box = canvas.getBoundingClientRect();
    const left = Math.min(230, Math.round(box.width * 0.35));
    const x = box.left + left + 5.5 * Math.min((box.width - left) / 6, 60);
    canvas.dispatchEvent(new MouseEvent("mousemove", { clientX: x, clientY: box.top + 17,
    bubbles: true }));
    return document.querySelector("#heats .tip").textContent"""
    assert browser.run(hover).startswith(f"{found.rows[0].module}rank 5: ")
