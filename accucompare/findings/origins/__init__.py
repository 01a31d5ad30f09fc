"""Where a value that is not finite began."""

from accucompare.findings.origins.open_calls import INFINITE
from accucompare.findings.origins.origins import infinite_outputs, judge
from accucompare.findings.origins.poles import is_pole

__all__ = ["INFINITE", "infinite_outputs", "is_pole", "judge"]
