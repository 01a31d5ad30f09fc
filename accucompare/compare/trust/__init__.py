"""Whether the two bundles can be compared, and which baseline may judge them."""

from accucompare.compare.trust.chosen_baseline import choose_baseline
from accucompare.compare.trust.preflight import preflight_findings

__all__ = ["choose_baseline", "preflight_findings"]
