"""The command `import`."""

from __future__ import annotations

from pathlib import Path

import click

from accucompare.cli import options as option
from accucompare.cli.group import PASS, cli
from accucompare.cli.help import examples
from accucompare.cli.option_types import LOCAL, PLACE
from accucompare.errors import CaptureError
from accucompare.places import Place
from accucompare.selection import DumpFormat
from accucompare.text import first_few, printable

_SHOWN = 5


@cli.command(
    "import",
    epilog=examples(
        "accucompare import dump/ --out npu                          # the tool is recognised",
        "accucompare import dump/step0/rank0 --from msprobe --out npu",
        "accucompare import tensors/ --out npu --name-pattern 'step{step}/{name}.{role}[.{path}]'",
        "accucompare import outputs.json --onnx model.onnx --out onnx # the model says which module"
        " computes what",
        "accucompare diff golden npu                                 # as with any other bundle",
    ),
)
@click.argument("dump", type=LOCAL)
@option.out("Directory or URL to write the bundle to.", required=True, kind=PLACE)
@option.dump_format
@option.name_pattern
@option.onnx_model
@option.overwrite("Replace an earlier bundle in the directory.")
@option.quiet("nothing but errors")
def import_(
    dump: Path,
    out: Place,
    format_name: DumpFormat | None,
    name_pattern: str | None,
    onnx: Path | None,
    overwrite: bool,
    quiet: bool,
) -> int:
    """Make a bundle of the dump of another tool.

    DUMP is a directory, or a file, that another tool wrote. Names, calls and roles become
    accucompare's, so that diff takes the bundle like any other. What has no counterpart is listed,
    here and in the bundle. docs/import.md says what is read of each format."""
    from accucompare.cli.progress import progress_bar
    from accucompare.dumps import Naming, import_dump
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_import

    with progress_bar("importing", "tensors", quiet) as progress:
        naming = Naming(name_pattern, onnx)
        imported = import_dump(
            dump,
            out,
            format_name=format_name,
            naming=naming,
            overwrite=overwrite,
            progress=progress,
        )
    if not quiet:
        with reader_may_leave():
            print_import(
                out,
                imported.format.title,
                imported.records,
                imported.without_values,
                imported.weights,
                imported.notes,
            )
    if imported.unreadable:
        count = len(imported.unreadable)
        shown = first_few(imported.unreadable, _SHOWN, "; ")
        raise CaptureError(
            f"{out}: is incomplete, for {count} tensor(s) of {dump} cannot be read:"
            f" {printable(shown)}"
        )
    return PASS
