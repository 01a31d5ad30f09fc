"""Whether all ranks are there, ran the same steps, and were set up alike."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from accucompare.bundle.format import Manifest
from accucompare.bundle.reading import Bundle
from accucompare.compare.invariants.rank_facts import (
    NotSeen,
    NotSeenWhy,
    RankCheck,
    RankOutcome,
    RankPlace,
    RankStatus,
    SettingApart,
    Tally,
)
from accucompare.compare.invariants.run_of_ranks import apart, by_value
from accucompare.devices import is_a_librarys

#: Variables that say which rank a process is.
_OWN = ("RANK", "VISIBLE_DEVICES", "MASTER_", "TORCHELASTIC_", "PROCID", "LOCALID", "HOST", "NODE")


def check_complete(bundle: Bundle) -> RankOutcome:
    """Whether every rank and every step of each is there."""
    steps = {
        rank: {entry.step for entry in manifest.steps}
        for rank, manifest in bundle.manifests.items()
    }
    every = set[int]().union(*steps.values())
    unseen: NotSeen | None = None
    if bundle.missing_ranks:
        unseen = NotSeen(NotSeenWhy.RANKS_MISSING, tuple(bundle.missing_ranks))
    elif short := {rank: every - own for rank, own in steps.items() if every - own}:
        missing = tuple(sorted(set[int]().union(*short.values())))
        unseen = NotSeen(NotSeenWhy.STEPS_MISSING, tuple(sorted(short)), missing)
    elif early := [rank for rank, each in bundle.manifests.items() if not each.complete]:
        unseen = NotSeen(NotSeenWhy.ENDED_EARLY, tuple(sorted(early)))
    if unseen is not None:
        place = RankPlace(ranks=unseen.ranks)
        return RankOutcome(RankCheck.COMPLETE, RankStatus.NOT_LOOKED_AT, unseen, place)
    tally = Tally(RankCheck.COMPLETE, NotSeenWhy.NO_RECORDS)
    tally.looked, tally.steps = len(steps), every
    return tally.outcome()


def check_settings(bundle: Bundle) -> RankOutcome:
    """Whether versions, flags, variables, libraries and code are the same on all ranks."""
    tally = Tally(RankCheck.SETTINGS, NotSeenWhy.NO_RECORDS)
    tables = {rank: dict(_settings(manifest)) for rank, manifest in bundle.manifests.items()}
    names = dict.fromkeys(name for table in tables.values() for name in table)
    for kind, name in names:
        held = {rank: table.get((kind, name)) for rank, table in tables.items()}
        # what was not loaded, or not read, on a rank is no other there
        read = kind == "variable" and not is_a_librarys(name)
        if (read or kind in ("version", "library", "source")) and None in held.values():
            continue
        tally.see()
        if ranks := apart(held):
            tally.fail(SettingApart(kind, name, by_value(held)), RankPlace(ranks=ranks))
    return tally.outcome()


def _settings(manifest: Manifest) -> Iterator[tuple[tuple[str, str], Any]]:
    device = manifest.environment.get("device")
    yield ("device", ""), device.get("name") if isinstance(device, dict) else None
    yield ("mode", ""), manifest.model.get("training")
    yield ("run", ""), manifest.options.run or None
    for kind, table in (
        ("version", manifest.versions),
        ("flag", manifest.flags),
        ("variable", manifest.variables or {}),
        ("library", manifest.libraries),
        ("source", manifest.code.sources or {}),
    ):
        for name, value in table.items():
            if kind != "variable" or not any(word in name for word in _OWN):
                yield (kind, name), value
