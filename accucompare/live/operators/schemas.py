"""Operators by their schemas: what each writes into, and whether it is recorded."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

#: Operators that are not recorded, and why. Nor are views, and operators that return no tensor.
NO_VALUES = "makes memory without values"
LEFT_OUT = {
    **dict.fromkeys(("empty", "empty_like", "empty_strided", "empty_permuted"), NO_VALUES),
    **dict.fromkeys(("new_empty", "new_empty_strided", "resize_"), NO_VALUES),
    **dict.fromkeys(
        ("clone", "copy", "copy_", "_to_copy", "_reshape_copy", "contiguous"),
        "moves or casts values",
    ),
    **dict.fromkeys(
        ("_unsafe_view", "lift", "lift_fresh", "lift_fresh_copy", "_pin_memory"),
        "is a view or a copy",
    ),
}

#: Namespaces of operators that do not compute on tensors: communication, profiling, Python's own.
_FOREIGN = (
    "prim",
    "prims",
    "profiler",
    "c10d",
    "_c10d_functional",
    "_dtensor",
    "streams",
    "debugprims",
)

#: Operators that write into ``self`` without reading it.
_FILLING = ("fill_", "zero_")

#: Operators that draw only as a part of their work.
_COMPUTES_TOO = re.compile("attention|rnn|lstm|gru|rrelu|softmax")

#: Arguments that operators write into without declaring it.
WRITTEN_SILENTLY = ("running_mean", "running_var")

#: How many outputs are for the forward. The rest, for the backward, differs between devices.
_FOR_FORWARD = {
    **dict.fromkeys(
        (
            "native_layer_norm",
            "native_batch_norm",
            "native_group_norm",
            "_fused_rms_norm",
            "cudnn_batch_norm",
        ),
        1,
    ),
    **dict.fromkeys(
        (
            "_native_batch_norm_legit",
            "_batch_norm_with_update",
            "_native_batch_norm_legit_no_training",
        ),
        1,
    ),
    **dict.fromkeys(
        ("_scaled_dot_product_flash_attention", "_scaled_dot_product_flash_attention_for_cpu"), 1
    ),
    **dict.fromkeys(
        ("_scaled_dot_product_efficient_attention", "_scaled_dot_product_cudnn_attention"), 1
    ),
    **dict.fromkeys(
        (
            "_scaled_dot_product_fused_attention_overrideable",
            "_flash_attention_forward",
            "_efficient_attention_forward",
        ),
        1,
    ),
}

#: Kernels that compose an operator of others. For random operators they must run: draws are caught.
_COMPOSITE = "CompositeImplicitAutograd"
_COMPOSED = ("CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional")
_BACKENDS = {"cpu": "CPU", "cuda": "CUDA"}  # any other device is PrivateUse1
_has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key


class Blank:
    """Memory that nothing has been written into; its content may be anything."""

    def __init__(self) -> None:
        # a weak reference keeps the address from being reused
        self._storages: dict[int, StorageWeakRef] = {}

    def add(self, tensor: Any) -> None:
        if isinstance(tensor, torch.Tensor) and is_plain(tensor):
            self._storages[tensor.untyped_storage()._cdata] = StorageWeakRef(
                tensor.untyped_storage()
            )

    def take(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in such memory; from then on it no longer counts as such."""
        return (
            is_plain(tensor)
            and self._storages.pop(tensor.untyped_storage()._cdata, None) is not None
        )


class Known(NamedTuple):
    """What an operator's schema tells."""

    arguments: tuple[str, ...]
    written: frozenset[str]  # arguments that it writes into
    unread: frozenset[str]  # written arguments that it never reads before
    name: str  # of aten, without overload; else ""
    left_out: bool
    outputs: int | None  # how many of its results are recorded; None: all
    inside: Any  # the key of the kernel that composes it of others, or None

    def is_composed(self, op: Any, values: Iterable[Any]) -> bool:
        """Whether an operator runs by that kernel: not if the tensors' device has its own."""
        if self.inside is None:
            return False
        devices = [value.device if isinstance(value, torch.Tensor) else value for value in values]
        types = {device.type for device in devices if isinstance(device, torch.device)} or {"cpu"}
        return not any(
            _has_kernel(op.name(), _BACKENDS.get(device, "PrivateUse1")) for device in types
        )


@cache
def known_of(op: Any) -> Known:
    schema = op._schema
    namespace, _, name = schema.name.partition("::")
    written = frozenset(
        argument.name
        for argument in schema.arguments
        if argument.alias_info and argument.alias_info.is_write
    )
    is_view = any(value.alias_info and not value.alias_info.is_write for value in schema.returns)
    gives_none = not written and not any("Tensor" in str(value.type) for value in schema.returns)
    is_random = torch.Tag.nondeterministic_seeded in op.tags and not _COMPUTES_TOO.search(name)
    kernels = (_COMPOSITE, *(_COMPOSED if is_random and _draws_inside(op) else ()))
    inside = next((key for key in kernels if _has_kernel(op.name(), key)), None)
    return Known(
        arguments=tuple(argument.name for argument in schema.arguments),
        written=written,
        unread=frozenset(
            argument.name
            for argument in schema.arguments
            if argument.is_out or (argument.name in written and name in _FILLING)
        ),
        name=name if namespace == "aten" else "",
        left_out=is_view
        or gives_none
        or is_random
        or namespace in _FOREIGN
        or (namespace == "aten" and name in LEFT_OUT),
        outputs=_FOR_FORWARD.get(name) if namespace == "aten" else None,
        inside=None if inside is None else getattr(torch._C.DispatchKey, inside),
    )


def _draws_inside(op: Any) -> bool:
    """Whether an operator draws by calling others, as rand calls uniform_."""
    return any(_has_kernel(op.name(), key) for key in _COMPOSED)


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor has a storage to look at."""
    return tensor.layout is torch.strided and not torch._C._functorch.is_functorch_wrapped_tensor(
        tensor
    )


@cache
def differentiated(node: str, entries: int) -> tuple[str, ...]:
    """Names for the entries of an autograd node's ``next_functions``: ``self``, ``mat1``, ``mat2``.

    They are the arguments of the operator that made the node, if its name and their number identify
    it; else numbers. A single entry has no name.
    """
    if entries == 1:
        return ("",)
    operators = _by_node().get(_BACKWARD.sub("", node).lower(), ())
    schemas = [
        schema for name in operators for schema in torch._C._jit_get_schemas_for_operator(name)
    ]
    found = {
        tuple(
            each.name
            for each in schema.arguments
            if not each.is_out and str(each.type) in ("Tensor", "Optional[Tensor]")
        )
        for schema in schemas
    }
    fitting = {names for names in found if len(names) == entries}
    return fitting.pop() if len(fitting) == 1 else tuple(map(str, range(entries)))


_BACKWARD = re.compile(r"Backward\d+$")


@cache
def _by_node() -> dict[str, list[str]]:
    """aten's operators by the names of their nodes, without underscores and in lower case."""
    found: dict[str, list[str]] = {}
    for name in sorted(
        {
            full.partition(".")[0]
            for full in torch._C._dispatch_get_all_op_names()
            if full.startswith("aten::")
        }
    ):
        found.setdefault(name.removeprefix("aten::").replace("_", ""), []).append(name)
    return found
