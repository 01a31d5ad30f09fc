"""HTML for notebooks: tables and lines with escaped texts, without scripts and global styles."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

from accucompare.text import printable

_LEFT = ' style="text-align:left"'


def escaped(text: object) -> str:
    """A text as HTML shows it, without markup, invisible characters and changes of direction."""
    return html.escape(printable(str(text)))


def line(text: object, *, strong: str = "") -> str:
    bold = f"<b>{escaped(strong)}</b> " if strong else ""
    return f"<div>{bold}{escaped(text)}</div>"


def table(titles: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> str:
    """A table; ``""`` without rows. ``None`` is shown as nothing, floats in few digits."""
    body = "".join(
        f"<tr>{''.join(f'<td{_LEFT}>{_cell(value)}</td>' for value in row)}</tr>" for row in rows
    )
    if not body:
        return ""
    head = "".join(f"<th{_LEFT}>{escaped(title)}</th>" for title in titles)
    above = f"<caption{_LEFT}>{escaped(caption)}</caption>" if caption else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def link(path: Path) -> str:
    """A link to a file, relative to the working directory."""
    place = os.path.relpath(path)  # a server of notebooks opens no other addresses
    return (
        f'<a href="./{quote(os.fsencode(place))}" target="_blank"'
        f' rel="noopener">{escaped(path)}</a>'
    )


def _cell(value: object) -> str:
    if value is None:
        return ""
    return escaped(f"{value:.3g}" if isinstance(value, float) else value)
