"""What a diff of one device against many ranks costs beside one of the same bytes uncut.

``python -m benchmarks.speed.merging FOLDER TENSORS ELEMENTS`` writes the bundles.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.figures import Figure, clocked
from benchmarks.speed.data import files, noisy_tensor
from benchmarks.speed.diff import act, cat
from benchmarks.speed.plan import Plan
from benchmarks.timing import alternate, child

if TYPE_CHECKING:
    import numpy as np

_RANKS = 8
#: The axes that the ranks cut, in turn, by the bundle's name. Tensor parallel with sequence
#: parallel cuts tokens between a model's blocks and channels in them.
_CUTS = {"rows and columns": (0, 1), "rows": (0,), "columns": (1,)}


def measure(plan: Plan) -> Iterator[Figure]:
    data = plan.sizes.matrices
    plan.need((2 + len(_CUTS)) * data.nbytes)
    plan.say(f"merging: {data.name}: making")
    with tempfile.TemporaryDirectory(dir=plan.folder) as folder:
        child("benchmarks.speed.merging", folder, data.tensors, data.elements)
        names = ["uncut", *_CUTS]
        sides = {name: (Path(folder, "golden"), Path(folder, name)) for name in names}
        plan.say(f"merging: {data.name}")
        cat(files(Path(folder)))  # large members were written past the system's cache
        samples = alternate(
            {name: partial(act, "diff", *paths) for name, paths in sides.items()}, 1 + plan.rounds
        )
    for name in _CUTS:
        what = f"diff of {data.name}, one against {_RANKS} ranks, {name} cut"
        both = samples[name], samples["uncut"]
        yield from clocked("merging", f"{what} / uncut", *both, {"process": 1.2, "wall": 1.2})
        peaks = [each["peak_mb"] - each["bare_mb"] for each in samples[name]]
        yield Figure("merging", f"{what}: memory over Python with NumPy", "MB", peaks[1:], 150.0)


def _write(folder: Path, tensors: int, elements: int) -> None:
    """Write ``golden``, and candidates of the same values: uncut, and cut in each way."""
    from accucompare.bundle.writing.writer import BundleWriter

    width = math.isqrt(elements)
    writers = {
        (name, rank): BundleWriter(folder / name, _manifest(rank, ranks), rank)
        for name, ranks in {"golden": 1, "uncut": 1, **dict.fromkeys(_CUTS, _RANKS)}.items()
        for rank in range(ranks)
    }
    for index in range(tensors):
        for name in ("golden", "uncut"):
            values = noisy_tensor(index, width * width, name == "uncut").reshape(width, width)
            _add(writers[name, 0], 0, index, values)
        for name, axes in _CUTS.items():
            for rank, part in enumerate(_parts(values, axes[index % len(axes)])):
                _add(writers[name, rank], rank, index, part)
    for writer in writers.values():
        writer.end_step(0)
        writer.close()


def _manifest(rank: int, ranks: int) -> Any:
    from accucompare.bundle.format.manifest import Manifest

    return Manifest(complete=True, ranks=ranks, mesh={"tp": (rank, ranks)} if ranks > 1 else {})


def _parts(values: np.ndarray[Any, Any], axis: int) -> list[np.ndarray[Any, Any]]:
    import numpy as np

    return [np.ascontiguousarray(each) for each in np.array_split(values, _RANKS, axis)]


def _add(writer: Any, rank: int, index: int, values: np.ndarray[Any, Any]) -> None:
    from accucompare.bundle.format.records import Layout, Record, Role

    place = rank, 0, f"model.layers.{index}", 0, Role.OUTPUT, "", index, "Linear", None
    writer.add(Record(*place, values.shape, "float32", Layout.STRIDED), values)


if __name__ == "__main__":
    _write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    print(json.dumps({}))
