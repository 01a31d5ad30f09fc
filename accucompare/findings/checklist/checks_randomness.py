"""The checklist's layer *randomness*: seeds, and who draws."""

from __future__ import annotations

from accucompare.findings.analysis import Analysis
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Layer,
    Need,
    not_looked_at,
    of_layer,
    passed,
    warned,
)
from accucompare.findings.checklist.checks_data import same_batches
from accucompare.findings.checklist.checks_run import first_difference
from accucompare.findings.log import WatchRemark, remark


def _seeded(seen: Evidence) -> CheckOutcome:
    setup = seen.run.setups[0]
    if setup.default_seed:
        return warned(remark("not-seeded"), place="torch")
    return passed(remark("seeds", seeds=list(setup.seeds.items())))


def _drawn(seen: Evidence) -> CheckOutcome:
    found = [each for each in seen.vitals if each.drawn]
    if found:
        names = list(dict.fromkeys(name for each in found for name in each.drawn))
        measured = remark("drawn-inside", names=names, steps=len(found))
        return warned(measured, float(len(found)), found[0].step, ", ".join(names))
    return passed(remark("not-drawn-inside"), 0.0)


def _first_step(seen: Evidence) -> CheckOutcome:
    """This run's first step against the previous run's in the log, if both had the same seed."""
    earlier = seen.run.earlier
    assert earlier is not None
    if (reason := _otherwise_begun(seen.run, earlier)) is not None:
        return not_looked_at(reason)
    for name, mine, theirs in zip(
        ("batch", "weights", "loss", "gradient norm"),
        _facts(seen.run),
        _facts(earlier),
        strict=True,
    ):
        if mine is not None and theirs is not None and mine != theirs:
            shown = () if name in ("batch", "weights") else (theirs, mine)
            measured = remark("first-step-parts", what=name, values=shown)
            return warned(measured, step=seen.vitals[0].step, place=name)
    return passed(remark("same-first-step"))


def _otherwise_begun(run: Analysis, earlier: Analysis) -> WatchRemark | None:
    """Why two runs need not begin the same; ``None`` if they should."""
    if not run.setups or not earlier.setups or run.setups[0].seeds != earlier.setups[0].seeds:
        return remark("other-seeds")
    if run.start.case != earlier.start.case or run.start.device != earlier.start.device:
        return remark("other-case")
    if (
        run.setups[0].taken != earlier.setups[0].taken
        or run.vitals[0].step != earlier.vitals[0].step
    ):
        return remark("goes-on-elsewhere")
    return None


def _others(seen: Evidence) -> CheckOutcome:
    """The first states of Python's and NumPy's generators, against the previous run's in the log.

    Python and NumPy seed themselves with system noise: only a given seed begins twice in the same
    state."""
    earlier = seen.run.earlier
    assert earlier is not None
    if (reason := _otherwise_begun(seen.run, earlier)) is not None:
        return not_looked_at(reason)
    mine, theirs = seen.run.setups[0].generators, earlier.setups[0].generators
    if not mine or mine.keys() != theirs.keys():
        return not_looked_at(remark("no-states"))
    other = [name for name in mine if mine[name] != theirs[name]]
    for name in other:
        used = [each for each in seen.vitals if name in each.drawn or name in each.drawn_between]
        if used:
            measured = remark("other-state", generator=name, steps=len(used))
            return warned(measured, float(len(used)), used[0].step, name)
    if other:
        return passed(remark("other-states-unused", names=other))
    return passed(remark("same-states", names=mine))


def _facts(run: Analysis) -> tuple[str | None, str | None, str | None, str | None]:
    first = run.vitals[0]
    weights = repr(first.layers["weight"]) if "weight" in first.layers else None
    norm = next((step.grad_norm for step in run.steps if step.step == first.step), None)
    digests = " ".join(given.digest for given in first.given) or None
    return (
        digests,
        weights,
        None if first.loss is None else repr(first.loss),
        None if norm is None else repr(norm),
    )


def _ranks(seen: Evidence) -> CheckOutcome:
    seeds = [tuple(sorted(run.setups[0].seeds.items())) for run in seen.ranks if run.setups]
    if len(seeds) < len(seen.ranks):
        return not_looked_at(remark("no-setup-of-a-rank"))
    if len(set(seeds)) == 1:
        same = same_batches(seen.ranks)
        if same:
            step, one, other = min(same)
            measured = remark("same-seeds-same-batch", ranks=len(seeds), one=one, other=other)
            return warned(measured, step=step)
        return passed(remark("same-seeds", ranks=len(seeds)))
    measured = remark("different-seeds", seeds=len(set(seeds)), ranks=len(seeds))
    apart = first_difference(seen.ranks)
    if apart is not None and apart.step == seen.vitals[0].step:
        return warned(
            remark("different-weights", measured=measured, difference=apart.measured),
            step=apart.step,
            place=apart.place,
        )
    return passed(remark("no-different-weights", measured=measured))


_EARLIER = (Need.VITALS, Need.EARLIER)
RANDOMNESS = of_layer(
    Layer.RANDOMNESS,
    Check("seeded", _seeded),
    Check("drawn-behind", _drawn, needs=(Need.VITALS, Need.CALLED, Need.GIVEN)),
    Check("same-first-step", _first_step, needs=_EARLIER),
    Check("seeds-of-ranks", _ranks, across=True, needs=(Need.RANKS, Need.VITALS)),
    Check("seeded-others", _others, needs=_EARLIER),
    Check("loader-workers"),
)
