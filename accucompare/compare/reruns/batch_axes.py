"""Where samples and tokens lie in a model's tensors, by two runs with other numbers of samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from accucompare.compare.reruns.invariance_facts import Variant
from accucompare.numbers import Array


class BatchAxis(NamedTuple):
    """The axis in which a tensor has its samples.

    Attributes:
        axis: ``None`` if the tensor has no samples, such as a mask for all of them.
        each: how many of the axis each sample has, such as heads or tokens.
        last: whether the axis runs over the samples first: sample 0, 1, …, 0, 1, …
    """

    axis: int | None
    each: int = 1
    last: bool = False


class BatchAxes:
    """What is known of the batch: how many samples, and which tokens of each are not padding.

    Attributes:
        samples: golden's.
        tokens: by sample and token, whether it is one; ``None`` without a mask.
    """

    def __init__(self, samples: int, tokens: NDArray[np.bool_] | None) -> None:
        self.samples = samples
        self.tokens = tokens

    def found(self, golden: tuple[int, ...], alone: tuple[int, ...]) -> BatchAxis | None:
        """The axis, from a tensor's shapes in the whole batch and with one sample; ``None`` if they
        do not tell."""
        if len(golden) != len(alone):
            return None
        unlike = [axis for axis, size in enumerate(golden) if size != alone[axis]]
        if not unlike:
            return BatchAxis(None)
        axis = unlike[0]
        if len(unlike) > 1 or golden[axis] != self.samples * alone[axis]:
            return None
        return BatchAxis(axis, alone[axis])

    def rows(
        self, golden: Array, other: Array, place: BatchAxis, variant: Variant
    ) -> tuple[Array, Array] | None:
        """The same samples and tokens of two tensors, each as one flat array; ``None`` if their
        shapes do not go together."""
        if place.axis is None:
            ours, theirs = golden[None], other[None]
            rows: tuple[int, ...] = (0,)
            if ours.shape != theirs.shape and not variant.length:
                return None
        else:
            known = _by_sample(golden, place, self.samples)
            found = _by_sample(other, place, len(variant.rows))
            if known is None or found is None:
                return None
            ours, theirs, rows = known, found, variant.rows
        if not variant.length or self.tokens is None:
            if ours.shape[1:] != theirs.shape[1:]:
                return None
            return ours[list(rows)].reshape(-1), theirs.reshape(-1)
        return self._tokens(ours, theirs, rows, variant, place.axis is None)

    def _tokens(
        self, ours: Array, theirs: Array, rows: tuple[int, ...], variant: Variant, shared: bool
    ) -> tuple[Array, Array] | None:
        """The tokens of both that are no padding, where one has other padding."""
        assert self.tokens is not None
        length = self.tokens.shape[1]
        if ours.ndim != theirs.ndim:
            return None
        axes = [
            axis
            for axis in range(1, ours.ndim)
            if ours.shape[axis] == length and theirs.shape[axis] == variant.length
        ]
        rest = [
            axis
            for axis in range(1, ours.ndim)
            if axis not in axes and ours.shape[axis] != theirs.shape[axis]
        ]
        if rest:
            return None
        pieces: tuple[list[Array], list[Array]] = ([], [])
        for place, row in enumerate(rows):
            real = self.tokens[list(variant.rows)].all(0) if shared else self.tokens[row]
            kept = np.flatnonzero(real)
            one, other = ours[row], theirs[place]
            for axis in axes:
                one = one.take(kept, axis - 1)
                other = other.take(kept + variant.before, axis - 1)
            pieces[0].append(one.reshape(-1))
            pieces[1].append(other.reshape(-1))
        return np.concatenate(pieces[0]), np.concatenate(pieces[1])


def _by_sample(tensor: Array, place: BatchAxis, samples: int) -> Array | None:
    """A tensor with its samples in the first axis; an axis of its own for what each has of it."""
    assert place.axis is not None
    if tensor.ndim <= place.axis or tensor.shape[place.axis] % samples:
        return None
    each = tensor.shape[place.axis] // samples
    if each == 1 and place.each == 1:
        return np.moveaxis(tensor, place.axis, 0)
    before, after = tensor.shape[: place.axis], tensor.shape[place.axis + 1 :]
    split = (each, samples) if place.last else (samples, each)
    apart = tensor.reshape(*before, *split, *after)
    return np.moveaxis(apart, place.axis + (1 if place.last else 0), 0)
