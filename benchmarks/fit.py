"""The smallest choice of modules in float32: ``python -m benchmarks.fit``. Is ``accucompare fit``'s
as small as what all subsets of blocks hold, and in how many runs?
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import logging
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from accucompare.compare.fits import Fit
from accucompare.devices import DeviceName
from accucompare.fitting import fit, keep_in_float32
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import capture_case
from planted.faults_models import ARCHITECTURES, Inputs, build, made

#: Each with eight blocks or about that, so that all subsets can be run.
_DEEPER: dict[str, dict[str, Any]] = {
    "gpt2": {"n_layer": 8},
    "bert": {"num_hidden_layers": 8},
    "albert": {"num_hidden_layers": 8},
    "t5": {"num_layers": 4},
    "llama": {"num_hidden_layers": 8},
    "mixtral": {"num_hidden_layers": 8},
    "vit": {"num_hidden_layers": 8},
    "convnext": {"depths": [2, 2, 2, 2]},
    "whisper": {"encoder_layers": 4, "decoder_layers": 4},
    "mamba": {"num_hidden_layers": 8},
    "minilm": {},
}
DTYPES = ("bfloat16", "float16")
#: Tolerances, as shares of the error with nothing in float32.
_LEVELS = (0.7, 0.4, 0.2)
#: So many blocks, the dearest, are put in all subsets; the others cost little, and are kept.
_MOST_BLOCKS = 8
#: What is asked for: the share kept against the smallest, and runs against those of all subsets.
MOST_RATIO, MOST_RUNS = 1.2, 0.1
_CASE = """
import os, sys
sys.path.insert(0, os.environ["FIT_ROOT"])
from accucompare import Case
from benchmarks.fit import made_here
def case():
    return Case(*made_here(os.environ["FIT_MODEL"]))
"""


@dataclass(frozen=True)
class FitTrial:
    """A model, a type and a tolerance.

    Attributes:
        blocks: how many were tried in all subsets, and ``subsets`` of them were run.
        smallest: the smallest share of operations that is within the tolerance.
        kept: the share that a fit keeps.
        error: of its proof; ``again``: of the same places in a plain loop.
        runs: how often a fit ran the model, backwards and fed captures included.
    """

    model: str
    dtype: str
    rel_l2: float
    blocks: int
    subsets: int
    smallest: float
    kept: float
    error: float
    again: float
    runs: int
    backwards: int

    @property
    def ratio(self) -> float:
        return self.kept / self.smallest

    @property
    def proven(self) -> bool:
        return self.error <= self.rel_l2 and self.again <= self.rel_l2


def made_here(name: str) -> tuple[nn.Module, Inputs]:
    """A model in float32 and eval mode, and its inputs."""
    if name == "minilm":
        return build(name)
    usual = ARCHITECTURES[name]
    deeper = replace(usual, config={**usual.config, **_DEEPER[name]})
    return made(deeper, name), deeper.inputs()


class Subsets:
    """A model whose blocks are put in float32 in a plain loop."""

    def __init__(self, name: str, dtype: str) -> None:
        torch.manual_seed(0)
        self._model, self._inputs = made_here(name)
        self._dtype = getattr(torch, dtype)
        self._golden = self._outputs(self._model)

    def error(self, whole: Sequence[str], own: Sequence[str]) -> float:
        """The largest relative L2 error of an output."""
        model = copy.deepcopy(self._model)
        keep_in_float32(model, self._dtype, tuple(whole), tuple(own))
        pairs = zip(self._golden, self._outputs(model), strict=True)
        return max(float((other - one).norm() / one.norm()) for one, other in pairs)

    def _outputs(self, model: nn.Module) -> list[torch.Tensor]:
        with torch.no_grad():
            output = model(**copy.deepcopy(self._inputs))
        return [
            value.double()
            for value in output.values()
            if isinstance(value, torch.Tensor) and value.is_floating_point()
        ]


def trials(name: str, dtype: str, folder: Path) -> Iterator[FitTrial]:
    case = folder / "fitted.py"
    case.write_text(_CASE)
    os.environ |= {"FIT_MODEL": name, "FIT_ROOT": str(Path(__file__).parent.parent)}
    golden = folder / f"golden-{name}"
    cpu, options = DeviceName.parse("cpu"), CaptureOptions(backward=False, overwrite=True)
    capture_case(str(case), golden, cpu, options)
    subsets = Subsets(name, dtype)
    full = subsets.error([], [])
    table: list[tuple[float, float]] = []
    for level in _LEVELS:
        limit = full * level
        best = _fit(case, golden, dtype, limit)
        if not table:
            table = list(_all_subsets(subsets, best))
        yield FitTrial(
            name,
            dtype,
            limit,
            len(table).bit_length() - 1,
            len(table),
            min(share for share, error in table if error <= limit),
            best.proof.flops,
            best.proof.error,
            subsets.error(best.kept.whole, best.kept.own),
            len(best.runs) + 2 + best.backwards,
            best.backwards,
        )


def _fit(case: Path, golden: Path, dtype: str, limit: float) -> Fit:
    out = golden.parent / "fit"
    return fit(str(case), golden, dtype=dtype, rel_l2=limit, out=out)


def _all_subsets(subsets: Subsets, found: Fit) -> Iterator[tuple[float, float]]:
    """The share of operations and the error of each subset of the blocks."""
    blocks = [place for place in found.places if place.name]
    dear = sorted(blocks, key=lambda place: -place.flops)[:_MOST_BLOCKS]
    always = [place.name for place in blocks if place not in dear]
    around = {""}
    for place in blocks:
        parts = place.name.split(".")
        around |= {".".join(parts[:end]) for end in range(1, len(parts))}
    base = 1 - sum(place.flops for place in dear)
    for chosen in itertools.product((False, True), repeat=len(dear)):
        picked = [place for place, is_in in zip(dear, chosen, strict=True) if is_in]
        error = subsets.error([*always, *(place.name for place in picked)], [*around])
        yield base + sum(place.flops for place in picked), error


def _row(trial: FitTrial) -> tuple[str, ...]:
    return (
        trial.model,
        trial.dtype,
        f"{trial.rel_l2:.1e}",
        f"{trial.blocks}",
        f"{trial.smallest:.1%}",
        f"{trial.kept:.1%}",
        f"{trial.ratio:.2f}",
        f"{trial.runs} of {trial.subsets}",
        "yes" if trial.proven else "NO",
    )


_TITLES = (
    *("model", "dtype", "tolerance", "blocks", "smallest", "fit"),
    *("fit / smallest", "runs", "proven"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="*", default=[*_DEEPER], metavar="MODEL")
    parser.add_argument("--json", type=Path, metavar="PATH")
    asked = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    console = Console(width=140)
    done: list[FitTrial] = []
    with tempfile.TemporaryDirectory(prefix="accucompare-bench-fit-") as folder:
        for name, dtype in itertools.product(asked.only, DTYPES):
            for trial in trials(name, dtype, Path(folder)):
                done.append(trial)
                console.print("  ".join(_row(trial)), style="bright_black")
    table = Table(*_TITLES, title="The smallest share in float32 within a tolerance")
    for trial in done:
        table.add_row(*_row(trial))
    console.print(table)
    if asked.json:
        asked.json.write_text(json.dumps([asdict(trial) for trial in done], indent=1))
    right = [trial for trial in done if trial.ratio <= MOST_RATIO and trial.proven]
    few = [trial for trial in done if trial.runs <= MOST_RUNS * trial.subsets]
    console.print(f"within {MOST_RATIO} x the smallest, and proven: {len(right)} of {len(done)}")
    console.print(f"in at most {MOST_RUNS:.0%} of the runs: {len(few)} of {len(done)}")
    return 0 if len(right) == len(few) == len(done) else 1


if __name__ == "__main__":
    sys.exit(main())
