"""The group of all commands, their exit codes, and how errors are shown."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys

import click

from accucompare.cli.help import PREFIX, Group, examples, with_variable
from accucompare.errors import AccucompareError, BundleError
from accucompare.storage_errors import FULL, cure_of
from accucompare.text import printable, printable_lines
from accucompare.version import __version__

#: The variable by which a shell asks for completions, as click names it.
ASKS = f"_{PREFIX}_COMPLETE"
#: A disk with fewer free bytes counts as full.
_LEAST_FREE = 1 << 16
PASS, DIFFERENT, TROUBLE, INTERRUPTED = 0, 1, 2, 130
#: The reader of a pipe (``| head``) left before there was an answer: as of a program that SIGPIPE
#: ends. An answer's own code stands.
_READER_LEFT = 141


@click.group(
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "accucompare capture model.py --device cpu --out golden   # on the trusted machine",
        "accucompare capture model.py --device npu                # on the NPU machine, writes"
        " npu/",
        "accucompare diff golden/ npu/ --atol 1e-3                # anywhere, writes an Excel"
        " report",
        "",
        "Every option can be set by a variable: ACCUCOMPARE_DIFF_ATOL=1e-3 is --atol of diff."
        " Where an",
        "option can be given several times, spaces separate its values, and colons paths. NO_COLOR",
        "switches colours off.",
    ),
)
@click.version_option(__version__, prog_name="accucompare")
@click.option(
    "--debug",
    is_flag=True,
    envvar=f"{PREFIX}_DEBUG",
    help="Show a traceback when something goes wrong, and all that is logged.",
)
def cli(debug: bool) -> None:
    """Find the layer where a PyTorch model's numbers change between two devices, dtypes or
    versions."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit: 0 passed, 1 differences, 2 trouble, 130 interrupted."""
    arguments = sys.argv[1:] if arguments is None else arguments
    debug = "--debug" in arguments or _wanted(os.environ.get(f"{PREFIX}_DEBUG", ""))
    arguments = [argument for argument in arguments if argument != "--debug"]  # wherever it stands
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGTERM, _interrupt)
    _open_streams()
    if ASKS in os.environ:  # click completes and exits
        cli.main(arguments, prog_name="accucompare")
    code, answered = TROUBLE, False
    try:
        # not cli.main: it ends with 1, as a difference does, where the reader of a pipe has gone
        with cli.make_context("accucompare", arguments, obj=debug) as context:
            result = cli.invoke(context)
        code, answered = result if isinstance(result, int) else PASS, True
        sys.stdout.flush()
    except click.exceptions.Exit as error:
        code = error.exit_code
    except KeyboardInterrupt as error:  # its text says what was done until then
        # what is dropped half-written, as a ZipFile, complains when Python deletes it
        sys.unraisablehook = lambda dropped: None
        click.echo(err=True)  # ends the line in which a terminal shows ^C
        _complain("; ".join(["interrupted", *map(str, error.args[:1])]), debug)
        code = INTERRUPTED
        exec(
            ""
            # Undo: an interrupt inside exec (as of dataclasses) ends python -m by SIGINT.
        )
    except click.ClickException as error:
        with_variable(error).show()
    except BundleError as error:  # its names come from a file and must not add lines
        _complain(printable(str(error)), debug)
    except AccucompareError as error:
        _complain(str(error), debug)
    except SystemExit as error:  # raised by the user's code; never our own exit code
        _complain(f"the code that was run ended with sys.exit({error.code!r})", debug)
    except BrokenPipeError:
        _discard_output()
        code = code if answered else _READER_LEFT
    except Exception as error:
        message = (
            f"internal error: {type(error).__name__}: {error}; please report it with the output of"
            " --debug"
        )
        _complain(_of_the_system(error) if isinstance(error, OSError) else message, debug)
    sys.exit(code)


def _of_the_system(error: OSError) -> str:
    """The system's error in words. Without a file name it is about stdout or a temporary file."""
    if error.filename is not None:
        return f"{os.fspath(error.filename)}: cannot be used ({error.strerror}); {cure_of(error)}"
    _discard_output()
    if error.errno in FULL and (folder := _full_of_temporary_files()) is not None:
        return (
            f"a temporary file in {folder} cannot be written ({error.strerror}); set TMPDIR to"
            " another disk, or free some space there"
        )
    return f"standard output: cannot be written ({error.strerror}); {cure_of(error)}"


def _full_of_temporary_files() -> str | None:
    """The directory of temporary files, if its disk is full."""
    import shutil
    import tempfile

    with contextlib.suppress(OSError):
        folder = tempfile.gettempdir()
        return folder if shutil.disk_usage(folder).free < _LEAST_FREE else None
    return None


def _wanted(value: str) -> bool:
    """Whether a variable switches something on; click reports values without meaning."""
    try:
        return bool(value) and bool(click.BOOL.convert(value, None, None))
    except click.BadParameter:
        return False


def _interrupt(signum: int, frame: object) -> None:
    raise KeyboardInterrupt


def _open_streams() -> None:
    """Replace unknown characters, and a closed stream by the null device: printing never fails."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller (>&-); no other file may get its descriptor
            setattr(sys, name, open(os.open(os.devnull, os.O_RDWR), mode, encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper) and mode == "w":
            stream.reconfigure(errors="replace")


def _discard_output() -> None:
    """Drop what is left to print; otherwise Python fails at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _complain(message: str, debug: bool) -> None:
    if debug:
        import traceback

        traceback.print_exc()
    click.echo(f"accucompare: {printable_lines(message)}", err=True)
