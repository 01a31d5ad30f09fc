"""All checks of one run of several ranks. No golden is needed: ranks are held against each
other."""

from __future__ import annotations

from collections.abc import Callable

from accucompare.bundle.reading import open_bundle
from accucompare.compare.invariants import call_checks, loop_checks
from accucompare.compare.invariants.gradient_checks import check_reduction
from accucompare.compare.invariants.left_weights import LeftWeights
from accucompare.compare.invariants.rank_facts import (
    NotSeen,
    NotSeenWhy,
    RankCheck,
    RunChecks,
    Tally,
)
from accucompare.compare.invariants.run_of_ranks import RunOfRanks, StepOfRanks
from accucompare.errors import UsageError
from accucompare.places import Place

_StepCheck = Callable[[RunOfRanks, StepOfRanks, Tally], None]

#: What looks at each step; and why it has not, if nothing says more.
_OF_STEPS: dict[RankCheck, tuple[_StepCheck | None, NotSeenWhy]] = {
    RankCheck.WEIGHTS: (call_checks.check_weights, NotSeenWhy.NO_RECORDS),
    RankCheck.BATCHES: (call_checks.check_batches, NotSeenWhy.NO_INPUTS),
    RankCheck.CALLS: (call_checks.check_calls, NotSeenWhy.NO_SAME_CALL),
    RankCheck.LAYOUTS: (call_checks.check_layouts, NotSeenWhy.NO_LAYOUT),
    RankCheck.DROPOUT: (call_checks.check_dropout, NotSeenWhy.NO_DROPOUT),
    RankCheck.GRADIENTS: (call_checks.check_given_gradients, NotSeenWhy.NO_GRADIENTS),
    RankCheck.REDUCTION: (check_reduction, NotSeenWhy.NO_GRADIENTS),
    RankCheck.LOOP: (loop_checks.check_loop, NotSeenWhy.NO_SERIES),
    RankCheck.NORM: (None, NotSeenWhy.NOT_CLIPPED),
    RankCheck.UPDATES: (None, NotSeenWhy.NOT_UPDATED),
    RankCheck.TIED: (call_checks.check_tied, NotSeenWhy.NOT_TIED),
    RankCheck.PADDING: (None, NotSeenWhy.NOTHING_TELLS),
}

#: What needs the values of all ranks.
_OF_ALL_PARTS = (RankCheck.REDUCTION, RankCheck.NORM)


def check_run(path: Place, progress: Callable[[int, int], None] | None = None) -> RunChecks:
    """Check what must hold between the ranks of one run, step by step. Raises BundleError if the
    bundle is missing, damaged, or of a newer format; UsageError if it has one rank only.

    Args:
        path: of the bundle.
        progress: called with the steps done, and all.
    """
    with open_bundle(path) as bundle:
        ranks = bundle.manifest.ranks
        if ranks < 2:
            raise UsageError(
                f"{path}: was captured on one rank, so there are no ranks to compare; compare"
                " it with another bundle: accucompare diff"
            )
        outcomes = [loop_checks.check_complete(bundle), loop_checks.check_settings(bundle)]
        own = [{entry.step for entry in each.steps} for each in bundle.manifests.values()]
        steps = sorted(set.intersection(*own))
        tallies = {check: Tally(check, unseen) for check, (_, unseen) in _OF_STEPS.items()}
        if steps:
            run = RunOfRanks(bundle, steps)
            looks = {check: look for check, (look, _) in _OF_STEPS.items() if look is not None}
            norms = loop_checks.ClippedNorms()
            looks |= {RankCheck.NORM: norms.check, RankCheck.UPDATES: LeftWeights().check}
            if bundle.missing_ranks:
                for check in _OF_ALL_PARTS:
                    missing = tuple(bundle.missing_ranks)
                    tallies[check].unseen = NotSeen(NotSeenWhy.RANKS_MISSING, missing)
                    del looks[check]
            call_checks.check_start(run, tallies[RankCheck.WEIGHTS])
            for done, number in enumerate(steps):
                step = run.step(number)
                for check, look in looks.items():
                    look(run, step, tallies[check])
                if progress is not None:
                    progress(done + 1, len(steps))
            norms.finish(tallies[RankCheck.NORM])
        outcomes += [tally.outcome() for tally in tallies.values()]
        return RunChecks(path, ranks, steps, outcomes)
