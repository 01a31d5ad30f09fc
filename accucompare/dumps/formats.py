"""The table of formats that can be imported, and the format of a path."""

from __future__ import annotations

from pathlib import Path

from accucompare.bundle.format import holds_bundle
from accucompare.dumps.cann import CANN_FORMAT, MSACCUCMP_FORMAT
from accucompare.dumps.debug_mode import DEBUG_MODE_FORMAT
from accucompare.dumps.folder import FOLDER_FORMAT
from accucompare.dumps.hugging_face import HUGGING_FACE_FORMAT
from accucompare.dumps.items import Format
from accucompare.dumps.msprobe import MSPROBE_FORMAT
from accucompare.dumps.polygraphy import POLYGRAPHY_FORMAT
from accucompare.dumps.router_trace import ROUTER_TRACE_FORMAT
from accucompare.dumps.sglang import SGLANG_FORMAT
from accucompare.errors import UsageError

#: In the order in which they are tried: the most specific first.
FORMATS: tuple[Format, ...] = (
    MSPROBE_FORMAT,
    CANN_FORMAT,
    MSACCUCMP_FORMAT,
    SGLANG_FORMAT,
    POLYGRAPHY_FORMAT,
    HUGGING_FACE_FORMAT,
    DEBUG_MODE_FORMAT,
    ROUTER_TRACE_FORMAT,
    FOLDER_FORMAT,
)


def format_of(path: Path, name: str | None) -> Format:
    """The format of a dump. Raises UsageError if nothing is there, it is a bundle, or not exactly
    one format is recognised. ``name``: as ``--from`` gives it; ``None`` to recognise it."""
    if not path.exists():
        raise UsageError(f"{path}: there is no such file or directory")
    if holds_bundle(path):
        raise UsageError(f"{path}: is a bundle already, and needs no import")
    if name is not None:
        return next(each for each in FORMATS if each.name == name)
    found = [each for each in FORMATS if each.recognise(path)]
    found = [each for each in found if not each.generic] or found
    if len(found) == 1:
        return found[0]
    if found:
        names = " and ".join(each.name for each in found)
        raise UsageError(
            f"{path}: holds dumps of more than one format ({names}); say which to import: --from"
            f" {found[0].name}"
        )
    known = "".join(f"\n  {each.name}: {each.looks_like}" for each in FORMATS)
    if path.suffix == ".onnx" or (path.is_dir() and any(path.glob("*.onnx"))):
        what = "is a model" if path.is_file() else "holds a model"
        raise UsageError(
            f"{path}: {what}, and no outputs; give those that Polygraphy saved: import out.json"
            " --onnx model.onnx"
        )
    raise UsageError(
        f"{path}: no format is recognised; name it with --from. The formats are{known}"
    )
