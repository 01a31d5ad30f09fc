"""The parts that nodes give while a backward runs, and the sums of these parts."""

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
    """What a node gives along one of its ``next_functions``."""

    entry: int  # the index there
    total: Sum  # the sum that it is a part of
    cut: Cut | None = None  # the part that counts, if a view of the tensor was written into

    def taken(self, given: Sequence[Any], arrived: Sequence[Any]) -> torch.Tensor | None:
        """The part, from what a node gives and what arrived at it."""
        part: torch.Tensor | None = given[self.entry]
        return part if self.cut is None or part is None else self.cut.of(part)


class Exchanged(Gift):
    """The node passes golden's gradient on; what counts is what arrived there."""

    def taken(self, given: Sequence[Any], arrived: Sequence[Any]) -> torch.Tensor | None:
        part: torch.Tensor | None = arrived[0]
        return part


#: An output of a call: the id of the call's span, and the edge.
NodeOutput = tuple[int, Edge]


@dataclass
class Uses(Generic[_C]):
    """The parts of an output's gradient that come from outside the call that gave it."""

    giver: Span[_C]  # the span of that call
    # users of the output, each with the output's index in their ``next_functions``
    nodes: list[tuple[Any, int]] = field(default_factory=list)
    # initial gradients, where the output is a root of the backward
    seeds: list[torch.Tensor] = field(default_factory=list)


@dataclass
class Cast(Generic[_C]):
    """A parameter cast to another type, which autocast keeps for other calls."""

    parameter: torch.Tensor
    # the span, if any, and the node of the cast; the parameter's index for the node
    maker: tuple[Span[_C] | None, Any, int] | None = None
    # the same for the nodes that use the cast
    users: list[tuple[Span[_C] | None, Any, int]] = field(default_factory=list)


@dataclass
class Running:
    """A backward that is running, and what ends with it."""

    spans: Spans[Any]  # of the calls that it goes through
    graph: Graph[Any] | None  # set if the backward itself makes one
    handles: list[Any] = field(default_factory=list)
    parts: list[Sum] = field(default_factory=list)  # added to those in sums
    # by a call's id, role and path
    sums: dict[tuple[int, Role, str], Sum] = field(default_factory=dict)
    # outputs whose gradient is not what arrives at their node: a call used its own, or they were
    # written into later
    used_inside: set[NodeOutput] = field(default_factory=set)
    lost: set[NodeOutput] = field(default_factory=set)  # those of which nothing tells the gradient


def add_as(total: Sum, dtype: torch.dtype, part: torch.Tensor | None) -> None:
    total.add(None if part is None else part.to(dtype))
