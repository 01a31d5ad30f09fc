"""Golden's values, read from disk when needed, and why some cannot be fed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import torch

from accucompare.bundle.format import (
    AT_THE_END,
    GRADIENT_ROLES,
    OPERATOR_ROLES,
    WRITTEN_ROLES,
    Layout,
    Record,
    Role,
    display_name,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.fusions import is_sum, is_view
from accucompare.compare.layouts import GoldenParts
from accucompare.compare.pairing import (
    Renaming,
    argument_path,
    counterparts,
    other_names,
    tupled,
    with_parameter,
)
from accucompare.errors import CaptureError
from accucompare.live.modules import Modules
from accucompare.live.values import (
    Scalar,
    describe_value,
    dtype_name,
    from_bits,
    local_part,
    scalar_to_host,
    telling_name,
)
from accucompare.numbers import DTYPES, Kind, digest
from accucompare.recorder.feeding.copies import copy_like, round_copy
from accucompare.recorder.feeding.golden_calls import CallsOfGolden, GoldenCalls
from accucompare.recorder.feeding.lending import Exchange, may_be
from accucompare.recorder.feeding.misfits import is_all_here, misfit, nested_misfit
from accucompare.text import counted

_MOST_NOTES = 5  # of what was not fed


@dataclass(frozen=True)
class FedPlace:
    """One role of one module call."""

    step: int
    name: str
    call: int
    role: Role
    # golden's calls in its place, if it is one of several parts, or has several
    golden: CallsOfGolden | None = None

    def key(self, role: Role | None = None) -> tuple[str, int, Role]:
        """Where golden's values are, or those of another role."""
        call = self.call if self.golden is None else self.golden.calls[0]
        return self.name, call, role or self.role


#: (arrived, given) by the arrived tensor's id, golden's dtype and digest: equal keys, equal copies.
Memory = dict[tuple[int, str, str | None], tuple[torch.Tensor, torch.Tensor]]

#: Values of which one side carries each as two terms: whether golden does, class, role and paths.
_Kind = tuple[bool, str, Role, str, str]


class GoldenValues:
    """What golden has, one step at a time; ``not_fed`` lists what was not given, and why."""

    def __init__(
        self,
        golden: Bundle,
        rank: int,
        modules: Modules,
        renamings: Sequence[Renaming] = (),
        round_to: str | None = None,
        parts: GoldenParts | None = None,
    ) -> None:
        """
        Args:
            rank: whose records of golden are taken.
            renamings: of golden's layers, see ``compare.pairing.renames.counterparts``.
            round_to: the type to which golden's floating values are rounded; they keep their own.
            parts: of golden's tensors, for one of several ranks where golden is of one device.
        """
        self._rounded = round_to
        self.not_fed: list[dict[str, Any]] = []
        self._golden = golden
        self._rank = rank
        self._modules = modules
        self._parts = parts
        #: gives golden's records as the model has them, where one of the two has fused layers
        self.rewritten: Callable[[list[Record]], list[Record]] | None = None
        #: by what the running step's losses are multiplied
        self.loss_scale: Callable[[], float] = lambda: 1.0
        self._sums: set[_Kind] = set()
        self.calls = GoldenCalls(self._input_of, self.read)
        self._step: int | None = None
        self._first: int | None = None  # the first step that was loaded
        theirs = golden.manifests[rank].model
        self._names = counterparts(theirs.get("modules") or (), modules.named.keys(), renamings)
        self._parameters = other_names(theirs, modules.outline(), renamings)
        self._signatures = modules.signatures(), theirs.get("signatures") or {}
        # of the loaded step, under the model's names; inputs also by the argument's name
        self._records: dict[tuple[str, int, Role, str], Record] = {}
        self._arguments: dict[tuple[str, int, str], Record] = {}
        self._calls: set[tuple[str, int, Role]] = set()
        # by module call: operators, and the paths of what the call has written into
        self._operators: dict[tuple[str, int], list[Record]] = {}
        self._written: dict[tuple[str, int, Role], list[str]] = {}
        self._noted: set[tuple[FedPlace, str]] = set()
        # of a batch's tokens: golden's shape and the model's, if one has them in a row
        self._forms: tuple[tuple[int, ...], tuple[int, ...]] | None = None
        # what calls take and give, by call
        self._of_call: dict[tuple[str, int, Role], list[Record]] = {}
        # by step, see _parameters_before; and one step, see _left_by
        self._before: dict[int, dict[tuple[str, str], dict[int, Record]]] = {}
        self._left: tuple[int, dict[tuple[str, str], Record]] = (-1, {})

    def operators_of(
        self, step: int, name: str, call: int, roles: Collection[Role]
    ) -> list[Record]:
        """A module call's operators in golden's order. Raises as ``Feeding.inputs``."""
        self.load(step)
        return [record for record in self._operators.get((name, call), []) if record.role in roles]

    def golden_tensor(self, record: Record) -> torch.Tensor | None:
        """A record of golden's as it will be given, on the CPU; ``None`` if it holds no tensor."""
        return None if record.member is None else self.read(record)

    def notes(self) -> list[str]:
        reasons: dict[str, list[str]] = {}
        for value in self.not_fed:
            reasons.setdefault(value["why"], []).append(
                f"{display_name(value['name'])} {value['role']} {value['path']}".rstrip()
            )
        sentences = [
            f"not fed: {counted(len(places), 'value')}, since {why} (such as {places[0]})"
            for why, places in list(reasons.items())[:_MOST_NOTES]
        ]
        rest = sum(len(places) for places in list(reasons.values())[_MOST_NOTES:])
        if rest:
            sentences.append(f"not fed: {counted(rest, 'further value')}; the manifest lists them")
        return sentences

    def clipping(self, step: int) -> float | None:
        """The factor by which golden's step has clipped its gradients, if any is below 1."""
        for each in self._golden.manifests[self._rank].series:
            if each.step == step and each.clipped_norm is not None and each.grad_norm:
                factor = each.clipped_norm / each.grad_norm
                return factor if factor < 1.0 else None
        return None

    def end_step(self) -> None:
        self._step = None
        for kept in (self._records, self._arguments, self._operators, self._written):
            kept.clear()
        self._calls.clear()
        self.calls.end_step()
        self._noted.clear()
        self._golden.close()
        if self._parts is not None:
            self._parts.close()

    def parameter(
        self, step: int, name: str, update: int, path: str, tensor: torch.Tensor
    ) -> torch.Tensor | None:
        """Golden's parameter after ``update`` updates of the step; ``None`` if no more came.

        It is what something else made of it, or else what the next update took. With ``parts``, the
        first one is left as it is: a wrong shard may be the fault.

        Args:
            name, path: of the module, and of the parameter in it.
            tensor: the value must fit it.
        """
        self.load(step)
        if self._parts is not None and not update and step == self._first:
            return None
        # such as an average that is swapped in for a call
        changed = self._records.get((name, update, Role.PARAM_CHANGED, path))
        if changed is not None:
            golden = from_bits(self._golden.raw(changed), changed.dtype)
            return None if misfit(changed, tensor) else copy_like(tensor, golden)
        found, later = None, step
        while found is None and (before := self._parameters_before(later)) is not None:
            calls = before.get((name, path), {})
            call = min((call for call in calls if later > step or call >= update), default=None)
            found, later = None if call is None else calls[call], later + 1
        if found is None and not update:
            found = self._left_by(step - 1).get((name, path))
        fits = found is not None and not misfit(found, tensor)
        return copy_like(tensor, self.read(found)) if found is not None and fits else None

    def _left_by(self, step: int) -> dict[tuple[str, str], Record]:
        """Golden's parameters that changed after the step's last update, by name and path."""
        if self._left[0] != step:
            found: dict[tuple[str, str], Record] = {}
            for name, record in self._records_of(step) or ():
                parameter = name, record.path.removesuffix(AT_THE_END)
                if record.role is Role.PARAM_CHANGED:
                    found[parameter] = record
                elif record.role is Role.PARAM_UPDATE:
                    found.pop(parameter, None)
            self._left = step, found
        return self._left[1]

    def _parameters_before(self, step: int) -> dict[tuple[str, str], dict[int, Record]] | None:
        """Golden's parameters before each update, by name and path; ``None`` without that step."""
        if step not in self._before:
            records = self._records_of(step)
            if records is None:
                return None
            self._before[step] = {}
            for name, record in records:
                if record.role is Role.PARAM_BEFORE:
                    self._before[step].setdefault((name, record.path), {})[record.call] = record
        return self._before[step]

    def paths(self, place: FedPlace) -> list[str]:
        """What golden has of one of ``WRITTEN_ROLES``: paths. Raises as ``Feeding.inputs``."""
        self.load(place.step)
        return self._written.get(place.key(), [])

    def has(self, place: FedPlace) -> bool:
        """Whether golden has anything of this role of a call, in the loaded step."""
        return place.key() in self._calls

    def has_value(self, place: FedPlace, path: str) -> bool:
        """Whether golden has this one value."""
        return (*place.key(), path) in self._records

    def has_other_shape(self, place: FedPlace, path: str, tensor: torch.Tensor) -> bool:
        """Whether golden's call took a tensor of another shape, or one that is not this rank's."""
        record = self._own_part(place, self.record_of(place, path, {}), tensor)
        if record is None:
            return self._parts is not None and self.has(place) and tensor.dim() > 0
        if tensor.is_nested:
            return nested_misfit(record, tensor) is not None
        return self.formed(record, tensor).shape != tuple(local_part(tensor).shape)

    def golden_value(
        self,
        place: FedPlace,
        path: str,
        value: Any,
        memory: Memory,
        seen: Mapping[str, int] | None = None,
        exchange: Exchange | None = None,
    ) -> torch.Tensor | complex | str | None:
        """Golden's value for one part, or why there is none; ``None`` for an equal number or text.

        Args:
            memory: takes the copy.
            seen: the known paths of the call's other parts, whose values are taken.
            exchange: for the copy's gradient.
        """
        if not isinstance(value, (torch.Tensor, *Scalar)) and telling_name(value) is None:
            return f"it is a {describe_value(value)}, which cannot be looked into"
        record = self.record_of(place, path, seen or {})
        if record is None:
            missing = f"golden has no such {'value' if self.has(place) else 'call'}"
            return f"{missing}, or nothing tells this rank's part" if self._parts else missing
        if not isinstance(value, torch.Tensor):
            number = self._golden_number(record, value)
            if number is not None and place.golden is not None:
                return "each part of golden's call has a number of its own"
            return number
        record = self._own_part(place, record, value)
        if record is None:
            return "golden's call makes this in other parts"
        formed = self.formed(record, value)
        if (why := misfit(formed, value)) is not None:
            return why
        second = self._second_term(place, record, value, seen or {})
        key = (id(value), record.dtype, record.digest)
        # one tensor here and in golden is one copy: modules ask whether key is value
        if key not in memory:
            golden = self.read(record)
            if formed is not record:  # a part of a distributed tensor keeps its own shape
                golden = golden.reshape(formed.shape)
            if second is not None:
                golden = golden + second
            if place.role in GRADIENT_ROLES and self._parts is None:
                golden = self._in_own_scale(golden, place.step)
            if DTYPES[record.dtype].kind is Kind.INT and not torch.equal(
                golden.to(value.dtype).to(golden.dtype), golden
            ):
                return f"golden's {record.dtype} are too large for {dtype_name(value.dtype)}"
            memory[key] = value, copy_like(value, golden, exchange)
        return memory[key][1]

    def _own_part(
        self, place: FedPlace, record: Record | None, value: torch.Tensor
    ) -> Record | None:
        """What golden has of a call that only one side makes in parts."""
        if place.golden is None or record is None or value.is_nested:
            return record
        keys = ((place.name, call, place.role, record.path) for call in place.golden.calls)
        records = [self._records.get(key) for key in keys]
        held = [each for each in records if each is not None and each.layout is Layout.STRIDED]
        if len(held) < len(records):
            return record
        shape = tuple(value.shape)
        return self.calls.part(place.name, place.call, place.golden, held, shape)

    def _in_own_scale(self, golden: torch.Tensor, step: int) -> torch.Tensor:
        """A gradient of golden's as this run's loss scale makes it."""
        series = self._golden.manifests[self._rank].series
        scales = (each.loss_scale or 1.0 for each in series if each.step == step)
        ratio = self.loss_scale() / next(scales, 1.0)
        if ratio == 1.0:
            return golden
        return golden.to(torch.promote_types(golden.dtype, torch.float64)) * ratio

    def formed(self, record: Record, value: torch.Tensor) -> Record:
        """Golden's record in the shape of a value, where one of the two has the tokens of a batch
        in a row, as the model's own inputs show, or as their values do."""
        if value.is_nested or record.shape == tuple(value.shape) or record.member is None:
            return record
        forms = {record.shape, tuple(value.shape)}
        if self._forms is None and {*map(len, forms)} == {1, 2} and "int" in record.dtype:
            golden, own = self.read(record).reshape(-1), value.detach().to("cpu").reshape(-1)
            if golden.shape == own.shape and torch.equal(golden, own.to(golden.dtype)):
                self._forms = record.shape, tuple(value.shape)
        if self._forms is not None:
            ours, theirs = self._forms
            rest = record.shape[len(ours) :]
            if record.shape == (*ours, *rest) and tuple(value.shape) == (*theirs, *rest):
                return msgspec.structs.replace(record, shape=tuple(value.shape))
        if (
            is_view(record.shape, value.shape)
            and is_all_here(value)
            and not value.is_complex()
            and may_be(value, self.read(record))
        ):
            return msgspec.structs.replace(record, shape=tuple(value.shape))
        return record

    def _second_term(
        self, place: FedPlace, record: Record, value: torch.Tensor, seen: Mapping[str, int]
    ) -> torch.Tensor | None:
        """What golden carries beside a value that is the model's only together with it."""
        if self.rewritten is None or not value.is_floating_point() or value.dim() < 2:
            return None
        others = [
            each
            for each in self._of_call.get(place.key(), ())
            if each.path != record.path
            and each.path not in seen
            and (each.shape, each.dtype) == (record.shape, record.dtype)
        ]
        if len(others) != 1 or None in (record.member, others[0].member):
            return None
        terms = [self.read(each).reshape(value.shape) for each in (record, others[0])]
        kind = (True, self.class_name(place.name), place.role, record.path, others[0].path)
        return terms[1] if self.adds_up(kind, value, *terms) else None

    def adds_up(self, kind: _Kind, *values: torch.Tensor) -> bool:
        """Whether the second and the third are terms of the first, or of one of its kind were."""
        if kind not in self._sums and is_sum(
            *(each.detach().to("cpu", torch.float64).numpy() for each in values)
        ):
            self._sums.add(kind)
        return kind in self._sums

    def class_name(self, name: str) -> str:
        return type(self._modules.named[name]).__name__

    def _input_of(self, name: str, call: int, path: str) -> Record | None:
        place = FedPlace(self._step or 0, name, call, Role.INPUT)
        return self.record_of(place, path, {})

    def record_of(self, place: FedPlace, path: str, seen: Mapping[str, int]) -> Record | None:
        """Golden's record of one part of a value, in the loaded step."""
        return (
            self._records.get((*place.key(), path))
            or self._by_argument(place, path, seen)
            or self._in_a_tuple(place, path)
        )

    def _by_argument(self, place: FedPlace, path: str, seen: Mapping[str, int]) -> Record | None:
        """Golden's record of an input that is positional on one side and a keyword on the other."""
        if place.role is not Role.INPUT:
            return None
        ours, theirs = self._signatures
        kind = self.class_name(place.name)
        record = self._arguments.get(
            (*place.key()[:2], argument_path(path, ours.get(kind) or theirs.get(kind) or ()))
        )
        return None if record is None or record.path in seen else record

    def _in_a_tuple(self, place: FedPlace, path: str) -> Record | None:
        """Golden's record of an output that is in a tuple on one side only."""
        other = tupled(place.role, path)
        found = None if other is None else self._records.get((*place.key(), other))
        if found is None and not path and place.role in (Role.OUTPUT, Role.GRAD_OUTPUT):
            alone = self._of_call.get(place.key(), [])
            found = alone[0] if len(alone) == 1 else None
        return found

    def _golden_number(self, record: Record, value: Any) -> complex | str | None:
        """Golden's value as a Python number, or why there is none; ``None`` if it is equal."""
        host = scalar_to_host(value)
        if host.array is None:
            other = f"golden's {type(value).__name__} is another, which cannot be fed"
            return None if host.digest == record.digest else other
        if record.layout is not Layout.SCALAR:
            return f"golden has no number of it ({record.layout.value})"
        if record.dtype != host.dtype:
            return f"golden's is {record.dtype}, this one {host.dtype}"
        golden = None if digest(host.array) == record.digest else self.golden_tensor(record)
        try:
            return None if golden is None else type(value)(golden.item())
        except Exception:  # a user's class may refuse in any way
            return f"no {type(value).__name__} can be made of golden's"

    def read(self, record: Record) -> torch.Tensor:
        """A record's values; floating ones rounded, if that was asked for."""
        golden = from_bits(self._golden.raw(record), record.dtype)
        if self._rounded is None or not golden.is_floating_point():
            return golden
        return round_copy(golden, self._rounded)

    def pass_on(self, place: FedPlace, path: str, why: str, hides: bool = False) -> None:
        """Note once, also for second runs, that a value was not fed. ``hides``: see ``Unfed``."""
        if (place, path) not in self._noted:
            self._noted.add((place, path))
            entry = {
                "step": place.step,
                "name": place.name,
                "call": place.call,
                "role": place.role.value,
                "path": path,
                "why": why,
            }
            self.not_fed.append({**entry, "hides": True} if hides else entry)

    def load(self, step: int, may_lack: bool = False) -> None:
        """Read the step's list of records, unless it was read last.

        ``may_lack``: a step that golden lacks has none.
        """
        if self._step == step:
            return
        records = self._records_of(step)
        if records is None and may_lack:
            records = []
        if records is None:
            raise CaptureError(
                f"{self._golden.path}: has no step {step} to feed (rank {self._rank}); end the"
                " capture before (--steps)"
            )
        self._before = {each: found for each, found in self._before.items() if each >= step}
        self._records = {
            (name, record.call, record.role, record.path): record for name, record in records
        }
        self._calls = {(name, record.call, record.role) for name, record in records}
        self._arguments = {}
        self._operators = {}
        self._written = {}
        self._of_call = {}
        ours, theirs = self._signatures
        for name, record in records:
            if record.role in OPERATOR_ROLES:
                self._operators.setdefault((name, record.call), []).append(record)
            elif record.role in WRITTEN_ROLES:
                self._written.setdefault((name, record.call, record.role), []).append(record.path)
            elif record.role in (Role.INPUT, Role.OUTPUT, Role.GRAD_OUTPUT):
                self._of_call.setdefault((name, record.call, record.role), []).append(record)
            if record.role is Role.INPUT:
                path = argument_path(
                    record.path, theirs.get(record.type) or ours.get(record.type) or ()
                )
                self._arguments[name, record.call, path] = record
        self.calls.load(records, self._names.get)
        self._step = step
        self._first = step if self._first is None else self._first

    def _records_of(self, step: int) -> list[tuple[str, Record]] | None:
        """Golden's records of a step by the model's module names; ``None`` without such a step."""
        if self._parts is not None:
            own = self._parts.records(step)
            return None if own is None else [(record.name, record) for record in own]
        entries = [
            entry
            for rank, entry in self._golden.steps()
            if (rank, entry.step) == (self._rank, step)
        ]
        if not entries:
            return None
        found = self._golden.step_records(self._rank, entries[0])
        found = found if self.rewritten is None else self.rewritten(found)
        named = (
            [self._named(record) for record in found]
            if self._parameters
            else [(self._names.get(each.name), each) for each in found]
        )
        return [(name, record) for name, record in named if name is not None]

    def _named(self, record: Record) -> tuple[str | None, Record]:
        """A record under the model's parameter path, and its module's name, ``None`` if missing."""
        new = with_parameter(record.key, self._parameters)
        if new is None or record.role is Role.CALL_GRAD:
            return self._names.get(record.name), record
        return new.name, msgspec.structs.replace(record, path=new.path)
