"""What the checklist judges by, collected step by step."""

from accucompare.watcher.vitals.vitals import VitalSigns

__all__ = ["VitalSigns"]
