"""The run of a whole batch beside others of its samples: which tensors changed, and how much."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from accucompare.bundle.format import Key, Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.judging import judge_pair
from accucompare.compare.limits import EXACT, Expected, LimitsInForce, Tolerance
from accucompare.compare.measuring import Metrics, may_hold_masks, measure_pair
from accucompare.compare.reruns.invariance_facts import LayerChange, Variant, VariantOutcome
from accucompare.compare.rows import Status
from accucompare.errors import CaptureError
from accucompare.numbers import DTYPES, Array, DType, Kind


class BatchAxis(NamedTuple):
    """The axis in which a tensor has its samples."""

    axis: int | None  # ``None`` if the tensor has no samples, such as a mask for all of them
    each: int = 1  # how many of the axis each sample has, such as heads or tokens
    last: bool = False  # whether the axis runs over the samples first: sample 0, 1, …, 0, 1, …


class BatchAxes:
    """What is known of the batch: how many samples, and which tokens of each are not padding."""

    def __init__(self, samples: int, tokens: NDArray[np.bool_] | None) -> None:
        self.samples = samples  # golden's
        self.tokens = tokens  # by sample and token, whether it is one; ``None`` without a mask

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


_LIMITS = LimitsInForce()


class VariedRuns:
    """Golden, the whole batch, against which other runs of its samples are held.

    Attributes:
        golden: its bundle.
        axes: what is known of the batch.
        baseline: the same batch in float64; ``None`` without.
        coarsest: the type that limits are of at least; ``""`` for each tensor's own. Modules may
            compute in float32 whatever the model's type.
    """

    def __init__(
        self, golden: Bundle, axes: BatchAxes, baseline: Bundle | None, coarsest: str = ""
    ) -> None:
        self.golden = golden
        self._coarsest = coarsest
        self.axes = axes
        self._records = [each for each in golden.records() if each.role in _ROLES]
        self._records.sort(key=lambda record: record.order)
        self._baseline = baseline
        self._expected = {} if baseline is None else _by_key(baseline)
        self._places: dict[Key, BatchAxis] = {}

    def learn(self, alone: Bundle, variant: Variant) -> None:
        """Find the axis of each tensor's samples, by the run of one sample alone.

        Where an axis holds several of each sample (tokens, heads), its size may be chance: the
        tokens of an expert. What has no such axis may be made of the whole batch: a mean loss. In
        both cases the values prove it, in each run of one sample: it is none where they are further
        apart than rounding."""
        theirs, first = _by_key(alone), not self._places
        for record in self._records:
            other = theirs.get(record.key)
            if other is None or record.member is None or other.member is None:
                continue
            known = self._places.get(record.key)
            place = self.axes.found(record.shape, other.shape) if first else known
            if place is None:
                continue
            if place.each == 1 and place.axis is not None:
                self._places[record.key] = place
                continue
            for each in (place, place._replace(last=True)) if first else (place,):
                self._places[record.key] = each
                if self._are_alike(record, alone, other, variant):
                    break
            else:
                del self._places[record.key]

    def _are_alike(self, record: Record, run: Bundle, other: Record, variant: Variant) -> bool:
        """Whether the same samples differ by no more than rounding."""
        values = self._values(record, run, other, variant)
        if values is None:
            return False
        same = np.array_equal(_bits(values[0]), _bits(values[1]))
        return same or not self._change(record, other, values, variant).more

    def compare(self, run: Bundle, variant: Variant) -> VariantOutcome:
        """What changed in another run. CaptureError if it is of other weights."""
        if _weights(run) != _weights(self.golden):
            raise CaptureError(
                "two runs of the case have other weights, so its samples cannot be compared; let"
                " the case draw from the generators of torch, numpy or random, which are seeded"
            )
        theirs = _by_key(run)
        looked = left = outputs = changed = more = 0
        first: LayerChange | None = None
        first_more: LayerChange | None = None
        at_outputs: LayerChange | None = None
        layers: dict[str, LayerChange] = {}
        for record in self._records:
            if record.member is None:
                continue
            other = theirs.get(record.key)
            is_output = not record.name and record.role is Role.OUTPUT
            values = None if other is None else self._values(record, run, other, variant)
            if other is None or values is None:
                left += 1
                continue
            looked, outputs = looked + 1, outputs + is_output
            if np.array_equal(_bits(values[0]), _bits(values[1])):
                continue
            change = self._change(record, other, values, variant)
            changed, more = changed + 1, more + change.more
            first = first or change
            if change.more:
                first_more = first_more or change
            if is_output and (at_outputs is None or change.over_limit > at_outputs.over_limit):
                at_outputs = change
            seen = layers.get(record.name)
            if record.role is Role.OUTPUT and (seen is None or change.over_limit > seen.over_limit):
                layers[record.name] = change
        return VariantOutcome(
            variant, looked, left, outputs, first, first_more, at_outputs, changed, more, layers
        )

    def _values(
        self, record: Record, run: Bundle, other: Record, variant: Variant
    ) -> tuple[Array, Array] | None:
        """The stored bits of the same samples of golden and of another run."""
        place = self._places.get(record.key)
        if place is None or other.member is None or other.dtype != record.dtype:
            return None
        return self.axes.rows(self.golden.raw(record), run.raw(other), place, variant)

    def _change(
        self, record: Record, other: Record, values: tuple[Array, Array], variant: Variant
    ) -> LayerChange:
        """How far two tensors of unlike bits are apart, and whether that is more than rounding."""
        dtype = DTYPES[record.dtype]
        metrics = _measured(*values, (dtype, dtype), _holds_masks(record, other))
        expected = self._rounding(record, variant)
        exact = dtype.kind in (Kind.INT, Kind.BOOL)
        tolerance = EXACT if exact else self._limits(record, other)
        verdict = judge_pair(_undigested(record), _undigested(other), metrics, tolerance, expected)
        return LayerChange(
            record.name,
            record.type,
            record.call,
            record.role.value,
            record.path,
            verdict.status is Status.FAIL,
            metrics.max_ulp,
            metrics.rel_l2,
            verdict.over_limit or 0.0,
            None if expected is None else expected.rel_l2,
            verdict.rel_l2_limit,
        )

    def _limits(self, record: Record, other: Record) -> Tolerance:
        if not self._coarsest:
            return _LIMITS.tolerance_for(record, other)
        before = (each.dtype for each in self._records if each.order <= record.order)
        known = [DTYPES[name] for name in {self._coarsest, *before} if name in DTYPES]
        coarsest = min((each for each in known if each.digits), key=lambda each: each.digits)
        return _LIMITS.tolerance_for(record, other, coarsest.name)

    def _rounding(self, record: Record, variant: Variant) -> Expected | None:
        """Golden's own error in these samples, against float64."""
        exact, place = self._expected.get(record.key), self._places[record.key]
        if self._baseline is None or exact is None or exact.member is None:
            return None
        dtypes = DTYPES[record.dtype], DTYPES[exact.dtype]
        if exact.shape != record.shape or dtypes[0].kind is not dtypes[1].kind:
            return None
        rows = sorted({*variant.rows})
        ours, theirs = self.golden.raw(record), self._baseline.raw(exact)
        if place.axis is not None:
            whole = Variant(variant.kind, tuple(range(self.axes.samples)))
            pair = self.axes.rows(ours, theirs, place, whole)
            assert pair is not None
            ours, theirs = (each.reshape(self.axes.samples, -1)[rows] for each in pair)
        masks = _holds_masks(record, exact)
        metrics = _measured(ours.reshape(-1), theirs.reshape(-1), dtypes, masks)
        return None if metrics.nonfinite_mismatch else Expected.of(metrics, record, exact)


_ROLES = (Role.INPUT, Role.OUTPUT)


def _by_key(bundle: Bundle) -> dict[Key, Record]:
    return {record.key: record for record in bundle.records()}


def _weights(bundle: Bundle) -> object:
    return bundle.manifest.model.get("parameters")


def _bits(values: Array) -> Array:
    """Values as bits, in which a NaN is itself and -0 is not 0."""
    return np.ascontiguousarray(values).view("u1")


def _undigested(record: Record) -> Record:
    """A record for judging some of its samples, of which it has no digest."""
    return msgspec.structs.replace(record, digest=None)


def _blocks(values: Array) -> Callable[[int, int], Iterator[Array]]:
    return lambda start, stop: iter((values[start:stop],))


def _holds_masks(*records: Record) -> bool:
    return all(may_hold_masks(DTYPES[each.dtype], each.statistics) for each in records)


def _measured(golden: Array, candidate: Array, dtypes: tuple[DType, DType], masks: bool) -> Metrics:
    exact = dtypes[0].kind in (Kind.INT, Kind.BOOL)
    return measure_pair(
        _blocks(np.ascontiguousarray(golden)),
        _blocks(np.ascontiguousarray(candidate)),
        dtypes,
        golden.shape,
        atol=0.0 if exact else None,
        masks=masks,
    )
