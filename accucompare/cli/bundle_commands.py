"""The commands that look at one bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from accucompare.cli import options as option
from accucompare.cli.group import PASS, TROUBLE, cli
from accucompare.cli.help import examples
from accucompare.cli.outputs import refuse_places
from accucompare.errors import UsageError
from accucompare.places import Place


@cli.command(
    epilog=examples(
        "accucompare show golden",
        "accucompare show golden encoder.layers.0.fc1",
        "accucompare show golden encoder.layers.0.fc1 --role input --slice '0, :4' --save fc1.npy",
        "accucompare show golden '(root)' --path logits",
        "accucompare show golden 'encoder.*.fc1'                  # all records of these layers",
        "accucompare show golden --role param_grad                # of all layers",
    )
)
@option.bundle("bundle")
@click.argument("name", required=False)
@option.call
@option.role
@option.path
@option.step
@option.rank
@option.slices
@option.save
def show(
    bundle: Place, name: str | None, slices: str | None, save: Path | None, **place: Any
) -> int:
    """List the records of BUNDLE, or print the values of one.

    NAME is a layer's qualified name; the model itself is '(root)'. A glob, such as 'encoder.*',
    lists the records of the layers that match. The options choose among those listed."""
    from accucompare.bundle.reading import open_bundle
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_records, print_tensor

    refuse_places({"--save": save})
    with open_bundle(bundle) as opened, reader_may_leave():
        if name is None or (
            set(name) & set("*?[") and all(record.name != name for record in opened.records())
        ):
            if save is not None or slices is not None:
                raise UsageError("--slice and --save need the NAME of a layer")
            print_records(opened, name, **place)
        else:
            record = opened.find(
                name, **{key: value for key, value in place.items() if value is not None}
            )
            print_tensor(opened, record, slices, save)
    return PASS


@cli.command(
    epilog=examples(
        "accucompare verify golden",
        "accucompare verify npu/ --quiet         # for instance after a copy",
        "",
        "Exit code: 0 every byte is as it was written, 2 the bundle is damaged or incomplete.",
    )
)
@option.bundle("bundle")
@option.quiet()
def verify(bundle: Place, quiet: bool) -> int:
    """Read all of BUNDLE and check that it is as it was written."""
    from accucompare.bundle.reading import open_bundle
    from accucompare.bundle.reading import verify as read_all
    from accucompare.cli.progress import progress_bar
    from accucompare.report.console import reader_may_leave
    from accucompare.report.terminal import print_verified

    with open_bundle(bundle) as opened:
        with progress_bar("verifying", "bytes", quiet) as progress:
            found = read_all(opened, progress)
        with reader_may_leave():
            print_verified(opened, found, quiet)
        return PASS if opened.complete and not found.damage else TROUBLE
