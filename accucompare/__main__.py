"""The program: ``accucompare``, or ``python -m accucompare``."""

import sys


def main() -> None:
    """Run the command line, and exit with its code."""
    try:
        from accucompare.cli.group import main as run

        run()
    except (
        KeyboardInterrupt
    ):  # while the commands were imported; later ones are told with what was done until then
        exec(
            ""
            # after an interrupt inside an exec of text (as dataclasses use), python -m would end by
            # SIGINT; this forgets it
        )
        print("accucompare: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
