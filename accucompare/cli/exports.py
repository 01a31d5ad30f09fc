"""The command `export`."""

from __future__ import annotations

from pathlib import Path

import click

from accucompare.cli import options as option
from accucompare.cli.group import PASS, cli
from accucompare.cli.help import examples
from accucompare.cli.option_types import LOCAL
from accucompare.cli.outputs import refuse_places, stem
from accucompare.files import is_stdout
from accucompare.selection import Viewer

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
