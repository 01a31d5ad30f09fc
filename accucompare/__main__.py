"""The program: ``accucompare``, or ``python -m accucompare``."""

import sys


def main() -> None:
    try:
        from accucompare.cli.group import main as run

        run()
    except KeyboardInterrupt:  # during the imports; later interrupts say what was done until then
        # After an interrupt inside exec (dataclasses use it), python -m would end by SIGINT. A
        # successful exec resets that.
        exec("")
        print("accucompare: interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
