"""A backward's loss, and the inputs of a cross entropy near it, for the checklist."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch

from accucompare.findings.log import Number, Targets, number
from accucompare.live.autograd import ACCUMULATES
from accucompare.live.values import dtype_name
from accucompare.watcher.looking import Extrema, Meter

#: A cross entropy lies at most so many nodes behind the loss.
_NEAR = 40
#: Rows of an output whose entropy is computed, at most.
_ROWS = 256
#: Allowed deviation from 1 of a row's summed probabilities, as bfloat16 has it.
_UNEVEN = 0.05


class Padding(NamedTuple):
    """The id of padding, and how many ids there are."""

    id: int
    ids: int


def loss_of(roots: Iterable[Any]) -> torch.Tensor | None:
    """The root of a backward that is a loss: floating, of one element."""
    for root in roots:
        if (
            isinstance(root, torch.Tensor)
            and root.numel() == 1
            and root.is_floating_point()
            and not hasattr(root, "to_local")
        ):
            return root
    return None


def cross_entropy_of(
    loss: torch.Tensor, meter: Meter, closely: bool, padding: Padding | None = None
) -> Callable[[], Targets] | None:
    """Begin to look at the labels and log-probabilities, saved by autograd, of the first cross
    entropy behind a loss; what is returned gives their numbers, once the meter has read them.

    Args:
        closely: also compute the output's entropy, and how far the labels are missed.
        padding: of the model's tokens, if it is known.
    """
    for node in nodes_near(loss.grad_fn):
        if node.name() in ("NllLossBackward0", "NllLoss2DBackward0"):
            return _targets_of(loss, node, meter, closely, padding)
    return None


def _targets_of(
    loss: torch.Tensor, node: Any, meter: Meter, closely: bool, padding: Padding | None
) -> Callable[[], Targets] | None:
    scores, labels, ignored = node._saved_self, node._saved_target, node._saved_ignore_index
    if scores is None or scores.dim() < 1 or scores.numel() == 0 or labels.numel() == 0:
        return None
    entropy = missed = padded = None
    with torch.no_grad():
        is_ignored, classes = labels == ignored, scores.shape[1 if scores.dim() > 1 else 0]
        low = torch.where(is_ignored, torch.iinfo(labels.dtype).max, labels).amin().double()
        high = torch.where(is_ignored, torch.iinfo(labels.dtype).min, labels).amax().double()
        kept, share = meter.later(low, high), meter.later(is_ignored.double().mean())
        if closely and scores.dim() == 2:
            apart = max(1, len(scores) // _ROWS)
            rows = scores[::apart].float()
            at = labels[::apart, None].clamp(0, classes - 1)
            of_labels = torch.where(is_ignored[::apart], math.nan, -rows.gather(1, at)[:, 0])
            missed = meter.later(of_labels.nanmean())
            chances = rows.exp()
            # 0 x -Inf would be NaN
            mean = (chances * rows.clamp(min=-1e4)).sum(1).mean().abs()
            # nll_loss accepts anything
            are_logarithms = ((chances.sum(1) - 1).abs() < _UNEVEN).all()
            entropy = meter.later(torch.where(are_logarithms, mean, math.nan))
        if padding is not None and padding.ids == classes and _counts(node, padding.id):
            is_pad = labels.reshape(-1) == padding.id
            padded = meter.later((is_pad[1:] & is_pad[:-1]).double().mean())
    dtype, smoothing = dtype_name(scores.dtype), _smoothing_of(loss.grad_fn, node, classes)

    def settled() -> Targets:
        some = kept.low <= kept.high  # else all labels are ignored
        return Targets(
            classes,
            dtype,
            number(kept.low) if some else None,
            number(kept.high) if some else None,
            share.low,
            _known(entropy),
            smoothing,
            None if padded is None else padded.low,
            _known(missed),
        )

    return settled


def _known(found: Extrema | None) -> Number | None:
    return None if found is None or math.isnan(found.low) else number(found.low)


def _counts(node: Any, label: int) -> bool:
    """Whether a label counts in a cross entropy's mean."""
    weight = node._saved_weight
    # reading it would wait for the device
    weighs = weight is None or (weight.device.type == "cpu" and bool(weight[label] != 0))
    return weighs and node._saved_reduction != 0 and node._saved_ignore_index != label


def _smoothing_of(first: Any, likelihood: Any, classes: int) -> float:
    """The label smoothing s; torch has (1 - s) x the loss + s / classes x the loss over all."""
    for node in nodes_near(first):
        parts = [
            part
            for part, _ in node.next_functions
            if part is not None and part.name().startswith("MulBackward")
        ]
        factors = [getattr(part, "_saved_other", None) for part in parts]
        if (
            node.name() != "AddBackward0"
            or len(parts) != 2
            or not any(part.next_functions[0][0] is likelihood for part in parts)
        ):
            continue
        kept, spread = factors if parts[0].next_functions[0][0] is likelihood else reversed(factors)
        if not isinstance(kept, float) or not isinstance(spread, float):
            continue
        if 0 <= kept < 1 and math.isclose(1 - kept, spread * classes, rel_tol=1e-6):
            return 1 - kept
    return 0.0


def nodes_near(first: Any) -> Iterator[Any]:
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
