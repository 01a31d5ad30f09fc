"""What a comparison cannot rely on: missing parts of a saved state, and what feeding changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accucompare.bundle.format import Component, Manifest
from accucompare.bundle.reading import Bundle
from accucompare.compare.preflight_facts import (
    About,
    BesideGolden,
    FeedingChanged,
    PreflightFinding,
    StateMissing,
)
from accucompare.numbers import same_fingerprint


def unverified(
    sides: Iterable[tuple[BesideGolden, Bundle]], golden: Bundle
) -> Iterator[PreflightFinding]:
    """A finding for each missing part of a state, and for each module that feeding changed.

    Args:
        sides: the bundles, each with what it is.
        golden: the bundle with the inputs to compare theirs with.
    """
    for side, bundle in sides:
        for rank, manifest in bundle.manifests.items():
            started = manifest.training.started
            of_rank = rank if bundle.manifest.ranks > 1 else None
            for missing in () if started is None else started.missing:
                if started is not None and _needs(
                    manifest, missing.component, golden.manifests.get(rank)
                ):
                    lacks = StateMissing(
                        side,
                        of_rank,
                        started.step,
                        str(manifest.options.like),
                        missing.component.value,
                        missing.reason,
                    )
                    yield PreflightFinding(lacks, about=About.UNVERIFIED)
            for entry in () if manifest.feed is None else manifest.feed.not_fed:
                if entry.hides:
                    place = entry.name, entry.call, entry.role, entry.path, entry.step
                    yield PreflightFinding(
                        FeedingChanged(side, of_rank, *place, entry.why), about=About.UNVERIFIED
                    )


def _needs(manifest: Manifest, component: Component, golden: Manifest | None) -> bool:
    """Whether what a capture recorded depends on a component of its initial state."""
    if component is Component.DATA:
        return golden is None or not _same_batches(golden, manifest)
    return (
        component is Component.RANDOM
        or max(len(manifest.steps), len(manifest.series)) > 1
        or bool(manifest.options.backward)
    )


def _same_batches(golden: Manifest, candidate: Manifest) -> bool:
    """Whether digests show that each step of the candidate was given golden's inputs."""
    batches = {entry.step: entry.batch for entry in golden.series}
    same = all(entry.batch == batches.get(entry.step, entry.batch) for entry in candidate.series)
    inputs = ((golden.inputs.get(step, {}), table) for step, table in candidate.inputs.items())
    return same and all(
        ours.keys() == theirs.keys()
        and all(same_fingerprint(ours[name], theirs[name]) for name in ours)
        for ours, theirs in inputs
    )
