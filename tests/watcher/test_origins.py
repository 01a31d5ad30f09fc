"""Every planted origin is named where it was planted, and what is legal is left alone."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import _pytree as pytree

from accucompare.findings.log.events import Direction, Site
from benchmarks.origins_trial import (
    ALARM,
    BESIDE,
    RIGHT,
    SILENT,
    WRONG,
    ask_hugging_face,
    differences,
    findings,
    later,
    plant,
    quiet,
)
from planted.origins_catalogue import ORIGINS

_OF_T5 = (
    *("0/0 in a keyword argument", "NaN in a ModelOutput", "labels all ignored, in the model"),
    *("gradients of two branches overflow in their sum", "−Inf mask by keyword", "dropout"),
)

_OF_BOTH = [
    name
    for name, origin in ORIGINS.items()
    if not (origin.skipped("gpt2", "float32") or origin.skipped("cnn", "float32"))
]

#: Everything in float32, in turns on one of two small models; else what a model or a type does in
# a way of its own. All of them on all : models is what ``make bench-origins`` runs.
_SAMPLE: dict[tuple[str, str], tuple[str, ...]] = {
    ("gpt2", "float32"): tuple(name for name in ORIGINS if name not in _OF_BOTH[1::2]),
    ("cnn", "float32"): tuple(name for name in ORIGINS if name not in _OF_BOTH[0::2]),
    ("t5", "float32"): _OF_T5,
    ("gpt2", "float16"): (
        "overflow in a matmul",
        "gradient overflows where it is cast",
        "loss scale too large",
        "dropout",
    ),
    ("gpt2", "bfloat16"): (
        "a gradient just below the largest number",
        "numbers just below the largest",
    ),
    ("t5", "float16"): ("exploding residual", "mask of the smallest number, padding on the left"),
    ("t5", "bfloat16"): ("0/0 in a norm", "gradient of a norm at 0", "−Inf mask by position"),
    ("cnn", "bfloat16"): (
        "second call of a shared module overflows",
        "gradients of two calls overflow in their sum",
        "NaN buffer",
    ),
    ("minilm", "float32"): ("sparse gradients", "NaN weights that are not used"),
    ("minilm", "bfloat16"): (
        "a row that is masked altogether",
        "−Inf mask made by the parent",
        "nothing planted",
    ),
}


def _cases(legal: bool) -> list[Any]:
    return [
        pytest.param(model, dtype, name, id=f"{model}-{dtype}-{name}")
        for (model, dtype), names in _SAMPLE.items()
        for name in names
        if ORIGINS[name].legal is legal and not ORIGINS[name].skipped(model, dtype)
    ]


@pytest.mark.parametrize(("model", "dtype", "name"), _cases(legal=False))
def test_a_planted_origin_is_named_where_it_was_planted(model: str, dtype: str, name: str) -> None:
    subject, right = plant(model, dtype, name)
    found = findings(subject)
    assert right is not None
    assert found, "nothing was found"
    assert [*differences(found[0], right), *later(found)] == []


@pytest.mark.parametrize(("model", "dtype", "name"), _cases(legal=True))
def test_what_is_legal_is_left_alone(model: str, dtype: str, name: str) -> None:
    subject, right = plant(model, dtype, name)
    assert right is None
    assert [found.place for found in findings(subject)] == []


@pytest.mark.parametrize("model", ["gpt2", "cnn"])
@pytest.mark.parametrize(
    "name",
    [
        "dropout",
        "two batches in a step",
        "log in place, of what came in",
        "gradient of a root at 0, checkpointed",
    ],
)
def test_a_watched_step_computes_what_the_plain_step_does(model: str, name: str) -> None:
    results = []
    for watched in (False, True):
        subject, _ = plant(model, "float32", name)
        if model == "cnn":
            # batch norm counts its batches, and a step that is run again must not be counted
            subject.model.train()
        with quiet():
            findings(subject) if watched else subject.step()
        gradients = {own: parameter.grad for own, parameter in subject.model.named_parameters()}
        results.append(
            {**gradients, **subject.model.state_dict(), "generator": torch.get_rng_state()}
        )
    plain, seen = results
    assert plain.keys() == seen.keys()
    for own, tensor in plain.items():
        torch.testing.assert_close(seen[own], tensor, rtol=0, atol=0, equal_nan=True, msg=own)


_PLANTED = [
    (model, name)
    for model in ("gpt2", "cnn")
    for name, origin in ORIGINS.items()
    if not (origin.legal or origin.skipped(model, "float32"))
]


@pytest.mark.parametrize(("model", "name"), _PLANTED)
def test_what_is_right_to_say_is_what_hooks_of_the_plainest_kind_see(model: str, name: str) -> None:
    subject, right = plant(model, "float32", name)
    assert right is not None
    ended = _watch_outputs(subject.model)
    with quiet(), torch.compiler.set_stance("force_eager"):  # else the hooks would be compiled, too
        output = subject.step()
    bad = [
        own for own, parameter in subject.model.named_parameters() if not _is_finite(parameter.grad)
    ]
    spoilt = [own for own, tensor in subject.model.state_dict().items() if not _is_finite(tensor)]
    first = next((place for place, finite in ended if not finite), None)
    if right.direction is Direction.BACKWARD:
        assert first is None
        assert _is_finite(output)
        assert bad
        assert right.parameter in ("", *bad)
    elif right.site is Site.POINT:
        assert first is None
    elif right.site is Site.INPUT:
        assert not _is_finite((subject.args, subject.kwargs))
    elif right.site is Site.GLUE:
        children = {
            f"{right.name}.{near.split()[1]}" for near in right.near if near.startswith("before")
        }
        assert first in {(right.name, right.call)} | {
            (child, call) for child in children for call in (0, 1)
        }
    else:
        assert first == (right.name, right.call)
        assert any(own.startswith(right.name) for own in spoilt) is (right.site is Site.WEIGHTS)


def _watch_outputs(model: nn.Module) -> list[tuple[tuple[str, int], bool]]:
    """Which call of which module has ended, and whether what it gave is finite."""
    ended: list[tuple[tuple[str, int], bool]] = []
    calls: Counter[str] = Counter()

    def hook(name: str, module: nn.Module, args: Any, output: Any) -> None:
        if torch._C._current_graph_task_id() == -1:
            ended.append(((name, calls[name]), _is_finite(output)))
            calls[name] += 1

    for name, module in model.named_modules():
        module.register_forward_hook(functools.partial(hook, _WRAPPER.sub("", name)))
    return ended


_WRAPPER = re.compile(r"(_checkpoint_wrapped_module|_orig_mod)(\.|$)")


def _is_finite(value: Any) -> bool:
    if isinstance(value, dict):
        value = dict(value)  # a ModelOutput, too
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    return all(
        bool(leaf.detach().isfinite().all())
        for leaf in pytree.tree_leaves(value)
        if isinstance(leaf, torch.Tensor)
    )


@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("log of 0", RIGHT),
        ("exploding residual", RIGHT),
        ("0/0 in a keyword argument", BESIDE),
        ("NaN in a dict", WRONG),
        ("gradient of a root at 0", SILENT),
        ("−Inf mask by position", ALARM),
        ("−Inf mask made by the parent", SILENT),
    ],
)
def test_the_neighbour_says_what_it_is_known_to_say(name: str, verdict: str) -> None:
    said = ask_hugging_face(*plant("t5", "float32", name))
    assert said.verdict == verdict, said
