"""Options that several commands share, and how their help shows examples."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import click

from accucompare.errors import ReportError, UsageError
from accucompare.files import is_stream, same_place


def examples(*lines: str) -> str:
    """The end of a command's help."""
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


device = click.option("--device", default="cpu", show_default=True, metavar="DEVICE", help="cpu, cuda, cuda:N, npu or npu:N.")
dtype = click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16", "float16"]),
    help="Cast the model and its floating inputs to this type.  [default: as they are]",
)
seed = click.option("--seed", type=click.IntRange(0, (1 << 32) - 1), help="Seed of weights and random operations.  [default: 0]")
steps = click.option("--steps", type=click.IntRange(1), help="Steps to run.  [default: one for each of the case's inputs]")
compared_only = click.option("--only", multiple=True, metavar="GLOB", help="Compare only the layers that match; may be repeated.")
compared_skip = click.option("--skip", multiple=True, metavar="GLOB", help="Leave out the layers that match; may be repeated.")
deterministic = click.option("--deterministic", is_flag=True, help="Use deterministic algorithms where the device has such.")
hf32 = click.option("--hf32/--no-hf32", default=None, help="Let an NPU round what goes into float32 products to HF32.  [default: as it is]")
tf32 = click.option("--tf32/--no-tf32", default=None, help="The same for TF32 on a GPU.  [default: as it is]")
maps = click.option(
    "--map",
    multiple=True,
    metavar="OLD=NEW",
    help="Golden's layer OLD is the candidate's NEW; globs, or re:REGEX=NEW. auto: find out. May be repeated.",
)
json = click.option("--json", "json_path", type=click.Path(path_type=Path), metavar="PATH", help="Write everything as JSON, too.")
verdict_only = click.option("-q", "--quiet", is_flag=True, help="Print the verdict line only.")


def refuse_other_than_xlsx(report: Path) -> None:
    """Say at once that a report cannot be written.

    Raises:
        UsageError: if its name ends otherwise.
        ReportError: if nothing may be written there.
    """
    if is_stream(report):
        return
    if report.suffix.lower() != ".xlsx":
        raise UsageError(f"--report {report}: must end in .xlsx")
    place = next(folder for folder in report.absolute().parents if folder.exists())
    if not os.access(place, os.W_OK):  # said before hours of captures
        raise ReportError(f"{report}: cannot be written (no permission to write to {place}); choose another --report")


def refuse_places(outputs: Mapping[str, Path | None], bundles: Iterable[Path] = ()) -> None:
    """Say at once that a file to be written would take the place of another, or of a bundle's own.

    Args:
        outputs: the option that names it, and the path.
        bundles: directories that will hold bundles; others are known by what they hold.

    Raises:
        UsageError: if so.
    """
    from accucompare.bundle.manifest import holds_bundle

    given = [(option, path) for option, path in outputs.items() if path is not None]
    for number, (option, path) in enumerate(given):
        for other, earlier in given[:number]:
            if same_place(path, earlier):
                raise UsageError(f"{option} {path}: is the same file as {other} {earlier}; choose another {option}")
        if is_stream(path):
            continue
        reserved = {Path(os.path.realpath(bundle)) for bundle in bundles}
        for folder in Path(os.path.realpath(path)).parents:
            if folder in reserved or holds_bundle(folder):
                raise UsageError(f"{option} {path}: lies in the bundle {folder}; choose another {option}")


def stem(path: Path) -> str:
    """What a report of this bundle or log is called."""
    return path.resolve().name or "bundle"
