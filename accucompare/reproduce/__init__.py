"""The saved call of a finding, and the script that runs it alone.

A script that was written with a finding imports from here only.
"""

from accucompare.reproduce.imports import import_file as import_file
from accucompare.reproduce.recipe import assemble as assemble
from accucompare.reproduce.recipe import buffer as buffer
from accucompare.reproduce.recipe import parameter as parameter
from accucompare.reproduce.reproducer import Reproducer as Reproducer
from accucompare.reproduce.reproducer import module_of_case as module_of_case
