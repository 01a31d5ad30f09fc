"""What the ranks of a bundle compute apart from each other, by their layouts."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from accucompare.bundle.format import Manifest, Role, Shard
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts.mesh import Mesh
from accucompare.errors import BundleError, UsageError
from accucompare.places import Place

#: The lengths of the ranks' parts along each axis of a tensor, in the ranks' order.
PartLengths = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class RankParts:
    """What the ranks of a bundle compute apart."""

    ranks: int  # how many there are
    mesh: Mapping[str, int]  # how many of them lie along each dimension of parallelism
    batches: int  # among how many ranks the rows of a batch are shared out
    # the parts of parameters that ranks compute with; those that are only kept in parts, as by
    # FSDP, are not among them
    cuts: Mapping[str, PartLengths]
    # of modules that ranks with one batch call with parts of it, as in sequence parallel: the axis
    # that is cut, and the parts' lengths
    rows: Mapping[str, tuple[int, tuple[int, ...]]]
    unknown: tuple[str, ...] = ()  # parameters whose parts no capture on one device can follow


def rank_parts(bundle: Bundle) -> RankParts:
    """What the ranks of a bundle compute apart. Raises BundleError if what it says of layouts makes
    no sense; UsageError if it is of one rank, or its ranks compute nothing apart."""
    manifests, path = bundle.manifests, bundle.path
    first = next(iter(manifests.values()))
    if first.ranks == 1:
        raise UsageError(
            f"--as-layout: {path} was captured on one rank, which computes nothing in parts; name"
            " the bundle of the parallel run"
        )
    if len(manifests) < first.ranks:
        raise UsageError(
            f"--as-layout: {path} has {len(manifests)} of {first.ranks} ranks; name one that has"
            " all"
        )
    mesh = Mesh.of(manifests, first.ranks)
    of_batch = [name for name in mesh.sizes if _have_other_inputs(name, mesh, manifests)]
    cuts: dict[str, PartLengths] = {}
    unknown = []
    for name in first.model.get("parameters") or {}:
        shards = {rank: _shard_of(each, name, path) for rank, each in manifests.items()}
        known = {rank: shard for rank, shard in shards.items() if shard is not None}
        if not known or any(shard.flat for shard, _ in known.values()):
            continue  # whole on each rank, or as FSDP1 keeps it
        whole = next(iter(known.values()))[0].shape
        cut = _cut(known, mesh, of_batch, whole) if len(known) == len(manifests) else None
        if cut is None:
            unknown.append(name)
        elif any(len(lengths) > 1 for lengths in cut):
            cuts[name] = cut
    batches = mesh.count(of_batch)
    rows = {} if batches == first.ranks else _rows(bundle, mesh, of_batch)
    if batches == 1 and not (cuts or rows or unknown):
        raise UsageError(
            f"--as-layout: {path} does not say how its ranks share the work: no parameter is cut,"
            " and all have the same batch. Capture DTensors (parallelize_module, a tp_plan), FSDP"
            " or DDP, or leave --as-layout out"
        )
    return RankParts(first.ranks, mesh.sizes, batches, cuts, rows, tuple(unknown))


def _rows(
    bundle: Bundle, mesh: Mesh, of_batch: Collection[str]
) -> dict[str, tuple[int, tuple[int, ...]]]:
    """The axis of each module's input along which ranks with one batch hold parts, and their
    lengths, by the first step's records."""
    held: dict[str, dict[int, tuple[Shard, tuple[int, ...]]]] = {}
    for rank, manifest in bundle.manifests.items():
        for record in bundle.step_records(rank, manifest.steps[0]) if manifest.steps else ():
            if record.role is Role.INPUT and record.call == 0 and record.shard is not None:
                held.setdefault(record.name, {}).setdefault(rank, (record.shard, record.shape))
    found = {}
    for name, shards in held.items():
        whole = next(iter(shards.values()))[0].shape
        if len(shards) < len(bundle.manifests) or any(
            own.shape != whole for own, _ in shards.values()
        ):
            continue
        cut = _cut(shards, mesh, of_batch, whole) or ()
        # the last axis is that of features
        axes = [axis for axis, lengths in enumerate(cut[:-1]) if len(lengths) > 1]
        if len(axes) == 1:
            found[name] = axes[0], cut[axes[0]]
    return found


def _have_other_inputs(name: str, mesh: Mesh, manifests: Mapping[int, Manifest]) -> bool:
    """Whether ranks that differ in one dimension alone were given other batches."""
    others = mesh.without([name])
    given: dict[tuple[int, ...], Any] = {}
    return any(
        given.setdefault(mesh.along((rank, 0), others), manifest.inputs) != manifest.inputs
        for rank, manifest in manifests.items()
    )


def _shard_of(manifest: Manifest, name: str, path: Place) -> tuple[Shard, tuple[int, ...]] | None:
    """A parameter's layout on a rank, and its part's shape; ``None`` if it is whole there."""
    entry = (manifest.model.get("parameters") or {}).get(name) or {}
    if "shard" not in entry:
        return None
    try:
        shard = msgspec.convert(entry["shard"], Shard)
        part = msgspec.convert(entry["shape"], tuple[int, ...])
    except (KeyError, msgspec.ValidationError) as error:
        raise BundleError(f"{path}: the layout of {name} cannot be read: {error}") from None
    if not shard.holds(part):
        raise BundleError(f"{path}: the layout of {name} does not fit its shape")
    return shard, part


def _cut(
    shards: Mapping[int, tuple[Shard, tuple[int, ...]]],
    mesh: Mesh,
    of_batch: Collection[str],
    whole: tuple[int, ...],
) -> PartLengths | None:
    """The parts that ranks compute with: those which are only kept apart, by ranks with other
    batches, are put together. ``None`` if they are not one run of each axis."""
    dimensions = mesh.without(of_batch)
    runs: dict[tuple[int, ...], list[set[tuple[int, int]]]] = {}
    for rank, (shard, part) in shards.items():
        own = runs.setdefault(mesh.along((rank, 0), dimensions), [set() for _ in whole])
        for where, start in shard.boxes(part):
            for axis, (edge, first) in enumerate(zip(where, start, strict=True)):
                own[axis].add((first, edge.stop - edge.start))
    cut = []
    for axis, length in enumerate(whole):
        joined = {_joined(each[axis]) for _, each in sorted(runs.items())}
        if None in joined:
            return None
        parts = sorted(each for each in joined if each is not None and each[1])
        if sum(count for _, count in parts) != length:
            return None
        cut.append(tuple(count for _, count in parts))
    places = math.prod(len(each) for each in cut)
    return tuple(cut) if len(runs) % places == 0 else None


def _joined(runs: Collection[tuple[int, int]]) -> tuple[int, int] | None:
    """Runs of indices as one; ``None`` if they leave holes or overlap."""
    first, *others = sorted(run for run in runs if run[1]) or [(0, 0)]
    start, count = first
    for at, length in others:
        if at != start + count:
            return None
        count += length
    return start, count
