"""How much each module's error moves the output: a backward of golden's code gives it for all; what
each module's own code costs: operations, counted as they run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd.graph import GradientEdge, get_gradient_edge
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_flop_count

from accucompare.compare.fits import FitOutput
from accucompare.live.modules import arguments_of, name_modules
from accucompare.live.values import leaves, replaced


class CountingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations by the running module: two for each term of a product, one for each element
    of any other result, none for a view."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self.running = [""]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        output = func(*args, **kwargs)
        packet = func._overloadpacket
        if _is_view(func):
            return output
        try:
            if packet in flop_registry:
                count = flop_registry[packet](*args, **kwargs, out_val=output)
            elif "scaled_dot_product" in str(packet):
                shapes = (tensor.shape for tensor in args[:3])
                count = sdpa_flop_count(*shapes)  # type: ignore[no-untyped-call]
            else:
                count = sum(
                    leaf.numel() for leaf in tree_leaves(output) if isinstance(leaf, torch.Tensor)
                )
        except Exception:  # a count is no reason to stop: an unusual form of an operator
            count = 0
        self.counts[self.running[-1]] += int(count)
        return output


def _is_view(func: Any) -> bool:
    """Whether an operator returns what it was given, and writes nothing."""
    aliases = [each.alias_info for each in func._schema.returns]
    return any(each is not None and not each.is_write for each in aliases)


class ValuePlace(NamedTuple):
    """What a call was given (``entering``), or what it returned."""

    name: str
    call: int
    path: str
    entering: bool


@dataclass
class GoldenForward:
    """A forward of golden's code whose graph is kept."""

    names: Sequence[str]
    wanted: Sequence[FitOutput]
    # where the gradient of each value arrives
    edges: dict[ValuePlace, GradientEdge] = field(default_factory=dict)
    # the values that are to be right
    outputs: dict[FitOutput, torch.Tensor] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)  # operations by module

    def run(
        self,
        model: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        derivatives: bool = True,
    ) -> None:
        """Run it once; without ``derivatives``, only operations are counted."""
        named = name_modules(model).named
        calls = dict.fromkeys(self.names, 0)
        counting = CountingMode()
        handles = []

        def before(name: str, given: tuple[Any, ...], more: dict[str, Any]) -> Any:
            counting.running.append(name)
            # each call has its own view, so that a gradient is of what this call does with a value
            views = {
                path: value.view_as(value)
                for path, value in arguments_of(given, more)
                if _carries_gradient(value)
            }
            for path, view in views.items():
                place = ValuePlace(name, calls[name], path, True)
                self.edges[place] = get_gradient_edge(view)
            return replaced(given, views), replaced(more, views)

        def after(name: str, output: Any) -> None:
            counting.running.pop()
            call, calls[name] = calls[name], calls[name] + 1
            for path, value in leaves(output):
                if not _carries_gradient(value):
                    continue
                self.edges[ValuePlace(name, call, path, False)] = get_gradient_edge(value)
                for each in self.wanted:
                    if (each.name, each.call, each.path) == (name, call, path):
                        self.outputs[each] = value

        for name in self.names:
            module = named[name]
            handles.append(
                module.register_forward_pre_hook(
                    lambda module, given, more, name=name: before(name, given, more),
                    with_kwargs=True,
                )
            )
            handles.append(
                module.register_forward_hook(lambda module, given, out, name=name: after(name, out))
            )
        try:
            for parameter in model.parameters():
                if parameter.is_floating_point() or parameter.is_complex():
                    parameter.requires_grad_(True)
            with torch.set_grad_enabled(derivatives), counting:
                model(*_leaves_of_graph(args), **_leaves_of_graph(kwargs))
        finally:
            for handle in handles:
                handle.remove()
        self.counts = counting.counts

    def gradients(
        self, output: FitOutput, direction: torch.Tensor, again: bool
    ) -> Iterator[tuple[ValuePlace, torch.Tensor]]:
        """One backward: the gradient of ⟨direction, output⟩ with respect to each value that it
        depends on. ``again``: whether another backward follows."""
        places = [*self.edges]
        found = torch.autograd.grad(
            self.outputs[output],
            [self.edges[place] for place in places],
            direction,
            retain_graph=again,
            allow_unused=True,
        )
        for place, gradient in zip(places, found, strict=True):
            if gradient is not None:
                yield place, gradient


def _carries_gradient(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad and torch.is_grad_enabled()


def _leaves_of_graph(value: Any) -> Any:
    """Arguments whose floating tensors ask for gradients."""
    asking = {
        path: tensor.detach().requires_grad_().clone()  # a leaf could not be written into
        for path, tensor in leaves(value)
        if isinstance(tensor, torch.Tensor) and tensor.is_floating_point()
    }
    return replaced(value, asking)
