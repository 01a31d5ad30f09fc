"""The options of a capture: checked when they are put together, wherever that is, without torch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import fields, replace
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

import accucompare as ac
from accucompare.errors import UsageError
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.watcher.watch_options import WatchOptions


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"steps": 0}, "steps must be at least 1, but is 0"),
        ({"queue_bytes": 0}, "queue_bytes must be at least 1, but is 0"),
        (
            {"mode": "some"},
            "mode must be one of 'tensors', 'sketch', 'stats', 'digest', but is 'some'",
        ),
        ({"level": "kernel"}, "level must be 'module' or 'op', but is 'kernel'"),
        ({"map": "a=b"}, "--map: renames the layers of the bundle that --like or --feed names"),
        ({"map": ["a"], "like": "golden"}, "map 'a' (--map): must be OLD=NEW"),
        ({"round_results": True}, "--round-results: rounds to the type of golden's values"),
        ({"layout_of": "free"}, "--layout-of: tells which part of golden each rank is fed"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        CaptureOptions(**given)
    assert str(refused.value).startswith(message)


def test_force_without_a_golden_is_refused() -> None:
    with pytest.raises(UsageError, match=r"^force \(--force\): feeds even .*name it \(--feed\)$"):
        ac.FedWith(force=True)


def test_options_are_checked_again_when_one_is_replaced() -> None:
    with pytest.raises(UsageError, match="steps must be at least 1"):
        replace(CaptureOptions(steps=3), steps=0)


def test_one_glob_is_a_list_of_one() -> None:
    assert CaptureOptions(only="enc*", skip=["a", "b"]) == CaptureOptions(
        only=("enc*",), skip=("a", "b")
    )


@pytest.mark.parametrize(
    ("call", "options"), [(ac.capture, CaptureOptions), (ac.watch, WatchOptions)]
)
def test_an_option_has_one_default(call: Any, options: Any) -> None:
    defaults = {name: each.default for name, each in signature(call).parameters.items()}
    shared = [each for each in fields(options) if each.name in defaults and each.name != "loop"]
    assert {each.name: defaults[each.name] for each in shared} == {
        each.name: each.default for each in shared
    }


def test_a_group_is_given_whole_or_by_its_first_field() -> None:
    fed = ac.FedWith("golden", map="a=b", force=True)
    options = CaptureOptions.of("stats", ac.StartFrom("saved", map=["a=b", "c=d"]), fed, None)
    assert options == CaptureOptions(
        mode="stats", like="saved", feed="golden", map=("a=b", "c=d"), force=True
    )


@pytest.mark.parametrize(
    ("given", "name", "example", "found"),
    [
        ({"feed": ac.StartFrom("golden")}, "feed", "FedWith('golden'", "a StartFrom"),
        ({"feed": {}}, "feed", "FedWith('golden'", "a dict"),
        ({"start": {}}, "start", "StartFrom('golden'", "a dict"),
        ({"record": {"mode": "stats"}}, "record", "Recorded('sketch'", "a dict"),
        ({"numerics": "hf32"}, "numerics", "Arithmetic(deterministic=True)", "a str"),
        ({"loop": 5}, "loop", "Loop(optimizer", "an int"),
    ],
)
def test_another_group_is_refused(
    given: dict[str, Any], name: str, example: str, found: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError) as refused:
        ac.capture(None, tmp_path, **given)
    told(str(refused.value), name, example, found)


def told(message: str, name: str, example: str, found: str) -> None:
    kind, message = example.partition("(")[0], message.replace('"', "'")
    assert message.startswith(f"{name} must be an accucompare.{kind}, such as {example}")
    assert message.endswith(f"), but is {found}")


@pytest.mark.parametrize("given", [{"rel_l2": 1e-3}, 1e-3, None])
def test_limits_that_are_no_tolerance_are_refused(given: Any) -> None:
    with pytest.raises(UsageError) as refused:
        ac.diff("golden", "npu", limits=given)
    found = "None" if given is None else f"a {type(given).__name__}"
    told(str(refused.value), "limits", "Tolerance(rel_l2=1e-3)", found)


@pytest.mark.parametrize(
    ("call", "name", "example"),
    [
        (partial(ac.diff, "golden", "npu", work={}), "work", "Work(verify=True)"),
        (partial(ac.locate, "case.py", "cpu", options={}), "options", "LocateOptions(only="),
        (partial(ac.watch, None, look={}), "look", "LookAt('op'"),
    ],
)
def test_a_dict_in_place_of_a_group_is_refused(
    call: Callable[[], Any], name: str, example: str
) -> None:
    with pytest.raises(UsageError) as refused:
        call()
    told(str(refused.value), name, example, "a dict")


@pytest.mark.parametrize("seed", ["a", -1, 1.5, True, 1 << 32, 2**70])
def test_a_seed_that_no_generator_takes_is_refused(seed: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        ac.capture(None, tmp_path, seed=seed)
    found = f"seed must be a whole number from 0 to 2**32 - 1, but is {seed!r}"
    assert str(refused.value) == found


def test_options_of_a_capture_need_no_torch() -> None:
    program = "import sys, accucompare.recorder.capture_options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
