"""Small bundles for tests, written with the real writer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest, sealed
from accucompare.bundle.format.records import Layout, Record, Role
from accucompare.bundle.writing.writer import BundleWriter
from accucompare.numbers.dtypes import DTYPES, DType, round_to
from accucompare.selection import Mode


class Item(NamedTuple):
    record: Record
    array: np.ndarray | None
    ordered: bool = False  # whether the record says itself where it stands


def item(
    name: str = "fc",
    values: Any = None,
    dtype: str | None = None,
    *,
    role: str = "output",
    path: str = "",
    call: int = 0,
    parent: tuple[str, int] | None = ("", 0),
    type: str = "Linear",
    step: int = 0,
    rank: int = 0,
    order: int | None = None,
    layout: str = "strided",
    shape: tuple[int, ...] = (),
    digest: str | None = None,
    detail: str = "",
    source_line: str = "",
) -> Item:
    """One record; ``values`` of a dtype that NumPy lacks are rounded to it. Without ``values`` it
    has no data.

    ``write`` gives records without an ``order`` the next one.
    """
    array = None
    if values is not None:
        array = np.asarray(values)
        dtype = dtype or array.dtype.name
        if DTYPES[dtype].ml_dtype and array.dtype.kind == "f":
            array = round_to(array, DTYPES[dtype])
        array = np.array(array, DTYPES[dtype].storage, order="C")
        shape = array.shape
    place = rank, step, name, call, Role(role), path, order or 0, type, parent
    record = Record(
        *place,
        shape,
        dtype or "",
        Layout(layout),
        digest=digest,
        detail=detail,
        source_line=source_line,
    )
    return Item(record, array, order is not None)


def write(
    directory: Path,
    items: Iterable[Item],
    *,
    steps: int = 1,
    ranks: int = 1,
    complete: bool = True,
    mode: Mode = Mode.TENSORS,
    **manifest: Any,
) -> Path:
    """Write a bundle of these records, in their order; of captures that ran the same code, if
    nothing else is said.
    """
    items = list(items)
    sketched = {"sketch": {"version": 1, "size": 256}} if mode is Mode.SKETCH else {}
    if mode is not Mode.TENSORS:
        manifest["capture"] = {**manifest.get("capture", {}), "mode": mode.value, **sketched}
    stopped = manifest.pop("stopped", None)
    manifest = {**manifest, "model": {"sources": {}, **manifest.get("model", {})}}
    for rank in range(ranks):
        own = [each for each in items if each.record.rank == rank]
        writer = BundleWriter(directory, Manifest(ranks=ranks, **manifest), rank, mode=mode)
        for step in range(max([steps, *(each.record.step + 1 for each in own)])):
            for order, (record, array, ordered) in enumerate(
                each for each in own if each.record.step == step
            ):
                fields = {name: getattr(record, name) for name in Record.__struct_fields__}
                writer.add(Record(**{**fields, "order": record.order if ordered else order}), array)
            writer.end_step(step)
        writer.close(stopped)
        if not (complete or stopped):  # as a capture that was killed leaves it
            name = f"rank{rank}/manifest.json" if rank else "manifest.json"
            edit_manifest(directory, lambda manifest: manifest.update(complete=False), name)
    return directory


def compare(
    tmp_path: Path, golden: Iterable[Item], candidate: Iterable[Item], **options: Any
) -> ac.Comparison:
    """Write both and compare them."""
    number = len(list(tmp_path.iterdir()))
    return ac.diff(
        write(tmp_path / f"golden{number}", golden),
        write(tmp_path / f"candidate{number}", candidate),
        **options,
    )


def in_blocks(raw: np.ndarray, elements: int) -> Any:
    """What ``measure`` takes: a function that yields an array's elements so many at a time."""

    def blocks(first: int, last: int) -> Iterator[np.ndarray]:
        flat = raw.reshape(-1)
        for start in range(first, last, elements):
            yield flat[start : min(start + elements, last)]

    return blocks


def random_bits(dtype: DType, count: int, seed: int) -> np.ndarray:
    """Any bit pattern of a type: subnormals, infinities, NaN payloads, zeros of both signs."""
    if dtype.name == "bool":
        return np.random.default_rng(seed).integers(0, 2, count).astype(bool)
    return np.frombuffer(
        np.random.default_rng(seed).bytes(count * dtype.storage.itemsize), dtype.storage
    )


def edit_manifest(
    bundle: Path, change: Callable[[dict[str, Any]], object], name: str = "manifest.json"
) -> None:
    """Change what a manifest says, with the digest that it has then, so that only what it says is
    wrong.
    """
    manifest = json.loads((bundle / name).read_bytes())
    change(manifest)
    (bundle / name).write_bytes(sealed(manifest))


def set_lines(
    bundle: Path, content: bytes, *, stem: str = "rank0/step0", records: int | None = None
) -> None:
    """Replace a step's list of records, and the manifest's digest and count of it, so that only
    what it says is wrong.
    """
    (bundle / f"{stem}.jsonl").write_bytes(content)

    def describe(manifest: dict[str, Any]) -> None:
        entry = (
            manifest["state"]
            if stem.endswith("state")
            else manifest["steps"][int(stem.rpartition("step")[2])]
        )
        entry["digest"] = xxhash.xxh3_128_hexdigest(content)
        entry["records"] = content.count(b"\n") if records is None else records

    edit_manifest(bundle, describe)


def set_fields(bundle: Path, line: int = 0, *, stem: str = "rank0/step0", **fields: Any) -> None:
    """Change what one record says of itself."""
    lines = [json.loads(text) for text in (bundle / f"{stem}.jsonl").read_bytes().splitlines()]
    lines[line].update(fields)
    set_lines(bundle, b"".join(json.dumps(each).encode() + b"\n" for each in lines), stem=stem)
