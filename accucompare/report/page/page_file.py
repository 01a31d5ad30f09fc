"""The file of a page: a filled template and the data; a browser fetches and runs nothing else."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any

from accucompare.files import PAGE_FILE, written_whole
from accucompare.report.page.page_data import PageData
from accucompare.text import printable
from accucompare.version import __version__

_FOLDER = Path(__file__).parent
_STYLES = ("uPlot.min.css", "page.css")
_SCRIPTS = (
    "uPlot.iife.min.js",
    "data.js",
    "format.js",
    "table.js",
    "chart.js",
    "heat.js",
    "tree.js",
    "details.js",
    "fit.js",
    "page.js",
)
#: Scripts of one template.
_MORE_SCRIPTS = {"comparison.html": ("dagre.min.js", "graph.js"), "trend.html": ("trend.js",)}
_END = b"</script>\n</body>\n</html>\n"


def write_page(
    path: Path,
    template: str,
    content: dict[str, Any],
    write_data: Callable[[PageData], dict[str, Any]],
) -> Path:
    """Write a page, and return its path. Raises ReportError if the path is a directory or no
    ``.html``, or the file cannot be written.

    Args:
        path: must end in ``.html``.
        template: a file in ``page/``.
        content: fills the template; its texts are escaped, invisible characters too.
        write_data: writes the columns, and returns the head.
    """
    PAGE_FILE.refuse_other(path)
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # slow to import

    style, script = (
        "\n".join((_FOLDER / name).read_text("utf-8") for name in names)
        for names in (_STYLES, (*_SCRIPTS, *_MORE_SCRIPTS.get(template, ())))
    )
    environment = Environment(
        loader=FileSystemLoader(_FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: printable(value) if type(value) is str else value,
    )
    environment.filters["thousands"] = lambda number: f"{number:,}"
    policy = (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; base-uri"
        " 'none'; form-action 'none'"
    )
    top = environment.get_template(template).render(
        content | {"style": style, "script": script, "policy": policy, "version": __version__}
    )

    def write(place: Path) -> None:
        with place.open("wb") as file:
            file.write(top.encode("utf-8", "backslashreplace"))
            data = PageData(file)
            data.finish(write_data(data))
            file.write(_END)

    return written_whole(path, write)


def _hash(text: str) -> str:
    """The name of an inline script or style in a Content-Security-Policy."""
    return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"
