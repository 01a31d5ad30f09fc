"""Records and modules of one side only, because the other did not run, record or call them."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from accucompare.bundle.format import (
    BUFFER_ROLES,
    GROUP_OF,
    NODE_ROLES,
    TRAINING_ROLES,
    UPDATE_ROLES,
    WAYS_OF_UPDATING,
    Options,
    Record,
    Role,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare import remarks
from accucompare.compare.pairing import Pair, of_dumps
from accucompare.compare.remarks import BareRemark, NotOnSide, OneSideWhy, PairRemark
from accucompare.compare.rows.outcomes import PairOutcome
from accucompare.compare.rows.rows import Reason, Row, Verdict
from accucompare.compare.rows.written_values import buffer_of
from accucompare.selection import Selection, Steps

#: What FSDP1 calls a tensor of all parameters of a module.
_FLAT = "_flat_param"


def explained(golden: Bundle, candidate: Bundle, pairs: Sequence[Pair]) -> dict[int, PairOutcome]:
    """The outcomes of unpaired records that the other side had no reason to record.

    By the pair's place among the pairs; unexplained records have none."""
    steps = (
        {(rank, entry.step) for rank, entry in candidate.steps()}
        if candidate.manifest.fed
        else None
    )
    untrained = _untrained(golden, candidate)
    classes = _other_classes(golden, candidate)
    dumps = of_dumps(golden, candidate, pairs)
    options = golden.manifest.options, candidate.manifest.options
    cast = _cast(pairs)
    taking = _taking(golden, candidate, pairs)
    unfed = {
        (rank, each.step, each.name, each.call, each.role, each.path)
        for rank, manifest in candidate.manifests.items()
        for each in (() if manifest.feed is None else manifest.feed.not_fed)
    }
    flat = _flattened(pairs)
    found: dict[int, PairOutcome] = {}
    for place, pair in enumerate(pairs):
        if pair.golden is not None and pair.candidate is not None:
            continue
        why = (
            not_asked(pair, *options)
            or dumps.get(place)
            or _not_looked(pair, golden, candidate)
            or _held_before(pair, golden, candidate)
            or _kept_nothing(pair, golden, candidate)
            or _written_into_copy(pair, cast)
            or _other_state(pair, classes)
            or _no_call_grad(pair, golden, candidate)
            or _of_flat(pair, flat)
            or _not_left(pair, taking)
            or _no_gradient(pair)
            or _passes_by(pair, unfed)
            or _not_trained(pair.record, untrained, any(each.backward for each in options))
            or _not_run(pair, steps)
        )
        if why is not None:
            found[place] = PairOutcome(None, Verdict(Reason.NOT_COMPARABLE, remarks=(why,)))
    return found


def _not_run(pair: Pair, steps: Collection[tuple[int, int]] | None) -> PairRemark | None:
    """Why a fed candidate lacks a record of ``steps`` that it ran; ``None`` if it should not."""
    record = pair.golden
    if steps is None or record is None or (record.rank, record.step) in steps:
        return None
    return BareRemark.STEP_NOT_FED


def _held_before(pair: Pair, golden: Bundle, candidate: Bundle) -> PairRemark | None:
    """Why a side writes nothing into an attribute: it held a tensor before its first step, and the
    other did not. A model that ran before has its masks and tables."""
    if pair.record.role not in BUFFER_ROLES:
        return None
    name, lacks_golden = buffer_of(pair.record), pair.golden is None
    side, other = (candidate, golden) if lacks_golden else (golden, candidate)
    held = [each.manifest.options.left for each in (side, other)]
    if held[0] is None or held[1] is None or name in held[0].held or name not in held[1].held:
        return None
    same = held[1].held[name] == f"{pair.record.dtype} {pair.record.digest}"
    return NotOnSide(OneSideWhy.HELD_SAME if same else OneSideWhy.HELD_OTHER, lacks_golden)


def _kept_nothing(pair: Pair, golden: Bundle, candidate: Bundle) -> PairRemark | None:
    """Why a side has no record of a tensor in an attribute that is no buffer."""
    if pair.record.role not in BUFFER_ROLES:
        return None
    name, lacks_golden = buffer_of(pair.record), pair.golden is None
    side, other = (candidate, golden) if lacks_golden else (golden, candidate)
    kept = other.manifest.options.kept
    if kept is None or name in kept or name not in (side.manifest.options.kept or ()):
        return None
    return NotOnSide(OneSideWhy.KEPT_NOTHING, lacks_golden)


def _not_looked(pair: Pair, golden: Bundle, candidate: Bundle) -> PairRemark | None:
    """Why a side has no record of what the other's last step left behind, if there was any."""
    lacks_golden, step = pair.golden is None, pair.record.step
    side, other = (candidate, golden) if lacks_golden else (golden, candidate)
    looked = {other.manifest.options.closing, *(entry.step for entry in other.manifest.steps)}
    if side.manifest.options.closing != step or step in looked:
        return None
    return NotOnSide(OneSideWhy.RAN_ON, lacks_golden)


def _cast(pairs: Sequence[Pair]) -> set[tuple[int, int, str, int, str]]:
    """The arguments of calls that have another type on each side, if some are written into."""
    if not any(pair.record.role is Role.ARGUMENT_UPDATE for pair in pairs):
        return set()
    return {
        _argument(pair.record)
        for pair in pairs
        if pair.record.role is Role.INPUT
        and pair.golden is not None
        and pair.candidate is not None
        and pair.golden.dtype != pair.candidate.dtype
    }


def _argument(record: Record) -> tuple[int, int, str, int, str]:
    return record.rank, record.step, record.name, record.call, record.path


def _written_into_copy(
    pair: Pair, cast: Collection[tuple[int, int, str, int, str]]
) -> PairRemark | None:
    """Why a side's argument is not written into, as in ``scores.float().masked_fill_(mask, -1)``:
    of float32 that is the argument itself, of any other type a copy."""
    if pair.record.role is not Role.ARGUMENT_UPDATE or _argument(pair.record) not in cast:
        return None
    return NotOnSide(OneSideWhy.CAST, golden=pair.golden is None)


def _no_call_grad(pair: Pair, golden: Bundle, candidate: Bundle) -> PairRemark | None:
    """Why a side has no gradients of single calls, as under FSDP's flat parameters."""
    lacks_golden = pair.golden is None
    other = golden if lacks_golden else candidate
    if pair.record.role is not Role.CALL_GRAD or other.manifest.options.call_grads:
        return None
    return NotOnSide(OneSideWhy.FLAT_PARAMETERS, lacks_golden)


def _flattened(pairs: Sequence[Pair]) -> bool | None:
    """Whether golden, or else the candidate, alone has FSDP1's flat tensors as its parameters;
    ``None`` if neither has."""
    sides = {
        pair.golden is not None
        for pair in pairs
        if pair.record.role is Role.PARAM_BEFORE and pair.record.path == _FLAT
    }
    return sides.pop() if len(sides) == 1 else None


def _of_flat(pair: Pair, golden: bool | None) -> PairRemark | None:
    """Why parameters of one side have no partner, if those of one are flat tensors."""
    if golden is None or pair.record.role not in (*UPDATE_ROLES, Role.CALL_GRAD):
        return None
    return NotOnSide(OneSideWhy.IN_FLAT, pair.golden is None)


def _taking(
    golden: Bundle, candidate: Bundle, pairs: Sequence[Pair]
) -> tuple[set[int] | None, set[int] | None]:
    """The steps in which golden, and the candidate, have gradients of parameters, if it records
    only those that an update takes."""
    records = [pair for pair in pairs if pair.record.role is Role.PARAM_GRAD]
    golden_steps = {pair.golden.step for pair in records if pair.golden is not None}
    steps = {pair.candidate.step for pair in records if pair.candidate is not None}
    return (
        None if golden.manifest.options.left_grads else golden_steps,
        None if candidate.manifest.options.left_grads else steps,
    )


def _not_left(pair: Pair, taking: tuple[set[int] | None, set[int] | None]) -> PairRemark | None:
    """Why a side has no gradients of parameters in a step without an update."""
    lacks_golden = pair.golden is None
    steps = taking[0 if lacks_golden else 1]
    if pair.record.role is not Role.PARAM_GRAD or steps is None or pair.record.step in steps:
        return None
    return NotOnSide(OneSideWhy.NO_UPDATE, lacks_golden)


def _untrained(golden: Bundle, candidate: Bundle) -> PairRemark | None:
    """The side captured without gradients, on request or without a backward, if any."""
    if not golden.manifest.options.backward:
        return NotOnSide(OneSideWhy.WITHOUT_GRADIENTS, golden=True)
    if candidate.manifest.options.no_backward is False:  # an older bundle does not say
        return None
    return NotOnSide(OneSideWhy.WITHOUT_GRADIENTS, golden=False)


def _not_trained(record: Record, untrained: PairRemark | None, trains: bool) -> PairRemark | None:
    """Why a side captured without gradients has no record of a backward, an update, or a change
    beside updates if the other side ``trains``."""
    if record.role is Role.PARAM_CHANGED and not trains:
        return None
    return untrained if record.role in (*TRAINING_ROLES, *NODE_ROLES) else None


def _no_gradient(pair: Pair) -> PairRemark | None:
    """Why one side lacks a part of an input's gradient that is zero everywhere on the other.

    The two are the same: autograd adds nothing. A module that works in place on a part of a tensor
    gives zeros for what it overwrote, and none if the part was a tensor of its own, as when fed."""
    found = pair.record.statistics
    if (
        pair.record.role is not Role.GRAD_INPUT
        or found is None
        or found.nan
        or found.inf
        or (found.min, found.max) != (0, 0)
    ):
        return None
    return NotOnSide(OneSideWhy.ADDS_NO_ZEROS, golden=pair.golden is None)


def _passes_by(
    pair: Pair, unfed: Collection[tuple[int, int, str, int, str, str]]
) -> PairRemark | None:
    """Why a fed call has no gradient of its input: the capture says where it is not fed."""
    key = pair.record.key
    place = key.rank, key.step, key.name, key.call, key.role.value, key.path
    if pair.candidate is not None or key.role is not Role.GRAD_INPUT or place not in unfed:
        return None
    return NotOnSide(OneSideWhy.PASSES_BY, golden=False)


def _other_state(pair: Pair, classes: tuple[str, str] | None) -> PairRemark | None:
    """Why one side lacks optimizer state: another class, or a setting (``AdamW.0.foreach``)."""
    record = pair.record
    if classes is not None and record.role in (Role.STATE_BEFORE, Role.STATE_AFTER):
        return remarks.OtherOptimizerState(*classes)
    if (
        not record.name
        and record.role is Role.STATE_BEFORE
        and record.path.rpartition(".")[2] in WAYS_OF_UPDATING
    ):
        return BareRemark.WAY_OF_UPDATING
    return None


def _other_classes(golden: Bundle, candidate: Bundle) -> tuple[str, str] | None:
    """The names of the two optimizers' classes, if they differ."""
    ours, theirs = (
        (bundle.manifest.options.optimizer or "").partition(" of ")[0].rpartition(".")[2]
        for bundle in (golden, candidate)
    )
    return (ours, theirs) if ours and theirs and ours != theirs else None


def never_called(golden: Bundle, candidate: Bundle, selection: Selection) -> list[Row]:
    """A row for each registered module that at least one side did not call."""
    sides = [bundle.manifest.model for bundle in (golden, candidate)]
    idle = [set(side.get("not_called") or ()) for side in sides]
    modules = [side.get("modules") or {} for side in sides]
    rows = []
    for name in [*modules[0], *(name for name in modules[1] if name not in modules[0])]:
        on_sides = [name in names for names in idle]
        if any(on_sides) and selection.allows(name):
            remark = remarks.NeverCalled(modules[0].get(name) or modules[1].get(name), *on_sides)
            rows.append(Row(None, None, Verdict(Reason.NOT_CALLED, remarks=(remark,)), module=name))
    return rows


def not_asked(pair: Pair, golden: Options, candidate: Options) -> remarks.NotAsked | None:
    """Why a side was not asked for an unpaired record (``--roles``, ``--steps``), if so."""
    record, group = pair.record, GROUP_OF.get(pair.record.role)
    asked = golden if pair.golden is None else candidate
    if asked.roles is not None and group is not None and group not in asked.roles:
        return remarks.NotAsked(pair.golden is None, "--roles", ",".join(asked.roles))
    if asked.chosen_steps is not None and record.step not in asked.chosen_steps:
        return remarks.NotAsked(pair.golden is None, "--steps", str(Steps.held(asked.chosen_steps)))
    return None
