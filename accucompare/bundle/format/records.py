"""One record: a tensor, or another value, that a module call took or gave."""

from __future__ import annotations

import json
import math
import sys
from enum import Enum
from functools import lru_cache
from typing import Annotated, NamedTuple, TypeVar

import msgspec

from accucompare.bundle.format.shards import Shard
from accucompare.errors import BundleError
from accucompare.numbers import DTYPES, Count, Statistics
from accucompare.selection import RoleGroup, Word
from accucompare.text import printable, storable


class Role(Word):
    """What a record was to its module call."""

    __hash__ = str.__hash__  # Enum's own is Python code, and roles are keys in every hook

    INPUT = "input"
    OUTPUT = "output"
    #: A buffer that the model computes itself, which no checkpoint brings, when the capture begins;
    #: its path is the buffer's name.
    COMPUTED_BUFFER = "computed_buffer"
    # What a write leaves behind for later calls: by a call into a buffer or an argument; by no
    # call, into a buffer between two steps (before), or in a step after a call (after). The path is
    # the argument's, or the buffer's name, qualified after a ``/`` if another module wrote it.
    BUFFER_UPDATE = "buffer_update"
    ARGUMENT_UPDATE = "argument_update"
    BUFFER_BEFORE = "buffer_before"
    BUFFER_AFTER = "buffer_after"
    # Of a backward: the gradient that arrives at an output; what a call adds to the gradient of an
    # input; what it adds to the gradient of a parameter.
    GRAD_OUTPUT = "grad_output"
    GRAD_INPUT = "grad_input"
    CALL_GRAD = "call_grad"
    # Of an optimizer's update, whose number in the step is the call: what it is given, and what it
    # makes of it:
    PARAM_GRAD = "param_grad"
    PARAM_BEFORE = "param_before"
    STATE_BEFORE = "state_before"
    PARAM_UPDATE = "param_update"
    STATE_AFTER = "state_after"
    #: A parameter that something other than an update has changed since the last update, after so
    #: many updates of the step: before the model was called, or after that if ``AT_THE_END``
    #: follows its name.
    PARAM_CHANGED = "param_changed"
    # In the state of a bundle captured with save_state, never in a step:
    PARAM = "param"
    BUFFER = "buffer"
    CASE_INPUT = "case_input"
    TRAINING_STATE = "training_state"  # of an optimizer, a scheduler, a random generator, …
    # Of the operators called in a module's own code, in a bundle captured with level op:
    OP_INPUT = "op_input"
    OP_OUTPUT = "op_output"
    # Of the nodes of its backward: the gradient that arrives, and the one that goes on.
    OP_GRAD_OUTPUT = "op_grad_output"
    OP_GRAD_INPUT = "op_grad_input"
    # Numbers of a step's series, which a diff makes rows of; never in a bundle's records:
    LOSS = "loss"
    CLIPPED_NORM = "clipped_norm"


BUFFER_ROLES = (Role.BUFFER_BEFORE, Role.BUFFER_UPDATE, Role.BUFFER_AFTER)
WRITTEN_ROLES = (*BUFFER_ROLES, Role.ARGUMENT_UPDATE)
STATE_ROLES = (Role.PARAM, Role.BUFFER, Role.CASE_INPUT, Role.TRAINING_STATE)
GRADIENT_ROLES = (Role.GRAD_OUTPUT, Role.GRAD_INPUT, Role.CALL_GRAD)
UPDATE_ROLES = (
    Role.PARAM_GRAD,
    Role.PARAM_BEFORE,
    Role.STATE_BEFORE,
    Role.PARAM_UPDATE,
    Role.STATE_AFTER,
    Role.PARAM_CHANGED,
)
TRAINING_ROLES = (*GRADIENT_ROLES, *UPDATE_ROLES)
NODE_ROLES = (Role.OP_GRAD_OUTPUT, Role.OP_GRAD_INPUT)
SERIES_ROLES = (Role.LOSS, Role.CLIPPED_NORM)
OPERATOR_ROLES = (Role.OP_INPUT, Role.OP_OUTPUT, *NODE_ROLES)

#: Follows the path of a parameter that was changed at the end of a step, where no update came after
#: the model's last call.
AT_THE_END = "#2"

#: Options of parameter groups that say how an update is computed, not what: devices may differ in
#: them.
WAYS_OF_UPDATING = ("foreach", "fused", "capturable", "differentiable")

#: What ``--roles`` chooses.
ROLES_OF = {
    RoleGroup.FORWARD: (
        Role.INPUT,
        Role.OUTPUT,
        Role.COMPUTED_BUFFER,
        *WRITTEN_ROLES,
        Role.OP_INPUT,
        Role.OP_OUTPUT,
    ),
    RoleGroup.BACKWARD: (*GRADIENT_ROLES, *NODE_ROLES),
    RoleGroup.GRADS: (Role.PARAM_GRAD,),
    RoleGroup.UPDATE: (
        Role.PARAM_BEFORE,
        Role.STATE_BEFORE,
        Role.PARAM_UPDATE,
        Role.STATE_AFTER,
        Role.PARAM_CHANGED,
    ),
    RoleGroup.SERIES: (),
}
GROUP_OF = {role: group for group, roles in ROLES_OF.items() for role in roles}


#: The beginning of a digest that a device made of numbers instead of bytes: it cannot be compared
#: with one of bytes.
DEVICE_DIGEST = "device:"


class Layout(str, Enum):
    """How a value was held. All but STRIDED, SCALAR and NESTED are listed without data."""

    STRIDED = "strided"
    SCALAR = "scalar"  # a Python int, float or bool, kept as a 0-d array
    SPARSE = "sparse"
    META = "meta"
    QUANTIZED = "quantized"
    NESTED = "nested"  # its values joined into one array
    BATCHED = "batched"  # inside torch.func.vmap
    OPAQUE = "opaque"  # an object that is neither a tensor nor a container of tensors
    UNREADABLE = "unreadable"  # a tensor that could not be copied; `detail` says why

    @property
    def has_data(self) -> bool:
        """Whether such values are recorded, unless the capture's mode keeps less than values."""
        return self in (Layout.STRIDED, Layout.SCALAR, Layout.NESTED)


class Key(NamedTuple):
    """What identifies a record."""

    rank: int
    step: int
    name: str
    call: int
    role: Role
    path: str

    def __str__(self) -> str:
        place = f"{self.role.value}{'.' + printable(self.path) if self.path else ''}"
        return (
            f"{display_name(self.name)} call {self.call} {place} (step {self.step}, rank"
            f" {self.rank})"
        )


def same_line(one: str, other: str) -> bool:
    """Whether two source lines may be the same; older bundles name no folder."""
    long, short = sorted((one, other), key=len, reverse=True)
    return long == short or ("/" not in short and long.endswith(f"/{short}"))


def line_in_file(line: str) -> str:
    """A source line without its folder."""
    return line.rpartition("/")[2]


#: Attributes under which wrappers keep the wrapped module; left out of qualified names.
WRAPPER_NAMES = ("_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module")


def display_name(name: str) -> str:
    """A qualified name as people read it: printable; the root module's is ``(root)``."""
    return printable(name) or "(root)"


class Error(msgspec.Struct, frozen=True):
    """How far a record is from golden's, in a baseline that keeps no tensors."""

    # relative L2 error; ``None`` where golden is all zeros and the baseline is not
    rel_l2: Annotated[float, msgspec.Meta(ge=0)] | None
    rmse: Annotated[float, msgspec.Meta(ge=0)]
    different: Count  # how many integers or booleans differ
    factor: float | None = None  # for gradients: the factor on golden that comes closest, less 1
    # for updates of a parameter of a half type: how many elements are off by more than rounding can
    # do; else ``None``
    beyond: Count | None = None


class Record(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """One tensor in a bundle. A struct, since every tensor of every module call makes one;
    ``msgspec.structs.replace`` changes one.

    Attributes:
        rank, step, name, call, role, path: its ``Key``.
        order: its place in the step's execution order.
        type: the module's class name; an operator's name, such as ``aten.bmm.default``; in its
            backward, the autograd node's, such as ``BmmBackward0``.
        parent: (qualified name, call index) of the call that it was made in; ``None`` for the
            root's. For an operator: of the call that runs it.
        shape, dtype: the tensor's own; ``dtype`` is PyTorch's name without ``torch.``, or ``""``
            for an opaque value.
        member: its member in the step's ``.npz``; ``None`` where no data was kept.
        digest: of the member's bytes, or of an opaque string (xxh3, 128 bits, hexadecimal); begins
            with DEVICE_DIGEST if the tensor was sketched on its device.
        statistics: of the finite values; ``None`` without data.
        error: in a baseline that keeps no tensors: the distance from golden, where it could be
            measured.
        components: of a nested tensor: the shapes of its parts, whose values are one array of the
            record's shape; ``None`` for others.
        detail: what an opaque value was, or why a tensor could not be read.
        sketch: without a member: the number, from 0, of its sketch in the step; ``None`` if it has
            none.
        shard: the layout of a rank's part of a tensor, as its sketch has it; ``None`` for a whole
            tensor, and where a rank cannot see the layout.
        requires_grad: whether autograd followed what a call took or gave.
        source_line: where an operator was called, or for a node its operator, such as
            ``bert/modeling_bert.py:187``.
    """

    rank: int
    step: int
    name: str
    call: int
    role: Role
    path: str
    order: int
    type: str
    parent: tuple[str, int] | None
    shape: tuple[int, ...]
    dtype: str
    layout: Layout
    member: str | None = None
    digest: str | None = None
    statistics: Statistics | None = None
    detail: str = ""
    error: Error | None = None
    components: tuple[tuple[int, ...], ...] | None = None
    sketch: int | None = None
    shard: Shard | None = None
    requires_grad: bool = False
    source_line: str = ""

    @property
    def key(self) -> Key:
        return tuple.__new__(
            Key, (self.rank, self.step, self.name, self.call, self.role, self.path)
        )

    @property
    def operator(self) -> tuple[str, int]:
        """An operator's name, and its number of that name in the module call; else ``("", 0)``."""
        if self.role not in OPERATOR_ROLES:
            return "", 0
        number = self.path.removeprefix(f"{self.type}#").partition(".")[0]
        return self.type, int(number) if number.isdecimal() else 0

    @property
    def part(self) -> str:
        """An operator's argument or result, such as ``self`` or ``tensors.1``; ``""`` for a single
        one."""
        return (
            self.path.removeprefix(f"{self.type}#").partition(".")[2]
            if self.role in OPERATOR_ROLES
            else ""
        )

    @property
    def is_of_group(self) -> bool:
        """Whether it is of a parameter group (``AdamW.0.lr``), not of a parameter."""
        _, _, number = self.path.partition(".")
        return (
            self.role is Role.STATE_BEFORE
            and not self.name
            and number.partition(".")[0].isdecimal()
        )

    @property
    def detail_and_line(self) -> str:
        """Detail and source line in words: ``a slice at bert/modeling_bert.py:187``."""
        return " at ".join(filter(None, (self.detail, self.source_line)))

    @property
    def has_values(self) -> bool:
        """Whether its values or a sketch were kept, so that a distance can be measured."""
        return self.member is not None or self.sketch is not None

    @property
    def is_cache(self) -> bool:
        """Whether it is an opaque object of a class called a cache; ``detail`` is its class."""
        return self.layout is Layout.OPAQUE and self.detail.endswith("Cache")

    def to_line(self) -> bytes:
        """One line of ``stepN.jsonl``, which leaves rank and step to the file.

        Put together by hand, since every tensor of every module call makes one: an encoder takes
        three times as long."""
        detail = self.detail_and_line
        if self.detail and self.role in OPERATOR_ROLES:  # a reader splits them at the last " at "
            detail = f"{self.detail} at {self.source_line}"
        text = (
            f'{{"name":{_quoted(self.name)},"call":{self.call},"role":"{self.role.value}"'
            f',"path":{_quoted(self.path)},"order":{self.order},"type":{_quoted(self.type)}'
            f',"parent":{_parent(self.parent)},"member":{_optional(self.member)}'
            f',"shape":{_list(self.shape)},"dtype":{_quoted(self.dtype)}'
            f',"layout":"{self.layout.value}","digest":{_optional(self.digest)}'
            f',"statistics":{_numbers(self.statistics)},"detail":{_quoted(detail)}'
        )
        if self.error is not None:
            text += f',"error":{_JSON.encode(msgspec.structs.asdict(self.error))}'
        if self.components is not None:
            text += f',"components":{_JSON.encode(self.components)}'
        if self.sketch is not None:
            text += f',"sketch":{self.sketch}'
        if self.shard is not None:
            text += f',"shard":{_placed(self.shard)}'
        text += ',"requires_grad":true}\n' if self.requires_grad else "}\n"
        try:
            return text.encode()
        except UnicodeEncodeError:  # lone surrogates, as of file names
            texts = {
                name: storable(value)
                for name, value in msgspec.structs.asdict(self).items()
                if type(value) is str
            }
            parent = self.parent and (storable(self.parent[0]), self.parent[1])
            return msgspec.structs.replace(self, parent=parent, **texts).to_line()

    @classmethod
    def from_line(cls, line: bytes, rank: int, step: int) -> Record:
        """The inverse of ``to_line``. Raises BundleError if it is not JSON, or a field is missing,
        of the wrong type, or impossible."""
        try:
            found = _DECODER.decode(line)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise BundleError(f"a record is malformed ({error})") from None
        detail, source_line, intern = found.detail, "", sys.intern
        if found.role in OPERATOR_ROLES:
            detail, _, source_line = detail.rpartition(" at ")
        record = cls(
            rank,
            step,
            intern(found.name),
            found.call,
            found.role,
            intern(found.path),
            _shared(found.order),  # a bundle may have millions of records
            intern(found.type),
            _shared(found.parent),
            _shared(found.shape),
            intern(found.dtype),
            found.layout,
            found.member if found.member is None else intern(found.member),
            found.digest,
            found.statistics,
            detail,
            found.error,
            found.components,
            found.sketch if found.sketch is None else _shared(found.sketch),
            found.shard,
            found.requires_grad,
            source_line,
        )
        member = record.member is not None
        if (member or record.sketch is not None) and record.dtype not in DTYPES:
            raise BundleError(f"record {record.key} has the unknown dtype {record.dtype!r}")
        if not _is_possible(record.shape, member):
            raise BundleError(
                f"record {record.key} has the impossible shape {str(list(record.shape))[:80]}"
            )
        if record.shard is not None and not record.shard.holds(record.shape):
            raise BundleError(
                f"record {record.key} does not lie in the whole tensor that it says it is a part of"
            )
        return record


@lru_cache(maxsize=1 << 12)
def _is_possible(shape: tuple[int, ...], member: bool) -> bool:
    """Whether a tensor may have this shape; ``member``: whether its data were kept."""
    most = _MOST_ELEMENTS // 16 if member else _MOST_ELEMENTS
    return len(shape) <= _MOST_DIMENSIONS and math.prod(filter(None, shape)) <= most


class _Line(msgspec.Struct, gc=False):
    """A record's line: its fields without rank and step, in their order."""

    name: str
    call: Count
    role: Role
    path: str
    order: Count
    type: str
    parent: tuple[str, Count] | None
    shape: tuple[Count, ...]
    dtype: str
    layout: Layout
    member: str | None
    digest: str | None
    statistics: Statistics | None
    detail: str
    error: Error | None = None
    components: tuple[tuple[Count, ...], ...] | None = None
    sketch: Count | None = None
    shard: Shard | None = None
    requires_grad: bool = False


_JSON = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
_quoted = json.encoder.encode_basestring


def _optional(text: str | None) -> str:
    return "null" if text is None else _quoted(text)


def _list(numbers: tuple[int, ...]) -> str:
    return f"[{','.join(map(str, numbers))}]"


def _parent(call: tuple[str, int] | None) -> str:
    return "null" if call is None else f"[{_quoted(call[0])},{call[1]}]"


@lru_cache(maxsize=1 << 12)
def _placed(shard: Shard) -> str:
    return msgspec.json.encode(shard).decode()


def _numbers(found: Statistics | None) -> str:
    if found is None:
        return "null"
    low, high, mean, l2 = found.min, found.max, found.mean, found.l2
    if (
        type(low) is type(high) is type(mean) is type(l2) is float
        and math.isfinite(low + high + mean + l2)
        and not found.rounding
    ):
        return (
            f'{{"min":{low!r},"max":{high!r},"mean":{mean!r},"l2":{l2!r}'
            f',"nan":{found.nan},"inf":{found.inf}}}'
        )
    return _JSON.encode(found.to_json())


_DECODER = msgspec.json.Decoder(_Line)
_Shared = TypeVar("_Shared")
_MOST_DIMENSIONS = 64  # NumPy's and PyTorch's
# PyTorch's limit, on the device meta, and NumPy's limit of bytes. NumPy ignores zero lengths in the
# product
_MOST_ELEMENTS = (1 << 63) - 1


@lru_cache(maxsize=1 << 16)
def _shared(value: _Shared) -> _Shared:
    """The first of equal values, so that records share one object."""
    return value
