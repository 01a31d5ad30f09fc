"""Explains a finding before the model changes: by its weights, and by running the step again."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from msgspec.structs import replace
from torch import nn

from accucompare.findings.log import (
    Direction,
    Finding,
    Site,
    TensorRange,
    WatchLimits,
    WatchRemark,
    What,
    remark,
)
from accucompare.findings.origins import INFINITE
from accucompare.live.modules import Modules, arguments_of
from accucompare.reproduce import Snapshot
from accucompare.watcher.again.contexts import Context, Contexts
from accucompare.watcher.again.second_run import origins_again, part_of_this_rank, second_run
from accucompare.watcher.looking import Note, has_memory, look_now

#: Sites where a second run shows nothing more.
_OUTSIDE = (Site.INPUT, Site.LOSS, Site.HOOK, Site.GRADIENTS, Site.UPDATE)
#: Sites inside a module's own code.
_OF_ITS_OWN = (Site.MODULE, Site.GLUE)


@dataclass(eq=False)
class Explainer:
    """Explains the findings of one model."""

    modules: Modules
    contexts: Contexts
    limits: WatchLimits

    def explain(self, finding: Finding, notes: Sequence[Note]) -> tuple[Finding, Snapshot | None]:
        """Add to a finding its weights, the operator that made it, and notes. Returns the finding
        with all that; and what the module call was given, for a reproducer, or ``None`` if the step
        could not be run again."""
        context = self._context_of(finding, notes)
        module = self.modules.named.get(finding.name)
        weights: list[TensorRange] | None = []
        if (
            module is not None
            and finding.direction is Direction.FORWARD
            and finding.site in _OF_ITS_OWN
        ):
            same = (
                context is not None and context.own and context.versions == self.contexts.versions()
            )
            weights = _weights_at(finding, module, notes, context, same)
            finding = (
                finding
                if weights is not None
                else replace(finding, unseen=[*finding.unseen, "weights"])
            )
        if finding.site is Site.INPUT and context is not None:
            finding = finding.noting(*_first_places(finding, context))
        if finding.site in _OUTSIDE or not finding.type:  # no type: a point outside of the model
            return finding, None
        if context is None and finding.site is Site.SUM:
            return finding, None
        if finding.second:
            why = remark("not-run-again", why=remark("second-backward"))
            return finding.noting(why), None
        if context is None:
            blamed = _blame_weights(finding, weights or [])
            return blamed.noting(remark("not-run-again", why=remark("not-kept"))), None
        second = second_run(
            context, finding, notes, self.modules, self.contexts.versions(), self.limits
        )
        # what a weight holds came from elsewhere
        if second.note is not None and (
            second.showed or _blame_weights(finding, weights or []) is finding
        ):
            finding = finding.noting(second.note)
        if second.reproducer_note is not None:
            finding = replace(finding, reproducer_notes=[second.reproducer_note])
        if second.finding is not None:
            finding = _refined(finding, second.finding)
        return _blame_weights(finding, weights or []), second.snapshot

    def part_of_this_rank(self, finding: Finding) -> tuple[Finding, Snapshot | None]:
        """Another rank's finding, with what this rank has of the last call of both, if there is
        one."""
        context = next(
            (each for each in reversed(self.contexts.kept) if each.talks and not each.obstacle),
            None,
        )
        if context is None:
            return finding, None
        assert context.talks is not None
        part = part_of_this_rank(context, context.talks)
        assert part.reproducer_note is not None
        return replace(finding, reproducer_notes=[part.reproducer_note]), part.snapshot

    def origins_again(self, finding: Finding, notes: Sequence[Note]) -> list[Finding] | None:
        """The origins that operators show when the call of a finding's module is run again. Returns
        Nothing for an Inf that something was only filled with, which is legal; ``None`` if the
        operators cannot tell."""
        module = self.modules.named.get(finding.name)
        if (
            finding.direction is not Direction.FORWARD
            or finding.site not in _OF_ITS_OWN
            or not finding.origin
            or module is None
        ):
            return None
        context = self._context_of(finding, notes)
        if context is None or any(map(_is_spoilt, module.parameters())):
            return None
        found = origins_again(context, finding, self.modules, self.contexts.versions(), self.limits)
        return None if not found and not set(finding.kinds) <= INFINITE else found

    def has_spoilt_a_buffer(self) -> bool:
        """Whether a buffer is not finite that was finite when a call of this step began."""
        buffers = {
            name: tensor for kind, name, tensor in self.modules.tensors() if kind == "buffers"
        }
        pairs = (
            (copy, buffers.get(name))
            for context in self.contexts.kept
            for name, copy in context.buffers.items()
        )
        return any(
            now is not None and not _is_finite(now) and _is_finite(copy) for copy, now in pairs
        )

    def _context_of(self, finding: Finding, notes: Sequence[Note]) -> Context | None:
        """The outermost call of a finding; ``None`` for a sum over several."""
        if finding.site is Site.SUM and len(self.contexts.kept) == 1:
            return self.contexts.kept[0]
        parents = {each.place.key: each.place.parent for each in notes if each.what is What.BEGAN}
        key: tuple[str, int] | None = (finding.name, finding.call)
        while key is not None and parents.get(key) is not None:
            key = parents[key]
        return self.contexts.find(key)


def _is_spoilt(parameter: nn.Parameter) -> bool:
    """Whether a trained parameter is not finite; an untrained one may be a mask."""
    return parameter.requires_grad and has_memory(parameter) and not _is_finite(parameter)


def _is_finite(tensor: torch.Tensor) -> bool:
    return (looked := look_now(tensor.detach())) is None or looked.finite


def _first_places(finding: Finding, context: Context) -> list[WatchRemark]:
    """Where in the inputs the first value is that is not finite."""
    parts = dict(arguments_of(context.args, context.kwargs))
    notes = []
    for entry in finding.tensors:
        part = parts.get(entry.path)
        if isinstance(part, torch.Tensor) and part.dim() > 0 and part.layout is torch.strided:
            places = (~torch.isfinite(part.detach())).nonzero()
            if len(places):
                rows = len(torch.unique(places[:, 0]))
                notes.append(
                    remark(
                        "first-at",
                        path=entry.path,
                        index=places[0].tolist(),
                        rows=rows,
                        length=len(part),
                    )
                )
    return notes


def _weights_at(
    finding: Finding, module: nn.Module, notes: Sequence[Note], context: Context | None, same: bool
) -> list[TensorRange] | None:
    """The weights and buffers of a call: its module's own, and those of uncalled modules in it,
    which it may use. Returns all of them as they were when it began; ``None`` if some were not
    looked at then and have changed.

    Args:
        same: whether the parameters are still the ones that the call had.
    """
    prefix = f"{finding.name}." if finding.name else ""
    began = next(
        (
            each
            for each in notes
            if each.what is What.BEGAN and each.place.key == (finding.name, finding.call)
        ),
        None,
    )
    entry = (
        [extrema.range_of(role, path) for role, path, extrema in began.parts if role != "input"]
        if began is not None
        else []
    )
    known = {each.path for each in entry}
    called = {each.place.name for each in notes if each.what is What.BEGAN}
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
                entry += [looked.range_of(role, name)] if looked is not None else []
    return entry


def _blame_weights(finding: Finding, weights: Sequence[TensorRange]) -> Finding:
    """If a module's own weights are not finite, they are the origin."""
    bad = [entry for entry in weights if not entry.finite]
    # a buffer may hold a mask of -Inf
    bad = [entry for entry in bad if entry.role == "weight" or math.isnan(entry.abs_max)]
    made_of = [entry for entry in finding.operator_tensors if entry.role == "input"]
    if not bad or (made_of and all(entry.finite for entry in made_of)):
        return finding
    return replace(finding, site=Site.WEIGHTS, near="", weights=bad, unseen=[])


def _refined(finding: Finding, second: Finding) -> Finding:
    """The finding with what the second run knows better: operator, source line and place."""
    place = (finding.name, finding.call, finding.near)
    if finding.site in (Site.MODULE, Site.GLUE, Site.SUM) and place != (
        second.name,
        second.call,
        second.near,
    ):
        finding = replace(
            finding.noting(remark("first-seen", place=finding.place)),
            **{
                name: getattr(second, name)
                for name in ("name", "call", "type", "site", "near", "kinds", "cause")
            },
        )
    return replace(
        finding.noting(*second.notes),
        operator=second.operator,
        line=second.line,
        operator_tensors=second.operator_tensors,
        tensors=second.tensors or finding.tensors,
        legal=second.legal,
        unseen=[*finding.unseen, *(each for each in second.unseen if each not in finding.unseen)],
    )
