"""What the operators in a module's own code choose among scores, recorded; fed, golden's choice."""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from accucompare.bundle.format import Role
from accucompare.live.modules import Listener
from accucompare.live.operators import OperatorChoice, source_line
from accucompare.recorder.feeding import Feeding, Memory, OperatorFeed


@dataclass
class ChoicesOfCall:
    """How often a call's code chose, by operator; ``feed``: golden's choices in it."""

    feed: OperatorFeed | None
    counts: Counter[str] = field(default_factory=Counter)
    # golden's choices that it was given, by how many it had made
    given: dict[int, torch.Tensor] = field(default_factory=dict)


@dataclass
class MadeSoFar:
    """How many of its choices a call has made, where a part of it begins that is run again."""

    of: ChoicesOfCall
    many: int


@dataclass
class OwnChoices:
    """Records each choice with the scores that it was made by, and hands on golden's.

    A choice among nearly equal scores falls by rounding. Fed, the code goes on with golden's, so
    that its other errors show, and the candidate's own choice is judged by its scores."""

    listener: Listener[Any]
    # is given the call, role, path, value, operator and source line
    record: Callable[[Any, Role, str, Any, str, str], None]
    allows: Callable[[str], bool]  # whether a module is recorded
    feed: Feeding | None
    # by thread: the parts that are run again, nested
    _again: dict[int, list[MadeSoFar]] = field(default_factory=dict, init=False)

    def __call__(self, choice: OperatorChoice) -> torch.Tensor | None:
        call, again = self.listener.running(), self._again.get(threading.get_ident())
        if (call is None and not again) or not self.listener.is_running(call):
            return None
        line = source_line(folders=1)
        if not line:
            return None
        if call is None:
            return self._as_before(choice, again[-1]) if again else None
        found: torch.Tensor | None = self.listener.run(self._made, call.name, (call, choice, line))
        return found

    def so_far(self) -> MadeSoFar | None:
        """What the code that now runs on this thread has chosen; ``None`` if it is not fed."""
        call, again = self.listener.running(), self._again.get(threading.get_ident())
        if self.feed is None:
            return None
        if call is None:
            return replace(again[-1]) if again else None
        if call.choices is None:
            call.choices = ChoicesOfCall(self._feed_of(call))
        return MadeSoFar(call.choices, call.choices.counts.total())

    @contextlib.contextmanager
    def run_again(self, since: MadeSoFar | None) -> Iterator[None]:
        """Within the context, this thread runs a call's own code again, which chooses as before."""
        if since is None:
            yield
            return
        running = self._again.setdefault(threading.get_ident(), [])
        running.append(replace(since))
        try:
            yield
        finally:
            running.pop()

    @staticmethod
    def _as_before(choice: OperatorChoice, made: MadeSoFar) -> torch.Tensor | None:
        found = made.of.given.get(made.many)
        made.many += 1
        return None if found is None or found.shape != choice.chosen.shape else found

    def _made(self, call: Any, choice: OperatorChoice, line: str) -> torch.Tensor | None:
        if call.choices is None:
            call.choices = ChoicesOfCall(self._feed_of(call))
        own, feed = call.choices, call.choices.feed
        if self.feed is not None and feed is None:
            return None  # golden has recorded none
        number, why_not = own.counts[choice.name], ""
        own.counts[choice.name] += 1
        if feed is not None:
            number, why_not = feed.match(choice.name, line, [*choice.scores.items()])
        path = f"{choice.name}#{number}"
        if not call.in_second_run and self.allows(call.name):
            for argument, score in choice.scores.items():
                given = call, Role.OP_INPUT, f"{path}.{argument}", score
                self.record(*given, choice.name, line)
            self.record(call, Role.OP_OUTPUT, path, choice.chosen, choice.name, line)
        if feed is None or why_not:  # by its own scores, which are not golden's
            return None
        found: torch.Tensor | None = feed.feed.value(
            feed.place(Role.OP_OUTPUT), path, choice.chosen, Memory()
        )
        if found is None or torch.equal(found, choice.chosen):
            return None
        own.given[own.counts.total() - 1] = found
        return found

    def _feed_of(self, call: Any) -> OperatorFeed | None:
        if self.feed is None:
            return None
        step = self.listener.step
        found = OperatorFeed(self.feed, step, call.name, call.index, frozenset())
        return found if found.has_any else None
