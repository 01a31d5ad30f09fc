"""The command line. Naming a command imports its module, running it what it needs, so ``--help`` is
instant."""

from accucompare.cli.group import cli as cli
from accucompare.cli.group import main as main
