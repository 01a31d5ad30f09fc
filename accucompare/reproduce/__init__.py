"""A finding's saved call, and the script that runs it alone. Such scripts import from here only."""

from accucompare.reproduce.class_import import import_file
from accucompare.reproduce.module_outcome import is_bad
from accucompare.reproduce.recipe import assemble, buffer, parameter
from accucompare.reproduce.reproducer import Reproducer, module_of_case
from accucompare.reproduce.saving import save_reproducer
from accucompare.reproduce.snapshot import Snapshot, always

__all__ = [
    "Reproducer",
    "Snapshot",
    "always",
    "assemble",
    "buffer",
    "import_file",
    "is_bad",
    "module_of_case",
    "parameter",
    "save_reproducer",
]
