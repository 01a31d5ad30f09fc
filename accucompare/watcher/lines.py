"""The source lines of operators, as torch's anomaly mode notes them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from accucompare.live.operator_calls import CALLERS

#: For so many losses computed otherwise than those before, lines are noted once more, in the step after the one that shows it.
_MOST_AGAIN = 8
#: Directories whose code is not the user's.
_PACKAGES = tuple(f"{folder}{os.sep}" for folder in (Path(torch.__file__).parent, Path(__file__).parents[1]))


class Lines:
    """The source lines of operators outside of the model, which torch's anomaly mode notes.

    It takes long. A loss is computed in the same way in each step, so that its first step is enough, if the graph is the same; where it is
    another, the lines are noted in the next step again, a few times at most.

    Attributes:
        always: note them in every step.
    """

    def __init__(self) -> None:
        self.always = False
        self._known: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._on = False
        self._again = False  # the last loss was a new one
        self._left = _MOST_AGAIN

    def begin(self) -> None:
        """Operators that are called from now on are outside of the model."""
        if (self.always or self._again or not self._known) and not torch.is_anomaly_enabled():
            torch.autograd.set_detect_anomaly(True, check_nan=False)
            self._on = True

    def end(self) -> None:
        """Those that are called from now on are not, or need no line. A mode of the user's own is left as it is."""
        if self._on and not torch.is_anomaly_check_nan_enabled():
            torch.autograd.set_detect_anomaly(False)
            self._on = False

    def give_up(self) -> None:
        """A step is over: what had no loss in it will have none."""
        if self._on:
            self._known.setdefault((), ())
        self.end()

    def of(self, nodes: Sequence[Any], line: Callable[[Any], str]) -> tuple[str, ...]:
        """The line of each node, read by ``line`` if anomaly mode has noted it; else empty."""
        names = tuple(node.name() for node in nodes)
        if nodes and not self._on and names not in self._known and self._left:
            self._again = True
            self._left -= 1
        if self._on:
            self._again = False
            self._known[names] = tuple(map(line, nodes))
            if len(self._known) > 8:
                del self._known[next(iter(self._known))]
        return self._known.get(names, ("",) * len(nodes))


def line_of(node: Any) -> str:
    """Where the operator of a node was called, if torch's anomaly mode has noted it: ``File "model.py", line 57, in forward``."""
    for frame in reversed(node.metadata.get("traceback_") or ()):
        match = re.match(r'\s*File "(.+)", line (\d+)', frame)
        if match is not None and match[1] in CALLERS:
            break
        if match is not None and not match[1].startswith(_PACKAGES):
            return f"{Path(match[1]).name}:{match[2]}"
    return ""
