"""A step or a call run again, to explain a finding."""

from accucompare.watcher.again.contexts import Contexts as Contexts
from accucompare.watcher.again.contexts import copies_of as copies_of
from accucompare.watcher.again.explanation import Explainer as Explainer
