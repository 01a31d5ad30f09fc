"""Golden's values lent to a module call; its writes into them go to the caller's own tensors."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import torch

from accucompare.compare.constants import TELLS_LAYOUT
from accucompare.live.autograd import PASSING_ON
from accucompare.live.values import dressed_as, local_part, nested, plainly

#: Returns golden's gradient for another.
Exchange = Callable[[torch.Tensor], torch.Tensor]


@dataclass
class Lent:
    """What a module call was given in place of what arrived.

    A module may write into its arguments: then the caller's own tensors must change, too."""

    # (arrived, given, count of writes into given when it was given)
    tensors: list[tuple[torch.Tensor, torch.Tensor, int]] = field(default_factory=list)
    # lists, mappings and objects: (arrived, given)
    containers: list[tuple[Any, Any]] = field(default_factory=list)
    # the given containers' original contents
    contents: list[list[Any]] = field(default_factory=list)
    paths: dict[int, str] = field(default_factory=dict)  # of the given tensors, by their ids

    def goes_through(self, output: Any) -> bool:
        """Whether an output shares a given tensor's memory, but its gradient takes another way.

        True for a view where nothing was written. After a write, the caller's own tensor leads to
        what was written; but not through a custom backward that made the output, and not if the
        output is detached.
        """
        if not isinstance(output, torch.Tensor):  # a number beside the tensors
            return False
        same = [
            (given, version)
            for _, given, version in self.tensors
            if memory_of(given) == memory_of(output)
        ]
        return bool(same) and all(
            given is not output and (given._version == version or not _follows(output, given))
            for given, version in same
        )

    def apart(self) -> list[str]:
        """Paths of written tensors that overlap another argument, whose copy saw no write."""
        with plainly():
            found = [
                given
                for arrived, given, version in self.tensors
                if given._version != version
                and any(
                    other is not arrived and _overlap(arrived, other) for other, *_ in self.tensors
                )
            ]
        return [self.paths[id(given)] for given in found if id(given) in self.paths]

    def paths_behind(self, output: torch.Tensor) -> list[str]:
        """Paths of the given tensors that an output is a part of, if the call wrote nothing."""
        return [
            self.paths[id(given)]
            for _, given, version in self.tensors
            if given is not output
            and given._version == version
            and memory_of(given) == memory_of(output)
            and id(given) in self.paths
        ]

    def give_back(
        self, exchanged: Mapping[int, torch.Tensor], written: Collection[int] = ()
    ) -> None:
        """Write the module's writes into what arrived. Their gradients go on to the module.

        Args:
            exchanged: golden's values by the ids of the outputs and arguments that they replaced.
            written: the ids of the arguments that golden's module wrote into.
        """
        for arrived, given, version in self.tensors:
            reshaped = not given.is_nested and given.shape != arrived.shape
            if given._version != version or id(given) in written or reshaped:
                values = exchanged.get(id(given), given)
                if reshaped:
                    _reshape(arrived, given)
                if given.requires_grad and torch.is_grad_enabled():
                    _WrittenInto.apply(arrived, given, [values.detach()])  # type: ignore[no-untyped-call]
                else:
                    with torch.no_grad(), plainly():
                        arrived.copy_(values)
        own = {key: exchanged[key] for key in written}
        own.update((id(given), arrived) for arrived, given, *_ in (*self.tensors, *self.containers))
        for (arrived, given), before in zip(self.containers, self.contents, strict=True):
            now = contents(given)
            if len(now) == len(before) and all(
                one is other for one, other in zip(now, before, strict=True)
            ):
                continue
            if isinstance(given, list):
                arrived[:] = [own.get(id(part), part) for part in given]
            else:
                ours, theirs = (
                    each if isinstance(each, MutableMapping) else vars(each)
                    for each in (arrived, given)
                )
                parts = {key: own.get(id(part), part) for key, part in theirs.items()}
                ours.clear()
                ours.update(parts)

    def aliases(
        self, exchanged: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> dict[int, torch.Tensor | None]:
        """The caller's own tensors behind outputs that lie in the memory of given tensors.

        If the module wrote there, golden's values are written there too. If not, nothing is
        written: the memory may be the user's. The caller's tensor is returned only if it is close
        to golden's. If the module wrote nothing and computed something other than golden, the
        output is left out: golden's is another part of its input. They are by the id of golden's
        value; ``None`` where the caller's own does not hold it.

        Args:
            exchanged: (computed, golden's value).
        """
        with plainly():
            return self._aliases(exchanged)

    def _aliases(
        self, exchanged: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> dict[int, torch.Tensor | None]:
        found: dict[int, tuple[torch.Tensor | None, torch.Tensor]] = {}
        for computed, golden in exchanged:
            for arrived, given, version in self.tensors:
                if memory_of(computed) == memory_of(given):
                    own = _same_part(computed, given, arrived)
                    if given._version == version:
                        if same_elements(computed, golden):
                            found[id(golden)] = (
                                own if own is not None and is_about(own, golden) else None,
                                golden,
                            )
                    else:
                        found[id(golden)] = own, golden
                        if own is not None and not same_elements(own, golden):
                            # some elements may refuse writes
                            with torch.no_grad(), contextlib.suppress(RuntimeError):
                                own.copy_(golden)
                    break
        # last, since one may have been overwritten by another
        return {
            key: own if own is not None and is_about(own, golden) else None
            for key, (own, golden) in found.items()
        }


def _reshape(arrived: torch.Tensor, given: torch.Tensor) -> None:
    """Give what arrived the shape that a module gave its copy: ``unsqueeze_``, ``resize_``."""
    with plainly():
        try:
            if arrived.numel() == given.numel():
                arrived.as_strided_(given.shape, given.stride())
            else:
                with torch.no_grad():
                    arrived.resize_(given.shape)
        except RuntimeError:  # its memory does not hold that
            arrived.data = given.detach().clone()


class _WrittenInto(torch.autograd.Function):
    """What a module wrote into its argument, in the caller's tensor; gradients go to the module."""

    @staticmethod
    def forward(
        ctx: Any, arrived: torch.Tensor, given: torch.Tensor, values: list[torch.Tensor]
    ) -> torch.Tensor:
        ctx.mark_dirty(arrived)
        with plainly():
            return arrived.copy_(values[0])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        # zeros, not None: for a view, None would leave its whole base without a gradient
        return torch.zeros_like(grads[0]), grads[0], None


#: Nodes of views, beside those in ``PASSING_ON``.
_OTHER_VIEWS = frozenset(
    (
        "AsStridedBackward0",
        "ExpandBackward0",
        "SqueezeBackward1",
        "SqueezeBackward2",
        "ViewBackward1",
        "SwapdimsBackward0",
    )
)

#: Largest relative L2 difference of tensors taken as equal: between rounding and most faults.
_ALIKE = 0.1


def memory_of(tensor: torch.Tensor) -> int:
    """A key that is equal for two tensors in one piece of memory."""
    tensor = local_part(tensor)
    held: torch.Tensor = tensor.values() if tensor.layout is torch.jagged else tensor
    return int(held.untyped_storage()._cdata)


def _follows(output: torch.Tensor, given: torch.Tensor) -> bool:
    """Whether only views lie between what was given and an output in autograd's graph."""
    if not output.requires_grad:
        return not given.requires_grad
    node: Any = output.grad_fn
    while node is not None and node is not given.grad_fn:
        if node.name() not in PASSING_ON and node.name() not in _OTHER_VIEWS:
            return False
        node = node.next_functions[0][0]
    return True


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor's values; a nested tensor's joined into one."""
    return nested.joined(tensor)[0] if tensor.is_nested else local_part(tensor)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors share elements; for different types, whether their memory overlaps."""
    one, other = local_part(one), local_part(other)
    if any(
        each.is_nested or each.layout is not torch.strided or not each.numel()
        for each in (one, other)
    ):
        return False
    if memory_of(one) != memory_of(other):
        return False
    (begin, end), (start, stop) = map(_stretch, (one, other))
    if begin >= stop or start >= end:
        return False
    if one.dtype != other.dtype:
        return True
    taken = torch.zeros((max(end, stop) - min(begin, start)) // one.itemsize, dtype=torch.bool)
    first, second = (
        taken.as_strided(
            each.shape, each.stride(), each.storage_offset() - min(begin, start) // each.itemsize
        )
        for each in (one, other)
    )
    first.fill_(True)
    return bool(second.any())


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    """The byte offsets at which a tensor begins and ends in its memory."""
    last = tensor.storage_offset() + sum(
        (size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )
    return int(tensor.storage_offset() * tensor.itemsize), int((last + 1) * tensor.itemsize)


def is_about(own: torch.Tensor, golden: torch.Tensor) -> bool:
    """Whether two tensors are equal but for rounding."""
    own, golden = _values(own), _values(golden)
    if same_elements(own, golden):
        return True
    if not (own.is_floating_point() or own.is_complex()):
        return False
    finite = golden.isfinite() & own.isfinite()
    difference, norm = (
        torch.where(finite, each, 0).double().norm() for each in (own - golden, golden)
    )
    return bool(difference <= _ALIKE * norm) and same_elements(
        torch.where(finite, 0, own), torch.where(finite, 0, golden)
    )


def may_be(own: torch.Tensor, golden: torch.Tensor) -> bool:
    """Whether one tensor is golden's with a fault at the most: unrelated ones are farther apart."""
    ours, theirs = (each.detach().to("cpu", torch.float64).reshape(-1) for each in (own, golden))
    return not (ours - theirs).norm() > TELLS_LAYOUT * theirs.norm()


def contents(container: Any) -> list[Any]:
    """The parts of a list; the keys and the values of a mapping, or of an object's attributes."""
    if isinstance(container, list):
        return list(container)
    return [
        part
        for item in (
            container if isinstance(container, MutableMapping) else vars(container)
        ).items()
        for part in item
    ]


def same_elements(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors hold the same values; NaN equals NaN."""
    one, other = _values(one), _values(other)
    return bool(((one == other) | ((one != one) & (other != other))).all())


def _same_part(
    part: torch.Tensor, given: torch.Tensor, arrived: torch.Tensor
) -> torch.Tensor | None:
    """The part of ``arrived`` that corresponds to ``part`` of ``given``; ``None`` if unknown."""
    if given.is_nested:  # parts of nested tensors are no views
        return arrived if part is given else None
    if part is given:
        return arrived if part.shape == arrived.shape else None
    alike = (given.shape, given.stride(), part.dtype) == (
        arrived.shape,
        arrived.stride(),
        arrived.dtype,
    )
    if not alike or any(each.is_conj() or each.is_neg() for each in (part, given, arrived)):
        return None
    own = arrived.as_strided(
        part.shape,
        part.stride(),
        arrived.storage_offset() + part.storage_offset() - given.storage_offset(),
    )
    return dressed_as(part, own)
