"""What more can be said of a finding, while the model still is as it was: its weights, and the step run again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn

from accucompare.capture.calls import arguments_of
from accucompare.capture.names import Modules
from accucompare.watch.events import Direction, Found, Site
from accucompare.watch.extrema import look_now
from accucompare.watch.judge import Limits, What
from accucompare.watch.listening import Noted
from accucompare.watch.replay import Context, Memory, replay
from accucompare.watch.reproducer import Moment

#: Where running a step again says no more.
_OUTSIDE = (Site.INPUT, Site.LOSS)


class Explainer:
    """Explains the findings of one model.

    Attributes:
        contexts: of the outermost calls of the step that are remembered, in order.
    """

    def __init__(self, modules: Modules, memory: Memory, limits: Limits) -> None:
        self.contexts: list[Context] = []
        self._modules = modules
        self._memory = memory
        self._limits = limits

    def explain(self, found: Found, noted: Sequence[Noted]) -> Moment | None:
        """Add to a finding what weights it had, which operator made it, and notes.

        Args:
            found: an origin.
            noted: what was heard in its step.

        Returns:
            What the module call was given, for a reproducer; ``None`` if the step could not be run again.
        """
        context = self._context_of(found, noted)
        module = self._modules.named.get(found.name)
        if module is not None and found.direction is Direction.FORWARD and found.site is Site.MODULE:
            _look_at_weights(found, module, context)
        if found.site is Site.INPUT and context is not None:
            found.notes += _first_places(found, context)
        if found.site in _OUTSIDE or not found.type:  # no type: a point outside of the model
            return None
        if context is None and found.site is Site.SUM:
            return None
        if context is None:
            found.notes.append("the step was not run again: what that call was given was not kept")
            return None
        again = replay(context, found, noted, self._modules, self._memory.versions(), self._limits)
        if again.note and found.site is not Site.SUM:  # of a sum, one step shows only a part
            found.notes.append(again.note)
        if again.found is not None:
            _refine(found, again.found)
        return again.moment

    def _context_of(self, found: Found, noted: Sequence[Noted]) -> Context | None:
        """The outermost call in which something was found; of a sum over several, none."""
        if found.site is Site.SUM and len(self.contexts) == 1:
            return self.contexts[0]
        parents = {each.place.key: each.place.parent for each in noted if each.what is What.BEGAN}
        key: tuple[str, int] | None = (found.name, found.call)
        while key is not None and parents.get(key) is not None:
            key = parents[key]
        return next((context for context in self.contexts if (context.name, context.index) == key), None)


def _first_places(found: Found, context: Context) -> list[str]:
    """Where in the inputs the first value is that is not finite."""
    parts = dict(arguments_of(context.args, context.kwargs))
    notes = []
    for seen in found.tensors:
        part = parts.get(seen.path)
        if isinstance(part, torch.Tensor) and part.dim() > 0 and part.layout is torch.strided:
            places = (~torch.isfinite(part.detach())).nonzero()
            if len(places):
                rows = len(torch.unique(places[:, 0]))
                notes.append(f"input {seen.path}: the first at index {places[0].tolist()}; in {rows} of {len(part)} along its first axis")
    return notes


def _look_at_weights(found: Found, module: nn.Module, context: Context | None) -> None:
    """A module whose own weights are not finite has made nothing: it had it."""
    before = context.buffers if context is not None else {}
    parts = [("weight", name, tensor.detach()) for name, tensor in module.named_parameters()]
    prefix = f"{found.name}." if found.name else ""
    for name, buffer in module.named_buffers():
        owner, _, own = f"{prefix}{name}".rpartition(".")
        parts.append(("buffer", name, before.get((owner, own), buffer)))
    looked = [(role, name, look_now(tensor)) for role, name, tensor in parts]
    bad = [extrema.seen(role, name) for role, name, extrema in looked if extrema is not None and not extrema.finite]
    bad = [seen for seen in bad if seen.role == "weight" or math.isnan(seen.abs_max)]  # a buffer may well hold a mask of -Inf
    if bad:
        found.site, found.weights = Site.WEIGHTS, bad


def _refine(found: Found, again: Found) -> None:
    """Take over what the second run knows better: the operator and its source line, and where it was, if that is another place."""
    place = (found.name, found.call, found.near)
    if found.site in (Site.MODULE, Site.GLUE, Site.SUM) and place != (again.name, again.call, again.near):
        found.notes.append(f"by outputs alone it was first seen in {found.place}")
        found.name, found.call, found.type, found.site, found.near = again.name, again.call, again.type, again.site, again.near
        found.kinds, found.cause = again.kinds, again.cause
    found.operator, found.line, found.operator_tensors = again.operator, again.line, again.operator_tensors
    found.notes += again.notes
    found.tensors = again.tensors or found.tensors
    found.legal = again.legal
