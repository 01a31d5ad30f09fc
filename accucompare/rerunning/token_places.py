"""Where tokens lie in a model's tensors, by two runs of sequences of other lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from accucompare.live.values import to_host
from accucompare.numbers import Array

#: The arguments that hold a sequence's tokens.
TOKENS_NAMES = ("decoder_input_ids", "decoder_inputs_embeds", "input_ids", "inputs_embeds")


class TokenPlace(NamedTuple):
    """Where a tensor has its tokens."""

    axis: int | None  # ``None`` if it has none, and is the same whatever the sequence
    keys: int | None = None  # the axis of the tokens that each may see, of a mask; ``None`` without
    flat: bool = False  # whether the axis runs over all samples' tokens


def token_place(
    whole: torch.Size, short: torch.Size, tokens: tuple[int, int], samples: int
) -> TokenPlace | None:
    """The place, from a tensor's shapes in two runs; ``None`` if they do not tell. ``tokens``: in
    the whole sequence, and in the shorter one."""
    if len(whole) != len(short):
        return None
    unlike = [axis for axis, size in enumerate(whole) if size != short[axis]]
    sizes = [(whole[axis], short[axis]) for axis in unlike]
    if not unlike:
        return TokenPlace(None)
    if all(size == tokens for size in sizes) and len(unlike) <= 2:
        return TokenPlace(unlike[0], unlike[1] if len(unlike) == 2 else None)
    if unlike == [0] and sizes == [(tokens[0] * samples, tokens[1] * samples)]:
        return TokenPlace(0, flat=True)
    return None


@dataclass(frozen=True)
class Columns:
    """The tokens of one call of the model."""

    # by sample and column, which of golden's tokens it is; -1 for padding
    tokens: NDArray[np.int64]
    first: bool  # whether the call is the sequence's first
    # whether the sequence has padding, so that columns are no places of tokens
    padded: bool = False

    @property
    def count(self) -> int:
        return int(self.tokens.shape[1])


def by_token(
    tensor: torch.Tensor, place: TokenPlace, samples: int, columns: int
) -> torch.Tensor | None:
    """A view of a tensor whose first axes are samples (or 1, for all of them) and tokens; ``None``
    if it has other sizes."""
    axis = place.axis
    assert axis is not None
    if tensor.dim() <= axis:
        return None
    size = samples * columns if place.flat else columns
    if tensor.shape[axis] != size:
        return None
    if place.flat:
        return _apart(tensor, samples)
    if axis and tensor.shape[0] and tensor.shape[0] % samples == 0 and tensor.numel():
        return _apart(tensor, samples).movedim(axis + 1, 1)
    return tensor.movedim(axis, 0)[None]


def _apart(tensor: torch.Tensor, samples: int) -> torch.Tensor:
    """A view with an axis of samples in front of what each has of the first."""
    found: torch.Tensor = tensor.unflatten(0, (samples, -1))  # type: ignore[no-untyped-call]
    return found


def bits_of(values: torch.Tensor) -> tuple[Array, str] | None:
    """Tokens' values as stored bits, and their type; ``None`` if they cannot be read. ``values``:
    with the tokens as first axis."""
    host = to_host(values.reshape(len(values), -1).contiguous())
    return None if host.array is None else (host.array, host.dtype)


def as_type(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Values in another type; finite ones stay finite, as masks need it."""
    if not dtype.is_floating_point or values.dtype == dtype:
        return values.to(dtype)
    limits = torch.finfo(dtype)
    finite = torch.isfinite(values)
    return torch.where(finite, values.clamp(limits.min, limits.max), values).to(dtype)
