"""Matching the operators of one module call to golden's.

Golden's operators are taken in order. An arriving operator is golden's next one if its name and
input shapes are equal and its input values are alike. Some of golden's may be skipped for a later
one with these properties, if that one has the same source line, numbers and strings, or takes what
the skipped ones made; the skipped ones are then golden's alone. An operator with the next one's
name on its line matches even if its inputs differ altogether, but gets no golden values. Any other
operator is the candidate's alone, and runs unfed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from accucompare.bundle.format import Layout, Record, Role, line_in_file, same_line
from accucompare.live.operators import is_plain
from accucompare.live.values import dtype_name, scalar_to_host
from accucompare.numbers import DTYPES, Kind, digest
from accucompare.recorder.feeding.feeding import Feeding
from accucompare.recorder.feeding.golden_values import FedPlace

#: The largest relative L2 distances at which inputs count as golden's: for its next operator on the
#: same line, and for any other. Rounding is far below; unrelated tensors have about 1.4.
_ALIKE, _ALMOST_EQUAL = 0.5, 0.1

#: The most golden operators of one name among which an arriving one is looked for.
_AHEAD = 256


@dataclass(eq=False)
class GoldenOperator:
    """One operator that golden ran in a module call."""

    operator: str
    number: int
    line: str
    place: int  # among golden's operators of that call
    inputs: dict[str, Record] = field(default_factory=dict)  # records by path within the operator
    # the place of golden's last operator that made one of the inputs; -1 if none did
    after: int = -1

    @property
    def options(self) -> dict[str, str | None]:
        """The digests of the numbers and strings that it was given, by path."""
        return {
            path: record.digest
            for path, record in self.inputs.items()
            if record.layout in (Layout.SCALAR, Layout.OPAQUE)
        }


class Match(NamedTuple):
    """Which of golden's operators one is."""

    number: int  # golden's number of that name, or one that golden does not have
    why_not: str = ""  # why it does not get golden's values, in words; ``""`` if it does


class OperatorFeed:
    """Golden's operators of one module call, in order. Those a match skips are golden's alone."""

    def __init__(
        self, feed: Feeding, step: int, name: str, call: int, state: frozenset[int]
    ) -> None:
        """``state``: the storages of parameters and buffers, which are not fed."""
        self.feed = feed
        self.state = state
        self._place = (step, name, call)
        found: dict[tuple[str, int], GoldenOperator] = {}
        made: dict[str | None, int] = {}  # digest → golden's last operator that made these values
        for record in feed.operators_of(step, name, call, (Role.OP_INPUT, Role.OP_OUTPUT)):
            operator = found.setdefault(
                record.operator, GoldenOperator(*record.operator, record.source_line, len(found))
            )
            if record.role is Role.OP_INPUT:
                operator.inputs[record.part] = record
                operator.after = max(
                    operator.after,
                    made.get(record.digest, -1) if record.layout is Layout.STRIDED else -1,
                )
            elif record.digest is not None:
                made[record.digest] = operator.place
        self._golden = list(found.values())
        self._next = 0
        self._places: dict[str, list[int]] = {}
        for each in self._golden:
            self._places.setdefault(each.operator, []).append(each.place)
        self._counts = Counter(each.operator for each in self._golden)
        self._lines = {(each.operator, line_in_file(each.line)) for each in self._golden}

    @property
    def has_any(self) -> bool:
        """Whether golden has recorded operators of the call."""
        return bool(self._golden)

    def place(self, role: Role) -> FedPlace:
        return FedPlace(*self._place, role)

    def match(self, operator: str, line: str, inputs: list[tuple[str, Any]]) -> Match:
        """Which of golden's remaining operators one is, and whether it may get golden's values.

        Args:
            operator, line: of the arriving one.
            inputs: the tensors, numbers and strings that it was given, by path.
        """
        tensors = [(path, value) for path, value in inputs if isinstance(value, torch.Tensor)]
        following = self._golden[self._next] if self._next < len(self._golden) else None
        if following is not None and not (
            following.operator == operator and _fits(following, tensors)
        ):
            following = None
        here = following is not None and same_line(following.line, line)
        likely = self._likely(following, operator, line, inputs)
        most = {id(following): _ALIKE} if here else {}
        found = next(
            (
                golden
                for golden in likely
                if self._alike(golden, tensors, most.get(id(golden), _ALMOST_EQUAL))
            ),
            None,
        )
        if found is not None:
            self._next = found.place + 1
            return Match(found.number)
        if following is not None and here:
            self._next += 1
            return Match(following.number, "what arrives is not like what golden's takes")
        self._counts[operator] += 1
        return Match(self._counts[operator] - 1, "golden runs no such operator here")

    def _likely(
        self,
        following: GoldenOperator | None,
        operator: str,
        line: str,
        inputs: list[tuple[str, Any]],
    ) -> Iterator[GoldenOperator]:
        """Golden's operators that may match, likeliest first. ``following``: the next, or None."""
        given = _options(inputs)
        if following is not None and following.options == given:
            yield following
        tensors = [(path, value) for path, value in inputs if isinstance(value, torch.Tensor)]
        own = self._places.get(operator, [])
        first = (
            bisect_right(own, self._next) if following is not None else bisect_left(own, self._next)
        )
        later = [
            golden
            for place in own[first : first + _AHEAD]
            if _fits(golden := self._golden[place], tensors)
        ]
        here = [
            golden for golden in later if same_line(golden.line, line) and golden.options == given
        ]
        yield from here
        elsewhere = (
            following is not None
            and not same_line(following.line, line)
            and (operator, line_in_file(line)) in self._lines
        )
        if following is not None and following.options != given and not elsewhere:
            yield following
        # they take what golden alone made
        yield from (golden for golden in later if golden not in here and golden.after >= self._next)

    def keeps(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in a parameter or a buffer."""
        return is_plain(tensor) and tensor.untyped_storage()._cdata in self.state

    def _alike(
        self, golden: GoldenOperator, inputs: list[tuple[str, torch.Tensor]], most: float
    ) -> bool:
        """Whether arriving inputs may be golden's; parameters and buffers are left out."""
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


def storages(tensors: Iterable[torch.Tensor]) -> frozenset[int]:
    """Keys of the memory in which these tensors lie."""
    return frozenset(tensor.untyped_storage()._cdata for tensor in tensors if is_plain(tensor))


def _fits(golden: GoldenOperator, inputs: list[tuple[str, torch.Tensor]]) -> bool:
    """Whether golden's operator took as many tensors, of the same shapes and kinds."""
    theirs = {
        path: record
        for path, record in golden.inputs.items()
        if record.layout is not Layout.SCALAR and record.dtype in DTYPES
    }
    return theirs.keys() == dict(inputs).keys() and all(
        theirs[path].shape == tuple(tensor.shape)
        and _kind(theirs[path].dtype) is _kind(dtype_name(tensor.dtype))
        for path, tensor in inputs
    )


def _kind(dtype: str) -> Kind | None:
    return DTYPES[dtype].kind if dtype in DTYPES else None


def _options(inputs: Iterable[tuple[str, Any]]) -> dict[str, str | None]:
    """The digests of the numbers and strings that an operator was given, by path."""
    hosts = {
        path: scalar_to_host(value) for path, value in inputs if not isinstance(value, torch.Tensor)
    }
    return {
        path: host.digest if host.array is None else digest(host.array)
        for path, host in hosts.items()
    }
