"""Whether the two bundles can be compared, and which baseline may judge them."""

from accucompare.compare.trust.chosen_baseline import ChosenBaseline as ChosenBaseline
from accucompare.compare.trust.chosen_baseline import choose_baseline as choose_baseline
from accucompare.compare.trust.preflight import preflight_findings as preflight_findings
