"""The state that ``--like`` starts from: weights, buffers and inputs, saved in a bundle and put back into a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from rapidfuzz import fuzz, process

from accucompare.bundle.dtypes import Array
from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import Layout, Record, Role
from accucompare.capture.names import Modules
from accucompare.capture.tensors import dtype_name, from_bits, to_host
from accucompare.errors import CaptureError

_ROLES = {"parameters": Role.PARAM, "buffers": Role.BUFFER}

#: Positional and keyword arguments of one step.
Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def state_records(modules: Modules, steps: list[Arguments] | None) -> tuple[list[tuple[Record, Callable[[], Array]]], list[Any] | None]:
    """What to save of a model and its inputs.

    Returns:
        Records, each with a function that brings its data to the host; and the structure of the inputs, as JSON.

    Raises:
        CaptureError: if an input holds something that cannot be saved.
    """
    records = [_state_record(_ROLES[kind], name, tensor) for kind, name, tensor in modules.tensors()]
    if steps is None:
        return records, None
    tensors: list[torch.Tensor] = []
    structure = [_take_apart(list(arguments), tensors, f"inputs of step {step}") for step, arguments in enumerate(steps)]
    records += [_state_record(Role.CASE_INPUT, str(number), tensor) for number, tensor in enumerate(tensors)]
    return records, structure


def restore_weights(bundle: Bundle, modules: Modules) -> list[str]:
    """Copy a bundle's saved parameters and buffers into a model, casting to the model's dtypes.

    Returns:
        Notes: buffers that only one of the two has.

    Raises:
        CaptureError: if a parameter is missing on either side or has another shape.
        BundleError: if the bundle has no saved state, or it is damaged.
    """
    targets = {(_ROLES[kind], name): tensor for kind, name, tensor in modules.tensors()}
    saved = {(record.role, record.name): record for record in bundle.state() if record.role is not Role.CASE_INPUT}
    only_saved = [name for role, name in saved.keys() - targets.keys() if role is Role.PARAM]
    only_model = [name for role, name in targets.keys() - saved.keys() if role is Role.PARAM]
    for names, others, words in (
        (only_saved, only_model, f"{bundle.path} has a parameter that the model lacks"),
        (only_model, only_saved, f"the model has a parameter that {bundle.path} lacks"),
    ):
        if names:
            name = min(names)
            found = process.extractOne(name, others, scorer=fuzz.ratio, score_cutoff=50)
            hint = f"; the nearest is {found[0]!r}" if found else ""
            raise CaptureError(f"--like: {words}: {name!r} ({len(names)} in all{hint}); is it the same model?")
    pairs = [(saved[key], targets[key]) for key in sorted(saved.keys() & targets.keys())]
    for record, target in pairs:  # all of them before any is copied: a model that does not fit stays as it is
        if tuple(target.shape) != record.shape:
            raise CaptureError(f"--like: {record.name!r} is {list(target.shape)} in the model but {list(record.shape)} in {bundle.path}")
    with torch.no_grad():
        for record, target in pairs:
            target.copy_(from_bits(bundle.raw(record), record.dtype))
    return [
        f"buffer {name!r} is only in {'the saved state' if (role, name) in saved else 'the model'}"
        for role, name in sorted(saved.keys() ^ targets.keys())
    ]


def saved_inputs(bundle: Bundle) -> list[Arguments] | None:
    """The inputs that a bundle was saved with, one entry a step; ``None`` if it was captured around a loop of the user's own.

    Raises:
        BundleError: if the bundle has no saved state, or it is damaged.
    """
    structure = bundle.manifest.capture.get("inputs")
    records = {record.name: record for record in bundle.state() if record.role is Role.CASE_INPUT}
    if structure is None:
        return None

    def build(part: Any) -> Any:
        (kind, content), *_ = part.items()
        if kind == "tensor":
            record = records[content]
            return from_bits(bundle.raw(record), record.dtype)
        if kind == "dict":
            return {key: build(child) for key, child in content}
        if kind in ("list", "tuple"):
            return {"list": list, "tuple": tuple}[kind](build(child) for child in content)
        return content

    try:
        return [(tuple(arguments[0]), arguments[1]) for arguments in map(build, structure)]
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise CaptureError(f"--like: the inputs saved in {bundle.path} are damaged ({type(error).__name__})") from None


def _take_apart(value: Any, tensors: list[torch.Tensor], place: str) -> dict[str, Any]:
    """A nested value as JSON, its tensors by number."""
    if isinstance(value, torch.Tensor):
        tensors.append(value)
        return {"tensor": str(len(tensors) - 1)}
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {"dict": [[key, _take_apart(child, tensors, f"{place}, {key!r}")] for key, child in value.items()]}
    if type(value) in (list, tuple):
        kind = type(value).__name__
        return {kind: [_take_apart(child, tensors, f"{place}, {index}") for index, child in enumerate(value)]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    raise CaptureError(
        f"--save-state: {place}: cannot save a {type(value).__name__}; "
        "inputs may hold tensors, numbers, strings, None, and tuples, lists and dicts of those"
    )


def _state_record(role: Role, name: str, tensor: torch.Tensor) -> tuple[Record, Callable[[], Array]]:
    record = Record(0, 0, name, 0, role, "", 0, "", None, tuple(tensor.shape), dtype_name(tensor.dtype), Layout.STRIDED)

    def bits() -> Array:
        host = to_host(tensor)
        if host.array is None:
            raise CaptureError(f"--save-state: {role.value} {name!r} is {host.layout.value} and cannot be saved ({host.detail})")
        return host.array

    return record, bits
