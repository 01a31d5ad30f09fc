"""Whether the two bundles can be compared, and which baseline may judge them."""

from accucompare.compare.trust.chosen_baseline import ChosenBaseline, choose_baseline
from accucompare.compare.trust.preflight import preflight_findings

__all__ = ["ChosenBaseline", "choose_baseline", "preflight_findings"]
