"""A bundle of several ranks, described as if one device had made it."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec
import numpy as np

from accucompare.bundle.format import (
    UPDATE_ROLES,
    GlobalRecord,
    Left,
    Manifest,
    Record,
    Role,
    StepSeries,
    Unfed,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.constants import SAME_NUMBER
from accucompare.compare.layouts.mesh import UNKNOWN
from accucompare.compare.layouts.put_back import with_feed
from accucompare.compare.layouts.rank_records import RankRecords
from accucompare.compare.layouts.unify import Unified
from accucompare.compare.pairing import Model, Pair
from accucompare.numbers import DTYPES, same_fingerprint, widen

_TABLES = ("parameters", "buffers")
#: What a step was told to do, or did.
_SETTINGS = ("lr", "loss_scale", "skipped", "updates")


def as_one(bundle: Bundle, ranks: RankRecords, unified: Unified, golden: Manifest | None) -> Bundle:
    """The bundle with one manifest, of the global model.

    Parameters that no rank holds whole are left out: their values are compared as rows.

    Args:
        ranks: its records.
        unified: the pairs, put together; the bundle is golden if ``golden`` is ``None``.
        golden: golden's manifest.
    """
    manifests = bundle.manifests
    first = manifests[min(manifests)]
    stopped = next((each.stopped for each in manifests.values() if not each.complete), None)
    counts = {rank: len(manifest.run_steps) for rank, manifest in manifests.items()}
    unequal = len(set(counts.values())) > 1
    if unequal and stopped is None:
        fewest = min(counts, key=counts.__getitem__)
        stopped = {"rank": fewest, "steps": counts[fewest], "of": max(counts.values())}
    model = {
        **_united([manifest.model for manifest in manifests.values()]),
        **{kind: _shared(manifests.values(), kind) for kind in _TABLES},
        "dtypes": _dtypes(first),
    }
    if bundle.missing_ranks and golden is not None:  # what is left of a tensor may be a part
        for kind in _TABLES:
            known = golden.model.get(kind) or {}
            model[kind] = {
                name: entry
                for name, entry in model[kind].items()
                if name in known and same_fingerprint(entry, known[name])
            }
    shapes = {name: tuple(entry["shape"]) for name, entry in model["parameters"].items()}
    whole = len(shapes) == len(first.model.get("parameters") or {})
    steps = {step for step, _ in ranks.batches}
    merged = replace(
        first,
        complete=bundle.complete and not unequal,
        stopped=stopped,
        ranks=1,
        mesh=first.mesh or {UNKNOWN: (0, bundle.ranks)},
        model=model,
        capture={
            **first.capture,
            "kept": _kept(manifests.values()),
            "left": _left([each.options.left for each in manifests.values()]),
        },
        inputs=golden.inputs if steps and golden is not None else {},
        series=[
            _series(bundle, entry, unified, golden, entry.step in steps, shapes if whole else {})
            if entry.step not in ranks.short
            else _of_some_ranks(entry)
            for entry in first.series
        ],
    )
    if first.feed is not None:
        merged = with_feed(merged, _not_fed(ranks))
    one = copy.copy(bundle)
    one.manifest, one.manifests = merged, {0: merged}
    return one


def _kept(manifests: Iterable[Manifest]) -> list[str] | None:
    """The plain attributes in which any rank keeps a tensor, such as a pipeline stage its input."""
    kept = [each.options.kept for each in manifests]
    return None if None in kept else sorted({name for own in kept for name in own or ()})


def _left(sides: Sequence[Left | None]) -> dict[str, Any] | None:
    """What the ranks left in attributes; of one module, what its first rank left."""
    left = [each for each in sides if each is not None]
    tables = {
        kind: dict(item for each in reversed(left) for item in getattr(each, kind).items())
        for kind in ("numbers", "unchanged", "held")
    }
    names = {
        kind: sorted({name for each in left for name in getattr(each, kind)})
        for kind in ("dropped", "beyond")
    }
    return {**tables, **names} if len(left) == len(sides) else None


def _not_fed(ranks: RankRecords) -> list[Unfed]:
    """The values that a rank was not fed, each once, by golden's calls."""
    entries = [
        (rank, entry)
        for rank, manifest in ranks.manifests.items()
        for entry in (() if manifest.feed is None else manifest.feed.not_fed)
    ]
    calls: dict[tuple[int, int, str, int], int] = {}
    for key, group in ranks.groups.items() if entries else ():
        for record in group.values():
            calls[record.rank, record.step, record.name, record.call] = key.call
    found: dict[tuple[Any, ...], Unfed] = {}
    for rank, entry in entries:
        call = entry.call
        if Role(entry.role) not in UPDATE_ROLES:
            call = calls.get((rank, entry.step, entry.name, call), call)
        place = entry.step, entry.name, call, entry.role, entry.path
        if place not in found or entry.hides:
            found[place] = msgspec.structs.replace(entry, call=call)
    return [*found.values()]


def without_parts(bundle: Bundle, other: Bundle) -> Bundle:
    """A side without the parameters that the other's merged manifest leaves out."""
    manifest = bundle.manifest
    model = {**manifest.model, "dtypes": _dtypes(manifest)}
    for kind in _TABLES:
        kept = other.manifest.model.get(kind) or {}
        held = model.get(kind) or {}
        model[kind] = {name: entry for name, entry in held.items() if name in kept}
    if len(model["parameters"]) == len(manifest.model.get("parameters") or {}):
        return bundle
    series = [msgspec.structs.replace(entry, weights=None) for entry in manifest.series]
    trimmed = replace(manifest, model=model, series=series)
    one = copy.copy(bundle)
    one.manifest, one.manifests = trimmed, {**bundle.manifests, 0: trimmed}
    return one


def _dtypes(manifest: Manifest) -> list[str]:
    """Those of all parameters, for ``float_dtype``: also of those that are left out."""
    return [entry["dtype"] for entry in (manifest.model.get("parameters") or {}).values()]


def _united(models: Sequence[Model]) -> dict[str, Any]:
    """One description of modules that ranks may have apart: as the first one's that has them."""
    first, *others = models
    united = {**first}
    for model in others:
        if model.get("modules") == first.get("modules"):
            continue
        for name, part in model.items():
            known = united.get(name)
            if isinstance(part, Mapping) and isinstance(known, Mapping):
                united[name] = {**part, **known}
            elif isinstance(part, list) and isinstance(known, list):
                united[name] = [*dict.fromkeys([*known, *part])]
    return united


def _shared(manifests: Iterable[Manifest], kind: str) -> dict[str, Any]:
    """The entries of a table that all ranks that have the module hold whole and alike."""
    models = [manifest.model for manifest in manifests]
    found = {}
    for name in dict.fromkeys(name for model in models for name in model.get(kind) or ()):
        module = name.rpartition(".")[0]
        held = [
            model[kind].get(name) for model in models if module in model.get("modules", {module})
        ]
        first = held[0]
        if first is not None and all(
            entry is not None and "shard" not in entry and same_fingerprint(entry, first)
            for entry in held
        ):
            found[name] = first
    return found


def _series(
    bundle: Bundle,
    first: StepSeries,
    unified: Unified,
    golden: Manifest | None,
    same_rows: bool,
    whole: Mapping[str, tuple[int, ...]],
) -> StepSeries:
    """One step's numbers of the global model.

    Of a setting that differs between the ranks, a value that is not golden's is kept. The gradient
    norm is that of the gradients put together; a rank knows its own parts only.

    Args:
        same_rows: whether the ranks were given golden's rows.
        whole: the shapes of all parameters, if each rank holds them whole.
    """
    manifests = bundle.manifests.values()
    entries = [entry for each in manifests for entry in each.series if entry.step == first.step]
    series = () if golden is None else golden.series
    theirs = next((each for each in series if each.step == first.step), None)
    norm = _norm(bundle, unified.pairs, first.step, theirs, whole)
    factor = _clipping(entries, theirs)
    if norm is not None and factor is None and theirs is not None:
        factor = _own_clipping(norm, theirs)
        norm = norm if factor is None else norm / factor
    elif norm is not None and factor is not None and _golden_clips_itself(norm, factor, theirs):
        norm, factor = norm * factor, None
    told = {} if theirs is None else {name: _told(entries, theirs, name) for name in _SETTINGS}
    return msgspec.structs.replace(
        first,
        **told,
        losses=_losses(entries, () if theirs is None else theirs.losses, unified.means),
        grad_norm=norm,
        clipped_norm=None if norm is None or factor is None else norm * factor,
        batch=theirs.batch if same_rows and theirs is not None else None,
        weights=first.weights if whole else None,
    )


def _told(entries: Iterable[StepSeries], golden: StepSeries, name: str) -> Any:
    """What the ranks were told; of the first one, unless another's is not golden's."""
    values = [getattr(entry, name) for entry in entries]
    return next((each for each in values if each != getattr(golden, name)), values[0])


def _losses(
    entries: Sequence[StepSeries], golden: Sequence[float], divisors: Iterable[float]
) -> tuple[float, ...]:
    """The mean of the ranks' losses, or their sum where each is a term of golden's.

    Where a rank has several for golden's one, these are added, or averaged over all or over a
    schedule: whichever is nearest. Where it has some of golden's, those of all ranks are put in a
    row, or added. ``divisors``: what a mean may divide by."""
    held = [entry.losses for entry in entries if entry.losses]
    if not held or len({len(losses) for losses in held}) > 1:
        return ()
    apart = [*dict.fromkeys(held)]  # ranks of one batch have one loss
    means = [math.fsum(each) / len(held) for each in zip(*held, strict=True)]
    sums = [math.fsum(each) for each in zip(*apart, strict=True)]
    total, terms = math.fsum(means), math.fsum(sums)
    if len(golden) == len(apart) * len(means) > len(means):  # each of golden's is on one rank
        orders = (
            [loss for each in apart for loss in each],
            [*itertools.chain(*zip(*apart, strict=True))],
        )
        own = [[loss / many for loss in each] for each in orders for many in (1, len(apart))]
        return tuple(min(own, key=lambda way: sum(map(abs, map(operator.sub, way, golden)))))
    if len(golden) > len(means):
        totals = (total, total * len(golden) / len(means), terms)
        return (min(totals, key=lambda loss: abs(loss - math.fsum(golden))),)
    if len(golden) == len(means):
        ways = (means, sums)
        return tuple(min(ways, key=lambda way: sum(map(abs, map(operator.sub, way, golden)))))
    if len(golden) != 1:
        return tuple(means)
    nearest = [total, total / len(means), terms, terms / len(means)]
    if len(means) > 1:
        nearest += [total / divisor for divisor in divisors if divisor < len(means)]
    return (min(nearest, key=lambda loss: abs(loss - golden[0])),)


def _norm(
    bundle: Bundle,
    pairs: Iterable[Pair],
    step: int,
    golden: StepSeries | None,
    whole: Mapping[str, tuple[int, ...]],
) -> float | None:
    """The L2 norm of the gradients put together, of golden's if ``golden`` is ``None``; ``None``
    unless golden's make up golden's own norm. Of replicas that differ, and lie side by side, it is
    that of one.

    Args: ``whole``: see ``_series``."""
    sides: tuple[list[float], list[float]] = [], []
    for pair in pairs:
        record = pair.golden
        if record is None or (record.role, record.step) != (Role.PARAM_GRAD, step):
            continue
        norms = [_l2(each) for each in (pair.golden, pair.candidate)]
        own = 0 if golden is None else 1
        shape = whole.get(f"{record.name}.{record.path}".removeprefix("."), record.shape)
        times = math.prod(record.shape) / (math.prod(shape) or 1) or 1.0
        if norms[own] is None:
            norms[own] = _l2_of_sums(bundle, pair.golden if golden is None else pair.candidate)
        for side, norm in zip(sides, norms, strict=True):
            side.append(math.nan if norm is None else norm / math.sqrt(times))
    ours, theirs = (math.hypot(*side) for side in sides)
    if golden is None:
        return None if math.isnan(ours) or not sides[0] else ours
    if golden.grad_norm is None or math.isnan(theirs):
        return None
    return theirs if math.isclose(ours, golden.grad_norm, rel_tol=1e-6) else None


def _l2(record: Record | None) -> float | None:
    known = None if record is None else record.statistics
    whole = record is not None and (record.shard is None or isinstance(record, GlobalRecord))
    return known.l2 if whole and known is not None else None


def _l2_of_sums(bundle: Bundle, record: Record | None) -> float | None:
    """The norm of a tensor that ranks have terms of; ``None`` if it is not recorded so."""
    if not isinstance(record, GlobalRecord) or record.member is None:
        return None
    blocks = bundle.stored(record).blocks(0, math.prod(record.shape))
    wide = (widen(block, DTYPES[record.dtype]) for block in blocks)
    return math.sqrt(math.fsum(float(np.square(each, dtype=np.float64).sum()) for each in wide))


def _clipping(entries: Sequence[StepSeries], golden: StepSeries | None) -> float | None:
    """The factor by which the ranks clipped, of all the furthest from golden's; ``None`` if none
    did."""
    factors = [_factor(entry) for entry in entries]
    if all(factor is None for factor in factors):
        return None
    own = None if golden is None else _factor(golden)
    return max(
        (1.0 if factor is None else factor for factor in factors),
        key=lambda factor: abs(factor - (1.0 if own is None else own)),
    )


def _own_clipping(norm: float, golden: StepSeries) -> float | None:
    """Golden's factor, if the ranks' gradients have the norm to which golden clips: their loop has
    clipped them before the optimizer was given them. Rows tell whether by that factor."""
    factor = _factor(golden)
    if factor is None or not factor < 1.0 or golden.clipped_norm is None:
        return None
    return factor if math.isclose(norm, golden.clipped_norm, rel_tol=SAME_NUMBER) else None


def _of_some_ranks(entry: StepSeries) -> StepSeries:
    """One step's numbers where ranks are missing: nothing is known of the global model."""
    return msgspec.structs.replace(
        entry, losses=(), grad_norm=None, clipped_norm=None, batch=None, weights=None
    )


def _golden_clips_itself(norm: float, factor: float, golden: StepSeries | None) -> bool:
    """Whether golden's gradients have the norm to which the ranks clip: its loop has clipped them
    before the optimizer was given them."""
    if golden is None or golden.clipped_norm is not None or not golden.grad_norm:
        return False
    return factor < 1.0 and math.isclose(norm * factor, golden.grad_norm, rel_tol=SAME_NUMBER)


def own_clipping(
    golden: Manifest, candidate: Manifest, ranks: Mapping[int, Manifest]
) -> dict[int, float]:
    """What the ranks' gradients are to be divided by, by step, where one side's loop clips by
    itself: its gradients are recorded after that, the other's before.

    Args:
        candidate: as one.
        ranks: the manifests as recorded.
    """
    seen = {
        entry.step
        for each in ranks.values()
        for entry in each.series
        if entry.clipped_norm is not None
    }
    clipped = {each.step for each in golden.series if each.clipped_norm is not None} - seen
    factors = {each.step: _factor(each) for each in candidate.series if each.step in clipped}
    known = {step: factor for step, factor in factors.items() if factor is not None}
    for ours in golden.series:
        entries = [e for each in ranks.values() for e in each.series if e.step == ours.step]
        one = next((each for each in candidate.series if each.step == ours.step), None)
        factor = _clipping(entries, ours)
        if one is not None and one.clipped_norm is None and one.grad_norm and factor:
            known[ours.step] = 1.0 / factor
    return known


def _factor(entry: StepSeries) -> float | None:
    if entry.clipped_norm is None or not entry.grad_norm:
        return None
    return entry.clipped_norm / entry.grad_norm
