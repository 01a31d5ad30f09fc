"""The graph of the page, in a real browser: what an error went through, folding, SVG, sizes."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.api import Comparison
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.compare.measuring.measure import Metrics
from accucompare.compare.rows.rows import Reason, Row, Verdict
from tests.compare.builder import Item, item, write
from tests.report.browser import Browser
from tests.report.test_columns import comparison as of_rows

EVIL = "<img src=x onerror=\"document.title='taken'\">"
MOST_IN_BOX = 32
RNG = np.random.default_rng(0)
INPUT, SUM = (RNG.normal(size=(4, 8)).astype(np.float32) for _ in range(2))
OUTPUTS = {name: RNG.normal(size=(4, 8)).astype(np.float32) for name in "abcde"}


def items(bad: float) -> list[Item]:
    """Two blocks of two layers and a head. The second block's input is a sum that the model's own
    code makes of the first one's output; the error begins in ``one.fc``."""

    def off(values: np.ndarray) -> np.ndarray:
        return (values * (1 + bad)).astype(np.float32)

    def call(name: str, role: str, values: np.ndarray, parent: str | None = "") -> Item:
        where = None if parent is None else (parent, 0)
        return item(name, values, role=role, parent=where, type="Block" if name else "Net")

    a, b, c, d, e = OUTPUTS.values()
    return [
        call("", "input", INPUT, None),
        call("one", "input", INPUT),
        call("one.ln", "input", INPUT, "one"),
        call("one.ln", "output", a, "one"),
        call("one.fc", "input", a, "one"),
        call("one.fc", "output", off(b), "one"),
        call("one", "output", off(b)),
        call("two", "input", off(SUM)),
        call("two.ln", "input", off(SUM), "two"),
        call("two.ln", "output", off(c), "two"),
        call("two." + EVIL, "input", off(c), "two"),
        call("two." + EVIL, "output", off(d), "two"),
        call("two", "output", off(d)),
        call("head", "input", off(d)),
        call("head", "output", off(e)),
        call("", "output", off(e), None),
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("graph")
    write(folder / "golden", items(0))
    write(folder / "npu", items(0.5))
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Path:
    return ac.diff(folder / "golden", folder / "npu").to_html(folder / "failing.html")


def names(browser: Browser) -> list[str]:
    return [text.strip("▾▸ ") for text in browser.texts("#graph .name")]


def test_at_first_it_shows_what_the_first_culprits_error_went_through(
    page: Path, browser: Browser
) -> None:
    browser.open(page, height=600)
    assert names(browser) == ["(root)", "one", "fc ◀ culprit", "two", "head"]
    assert browser.run("return window.scrollY") == 0  # the page opens at its verdict
    way = browser.text("#graph-told")
    assert way.startswith("What its error went through: one.fc (made here) 5.00e-01 → two ")
    assert "→ head" in way
    assert way.partition(". its rows")[0].endswith("→ (root) 5.00e-01")
    dashed = browser.run("return document.querySelectorAll('#graph path[stroke-dasharray]').length")
    assert dashed == 1  # the sum, which no call gave


def test_the_whole_model_opens_and_folds_and_a_name_is_text(page: Path, browser: Browser) -> None:
    browser.open(page, dark=True)
    browser.click("#graph-way")
    assert names(browser) == ["(root)", "one", "ln", "fc ◀ culprit", "two", "head"]
    browser.click("#graph .name", "two")
    assert any(EVIL in text for text in browser.texts("#graph .box title"))
    browser.click("#graph .tools button", "fold all")
    assert names(browser) == ["(root)"]
    assert browser.run("return document.title") == "golden and npu compared"


def test_a_click_on_another_box_tells_its_way_and_leads_to_its_rows(
    page: Path, browser: Browser
) -> None:
    browser.open(page)
    browser.click("#graph .box > rect", "")  # the root's
    browser.run("[...document.querySelectorAll('#graph .box')].at(-1).dispatchEvent(new"
                " MouseEvent('click', { bubbles: true }))")  # fmt: skip
    assert browser.text("#graph-told").startswith("What its error went through: head 5.00e-01 →")
    browser.click("#graph-told button", "its rows")
    assert "head" in browser.text("#details h3")
    browser.click("#rows .lines .line", "two")
    browser.click("#to-graph")
    assert names(browser)[-1] == "head"
    assert browser.text("#graph-told").startswith("What its error went through: two ")


def test_the_drawing_is_saved_as_an_svg_that_stands_alone(page: Path, browser: Browser) -> None:
    browser.open(page)
    text = browser.run("return document.documentElement.graph.svg()")
    drawn = ET.fromstring(text)
    assert drawn.tag == "{http://www.w3.org/2000/svg}svg"
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "culprit" in text


def test_without_a_failure_the_whole_model_is_drawn(folder: Path, browser: Browser) -> None:
    same = ac.diff(folder / "golden", folder / "golden").to_html(folder / "same.html")
    browser.open(same)
    assert names(browser) == ["(root)", "one", "two", "head"]
    assert browser.run("return document.getElementById('graph-way').hidden")


def chain(layers: int, first_bad: int) -> Comparison:
    """Layers one after the other in the model; all from one on fail."""
    rows = []

    def add(name: str, role: Role, parent: tuple[str, int] | None, at: int, fails: bool) -> None:
        place = (0, 0, name, 0, role, "", len(rows), "Linear", parent, (2, 3), "float32")
        golden = Record(*place, Layout.STRIDED, "m", f"d{at}", None)
        reason = Reason.IDENTICAL if not fails else Reason.INHERITED
        if fails and at == first_bad:
            reason = Reason.INTRODUCED
        metrics = Metrics(rel_l2=0.1) if fails else None
        verdict = Verdict(reason, over_limit=9.0 if fails else 0.0)
        rows.append(Row(golden, golden, verdict, metrics, module=name))

    add("", Role.INPUT, None, 0, False)
    for at in range(1, layers):
        add(f"layer{at}", Role.INPUT, ("", 0), at - 1, at > first_bad)
        add(f"layer{at}", Role.OUTPUT, ("", 0), at, at >= first_bad)
    if layers > 1:
        add("", Role.OUTPUT, None, layers - 1, True)
    return of_rows(*rows)


def test_thousands_of_layers_in_one_module_are_folded_to_a_drawing_of_few_boxes(
    folder: Path, browser: Browser
) -> None:
    browser.open(chain(2_000, 1234).to_html(folder / "many.html"))
    shown = names(browser)
    assert "layer1234 ◀ first" in shown
    assert len(shown) < 4 * MOST_IN_BOX
    browser.click("#graph .tools button", "open all")
    assert len(names(browser)) < 500
    lines = browser.texts("#tree .label")
    assert len(lines) == 501
    assert "layer1234" in lines
    assert browser.text("#tree .more") == "… 1,499 more in (root); the table has all"


def test_a_graph_of_one_call(folder: Path, browser: Browser) -> None:
    browser.open(chain(1, 1).to_html(folder / "one.html"))
    assert names(browser) == ["(root)"]


def test_what_a_modules_own_code_makes_comes_from_all_that_no_call_took(
    tmp_path: Path, browser: Browser
) -> None:
    """A sum of two branches, as of two embeddings, one of positions, which no branch made; the sum
    is wrong, so glue is the culprit."""
    a, b, c, *_ = OUTPUTS.values()

    def branches(bad: float) -> list[Item]:
        wrong = (SUM * (1 + bad)).astype(np.float32)
        calls = [("left", INPUT, a), ("right", np.arange(4), b), ("after", wrong, c * (1 + bad))]
        inner = [
            item(name, values, role=role, parent=("", 0))
            for name, takes, gives in calls
            for role, values in (("input", takes), ("output", gives.astype(np.float32)))
        ]
        ends = [item("", INPUT, role="input", parent=None), item("", wrong, parent=None)]
        return [ends[0], *inner, ends[1]]

    found = ac.diff(write(tmp_path / "golden", branches(0)), write(tmp_path / "npu", branches(0.5)))
    browser.open(found.to_html(tmp_path / "branches.html"))
    assert names(browser) == ["(root)", "after ◀ culprit: the code before it"]
    browser.click("#graph-way")
    dashed = browser.texts("#graph path[stroke-dasharray] title")
    assert (
        len([text for text in dashed if "own code" in text]) == 4
    )  # to positions, two in, and one to the end
