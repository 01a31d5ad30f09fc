"""The program: ``accucompare``, or ``python -m accucompare``."""

import os
import sys

#: Commands that compare what several processes compute: the order of a set must be one for all.
_CAPTURING = ("capture", "locate", "fit")


def main() -> None:
    try:
        _fix_hash_seed()
        from accucompare.cli.group import main as run

        run()
    except KeyboardInterrupt:  # during the imports; later interrupts say what was done until then
        # After an interrupt inside exec (dataclasses use it), python -m would end by SIGINT. A
        # successful exec resets that.
        exec("")
        print("accucompare: interrupted", file=sys.stderr)
        sys.exit(130)


def _fix_hash_seed() -> None:
    """Start Python anew with a fixed seed of its hashes, unless the user has chosen one.

    transformers' ModernBERT, for one, calls its layers in the order of a set of strings."""
    chosen = sys.argv[1:2] and sys.argv[1] in _CAPTURING and "--help" not in sys.argv
    if chosen and "PYTHONHASHSEED" not in os.environ and os.name == "posix":
        os.environ["PYTHONHASHSEED"] = "0"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


if __name__ == "__main__":
    main()
