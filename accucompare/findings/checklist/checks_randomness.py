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
    passed,
    steps_in_log,
    warned,
)
from accucompare.findings.checklist.checks_data import same_batches
from accucompare.findings.checklist.checks_run import first_difference


def _seeded(seen: Evidence) -> CheckOutcome:
    setup = seen.run.setups[0]
    if setup.default_seed:
        return warned(
            "torch's generator has the seed that it begins with: none was set", place="torch"
        )
    return passed("seeds: " + ", ".join(f"{name} {seed}" for name, seed in setup.seeds.items()))


def _drawn(seen: Evidence) -> CheckOutcome:
    found = [each for each in seen.vitals if each.drawn]
    if found:
        names = ", ".join(dict.fromkeys(name for each in found for name in each.drawn))
        measured = (
            f"{names} was drawn from inside of calls of the model, in {steps_in_log(len(found))}"
        )
        return warned(measured, float(len(found)), found[0].step, names)
    return passed(
        "inside of the model's calls neither Python's nor NumPy's generator was drawn from", 0.0
    )


def _first_step(seen: Evidence) -> CheckOutcome:
    """This run's first step against that of the run before in the log, if both had the same
    seed."""
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
            shown = "" if name in ("batch", "weights") else f": {theirs} and {mine}"
            measured = f"two runs from the same seed part in the {name} of their first step{shown}"
            return warned(measured, step=seen.vitals[0].step, place=name)
    return passed(
        "two runs from the same seed have the same first step: batch, weights, loss and gradient"
        " norm"
    )


def _otherwise_begun(run: Analysis, earlier: Analysis) -> str | None:
    """Why the beginnings of two runs need not be the same; ``None`` if they should be."""
    if not run.setups or not earlier.setups or run.setups[0].seeds != earlier.setups[0].seeds:
        return "the run before in the log had other seeds"
    if run.start.case != earlier.start.case or run.start.device != earlier.start.device:
        return "the run before in the log was of another case, or on another device"
    if (
        run.setups[0].taken != earlier.setups[0].taken
        or run.vitals[0].step != earlier.vitals[0].step
    ):
        return (
            "one of the two runs goes on from another step: their optimizers had not taken the same"
            " number of steps"
        )
    return None


def _others(seen: Evidence) -> CheckOutcome:
    """The states that Python's and NumPy's generators began with, against those of the run before
    in the log.

    Python and NumPy seed their generators with noise of the system: only what was given a seed
    begins twice in the same state."""
    earlier = seen.run.earlier
    assert earlier is not None
    if (reason := _otherwise_begun(seen.run, earlier)) is not None:
        return not_looked_at(reason)
    mine, theirs = seen.run.setups[0].generators, earlier.setups[0].generators
    if not mine or mine.keys() != theirs.keys():
        return not_looked_at(
            "the run before in the log was watched by an earlier version, which noted no states"
        )
    other = [name for name in mine if mine[name] != theirs[name]]
    for name in other:
        used = [each for each in seen.vitals if name in each.drawn or name in each.drawn_between]
        if used:
            measured = (
                f"{name}'s generator began in another state than in the run before, and was drawn"
                f" from in {steps_in_log(len(used))}"
            )
            return warned(measured, float(len(used)), used[0].step, name)
    if other:
        return passed(
            f"the generators of {' and '.join(other)} began otherwise than in the run before, and"
            " nothing was drawn from them"
        )
    return passed(
        f"the generators of {' and '.join(mine)} began in the same states as in the run before"
    )


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
        return not_looked_at("a rank's log holds no setup")
    if len(set(seeds)) == 1:
        same = same_batches(seen.ranks)
        if same:
            step, one, other = min(same)
            measured = (
                f"all {len(seeds)} ranks have the same seeds, and ranks {one} and {other} had the"
                " same batch: they compute the same"
            )
            return warned(measured, step=step)
        return passed(
            f"all {len(seeds)} ranks have the same seeds, so that dropout masks agree; their"
            " batches do not"
        )
    measured = f"{len(set(seeds)):,} different seeds on {len(seeds)} ranks"
    apart = first_difference(seen.ranks)
    if apart is not None and apart.step == seen.vitals[0].step:
        return warned(
            f"{measured}, and different weights in the first step: {apart.measured}",
            step=apart.step,
            place=apart.place,
        )
    return passed(f"{measured}, and no different weights in the first step")


RANDOMNESS = (
    Check(
        "seeded",
        Layer.RANDOMNESS,
        "whether torch's generator was given a seed",
        "call torch.manual_seed(seed) before the model is made; and random.seed, numpy.random.seed"
        " for the data",
        _seeded,
        needs=(Need.VITALS,),
        why="a run that cannot be repeated cannot be compared",
    ),
    Check(
        "drawn-behind",
        Layer.RANDOMNESS,
        "Python's and NumPy's generators that are drawn from inside of the model: a seed of torch"
        " does not reach them",
        "draw with torch inside of the model; or seed them as well, and save their states in"
        " checkpoints",
        _drawn,
        needs=(Need.VITALS, Need.GIVEN),
        why="such numbers are in no checkpoint of torch's state, and differ between ranks and runs",
    ),
    Check(
        "same-first-step",
        Layer.RANDOMNESS,
        "whether two runs from the same seed have the same first step",
        "seed every generator before the model and the loader are made; set deterministic"
        " algorithms",
        _first_step,
        needs=(Need.VITALS, Need.EARLIER),
        why="if the first step differs already, no later difference means anything",
    ),
    Check(
        "seeds-of-ranks",
        Layer.RANDOMNESS,
        "the seeds of all ranks, beside their first weights and their batches",
        "seed the data with seed + rank, and the model with seed alone",
        _ranks,
        across=True,
        needs=(Need.RANKS, Need.VITALS),
        why=(
            "with different seeds, replicas may begin with different weights; with the same ones,"
            " they may be given the same data"
        ),
    ),
    Check(
        "seeded-others",
        Layer.RANDOMNESS,
        "whether Python's and NumPy's generators begin twice in the same state, as only seeded"
        " ones do",
        "call random.seed(seed) and numpy.random.seed(seed) before the data is loaded",
        _others,
        needs=(Need.VITALS, Need.EARLIER),
        why="data pipelines draw from them",
    ),
    Check(
        "loader-workers",
        Layer.RANDOMNESS,
        "loaders with workers and no generator",
        "",
        because=(
            "what a worker draws is drawn in another process; torch gives each worker a seed of"
            " its own"
        ),
        why="workers of a loader may all draw the same numbers",
    ),
)
