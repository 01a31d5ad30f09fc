"""The checklist's layer *data*: the model's inputs, and the loss's."""

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
    failed,
    not_looked_at,
    of_layer,
    passed,
    warned,
    warned_if,
)
from accucompare.findings.log import Given, LoadedBatch, Targets, Vitals, WatchRemark, remark

_MASKS = re.compile(r"mask|bias", re.IGNORECASE)
#: How many steps show the ways in which a model is called.
_FIRST = 10
#: Axes of parallelism whose ranks hold replicas of the model, or parts that are gathered for each
#: call: each rank has a batch of its own there.
_BATCHES_DIFFER = {"dp", "data", "dp_replicate", "replicate", "dp_shard", "fsdp"}


#: Fewest looks before something is said of all of them.
_LOOKS = 3
#: The largest value of a byte, of which images are made.
_BYTE = 255


def _every(seen: Evidence) -> Iterator[tuple[Vitals, Given]]:
    """The model's inputs, also in a step that an error ended: perhaps by them."""
    return ((each, given) for each in seen.run.vitals for given in each.given)


def _targets(seen: Evidence) -> list[tuple[int, Targets]]:
    """Each step's targets, also in a step that an error ended."""
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
        return passed(remark("inputs-finite", count=count))
    step, given = bad
    # a model may fill the gaps of a table itself
    if not seen.run.findings and not seen.run.unexplained:
        return passed(
            remark("input-held-and-harmless", input=_called(given), low=given.low, high=given.high)
        )
    return failed(remark("values", low=given.low, high=given.high), None, step, _called(given))


def _input_range(seen: Evidence) -> CheckOutcome:
    largest, worst, floating = 0.0, None, False
    for each, given in _every(seen):
        if given.low is None or given.high is None or "float" not in given.dtype:
            continue
        floating = True
        size = max(abs(float(given.low)) if not _is_mask(given) else 0.0, abs(float(given.high)))
        if math.isfinite(size) and size > largest:
            largest, worst = size, (each.step, _called(given))
    measured = remark("inputs-at-most", size=largest)
    if worst is not None and largest > seen.limits["input-range"]:
        looks = [each.outputs for each in seen.vitals if each.outputs]
        # the first one called: one that normalises makes them small
        name = next(iter(looks[0])) if looks else ""
        size = max(
            (abs(float(number)) for each in looks for number in each.get(name, ())),
            default=math.inf,
        )
        if size <= seen.limits["input-range"]:
            return passed(remark("made-small", measured=measured, module=name, size=size), largest)
        return warned(
            remark("made-large", measured=measured, module=name, size=size) if name else measured,
            largest,
            *worst,
        )
    entered = [(each.step, *each.entered) for each in seen.vitals if each.entered is not None]
    lows, highs = [float(low) for *_, low, _ in entered], [float(high) for *_, high in entered]
    if len(entered) >= _LOOKS and min(lows) == 0 and max(highs) == _BYTE:
        step, name, *_ = entered[0]
        return warned(remark("bytes-as-they-are", looks=len(entered)), 255.0, step, name)
    return passed(measured, largest) if floating else not_looked_at(remark("no-floating-input"))


def _is_mask(given: Given) -> bool:
    """Whether it may be an additive mask: 0, and elsewhere -Inf or a type's lowest number."""
    return bool(_MASKS.search(given.path)) or (given.high is not None and float(given.high) == 0)


def _input_constant(seen: Evidence) -> CheckOutcome:
    looks: dict[str, list[tuple[int, float]]] = {}
    for each, given in _every(seen):
        # masks, and states that begin with 0
        if given.constant is not None and not _is_mask(given) and given.low != given.high:
            looks.setdefault(_called(given), []).append((each.step, given.constant))
    if not looks:
        return not_looked_at(remark("no-samples"))
    least = {name: min(share for _, share in series) for name, series in looks.items()}
    name, share = min(least.items(), key=operator.itemgetter(1))
    series = looks[name]
    measured = remark("features-constant", share=share, looks=len(series))
    if share >= seen.limits["constant-features"]:
        return warned(measured, share, series[0][0], name)
    return passed(remark("of-input", input=name, measured=measured), share)


def _type_changed(seen: Evidence) -> CheckOutcome:
    late = _late(seen, lambda given: given.dtype)
    if late is not None:
        each, given, before = late
        return warned(
            remark("type-changed", before=before, after=given.dtype),
            None,
            each.step,
            _called(given),
        )
    for each, given in _every(seen):
        if (found := _rounded(seen, given)) is not None:
            return warned(found, None, each.step, _called(given))
    return passed(remark("types-kept", inputs=len({given.path for _, given in _every(seen)})))


def _late(seen: Evidence, form: Callable[[Given], object]) -> tuple[Vitals, Given, object] | None:
    """The first input of a form that no first step had, with the earlier form.

    A model may be called in several ways, as with real and generated images, but then from the
    beginning."""
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


def _rounded(seen: Evidence, given: Given) -> WatchRemark | None:
    """How coarse an input in a half type is, unless it holds whole numbers or a weight is half,
    too."""
    limit = _WHOLE.get(given.dtype, math.inf)
    if given.low is None or given.high is None or _is_mask(given) or not seen.run.setups:
        return None
    size = max(abs(float(given.low)), abs(float(given.high)))
    if not limit < size < math.inf or any(each.dtype in _WHOLE for each in seen.setup.parameters):
        return None
    apart = 2.0 ** (math.frexp(size)[1] - math.frexp(limit)[1] + 1)
    return remark("coarse", dtype=given.dtype, size=size, apart=apart)


def _labels_range(seen: Evidence) -> CheckOutcome:
    highest, classes = -1.0, 0
    for step, targets in _targets(seen):
        if targets.low is None or targets.high is None:
            continue
        low, high = float(targets.low), float(targets.high)
        if low < 0 or high >= targets.classes:
            return failed(
                remark("labels-beyond", low=low, high=high, classes=targets.classes), high, step
            )
        highest, classes = max(highest, high), targets.classes
    failure = _out_of_vocabulary(seen)
    looked_up = {lookup.name for each in seen.run.vitals for lookup in each.lookups}
    if failure is None and not classes and not looked_up:
        return not_looked_at(remark("no-labels-no-embedding"))
    words = [remark("labels-at-most", high=highest, classes=classes)] if classes else []
    words += [remark("ids-have-rows", embeddings=len(looked_up))] if looked_up else []
    return failure or passed(remark("several", parts=words), highest if classes else None)


def _out_of_vocabulary(seen: Evidence) -> CheckOutcome | None:
    for each in seen.run.vitals:
        for name, size, low, high in each.lookups:
            if float(low) < 0 or float(high) >= size:
                return failed(
                    remark("ids-beyond", low=low, high=high, rows=size),
                    float(high),
                    each.step,
                    name,
                )
    rows = seen.setup.vocabulary
    # labels may be of another vocabulary: their cross entropy judges them
    for each, given in _every(seen):
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
            measured = remark("ids-beyond", low=low, high=high, rows=rows)
            return failed(measured, high if high >= rows else low, each.step, _called(given))
    return None


def _labels_ignored(seen: Evidence) -> CheckOutcome:
    every = _targets(seen)
    emptied = [step for step, targets in every if targets.ignored >= 1]
    worst = max(targets.ignored for _, targets in every)
    if emptied:
        measured = remark("all-labels-ignored", emptied=len(emptied), steps=len(every))
        losses = {point.step: point.value for point in seen.losses}
        bad = next(
            (step for step in emptied if not math.isfinite(losses.get(step, math.nan))), None
        )
        if bad is not None or len(emptied) > seen.limits["labels-ignored"] * len(every):
            return failed(measured, 1.0, emptied[0] if bad is None else bad)
        # a sum may be divided by the count of a whole update
        return passed(remark("ignored-and-finite", measured=measured), worst)
    return passed(remark("labels-ignored", share=worst), worst)


def _shapes(seen: Evidence) -> CheckOutcome:
    late = _late(seen, lambda given: len(given.shape))
    if late is not None:
        each, given, before = late
        return warned(
            remark("axes-changed", before=before, after=len(given.shape), shape=list(given.shape)),
            None,
            each.step,
            _called(given),
        )
    return passed(remark("axes-kept", inputs=len({given.path for _, given in _every(seen)})))


def _digests(run: Analysis) -> list[tuple[int, str]]:
    """Each step's inputs as one word."""
    return [
        (each.step, " ".join(given.digest for given in each.given))
        for each in run.vitals
        if each.given
    ]


def _repeated(seen: Evidence) -> CheckOutcome:
    if seen.setup.cycle == 1:
        return not_looked_at(remark("one-input-again"))
    digests = _digests(seen.run)
    twice = [
        step
        for (before, one), (step, other) in itertools.pairwise(digests)
        if one == other and before + 1 == step
    ]
    measured = remark("same-batch", twice=len(twice), steps=len(digests))
    loaded = {each.step: each.loaded for each in seen.vitals if each.loaded is not None}
    if twice and loaded.keys().isdisjoint(twice):
        return not_looked_at(remark("same-batch-of-no-loader", measured=measured))
    anew = [step for step in twice if _is_begun_anew(loaded.get(step - 1), loaded.get(step))]
    if anew:
        batches = loaded[anew[0]].batches
        return warned(
            remark("loader-begun-anew", measured=measured, batches=batches, anew=len(anew)),
            len(anew) / len(digests),
            anew[0],
        )
    return passed(
        remark("loader-not-begun-anew", measured=measured) if twice else measured,
        len(twice) / len(digests),
    )


def _is_begun_anew(before: LoadedBatch | None, now: LoadedBatch | None) -> bool:
    """Whether a loader with more than one batch was begun between two steps."""
    return (
        before is not None
        and now is not None
        and before.number == now.number
        and now.begun > before.begun
        and now.batches != 1
    )


def _order(seen: Evidence) -> CheckOutcome:
    if seen.setup.cycle:
        return not_looked_at(remark("inputs-again", inputs=seen.setup.cycle))
    digests = _digests(seen.run)
    first: dict[str, int] = {}
    periods = []
    for number, (_, word) in enumerate(digests):
        if word in first:
            periods.append(number - first[word])
        first[word] = number
    running = [period for period in periods if period > 1]
    if not running:
        return passed(remark("no-batch-again", batches=len(digests)), 0.0)
    usual = max(set(running), key=running.count)
    share = running.count(usual) / (len(digests) - usual)
    measured = remark("batches-in-order", share=share, period=usual)
    if all(each.loaded is None for each in seen.vitals):
        return not_looked_at(remark("order-of-no-loader", measured=measured))
    if not any(each.loaded is not None and each.loaded.shuffles for each in seen.vitals):
        # a text or a series is read in its order
        return passed(remark("order-not-shuffled", measured=measured), share)
    measured = remark("order-of-shuffling-loader", measured=measured)
    return warned_if(
        share > seen.limits["order-repeated"] and running.count(usual) >= 3,
        measured,
        share,
        digests[usual][0],
    )


def _padding(seen: Evidence) -> CheckOutcome:
    looks = [(each.step, given) for each, given in _every(seen) if given.padding_rows is not None]
    if not looks:
        return not_looked_at(remark("no-mask"))
    step, given = max(looks, key=lambda pair: pair[1].padding_rows or 0.0)
    share = given.padding_rows or 0.0
    measured = remark("rows-of-padding", share=share, looks=len(looks))
    return warned_if(share > seen.limits["padding-rows"], measured, share, step, _called(given))


def _mask(seen: Evidence) -> CheckOutcome:
    looks = [
        (each.step, given) for each, given in _every(seen) if given.unmasked_padding is not None
    ]
    if not looks:
        return not_looked_at(remark("no-ids-with-mask"))
    step, given = max(
        looks, key=lambda pair: max(pair[1].unmasked_padding or 0.0, pair[1].masked_content or 0.0)
    )
    kept, hidden = given.unmasked_padding or 0.0, given.masked_content or 0.0
    measured = remark("mask-and-padding", kept=kept, hidden=hidden)
    return warned_if(
        max(kept, hidden) > seen.limits["mask-padding"],
        measured,
        max(kept, hidden),
        step,
        _called(given),
    )


def _tokenizer(seen: Evidence) -> CheckOutcome:
    earlier = seen.run.earlier
    assert earlier is not None
    if not seen.run.setups or not earlier.setups:
        return not_looked_at(remark("no-setup"))
    if _names(seen.run) != _names(earlier):
        return not_looked_at(remark("other-model"))
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
            return warned(remark("tokens-differ", what=name, before=before, now=now), place=name)
    known = [(name, now) for name, _, now in facts if now is not None]
    return passed(remark("tokens-alike", known=known)) if known else not_looked_at(remark("no-ids"))


def _names(run: Analysis) -> list[str]:
    return [run.start.model, *(each.name for each in run.setups[-1].parameters)]


def _first_token(run: Analysis) -> str | WatchRemark | None:
    """The id that every text begins with, or a remark on several; ``None`` without token ids."""
    found = [given.first for each in run.vitals for given in each.given if given.first]
    if not found:
        return None
    low, high = min(float(first[0]) for first in found), max(float(first[1]) for first in found)
    return f"{low:g}" if low == high else remark("not-always-the-same")


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
        return not_looked_at(remark("ranks-split-a-model"))
    steps = {each.step for run in seen.ranks for each in run.vitals if each.given}
    same = same_batches(seen.ranks)
    if same:
        step, one, other = min(same)
        count = len({step for step, *_ in same})
        return warned(
            remark("one-batch-on-two-ranks", one=one, other=other, count=count, steps=len(steps)),
            count / len(steps),
            step,
        )
    return passed(remark("batches-differ", ranks=len(seen.ranks), steps=len(steps)), 0.0)


def same_batches(runs: Iterable[Analysis]) -> list[tuple[int, int, int]]:
    """The steps in which two ranks had the same batch, with these ranks; none of a split model."""
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


_GIVEN = (Need.VITALS, Need.CALLED, Need.GIVEN)
DATA = of_layer(
    Layer.DATA,
    Check("input-finite", _input_finite, needs=(Need.BEGUN, Need.CALLED, Need.GIVEN)),
    Check("input-range", _input_range, {"input-range": 1e4}, needs=_GIVEN),
    Check("input-constant", _input_constant, {"constant-features": 1.0}, needs=_GIVEN),
    Check("input-type", _type_changed, needs=_GIVEN),
    Check("labels-range", _labels_range, needs=(Need.BEGUN,)),
    Check(
        "labels-ignored",
        _labels_ignored,
        {"labels-ignored": 0.5},
        needs=(Need.VITALS, Need.TARGETS),
    ),
    Check("input-shape", _shapes, needs=_GIVEN),
    Check("batch-repeated", _repeated, needs=_GIVEN),
    Check("order-repeated", _order, {"order-repeated": 0.5}, needs=_GIVEN),
    Check("batch-on-two-ranks", _two_ranks, across=True, needs=(Need.RANKS, *_GIVEN)),
    Check("padding-rows", _padding, {"padding-rows": 0.0}, needs=_GIVEN),
    Check("mask-padding", _mask, {"mask-padding": 0.1}, needs=_GIVEN),
    Check("tokenizer", _tokenizer, needs=(Need.VITALS, Need.EARLIER)),
)
