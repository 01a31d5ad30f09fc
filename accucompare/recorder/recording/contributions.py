"""What gradients are made of while a backward runs: the parts that nodes give, and the sums that
they belong to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import torch

from accucompare.bundle.format import Role
from accucompare.live.autograd import Cut, Edge, Graph, Span, Spans, Sum
from accucompare.live.modules import Call

_C = TypeVar("_C", bound=Call)


class Gift(NamedTuple):
    """What a node gives along one of its ``next_functions``.

    Attributes:
        entry: the number there.
        total: the sum that it is a part of.
        cut: of what was written into a view, the part that counts.
    """

    entry: int
    total: Sum
    cut: Cut | None = None

    def taken(self, given: Sequence[Any], arrived: Sequence[Any]) -> torch.Tensor | None:
        """Of what a node gives, and what arrived at it."""
        part: torch.Tensor | None = given[self.entry]
        return part if self.cut is None or part is None else self.cut.of(part)


class Exchanged(Gift):
    """Of the node of a value of golden's, which gives golden's gradient on: what arrived there."""

    def taken(self, given: Sequence[Any], arrived: Sequence[Any]) -> torch.Tensor | None:
        part: torch.Tensor | None = arrived[0]
        return part


#: An output of a call: the id of the call's span, and the edge.
NodeOutput = tuple[int, Edge]


@dataclass
class Uses(Generic[_C]):
    """What a gradient of an output consists of, as far as it comes from outside of the call that
    gave it.

    Attributes:
        giver: the span of that call.
        nodes: that use the output, each with the number that it has among their ``next_functions``.
        seeds: where the output is a root of the backward, what that begins with.
    """

    giver: Span[_C]
    nodes: list[tuple[Any, int]] = field(default_factory=list)
    seeds: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Cast(Generic[_C]):
    """A parameter that was cast to another type, which autocast then keeps for other calls.

    Attributes:
        parameter: that was cast.
        maker: the span that it was cast in, if any, the node, and the parameter's number among its
            ``next_functions``.
        users: likewise the nodes that use what was cast.
    """

    parameter: torch.Tensor
    maker: tuple[Span[_C] | None, Any, int] | None = None
    users: list[tuple[Span[_C] | None, Any, int]] = field(default_factory=list)


@dataclass
class Running:
    """A backward that is running: what is to be ended with it."""

    spans: Spans[Any]  # of the calls that it goes through
    graph: Graph[Any] | None  # that it goes through, if it makes one itself
    handles: list[Any] = field(default_factory=list)
    parts: list[Sum] = field(default_factory=list)  # which are added to those in sums
    # by a call's id, role and path
    sums: dict[tuple[int, Role, str], Sum] = field(default_factory=dict)
    # outputs that were used before the call ended
    used_inside: set[NodeOutput] = field(default_factory=set)


def add_as(total: Sum, dtype: torch.dtype, part: torch.Tensor | None) -> None:
    """Add a part to a sum of another type."""
    total.add(None if part is None else part.to(dtype))
