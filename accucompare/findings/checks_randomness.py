"""The checklist's layer *randomness*: seeds, and who draws."""

from __future__ import annotations

from accucompare.findings.analysis import Analysis
from accucompare.findings.checks import Check, Evidence, Layer, Need, Outcome, not_looked_at, passed, steps_of, warned


def _seeded(seen: Evidence) -> Outcome:
    setup = seen.run.setups[0]
    if setup.default_seed:
        return warned("torch's generator has the seed that it begins with: none was set", place="torch")
    return passed("seeds: " + ", ".join(f"{name} {seed}" for name, seed in setup.seeds.items()))


def _drawn(seen: Evidence) -> Outcome:
    found = [each for each in seen.vitals if each.drawn]
    if found:
        names = ", ".join(dict.fromkeys(name for each in found for name in each.drawn))
        measured = f"{names} was drawn from between the model's call and the end of the step, in {steps_of(len(found))}"
        return warned(measured, float(len(found)), found[0].step, names)
    return passed("between the model's call and the end of a step neither Python's nor NumPy's generator was drawn from", 0.0)


def _first_step(seen: Evidence) -> Outcome:
    """This run's first step against that of the run before in the log, if both had the same seed."""
    earlier = seen.run.earlier
    assert earlier is not None
    if not seen.run.setups or not earlier.setups or seen.run.setups[0].seeds != earlier.setups[0].seeds:
        return not_looked_at("the run before in the log had other seeds")
    if seen.run.start.case != earlier.start.case or seen.run.start.device != earlier.start.device:
        return not_looked_at("the run before in the log was of another case, or on another device")
    for name, mine, theirs in zip(("batch", "loss", "gradient norm"), _facts(seen.run), _facts(earlier), strict=True):
        if mine is not None and theirs is not None and mine != theirs:
            shown = "" if name == "batch" else f": {theirs} and {mine}"
            return warned(f"two runs from the same seed part in the {name} of their first step{shown}", step=0, place=name)
    return passed("two runs from the same seed have the same first step: batch, loss and gradient norm")


def _facts(run: Analysis) -> tuple[str | None, str | None, str | None]:
    first = run.vitals[0]
    norm = next((step.grad_norm for step in run.steps if step.step == first.step), None)
    digests = " ".join(given.digest for given in first.given) or None
    return digests, None if first.loss is None else repr(first.loss), None if norm is None else repr(norm)


def _ranks(seen: Evidence) -> Outcome:
    seeds = [tuple(sorted(run.setups[0].seeds.items())) for run in seen.ranks if run.setups]
    if len(seeds) < len(seen.ranks):
        return not_looked_at("a rank's log holds no setup")
    if len(set(seeds)) == 1:
        return passed(f"all {len(seeds)} ranks have the same seeds: dropout masks agree, and so does what a loader without rank draws")
    return passed(f"{len(set(seeds)):,} different seeds on {len(seeds)} ranks")


RANDOMNESS = (
    Check(
        "seeded",
        Layer.RANDOMNESS,
        "whether torch's generator was given a seed",
        "call torch.manual_seed(seed) before the model is made; and random.seed, numpy.random.seed for the data",
        _seeded,
        needs=(Need.VITALS,),
    ),
    Check(
        "drawn-behind",
        Layer.RANDOMNESS,
        "Python's and NumPy's generators that are drawn from inside of a step: a seed of torch does not reach them",
        "draw with torch inside of the model; or seed them as well, and save their states in checkpoints",
        _drawn,
        needs=(Need.VITALS, Need.GIVEN),
    ),
    Check(
        "same-first-step",
        Layer.RANDOMNESS,
        "whether two runs from the same seed have the same first step",
        "seed every generator before the model and the loader are made; set deterministic algorithms",
        _first_step,
        needs=(Need.VITALS, Need.EARLIER),
    ),
    Check(
        "seeds-of-ranks",
        Layer.RANDOMNESS,
        "the seeds of all ranks",
        "seed the data with seed + rank, and the model with seed alone",
        _ranks,
        across=True,
        needs=(Need.RANKS, Need.VITALS),
    ),
    Check(
        "seeded-others",
        Layer.RANDOMNESS,
        "whether Python's and NumPy's generators were given a seed",
        "",
        because="their states do not show it",
    ),
    Check(
        "loader-workers",
        Layer.RANDOMNESS,
        "loaders with workers and no generator",
        "",
        because="a watch sees the model and the optimizer, and no loader",
    ),
)
