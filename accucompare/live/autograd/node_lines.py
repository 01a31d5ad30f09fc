"""The source lines behind the nodes of autograd's graph, as torch's anomaly mode notes them."""

from __future__ import annotations

import contextlib
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

import torch
from torch.fx import traceback

from accucompare.live.operators import is_caller

#: Directories whose code is not the user's.
_PACKAGES = tuple(
    f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[2])
)
_whole_stack = traceback.format_stack


class NodeLines:
    """Has the source lines noted of nodes made between ``begin`` and ``end``.

    The user's own anomaly mode is left alone.
    """

    def __init__(self) -> None:
        self._on = False
        self._begun = 0

    @property
    def noted(self) -> bool:
        """Whether lines are noted now, and not only for the user."""
        return self._on

    def begin(self) -> None:
        """Note lines from now on. May be nested."""
        self._begun += 1
        if not torch.is_anomaly_enabled():
            torch.autograd.set_detect_anomaly(True, check_nan=False)
            traceback.format_stack = _places
            self._on = True

    def end(self) -> None:
        """Stop noting, when each ``begin`` has its ``end``."""
        self._begun = max(self._begun - 1, 0)
        if self._on and not self._begun and not torch.is_anomaly_check_nan_enabled():
            torch.autograd.set_detect_anomaly(False)
            traceback.format_stack = _whole_stack
            self._on = False


@contextlib.contextmanager
def lines_noted(wanted: bool) -> Iterator[None]:
    """The same of nodes made meanwhile, if they are ``wanted``: no values are looked at."""
    with torch.autograd.set_detect_anomaly(wanted, check_nan=False):
        traceback.format_stack = _places
        try:
            yield
        finally:
            traceback.format_stack = _whole_stack


def _places() -> list[str]:
    """What torch notes of a node, without the code: to look for that in files takes longer than
    most nodes do."""
    if traceback.has_preserved_node_meta():  # torch.compile has lines of its own
        return _whole_stack()
    places: list[str] = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        places.append(f'  File "{code.co_filename}", line {frame.f_lineno}, in {code.co_name}\n')
        frame = frame.f_back
    return places[::-1]


def line_of(node: Any, folders: int = 0) -> str:
    """The line that called a node's operator, if noted: ``lora/layer.py:1065`` with one folder.

    It is the last frame outside torch and accucompare. There is none if accucompare called the
    model and the model is made of torch's modules alone.
    """
    for frame in reversed(node.metadata.get("traceback_") or ()):
        match = re.match(r'\s*File "(.+)", line (\d+)', frame)
        if match is not None and is_caller(match[1]):
            break
        if match is not None and not match[1].startswith(_PACKAGES):
            return f"{PurePath(*PurePath(match[1]).parts[-1 - folders :]).as_posix()}:{match[2]}"
    return ""
