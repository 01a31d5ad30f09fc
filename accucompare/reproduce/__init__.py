"""A finding's saved call, and the script that runs it alone. Such scripts import from here only."""

from accucompare.reproduce.class_import import import_file as import_file
from accucompare.reproduce.module_outcome import is_bad as is_bad
from accucompare.reproduce.recipe import assemble as assemble
from accucompare.reproduce.recipe import buffer as buffer
from accucompare.reproduce.recipe import parameter as parameter
from accucompare.reproduce.reproducer import Reproducer as Reproducer
from accucompare.reproduce.reproducer import module_of_case as module_of_case
from accucompare.reproduce.saving import save_reproducer as save_reproducer
from accucompare.reproduce.snapshot import Snapshot as Snapshot
from accucompare.reproduce.snapshot import always as always
