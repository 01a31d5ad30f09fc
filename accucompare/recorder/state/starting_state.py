"""Weights, buffers and inputs: saved in a bundle, and put back into a model (``--like``)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from rapidfuzz import fuzz, process

from accucompare.asked import try_maps
from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.fusions import find_fused
from accucompare.compare.pairing import (
    Renaming,
    SharedNames,
    counterparts,
    propose,
    rename_parameter,
    renamed_model,
)
from accucompare.errors import CaptureError
from accucompare.live.around import ShardOf, describe_tensors
from accucompare.live.modules import Modules, put_together, state_record, take_apart
from accucompare.live.values import from_bits
from accucompare.numbers import DTYPES, Array

_ROLES = {"parameters": Role.PARAM, "buffers": Role.BUFFER}

#: Positional and keyword arguments of one step.
CallArguments = tuple[tuple[Any, ...], dict[str, Any]]


def state_records(
    modules: Modules, steps: list[CallArguments] | None, shard_of: ShardOf | None = None
) -> tuple[list[tuple[Record, Callable[[], Array]]], list[Any] | None]:
    """What to save of a model and its inputs; of a weight that lies on several ranks this rank's
    part, with the layout that ``shard_of`` gives.

    Returns:
        Records, each with a function that brings its data to the host; and the structure of the
        inputs, as JSON.

    Raises:
        CaptureError: if an input holds something that cannot be saved.
    """
    records = [
        state_record(_ROLES[kind], name, tensor, None if shard_of is None else shard_of(tensor))
        for kind, name, tensor in modules.tensors()
    ]
    if steps is None:
        return records, None
    tensors: list[torch.Tensor] = []
    structure = [
        take_apart(list(arguments), tensors, f"inputs of step {step}")
        for step, arguments in enumerate(steps)
    ]
    records += [
        state_record(Role.CASE_INPUT, str(number), tensor) for number, tensor in enumerate(tensors)
    ]
    return records, structure


def restore_weights(
    bundle: Bundle,
    modules: Modules,
    renamings: Sequence[Renaming] = (),
    changed: Collection[str] = (),
) -> tuple[list[str], list[str]]:
    """Copy a bundle's saved parameters and buffers into a model, casting to the model's dtypes.

    Buffers that the model computes itself (``persistent=False``) stay its own: they are under test.

    Args:
        bundle: has saved state.
        renamings: of the bundle's layers; applied where the model has the new name.
        changed: computed buffers that are restored all the same, since earlier steps changed them.

    Returns:
        Notes on buffers that only one side has; the names of the tensors with other values before.

    Raises:
        CaptureError: if a parameter is missing on either side or has another shape.
        BundleError: if the bundle has no saved state, or it is damaged.
    """
    computed = {
        f"{module}.{buffer}" if module else buffer for module, buffer, _ in modules.computed()
    }
    targets = {(_ROLES[kind], name): tensor for kind, name, tensor in modules.tensors()}
    saved = _under_names_of(
        targets, [record for record in bundle.state() if record.role in _ROLES.values()], renamings
    )
    outline = modules.outline()
    for name in _fused(bundle, modules, saved, targets, renamings):
        saved.pop((Role.PARAM, name), None)
        targets.pop((Role.PARAM, name), None)
    shared_names = SharedNames(renamed_model(bundle.manifest.model, outline, renamings), outline)
    for role, name in saved.keys() - targets.keys():
        other = shared_names.other(name)
        # in golden, the model's name for it is a module's
        if other is not None and (role, other) not in saved:
            saved[role, other] = saved.pop((role, name))
    only_saved = [
        name
        for role, name in saved.keys() - targets.keys()
        if role is Role.PARAM and not _is_saved_as(saved, name, shared_names.other(name))
    ]
    # a tied parameter has its value by another name
    shared = {id(targets[key]) for key in targets.keys() & saved.keys()}
    only_model = [
        name
        for role, name in targets.keys() - saved.keys()
        if role is Role.PARAM and id(targets[role, name]) not in shared
    ]
    for names, others, words in (
        (only_saved, only_model, f"{bundle.path} has a parameter that the model lacks"),
        (only_model, only_saved, f"the model has a parameter that {bundle.path} lacks"),
    ):
        if names:
            name = min(names)
            found = process.extractOne(name, others, scorer=fuzz.ratio, score_cutoff=50)
            hint = f"; the nearest is {found[0]!r}" if found else ""
            cure = (
                try_maps(propose(bundle.manifest.model, outline, renamings, fingerprints=False))
                or "; is it the same model?"
            )
            raise CaptureError(
                f"start (--like): {words}: {name!r} ({len(names)} in all{hint}){cure}"
            )
    made = {
        (Role.BUFFER, name)
        for name in computed
        if (Role.BUFFER, name) not in saved or saved[Role.BUFFER, name].name not in changed
    }
    pairs = [(saved[key], targets[key]) for key in sorted((saved.keys() & targets.keys()) - made)]
    for record, target in pairs:  # before any is copied: a model that does not fit stays as it is
        shape = record.shape if record.shard is None else record.shard.shape
        if tuple(target.shape) != shape:
            raise CaptureError(
                f"start (--like): {record.name!r} is {list(target.shape)} in the model but"
                f" {list(shape)} in {bundle.path}"
            )
    replaced = []
    parts = _parts_by_name(bundle) if any(record.shard is not None for record, _ in pairs) else {}
    with torch.no_grad():
        for record, target in pairs:
            raw = bundle.raw(record) if record.shard is None else _whole(bundle, record, parts)
            value = from_bits(raw, record.dtype)
            if _holds_another(target, value):
                replaced.append(record.name)
            target.copy_(value)
    notes = [
        f"buffer {name!r} is only in {'the saved state' if (role, name) in saved else 'the model'}"
        for role, name in sorted(saved.keys() ^ targets.keys())
        if role is Role.BUFFER
    ]
    return notes, replaced


def _fused(
    bundle: Bundle,
    modules: Modules,
    saved: Mapping[tuple[Role, str], Record],
    targets: Mapping[tuple[Role, str], torch.Tensor],
    renamings: Sequence[Renaming],
) -> set[str]:
    """Parameters of fused layers that the model holds already, row by row; they stay its own."""
    differ = {name for role, name in saved.keys() ^ targets.keys() if role is Role.PARAM}
    if not differ and all(
        saved[key].shape == tuple(targets[key].shape) for key in saved.keys() & targets.keys()
    ):
        return set()
    own = {**modules.outline(), **describe_tensors(modules)}
    return {
        name
        for weight in find_fused(bundle.manifest.model, own, renamings)
        for name in (weight.whole, *(part.name for part in weight.parts))
    }


_Parts = dict[tuple[Role, str], list[Record]]


def _parts_by_name(bundle: Bundle) -> _Parts:
    """What all ranks have saved of each parameter and buffer."""
    found: _Parts = {}
    for rank in bundle.manifests:
        for record in bundle.state(rank):
            found.setdefault((record.role, record.name), []).append(record)
    return found


def _whole(bundle: Bundle, record: Record, parts: _Parts) -> Array:
    """A saved tensor, put together from the ranks' parts. Errors as ``Bundle.raw``; CaptureError if
    a part is missing."""
    shard = record.shard
    assert shard is not None
    whole = np.zeros(shard.shape, DTYPES[record.dtype].storage)
    filled = np.zeros(shard.shape, bool)
    for part in parts.get((record.role, record.name), ()):
        if part.shard is None or part.shard.shape != shard.shape or part.dtype != record.dtype:
            continue
        raw = bundle.raw(part)
        targets, values = whole, raw
        known = filled
        if part.shard.flat:
            targets, values, known = (each.reshape(-1) for each in (whole, raw, filled))
        for where, start in part.shard.boxes(part.shape):
            place = tuple(
                slice(first, first + length)
                for first, length in zip(start, values[where].shape, strict=True)
            )
            targets[place], known[place] = values[where], True
    if not filled.all():
        raise CaptureError(
            f"start (--like): {bundle.path} has only a part of {record.name!r}: a rank's state is"
            " missing"
        )
    return whole


def _is_saved_as(saved: Mapping[tuple[Role, str], Record], name: str, other: str | None) -> bool:
    """Whether the model has a saved parameter under another name that holds its saved value."""
    found = None if other is None else saved.get((Role.PARAM, other))
    own = saved[Role.PARAM, name]
    return found is not None and (found.digest, found.dtype) == (own.digest, own.dtype)


def _holds_another(target: torch.Tensor, value: torch.Tensor) -> bool:
    """Whether copying a value would change a weight's bits; False for DTensor and its like."""
    own = target.detach()
    plain = type(own) is torch.Tensor and own.layout is torch.strided
    if not plain or own.is_quantized or own.is_meta:
        return False
    sides = (own.cpu(), value.to(own.dtype))
    ours, theirs = (side.contiguous().reshape(-1).view(torch.uint8) for side in sides)
    return not torch.equal(ours, theirs)


def _under_names_of(
    targets: Mapping[tuple[Role, str], torch.Tensor],
    records: list[Record],
    renamings: Sequence[Renaming],
) -> dict[tuple[Role, str], Record]:
    """Saved parameters and buffers by the model's names; those it lacks keep their own."""
    found: dict[tuple[Role, str], Record] = {}
    for role in _ROLES.values():
        saved = {record.name: record for record in records if record.role is role}
        new = counterparts(
            saved, {name for kind, name in targets if kind is role}, renamings, rename_parameter
        )
        found.update({(role, name): record for name, record in saved.items() if name not in new})
        found.update({(role, new[name]): saved[name] for name in new})
    return found


def saved_inputs(bundle: Bundle) -> list[CallArguments] | None:
    """A bundle's saved inputs, one entry a step; ``None`` if they came from a user's own loop.

    Raises:
        BundleError: if the bundle has no saved state, or it is damaged.
    """
    structure = bundle.manifest.capture.get("inputs")
    records = {record.name: record for record in bundle.state() if record.role is Role.CASE_INPUT}
    if structure is None:
        return None

    def load(name: str) -> torch.Tensor:
        record = records[name]
        return from_bits(bundle.raw(record), record.dtype)

    try:
        return [
            (tuple(arguments[0]), arguments[1])
            for arguments in (put_together(part, load) for part in structure)
        ]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CaptureError(
            f"start (--like): the inputs saved in {bundle.path} are damaged"
            f" ({type(error).__name__})"
        ) from None
