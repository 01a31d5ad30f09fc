"""The program: ``accucompare``, or ``python -m accucompare``."""

import sys


def main() -> None:
    """Run the command line, and exit with its code."""
    try:
        from accucompare.cli.group import main as run

        run()
    except KeyboardInterrupt:  # during the imports; later ones say what was done until then
        # After an interrupt inside exec (dataclasses use it), python -m would end by SIGINT. An
        # exec that succeeds makes it forget.
        exec("")
        print("accucompare: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
