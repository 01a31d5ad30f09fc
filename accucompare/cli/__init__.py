"""The command line. A command imports what it needs when it runs, so that ``--help`` is instant."""

from accucompare.cli import commands as commands  # each adds its commands to the group
from accucompare.cli import completion as completion
from accucompare.cli import exports as exports
from accucompare.cli import health as health
from accucompare.cli import imports as imports
from accucompare.cli import scripts as scripts
from accucompare.cli import watch as watch
from accucompare.cli.group import cli as cli
from accucompare.cli.group import main as main
