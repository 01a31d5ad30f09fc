"""The command line. Modules are imported as late as possible, so that ``--help`` is instant."""

from accucompare.cli.group import cli as cli
from accucompare.cli.group import main as main
