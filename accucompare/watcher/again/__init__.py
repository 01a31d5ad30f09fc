"""A step or a call run again, to explain a finding."""

from accucompare.watcher.again.contexts import Contexts, copies_of
from accucompare.watcher.again.explanation import Explainer

__all__ = ["Contexts", "Explainer", "copies_of"]
