"""Where errors come from, in random rows of random calls."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from hypothesis import given
from hypothesis import strategies as st

from accucompare.bundle.format.records import GRADIENT_ROLES, Layout, Record, Role
from accucompare.compare.origins.trace import NotFed, Trace
from accucompare.compare.rows.rows import Reason, Status, Verdict

Traced = list[tuple[Record, Verdict, Verdict]]
Call = tuple[str, int]

#: Drawn number by number, a few hundred of them would take longer than the test.
RANDOM = st.randoms(use_true_random=True)
OVER = [Reason.OVER, Reason.NON_FINITE, Reason.SHAPE, Reason.MISSING, Reason.EXTRA]
OTHERS = [Reason.IDENTICAL, Reason.OK, Reason.NOT_COMPARABLE, Reason.NOT_DETERMINISTIC]


def record(role: Role, name: str, call: int, parent: Call | None, step: int, path: str) -> Record:
    place = 0, step, name, call, role, path
    return Record(*place, 0, "aten.mul", parent, (2,), "float32", Layout.STRIDED)


def calls(random: Random, parent: Call | None, step: int, made: list[Call]) -> Iterator[Record]:
    """The rows of a call of a module, and of those that it makes."""
    name = "" if parent is None else f"{parent[0]}.{random.randrange(2)}".strip(".")
    call = name, sum(each == name for each, _ in made)
    made.append(call)
    rows = [
        (Role.INPUT, "0"),
        (Role.OP_INPUT, "aten.mul#0.self"),
        (Role.OP_OUTPUT, "aten.mul#0"),
        (Role.OUTPUT, "0"),
        (Role.ARGUMENT_UPDATE, "0"),
        (Role.BUFFER_UPDATE, "mean"),
    ]
    kept = [each for each in rows if random.random() < 0.7]
    yield from (record(role, *call, parent, step, path) for role, path in kept[:2])
    for _ in range(random.randrange(3) if name.count(".") < 2 else 0):
        yield from calls(random, call, step, made)
    yield from (record(role, *call, parent, step, path) for role, path in kept[2:])


def steps(random: Random) -> list[Record]:
    rows = []
    for step in range(3):
        made: list[Call] = []
        if random.random() < 0.5:
            rows.append(record(Role.BUFFER_BEFORE, "0", 0, None, step, "mean"))
        rows += calls(random, None, step, made)
        rows += [
            record(role, name, call, ("", 0) if name else None, step, "0")
            for name, call in reversed(made)
            for role in GRADIENT_ROLES
            if random.random() < 0.7
        ]
        for name, _ in dict(made).items():
            for role in (Role.PARAM_GRAD, Role.PARAM_BEFORE, Role.PARAM_UPDATE, Role.STATE_AFTER):
                rows.append(record(role, name, 0, None, step, "weight"))
    return rows


def traced(random: Random, fed: bool, not_fed: float = 0.0) -> Traced:
    """Random rows with the verdicts before and after. ``not_fed``: the share that was not."""
    rows, wrong = steps(random), random.choice([0.05, 0.3])
    others: set[NotFed] = {
        (each.rank, each.step, each.name, each.call, each.role.value, each.path)
        for each in rows
        if random.random() < not_fed
    }
    trace = Trace(fed, others)
    verdicts = [
        Verdict(
            random.choice(OVER if random.random() < wrong else OTHERS), over_limit=random.random()
        )
        for _ in rows
    ]
    return [
        (each, verdict, trace.trace(each, verdict))
        for each, verdict in zip(rows, verdicts, strict=True)
    ]


@given(st.booleans(), RANDOM)
def test_what_is_over_its_limit_gets_one_reason_and_all_else_keeps_its_own(
    fed: bool, random: Random
) -> None:
    for _, before, after in traced(random, fed, 0.3):
        assert after.reason is not Reason.OVER
        assert after.status is before.status or after.reason is Reason.NOT_COMPARABLE
        if before.status is not Status.FAIL:
            assert after is before


@given(st.booleans(), RANDOM)
def test_an_error_is_inherited_only_after_another_row_that_differs(
    fed: bool, random: Random
) -> None:
    rows = traced(random, fed, 0.3)
    unlike = (Reason.IDENTICAL, Reason.OK)
    first = next((n for n, (_, verdict, _) in enumerate(rows) if verdict.reason not in unlike), 0)
    assert all(after.reason is not Reason.INHERITED for _, _, after in rows[: first + 1])


@given(RANDOM)
def test_a_free_run_inherits_all_gradients_after_an_error_in_their_step(random: Random) -> None:
    wrong = set()
    for record, before, after in traced(random, False):
        if record.role in GRADIENT_ROLES and before.reason is Reason.OVER:
            assert (after.reason is Reason.INHERITED) == (record.step in wrong)
        of_buffers = record.role in (Role.BUFFER_BEFORE, Role.BUFFER_UPDATE)
        if after.status is Status.FAIL and not of_buffers:
            wrong.add(record.step)


@given(RANDOM)
def test_where_all_values_were_fed_a_leaf_inherits_no_error(random: Random) -> None:
    rows = traced(random, True)
    parents = {(record.step, record.parent) for record, _, _ in rows}
    changed = set()  # by an update that golden has not, so that no parameter of it is fed
    for record, before, after in rows:
        leaf = (record.step, (record.name, record.call)) not in parents
        if record.role is Role.PARAM_UPDATE and before.reason is Reason.EXTRA:
            changed.add(record.name)
        if record.role is Role.OUTPUT and before.reason is Reason.OVER and leaf:
            inherits = record.name in changed
            assert after.reason is (Reason.INHERITED if inherits else Reason.INTRODUCED)


def test_a_module_inherits_from_a_parameter_that_was_changed_before_its_first_call() -> None:
    for why in (Reason.OVER, Reason.NON_FINITE):
        trace, first = Trace(), record(Role.PARAM_CHANGED, "a", 0, None, 0, "weight")
        output = record(Role.OUTPUT, "a", 0, ("", 0), 0, "0")
        changed, made = trace.trace(first, Verdict(why)), trace.trace(output, Verdict(why))
        own = Reason.INTRODUCED if why is Reason.OVER else why
        assert changed == Verdict(own, begins=why is Reason.NON_FINITE)
        assert made == Verdict(Reason.INHERITED if why is Reason.OVER else why)


def test_a_root_gradient_inherits_nothing_from_inputs_of_another_step() -> None:
    trace, over = Trace(fed=True), Verdict(Reason.OVER)
    for step in (0, 1):
        inputs, gradient = (
            record(role, "", 0, None, step, "0") for role in (Role.INPUT, Role.GRAD_OUTPUT)
        )
        if step == 0:
            assert trace.trace(inputs, over).reason is Reason.INPUTS_DIFFER
            assert trace.trace(gradient, over).reason is Reason.INHERITED
        else:
            assert trace.trace(gradient, over).reason is Reason.INTRODUCED
