"""The command line. A command's module is imported when the command is named, and it imports what
it needs when the command runs, so that ``--help`` is instant."""

from accucompare.cli.group import cli as cli
from accucompare.cli.group import main as main
