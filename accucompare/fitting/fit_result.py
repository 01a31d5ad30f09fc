"""What ``accucompare.fit`` returns."""

from __future__ import annotations

from accucompare.compare.fits import Fit


class FitResult(Fit):
    """The places to keep in float32, with their proof. Made by ``accucompare.fit``."""
