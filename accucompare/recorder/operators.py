"""The operator level: what every operator called in the forward of chosen modules takes and gives, and golden's in its place.

An operator is known by its module call, its name and its number among the operators of that name in that call; all three are in a
record's ``name``, ``call`` and ``path`` (``aten.bmm.default#1.mat2``). Its source line is the record's ``detail``.

**Fed**, each operator's tensors are exchanged as a module's are. An operator that writes into an argument is given golden's values in
that very tensor, before and after, since others hold it too. Parameters and buffers stay the model's own, as for modules.

Golden's operators are gone through in their order. One that arrives is golden's next one, if it has that one's name, and what goes in its
shapes and is like its values. Golden's between are passed over for a later one such, if that has the same source line, numbers and
strings, or takes what those between have made; they then are golden's alone. The next one on the same line is the same operator though
what arrives is altogether different, but it is not given golden's values. Any other is the candidate's alone, and run as it comes.

Not recorded are operators that compute nothing, and random ones, whose numbers agree already (``matched_randomness``): a fault in them
shows in what the next operator is given.
"""

from __future__ import annotations

import contextlib
import sys
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Protocol

import torch
from torch.utils import _python_dispatch as dispatching
from torch.utils import _pytree as pytree

from accucompare.bundle.records import Layout, Record, Role, same_line
from accucompare.live import randomness
from accucompare.live.dispatch import seeing_inside
from accucompare.live.schemas import LEFT_OUT, NO_VALUES, WRITTEN_SILENTLY, Blank, Known, is_plain, known_of
from accucompare.live.tensors import HostValue, dtype_name, other_to_host, scalar_to_host
from accucompare.live.values import Scalar, leaves, replaced
from accucompare.numbers.digests import digest
from accucompare.numbers.dtypes import DTYPES, Kind
from accucompare.recorder.feeding import Feed, Memory, Place

#: Relative L2 distance up to which what arrives is taken for golden's, of its next operator on the same line and of any other: rounding
#: is far below, another tensor about 1.4, and what an activation makes of one between.
_ALIKE, _ALMOST_EQUAL = 0.5, 0.1

#: Among how many of golden's operators of one name one that arrives is looked for.
_AHEAD = 256

_SEEN_BY_CALLERS = ("TESTING_ONLY_GenericMode", "AutocastCPU", "AutocastCUDA", "AutocastPrivateUse1")

#: Files that call models: what called them is no code of a model's.
CALLERS = tuple(str(Path(__file__).parents[1] / name) for name in ("recorder/capture_case.py", "watcher/second_run.py"))
_PACKAGES = ("torch", "torch_npu", "accucompare")
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


class Sink(Protocol):
    """What the operators of one module call are told to."""

    def listening(self) -> bool:
        """Whether the code that runs is the module's own: not a child's, nor a hook's."""

    def do(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Do what recording takes; gives ``None`` if it failed, which is noted (or, in a fed capture, raised)."""

    def add(self, role: Role, path: str, value: Any, operator: str, line: str) -> None:
        """Record one value."""


@dataclass(eq=False)
class GoldenOperator:
    """One operator that golden ran in a module call.

    Attributes:
        place: among golden's operators of that call.
        inputs: records by path within the operator.
        after: the place among golden's of the last operator that made one of the inputs; -1 if none did.
    """

    operator: str
    number: int
    line: str
    place: int
    inputs: dict[str, Record] = field(default_factory=dict)
    after: int = -1

    @property
    def options(self) -> dict[str, str | None]:
        """The digests of numbers and strings that it was given, by path."""
        return {path: record.digest for path, record in self.inputs.items() if record.layout in (Layout.SCALAR, Layout.OPAQUE)}


@dataclass(frozen=True)
class Match:
    """Which of golden's operators one is.

    Attributes:
        number: its own among golden's of that name, or one that golden has none of.
        why_not: why it is not given golden's values, in words; ``""`` if it is.
    """

    number: int
    why_not: str = ""


class OperatorFeed:
    """Golden's operators of one module call, in their order: what one that arrives is passed by has been run by golden alone."""

    def __init__(self, feed: Feed, step: int, name: str, call: int, state: frozenset[int]) -> None:
        """``state``: the storages of parameters and buffers, which are not fed."""
        self.feed = feed
        self.state = state
        self._place = (step, name, call)
        found: dict[tuple[str, int], GoldenOperator] = {}
        made: dict[str | None, int] = {}  # which of golden's gave values of a digest last
        for record in feed.operators_of(step, name, call):
            operator = found.setdefault(record.operator, GoldenOperator(*record.operator, record.source_line, len(found)))
            if record.role is Role.OP_INPUT:
                operator.inputs[record.part] = record
                operator.after = max(operator.after, made.get(record.digest, -1) if record.layout is Layout.STRIDED else -1)
            elif record.digest is not None:
                made[record.digest] = operator.place
        self._golden = list(found.values())
        self._next = 0
        self._places: dict[str, list[int]] = {}
        for each in self._golden:
            self._places.setdefault(each.operator, []).append(each.place)
        self._counts = Counter(each.operator for each in self._golden)
        self._lines = {(each.operator, _short(each.line)) for each in self._golden}

    def place(self, role: Role) -> Place:
        return Place(*self._place, role)

    def match(self, operator: str, line: str, inputs: list[tuple[str, Any]]) -> Match:
        """Which of golden's operators that are still to come one is, and whether it may be given golden's values.

        Args:
            operator, line: of the one that arrives.
            inputs: tensors, numbers and strings that it was given, by path.
        """
        tensors = [(path, value) for path, value in inputs if isinstance(value, torch.Tensor)]
        following = self._golden[self._next] if self._next < len(self._golden) else None
        if following is not None and not (following.operator == operator and _fits(following, tensors)):
            following = None
        here = following is not None and same_line(following.line, line)
        likely = self._likely(following, operator, line, inputs)
        most = {id(following): _ALIKE} if here else {}
        found = next((golden for golden in likely if self._alike(golden, tensors, most.get(id(golden), _ALMOST_EQUAL))), None)
        if found is not None:
            self._next = found.place + 1
            return Match(found.number)
        if following is not None and here:
            self._next += 1
            return Match(following.number, "what arrives is not like what golden's takes")
        self._counts[operator] += 1
        return Match(self._counts[operator] - 1, "golden runs no such operator here")

    def _likely(
        self, following: GoldenOperator | None, operator: str, line: str, inputs: list[tuple[str, Any]]
    ) -> Iterator[GoldenOperator]:
        """Those of golden's that an operator may be if its values are alike, the most likely first; ``following``: the next, if it fits."""
        given = _options(inputs)
        if following is not None and following.options == given:
            yield following
        tensors = [(path, value) for path, value in inputs if isinstance(value, torch.Tensor)]
        own = self._places.get(operator, [])
        first = bisect_right(own, self._next) if following is not None else bisect_left(own, self._next)
        later = [golden for place in own[first : first + _AHEAD] if _fits(golden := self._golden[place], tensors)]
        here = [golden for golden in later if same_line(golden.line, line) and golden.options == given]
        yield from here
        elsewhere = following is not None and not same_line(following.line, line) and (operator, _short(line)) in self._lines
        if following is not None and following.options != given and not elsewhere:
            yield following
        yield from (golden for golden in later if golden not in here and golden.after >= self._next)  # which takes what golden alone made

    def keeps(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in a parameter or a buffer."""
        return is_plain(tensor) and tensor.untyped_storage()._cdata in self.state

    def _alike(self, golden: GoldenOperator, inputs: list[tuple[str, torch.Tensor]], most: float) -> bool:
        """Whether what arrives may be what went into golden's, of which parameters and buffers are no part."""
        for path, tensor in inputs:
            value = None if self.keeps(tensor) else self.feed.golden_tensor(golden.inputs[path])
            if value is None or not is_plain(tensor):
                continue
            ours, theirs = (each.detach().to("cpu", torch.float64) for each in (tensor, value))
            both = ours.isfinite() & theirs.isfinite()
            distance = torch.linalg.vector_norm((ours - theirs)[both])
            if float(distance) > most * float(torch.linalg.vector_norm(theirs[both])):
                return False
        return True


class CallMode(dispatching.TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees operators, below autograd and autocast, while a module call runs; it may be left although others were entered since.

    Attributes:
        entered: whether it sees any now.
    """

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.entered = False

    def see(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run an operator, and give what it gives."""
        raise NotImplementedError

    def __torch_dispatch__(self, op: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if any(cls.__torch_dispatch__ is not torch.Tensor.__torch_dispatch__ for cls in types):
            return NotImplemented  # such a tensor runs operators of its own, which come here in turn
        if not isinstance(op, torch._ops.OpOverload):
            return op(*args, **(kwargs or {}))
        return self.see(op, args, kwargs or {})

    def enter(self) -> None:
        """See the operators that this thread calls from now on."""
        self.__enter__()  # type: ignore[no-untyped-call]
        self.entered = True

    def leave(self) -> None:
        """See no more; modes that were entered since, and were not left, stay."""
        if not self.entered:
            return
        self.entered = False
        above = []
        while (top := dispatching._get_current_dispatch_mode()) is not self and top is not None:
            above.append(dispatching._pop_mode())
        if dispatching._get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        for mode in reversed(above):
            dispatching._push_mode(mode)


class Operators(CallMode):  # type: ignore[no-untyped-call]
    """Sees the operators of one module call: below autograd and autocast, above emulation."""

    def __init__(self, sink: Sink, feed: OperatorFeed | None) -> None:
        super().__init__()
        self._sink = sink
        self._feed = feed
        self._counts: Counter[str] = Counter()
        self._blank = Blank()
        self._autocast_decided = False

    def see(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        known = known_of(op)
        if known.inside is not None and known.is_composed(op, pytree.tree_leaves((args, kwargs))):
            with self._inside(op):
                return op._op_dk(known.inside, *args, **kwargs)
        if LEFT_OUT.get(known.name) == NO_VALUES:
            result = op(*args, **kwargs)
            self._blank.add(result)
            return result
        unread = self._unread(known, args, kwargs) if known.written else known.unread
        line = source_line(folders=1) if self.entered and not known.left_out and self._sink.listening() else None
        if line is None:
            return op(*args, **kwargs)
        call = _Call(op, known, line, args, kwargs, unread)
        if self._feed is None:
            self._sink.do(self._record_inputs, call)
            result = op(*args, **kwargs)
            self._sink.do(self._record_outputs, call, result)
            return result
        return self._fed(call, self._feed)

    def _unread(self, known: Known, args: tuple[Any, ...], kwargs: dict[str, Any]) -> frozenset[str]:
        """The arguments that are written into and hold no values yet, or none that are read."""
        given = {**dict(zip(known.arguments, args, strict=False)), **kwargs}
        return known.unread | {
            name for name in known.written if isinstance(given.get(name), torch.Tensor) and self._blank.take(given[name])
        }

    def _fed(self, call: _Call, feed: OperatorFeed) -> Any:
        """Run an operator on golden's values, and give golden's."""
        matched, by_path = self._sink.do(self._feed_inputs, call, feed)
        given = replaced(call.named, by_path)
        result = call.op(*(given[name] for name in call.positional), **{name: given[name] for name in call.keywords})
        copies = {tensor.untyped_storage()._cdata for tensor in by_path.values()}
        if any(is_plain(part) and part.untyped_storage()._cdata in copies for part in call.computed(result)):
            self._sink.do(feed.feed.pass_on, feed.place(Role.OP_OUTPUT), call.id, "it is what went in, under another name")
            by_path, matched, result = {}, False, call.op(*call.args, **call.kwargs)
        self._sink.do(self._record_outputs, call, result)
        if not matched:
            return result
        return self._sink.do(self._feed_outputs, call, feed, result)

    def _record_inputs(self, call: _Call) -> None:
        call.number = self._counts[call.name]
        self._counts[call.name] += 1
        self._record(Role.OP_INPUT, call, call.inputs())

    def _record_outputs(self, call: _Call, result: Any) -> None:
        self._record(Role.OP_OUTPUT, call, call.outputs(result))

    def _record(self, role: Role, call: _Call, parts: Iterable[tuple[str, Any]]) -> None:
        for path, value in parts:
            self._sink.add(role, call.path(path), value, call.name, call.line)

    def _feed_inputs(self, call: _Call, feed: OperatorFeed) -> tuple[bool, dict[str, torch.Tensor]]:
        """Record what arrived, and find golden's values for it: those to exchange, by path. What is written into gets them at once."""
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
        for tensor, found in writes:  # only now, since it may be another argument's memory
            _overwrite(tensor, found)
        return True, by_path

    def _feed_outputs(self, call: _Call, feed: OperatorFeed, result: Any) -> Any:
        """The result with golden's values in place of those computed; in the same tensors, where an argument was written into."""
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

    @contextlib.contextmanager
    def _inside(self, op: Any) -> Iterator[None]:
        """See what a composite operator is composed of, as autocast and ``matched_randomness`` do if they would without a mode.

        Without autograd, as in inference mode, such operators arrive whole.
        """
        outer = self._autocast_decided
        self._autocast_decided = outer or any(_has_kernel(op.name(), key) for key in _SEEN_BY_CALLERS[1:])
        names = _SEEN_BY_CALLERS[: 1 if self._autocast_decided else None]
        try:
            with seeing_inside(self, names):
                yield
        finally:
            self._autocast_decided = outer


@dataclass
class _Call:
    """One call of an operator."""

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
        """What was given, by the argument's name."""
        return {**dict(zip(self.known.arguments, self.args, strict=False)), **self.kwargs}

    def path(self, part: str) -> str:
        """A record's path for a part of what was given or returned."""
        return f"{self.id}.{part}" if part else self.id

    def inputs(self) -> Iterator[tuple[str, Any]]:
        """Tensors, numbers and strings that were given, and those that hold if nothing is given."""
        defaults = {argument.name: argument.default_value for argument in self.op._schema.arguments if argument.has_default_value()}
        for name, value in {**{name: self.named.get(name, defaults.get(name)) for name in self.known.arguments}}.items():
            if name not in self.unread:
                yield from ((path, part) for path, part in leaves({name: value}) if isinstance(part, (torch.Tensor, str, *Scalar)))

    def written(self) -> Iterator[torch.Tensor]:
        """The tensors that are written into."""
        yield from (part for _, part in self._written())

    def outputs(self, result: Any) -> Iterator[tuple[str, Any]]:
        """Everything returned, and what was written into but is not returned."""
        result = result[: self.known.outputs] if self.known.outputs else result
        returned = [(path, part) for path, part in leaves(result) if isinstance(part, (torch.Tensor, *Scalar))]
        yield from returned
        yield from ((path, part) for path, part in self._written() if not any(part is other for _, other in returned))

    def computed(self, result: Any) -> list[torch.Tensor]:
        """The tensors that were made, not written into."""
        written = {id(part) for part in self.written()}
        return [part for _, part in leaves(result) if isinstance(part, torch.Tensor) and id(part) not in written]

    def _written(self) -> Iterator[tuple[str, torch.Tensor]]:
        for name, value in self.named.items():
            if name in self.known.written:
                yield from ((path, part) for path, part in leaves({name: value}) if isinstance(part, torch.Tensor))


def storages(tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    """What tells whether a tensor lies in the memory of one of these."""
    return frozenset(tensor.untyped_storage()._cdata for tensor in tensors if is_plain(tensor))


def _fits(golden: GoldenOperator, inputs: list[tuple[str, torch.Tensor]]) -> bool:
    """Whether as many tensors of the same shapes and kinds went into golden's."""
    theirs = {path: record for path, record in golden.inputs.items() if record.layout is not Layout.SCALAR and record.dtype in DTYPES}
    return theirs.keys() == dict(inputs).keys() and all(
        theirs[path].shape == tuple(tensor.shape) and _kind(theirs[path].dtype) is _kind(dtype_name(tensor.dtype))
        for path, tensor in inputs
    )


def _kind(dtype: str) -> Kind | None:
    return DTYPES[dtype].kind if dtype in DTYPES else None


def _options(inputs: Iterable[tuple[str, Any]]) -> dict[str, str | None]:
    """The digests of numbers and strings that an operator was given, by path."""
    hosts = {path: _host(value) for path, value in inputs if not isinstance(value, torch.Tensor)}
    return {path: host.digest if host.array is None else digest(host.array) for path, host in hosts.items()}


def _short(line: str) -> str:
    """A source line without its folder, which older bundles do not name."""
    return line.rpartition("/")[2]


def _host(value: Any) -> HostValue:
    return scalar_to_host(value) if isinstance(value, Scalar) else other_to_host(value)


def _overwrite(tensor: torch.Tensor, values: torch.Tensor) -> None:
    with torch.no_grad():
        tensor.copy_(values)


def source_line(folders: int = 0) -> str | None:
    """Where the operator was called, by the first frame outside of torch and accucompare; ``None`` if it is part of a matched draw.

    It is the file's name, after so many of the folders that it lies in, and the number of the line: ``lora/layer.py:1065``.

    Of a model that accucompare itself called and that is made of torch's modules alone, there is none. Draws agree on every device
    already; what they overwrite with is no work of the module's.
    """
    frame = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if frame.f_globals is randomness.__dict__ and frame.f_code not in randomness.PASSING_ON:
            return None
        if frame.f_code.co_filename in CALLERS:
            break
        if package not in _PACKAGES:
            return f"{PurePath(*PurePath(frame.f_code.co_filename).parts[-1 - folders :]).as_posix()}:{frame.f_lineno}"
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""
