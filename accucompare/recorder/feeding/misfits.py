"""Why golden's record cannot take a tensor's place."""

from __future__ import annotations

from typing import Any

import torch

from accucompare.bundle.format import Layout, Record
from accucompare.live.values import dtype_name, is_plain_class, layout_of, local_part, nested
from accucompare.numbers import DTYPES
from accucompare.text import with_article


def is_all_here(value: Any) -> bool:
    """Whether a value is a tensor with plain data, all of which is here."""
    return (
        isinstance(value, torch.Tensor)
        and layout_of(value) is Layout.STRIDED
        and local_part(value) is value
    )


def misfit(record: Record, tensor: torch.Tensor) -> str | None:
    """Why golden's record cannot take a tensor's place; ``None`` if it can."""
    tensor = local_part(tensor)
    layout = layout_of(tensor)
    if layout is Layout.NESTED:
        return nested_misfit(record, tensor) or _kind_misfit(record, tensor)
    if not is_plain_class(tensor):
        return f"it is {with_article(type(tensor).__name__)}"
    if (
        layout is not Layout.STRIDED
        or tensor.layout is not torch.strided
        or torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    ):
        return f"it has no plain data ({layout.value})"
    if record.layout is not Layout.STRIDED or record.member is None:
        return f"golden has no tensor of it ({record.layout.value})"
    if record.shape != tuple(tensor.shape):
        return f"golden's shape is {list(record.shape)}, this one's {list(tensor.shape)}"
    return _kind_misfit(record, tensor)


def nested_misfit(record: Record, tensor: torch.Tensor) -> str | None:
    if record.layout is not Layout.NESTED or record.member is None:
        return f"it is nested, and golden has no nested tensor of it ({record.layout.value})"
    if record.components != nested.shapes_of(tensor):
        return "the tensors nested in it have other shapes than golden's"
    # autograd's graph takes no function of ours for it
    if tensor.requires_grad and tensor.layout is torch.strided:
        return "it is nested, not jagged, and autograd follows it"
    return None


def _kind_misfit(record: Record, tensor: torch.Tensor) -> str | None:
    name = dtype_name(tensor.dtype)
    ours, theirs = DTYPES.get(name), DTYPES[record.dtype]
    if ours is None or ours.kind is not theirs.kind:
        return f"golden's is {record.dtype}, this one {name}"
    return None
