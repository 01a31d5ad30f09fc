"""The options of a capture: checked when they are put together, wherever that is, without torch."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields, replace
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
        ({"map": ["a"], "like": "golden"}, "--map 'a': must be OLD=NEW"),
    ],
)
def test_options_that_make_no_sense_are_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as refused:
        CaptureOptions(**given)
    assert str(refused.value).startswith(message)


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
    ("given", "message"),
    [
        ({"feed": ac.StartFrom("golden")}, "feed must be an accucompare.FedWith"),
        ({"numerics": "hf32"}, "numerics must be an accucompare.Arithmetic, but is a str"),
    ],
)
def test_another_group_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        ac.capture(None, tmp_path, **given)


def test_options_of_a_capture_need_no_torch() -> None:
    program = "import sys, accucompare.recorder.capture_options; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
