"""The fed capture: each module call gets golden's inputs, so each error is the module's own."""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from accucompare.bundle.format import Layout, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.layouts import GoldenParts
from accucompare.compare.pairing import Renaming
from accucompare.live.modules import Modules
from accucompare.live.values import layout_of, leaves, replaced
from accucompare.recorder.feeding.call_order import CallOrder
from accucompare.recorder.feeding.copies import copy_like, in_place_of
from accucompare.recorder.feeding.golden_calls import CallsOfGolden
from accucompare.recorder.feeding.golden_pieces import GoldenPieces
from accucompare.recorder.feeding.golden_values import FedPlace, GoldenValues, Memory
from accucompare.recorder.feeding.lending import (
    Exchange,
    Lent,
    contents,
    may_be,
    memory_of,
    same_elements,
)
from accucompare.selection import RoleGroup

#: From an output's path and the gradient that arrives there: what the backward goes on with.
Arrives = Callable[[str, torch.Tensor], torch.Tensor]


def two_alike(
    parts: Sequence[tuple[str, Any]],
) -> Iterator[tuple[tuple[str, torch.Tensor], tuple[str, torch.Tensor]]]:
    """Pairs of a value's floating tensors of one shape and type."""
    plain = [
        (path, part)
        for path, part in parts
        if isinstance(part, torch.Tensor)
        and part.is_floating_point()
        and not part.is_nested
        and part.dim() > 1
    ]
    for one, other in itertools.combinations(plain, 2):
        if (
            one[1].shape == other[1].shape
            and one[1].dtype == other[1].dtype
            and (one[1] is not other[1])
        ):
            yield one, other


#: The role of a value's gradient, by the role of the value.
_GRADIENT_ROLE = {Role.INPUT: Role.GRAD_INPUT, Role.OUTPUT: Role.GRAD_OUTPUT}


class Feeding(GoldenValues):
    """Golden's values in place of what module calls take and return, and of the gradients.

    What a module writes through ``.data`` cannot be exchanged: its error shows at the next input,
    as glue.

    Attributes:
        fed: how many values were exchanged.
        written, backward, updates: whether golden has writes into buffers and arguments, gradients,
            and what updates took.
        order: which of golden's calls each is.
        in_parts: whether this process is one of several ranks, and golden is of one device.
    """

    def __init__(
        self,
        golden: Bundle,
        rank: int,
        modules: Modules,
        renamings: Sequence[Renaming] = (),
        round_to: str | None = None,
        parts: GoldenParts | None = None,
    ) -> None:
        super().__init__(golden, rank, modules, renamings, round_to, parts)
        self.fed = 0
        self.order = CallOrder(self)
        self.in_parts = parts is not None
        self.written = golden.manifests[rank].options.written
        holds = golden.manifests[rank].options.holds
        self.backward, self.updates = holds(RoleGroup.BACKWARD), holds(RoleGroup.UPDATE)
        self._handed: set[int] = set()  # memory of modules that their callers got, in the step
        self._pieces = GoldenPieces(self)

    def goldens_calls(
        self,
        step: int,
        name: str,
        call: int,
        parent: tuple[str, int] | None,
        given: Sequence[tuple[str, Any]],
    ) -> CallsOfGolden | None:
        """Golden's calls in place of one that one side makes in parts; raises as ``inputs``."""
        self.load(step)
        return self.calls.begins(name, call, parent, given)

    def inputs(
        self, place: FedPlace, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], Lent]:
        """A call's arguments with golden's values in them, and what was lent. Raises CaptureError
        if golden does not have the step; BundleError if golden is damaged."""
        lent, memory, seen = Lent(), Memory(), Counter[str]()
        found = [self._find(place, given, memory, seen) for given in (args, kwargs)]
        self._keep_indices(place, (args, kwargs), found, memory)
        new = [
            self._put(place, given, by_path, lent.containers)
            for given, by_path in zip((args, kwargs), found, strict=True)
        ]
        lent.paths = {id(golden): path for by_path in found for path, golden in by_path.items()}
        lent.tensors = [(arrived, given, given._version) for arrived, given in memory.values()]
        lent.contents = [contents(given) for _, given in lent.containers]
        return new[0], new[1], lent

    def outputs(
        self,
        place: FedPlace,
        output: Any,
        lent: Lent | None,
        given: Mapping[str, Any],
        arrives: Arrives,
    ) -> tuple[Any, dict[str, Any]]:
        """What a call returns, with golden's values in it; raises as ``inputs``.

        Where a module returns its input, or a view of it, the caller gets its own tensor back: it
        may write into the one and read the other. Returns the new value; and by path the caller's
        own tensors in it.

        Args:
            place: the call's outputs.
            lent: what it was given; ``None`` if it was not fed.
            given: the current parts of its arguments, by path.
            arrives: see ``Arrives``; for gradients from outside the call.
        """
        memory, own = Memory(), dict[str, Any]()
        by_path = self._find(place, output, memory, Counter(), arrives)
        for path in self._kept(place.name, output, by_path):
            del by_path[path]
        if lent is not None:
            why = (
                "it is written into, and another argument shares elements with it: each got a copy"
            )
            for path in lent.apart():
                self.pass_on(replace(place, role=Role.INPUT), path, why, hides=True)
            computed = dict(leaves(output))
            exchanged = {id(each): golden for each, golden in memory.values()}
            written = self._given_back(replace(place, role=Role.ARGUMENT_UPDATE), given)
            lent.give_back({**written, **exchanged}, written)
            aliases = lent.aliases(memory.values())
            for path, golden in by_path.items():
                alias = aliases.get(id(golden), golden)
                if alias is None:
                    why = "it shares memory with an input; a copy was passed on"
                    self.pass_on(place, path, why)
                elif (
                    self.backward
                    and self.record_of(replace(place, role=Role.GRAD_OUTPUT), path, {}) is not None
                    and lent.goes_through(computed[path])
                ):
                    # its gradient goes the same way
                    exchange = self._exchange(place, path, arrives)
                    by_path[path] = in_place_of(computed[path], alias.detach(), exchange)
                elif alias is not golden:
                    by_path[path] = own[path] = alias
                    why = "a part of it was given back, whose gradient passes by the call"
                    for taken in lent.paths_behind(computed[path]):
                        gradient = replace(place, role=Role.GRAD_INPUT)
                        if self.backward and self.has_value(gradient, taken):
                            self.pass_on(gradient, taken, why)
        return self._put(place, output, by_path, []), own

    def _kept(self, name: str, output: Any, by_path: Mapping[str, Any]) -> list[str]:
        """Paths of outputs that are what the module keeps, such as a cache, and hold golden's bits:
        its caller gets them, for later writes show there."""
        asked = [
            (path, part)
            for path, part in leaves(output)
            if path in by_path
            and _has_memory(part)
            and not (part.requires_grad and torch.is_grad_enabled())
        ]
        if not asked:
            return []
        module = self._modules.named[name]
        kept = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
        own = {memory_of(each) for each in kept if _has_memory(each)} | self._handed
        found = [
            (path, memory_of(part))
            for path, part in asked
            if memory_of(part) in own and same_elements(part, by_path[path])
        ]
        self._handed |= {memory for _, memory in found}
        return [path for path, _ in found]

    def value(
        self, place: FedPlace, path: str, tensor: torch.Tensor, memory: Memory
    ) -> torch.Tensor | None:
        """A fresh copy of golden's value; ``None``, noted, if it has none. Raises as ``inputs``."""
        self.load(place.step)
        found = self.golden_value(place, path, tensor, memory)
        if isinstance(found, torch.Tensor):
            self.fed += 1
            return found
        self.pass_on(place, path, found if isinstance(found, str) else "it is no tensor")
        return None

    def gradient(self, place: FedPlace, path: str, grad: torch.Tensor) -> torch.Tensor:
        """Golden's gradient in place of the candidate's, for the backward to go on with.

        Args:
            place, path: of the value that was exchanged in the forward, or of the gradient itself.
                An output's gradient is the one that arrives at it; an input's is the one that the
                call has computed.
            grad: returned where golden has none, which is noted.
        """
        place = replace(place, role=_GRADIENT_ROLE.get(place.role, place.role))
        self.load(place.step)
        golden = self._pieces.give(place, path, grad)
        if isinstance(golden, torch.Tensor):
            self.fed += 1
            return golden
        self.pass_on(place, path, golden)
        return grad

    def end_step(self) -> None:
        super().end_step()
        self.order.end_step()
        self._handed.clear()
        self._pieces.end_step()

    def _given_back(self, place: FedPlace, given: Mapping[str, Any]) -> dict[int, torch.Tensor]:
        """Golden's values of what a call has written into its arguments, by the arguments' ids."""
        found = {}
        for path in self.paths(place):
            part = given.get(path)
            if isinstance(part, torch.Tensor):
                golden = self.value(place, path, part, Memory())
                if golden is not None:
                    found[id(part)] = golden
        return found

    def _exchange(self, place: FedPlace, path: str, arrives: Arrives | None) -> Exchange | None:
        """Returns what puts golden's gradient in place in an exchanged value's backward."""
        if not self.backward or place.role not in _GRADIENT_ROLE:
            return None
        if arrives is not None:
            return functools.partial(arrives, path)
        return functools.partial(self.gradient, place, path) if place.role is Role.INPUT else None

    def _find(
        self,
        place: FedPlace,
        value: Any,
        memory: Memory,
        seen: Counter[str],
        arrives: Arrives | None = None,
    ) -> dict[str, Any]:
        """Golden's values for the parts of a value, by path. Missing ones are noted."""
        self.load(place.step)
        every = list(leaves(value))
        by_path: dict[str, Any] = {}
        terms = self._terms(place, every, memory)
        for path, part in every:
            seen[path] += 1
            if seen[path] == 1 and path in terms:
                if (term := terms[path]) is None:
                    self.pass_on(place, path, "golden has one value where these are two")
                else:
                    by_path[path] = term
                continue
            recorded = path if seen[path] == 1 else f"{path}#{seen[path]}"
            found = self.golden_value(
                place, recorded, part, memory, seen, self._exchange(place, recorded, arrives)
            )
            if isinstance(found, str):
                self.pass_on(place, recorded, found)
            elif found is not None and by_path.setdefault(path, found) is not found:
                self.pass_on(place, recorded, "another value has the same path")
        return by_path

    def _keep_indices(
        self, place: FedPlace, given: Sequence[Any], found: Sequence[dict[str, Any]], memory: Memory
    ) -> None:
        """Leave a call its own indices and counts where it keeps other rows than golden's, such as
        those of tokens that were dropped: golden's would not fit them. ``found``: golden's values
        for what was ``given``, by path; changed, as is ``memory``."""
        parts = [[*leaves(each)] for each in given]
        if not any(
            _is_of_numbers(part) and path not in by_path and self.has_other_shape(place, path, part)
            for own, by_path in zip(parts, found, strict=True)
            for path, part in own
        ):
            return
        why = "another argument of the call has not golden's shape, and this may index it"
        for own, by_path in zip(parts, found, strict=True):
            for path, part in own:
                if path in by_path and not _is_of_numbers(part):
                    del by_path[path]
                    self.pass_on(place, path, why)
        for key, (arrived, _) in [*memory.items()]:
            if not _is_of_numbers(arrived):
                del memory[key]

    def _terms(
        self, place: FedPlace, parts: Sequence[tuple[str, Any]], memory: Memory
    ) -> dict[str, torch.Tensor | None]:
        """By path, golden's value twice and less once for two that carry it as terms of their sum;
        ``None`` if neither these nor the first are near it.

        These are exact, unlike, and neither is zero: using one twice, or not at all, shows."""
        found: dict[str, torch.Tensor | None] = {}
        for (one, first), (other, second) in two_alike(parts):
            held = [self.record_of(place, path, {}) for path in (one, other)]
            if None not in held or held == [None, None] or found.keys() & {one, other}:
                continue
            record = held[0] or held[1]
            assert record is not None
            formed = self.formed(record, first)
            if record.member is None or formed.shape != tuple(first.shape):
                continue
            golden = self.read(record)
            golden = golden if formed is record else golden.reshape(formed.shape)
            kind = (False, self.class_name(place.name), place.role, one, other)
            if not self.adds_up(kind, golden, first, second):
                if not may_be(first, golden):
                    found |= {one: None, other: None}
                continue
            for path, part, times in ((one, first, 2), (other, second, -1)):
                term = copy_like(part, golden * times)
                memory[id(part), record.dtype, record.digest] = part, term
                found[path] = term
        return found

    def _put(
        self,
        place: FedPlace,
        value: Any,
        by_path: Mapping[str, Any],
        rebuilt: list[tuple[Any, Any]],
    ) -> Any:
        """A value with golden's parts in place of its own. Those that do not go in are noted."""
        if not by_path:
            return value
        new = replaced(value, by_path, rebuilt)
        given = dict(leaves(new))
        why = "it is in a cache that calls share, or in a class that cannot be built anew"
        lost = [path for path, golden in by_path.items() if given.get(path) is not golden]
        for path in lost:
            self.pass_on(place, path, why)
        self.fed += len(by_path) - len(lost)
        return new


def _is_of_numbers(value: Any) -> bool:
    """Whether a value is a tensor of numbers that stand for themselves: no indices, no mask."""
    return isinstance(value, torch.Tensor) and (value.is_floating_point() or value.is_complex())


def _has_memory(value: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and not is_lazy(value)
        and layout_of(value) is Layout.STRIDED
        and not torch._C._functorch.is_functorch_wrapped_tensor(value)
    )
