"""Bundles from other tools' dumps: ``accucompare import``. Only ``.pt`` files need torch."""

from accucompare.dumps.importing import import_dump
from accucompare.dumps.items import Naming
from accucompare.dumps.overflows import Overflows, holds_overflows, outputs_of, overflows_in

__all__ = ["Naming", "Overflows", "holds_overflows", "import_dump", "outputs_of", "overflows_in"]
