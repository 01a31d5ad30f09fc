"""What a backward begins with, for the checklist: the loss, and what a cross entropy near it was computed of."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from accucompare.findings.number import number
from accucompare.findings.vitals import Targets
from accucompare.live.graph import ACCUMULATES
from accucompare.live.tensors import dtype_name
from accucompare.watcher.extrema import Extrema, Meter

#: A cross entropy lies at most so many nodes behind the loss.
_NEAR = 40
#: Of an output, the entropy of at most so many rows is computed.
_ROWS = 256


@dataclass(eq=False)
class CrossEntropy:
    """A cross entropy of a loss, its numbers yet to be read.

    Attributes:
        classes, dtype: of the log-probabilities.
        kept: the smallest and the largest label that is not ignored; the former larger than the latter if all are.
        ignored: the share of labels that are.
        lowest: the smallest log-probability.
        entropy: of the output, if it was asked for.
    """

    classes: int
    dtype: str
    kept: Extrema
    ignored: Extrema
    lowest: Extrema
    entropy: Extrema | None = None

    def read(self) -> Targets:
        """This, with the numbers that were read."""
        some = self.kept.low <= self.kept.high
        return Targets(
            self.classes,
            self.dtype,
            number(self.kept.low) if some else None,
            number(self.kept.high) if some else None,
            self.ignored.low,
            number(self.lowest.low),
            None if self.entropy is None else number(self.entropy.low),
        )


def loss_of(roots: Iterable[Any]) -> torch.Tensor | None:
    """The root of a backward that is a loss: floating, of one element."""
    for root in roots:
        if isinstance(root, torch.Tensor) and root.numel() == 1 and root.is_floating_point() and not hasattr(root, "to_local"):
            return root
    return None


def cross_entropy_of(loss: torch.Tensor, meter: Meter, closely: bool) -> CrossEntropy | None:
    """Begin to look at the labels and the log-probabilities of the first cross entropy behind a loss, as autograd has saved them.

    ``closely``: compute the entropy of the output, too.
    """
    for node in _nodes(loss.grad_fn):
        if node.name() not in ("NllLossBackward0", "NllLoss2DBackward0"):
            continue
        scores = node._saved_self
        if scores is None or scores.dim() < 1:
            return None
        axis = 1 if scores.dim() > 1 else 0
        labels, ignored = node._saved_target, node._saved_ignore_index
        with torch.no_grad():
            is_ignored, classes = labels == ignored, scores.shape[axis]
            low = torch.where(is_ignored, torch.iinfo(labels.dtype).max, labels).amin().double()
            high = torch.where(is_ignored, torch.iinfo(labels.dtype).min, labels).amax().double()
            found = CrossEntropy(
                classes,
                dtype_name(scores.dtype),
                meter.later(low, high),
                meter.later(is_ignored.double().mean()),
                meter.later(scores.amin()),
            )
            if closely and scores.dim() == 2:
                rows = scores[:: max(1, len(scores) // _ROWS)].float()
                found.entropy = meter.later(-(rows.exp() * rows.clamp(min=-1e4)).sum(1).mean())  # 0 x -Inf would be NaN
        return found
    return None


def _nodes(first: Any) -> Iterator[Any]:
    """The nodes behind a loss, the nearest first."""
    waiting: list[Any] = [first]
    known: set[Any] = set()
    while waiting and len(known) < _NEAR:
        node = waiting.pop(0)
        if node is None or node in known or node.name() == ACCUMULATES:
            continue
        known.add(node)
        yield node
        waiting += [following for following, _ in node.next_functions]
