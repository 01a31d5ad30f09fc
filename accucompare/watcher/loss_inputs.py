"""What the functions near the root of a loss were given, for the checklist, read off autograd's graph: nothing of it is computed again."""

from __future__ import annotations

import math
from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import torch

from accucompare.findings.number import number
from accucompare.findings.vitals import LossInput
from accucompare.live.graph import ACCUMULATES, PASSING_ON
from accucompare.watcher.extrema import Extrema, Meter

#: Functions that take logits or logarithms, by their node; where the prediction is, is their first edge.
_TAKING = {
    "LogSoftmaxBackward0": "cross_entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary_cross_entropy_with_logits",
    "NllLossBackward0": "nll_loss",
    "NllLoss2DBackward0": "nll_loss",
}
#: Functions of a prediction and a target of one shape, to which they are spread first.
_SPREADING = {
    "MseLossBackward0": "mse_loss",
    "SmoothL1LossBackward0": "smooth_l1_loss",
    "HuberLossBackward0": "huber_loss",
    "SubBackward0": "sub",
}
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
#: These, too, leave values as they are, or choose among them.
_LEAVING = PASSING_ON | {"ToCopyBackward0", "IndexBackward0", "IndexSelectBackward0", "MaskedSelectBackward0", "ExpandBackward0"}
#: An axis more, as whoever wants each value to meet each other one asks for it.
_ADDING = ("UnsqueezeBackward0", "ViewBackward0", "ReshapeAliasBackward0", "UnsafeViewBackward0")
#: So many nodes behind logits lies the weight whose rows the classes are.
_BEHIND = 12
_PASSED = 10


@dataclass(eq=False)
class GivenToLoss:
    """What one function was given, its numbers yet to be read; ``ends``: of the targets."""

    function: str
    made_by: str = ""
    shape: tuple[int, ...] = ()
    spread: tuple[int, ...] = ()
    ends: Extrema | None = None
    own: bool = False

    def read(self) -> LossInput:
        """This, with the numbers that were read."""
        low, high = (None, None) if self.ends is None else (number(self.ends.low), number(self.ends.high))
        return LossInput(self.function, self.made_by, self.shape, self.spread, low, high, self.own)


def loss_inputs(nodes: Iterator[Any], meter: Meter, own: Set[int]) -> list[GivenToLoss]:
    """What the functions among these nodes were given.

    Args:
        nodes: behind a loss, the nearest first.
        meter: reads the numbers.
        own: ids of the model's parameters.
    """
    found = []
    for node in nodes:
        name = node.name()
        if name in _TAKING and (before := node.next_functions[0][0]) is not None:
            if before.name() not in _TAKING:  # else it is a cross entropy's likelihood, and its logarithm comes next
                found.append(_taken(node, _TAKING[name], before, meter, own))
        elif name in _SPREADING and (spread := _spread(node)) is not None:
            found.append(GivenToLoss(_SPREADING[name], shape=spread[0], spread=spread[1]))
        elif name in _SPREADING and name != "SubBackward0":
            found.append(GivenToLoss(_SPREADING[name], shape=tuple(node._saved_self.shape)))
    return found


def _taken(node: Any, function: str, before: Any, meter: Meter, own: Set[int]) -> GivenToLoss:
    if function == "nll_loss" and maker_of(before) not in ("softmax", "linear"):  # anything else may well be a logarithm
        return GivenToLoss(function)
    given = GivenToLoss(function, maker_of(before))
    if function == "binary_cross_entropy_with_logits":
        with torch.no_grad():
            given.ends = meter.later(*torch.aminmax(node._saved_target))
        given.shape = tuple(node._saved_target.shape)
        given.own = is_of_parameter(before, given.shape[1] if len(given.shape) > 1 else 1, own)
    return given


def maker_of(node: Any) -> str:
    """The function that made a value, past nodes that change none; empty if it is not one of those that matter."""
    for _ in range(_PASSED):
        if node is None or node.name() not in _LEAVING:
            break
        following = [each for each, _ in node.next_functions if each is not None]
        if len(following) != 1:
            return ""
        node = following[0]
    return "" if node is None else _MAKERS.get(node.name(), "")


def is_of_parameter(node: Any, rows: int, own: Set[int]) -> bool:
    """Whether near behind a node there is one of the model's parameters with so many rows."""
    waiting, known = [node], 0
    while waiting and known < _BEHIND:
        node, known = waiting.pop(0), known + 1
        if node is None:
            continue
        if node.name() == ACCUMULATES:
            if id(node.variable) in own and node.variable.dim() and node.variable.shape[0] == rows:
                return True
            continue
        waiting += [following for following, _ in node.next_functions]
    return False


def _spread(node: Any) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """The shapes of a prediction before and after it met a target, if each of its values met each of the target's, unasked.

    A target without a gradient, as data is: two predictions may well be compared each with each.
    """
    predictions = [edge for edge in node.next_functions if edge[0] is not None]
    fused = node.name() != "SubBackward0"  # what it gives may be one number, and what it was given is kept
    if len(predictions) != 1 or (sizes := tuple(node._saved_self.shape) if fused else _sizes(node, 0)) is None:
        return None
    before, at = predictions[0]
    own, source = (
        (tuple(before._saved_self_sym_sizes), before.next_functions[0][0]) if before.name() == "ExpandBackward0" else (None, before)
    )
    own = own if own is not None else _sizes(before, at)
    count = math.prod(own or ())
    if own is None or count < 2 or sizes.count(count) < 2 or math.prod(sizes) != count * count:
        return None
    if fused and 0 not in node._saved_target.stride():
        return None
    return None if _adds_an_axis(source, own) else (own, sizes)


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
