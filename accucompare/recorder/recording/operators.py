"""The operator level: what the operators in the forward of chosen module calls take and give.

An operator's key is its module call, its name and its number among the call's operators of that
name. All three are in a record's ``name``, ``call`` and ``path`` (``aten.bmm.default#1.mat2``). Its
source line is the record's ``detail``.

**Fed**, each operator's tensors are exchanged for golden's, as a module's are. Where an operator
writes into an argument, golden's values are written into that same tensor before and after, since
others hold it too. Parameters and buffers stay the model's own.

Not recorded are operators that compute nothing, and random ones, whose numbers agree already
(``matched_randomness``): a fault in them shows at the next operator.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

from accucompare.bundle.format import Role
from accucompare.live.modules import Call, Listener
from accucompare.live.operators import (
    LEFT_OUT,
    NO_VALUES,
    WRITTEN_SILENTLY,
    Blank,
    CallMode,
    Inside,
    Known,
    is_plain,
    known_of,
    source_line,
)
from accucompare.live.values import Scalar, leaves, replaced
from accucompare.recorder.feeding import Memory, OperatorFeed


class Operators(CallMode):  # type: ignore[no-untyped-call]
    """Sees the operators of one module call, below autograd and autocast, above emulation.

    Without autograd, as in inference mode, composite operators arrive whole: it sees their parts.
    """

    def __init__(
        self,
        listener: Listener[Any],
        call: Call,
        record: Callable[[Any, Role, str, Any, str, str], None],
        feed: OperatorFeed | None,
    ) -> None:
        super().__init__()
        self._listener = listener  # of the module call
        self._module_call = call
        # is given the call, and of a value the role, path, operator and source line
        self._add = record
        self._feed = feed
        self._counts: Counter[str] = Counter()
        self._blank = Blank()
        self._inside = Inside("CPU", "CUDA", "PrivateUse1")

    def _is_own(self) -> bool:
        """Whether the code that runs is the module's own, not a child's or a hook's."""
        return self._listener.is_running(self._module_call)

    def _do(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Run recording's work; an error gives ``None`` and is noted (raised in a fed capture)."""
        return self._listener.run(act, self._module_call.name, arguments)

    def see(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = known_of(op)
        if known.inside is not None and known.is_composed(op, pytree.tree_leaves((args, kwargs))):
            with self._inside.of(op, self):
                return op._op_dk(known.inside, *args, **kwargs)
        if LEFT_OUT.get(known.name) == NO_VALUES:
            result = op(*args, **kwargs)
            self._blank.add(result)
            return result
        unread = self._unread(known, args, kwargs) if known.written else known.unread
        line = (
            source_line(folders=1)
            if self.entered and not known.left_out and self._is_own()
            else None
        )
        if line is None:
            return op(*args, **kwargs)
        call = _Call(op, known, line, args, kwargs, unread)
        if self._feed is None:
            self._do(self._record_inputs, call)
            result = op(*args, **kwargs)
            self._do(self._record_outputs, call, result)
            return result
        return self._fed(call, self._feed)

    def _unread(
        self, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> frozenset[str]:
        """The arguments whose values are not read, or that are written into and hold none yet."""
        given = {**dict(zip(known.arguments, args, strict=False)), **kwargs}
        return known.unread | {
            name
            for name in known.written
            if isinstance(given.get(name), torch.Tensor) and self._blank.take(given[name])
        }

    def _fed(self, call: _Call, feed: OperatorFeed) -> Any:
        """Run an operator on golden's values, and return golden's."""
        matched, by_path = self._do(self._feed_inputs, call, feed)
        given = replaced(call.named, by_path)
        result = call.op(
            *(given[name] for name in call.positional),
            **{name: given[name] for name in call.keywords},
        )
        copies = {tensor.untyped_storage()._cdata for tensor in by_path.values()}
        if any(
            is_plain(part) and part.untyped_storage()._cdata in copies
            for part in call.computed(result)
        ):
            self._do(
                feed.feed.pass_on,
                feed.place(Role.OP_OUTPUT),
                call.id,
                "it is what went in, under another name",
            )
            by_path, matched, result = {}, False, call.op(*call.args, **call.kwargs)
        self._do(self._record_outputs, call, result)
        if not matched:
            return result
        return self._do(self._feed_outputs, call, feed, result)

    def _record_inputs(self, call: _Call) -> None:
        call.number = self._counts[call.name]
        self._counts[call.name] += 1
        self._record(Role.OP_INPUT, call, call.inputs())

    def _record_outputs(self, call: _Call, result: Any) -> None:
        self._record(Role.OP_OUTPUT, call, call.outputs(result))

    def _record(self, role: Role, call: _Call, parts: Iterable[tuple[str, Any]]) -> None:
        for path, value in parts:
            self._add(self._module_call, role, call.path(path), value, call.name, call.line)

    def _feed_inputs(self, call: _Call, feed: OperatorFeed) -> tuple[bool, dict[str, torch.Tensor]]:
        """Record what arrived; return golden's values by path. Written arguments get them now."""
        parts = list(call.inputs())
        tensors = [(path, part) for path, part in parts if isinstance(part, torch.Tensor)]
        match = feed.match(call.name, call.line, parts)
        call.number = match.number
        self._record(Role.OP_INPUT, call, parts)
        place, memory = feed.place(Role.OP_INPUT), Memory()
        if match.why_not:
            feed.feed.pass_on(place, call.id, match.why_not)
            return False, {}
        by_path: dict[str, torch.Tensor] = {}
        writes: list[tuple[torch.Tensor, torch.Tensor]] = []
        for path, tensor in tensors:
            argument = path.partition(".")[0]
            if argument in WRITTEN_SILENTLY or feed.keeps(tensor):
                continue
            found = feed.feed.value(place, call.path(path), tensor, memory)
            if found is not None and argument in call.known.written:
                writes.append((tensor, found))
            elif found is not None:
                by_path[path] = found
        for tensor, found in writes:  # last, since it may be another argument's memory
            _overwrite(tensor, found)
        return True, by_path

    def _feed_outputs(self, call: _Call, feed: OperatorFeed, result: Any) -> Any:
        """The result with golden's values, in the same tensors where arguments were written."""
        place, memory = feed.place(Role.OP_OUTPUT), Memory()
        written = {id(part) for part in call.written()}
        by_path: dict[str, torch.Tensor] = {}
        for path, part in call.outputs(result):
            if not isinstance(part, torch.Tensor) or feed.keeps(part):
                continue
            found = feed.feed.value(place, call.path(path), part, memory)
            if found is not None and id(part) in written:
                _overwrite(part, found)
            elif found is not None:
                by_path[path] = found
        return replaced(result, by_path)


@dataclass
class _Call:
    op: Any
    known: Known
    line: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    unread: frozenset[str]
    number: int = 0

    @property
    def name(self) -> str:
        return str(self.op)

    @property
    def id(self) -> str:
        return f"{self.name}#{self.number}"

    @property
    def positional(self) -> tuple[str, ...]:
        return self.known.arguments[: len(self.args)]

    @property
    def keywords(self) -> tuple[str, ...]:
        return tuple(self.kwargs)

    @property
    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        return {**dict(zip(self.known.arguments, self.args, strict=False)), **self.kwargs}

    def path(self, part: str) -> str:
        """A record's path for a part of what was given or returned."""
        return f"{self.id}.{part}" if part else self.id

    def inputs(self) -> Iterator[tuple[str, Any]]:
        """Tensors, numbers and strings that were given, and the defaults of the other arguments."""
        defaults = {
            argument.name: argument.default_value
            for argument in self.op._schema.arguments
            if argument.has_default_value()
        }
        for name, value in {
            **{name: self.named.get(name, defaults.get(name)) for name in self.known.arguments}
        }.items():
            if name not in self.unread:
                yield from (
                    (path, part)
                    for path, part in leaves({name: value})
                    if isinstance(part, (torch.Tensor, str, *Scalar))
                )

    def written(self) -> Iterator[torch.Tensor]:
        yield from (part for _, part in self._written())

    def outputs(self, result: Any) -> Iterator[tuple[str, Any]]:
        """What was returned, and what was written into but not returned."""
        result = result[: self.known.outputs] if self.known.outputs else result
        returned = [
            (path, part)
            for path, part in leaves(result)
            if isinstance(part, (torch.Tensor, *Scalar))
        ]
        yield from returned
        yield from (
            (path, part)
            for path, part in self._written()
            if not any(part is other for _, other in returned)
        )

    def computed(self, result: Any) -> list[torch.Tensor]:
        """The returned tensors that were made, not written into."""
        written = {id(part) for part in self.written()}
        return [
            part
            for _, part in leaves(result)
            if isinstance(part, torch.Tensor) and id(part) not in written
        ]

    def _written(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in self.named.items():
            if name in self.known.written:
                yield from (
                    (path, part)
                    for path, part in leaves({name: value})
                    if isinstance(part, torch.Tensor)
                )


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values)
