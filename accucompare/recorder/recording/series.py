"""A training step in numbers: losses, rates, gradient norms, loss scale, batch, weights."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import xxhash
from torch.nn.parameter import is_lazy

from accucompare.bundle.format import Record, StepSeries
from accucompare.live.modules import in_trial_call
from accucompare.live.operators import is_plain
from accucompare.live.values import to_host
from accucompare.numbers import DTYPES, Statistics, digest, summarize

#: The most nodes between a scaled loss and the backward's root, such as an accumulation's division.
_MOST_NODES = 32

#: Holds a number or digest that comes later, when the record is written.
Later = list[Any]
#: A tensor's bits: a digest, a sum on its device that is read later, or ``None`` if unreadable.
BitsNow = str | torch.Tensor | None


@dataclass
class _Numbers:
    """The running step. Tensors are copies, read at its end: nothing waits for a device earlier."""

    # each with its loss scale
    losses: list[tuple[torch.Tensor, Any]] = field(default_factory=list)
    # those of the last backward, and those whose gradients were only asked for
    last: list[tuple[torch.Tensor, Any]] = field(default_factory=list)
    asked: list[tuple[torch.Tensor, Any]] = field(default_factory=list)
    lr: dict[str, Any] = field(default_factory=dict)
    # of gradients, by update and id of the parameter
    norms: dict[tuple[int, int], Later] = field(default_factory=dict)
    # the same, by update, where gradients were clipped
    clipped: dict[int, list[float | None]] = field(default_factory=dict)
    of_parts: bool = False
    scale: Any = None
    skipped: bool = False
    overflowed: list[torch.Tensor] = field(default_factory=list)
    updates: int = 0
    # digests of the tensors given to each call
    batch: list[list[Later]] = field(default_factory=list)
    weights: list[Later] | None = None
    own_weights: list[BitsNow] | None = None
    begun: bool = False


class SeriesRecorder:
    """Collects each step's numbers. Recorded values are not read again: the writer calls back."""

    def __init__(self) -> None:
        self.backwards = 0
        self._now = _Numbers()
        self._scales: dict[int, Any] = {}  # by the number of the node that a scaler made
        self._optimizers: dict[str, list[int]] = {}  # ids, by class
        # of parameters, with the state that tells whether they were written into
        self._digests: dict[int, tuple[tuple[int, int], str | None]] = {}

    @property
    def scale(self) -> float:
        """By which a scaler has multiplied the running step's losses; 1 without one."""
        return 1.0 if self._now.scale is None else _number(self._now.scale)

    def scaled(self, results: Iterable[Any], scale: Any) -> None:
        """A scaler has multiplied losses by ``scale``, a tensor or a number."""
        self._now.scale = scale = _copy(scale)
        for result in results:
            if isinstance(result, torch.Tensor) and result.grad_fn is not None:
                self._scales[result.grad_fn._sequence_nr()] = scale

    def backward_begins(self, roots: Iterable[Any]) -> None:
        """Keep the roots that are losses: floating, one element."""
        if in_trial_call():
            return
        self.backwards += 1
        self._now.begun = True
        self._now.last = []
        for root in roots:
            value = (
                _local(root)
                if isinstance(root, torch.Tensor) and root.numel() == 1 and root.is_floating_point()
                else None
            )
            if value is not None:
                self._now.last.append((_copy(value), self._scale_of(root)))
        self._now.losses += self._now.last

    def gradients_asked(self) -> None:
        """The last backward gave its gradients to its caller, as for a penalty: its roots are
        losses only if the step has no others."""
        now = self._now
        if now.last:
            del now.losses[-len(now.last) :]
            now.asked, now.last = [*now.asked, *now.last], []

    def rates(self, optimizer: Any) -> None:
        """An optimizer is about to step, or to be skipped."""
        kind = type(optimizer).__name__
        known = self._optimizers.setdefault(kind, [])
        if id(optimizer) not in known:
            known.append(id(optimizer))
        place = known.index(id(optimizer))
        for number, group in enumerate(optimizer.param_groups):
            if (lr := group.get("lr")) is not None:
                self._now.lr.setdefault(
                    f"{kind}#{place + 1}.{number}" if place else f"{kind}.{number}", _copy(lr)
                )

    def left_out(self) -> None:
        """A scaler has skipped an update."""
        self._now.skipped = self._now.begun = True

    def has_part(self) -> None:
        """A gradient lies on several ranks."""
        self._now.of_parts = True

    def norm_of(self, parameter: torch.Tensor) -> Callable[[Record], None]:
        """What to call with the record of a parameter's gradient."""
        later = self._now.norms[self._now.updates, id(parameter)] = [None]
        return functools.partial(_keep_norm, later)

    def measure(self, parameter: torch.Tensor, grad: torch.Tensor) -> None:
        """Measure a gradient now: it is not recorded, or has no plain data."""
        self._now.norms[self._now.updates, id(parameter)] = [norm(grad)]

    def clipped(self, grads: Iterable[torch.Tensor]) -> None:
        """Keep the norms of an update's gradients, some of which were clipped."""
        self._now.clipped[self._now.updates] = [norm(grad) for grad in grads]

    def updated(self, overflowed: torch.Tensor | None) -> None:
        """An update ended. ``overflowed`` > 0: a fused optimizer skipped it for its gradients."""
        self._now.begun = True
        self._now.updates += 1
        if overflowed is not None:
            self._now.overflowed.append(_copy(overflowed))

    @property
    def skipped(self) -> bool:
        """Whether a scaler has left out an update of the step."""
        return self._now.skipped

    @property
    def wants_weights(self) -> bool:
        """Whether no update of the step has begun yet."""
        return self._now.weights is None

    def hold(self, parameters: Iterable[torch.Tensor]) -> None:
        """The model has these, and its optimizer steps copies or parts of them."""
        if self._now.own_weights is None:
            self._now.own_weights = [bits_now(each) for each in parameters]

    def weight(self, parameter: torch.Tensor, recorded: bool) -> Callable[[Record], None]:
        """Digest a parameter before the first update. Returns what to call with its record."""
        if self._now.weights is None:
            self._now.weights = []
        later: Later = [None if recorded else self._digest_of(parameter)]
        self._now.weights.append(later)
        return functools.partial(_keep_digest, later)

    def rewritten(self, parameters: Iterable[int]) -> None:
        """Parameters, by their ids, hold other bits than PyTorch's counts of writes tell."""
        for each in parameters:
            self._digests.pop(each, None)

    def call_begins(self) -> None:
        self._now.batch.append([])

    def given(self, tensor: torch.Tensor, recorded: bool) -> Callable[[Record], None]:
        """Digest a tensor given to the model. Returns what to call with its record."""
        later: Later = [None if recorded else digest_of(tensor)]
        self._now.batch[-1].append(later)
        return functools.partial(_keep_digest, later)

    def end_step(self, step: int) -> Callable[[], StepSeries] | None:
        """End the step. Returns what gives its numbers later; ``None`` if it did not train."""
        numbers, self._now = self._now, _Numbers()
        self._scales.clear()
        return functools.partial(_entry, step, numbers) if numbers.begun else None

    def _scale_of(self, root: torch.Tensor) -> Any:
        """The factor by which a scaler has multiplied a loss, if any."""
        waiting: list[Any] = [root.grad_fn]
        known: set[int] = set()
        while waiting and len(known) < _MOST_NODES and self._scales:
            node = waiting.pop(0)
            if node is not None and (number := node._sequence_nr()) not in known:
                if number in self._scales:
                    return self._scales[number]
                known.add(number)
                waiting += [following for following, _ in node.next_functions]
        return None

    def _digest_of(self, parameter: torch.Tensor) -> str | None:
        """A parameter's digest, read again only after a write."""
        if parameter.is_inference():
            return digest_of(parameter)
        state = (
            parameter._version,
            parameter.data_ptr() if type(parameter.data) is torch.Tensor else 0,
        )
        if self._digests.get(id(parameter), (None,))[0] != state:
            self._digests[id(parameter)] = state, digest_of(parameter)
        return self._digests[id(parameter)][1]


def norm(tensor: torch.Tensor) -> float | None:
    """A tensor's L2 norm in float64; NaN or Inf if it holds any, ``None`` if unreadable."""
    values = tensor.detach().coalesce().values() if tensor.layout is torch.sparse_coo else tensor
    host = to_host(values)
    return None if host.array is None else _norm(summarize(host.array, DTYPES[host.dtype]))


def digest_of(tensor: torch.Tensor) -> str | None:
    """A tensor's digest; ``None`` if it has no plain data."""
    host = to_host(tensor)
    return None if host.array is None else digest(host.array)


def bits_now(tensor: torch.Tensor) -> BitsNow:
    """A digest on the host; on a device the sum of the words, which does not see permutations."""
    if is_lazy(tensor) or tensor.is_meta:
        return None
    local = tensor.detach()
    if hasattr(local, "to_local"):  # a DTensor's own part: no other rank is asked
        local = local.to_local()
    if local.is_cpu or not is_plain(local):
        return digest_of(local)
    words = {1: torch.uint8, 2: torch.int16}.get(local.element_size(), torch.int32)
    try:
        return local.contiguous().view(words).sum(dtype=torch.int64)
    except RuntimeError:  # a layout of the device's own
        return digest_of(local)


def _norm(statistics: Statistics) -> float:
    """The norm of all values. Statistics leave out the non-finite ones."""
    if statistics.nan:
        return math.nan
    return math.inf if statistics.inf or statistics.l2 is None else statistics.l2


def _keep_norm(later: Later, record: Record) -> None:
    later[0] = None if record.statistics is None else _norm(record.statistics)


def _keep_digest(later: Later, record: Record) -> None:
    later[0] = record.digest


def _local(tensor: Any) -> torch.Tensor | None:
    """A tensor's own data, without asking other ranks; ``None`` if there is none."""
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor) or tensor.is_meta:
        return None
    if hasattr(tensor, "to_local"):
        tensor = (
            tensor.detach().to_local()
            if all(each.is_replicate() for each in tensor.placements)
            else None
        )
    own: torch.Tensor | None = tensor
    return own


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _number(value: Any) -> float:
    return float(value.item() if isinstance(value, torch.Tensor) else value)


def _total(norms: Iterable[float | None]) -> float | None:
    """The norm of parts together, from their norms; ``None`` if there are none, or an unknown."""
    parts = list(norms)
    if not parts or any(part is None for part in parts):
        return None
    if any(math.isnan(part) for part in parts if part is not None):  # hypot(inf, nan) is inf
        return math.nan
    return math.hypot(*(part for part in parts if part is not None))


def _mixed(digests: Iterable[str | None]) -> str:
    """One digest of several in any order: model versions may order or name them differently."""
    return xxhash.xxh3_128_hexdigest("\n".join(sorted(each or "" for each in digests)).encode())


def _entry(step: int, numbers: _Numbers) -> StepSeries:
    left_out = sum(_number(each) > 0 for each in numbers.overflowed)
    clipped: list[float | None] = []
    for (update, _), later in numbers.norms.items():
        clipped += [] if update in numbers.clipped else later
    return StepSeries(
        step=step,
        losses=tuple(
            _number(loss) / (1.0 if scale is None else _number(scale))
            for loss, scale in numbers.losses or numbers.asked
        ),
        lr={name: _number(lr) for name, lr in numbers.lr.items()},
        grad_norm=_total(later[0] for later in numbers.norms.values()),
        clipped_norm=_total(
            [*clipped, *(part for parts in numbers.clipped.values() for part in parts)]
        )
        if numbers.clipped
        else None,
        of_parts=numbers.of_parts,
        loss_scale=None if numbers.scale is None else _number(numbers.scale),
        skipped=numbers.skipped or left_out > 0,
        updates=numbers.updates - left_out,
        batch=_mixed(_mixed(later[0] for later in call) for call in numbers.batch)
        if numbers.batch
        else None,
        weights=None if numbers.weights is None else _mixed(later[0] for later in numbers.weights),
        own_weights=None
        if numbers.own_weights is None
        else _mixed(
            f"{each.item():x}" if isinstance(each, torch.Tensor) else each
            for each in numbers.own_weights
        ),
    )
