"""A real browser without a window, for tests of pages: Chromium, driven by selenium."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pytest

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage",
)  # fmt: skip
_PATIENCE = 60  # seconds; for a machine that is busy


class Browser:
    """Opens pages, and looks into them."""

    def __init__(self, folder: Path) -> None:
        chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
        if chromium is None or driver is None:
            pytest.skip("Chromium and its driver are not installed (make chromium)")
        selenium = pytest.importorskip("selenium.webdriver")
        options = selenium.ChromeOptions()
        for flag in (*_FLAGS, f"--user-data-dir={folder}"):
            options.add_argument(flag)
        options.binary_location = chromium
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        self.driver = selenium.Chrome(options=options, service=selenium.ChromeService(driver))
        self.driver.set_script_timeout(_PATIENCE)

    def close(self) -> None:
        self.driver.quit()

    def open(
        self,
        page: Path,
        anchor: str = "",
        *,
        dark: bool = False,
        width: int = 1280,
        height: int = 1400,
    ) -> None:
        """Open a page, and wait until its tables are there."""
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [theme]})
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.get("about:blank")  # or another anchor of the same page would not load it anew
        self.driver.get(page.as_uri() + (f"#{anchor}" if anchor else ""))
        self.until(
            "return document.documentElement.dataset.ready ||"
            " !document.getElementById('trouble').hidden"
        )

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def until(self, script: str) -> None:
        """Wait until a script returns something true."""
        end = time.monotonic() + _PATIENCE
        while not self.run(script):
            assert time.monotonic() < end, f"never true: {script}"

    def text(self, selector: str) -> str:
        """What an element shows."""
        return str(self.run("return document.querySelector(arguments[0]).innerText", selector))

    def texts(self, selector: str) -> list[str]:
        return list(
            self.run(
                "return [...document.querySelectorAll(arguments[0])].map((each) =>"
                " each.textContent)",
                selector,
            )
        )

    def click(self, selector: str, text: str = "") -> None:
        """Click on the first element that has this text, if one is given."""
        script = """const found = [...document.querySelectorAll(arguments[0])]
            .find((each) => each.textContent.includes(arguments[1]));
        found.dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));"""
        self.run(script, selector, text)

    def type(self, selector: str, text: str) -> None:
        """Put a text into a field, as if it was typed."""
        script = (
            "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
            " field.dispatchEvent(new Event('input'))"
        )
        self.run(script, selector, text)

    def press(self, selector: str, key: str) -> None:
        script = (
            "document.querySelector(arguments[0]).dispatchEvent(new KeyboardEvent('keydown', { key:"
            " arguments[1], bubbles: true }))"
        )
        self.run(script, selector, key)

    def errors(self) -> list[str]:
        """The errors in the browser's console since the last call."""
        return [
            entry["message"]
            for entry in self.driver.get_log("browser")
            if entry["level"] == "SEVERE"
        ]

    def column(self, title: str, place: str = "#rows") -> list[str]:
        """The texts of a column of a table, of the rows that are in the document."""
        script = """const place = document.querySelector(arguments[1]);
        const titles = [...place.querySelectorAll(".header .cell")]
            .map((cell) => cell.textContent.replace(/ [▾▴]$/, ""));
        const at = titles.indexOf(arguments[0]);
        return [...place.querySelectorAll(".lines .line")]
            .map((line) => line.children[at].textContent);"""
        return list(self.run(script, title, place))
