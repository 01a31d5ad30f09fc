"""The checklist's layer *data*: what the model was given, and what the loss was computed of."""

from __future__ import annotations

import itertools
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator

from accucompare.findings.analysis import Analysis
from accucompare.findings.checklist.checks import (
    Check,
    CheckOutcome,
    Evidence,
    Layer,
    Need,
    Threshold,
    failed,
    not_looked_at,
    passed,
    steps_in_log,
    warned,
)
from accucompare.findings.log import Given, LoadedBatch, Targets, Vitals

_MASKS = re.compile(r"mask|bias", re.IGNORECASE)
#: So many steps show in which ways a model is called.
_FIRST = 10
# : Axes of parallelism along which ranks hold replicas of the model, or parts of it that are put
# together for each of its calls: along : these, each rank is to have a batch of its own.
_BATCHES_DIFFER = {"dp", "data", "dp_replicate", "replicate", "dp_shard", "fsdp"}


#: So many looks before something is said of all of them.
_LOOKS = 3
#: The largest value of a byte, which images are made of.
_BYTE = 255


def _every(seen: Evidence) -> Iterator[tuple[Vitals, Given]]:
    """What the model was given, also in a step that an error ended: perhaps by that."""
    return ((each, given) for each in seen.run.vitals for given in each.given)


def _targets(seen: Evidence) -> list[tuple[int, Targets]]:
    """Of each step, also of one that an error ended."""
    return [(each.step, each.targets) for each in seen.run.vitals if each.targets is not None]


def _called(given: Given) -> str:
    return f"input {given.path or '0'}"


def _input_finite(seen: Evidence) -> CheckOutcome:
    count, bad = 0, None
    for each, given in _every(seen):
        if given.low is None or given.high is None:
            continue
        count += 1
        low, high = float(given.low), float(given.high)
        if (
            math.isnan(low)
            or math.isnan(high)
            or high == math.inf
            or (low == -math.inf and not _is_mask(given))
        ):
            bad = bad or (each.step, given)
    if bad is None:
        return passed(f"{count:,} inputs were finite")
    step, given = bad
    if (
        not seen.run.findings and not seen.run.unexplained
    ):  # as of a table with gaps, which the model fills in
        return passed(
            f"{_called(given)} held values from {given.low} to {given.high}, and nothing that the"
            " model made of them did"
        )
    return failed(f"values from {given.low} to {given.high}", None, step, _called(given))


def _input_range(seen: Evidence) -> CheckOutcome:
    largest, worst, floating = 0.0, None, False
    for each, given in _every(seen):
        if given.low is None or given.high is None or "float" not in given.dtype:
            continue
        floating = True
        size = max(abs(float(given.low)) if not _is_mask(given) else 0.0, abs(float(given.high)))
        if math.isfinite(size) and size > largest:
            largest, worst = size, (each.step, _called(given))
    measured = f"floating inputs were {largest:.4g} at most"
    if worst is not None and largest > seen.limits["input-range"]:
        looks = [each.outputs for each in seen.vitals if each.outputs]
        name = (
            next(iter(looks[0])) if looks else ""
        )  # the first that is called: one that normalises makes them small
        size = max(
            (abs(float(number)) for each in looks for number in each.get(name, ())),
            default=math.inf,
        )
        if size <= seen.limits["input-range"]:
            return passed(f"{measured}; what {name} made of them was {size:.4g} at most", largest)
        return warned(
            f"{measured}, and {name} made {size:.4g} of them" if name else measured, largest, *worst
        )
    entered = [(each.step, *each.entered) for each in seen.vitals if each.entered is not None]
    lows, highs = [float(low) for *_, low, _ in entered], [float(high) for *_, high in entered]
    if len(entered) >= _LOOKS and min(lows) == 0 and max(highs) == _BYTE:
        step, name, *_ = entered[0]
        return warned(
            "the first layer was given values of 0 to 255, as bytes are, in"
            f" {steps_in_log(len(entered))} looked at",
            255.0,
            step,
            name,
        )
    return (
        passed(measured, largest)
        if floating
        else not_looked_at("the model was given no floating input")
    )


def _is_mask(given: Given) -> bool:
    """Whether it may be a mask that is added: of 0 where something is kept, and -Inf or the lowest
    number of a type elsewhere.
    """
    return bool(_MASKS.search(given.path)) or (given.high is not None and float(given.high) == 0)


def _input_constant(seen: Evidence) -> CheckOutcome:
    looks: dict[str, list[tuple[int, float]]] = {}
    for each, given in _every(seen):
        if (
            given.constant is not None and not _is_mask(given) and given.low != given.high
        ):  # masks, and states that begin with 0
            looks.setdefault(_called(given), []).append((each.step, given.constant))
    if not looks:
        return not_looked_at(
            "no floating input had several samples in a step that was looked at closely"
        )
    least = {name: min(share for _, share in series) for name, series in looks.items()}
    name, share = min(least.items(), key=operator.itemgetter(1))
    series = looks[name]
    measured = (
        f"{share:.0%} of its features had the same value in all samples of a batch, in each of"
        f" {len(series):,} looks"
    )
    if share >= seen.limits["constant-features"]:
        return warned(measured, share, series[0][0], name)
    return passed(f"{name}: {measured}", share)


def _type_changed(seen: Evidence) -> CheckOutcome:
    late = _late(seen, lambda given: given.dtype)
    if late is not None:
        each, given, before = late
        return warned(f"it was {before}, and then {given.dtype}", None, each.step, _called(given))
    for each, given in _every(seen):
        if (found := _rounded(seen, given)) is not None:
            return warned(found, None, each.step, _called(given))
    return passed(f"{len({given.path for _, given in _every(seen)}):,} inputs kept their types")


def _late(seen: Evidence, form: Callable[[Given], object]) -> tuple[Vitals, Given, object] | None:
    """The first input of a form that it had in none of the first steps, with the form that it had
    then.

    A model may well be called in several ways, as with real images and with made ones, but then it
    is from the beginning."""
    known: dict[str, list[object]] = {}
    began = seen.vitals[0].step if seen.vitals else 0
    for each, given in _every(seen):
        forms = known.setdefault(given.path, [])
        if form(given) not in forms:
            if forms and each.step >= began + _FIRST:
                return each, given, forms[0]
            forms.append(form(given))
    return None


#: From here on, neighbouring numbers of a half type are 2 apart.
_WHOLE = {"bfloat16": 256.0, "float16": 2048.0}


def _rounded(seen: Evidence, given: Given) -> str | None:
    """In words, how coarse an input in a half type is, if it holds no whole numbers one by one, and
    no weight is in a half type.
    """
    limit = _WHOLE.get(given.dtype, math.inf)
    if given.low is None or given.high is None or _is_mask(given) or seen.setup is None:
        return None
    size = max(abs(float(given.low)), abs(float(given.high)))
    if not limit < size < math.inf or any(each.dtype in _WHOLE for each in seen.setup.parameters):
        return None
    apart = 2.0 ** (math.frexp(size)[1] - math.frexp(limit)[1] + 1)
    return (
        f"it is {given.dtype}, with values up to {size:.4g}, where its numbers are {apart:g} apart,"
        " and the weights are float32"
    )


def _labels_range(seen: Evidence) -> CheckOutcome:
    highest, classes = -1.0, 0
    for step, targets in _targets(seen):
        if targets.low is None or targets.high is None:
            continue
        low, high = float(targets.low), float(targets.high)
        if low < 0 or high >= targets.classes:
            return failed(
                f"labels from {low:g} to {high:g}, and logits of {targets.classes:,} classes",
                high,
                step,
            )
        highest, classes = max(highest, high), targets.classes
    failure = _out_of_vocabulary(seen)
    looked_up = {lookup.name for each in seen.run.vitals for lookup in each.lookups}
    if failure is None and not classes and not looked_up:
        return not_looked_at(
            "no cross entropy was seen in the graph of the loss, or all of its labels were ignored;"
            " nor an embedding"
        )
    words = (
        [f"labels were {highest:g} at most, and logits of {classes:,} classes"] if classes else []
    )
    words += (
        [f"the ids that {len(looked_up):,} embeddings were given have rows there"]
        if looked_up
        else []
    )
    return failure or passed("; ".join(words), highest if classes else None)


def _out_of_vocabulary(seen: Evidence) -> CheckOutcome | None:
    for each in seen.run.vitals:
        for name, size, low, high in each.lookups:
            if float(low) < 0 or float(high) >= size:
                return failed(
                    f"ids from {low:g} to {high:g}, and the embedding has {size:,} rows",
                    float(high),
                    each.step,
                    name,
                )
    rows = seen.setup.vocabulary if seen.setup is not None else None
    for each, given in _every(
        seen
    ):  # labels may be of another vocabulary: they are judged by their cross entropy
        if (
            rows is None
            or given.low is None
            or given.high is None
            or "input_ids" not in given.path
            or "float" in given.dtype
        ):
            continue
        low, high = float(given.low), float(given.high)
        if high >= rows or low < 0:
            measured = f"ids from {low:g} to {high:g}, and the embedding has {rows:,} rows"
            return failed(measured, high if high >= rows else low, each.step, _called(given))
    return None


def _labels_ignored(seen: Evidence) -> CheckOutcome:
    every = _targets(seen)
    emptied = [step for step, targets in every if targets.ignored >= 1]
    worst = max(targets.ignored for _, targets in every)
    if emptied:
        measured = f"all labels were ignored in {len(emptied):,} of {steps_in_log(len(every))}"
        losses = {point.step: point.value for point in seen.losses}
        bad = next(
            (step for step in emptied if not math.isfinite(losses.get(step, math.nan))), None
        )
        if bad is not None or len(emptied) > seen.limits["labels-ignored"] * len(every):
            return failed(measured, 1.0, emptied[0] if bad is None else bad)
        return passed(
            f"{measured}, whose losses were finite", worst
        )  # as of a sum that is divided by what there is in an update
    return passed(f"{worst:.1%} of the labels were ignored at most", worst)


def _shapes(seen: Evidence) -> CheckOutcome:
    late = _late(seen, lambda given: len(given.shape))
    if late is not None:
        each, given, before = late
        return warned(
            f"it had {before} axes, and then {len(given.shape)}: {list(given.shape)}",
            None,
            each.step,
            _called(given),
        )
    return passed(
        f"{len({given.path for _, given in _every(seen)}):,} inputs kept the number of their axes"
    )


def _digests(run: Analysis) -> list[tuple[int, str]]:
    """Of each step, one word for all that the model was given in it."""
    return [
        (each.step, " ".join(given.digest for given in each.given))
        for each in run.vitals
        if each.given
    ]


def _repeated(seen: Evidence) -> CheckOutcome:
    if seen.setup is not None and seen.setup.cycle == 1:
        return not_looked_at("the command uses the one input of the case in every step")
    digests = _digests(seen.run)
    twice = [
        step
        for (before, one), (step, other) in itertools.pairwise(digests)
        if one == other and before + 1 == step
    ]
    measured = (
        f"{len(twice):,} of {steps_in_log(len(digests))} had the same batch as the step before, by"
        " a sample of its values"
    )
    loaded = {each.step: each.loaded for each in seen.vitals if each.loaded is not None}
    if twice and loaded.keys().isdisjoint(twice):
        return not_looked_at(
            f"{measured}, and no DataLoader of torch's gave it: whether it is meant is not known"
        )
    anew = [step for step in twice if _is_begun_anew(loaded.get(step - 1), loaded.get(step))]
    if anew:
        batches = loaded[anew[0]].batches
        return warned(
            f"{measured}; its loader of {batches:,} batches was begun anew for {len(anew):,}",
            len(anew) / len(digests),
            anew[0],
        )
    return passed(
        f"{measured}; no loader of several batches was begun anew for it" if twice else measured,
        len(twice) / len(digests),
    )


def _is_begun_anew(before: LoadedBatch | None, now: LoadedBatch | None) -> bool:
    """Whether a loader that has more than one batch was begun between two steps."""
    return (
        before is not None
        and now is not None
        and before.number == now.number
        and now.begun > before.begun
        and now.batches != 1
    )


def _order(seen: Evidence) -> CheckOutcome:
    if seen.setup is not None and seen.setup.cycle:
        return not_looked_at(
            f"the command uses the {seen.setup.cycle:,} inputs of the case again and again"
        )
    digests = _digests(seen.run)
    first: dict[str, int] = {}
    periods = []
    for number, (_, word) in enumerate(digests):
        if word in first:
            periods.append(number - first[word])
        first[word] = number
    running = [period for period in periods if period > 1]
    if not running:
        return passed(f"no batch of {len(digests):,} came again after others", 0.0)
    usual = max(set(running), key=running.count)
    share = running.count(usual) / (len(digests) - usual)
    measured = (
        f"{share:.0%} of the batches from the second epoch on came {usual:,} steps after the same"
        " batch before"
    )
    if all(each.loaded is None for each in seen.vitals):
        return not_looked_at(
            f"{measured}, and no DataLoader of torch's gave them: whether it is meant is not known"
        )
    if not any(each.loaded is not None and each.loaded.shuffles for each in seen.vitals):
        return passed(
            f"{measured}; no loader was asked to shuffle", share
        )  # a text, and a series, are read in their order
    measured += ", from a loader that was asked for another order in each epoch"
    if share > seen.limits["order-repeated"] and running.count(usual) >= 3:
        return warned(measured, share, digests[usual][0])
    return passed(measured, share)


def _padding(seen: Evidence) -> CheckOutcome:
    looks = [(each.step, given) for each, given in _every(seen) if given.padding_rows is not None]
    if not looks:
        return not_looked_at("the model was given no attention_mask of rows")
    step, given = max(looks, key=lambda pair: pair[1].padding_rows or 0.0)
    share = given.padding_rows or 0.0
    measured = (
        f"the mask leaves nothing of {share:.0%} of the rows at most, in {len(looks):,} looks"
    )
    return (
        warned(measured, share, step, _called(given))
        if share > seen.limits["padding-rows"]
        else passed(measured, share)
    )


def _mask(seen: Evidence) -> CheckOutcome:
    looks = [
        (each.step, given) for each, given in _every(seen) if given.unmasked_padding is not None
    ]
    if not looks:
        return not_looked_at(
            "no input_ids with an attention_mask were given, or the id of padding is not known"
        )
    step, given = max(
        looks, key=lambda pair: max(pair[1].unmasked_padding or 0.0, pair[1].masked_content or 0.0)
    )
    kept, hidden = given.unmasked_padding or 0.0, given.masked_content or 0.0
    measured = (
        f"{kept:.1%} of what the mask keeps is padding, and {hidden:.1%} of what it hides is none"
    )
    if max(kept, hidden) > seen.limits["mask-padding"]:
        return warned(measured, max(kept, hidden), step, _called(given))
    return passed(measured, max(kept, hidden))


def _tokenizer(seen: Evidence) -> CheckOutcome:
    earlier = seen.run.earlier
    assert earlier is not None
    if seen.setup is None or not earlier.setups:
        return not_looked_at("one of the two runs has no setup")
    if _names(seen.run) != _names(earlier):
        return not_looked_at("the run before in the log was of another model")
    mine, theirs = seen.setup, earlier.setups[-1]
    facts: list[tuple[str, object, object]] = [
        ("padding id", theirs.pad, mine.pad),
        ("vocabulary", theirs.vocabulary, mine.vocabulary),
    ]
    facts += [
        (f"{name} id", theirs.tokens.get(name), mine.tokens.get(name))
        for name in dict.fromkeys([*theirs.tokens, *mine.tokens])
    ]
    facts.append(("side of padding", _side(earlier), _side(seen.run)))
    facts.append(("first token", _first_token(earlier), _first_token(seen.run)))
    for name, before, now in facts:
        if before is not None and now is not None and before != now:
            return warned(f"{name}: {before} in the run before, {now} in this one", place=name)
    known = [f"{name} {now}" for name, _, now in facts if now is not None]
    return (
        passed(f"the same as in the run before: {', '.join(known)}")
        if known
        else not_looked_at("the model is given no ids of tokens")
    )


def _names(run: Analysis) -> list[str]:
    return [run.start.model, *(each.name for each in run.setups[-1].parameters)]


def _first_token(run: Analysis) -> str | None:
    """The id that every text begins with, or that they begin with several; ``None`` if the model is
    given no ids of tokens.
    """
    found = [given.first for each in run.vitals for given in each.given if given.first]
    if not found:
        return None
    low, high = min(float(first[0]) for first in found), max(float(first[1]) for first in found)
    return f"{low:g}" if low == high else "not always the same"


def _side(run: Analysis) -> str | None:
    sides = {
        given.pads_left
        for each in run.vitals
        for given in each.given
        if given.pads_left is not None
    }
    return None if len(sides) != 1 else "left" if sides.pop() else "right"


def _two_ranks(seen: Evidence) -> CheckOutcome:
    if any(set(run.start.coordinates) - _BATCHES_DIFFER for run in seen.ranks):
        return not_looked_at(
            "ranks that split a model are given the same batch; which of them are replicas is not"
            " looked at"
        )
    steps = {each.step for run in seen.ranks for each in run.vitals if each.given}
    same = same_batches(seen.ranks)
    if same:
        step, one, other = min(same)
        count = len({step for step, *_ in same})
        return warned(
            f"ranks {one} and {other} had the same batch, in {count:,} of"
            f" {steps_in_log(len(steps))}",
            count / len(steps),
            step,
        )
    return passed(
        f"no two of {len(seen.ranks)} ranks had the same batch in {steps_in_log(len(steps))}", 0.0
    )


def same_batches(runs: Iterable[Analysis]) -> list[tuple[int, int, int]]:
    """The steps in which two ranks had the same batch, with these ranks; none of ranks that split a
    model.
    """
    held: dict[tuple[int, str], int] = {}
    same = []
    for run in runs:
        if set(run.start.coordinates) - _BATCHES_DIFFER:
            return []
        for step, word in _digests(run):
            other = held.setdefault((step, word), run.start.rank)
            if other != run.start.rank:
                same.append((step, other, run.start.rank))
    return same


_GIVEN = (Need.VITALS, Need.GIVEN)
_ISSUE = "issue 15"
DATA = (
    Check(
        "input-finite",
        Layer.DATA,
        "NaN and Inf in what the model is given",
        "clean the data: look at this step's batch, and at divisions and logarithms before the"
        " model",
        _input_finite,
        needs=(Need.BEGUN, Need.GIVEN),
        why="one NaN in a batch is a NaN in every weight after the next update",
    ),
    Check(
        "input-range",
        Layer.DATA,
        "the magnitude of floating inputs and of what the first module makes of them, and bytes"
        " that come to the first layer as they are",
        "normalise the inputs: mean 0, standard deviation 1",
        _input_range,
        (Threshold("input-range", 1e4, "magnitude", _ISSUE),),
        needs=_GIVEN,
        why="large inputs saturate activations, and overflow in half types",
    ),
    Check(
        "input-constant",
        Layer.DATA,
        "features that are the same in all samples of a batch",
        "check the loader: the same sample stacked, a feature that is never filled, an augmentation"
        " that blanks",
        _input_constant,
        (
            Threshold(
                "constant-features",
                1.0,
                "share of features, from it on, of every floating input in every look",
                "all of them",
            ),
        ),
        needs=_GIVEN,
        why="a stacked sample is a batch of one",
    ),
    Check(
        "input-type",
        Layer.DATA,
        "inputs of a type that they had in none of the first ten steps, and large values in a half"
        " type beside weights in float32",
        "cast inputs and labels where they are loaded, all in the same way",
        _type_changed,
        needs=_GIVEN,
        why="another type computes other numbers, and nobody says so",
    ),
    Check(
        "labels-range",
        Layer.DATA,
        "labels and ids beyond the width of the logits or the embedding, also in the step that an"
        " error ends",
        "check the number of classes and the vocabulary against the tokenizer's; resize the"
        " embedding",
        _labels_range,
        needs=(Need.BEGUN,),
        why=(
            "a GPU stops with an assertion that names nothing; an NPU may read memory that is not"
            " the logits'"
        ),
    ),
    Check(
        "labels-ignored",
        Layer.DATA,
        "labels that the loss ignores altogether",
        "check how labels are masked: a batch whose labels are all ignored has a loss of 0/0",
        _labels_ignored,
        (
            Threshold(
                "labels-ignored",
                0.5,
                "share of steps without any label, if their losses are finite",
                "most of them",
            ),
        ),
        needs=(Need.VITALS, Need.TARGETS),
        why="the mean over no labels is 0/0",
    ),
    Check(
        "input-shape",
        Layer.DATA,
        "inputs whose number of axes is one that they had in none of the first ten steps",
        "check the collate function: a last batch of one sample that is squeezed",
        _shapes,
        needs=_GIVEN,
        why="broadcasting hides it: the loss is then of every sample with every other",
    ),
    Check(
        "batch-repeated",
        Layer.DATA,
        "one batch given in two steps running, for which a loader of several batches was begun"
        " anew",
        "check that the loader's iterator is made once an epoch, not once a step",
        _repeated,
        needs=_GIVEN,
        why="the model learns one batch by heart, and the loss looks well",
    ),
    Check(
        "order-repeated",
        Layer.DATA,
        "batches that come again in the order of the epoch before, from a loader that was asked to"
        " shuffle",
        "call sampler.set_epoch(epoch) before each epoch; do not seed the loader's generator anew",
        _order,
        (
            Threshold(
                "order-repeated",
                0.5,
                "share of the batches behind the first epoch",
                "sound runs pass",
            ),
        ),
        needs=_GIVEN,
        why=(
            "without shuffling, gradients of neighbours are correlated; a sampler without set_epoch"
            " repeats one order"
        ),
    ),
    Check(
        "batch-on-two-ranks",
        Layer.DATA,
        "one batch given to two ranks",
        "give each rank its part: DistributedSampler with its rank and the number of ranks",
        _two_ranks,
        across=True,
        needs=(Need.RANKS, *_GIVEN),
        why="two ranks that compute the same are one rank",
    ),
    Check(
        "padding-rows",
        Layer.DATA,
        "rows that are all padding",
        "leave empty samples out before they are batched",
        _padding,
        (Threshold("padding-rows", 0.0, "share of rows of any batch", "none is meant"),),
        needs=_GIVEN,
        why="attention over nothing is 0/0, or an average over padding",
    ),
    Check(
        "mask-padding",
        Layer.DATA,
        "whether the attention mask hides the padding at the ends of rows, and padding alone",
        "make the mask of the ids: attention_mask = ids != pad; check on which side the tokenizer"
        " pads",
        _mask,
        (
            Threshold(
                "mask-padding",
                0.1,
                "share of tokens; the id may also end texts",
                "sound runs pass",
            ),
        ),
        needs=_GIVEN,
        why="what is attended to is noise, and what is hidden is lost",
    ),
    Check(
        "tokenizer",
        Layer.DATA,
        "ids of padding, begin and end, side of padding, vocabulary and first token against those"
        " of the run before in the log",
        "load the tokenizer that the weights were trained with",
        _tokenizer,
        needs=(Need.VITALS, Need.EARLIER),
        why="a model that was trained with right padding answers otherwise with left",
    ),
)
