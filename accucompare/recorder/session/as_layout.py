"""A capture on one device that computes as the ranks of a bundle do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

from accucompare.bundle.reading import open_bundle
from accucompare.compare.layouts import RankParts, rank_parts
from accucompare.errors import UsageError
from accucompare.live.numerics import in_parts
from accucompare.places import Place, place_of
from accucompare.recorder.session.start import Subject
from accucompare.text import first_few


def rank_layout(path: str | Place, out: str | Place, subject: Subject) -> RankParts:
    """What the ranks of ``as_layout`` compute apart. Raises UsageError if this model, or several
    processes, cannot compute so."""
    if place_of(path).resolve() == place_of(out).resolve():
        raise UsageError(
            f"{out}: cannot be both the layout (--as-layout) and what the capture writes; choose"
            " another place (--out, out=)"
        )
    if subject.ranks > 1:
        raise UsageError(
            f"--as-layout: one process computes as the ranks of {path}, but there are"
            f" {subject.ranks}; run the case alone"
        )
    with open_bundle(path) as bundle:
        layout = rank_parts(bundle)
    held = {name: tuple(tensor.shape) for _, name, tensor in subject.modules.tensors()}
    wholes = {name: tuple(map(sum, cut)) for name, cut in layout.cuts.items()}
    other = [name for name, shape in wholes.items() if held.get(name) != shape]
    if other and len(other) == len(wholes):
        raise UsageError(
            f"--as-layout: this model has no parameter that the ranks of {path} share out, such as"
            f" {other[0]} of shape {wholes[other[0]]}; name a bundle of the same model"
        )
    return replace(
        layout,
        cuts={name: cut for name, cut in layout.cuts.items() if name not in other},
        unknown=(*layout.unknown, *other),
    )


@contextlib.contextmanager
def computed_in_parts(
    layout: RankParts | None, subject: Subject, notes: list[str]
) -> Iterator[None]:
    """Compute as the ranks of a layout do, and note what they do otherwise."""
    if layout is None:
        yield
        return
    with in_parts(subject.modules, layout.cuts, layout.batches, layout.rows) as left:
        yield
    whole = sorted({*left, *layout.unknown})
    notes.append(f"products and sums were computed in the parts of {layout.ranks} ranks")
    if whole:
        notes.append(
            f"as the ranks' layout (--as-layout): {len(whole)} of their cut parameters were"
            f" computed with whole: {first_few(whole)}"
        )
    if layout.batches > 1:
        notes.append(
            "as the ranks' layout (--as-layout): gradients of their batches were added up in the"
            " parameters' own type"
        )
