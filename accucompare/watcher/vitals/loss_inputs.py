"""What functions near a loss's root were given, read off autograd's graph; for the checklist."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from accucompare.findings.log import Labels, LossInput, number
from accucompare.live.autograd import ACCUMULATES, PASSING_ON
from accucompare.watcher.looking import Extrema, Meter

#: Functions that take logits or logarithms, by their node, whose first edge is the prediction.
_TAKING = {
    "LogSoftmaxBackward0": "cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "NllLossBackward0": "nll_loss",
    "NllLoss2DBackward0": "nll_loss",
}
#: Functions that first broadcast a prediction and a target to one shape.
_SPREADING = {
    "MseLossBackward0": "mse_loss",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
    "SubBackward0": "sub",
}
#: Functions with labels.
_LABELLED = (
    "NllLossBackward0",
    "NllLoss2DBackward0",
    "BinaryCrossEntropyWithLogitsBackward0",
    "BinaryCrossEntropyBackward0",
)
#: What makes a prediction, by its node.
_MAKERS = {
    "SoftmaxBackward0": "softmax",
    "SigmoidBackward0": "sigmoid",
    "ReluBackward0": "relu",
    "TanhBackward0": "tanh",
    "AddmmBackward0": "linear",
    "MmBackward0": "linear",
    "BmmBackward0": "linear",
    "ConvolutionBackward0": "linear",
}
#: Nodes that leave values as they are, or choose among them.
_LEAVING = PASSING_ON | {
    "ToCopyBackward0",
    "IndexBackward0",
    "IndexSelectBackward0",
    "MaskedSelectBackward0",
    "ExpandBackward0",
}
#: Nodes that add an axis, on purpose, so that each value meets each other one.
_ADDING = ("UnsqueezeBackward0", "ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0")
#: The weight whose rows are the classes lies within so many nodes behind the logits.
_BEHIND = 12
_PASSED = 10
#: Up to so many classes, their presence is noted as bits of a whole number that float32 holds.
_BITS = 24


@dataclass(eq=False)
class LabelsOf:
    """One classifier's labels in a step, not read yet; ``ends`` are reversed if all are ignored."""

    counts: list[Extrema] = field(default_factory=list)
    ends: list[Extrema] = field(default_factory=list)
    present: list[Extrema] = field(default_factory=list)

    def settled(self, parameter: str) -> Labels | None:
        """The labels with their numbers; ``None`` if all are ignored."""
        some = [each for each in self.ends if each.low <= each.high]
        if not some:
            return None
        bits = functools.reduce(operator.or_, (int(each.low) for each in self.present), 0)
        ends = number(min(each.low for each in some)), number(max(each.high for each in some))
        return Labels(
            parameter,
            int(sum(each.low for each in self.counts)),
            *ends,
            bits if self.present else None,
        )


def loss_inputs(nodes: Iterable[Any]) -> list[LossInput]:
    """What the functions among these nodes, behind a loss, were given."""
    found = []
    for node in nodes:
        name = node.name()
        if name in _TAKING and (before := node.next_functions[0][0]) is not None:
            # otherwise it is a cross entropy's likelihood, and its logarithm comes next
            if before.name() not in _TAKING:
                found.append(LossInput(_TAKING[name], maker_of(before)))
        elif name in _SPREADING:
            shapes = _shapes(node)
            if shapes is not None:
                found.append(LossInput(_SPREADING[name], shape=shapes[0], spread=shapes[1]))
    return found


def look_at_labels(
    nodes: Iterable[Any], meter: Meter, own: Mapping[int, str], found: dict[str, LabelsOf]
) -> None:
    """Begin to look at the labels of cross entropies whose classes are rows of one of the model's
    parameters.

    Args:
        own: the model's parameters' names, by id.
        found: by parameter name, what was found in this step.
    """
    for node in nodes:
        name = node.name()
        if name not in _LABELLED:
            continue
        labels, before = node._saved_target.detach(), node.next_functions[0][0]
        classes = 1
        if name.startswith("Nll"):
            scores = node._saved_self
            classes = scores.shape[1 if scores.dim() > 1 else 0]
        elif labels.dim() > 1:
            classes = labels.shape[1]
        parameter = parameter_behind(before, classes, own)
        if parameter is None or not labels.numel():
            continue
        each = found.setdefault(parameter, LabelsOf())
        with torch.no_grad():
            low = high = labels
            count = torch.tensor(labels.numel(), device="cpu")
            if name.startswith("Nll"):
                ignored, ends = labels == node._saved_ignore_index, torch.iinfo(labels.dtype)
                low = torch.where(ignored, ends.max, labels)
                high = torch.where(ignored, ends.min, labels)
                count = count - ignored.sum()
                if classes <= _BITS:
                    every = torch.arange(classes, device=labels.device)
                    each.present.append(
                        meter.later(
                            (
                                (labels.reshape(1, -1) == every[:, None]).any(1)
                                * 2.0 ** every.float()
                            ).sum()
                        )
                    )
            each.counts.append(meter.later(count))
            each.ends.append(meter.later(low.amin().double(), high.amax().double()))


def maker_of(node: Any) -> str:
    """The function that made a value, past nodes that change none; empty if it does not matter."""
    for _ in range(_PASSED):
        if node is None or node.name() not in _LEAVING:
            break
        following = [each for each, _ in node.next_functions if each is not None]
        if len(following) != 1:
            return ""
        node = following[0]
    return "" if node is None else _MAKERS.get(node.name(), "")


def parameter_behind(node: Any, rows: int, own: Mapping[int, str]) -> str | None:
    """The name of the first of the model's parameters near behind a node that has so many rows."""
    waiting, known = [node], 0
    while waiting and known < _BEHIND:
        node, known = waiting.pop(0), known + 1
        if node is None:
            continue
        if node.name() == ACCUMULATES:
            if id(node.variable) in own and node.variable.dim() and node.variable.shape[0] == rows:
                return own[id(node.variable)]
            continue
        waiting += [following for following, _ in node.next_functions]
    return None


def _shapes(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shape of a prediction, and the shape it was broadcast to if each of its values met each
    of the target's unintentionally; else empty.

    The target has no gradient, as data has none: two predictions may be compared each with each on
    purpose."""
    predictions = [edge for edge in node.next_functions if edge[0] is not None]
    # its result may be one number, but autograd kept its inputs
    fused = node.name() != "SubBackward0"
    if (
        len(predictions) != 1
        or (sizes := tuple(node._saved_self.shape) if fused else _sizes(node, 0)) is None
    ):
        return None
    before, at = predictions[0]
    while before.name() == "ToCopyBackward0":  # from autocast, after the broadcast
        before, at = before.next_functions[0]
    own: tuple[int, ...] | None
    if before.name() == "ExpandBackward0":
        own, source = tuple(before._saved_self_sym_sizes), before.next_functions[0][0]
    else:
        own, source = _sizes(before, at), before
    if own is None:
        return None
    count = math.prod(own)
    met = count > 1 and sizes.count(count) == 2 and math.prod(sizes) == count * count
    if not met or _adds_an_axis(source, own) or (fused and 0 not in node._saved_target.stride()):
        return own, ()
    return own, sizes


def _adds_an_axis(node: Any, shape: tuple[int, ...]) -> bool:
    while node is not None and node.name() == "ToCopyBackward0":
        node = node.next_functions[0][0]
    if node is None or node.name() not in _ADDING or len(shape) < 2:
        return False
    before = getattr(node, "_saved_self_sym_sizes", None)
    return node.name() == "UnsqueezeBackward0" or (before is not None and len(before) < len(shape))


def _sizes(node: Any, at: int) -> tuple[int, ...] | None:
    """The shape of an output of a node's forward; ``None`` where autograd does not tell."""
    known = getattr(node, "_input_metadata", ())
    return tuple(known[at].shape) if at < len(known) else None
