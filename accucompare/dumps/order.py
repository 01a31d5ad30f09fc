"""The execution order of calls, from the order in which they ended and from their parents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

_T = TypeVar("_T")


@dataclass(frozen=True)
class EndedCall(Generic[_T]):
    """A call: its key, its qualified name, and the caller's own object for it."""

    key: str
    name: str
    entry: _T


def around(
    ended: Sequence[EndedCall[_T]], parents: Mapping[str, str | None]
) -> dict[str, str | None]:
    """The call that made each of these calls; ``None`` for the outermost.

    Args:
        ended: calls in the order in which they ended.
        parents: the call that made each, as the dump says. It may name calls that are not among
            these, and lack some: a missing parent is the next call to end whose name begins the
            call's name.
    """
    keys = {call.key for call in ended}
    found: dict[str, str | None] = {}
    pending: list[EndedCall[_T]] = []
    for call in ended:
        while pending and pending[-1].name.startswith(f"{call.name}."):
            found[pending.pop().key] = call.key
        if call.key not in parents:
            pending.append(call)
            continue
        above, seen = parents[call.key], {call.key}
        while above is not None and above not in keys and above not in seen:
            seen.add(above)
            above = parents.get(above)
        found[call.key] = above if above in keys else None
    return {**found, **{call.key: None for call in pending}}


def order_of_calls(
    ended: Sequence[EndedCall[_T]], parents: Mapping[str, str | None]
) -> Iterator[tuple[bool, _T]]:
    """Each call twice: when it began (True), and when it ended. Calls in one call come in the order
    in which they ended.

    Args:
        ended: calls in the order in which they ended.
        parents: as ``around`` gives them.

    Raises:
        ValueError: if the parents form a circle.
    """
    children: dict[str | None, list[EndedCall[_T]]] = {}
    for call in ended:
        children.setdefault(parents[call.key], []).append(call)
    stack = [(True, call) for call in reversed(children.get(None, []))]
    begun = 0
    while stack:
        begins, call = stack.pop()
        yield begins, call.entry
        if begins:
            begun += 1
            stack.append((False, call))
            stack += [(True, child) for child in reversed(children.get(call.key, []))]
    if begun != len(ended):
        raise ValueError(f"{len(ended) - begun} calls are in one another")
