"""The state of a model and its arguments: nested values as JSON, tensors as records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import torch

from accucompare.bundle.format import Layout, Record, Role, Shard
from accucompare.errors import CaptureError
from accucompare.live.values import dtype_name, local_part, to_host
from accucompare.numbers import Array
from accucompare.text import with_article


def take_apart(
    value: Any,
    tensors: list[torch.Tensor],
    place: str,
    lost: Callable[[Any, str], bool] | None = None,
) -> dict[str, Any]:
    """A nested value as JSON, its tensors by number: ``put_together``'s inverse. Raises
    CaptureError if a part cannot be saved, and ``lost`` does not leave it out.

    Args:
        value: tensors, numbers, strings, dtypes, None, and tuples, lists, counters and dicts (with
            string or integer keys) of those.
        tensors: new ones are appended; one that is there already keeps its number.
        place: what messages call the value.
        lost: called with each tensor or unsaveable part and its place: whether to leave it out.
    """
    if isinstance(value, torch.Tensor):
        if lost is not None and lost(value, place):
            return {"lost": place}
        number = next(
            (index for index, tensor in enumerate(tensors) if tensor is value), len(tensors)
        )
        if number == len(tensors):
            tensors.append(value)
        return {"tensor": str(number)}
    if isinstance(value, Mapping) and all(type(key) in (str, int) for key in value):
        kind = "counter" if type(value) is Counter else "dict"
        return {
            kind: [
                [key, take_apart(child, tensors, f"{place}, {key!r}", lost)]
                for key, child in value.items()
            ]
        }
    if type(value) in (list, tuple, torch.Size):
        kind = "list" if type(value) is list else "tuple"
        return {
            kind: [
                take_apart(child, tensors, f"{place}, {index}", lost)
                for index, child in enumerate(value)
            ]
        }
    if value is None or isinstance(value, (bool, int, float, str)):
        return {"value": value}
    if isinstance(value, torch.dtype):
        return {"dtype": dtype_name(value)}
    if lost is not None and lost(value, place):
        return {"lost": place}
    raise CaptureError(
        f"save_state (--save-state): {place}: cannot save {with_article(type(value).__name__)}; "
        "inputs may hold tensors, numbers, strings, None, and tuples, lists and dicts of those"
    )


def put_together(
    part: Any, load: Callable[[str], Any], lost: Callable[[str], Any] | None = None
) -> Any:
    """The value that ``take_apart`` took apart. Raises KeyError, TypeError, ValueError,
    AttributeError if the JSON is damaged.

    Args:
        part: its JSON.
        load: gives the tensor of a number.
        lost: gives what to put in a place that was left out.
    """
    (kind, content), *_ = part.items()
    if kind == "tensor":
        return load(content)
    if kind in ("dict", "counter"):
        return {"dict": dict, "counter": Counter}[kind](
            {key: put_together(child, load, lost) for key, child in content}
        )
    if kind in ("list", "tuple"):
        return {"list": list, "tuple": tuple}[kind](
            put_together(child, load, lost) for child in content
        )
    if kind == "dtype":
        dtype = getattr(torch, content)
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{content} is no dtype")
        return dtype
    if kind == "lost":
        if lost is None:
            raise ValueError(f"{content} was not saved")
        return lost(content)
    return content


def state_record(
    role: Role, name: str, tensor: torch.Tensor, shard: Shard | None = None
) -> tuple[Record, Callable[[], Array]]:
    """A record of the state, and what brings its data to the host or raises CaptureError.

    ``shard``: the layout of a tensor of which this rank has a part."""
    record = Record(
        0,
        0,
        name,
        0,
        role,
        "",
        0,
        "",
        None,
        tuple(local_part(tensor).shape),
        dtype_name(tensor.dtype),
        Layout.STRIDED,
        shard=shard,
    )

    def bits() -> Array:
        host = to_host(tensor)
        if host.array is None:
            raise CaptureError(
                f"save_state (--save-state): {role.value} {name!r} is {host.layout.value} and"
                " cannot be saved"
                f" ({host.detail})"
            )
        return host.array

    return record, bits
