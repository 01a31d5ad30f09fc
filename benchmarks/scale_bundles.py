"""Bundles of sketches of a made-up large model on many ranks, written by the code that a capture
writes with.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np

from accucompare.bundle.format.manifest import Manifest, StepEntry
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.bundle.writing.record_file import RecordFile
from accucompare.numbers.dtypes import Array
from accucompare.numbers.sketch import SKETCH_VERSION
from accucompare.selection import SKETCH_SIZE, Mode

#: Elements of each tensor: as few as are larger than their sketch.
ELEMENTS = 1024
#: Error of a sound layer, and of the planted one, relative to the norm.
_ROUNDING, _FAULT = 1e-6, 3e-2
_STEPS = 4
#: The modules of a block, with their classes; children come after their parent.
_BLOCK = {
    "": "Block",
    ".input_layernorm": "RMSNorm",
    ".self_attn": "Attention",
    ".self_attn.q_proj": "Linear",
    ".self_attn.k_proj": "Linear",
    ".self_attn.v_proj": "Linear",
    ".self_attn.o_proj": "Linear",
    ".post_attention_layernorm": "RMSNorm",
    ".mlp": "MLP",
    ".mlp.gate_proj": "Linear",
    ".mlp.act_fn": "SiLU",
    ".mlp.up_proj": "Linear",
    ".mlp.down_proj": "Linear",
}
_RECORDS_A_BLOCK = 4 * len(_BLOCK)  # input, output, and the gradients of both


class Fault(NamedTuple):
    """Where a fault is planted: in a block's ``mlp.down_proj``."""

    rank: int
    step: int
    block: int

    @property
    def name(self) -> str:
        return f"model.layers.{self.block}.mlp.down_proj"


def blocks_for(records: int) -> int:
    """Of how many blocks a model has this many records a rank, in four steps."""
    return max(1, round(records / _STEPS / _RECORDS_A_BLOCK))


def fault_of(ranks: int, blocks: int) -> Fault:
    return Fault(ranks // 2, _STEPS // 2, blocks // 2)


def write_bundles(folder: Path, ranks: int, records: int) -> tuple[Path, Path, int]:
    """Write ``golden`` and ``candidate`` of so many ranks with about so many records each; returns
    them and the records of a side.
    """
    blocks = blocks_for(records)
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        written = [
            sum(
                pool.map(
                    partial(_write_rank, folder / side, side == "candidate", ranks, blocks),
                    range(ranks),
                )
            )
            for side in ("golden", "candidate")
        ]
    return folder / "golden", folder / "candidate", written[0]


def _write_rank(directory: Path, is_candidate: bool, ranks: int, blocks: int, rank: int) -> int:
    classes = {
        f"model.layers.{block}{name}": kind
        for block in range(blocks)
        for name, kind in _BLOCK.items()
    }
    options = {
        "mode": Mode.SKETCH.value,
        "sketch": {"size": SKETCH_SIZE, "version": SKETCH_VERSION},
    }
    manifest = Manifest(
        ranks=ranks,
        complete=True,
        capture=options,
        model={"sources": {}, "modules": classes, "classes": {}},
    )
    (directory / f"rank{rank}").mkdir(parents=True, exist_ok=True)
    total = 0
    for step in range(_STEPS):
        file = RecordFile(directory / f"rank{rank}" / f"step{step}", Mode.SKETCH, SKETCH_SIZE)
        for record, values in _records(
            rank, step, blocks, fault_of(ranks, blocks) if is_candidate else None
        ):
            file.add(record, values)
        total += file.records
        manifest.steps.append(StepEntry(step, file.records, file.finish()))
    manifest.write(
        directory / f"rank{rank}" / "manifest.json" if rank else directory / "manifest.json"
    )
    return total


def _records(
    rank: int, step: int, blocks: int, fault: Fault | None
) -> Iterator[tuple[Record, Array]]:
    """The records of a step; of the candidate, if there is a fault to plant."""
    values = np.random.default_rng([rank, step])
    noise = np.random.default_rng([rank, step, 1])
    order = count()
    spoilt = False

    def record(name: str, role: Role) -> tuple[Record, Array]:
        path = "0" if role in (Role.INPUT, Role.GRAD_INPUT) else ""
        parent = None if not name.count(".") else (name.rpartition(".")[0], 0)
        kind = _BLOCK["." + name.split(".", 3)[3] if name.count(".") > 2 else ""]
        array = values.standard_normal(ELEMENTS, dtype=np.float32)
        if fault is not None:
            array += np.float32(_FAULT if spoilt else _ROUNDING) * noise.standard_normal(
                ELEMENTS, dtype=np.float32
            )
        return Record(
            rank,
            step,
            name,
            0,
            role,
            path,
            next(order),
            kind,
            parent,
            (ELEMENTS,),
            "float32",
            Layout.STRIDED,
        ), array

    calls = [_calls(f"model.layers.{block}") for block in range(blocks)]
    for each in calls:
        for name, role in each:
            spoilt = spoilt or (
                fault is not None
                and (rank, step, name, role) == (fault.rank, fault.step, fault.name, Role.OUTPUT)
            )
            yield record(name, role)
    gradients = {Role.INPUT: Role.GRAD_INPUT, Role.OUTPUT: Role.GRAD_OUTPUT}
    for each in reversed(calls):
        for name, role in reversed(each):
            yield record(name, gradients[role])


def _calls(block: str) -> list[tuple[str, Role]]:
    """Inputs and outputs of a block's modules in the order in which they are recorded."""
    found: list[tuple[str, Role]] = []
    open_calls: list[str] = []
    for name in _BLOCK:
        while open_calls and not name.startswith(f"{open_calls[-1]}."):
            found.append((block + open_calls.pop(), Role.OUTPUT))
        found.append((block + name, Role.INPUT))
        open_calls.append(name)
    return found + [(block + name, Role.OUTPUT) for name in reversed(open_calls)]
