"""What more can be said of a finding, while the model still is as it was: its weights, and the step run again."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from msgspec.structs import replace
from torch import nn

from accucompare.findings.events import Direction, Finding, Site, TensorRange
from accucompare.findings.observations import MINUS, Limits, What
from accucompare.live.hooks import arguments_of
from accucompare.live.names import Modules
from accucompare.reproduce.snapshot import Snapshot
from accucompare.watcher.contexts import Context, Contexts
from accucompare.watcher.extrema import look_now
from accucompare.watcher.notes import Note
from accucompare.watcher.second_run import is_fill, replay

#: Where running a step again says no more.
_OUTSIDE = (Site.INPUT, Site.LOSS, Site.HOOK, Site.GRADIENTS, Site.UPDATE)
#: Where a module's own code made it, or had it in its weights.
_OF_ITS_OWN = (Site.MODULE, Site.GLUE)


class Explainer:
    """Explains the findings of one model."""

    def __init__(self, modules: Modules, contexts: Contexts, limits: Limits) -> None:
        self._modules = modules
        self._contexts = contexts
        self._limits = limits

    def explain(self, found: Finding, noted: Sequence[Note]) -> tuple[Finding, Snapshot | None]:
        """Say of a finding what weights it had, which operator made it, and notes.

        Args:
            found: an origin.
            noted: what was heard in its step.

        Returns:
            The finding with all that; and what the module call was given, for a reproducer, or ``None`` if the step could not be run again.
        """
        context = self._context_of(found, noted)
        module = self._modules.named.get(found.name)
        weights: list[TensorRange] | None = []
        if module is not None and found.direction is Direction.FORWARD and found.site in _OF_ITS_OWN:
            same = context is not None and context.own and context.versions == self._contexts.versions()
            weights = _weights_at(found, module, noted, context, same)
            found = found if weights is not None else replace(found, unseen=[*found.unseen, "weights"])
        if found.site is Site.INPUT and context is not None:
            found = found.noting(*_first_places(found, context))
        if found.site in _OUTSIDE or not found.type:  # no type: a point outside of the model
            return found, None
        if context is None and found.site is Site.SUM:
            return found, None
        if found.second:
            return found.noting("the step was not run again: it was in a second backward, through gradients"), None
        if context is None:
            blamed = _blame_weights(found, weights or [])
            return blamed.noting("the step was not run again: what that call was given was not kept"), None
        again = replay(context, found, noted, self._modules, self._contexts.versions(), self._limits)
        if again.note:
            found = found.noting(again.note)
        if again.reproducer_note:
            found = replace(found, reproducer_notes=[again.reproducer_note])
        if again.found is not None:
            found = _refined(found, again.found)
        return _blame_weights(found, weights or []), again.snapshot

    def is_fill(self, found: Finding, noted: Sequence[Note]) -> bool:
        """Whether a finding is a -Inf alone that a module's output was filled with, which is legal until it does harm."""
        if found.kinds != [MINUS] or found.direction is not Direction.FORWARD or found.site not in _OF_ITS_OWN or not found.origin:
            return False
        context = self._context_of(found, noted)
        return context is not None and is_fill(context, found, self._modules, self._contexts.versions(), self._limits)

    def _context_of(self, found: Finding, noted: Sequence[Note]) -> Context | None:
        """The outermost call in which something was found; of a sum over several, none."""
        if found.site is Site.SUM and len(self._contexts.kept) == 1:
            return self._contexts.kept[0]
        parents = {each.place.key: each.place.parent for each in noted if each.what is What.BEGAN}
        key: tuple[str, int] | None = (found.name, found.call)
        while key is not None and parents.get(key) is not None:
            key = parents[key]
        return self._contexts.find(key)


def _first_places(found: Finding, context: Context) -> list[str]:
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


def _weights_at(found: Finding, module: nn.Module, noted: Sequence[Note], context: Context | None, same: bool) -> list[TensorRange] | None:
    """What a call had of weights and buffers: its module's own, and those of modules in it that were not called, whose it may use.

    Args:
        same: whether the parameters are the ones that the call had.

    Returns:
        All of them as they were when it began; ``None`` if some were not looked at then, and are others now.
    """
    prefix = f"{found.name}." if found.name else ""
    began = next((each for each in noted if each.what is What.BEGAN and each.place.key == (found.name, found.call)), None)
    seen = [extrema.seen(role, path) for role, path, extrema in began.parts if role != "input"] if began is not None else []
    known, called = {each.path for each in seen}, {each.place.name for each in noted if each.what is What.BEGAN}
    before = context.buffers if context is not None else {}
    for owner, child in module.named_modules():
        if owner and prefix + owner in called:
            continue
        for role, table in (("weight", child._parameters), ("buffer", child._buffers)):
            for own, tensor in table.items():
                name = f"{owner}.{own}" if owner else own
                if tensor is None or name in known:
                    continue
                if not same:
                    return None
                looked = look_now(before.get(prefix + name, tensor.detach()))
                seen += [looked.seen(role, name)] if looked is not None else []
    return seen


def _blame_weights(found: Finding, weights: Sequence[TensorRange]) -> Finding:
    """A module whose own weights are not finite has made nothing: it had it."""
    bad = [seen for seen in weights if not seen.finite]
    bad = [seen for seen in bad if seen.role == "weight" or math.isnan(seen.abs_max)]  # a buffer may well hold a mask of -Inf
    made_of = [seen for seen in found.operator_tensors if seen.role == "input"]
    if not bad or (made_of and all(seen.finite for seen in made_of)):
        return found
    return replace(found, site=Site.WEIGHTS, near="", weights=bad, unseen=[])


def _refined(found: Finding, again: Finding) -> Finding:
    """With what the second run knows better: the operator and its source line, and where it was, if that is another place."""
    place = (found.name, found.call, found.near)
    if found.site in (Site.MODULE, Site.GLUE, Site.SUM) and place != (again.name, again.call, again.near):
        found = replace(
            found.noting(f"by outputs alone it was first seen in {found.place}"),
            **{name: getattr(again, name) for name in ("name", "call", "type", "site", "near", "kinds", "cause")},
        )
    return replace(
        found.noting(*again.notes),
        operator=again.operator,
        line=again.line,
        operator_tensors=again.operator_tensors,
        tensors=again.tensors or found.tensors,
        legal=again.legal,
        unseen=list(dict.fromkeys([*found.unseen, *again.unseen])),
    )
