"""A case's batch, and the other batches that are made of its samples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils import _pytree as pytree

from accucompare.compare.reruns import NotVariedWhy, Variant, Variation
from accucompare.errors import CaseError, UsageError
from accucompare.recorder.state import CallArguments
from accucompare.selection import FloatType

#: How many samples are run alone: the first, the last, and one between.
MOST_ALONE = 3
#: How many tokens of padding are added.
PADDING = 3
#: How many threads are tried, beside the number in use.
THREADS = (1, 2, 4)

_POSITIONS = "position_ids"


@dataclass(frozen=True)
class _Mask:
    """An argument that says which tokens are padding; ``real``: its value where there is none."""

    name: str
    real: bool


def float_type(dtype: str | None) -> FloatType | None:
    """The type of that name. UsageError if there is none."""
    if dtype is not None and dtype not in list(FloatType):
        known = ", ".join(each.value for each in FloatType)
        raise UsageError(f"dtype must be one of {known}, but is {dtype!r}")
    return None if dtype is None else FloatType(dtype)


class BatchOfCase:
    """The batch of a case's first inputs."""

    def __init__(
        self, name: str, model: nn.Module, arguments: CallArguments, axis: int = 0
    ) -> None:
        self.arguments = arguments  # positional and keyword arguments, on the CPU
        self._axis = axis
        self._model = model
        shapes = [
            leaf.shape
            for leaf in pytree.tree_leaves(arguments)
            if isinstance(leaf, torch.Tensor) and leaf.dim() > axis
        ]
        if not shapes:
            raise CaseError(f"{name}: the case's inputs have no tensor with samples")
        self.samples = int(shapes[0][axis])  # how many there are
        if self.samples < 2:
            raise CaseError(
                f"{name}: axis {axis} of the case's first input has {self.samples} sample; give a"
                " batch of several different ones, of which each is computed alone and in other"
                " batches, or name another axis (--batch-axis)"
            )
        self._mask = self._mask_of(arguments[1])
        # by sample and token, whether it is no padding; ``None`` without a mask
        self.tokens: NDArray[np.bool_] | None = None
        if self._mask is not None:
            mask = arguments[1][self._mask.name]
            self.tokens = (mask.bool() == self._mask.real).numpy()

    def variants(self, threads: int, on_cpu: bool, positions_known: bool) -> Iterator[Variant]:
        """The runs to make, the samples alone first.

        Args:
            threads: in use.
            positions_known: whether the model's own positions are the tokens' places.
        """
        every = tuple(range(self.samples))
        for row in dict.fromkeys((0, self.samples // 2, self.samples - 1)):
            yield Variant(Variation.ALONE, (row,))
        yield Variant(Variation.AGAIN, every)
        yield Variant(Variation.LATER, every)
        yield Variant(Variation.MOVED, (*every[1:], 0))
        if self.samples > 2:
            yield Variant(Variation.FEWER, every[: -(-self.samples // 2)])
        yield Variant(Variation.MORE, every + every[::-1])
        if on_cpu:
            for number in THREADS:
                if number != threads:
                    yield Variant(Variation.THREADS, every, threads=number)
        if self.tokens is not None:
            yield from self._padded(self.tokens, every, positions_known)

    def _padded(
        self, tokens: NDArray[np.bool_], every: tuple[int, ...], positions_known: bool
    ) -> Iterator[Variant]:
        length = tokens.shape[1]
        yield Variant(Variation.RIGHT, every, 0, length + PADDING)
        if self._left_may_be_padded(positions_known):
            shifted = self._counts_padding and not positions_known
            yield Variant(Variation.LEFT, every, PADDING, length + PADDING, shifted)
        padded = [
            row for row in every if tokens[row].any() and not (tokens[row, 0] and tokens[row, -1])
        ]
        for row in padded[:MOST_ALONE]:
            first, last = np.flatnonzero(tokens[row])[[0, -1]]
            before, after = -int(first), length - 1 - int(last)
            shifted = bool(before) and _POSITIONS not in self.arguments[1]
            yield Variant(Variation.UNPADDED, (row,), before, length + before - after, shifted)

    @property
    def _counts_padding(self) -> bool:
        """Whether the case itself pads on the left and gives no positions."""
        left = self.tokens is not None and not self.tokens[:, 0].all()
        return left and _POSITIONS not in self.arguments[1]

    def _left_may_be_padded(self, positions_known: bool) -> bool:
        if self.tokens is not None and not self.tokens[:, 0].all():
            return True
        return self._generates and (_POSITIONS in self.arguments[1] or positions_known)

    @property
    def _generates(self) -> bool:
        """Whether sequences may begin with padding; a model that only encodes may take the first
        token for the whole."""
        says = getattr(self._model, "can_generate", None)
        return says is None or bool(says())

    def why_not(self, on_cpu: bool, positions_known: bool) -> Mapping[Variation, NotVariedWhy]:
        """The variations that ``variants`` leaves out."""
        found = {}
        if self.samples <= 2:
            found[Variation.FEWER] = NotVariedWhy.TWO_SAMPLES
        if self.tokens is None:
            for kind in (Variation.RIGHT, Variation.LEFT, Variation.UNPADDED):
                found[kind] = NotVariedWhy.NO_MASK
        else:
            if not self._left_may_be_padded(positions_known):
                takes = self.takes_positions
                why = NotVariedWhy.OWN_POSITIONS if takes else NotVariedWhy.NO_POSITIONS
                found[Variation.LEFT] = why if self._generates else NotVariedWhy.FIRST_TOKEN
            if self.tokens[:, 0].all() and self.tokens[:, -1].all():
                found[Variation.UNPADDED] = NotVariedWhy.NO_PADDING
        if not on_cpu:
            found[Variation.THREADS] = NotVariedWhy.NOT_ON_CPU
        return found

    @property
    def takes_positions(self) -> bool:
        """Whether the model takes positions that the case does not give."""
        taken = inspect.signature(self._model.forward).parameters
        return _POSITIONS in taken and _POSITIONS not in self.arguments[1]

    def with_positions(self) -> CallArguments:
        """The batch with each token's place as its position."""
        assert self.tokens is not None
        args, kwargs = self.arguments
        places = torch.arange(self.tokens.shape[1])
        return args, {**kwargs, _POSITIONS: places.repeat(self.samples, 1)}

    def of(self, variant: Variant, positions_known: bool = False) -> CallArguments:
        """The arguments of a run."""
        args, kwargs = self.arguments
        if variant.kind is Variation.LEFT and positions_known and self.takes_positions:
            _, kwargs = self.with_positions()
        args, kwargs = pytree.tree_map_only(
            torch.Tensor, lambda tensor: self._rows(tensor, variant.rows), (args, kwargs)
        )
        if not variant.length or self.tokens is None:
            return args, kwargs
        length = self.tokens.shape[1]
        mask = self._mask
        assert mask is not None
        changed = {}
        for name, value in kwargs.items():
            of_tokens = (
                isinstance(value, torch.Tensor)
                and value.dim() > 1
                and value.shape[:2] == (len(variant.rows), length)
                and not name.startswith("decoder_")
            )
            changed[name] = self._at(name, value, variant, mask) if of_tokens else value
        return args, changed

    def _rows(self, tensor: torch.Tensor, rows: tuple[int, ...]) -> torch.Tensor:
        axis = self._axis
        has_samples = tensor.dim() > axis and tensor.shape[axis] == self.samples
        return tensor.index_select(axis, torch.tensor(rows)) if has_samples else tensor

    def _at(self, name: str, value: torch.Tensor, variant: Variant, mask: _Mask) -> torch.Tensor:
        """A tensor of tokens with other padding."""
        length = value.shape[1]
        first, last = max(0, -variant.before), length
        if variant.before < 0 or variant.length < length:
            last = variant.length - variant.before
        kept = value[:, first : min(last, length)]
        shape = list(kept.shape)
        before = max(0, variant.before)
        sizes = before, variant.length - before - shape[1]
        fill = self._padding(name, mask)
        parts = [kept.new_full((shape[0], size, *shape[2:]), fill) for size in sizes]
        return torch.cat([parts[0], kept, parts[1]], 1)

    def _padding(self, name: str, mask: _Mask) -> int | bool:
        if name == mask.name:
            return not mask.real
        if name == "labels":
            return -100
        config = getattr(self._model, "config", None)
        number = getattr(config, "pad_token_id", None) if name == "input_ids" else 0
        return number if isinstance(number, int) and number >= 0 else 0

    def _mask_of(self, arguments: Mapping[str, Any]) -> _Mask | None:
        """The argument that tells padding, by name and shape."""
        if self._axis:
            return None
        for name, value in arguments.items():
            masks_padding = name.endswith("key_padding_mask")
            if name != "attention_mask" and not masks_padding:
                continue
            if name.startswith("memory_") or not isinstance(value, torch.Tensor):
                continue
            if value.dim() == 2 and len(value) == self.samples and not value.is_floating_point():
                return _Mask(name, not masks_padding)
        return None
