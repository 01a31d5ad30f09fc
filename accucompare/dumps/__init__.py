"""Bundles from other tools' dumps: ``accucompare import``. Only ``.pt`` files need torch."""

from accucompare.dumps.importing import import_dump as import_dump
from accucompare.dumps.items import Naming as Naming
from accucompare.dumps.overflows import Overflows as Overflows
from accucompare.dumps.overflows import holds_overflows as holds_overflows
from accucompare.dumps.overflows import outputs_of as outputs_of
from accucompare.dumps.overflows import overflows_in as overflows_in
