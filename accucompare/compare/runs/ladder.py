"""Where and when two free runs of training part: data, weights, forward, loss, gradients, update.

The rungs are climbed step by step. The first one further apart than rounding explains
(``compare.runs.wander``) is named; later ones may be off for that alone. Each step's numbers (the
manifest's series) and rows are compared. Other settings (another learning rate, an update left out)
come before any number.

Fed, each step starts from golden's weights and there is nothing to climb: losses and clipped
gradients are rows (``compare.runs.step_rows``)."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence

from accucompare.bundle.format import Manifest, StepSeries
from accucompare.compare.limits import DEFAULT_REL_L2, Tolerance, float_dtype
from accucompare.compare.preflight_facts import PreflightFinding
from accucompare.compare.rows import Row
from accucompare.compare.runs.parting import (
    Digests,
    earliest,
    given_within,
    other_bits_of,
    other_weights,
    partings_of,
    through_optimizer,
)
from accucompare.compare.runs.step_pairs import Manifests, StepPair, settings_of
from accucompare.compare.runs.training_result import JudgedBy, TrainingResult
from accucompare.compare.runs.wander import (
    Quantity,
    RunLimits,
    StepOfRank,
    Wander,
    envelope,
    used_norm,
    value_of,
    wander,
)
from accucompare.numbers import DTYPES


def climb(
    golden: Manifests,
    candidate: Manifests,
    *,
    baseline: Manifests,
    repeat: Manifests,
    given: Tolerance,
    rows: Sequence[Row],
    weights: PreflightFinding | None = None,
    by_rank: Manifests,
) -> TrainingResult | None:
    """Compare the steps of two runs; ``None`` if neither recorded numbers of them.

    Args:
        golden, candidate: the manifests, by rank.
        baseline: of the run that shows what rounding does; empty without a baseline that may judge.
        repeat: of golden's second run; empty if it ran once.
        given: what the user gave for all layers.
        rows: in execution order.
        weights: pre-flight's finding on parameters that differ before the first step.
        by_rank: the candidate's manifests, if its ranks are compared as one.
    """
    ours, theirs, expected, again = map(series_of, (golden, candidate, baseline, repeat))
    if not ours and not theirs:
        return None
    ours, theirs = asked_of(candidate, ours), asked_of(golden, theirs)
    dtype = coarsest(*golden.values(), *candidate.values())
    fed = any(manifest.fed for manifest in candidate.values())
    of_rounding = [run for run in (expected, again) if _tells(ours, run)]
    envelopes = {quantity: _widest(ours, of_rounding, quantity, dtype) for quantity in Quantity}
    limits = RunLimits(dtype, given, envelopes)
    pairs = []
    for place in sorted(ours.keys() | theirs.keys()):
        both = ours.get(place), theirs.get(place)
        numbers = [limits.apart(quantity, place, *_values(both, quantity)) for quantity in Quantity]
        pairs.append(StepPair(*place, *both, *numbers))
    settings = settings_of(pairs, by_rank)
    judged_by = _judged_by(fed, limits, bool(_tells(ours, expected)), bool(of_rounding))
    same_type = float_dtype(golden[0]) == float_dtype(candidate[0])
    same_batches = _same_batches(pairs)
    digests = Digests(same_type or any(same_batches), same_type)
    shown = of_rounding[0] if of_rounding else {}
    compared = (
        given_within(rows, limits.by_user) if limits.by_user or not given.has_limit else frozenset()
    )
    partings = itertools.chain(
        other_weights(golden, weights), partings_of(pairs, digests, settings, rows, compared)
    )
    return TrainingResult(
        tuple(pairs),
        judged_by,
        dtype,
        tuple(settings),
        parting=None if fed else through_optimizer(earliest(partings), pairs),
        other_bits=earliest(other_bits_of(pairs)),
        loss=_wander(ours, theirs, Quantity.LOSS),
        norm=_wander(ours, theirs, Quantity.NORM),
        expected_loss=_wander(ours, shown, Quantity.LOSS),
        expected_norm=_wander(ours, shown, Quantity.NORM),
        same_batches=all(same_batches) if same_batches and digests.batches else None,
        several_ranks=len(golden) > 1 or len(candidate) > 1,
        same_type=same_type,
    )


def _values(
    both: tuple[StepSeries | None, StepSeries | None], quantity: Quantity
) -> tuple[float | None, float | None]:
    """A step's number on both sides; if one clips, the other used its gradients as they were."""
    ours, theirs = both
    if (
        quantity is Quantity.CLIPPED
        and ours is not None
        and theirs is not None
        and ours.updates
        and theirs.updates
    ):
        clips = ours.clipped_norm is not None or theirs.clipped_norm is not None
        return (used_norm(ours), used_norm(theirs)) if clips else (None, None)
    return value_of(ours, quantity), value_of(theirs, quantity)


def _wander(
    golden: Mapping[StepOfRank, StepSeries],
    other: Mapping[StepOfRank, StepSeries],
    quantity: Quantity,
) -> Wander | None:
    return wander(
        (value_of(golden.get(place), quantity), value_of(other.get(place), quantity))
        for place in sorted(golden)
    )


def asked_of(
    other: Manifests, series: dict[StepOfRank, StepSeries]
) -> dict[StepOfRank, StepSeries]:
    """The steps that the other side was asked to record too (``--steps``)."""
    chosen = {rank: manifest.options.chosen_steps for rank, manifest in other.items()}
    return {
        (rank, step): entry
        for (rank, step), entry in series.items()
        if step in (chosen.get(rank) or (step,))
    }


def series_of(manifests: Manifests) -> dict[StepOfRank, StepSeries]:
    return {
        (rank, entry.step): entry
        for rank, manifest in manifests.items()
        for entry in manifest.series
    }


def _tells(golden: Mapping[StepOfRank, StepSeries], run: Mapping[StepOfRank, StepSeries]) -> bool:
    """Whether another run of golden shows how runs wander; with equal bits it does not."""
    return any(
        value_of(golden[place], quantity) != value_of(run[place], quantity)
        for place in golden.keys() & run.keys()
        for quantity in Quantity
    )


def _widest(
    golden: Mapping[StepOfRank, StepSeries],
    runs: Iterable[Mapping[StepOfRank, StepSeries]],
    quantity: Quantity,
    dtype: str,
) -> dict[StepOfRank, float]:
    """The envelope of several runs."""
    limits: dict[StepOfRank, float] = {}
    ours = _numbers(golden, quantity)
    for run in runs:
        for place, limit in envelope(ours, _numbers(run, quantity), dtype).items():
            limits[place] = max(limit, limits.get(place, 0.0))
    return limits


def _numbers(
    series: Mapping[StepOfRank, StepSeries], quantity: Quantity
) -> dict[StepOfRank, float]:
    found = {place: value_of(entry, quantity) for place, entry in series.items()}
    return {place: value for place, value in found.items() if value is not None}


def _judged_by(fed: bool, limits: RunLimits, by_baseline: bool, by_any: bool) -> JudgedBy:
    if fed:
        return JudgedBy.NOTHING
    if limits.by_user:
        return JudgedBy.GIVEN
    if by_baseline:
        return JudgedBy.BASELINE
    return JudgedBy.REPEAT if by_any else JudgedBy.DEFAULT


def coarsest(*manifests: Manifest) -> str:
    """The floating type with the fewest digits that one of the runs has in weights or autocast."""
    found = {float_dtype(manifest) for manifest in manifests}
    autocasts = (manifest.environment.get("autocast") for manifest in manifests)
    found |= {str(each.get("dtype")) for each in autocasts if isinstance(each, dict)}
    known = [name for name in found if name in DEFAULT_REL_L2]
    return min(known, key=lambda name: (DTYPES[name].digits, name), default="float32")


def _same_batches(pairs: Iterable[StepPair]) -> list[bool]:
    """Of the steps whose batches are known, whether both sides were given the same."""
    return [
        pair.golden.batch == pair.candidate.batch
        for pair in pairs
        if pair.golden is not None
        and pair.candidate is not None
        and pair.golden.batch
        and pair.candidate.batch
    ]
