"""What a comparison cannot rely on, since a capture started from a saved state (``--like``) without a part of it that it needed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from accucompare.bundle.manifest import Manifest
from accucompare.bundle.reader import Bundle
from accucompare.bundle.training_state import Component
from accucompare.compare.rows import About, Finding
from accucompare.numbers.digests import same_fingerprint


def unverified(sides: Iterable[tuple[str, Bundle]], golden: Bundle) -> Iterator[Finding]:
    """A finding for each part that a bundle needed and did not get.

    Args:
        sides: the bundles, each with the word for it.
        golden: the bundle whose inputs theirs are held against.
    """
    for side, bundle in sides:
        for rank, manifest in bundle.manifests.items():
            started = manifest.training.started
            where = f" (rank {rank})" if bundle.manifest.ranks > 1 else ""
            for missing in () if started is None else started.missing:
                if started is not None and _needs(manifest, missing.component, golden.manifests.get(rank)):
                    start = f"{side}{where} started from step {started.step} of {manifest.options.like}"
                    message = f"unverified: {start} without the {missing.component} of that state: {missing.reason}"
                    yield Finding("state", message, about=About.UNVERIFIED)


def _needs(manifest: Manifest, component: Component, golden: Manifest | None) -> bool:
    """Whether what a capture recorded depends on a component of the state that it started from."""
    if component is Component.DATA:
        return golden is None or not all(_same_inputs(golden.inputs.get(step, {}), table) for step, table in manifest.inputs.items())
    return component is Component.RANDOM or len(manifest.steps) > 1 or bool(manifest.options.backward)


def _same_inputs(golden: dict[str, dict[str, str]], candidate: dict[str, dict[str, str]]) -> bool:
    return golden.keys() == candidate.keys() and all(same_fingerprint(golden[name], candidate[name]) for name in golden)
