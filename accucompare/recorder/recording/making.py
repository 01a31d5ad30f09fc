"""Making a record: the value copied to the host, its place, and the writer that takes it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from accucompare.bundle.format import Record, Role, Shard
from accucompare.bundle.writing import BundleWriter, Lease
from accucompare.live.layouts import Layouts
from accucompare.live.modules import Call, class_of
from accucompare.live.values import (
    Bits,
    HostValue,
    Scalar,
    other_to_host,
    scalar_to_host,
    tensor_of,
    to_host,
)


@dataclass(frozen=True)
class How:
    """How a value is recorded."""

    detail: str = ""
    written: Callable[[Record], None] | None = None  # called with the record when it is written
    bits: Bits = Bits.ANY  # what is known of the value's bits
    lease: Lease | None = None  # the memory that holds them, if it was taken from the recorder
    # whether ``written`` compares digests across devices: it needs the host's digest
    by_digest: bool = False
    # whether the model is called with it: its fingerprint goes into the manifest
    model_input: bool = False
    shard: Shard | None = None  # the layout of a plain value that does not know its own


PLAINLY = How()


class RecordMaker:
    """Makes the records of one step after the other; ``count`` is their number in this step.

    ``layouts``: of the model's tensors, if there are several ranks."""

    def __init__(self, writer: BundleWriter, layouts: Layouts | None = None) -> None:
        self.count = 0
        self.writer = writer
        self.layouts = layouts
        # by role, for the cyclic GC goes through tuples that hold one
        self._seen: defaultdict[Role, dict[tuple[str, int, str], int]] = defaultdict(dict)

    def next_step(self) -> None:
        self.count = 0
        self._seen.clear()

    def make(
        self,
        step: int,
        call: Call,
        role: Role,
        path: str,
        value: Any,
        operator: str,
        line: str,
        how: How,
    ) -> None:
        """Record a value.

        Args:
            step, call, role, path: its key; a path that the call already had in this role is
                numbered.
            operator, line: name and source line for an operator's value; else ``""``.
        """
        needed, bits, shard = how.model_input or how.by_digest, how.bits, None
        if self.layouts is not None and isinstance(value, torch.Tensor):
            shard = self.layouts.of(value) or how.shard
            if shard is None and call.module is not None:
                shard = self.layouts.of_value(call.module, role, path, value)
            if shard is not None and self.writer.sketch_size is not None:
                # its place in the whole makes a sketch of its own, here
                needed, bits = True, Bits.NEW if bits is Bits.ANY else bits
        host = self._host_value(value, needed, bits)
        if shard is not None and not shard.holds(host.shape):
            shard = None
        kind = type(call.module) if self.layouts is None else class_of(call.module)
        place, times = (call.name, call.index, path), self._seen[role]
        seen = times[place] = times.get(place, 0) + 1
        if seen > 1:
            path = f"{path}#{seen}"
        record = Record(  # positional arguments take half as long
            0,
            step,
            call.name,
            call.index,
            role,
            path,
            self.count,
            operator or kind.__name__,
            (call.name, call.index) if operator else call.parent,
            host.shape,
            host.dtype,
            host.layout,
            digest=host.digest,
            statistics=host.statistics,
            detail=how.detail or host.detail,
            components=host.components,
            shard=shard,
            requires_grad=role in (Role.INPUT, Role.OUTPUT)
            and isinstance(value, torch.Tensor)
            and value.requires_grad,
            source_line=line,
        )
        self.count += 1
        self.writer.add(
            record,
            host.array,
            how.model_input,
            host.lease or how.lease,
            host.ready,
            how.written,
            host.sketched,
        )

    def _host_value(self, value: Any, needed: bool, bits: Bits) -> HostValue:
        if isinstance(value, torch.Tensor):
            return to_host(value, self.writer, needed, bits)
        if isinstance(value, Scalar):
            return scalar_to_host(value)
        tensor = tensor_of(value)
        return (
            other_to_host(value) if tensor is None else to_host(tensor, self.writer, needed, bits)
        )
