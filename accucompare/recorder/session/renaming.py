"""Renamings for a bundle of ``like`` or ``feed`` whose model has other layer names."""

from __future__ import annotations

import glob
from collections.abc import Sequence

from accucompare.asked import maps_taken
from accucompare.bundle.format import Manifest
from accucompare.compare.pairing import Renaming, check_maps, counterparts, propose, read_maps
from accucompare.live.around import describe_model
from accucompare.live.modules import Modules
from accucompare.places import place_of
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.selection import Selection


def maps_in_force(asked: CaptureOptions, modules: Modules) -> tuple[list[Renaming], list[str]]:
    """The renamings of golden's layers; notes list those that ``auto`` finds. Raises UsageError if
    a map matches nothing or leads nowhere, or two layers become one; BundleError if there is no
    such bundle."""
    renamings, auto = read_maps(asked.map)
    notes = []
    goldens = [
        Manifest.read(place_of(source) / "manifest.json").model
        for source in (asked.like, asked.feed)
        if source is not None
    ]
    if auto:
        # with like, the model's own weights will be replaced: no fingerprints
        own = modules.outline() if asked.like is not None else describe_model(modules)
        taken: list[str] = []
        for golden in goldens:
            new = propose(golden, own, renamings, fingerprints=asked.like is None)
            renamings += [Renaming.parse(text) for text in new]
            taken += new
        notes.append(maps_taken(taken))
    if renamings:
        outline = modules.outline()
        check_maps(renamings, [(golden, outline) for golden in goldens])
    return renamings, notes


def selection_of(golden: Manifest, modules: Modules, renamings: Sequence[Renaming]) -> Selection:
    """The layers that golden recorded, under the model's own names."""
    chosen = Selection.of(golden.capture.get("only") or (), golden.capture.get("skip") or ())
    if not renamings or not (chosen.only or chosen.skip):
        return chosen
    new = counterparts(golden.model.get("modules") or (), modules.named.keys(), renamings)
    allowed = [glob.escape(name) for old, name in new.items() if chosen.allows(old)]
    return Selection.of(allowed, ()) if allowed else chosen
