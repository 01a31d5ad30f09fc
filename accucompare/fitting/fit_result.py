"""What ``accucompare.fit`` returns."""

from __future__ import annotations

from pathlib import Path

from accucompare.compare.fits import Fit
from accucompare.files import written_whole
from accucompare.places import local
from accucompare.report.files import write_fit_json
from accucompare.report.page import write_fit_page
from accucompare.report.words import fit_code, fit_words


class FitResult(Fit):
    """The places to keep in float32, with their proof. Made by ``accucompare.fit``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.case}: {fit_words.fit_headline(self)}>"

    @property
    def code(self) -> str:
        """A Python file with ``fitted(model)``, in place of ``model.to(dtype)``."""
        return fit_code.fit_code(self)

    def to_python(self, path: str | Path) -> Path:
        """Write the code, and return its path. Errors as ``to_json``."""
        return written_whole(local(path), lambda place: place.write_text(self.code, "utf-8"))

    def to_json(self, path: str | Path) -> Path:
        """Write the answer, the places, all runs and the curve as JSON, and return its path.

        Raises:
            ReportError: if it cannot be written.
        """
        return write_fit_json(self, local(path))

    def to_html(self, path: str | Path) -> Path:
        """Write one page for a browser, and return its path. Errors as ``to_json``."""
        return write_fit_page(self, local(path))

    def to_excel(self, path: str | Path) -> Path:
        """Write a workbook, and return its path. Errors as ``to_json``."""
        from accucompare.report.excel import write_fit_workbook

        return write_fit_workbook(self, local(path))
