"""What only one side has since the other was not asked to record it: that is no difference."""

from __future__ import annotations

from accucompare.bundle.capture_facts import Options
from accucompare.bundle.records import GROUP_OF
from accucompare.compare.align import Pair
from accucompare.compare.outcomes import Outcome
from accucompare.compare.rows import Reason, Verdict
from accucompare.selection import Steps


def not_asked(pair: Pair, golden: Options, candidate: Options) -> Outcome | None:
    """The outcome for a record that one side was not asked for, by ``--roles`` or ``--steps``; ``None`` if it was, or both have it.

    Args:
        pair: the record and its partner.
        golden, candidate: the options of the two captures.
    """
    record = pair.golden or pair.candidate
    if record is None or None not in (pair.golden, pair.candidate):
        return None
    name, asked = ("golden", golden) if pair.golden is None else ("the candidate", candidate)
    group, why = GROUP_OF.get(record.role), ""
    if asked.roles is not None and group is not None and group not in asked.roles:
        why = f"{name} was captured with --roles {','.join(asked.roles)}"
    elif asked.chosen_steps is not None and record.step not in asked.chosen_steps:
        why = f"{name} was captured with --steps {Steps.held(asked.chosen_steps)}"
    return Outcome(None, Verdict(Reason.NOT_COMPARABLE, detail=why)) if why else None
