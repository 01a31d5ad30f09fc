"""Where a value that is not finite began, from what was observations; no model is run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accucompare.findings.log.events import Cause, Direction, Finding, Site, TensorRange
from accucompare.findings.log.observations import (
    OUTSIDE,
    ModuleCall,
    StepObservation,
    WatchLimits,
    What,
    near_the_limit,
)
from accucompare.findings.log.vital_events import number
from accucompare.findings.origins.origins import find_origins

NAN, INF = float("nan"), float("inf")
#: (low, high)
Range = tuple[float, float]
FINE, BAD, PLUS, MASK, BOTH, MINUS = (
    (-1.0, 1.0),
    (NAN, NAN),
    (-1.0, INF),
    (-INF, 0.0),
    (-INF, INF),
    (-INF, 5.0),
)
LARGE = (-1.0, 3e38)


def _seen(role: str, ranges: tuple[Range, ...], dtype: str = "float32") -> list[TensorRange]:
    return [
        TensorRange(role, str(index), dtype, (2,), number(low), number(high))
        for index, (low, high) in enumerate(ranges)
    ]


class Step:
    """The observations of a step, written down as the calls go: ``step.began("fc", FINE);
    step.ended(FINE)``.
    """

    def __init__(self) -> None:
        self.observations: list[StepObservation] = []
        self._open: list[ModuleCall] = []
        self._calls: dict[str, int] = {}

    def _add(self, what: What, place: ModuleCall, seen: list[TensorRange], **facts: Any) -> Step:
        self.observations.append(
            StepObservation(what, place, seen, order=len(self.observations), **facts)
        )
        return self

    def began(self, name: str, *given: Range) -> Step:
        call = self._calls.get(name, 0)
        self._calls[name] = call + 1
        self._open.append(
            ModuleCall(name, call, "Layer", self._open[-1].key if self._open else None)
        )
        return self._add(What.BEGAN, self._open[-1], _seen("input", given))

    def ended(self, *gave: Range) -> Step:
        return self._add(What.ENDED, self._open.pop(), _seen("output", gave))

    def leaf(self, name: str, given: Range, gave: Range) -> Step:
        return self.began(name, given).ended(gave)

    def operator(self, name: str, given: tuple[Range, ...], gave: Range) -> Step:
        return self._add(
            What.OPERATOR,
            self._open[-1],
            _seen("input", given) + _seen("output", (gave,)),
            operator=name,
            line="model.py:1",
        )

    def point(self, label: str, value: Range) -> Step:
        return self._add(
            What.POINT,
            self._open[-1] if self._open else OUTSIDE,
            _seen("point", (value,)),
            near=label,
        )

    def flag(self, name: str, near: str = "") -> Step:
        return self._add(What.FLAG, ModuleCall(name, 0, "Layer", None), [], near=near)

    def backward(self, what: What, name: str, grad: Range, **facts: Any) -> Step:
        return self._add(what, ModuleCall(name, 0, "Layer", None), _seen("grad", (grad,)), **facts)

    def found(self, **limits: Any) -> list[Finding]:
        return find_origins(self.observations, 3, WatchLimits(**limits))

    def origins(self, **limits: Any) -> list[tuple[str, str, str, list[str]]]:
        return [
            (found.name, found.site.value, found.near, found.kinds)
            for found in self.found(**limits)
            if found.origin
        ]


# forward


def test_an_output_that_is_nan_though_what_went_in_was_finite_was_made_inside() -> None:
    step = (
        Step()
        .began("", FINE)
        .leaf("a", FINE, FINE)
        .leaf("b", FINE, BAD)
        .leaf("c", BAD, BAD)
        .ended(BAD)
    )
    assert step.origins() == [("b", "module", "", ["NaN"])]
    assert [(found.name, found.origin, found.cause) for found in step.found()] == [
        ("b", True, Cause.INSIDE),
        ("c", False, Cause.INPUTS),
    ]


def test_what_a_child_is_given_and_its_caller_could_not_know_was_made_in_the_callers_code() -> None:
    step = Step().began("", FINE).leaf("a", FINE, FINE).leaf("b", BAD, BAD).ended(BAD)
    assert step.origins() == [("", "glue", "before b", ["NaN"])]


def test_what_comes_out_of_no_child_was_made_after_the_last() -> None:
    step = Step().began("", FINE).leaf("a", FINE, FINE).ended(BAD)
    assert step.origins() == [("", "glue", "after a", ["NaN"])]


def test_a_child_is_named_as_its_parents_code_knows_it() -> None:
    step = (
        Step()
        .began("", FINE)
        .began("h.0", FINE)
        .leaf("h.0.mlp", FINE, FINE)
        .leaf("h.0.mlp", BAD, BAD)
        .ended(BAD)
        .ended(BAD)
    )
    assert step.origins() == [("h.0", "glue", "before mlp call 1", ["NaN"])]


@pytest.mark.parametrize("value", [BAD, BOTH])
def test_what_the_model_is_given_is_told_as_such(value: Range) -> None:
    step = Step().began("", value).leaf("a", value, BAD).leaf("b", BAD, BAD).ended(BAD)
    assert [site for _, site, _, _ in step.origins()] == ["input"]


def test_an_inf_that_the_model_was_given_is_the_origin_however_deep_it_does_harm() -> None:
    step = (
        Step()
        .began("", PLUS)
        .began("outer", PLUS)
        .leaf("outer.a", PLUS, BAD)
        .ended(BAD)
        .leaf("b", PLUS, BAD)
        .ended(BAD)
    )
    assert step.origins() == [("", "input", "", ["+Inf"])]


def test_an_inf_that_a_callers_code_made_is_the_origin_however_deep_it_does_harm() -> None:
    step = (
        Step()
        .began("", FINE)
        .leaf("a", FINE, FINE)
        .began("b", PLUS)
        .leaf("b.inner", PLUS, BAD)
        .ended(BAD)
        .ended(BAD)
    )
    assert step.origins() == [("", "glue", "before b", ["+Inf"])]


def test_a_mask_is_legal_on_its_way_down() -> None:
    step = (
        Step()
        .began("", FINE)
        .began("attention", FINE, MASK)
        .leaf("attention.softmax", MASK, FINE)
        .ended(FINE)
        .ended(FINE)
    )
    assert step.found() == []


def test_a_mask_that_the_model_is_given_is_legal() -> None:
    assert Step().began("", FINE, MASK).leaf("softmax", MASK, FINE).ended(FINE).found() == []


def test_a_mask_that_becomes_nan_is_the_fault_of_the_module_in_which_it_does() -> None:
    step = Step().began("", FINE, MASK).leaf("softmax", MASK, BAD).ended(BAD)
    assert step.origins() == [("softmax", "module", "", ["NaN"])]
    assert step.found()[0].legal == ["0"]


def test_an_inf_that_does_no_harm_is_left_alone() -> None:
    assert Step().began("", FINE).leaf("a", PLUS, FINE).ended(FINE).found() == []


def test_an_inf_that_a_module_gives_from_finite_values_is_told() -> None:
    assert Step().began("", FINE).leaf("a", FINE, PLUS).ended(FINE).origins() == [
        ("a", "module", "", ["+Inf"])
    ]


def test_two_branches_that_each_make_one_are_two_origins() -> None:
    step = Step().began("", FINE).leaf("a", FINE, BAD).leaf("b", FINE, PLUS).ended(BAD)
    assert [name for name, *_ in step.origins()] == ["a", "b"]


def test_a_module_that_is_allowed_to_and_those_after_it_are_left_alone() -> None:
    step = Step().began("", FINE).leaf("a", FINE, BAD).leaf("b", BAD, BAD).ended(BAD)
    assert step.found(allow=lambda name: name == "a") == []


def test_inputs_near_the_limit_are_said_to_be() -> None:
    assert Step().began("", FINE).leaf("a", LARGE, PLUS).ended(PLUS).found()[0].cause is Cause.NEAR


def test_the_second_call_of_a_module_is_told_apart() -> None:
    step = Step().began("", FINE).leaf("a", FINE, FINE).leaf("a", FINE, BAD).ended(BAD)
    assert [(found.name, found.call) for found in step.found() if found.origin] == [("a", 1)]


def test_the_operator_that_made_it_is_named() -> None:
    step = (
        Step()
        .began("", FINE)
        .operator("log", (FINE,), MINUS)
        .operator("mul", (MINUS, FINE), BAD)
        .ended(BAD)
    )
    (found,) = step.found()
    assert (found.operator, found.line) == ("log", "model.py:1")


def test_a_point_is_told_once_with_its_label() -> None:
    step = Step().began("", FINE).point("here", BAD).point("there", BAD).ended(BAD)
    assert step.origins() == [("", "point", "here", ["NaN"])]


def test_a_flag_that_no_value_shows_is_told() -> None:
    assert Step().flag("a").origins() == [("a", "module", "", ["overflow flag"])]


@pytest.mark.parametrize(
    ("value", "saturated"),
    [((-1.0, 65504.0), True), ((-65504.0, 1.0), False), ((-1.0, 65472.0), False)],
)
def test_on_a_device_that_saturates_the_largest_number_is_an_overflow_and_the_lowest_is_a_mask(
    value: Range, saturated: bool
) -> None:
    observations = Step().began("", FINE).ended(value).observations
    for each in observations:
        each.tensors = [msgspec.structs.replace(seen, dtype="float16") for seen in each.tensors]
    assert [
        found.kinds for found in find_origins(observations, 0, WatchLimits(saturates=True))
    ] == ([["saturated"]] if saturated else [])
    assert find_origins(observations, 0, WatchLimits()) == []


def test_many_calls_that_pass_one_on_are_not_all_told() -> None:
    step = Step().began("", FINE).leaf("a", FINE, BAD)
    for index in range(500):
        step.leaf(f"b{index}", BAD, BAD)
    assert len(step.ended(BAD).found()) == 101


def test_a_call_that_raised_does_not_spoil_the_next() -> None:
    step = Step().began("", FINE).began("a", FINE)
    step._open.clear()
    step.began("", FINE).leaf("a", FINE, FINE).leaf("b", FINE, BAD).ended(BAD)
    assert step.origins() == [("b", "module", "", ["NaN"])]


# backward


def test_the_first_gradient_that_is_not_finite_is_the_origin() -> None:
    step = (
        Step()
        .backward(What.GRADIENT, "b", FINE)
        .backward(What.GRADIENT, "a", PLUS, operator="SqrtBackward0")
        .backward(What.GRADIENT, "c", BAD)
    )
    assert [(found.name, found.operator, found.origin) for found in step.found()] == [
        ("a", "SqrtBackward0", True),
        ("c", "", False),
    ]
    assert all(found.direction is Direction.BACKWARD for found in step.found())


def test_a_gradient_that_arrives_bad_came_from_the_loss() -> None:
    step = (
        Step()
        .backward(What.ARRIVED, "", BAD)
        .backward(What.GRADIENT, "a", BAD)
        .backward(What.PARAMETER, "a", BAD, parameter="weight")
    )
    assert [(found.site, found.origin) for found in step.found()] == [
        (Site.LOSS, True),
        (Site.MODULE, False),
    ]
    assert step.found()[0].parameters == ["a.weight"]


def test_a_parameters_gradient_that_nothing_explains_is_a_sum() -> None:
    assert Step().backward(What.PARAMETER, "a", PLUS, parameter="weight").origins() == [
        ("a", "sum", "weight", ["+Inf"])
    ]


def test_after_a_forward_that_is_not_finite_the_backward_is_no_origin() -> None:
    step = (
        Step()
        .began("", FINE)
        .ended(BAD)
        .backward(What.ARRIVED, "", BAD)
        .backward(What.GRADIENT, "", BAD)
    )
    assert [name for name, *_ in step.origins()] == [""]


# whatever happens


@st.composite
def streams(draw: Callable[..., Any], values: st.SearchStrategy[Range]) -> list[StepObservation]:
    """A step of a random model: calls within calls, with any values in and out, operators and
    points between, and a backward.
    """
    step = Step()

    def call(name: str, depth: int) -> None:
        step.began(name, *draw(st.lists(values, min_size=1, max_size=2)))
        for index in range(draw(st.integers(0, 3 if depth < 3 else 0))):
            kind = draw(st.sampled_from(["call", "call", "call", "operator", "point"]))
            if kind == "call":
                call(f"{name}.{'abc'[index]}" if name else "abc"[index], depth + 1)
            elif kind == "operator":
                step.operator("mul", (draw(values), draw(values)), draw(values))
            else:
                step.point("here", draw(values))
        step.ended(draw(values))

    for _ in range(draw(st.integers(1, 2))):
        call("", 0)
    for _ in range(draw(st.integers(0, 4))):
        what = draw(st.sampled_from([What.ARRIVED, What.GRADIENT, What.PARAMETER]))
        step.backward(
            what,
            draw(st.sampled_from(["", "a", "b"])),
            draw(values),
            operator="AddBackward0",
            parameter="weight",
        )
    return step.observations


ANY = st.sampled_from([FINE, FINE, FINE, BAD, PLUS, MASK, MINUS, BOTH, LARGE])


@given(observations=streams(st.sampled_from([FINE, LARGE])))
def test_where_all_is_finite_nothing_is_found(observations: list[StepObservation]) -> None:
    assert find_origins(observations, 0, WatchLimits()) == []


def _told(found: Finding) -> Any:
    """A finding, less what a further child of its module changes: that it was made between
    children, and after which.
    """
    site = Site.MODULE if found.site is Site.GLUE else found.site
    near = "" if found.near.startswith("after") else found.near
    return (
        found.name,
        found.call,
        site,
        near,
        found.direction,
        found.origin,
        found.cause,
        found.kinds,
        found.operator,
        found.parameters,
    )


@given(observations=streams(ANY), data=st.data())
def test_further_calls_of_finite_values_change_no_finding(
    observations: list[StepObservation], data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(observations)))
    running: list[ModuleCall] = []
    for each in observations[:place]:
        if each.what is What.BEGAN:
            running.append(each.place)
        elif each.what is What.ENDED:
            running.pop()
    new = ModuleCall("further", 0, "Layer", running[-1].key if running else None)
    calls = [
        StepObservation(What.BEGAN, new, _seen("input", (FINE,))),
        StepObservation(What.ENDED, new, _seen("output", (FINE,))),
    ]
    more = [
        replace(each, order=order)
        for order, each in enumerate([*observations[:place], *calls, *observations[place:]])
    ]
    assert [_told(found) for found in find_origins(more, 0, WatchLimits())] == [
        _told(found) for found in find_origins(observations, 0, WatchLimits())
    ]


@given(observations=streams(ANY))
def test_other_names_change_nothing_but_the_names(observations: list[StepObservation]) -> None:
    def renamed(name: str) -> str:
        return ".".join(f"x{part}" for part in name.split(".")) if name else ""

    def moved(place: ModuleCall) -> ModuleCall:
        parent = None if place.parent is None else (renamed(place.parent[0]), place.parent[1])
        return place._replace(name=renamed(place.name), parent=parent)

    others = find_origins(
        [replace(each, place=moved(each.place)) for each in observations], 0, WatchLimits()
    )
    found = find_origins(observations, 0, WatchLimits())
    assert [
        (each.name, each.call, each.site, each.origin, each.kinds, each.order) for each in others
    ] == [
        (renamed(each.name), each.call, each.site, each.origin, each.kinds, each.order)
        for each in found
    ]


@given(observations=streams(ANY))
def test_the_first_finding_in_order_is_an_origin_and_there_is_one_whenever_a_leaf_makes_a_nan(
    observations: list[StepObservation],
) -> None:
    found = find_origins(observations, 0, WatchLimits())
    assert [each.order for each in found] == sorted(each.order for each in found)
    if found:
        assert any(each.origin for each in found)
    finite = {
        each.place.key
        for each in observations
        if each.what is What.BEGAN and all(seen.finite for seen in each.tensors)
    }
    parents = {each.place.parent for each in observations if each.what is What.BEGAN}
    operators = {
        each.place.key for each in observations if each.what in (What.OPERATOR, What.POINT)
    }
    for each in observations:
        makes = each.what is What.ENDED and any(seen.low == "nan" for seen in each.tensors)
        if makes and each.place.key in finite - parents - operators:
            assert (each.place.key, True) in [((one.name, one.call), one.origin) for one in found]


@given(data=st.data(), observations=streams(ANY))
def test_whatever_is_heard_in_whatever_order_nothing_is_raised(
    data: st.DataObject, observations: list[StepObservation]
) -> None:
    shuffled = data.draw(st.permutations(observations))
    find_origins(
        [replace(each, order=order) for order, each in enumerate(shuffled)],
        0,
        WatchLimits(saturates=True),
    )


@pytest.mark.parametrize(
    ("dtype", "low", "high", "near"),
    [
        ("float16", -1.0, 65504.0, True), ("float16", -1.0, 65504.0 / 4, True), ("float16", -1.0,
        16000.0, False),
        ("float16", -20000.0, 0.0, True),
        ("float16", -65504.0, 0.0, False), ("float16", -65000.0, 0.0, False), ("float16", -INF,
        1.0, False), ("float16", 0.0, INF, False),
        ("float16", NAN, NAN, False), ("float8_e4m3fn", -1.0, 448.0, True), ("int64", 0.0, 1e18,
        False), ("unheard of", 0.0, 1e308, False),
    ],
)  # fmt: skip
def test_near_the_limit(dtype: str, low: float, high: float, near: bool) -> None:
    assert near_the_limit(dtype, low, high, 4.0) is near
