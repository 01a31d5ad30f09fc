"""What one side lacks because it was not asked to record it: no difference."""

from __future__ import annotations

from accucompare.bundle.format import GROUP_OF, Options
from accucompare.compare.pairing.align import Pair
from accucompare.compare.remarks import NotAsked
from accucompare.selection import Steps


def not_asked(pair: Pair, golden: Options, candidate: Options) -> NotAsked | None:
    """Why a side was not asked for an unpaired record (``--roles``, ``--steps``), if so."""
    record, group = pair.record, GROUP_OF.get(pair.record.role)
    asked = golden if pair.golden is None else candidate
    if asked.roles is not None and group is not None and group not in asked.roles:
        return NotAsked(pair.golden is None, "--roles", ",".join(asked.roles))
    if asked.chosen_steps is not None and record.step not in asked.chosen_steps:
        return NotAsked(pair.golden is None, "--steps", str(Steps.held(asked.chosen_steps)))
    return None
