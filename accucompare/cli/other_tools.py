"""The commands `import`, `export` and `completion`."""

from __future__ import annotations

from pathlib import Path

import click

from accucompare.cli import options as option
from accucompare.cli.group import ASKS, PASS, cli
from accucompare.cli.help import examples
from accucompare.cli.option_types import LOCAL, PLACE
from accucompare.cli.outputs import refuse_places, stem
from accucompare.errors import CaptureError
from accucompare.files import is_stdout
from accucompare.places import Place
from accucompare.selection import DumpFormat, Viewer
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


#: How to open what was written.
_OPEN = {
    Viewer.MODEL_EXPLORER: (
        "open the first file in Model Explorer (`pip install ai-edge-model-explorer`,"
        " `model-explorer {path}`), then load the others as its node data"
    ),
    Viewer.PERFETTO: (
        "open it at https://ui.perfetto.dev with Open trace file; the file stays on your machine"
    ),
}


@cli.command(
    epilog=examples(
        "accucompare diff golden/ npu/ --json npu.json           # the comparison, as a file",
        "accucompare export npu.json --to model-explorer         # a graph, failing layers in red",
        "accucompare export npu.json --to perfetto --out npu.trace.json",
    )
)
@click.argument("comparison", type=LOCAL)
@option.viewer
@option.out(
    "File to write; node data go beside it.  [default: reports/COMPARISON-VIEWER.json]",
    metavar="PATH",
)
@option.quiet("nothing but errors")
def export(comparison: Path, to: Viewer, out: Path | None, quiet: bool) -> int:
    """Write COMPARISON for a viewer of graphs or of traces.

    COMPARISON is what `accucompare diff --json` wrote. Model Explorer shows the model as a graph,
    in which failing layers stand out; Perfetto shows golden and candidate as two tracks in
    execution order. Neither shows modules that were never called."""
    out = (
        out
        if out is not None
        else Path("reports") / f"{stem(comparison.with_suffix(''))}-{to.value}.json"
    )
    refuse_places({"COMPARISON": comparison, "--out": out})
    from accucompare.report.files import read_written

    written = read_written(comparison)
    if to is Viewer.MODEL_EXPLORER:
        from accucompare.report.files import write_model_explorer

        files = write_model_explorer(written, out)
    else:
        from accucompare.report.files import write_perfetto

        files = [write_perfetto(written, out)]
    if not quiet:
        for path in files:
            click.echo(f"written: {path}", err=is_stdout(out))
        click.echo(_OPEN[to].format(path=out), err=is_stdout(out))
    return PASS


@cli.command(
    epilog=examples(
        "accucompare completion bash > ~/.local/share/bash-completion/completions/accucompare",
        'accucompare completion zsh > "${fpath[1]}/_accucompare"',
        "accucompare completion fish > ~/.config/fish/completions/accucompare.fish",
        "",
        "Then start a new shell. For bash, the package bash-completion is needed; without it, add",
        '`eval "$(accucompare completion bash)"` to ~/.bashrc. For zsh, `compinit` must run in'
        " ~/.zshrc.",
    )
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> int:
    """Print the script that completes commands, options and their values with the Tab key."""
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    click.echo(kind(cli, {}, "accucompare", ASKS).source())
    return PASS
