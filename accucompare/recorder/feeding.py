"""The fed capture: every module call is given golden's inputs, and its caller golden's outputs, so that each error is the module's own."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from accucompare.bundle.reader import Bundle
from accucompare.bundle.records import OPERATOR_ROLES, Layout, Record, Role, display_name
from accucompare.compare.align import Renaming, argument_path, counterparts
from accucompare.errors import CaptureError
from accucompare.live import nested
from accucompare.live.names import Modules
from accucompare.live.subclasses import dressed_as, is_plain_class, plainly
from accucompare.live.tensors import dtype_name, from_bits, layout_of, other_to_host, scalar_to_host
from accucompare.live.values import Scalar, describe, leaves, replaced
from accucompare.numbers.digests import digest
from accucompare.numbers.dtypes import DTYPES, Kind
from accucompare.recorder.lending import Exchange, Lent, contents
from accucompare.selection import RoleGroup

#: Is given the path of an output and a gradient that arrives there, and gives what a backward goes on with.
Arrives = Callable[[str, torch.Tensor], torch.Tensor]

#: The name of the nodes that golden's values have in autograd's graph.
IN_PLACE_OF = "_InPlaceOfBackward"

_MOST_NOTES = 5  # of what was not fed

#: What golden's gradient of a value is recorded as, by the role of the value.
_GRADIENT_ROLE = {Role.INPUT: Role.GRAD_INPUT, Role.OUTPUT: Role.GRAD_OUTPUT}


@dataclass(frozen=True)
class Place:
    """One role of one module call."""

    step: int
    name: str
    call: int
    role: Role


class Feed:
    """Golden's values, read from disk as they are asked for.

    A module that writes into what it is given by ``.data``, or that returns nothing, has no output to exchange: its error shows at the
    next input, as glue.

    Attributes:
        fed: how many values were exchanged.
        not_fed: the values that were passed on as they came, or as copies where the model has one tensor, and why.
        backward: whether golden has gradients to feed.
        updates: whether it has what updates were given.
    """

    def __init__(self, golden: Bundle, rank: int, modules: Modules, renamings: Sequence[Renaming] = ()) -> None:
        """``renamings``: of golden's layers, see ``accucompare.compare.align.counterparts``."""
        self.fed = 0
        self.not_fed: list[dict[str, Any]] = []
        self._golden = golden
        self.backward, self.updates = map(golden.manifests[rank].options.holds, (RoleGroup.BACKWARD, RoleGroup.UPDATE))
        self._rank = rank
        self._modules = modules
        self._step: int | None = None
        theirs = golden.manifests[rank].model
        self._names = counterparts(theirs.get("modules") or (), modules.named.keys(), renamings)
        self._signatures = modules.signatures(), theirs.get("signatures") or {}
        self._records: dict[tuple[str, int, Role, str], Record] = {}  # of that step, under the model's names
        self._arguments: dict[tuple[str, int, str], Record] = {}  # of these the inputs, by the argument's name
        self._calls: set[tuple[str, int, Role]] = set()
        self._operators: dict[tuple[str, int], list[Record]] = {}  # of that step, by module call
        self._noted: set[tuple[Place, str]] = set()
        self._backwards: Counter[tuple[Place, str]] = Counter()  # in that step, through each value

    def inputs(self, place: Place, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Lent]:
        """A call's arguments with golden's values in them, and what was lent so.

        Raises:
            CaptureError: if golden does not have the step.
            BundleError: if golden is damaged.
        """
        lent, memory, seen = Lent(), Memory(), Counter[str]()
        new = [self._put(place, given, self._find(place, given, memory, seen), lent.containers) for given in (args, kwargs)]
        lent.tensors = [(arrived, given, given._version) for arrived, given in memory.values()]
        lent.contents = [contents(given) for _, given in lent.containers]
        return new[0], new[1], lent

    def outputs(self, place: Place, output: Any, lent: Lent | None, arrives: Arrives) -> tuple[Any, dict[str, Any]]:
        """What a call returns, with golden's values in it; errors as ``inputs``.

        Where a module returns what it was given, or a view of it, its caller gets back its own, for it may write into the one and read
        the other.

        Args:
            place: the call's outputs.
            output: what it returned.
            lent: what it was given; ``None`` if it was not fed.
            arrives: is given an output's path and a gradient of it that arrives from outside of the call, in a backward, and gives what
                that goes on with.

        Returns:
            The new value; and by path the caller's own tensors in it.
        """
        memory, own = Memory(), dict[str, Any]()
        by_path = self._find(place, output, memory, Counter(), arrives)
        if lent is not None:
            computed = dict(leaves(output))
            lent.give_back({id(each): golden for each, golden in memory.values()})
            aliases = lent.aliases(memory.values())
            for path, golden in by_path.items():
                alias = aliases.get(id(golden), golden)
                if alias is None:
                    self.pass_on(place, path, "it shares memory with an input; a copy was passed on")
                elif self.backward and lent.is_view(computed[path]):  # its gradient goes through the call
                    by_path[path] = in_place_of(computed[path], alias.detach(), self._exchange(place, path, arrives))
                elif alias is not golden:
                    by_path[path] = own[path] = alias
        return self._put(place, output, by_path, []), own

    def value(self, place: Place, path: str, tensor: torch.Tensor, memory: Memory) -> torch.Tensor | None:
        """Golden's value for one tensor, a fresh copy; ``None`` if it has none, which is noted. Errors as ``inputs``."""
        self._load(place.step)
        found = self._golden_value(place, path, tensor, memory)
        if isinstance(found, torch.Tensor):
            self.fed += 1
            return found
        self.pass_on(place, path, found if isinstance(found, str) else "it is no tensor")
        return None

    def gradient(self, place: Place, path: str, grad: torch.Tensor) -> torch.Tensor:
        """What a backward goes on with in place of a gradient: golden's of the same value.

        Args:
            place, path: of the value that was exchanged in the forward. Of an output, the gradient is that which arrives at it; of an
                input, that which the call has computed.
            grad: the gradient itself, which is given back where golden has none. That is noted.
        """
        place = replace(place, role=_GRADIENT_ROLE[place.role])
        self._load(place.step)
        self._backwards[place, path] += 1
        if (count := self._backwards[place, path]) > 1:  # recorded so, of a second backward through the same call
            path = f"{path}#{count}"
        golden = self._golden_value(place, path, grad, Memory())
        if isinstance(golden, torch.Tensor):
            self.fed += 1
            return golden
        self.pass_on(place, path, golden if isinstance(golden, str) else "it is no tensor")
        return grad

    def put(self, place: Place, path: str, tensor: torch.Tensor) -> None:
        """Write golden's value into a tensor that an update is given; if golden has none, that is noted. Errors as ``inputs``."""
        self._load(place.step)
        golden = self._golden_value(place, path, tensor.detach(), Memory())
        if isinstance(golden, torch.Tensor):
            with torch.no_grad():
                tensor.copy_(golden)
            self.fed += 1
        elif isinstance(golden, str) and (place.name, place.call, place.role) in self._calls:
            self.pass_on(place, path, golden)

    def start(self, step: int, name: str, path: str, tensor: torch.Tensor) -> None:
        """Write what golden's parameter was before the step's first update of it into the candidate's, if it is another."""
        self._load(step)
        calls = [call for other, call, role in self._calls if (other, role) == (name, Role.PARAM_BEFORE)]
        for call in sorted(calls):
            golden = self._golden_value(Place(step, name, call, Role.PARAM_BEFORE), path, tensor.detach(), Memory())
            if isinstance(golden, torch.Tensor):
                if not torch.equal(golden, tensor):
                    with torch.no_grad():
                        tensor.copy_(golden)
                return

    def operators_of(self, step: int, name: str, call: int) -> list[Record]:
        """The records of the operators that golden ran in a module call, in their order; errors as ``inputs``."""
        self._load(step)
        return self._operators.get((name, call), [])

    def golden_tensor(self, record: Record) -> torch.Tensor | None:
        """A record of golden's as it is, on the CPU; ``None`` if it holds no tensor."""
        return None if record.member is None else from_bits(self._golden.raw(record), record.dtype)

    def notes(self) -> list[str]:
        """What was not fed, in one sentence for each reason."""
        reasons: dict[str, list[str]] = {}
        for value in self.not_fed:
            reasons.setdefault(value["why"], []).append(f"{display_name(value['name'])} {value['role']} {value['path']}".rstrip())
        sentences = [f"{len(places)} value(s) were not fed: {why} (such as {places[0]})" for why, places in reasons.items()]
        rest = sum(len(places) for places in list(reasons.values())[_MOST_NOTES:])
        return sentences[:_MOST_NOTES] + ([f"{rest} further value(s) were not fed; the manifest lists them"] if rest else [])

    def end_step(self) -> None:
        """Forget the step."""
        self._step = None
        self._records.clear()
        self._arguments.clear()
        self._calls.clear()
        self._operators.clear()
        self._backwards.clear()
        self._noted.clear()
        self._golden.close()

    def _exchange(self, place: Place, path: str, arrives: Arrives | None) -> Exchange | None:
        """What golden's gradient takes the place of, in the backward of a value that was exchanged."""
        if not self.backward or place.role not in _GRADIENT_ROLE:
            return None
        if arrives is not None:
            return functools.partial(arrives, path)
        return functools.partial(self.gradient, place, path) if place.role is Role.INPUT else None

    def _find(self, place: Place, value: Any, memory: Memory, seen: Counter[str], arrives: Arrives | None = None) -> dict[str, Any]:
        """Golden's values for the parts of a value, by path; what has none is noted."""
        self._load(place.step)
        by_path: dict[str, Any] = {}
        for path, part in leaves(value):
            seen[path] += 1
            recorded = path if seen[path] == 1 else f"{path}#{seen[path]}"
            found = self._golden_value(place, recorded, part, memory, seen, arrives)
            if isinstance(found, str):
                self.pass_on(place, recorded, found)
            elif found is not None and by_path.setdefault(path, found) is not found:
                self.pass_on(place, recorded, "another value has the same path")
        return by_path

    def _put(self, place: Place, value: Any, by_path: Mapping[str, Any], rebuilt: list[tuple[Any, Any]]) -> Any:
        """A value with golden's in place of its parts; what cannot be put there is noted."""
        if not by_path:
            return value
        new = replaced(value, by_path, rebuilt)
        given = dict(leaves(new))
        for path in (path for path, golden in by_path.items() if given.get(path) is not golden):
            self.pass_on(place, path, "it is in a cache that calls share, or in a class that cannot be built anew")
            self.fed -= 1
        self.fed += len(by_path)
        return new

    def _golden_value(
        self,
        place: Place,
        path: str,
        value: Any,
        memory: Memory,
        seen: Mapping[str, int] | None = None,
        arrives: Arrives | None = None,
    ) -> torch.Tensor | complex | str | None:
        """Golden's value for one part, or why it has none; ``None`` for what is no tensor and the same in golden.

        ``seen``: the paths of the call's other parts, as far as they are known, which have golden's values of the same path.
        """
        if not isinstance(value, (torch.Tensor, str, bytes, *Scalar)):
            return f"it is a {describe(value)}, which cannot be looked into"
        record = self._records.get((place.name, place.call, place.role, path)) or self._by_argument(place, path, seen or {})
        if record is None:
            return "golden has no such value" if (place.name, place.call, place.role) in self._calls else "golden has no such call"
        if not isinstance(value, torch.Tensor):
            return self._golden_number(record, value)
        if (why := _misfit(record, value)) is not None:
            return why
        key = (id(value), record.dtype, record.digest)
        if key not in memory:  # of what is one tensor here and in golden, one copy: modules ask whether key is value
            golden = from_bits(self._golden.raw(record), record.dtype)
            if DTYPES[record.dtype].kind is Kind.INT and not torch.equal(golden.to(value.dtype).to(golden.dtype), golden):
                return f"golden's {record.dtype} are too large for {dtype_name(value.dtype)}"
            memory[key] = value, _like(value, golden, self._exchange(place, path, arrives))
        return memory[key][1]

    def _by_argument(self, place: Place, path: str, seen: Mapping[str, int]) -> Record | None:
        """Golden's record of an input that only one of the two is given by position."""
        if place.role is not Role.INPUT:
            return None
        ours, theirs = self._signatures
        kind = type(self._modules.named[place.name]).__name__
        record = self._arguments.get((place.name, place.call, argument_path(path, ours.get(kind) or theirs.get(kind) or ())))
        return None if record is None or record.path in seen else record

    def _golden_number(self, record: Record, value: Any) -> complex | str | None:
        """Golden's in place of a Python number, of its type; why there is none, also for strings; ``None`` if it is the same."""
        host = scalar_to_host(value) if isinstance(value, Scalar) else other_to_host(value)
        if host.array is None:
            return None if host.digest == record.digest else f"golden's {type(value).__name__} is another, which cannot be fed"
        if record.layout is not Layout.SCALAR:
            return f"golden has no number of it ({record.layout.value})"
        if record.dtype != host.dtype:
            return f"golden's is {record.dtype}, this one {host.dtype}"
        golden = None if digest(host.array) == record.digest else self.golden_tensor(record)
        try:
            return None if golden is None else type(value)(golden.item())
        except Exception:  # a class of the user's may refuse in any way
            return f"no {type(value).__name__} can be made of golden's"

    def pass_on(self, place: Place, path: str, why: str) -> None:
        """Note that a value was left as it came, once also where its call is run again."""
        if (place, path) not in self._noted:
            self._noted.add((place, path))
            self.not_fed.append(
                {"step": place.step, "name": place.name, "call": place.call, "role": place.role.value, "path": path, "why": why}
            )

    def _load(self, step: int) -> None:
        """Read the step's list of records, if it is not the one that was read last."""
        if self._step == step:
            return
        entries = [entry for rank, entry in self._golden.steps() if (rank, entry.step) == (self._rank, step)]
        if not entries:
            raise CaptureError(f"{self._golden.path}: has no step {step} to feed (rank {self._rank}); end the capture before (--steps)")
        found = self._golden.step_records(self._rank, entries[0])
        new = {record.name: self._names.get(record.name) for record in found}
        records = [(name, record) for record in found if (name := new[record.name]) is not None]
        self._records = {(name, record.call, record.role, record.path): record for name, record in records}
        self._calls = {(name, record.call, record.role) for name, record in records}
        self._arguments = {}
        self._operators = {}
        ours, theirs = self._signatures
        for name, record in records:
            if record.role in OPERATOR_ROLES:
                self._operators.setdefault((name, record.call), []).append(record)
            elif record.role is Role.INPUT:
                path = argument_path(record.path, theirs.get(record.type) or ours.get(record.type) or ())
                self._arguments[name, record.call, path] = record
        self._step = step


#: (arrived, given) by what makes copies equal: the id of the tensor that arrived, golden's dtype and digest.
Memory = dict[tuple[int, str, str | None], tuple[torch.Tensor, torch.Tensor]]


def _misfit(record: Record, tensor: torch.Tensor) -> str | None:
    """Why golden's record cannot take a tensor's place; ``None`` if it can."""
    layout = layout_of(tensor)
    if layout is Layout.NESTED:
        return _nested_misfit(record, tensor) or _kind_misfit(record, tensor)
    if not is_plain_class(tensor):
        return f"it is a {type(tensor).__name__}"
    if layout is not Layout.STRIDED or tensor.layout is not torch.strided or torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        return f"it has no plain data ({layout.value})"
    if record.layout is not Layout.STRIDED or record.member is None:
        return f"golden has no tensor of it ({record.layout.value})"
    if record.shape != tuple(tensor.shape):
        return f"golden's shape is {list(record.shape)}, this one's {list(tensor.shape)}"
    return _kind_misfit(record, tensor)


def _nested_misfit(record: Record, tensor: torch.Tensor) -> str | None:
    if record.layout is not Layout.NESTED or record.member is None:
        return f"it is nested, and golden has no nested tensor of it ({record.layout.value})"
    if record.components != nested.shapes_of(tensor):
        return "the tensors nested in it have other shapes than golden's"
    if tensor.requires_grad and tensor.layout is torch.strided:  # no function of ours may stand for one in autograd's graph
        return "it is nested, not jagged, and autograd follows it"
    return None


def _kind_misfit(record: Record, tensor: torch.Tensor) -> str | None:
    name = dtype_name(tensor.dtype)
    ours, theirs = DTYPES.get(name), DTYPES[record.dtype]
    if ours is None or ours.kind is not theirs.kind:
        return f"golden's is {record.dtype}, this one {name}"
    return None


class _InPlaceOf(torch.autograd.Function):
    """Golden's values to whoever computes with them, and to autograd the tensor whose place they take: gradients go on to that.

    With an ``exchange``, they go on as what that makes of them.
    """

    @staticmethod
    def forward(ctx: Any, arrived: torch.Tensor, golden: list[torch.Tensor], exchange: Exchange | None) -> torch.Tensor:
        ctx.exchange = exchange
        ctx.set_materialize_grads(False)
        return golden[0]

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return ctx.exchange(grads[0]) if ctx.exchange and grads[0] is not None else grads[0], None, None


def in_place_of(arrived: torch.Tensor, values: torch.Tensor, exchange: Exchange | None) -> torch.Tensor:
    """A tensor of these values, in their memory, whose gradient goes on to another; see ``_InPlaceOf``."""
    if not (arrived.requires_grad and torch.is_grad_enabled()):
        return values
    new: torch.Tensor = _InPlaceOf.apply(arrived, [values], exchange)  # type: ignore[no-untyped-call]
    return new


def _like(tensor: torch.Tensor, golden: torch.Tensor, exchange: Exchange | None = None) -> torch.Tensor:
    """Golden's values in a tensor of another's class, which is nested or plain; gradients of it are gradients of the other."""
    with torch.inference_mode(False), torch.no_grad():
        if tensor.is_nested:
            new = nested.like(tensor, _cast(golden, tensor.dtype))
        else:
            with plainly():
                new = _copy_like(tensor, golden)
    if tensor.requires_grad:
        with torch.enable_grad():  # a forward may turn it on later, and ask for gradients with respect to what it was given
            new = _InPlaceOf.apply(tensor, [new], exchange)  # type: ignore[no-untyped-call]
    with plainly():
        return dressed_as(tensor, new)


def _copy_like(tensor: torch.Tensor, golden: torch.Tensor) -> torch.Tensor:
    """Golden's values in a tensor of its own: of the dtype, the device and the strides of another, by which kernels choose their ways.

    Args:
        tensor: the one whose place it takes.
        golden: of the same shape, on the CPU.
    """
    with torch.inference_mode(False), torch.no_grad():  # outside of it, tensors count the writes into them
        values = _cast(golden, tensor.dtype)
        like, single = tensor.detach(), values
        for dim in range(tensor.dim()):
            if tensor.stride(dim) == 0 and tensor.size(dim) > 1:  # expanded
                like, single = like.narrow(dim, 0, 1), single.narrow(dim, 0, 1)
        if single is not values and not torch.equal(single.expand_as(values), values):
            like, single = tensor.detach(), values
        strides = like.stride() if _apart(like.shape, like.stride()) else torch.empty_like(like, device="meta").stride()
        copy = torch.empty_strided(like.shape, strides, dtype=tensor.dtype, device=tensor.device).copy_(single)
        return copy if copy.shape == tensor.shape else copy.expand(tensor.shape)


def _apart(shape: Iterable[int], strides: Iterable[int]) -> bool:
    """Whether no two elements share their memory; ``False`` also where that takes more than a look."""
    reach = 1
    for stride, size in sorted((stride, size) for stride, size in zip(strides, shape, strict=True) if size > 1):
        if stride < reach:
            return False
        reach += stride * (size - 1)
    return True


def _cast(golden: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Golden's values in another type of the same kind; what is finite stays finite, as a mask of float32's lowest numbers has to."""
    ours, theirs = DTYPES[dtype_name(dtype)], DTYPES[dtype_name(golden.dtype)]
    if ours.kind is Kind.FLOAT and ours.largest < theirs.largest:
        wide = golden if golden.itemsize > 1 else golden.float()
        golden = torch.where(wide.isinf(), wide, wide.clamp(-ours.largest, ours.largest))
    return golden.to(dtype)
