"""What a notebook shows of a comparison, a culprit, a bundle and a session; and a real notebook."""

from __future__ import annotations

import base64
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import nbclient
import nbformat
import numpy as np
import pytest
import torch
from torch import nn

import accucompare as ac
from accucompare.compare.rows.rows import Reason
from accucompare.errors import ReportError
from tests.compare.builder import item, write

DRAW = np.random.default_rng(5).normal(size=(20, 16)).astype(np.float32)
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\u202e\x1b[31m\"' $x^{2$"


def comparison(folder: Path, name: str = "fc") -> ac.Comparison:
    """Twelve layers, of which one is wrong."""
    layers = [name, *(f"layer.{number}" for number in range(11))]
    golden = [item(each, DRAW + number) for number, each in enumerate(layers)]
    npu = [
        item(each, (DRAW + number) * np.float32(1.5 if each == name else 1 + 1e-7 * number))
        for number, each in enumerate(layers)
    ]
    return ac.diff(write(folder / "golden", golden), write(folder / "npu", npu))


class Page(HTMLParser):
    """The tags, the attributes and the text of a piece of HTML; fails where tags are not closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data + "\n"


def test_a_comparison_shows_verdict_culprits_and_the_ten_worst_rows(tmp_path: Path) -> None:
    page = Page(comparison(tmp_path)._repr_html_())
    assert page.text.startswith("FAIL\n")
    assert "1 of 12 rows fail" in page.text
    assert re.search(r"Culprits: .*\nplace\n.*\nfc\n", page.text, re.DOTALL)
    worst = page.text.partition("Furthest from golden")[2]
    assert worst.count(" output\n") == 10
    assert worst.index("fc output") < worst.index("layer.10 output")


def test_a_culprit_of_glue_says_so_once(tmp_path: Path) -> None:
    (culprit,) = comparison(tmp_path).culprits
    glue = replace(culprit, site="glue", reason=Reason.GLUE)
    assert Page(glue._repr_html_()).text.splitlines()[2] == "glue"


def test_names_are_text_wherever_a_notebook_shows_them(tmp_path: Path) -> None:
    found = comparison(tmp_path, HOSTILE)
    (culprit,) = found.culprits
    with ac.open_bundle(
        write(
            tmp_path / HOSTILE.replace("/", ""),
            [item("a", DRAW)],
            notes=[HOSTILE],
            model={"class": HOSTILE},
        )
    ) as bundle:
        shown = [found._repr_html_(), culprit._repr_html_(), bundle._repr_html_()]
    for html in shown:
        page = Page(html)
        assert set(page.tags) <= {
            "div",
            "b",
            "table",
            "caption",
            "thead",
            "tbody",
            "tr",
            "th",
            "td",
        }
        assert set(page.attributes) <= {("style", "text-align:left")}
        assert not re.search("[\u202e\x1b]", html)
        assert "<img src=x onerror=alert(1)>" in page.text


def test_reports_are_linked_once_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = comparison(tmp_path)
    assert "href" not in found._repr_html_()
    monkeypatch.chdir(tmp_path)
    found.to_excel('javascript:alert(1)"&.xlsx')
    assert ("href", "./javascript%3Aalert%281%29%22%26.xlsx") in Page(
        found._repr_html_()
    ).attributes


def test_a_session_and_its_bundle_show_how_far_they_are(tmp_path: Path) -> None:
    model = nn.Linear(2, 2)
    with ac.capture(model, tmp_path / "golden") as session:
        model(torch.ones(1, 2))
        session.step()
        assert "incomplete" in Page(session._repr_html_()).text
        model(torch.ones(1, 2))
    done = Page(session._repr_html_()).text
    assert "2 steps, 4 records\n" in done
    with ac.open_bundle(tmp_path / "golden") as bundle:
        assert Page(bundle._repr_html_()).text == done


def test_the_plot_shows_every_output_its_limit_and_what_is_over(tmp_path: Path) -> None:
    figure = comparison(tmp_path, "a $x^{2$ name").plot()
    (axes,) = figure.axes
    curves = {curve.get_label(): curve.get_ydata() for curve in axes.lines}
    assert len(np.asarray(curves["candidate"])) == 12
    over = np.asarray(curves["over its limit"], float)
    assert np.flatnonzero(np.isfinite(over)).tolist() == [0]
    assert over[0] == pytest.approx(0.5, rel=1e-6)
    assert np.allclose(np.asarray(curves["limit"], float), 1e-4)
    assert axes.get_yscale() == "log"
    assert figure._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]  # draws it, and so reads the labels


def test_the_plot_says_how_many_errors_have_no_place_on_its_axis(tmp_path: Path) -> None:
    golden = write(tmp_path / "golden", [item("a", DRAW), item("b", DRAW * 0)])
    found = ac.diff(golden, write(tmp_path / "npu", [item("a", DRAW), item("b", DRAW)]))
    assert (
        found.plot()
        .axes[0]
        .get_xlabel()
        .endswith("; 1 whose error is not finite have no place here")
    )


def test_without_matplotlib_plot_names_the_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ReportError, match=r"pip install 'accucompare\[plot\]'"):
        comparison(tmp_path).plot()


def test_a_real_notebook_shows_a_comparison_its_plot_and_a_bundle(tmp_path: Path) -> None:
    comparison(tmp_path)
    cells = [
        (
            "import accucompare as ac\nfound = ac.diff('golden',"
            " 'npu')\nfound.to_excel('layers.xlsx')\nfound"
        ),
        "found.culprits[0]",
        "found.plot()",
        "ac.open_bundle('golden')",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(
        notebook,
        timeout=120,
        kernel_name="python3",
        resources={"metadata": {"path": str(tmp_path)}},
    ).execute()
    shown = [cell.outputs[0].data for cell in notebook.cells]
    assert Page(shown[0]["text/html"]).text.startswith("FAIL\n")
    assert ("href", "./layers.xlsx") in Page(shown[0]["text/html"]).attributes
    assert Page(shown[1]["text/html"]).text.startswith("fc\n")
    assert base64.b64decode(shown[2]["image/png"]).startswith(b"\x89PNG")
    assert "12 records" in Page(shown[3]["text/html"]).text
