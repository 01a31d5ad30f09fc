"""What the model is given in a step, for the checklist."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash

from accucompare.findings.log import Given, number
from accucompare.live.values import dtype_name, seen_by_numpy
from accucompare.watcher.looking import Extrema, Meter, sample_of

#: How many features are checked for constancy.
_FEATURES = 1 << 16
#: Tensors looked at per step; a loop may never end one.
_MOST = 64


@dataclass(eq=False)
class GivenTensor:
    """A tensor that the model was given; its numbers are not read yet."""

    # path, dtype, shape: which, and what
    path: str
    dtype: str
    shape: tuple[int, ...]
    ends: Extrema | None = None  # its smallest and its largest value
    # of a sample, if it was there at once; else it is made of ``sample`` on a device
    digest: str = ""
    sample: torch.Tensor | None = None
    # by a field of ``Given``, a number to be read
    facts: dict[str, Extrema] = field(default_factory=dict)

    def settled(self) -> Given:
        """The facts with their numbers."""
        if self.sample is not None:
            self.digest = digest_of_sample(self.sample.cpu(), self.shape)
        facts: dict[str, Any] = {name: extrema.low for name, extrema in self.facts.items()}
        if "whole" in facts:
            facts["whole"] = bool(facts["whole"])
        if (sides := self.facts.get("pads_left")) is not None:
            facts["pads_left"] = None if sides.low == sides.high else bool(sides.low)
        if (ends := self.facts.get("first")) is not None:
            facts["first"] = number(ends.low), number(ends.high)
        low, high = (
            (None, None) if self.ends is None else (number(self.ends.low), number(self.ends.high))
        )
        return Given(self.path, self.dtype, self.shape, low, high, self.digest, **facts)


def look_at_batch(
    parts: Iterable[tuple[str, Any]],
    meter: Meter,
    closely: bool,
    pad: int | None,
    pad_ends: bool = False,
) -> list[GivenTensor]:
    """Begin to look at what the model is given.

    Args:
        parts: the leaves of its arguments, with their paths.
        closely: also look for constant features, whole numbers, and at masks.
        pad: the id of padding, if it is known.
        pad_ends: whether that id also begins or ends each text.
    """
    tensors = [(path, value.detach()) for path, value in parts if _is_plain(value)][:_MOST]
    with torch.no_grad():
        found = [_look(path, tensor, meter, closely) for path, tensor in tensors]
        if closely:
            _look_at_mask(tensors, found, meter, pad, pad_ends)
            _look_at_first(tensors, found, meter)
    return found


def digest_of_sample(sample: torch.Tensor, shape: tuple[int, ...]) -> str:
    """The digest of a sample on the host and its tensor's shape."""
    hasher = xxhash.xxh3_64(repr(shape).encode())
    hasher.update(seen_by_numpy(sample.contiguous()))
    return hasher.hexdigest()


def _is_plain(value: Any) -> bool:
    if (
        not isinstance(value, torch.Tensor)
        or value.is_meta
        or value.is_quantized
        or value.is_nested
        or hasattr(value, "to_local")
    ):
        return False
    if torch._C._functorch.is_functorch_wrapped_tensor(value) or value.layout is not torch.strided:
        return False
    return (
        value.numel() > 0
        and not value.is_complex()
        and (value.element_size() > 1 or not value.is_floating_point())
    )


def _look(path: str, tensor: torch.Tensor, meter: Meter, closely: bool) -> GivenTensor:
    given = GivenTensor(path, dtype_name(tensor.dtype), tuple(tensor.shape))
    if tensor.is_floating_point():
        given.ends = meter.look(tensor)
    else:
        given.ends = meter.later(
            *torch.aminmax(tensor.to(torch.uint8) if tensor.dtype is torch.bool else tensor)
        )
    sample = sample_of(tensor)
    if tensor.device.type == "cpu":
        given.digest = digest_of_sample(sample, given.shape)
    else:
        given.sample = sample.clone()
    if closely and tensor.is_floating_point():
        given.facts["whole"] = meter.later((sample == sample.round()).all().float())
        if tensor.dim() > 1 and tensor.shape[0] > 1:
            low, high = torch.aminmax(tensor.reshape(tensor.shape[0], -1)[:, :_FEATURES], dim=0)
            given.facts["constant"] = meter.later((low == high).float().mean())
    return given


def _look_at_first(
    tensors: list[tuple[str, torch.Tensor]], found: list[GivenTensor], meter: Meter
) -> None:
    """The ids that rows begin with: special tokens of a tokenizer are the same for all rows."""
    for (path, ids), given in zip(tensors, found, strict=True):
        if (
            path.rpartition(".")[2] == "input_ids"
            and ids.dim() == 2
            and not ids.is_floating_point()
        ):
            given.facts["first"] = meter.later(*torch.aminmax(ids[:, 0]))


def _look_at_mask(
    tensors: list[tuple[str, torch.Tensor]],
    found: list[GivenTensor],
    meter: Meter,
    pad: int | None,
    pad_ends: bool,
) -> None:
    """What a mask of rows hides, and whether that is the padding of the ids beside it."""
    by_name = {
        path.rpartition(".")[2]: (tensor, given)
        for (path, tensor), given in zip(tensors, found, strict=True)
    }
    mask, given = by_name.get("attention_mask", (None, None))
    if mask is None or given is None or mask.dim() != 2:
        return
    kept = mask != 0
    given.facts["padding_rows"] = meter.later((~kept.any(1)).float().mean())
    given.facts["pads_left"] = meter.later(*((~kept[:, side]).any().float() for side in (0, -1)))
    ids, _ = by_name.get("input_ids", (None, None))
    if (
        pad is not None
        and ids is not None
        and ids.shape == mask.shape
        and ids.device == mask.device
    ):
        is_pad = ids == pad
        # inside a text it may be a word, or end one
        at_an_end = (
            is_pad.long().cumprod(1).bool() | is_pad.flip(1).long().cumprod(1).flip(1).bool()
        )
        unmasked = ((at_an_end & kept).sum(1) - int(pad_ends)).clamp(min=0)
        given.facts["unmasked_padding"] = meter.later(unmasked.sum() / kept.sum().clamp(min=1))
        given.facts["masked_content"] = meter.later(
            (~is_pad & ~kept).sum() / (~kept).sum().clamp(min=1)
        )
