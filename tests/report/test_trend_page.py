"""The page of a trend, in a real browser."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from tests.compare.builder import item, write
from tests.report.browser import Browser

EVIL = "<img src=x onerror=\"document.title='taken'\">"
VALUES = np.random.default_rng(0).normal(size=(8, 8)).astype(np.float32)


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three runs with a layer that fails since the second, one whose name and run are hostile."""
    folder = tmp_path_factory.mktemp("trend")

    def run(name: str, error: float) -> Path:
        noise = 1 + error * np.random.default_rng(1).normal(size=VALUES.shape)
        outputs = {EVIL: VALUES, "fc": (VALUES * noise).astype(np.float32), "": VALUES}
        return write(folder / name, [item(name, each) for name, each in outputs.items()])

    runs = [run("golden", 0), run("mon", 1e-7), run("tue" + EVIL.replace("/", ""), 0.1)]
    return ac.trend([*runs, run("wed", 0.2)], against="first").to_html(folder / "trend.html")


def test_it_says_since_when_and_draws_both_heat_maps(page: Path, browser: Browser) -> None:
    browser.open(page)
    assert browser.text("h1").startswith("1 layer fails in wed since tue<img")
    assert browser.run("return document.title") == "trend of 3 runs"
    assert browser.column("state", "#layers")[0] == "fell out"
    assert browser.column("layer", "#layers") == ["fc", EVIL, "(root)"]
    drawn = "return [...document.querySelectorAll('#heats canvas')].map((each) => each.height)"
    assert len(browser.run(drawn)) == 2
    assert min(browser.run(drawn)) > 30
    assert browser.texts("#curves figcaption b") == ["fc"]


def test_a_click_on_a_layer_draws_its_error(page: Path, browser: Browser) -> None:
    browser.open(page, dark=True)
    browser.click("#layers .lines .line", "(root)")
    assert browser.texts("#curves figcaption b") == ["(root)"]
