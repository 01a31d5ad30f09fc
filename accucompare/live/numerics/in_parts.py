"""Compute on one device in the parts in which ranks would: each part of a product rounded in its
type, and parts of a sum added up in the ranks' order.

While ``in_parts`` lasts, products with parameters that ranks hold parts of are computed part by
part, and operators with a parameter see the rows of one rank after the other. All is plain tensor
code, so that autograd adds up the parts' gradients, too. Modules take and give whole tensors."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from accucompare.live.modules import Modules, Unsaved

#: The lengths of the ranks' parts along each axis of a parameter.
_Cut = tuple[tuple[int, ...], ...]

#: The axis along which ranks hold parts of a batch's rows, and their lengths.
_Rows = tuple[int, tuple[int, ...]]
_NO_ROWS: _Rows = (0, ())

#: Products with a weight, by name, with the names of their arguments.
_PRODUCTS = {"linear": ("input", "weight", "bias"), "addmm": ("bias", "input", "weight")}
_ELEMENTWISE = {"mul", "add", "__mul__", "__rmul__", "__add__", "__radd__"}
#: Operators that compute each row of a batch apart, but for the gradient of a parameter.
_ROW_BY_ROW = {
    *_PRODUCTS,
    *_ELEMENTWISE,
    *("embedding", "layer_norm", "rms_norm", "group_norm", "conv1d", "conv2d", "conv3d"),
}


class _Parts(TorchFunctionMode):
    """Computes one module's operators on its own parameters in parts."""

    def __init__(
        self,
        parameters: Mapping[str, torch.Tensor],
        cuts: Mapping[str, _Cut],
        batches: int,
        rows: _Rows,
    ) -> None:
        super().__init__()
        self._done: set[str] = set()
        self._parameters = parameters  # keeps their ids
        self._names = {id(parameter): name for name, parameter in parameters.items()}
        self._cuts = cuts
        self._batches = batches
        self._rows = rows

    def left(self) -> set[str]:
        return {name for name, cut in self._cuts.items() if len(cut) > 1} - self._done

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        own = [each for each in (*args, *kwargs.values()) if id(each) in self._names]
        if name not in _ROW_BY_ROW or not own:
            return func(*args, **kwargs)
        if name == "embedding":  # each row is that of one part, whole
            self._done.update(self._names[id(each)] for each in own)
        compute: Callable[..., Any] = func
        if name in _PRODUCTS:
            compute = functools.partial(self._product, func)
        axes = max(each.dim() for each in own) + (name in _ELEMENTWISE)
        return self._by_rows(compute, axes, args, kwargs)

    def _by_rows(self, compute: Callable[..., Any], axes: int, args: Any, kwargs: Any) -> Any:
        """Compute for the rows of one rank after the other. ``axes``: how many a tensor of rows has
        at least."""
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        others = [each for each in tensors if id(each) not in self._names]
        if len(others) != 1 or others[0].dim() < max(axes, 2):
            return compute(*args, **kwargs)

        def of(part: torch.Tensor) -> torch.Tensor:
            own = (part if each is others[0] else each for each in args)
            return compute(*own, **kwargs)  # type: ignore[no-any-return]

        batches, (axis, lengths) = self._batches, self._rows
        if 0 < axis < others[0].dim() - 1 and others[0].shape[axis] == sum(lengths):
            of = functools.partial(_part_by_part, of, axis=axis, lengths=lengths)
        rows, left = divmod(len(others[0]), batches)
        if batches == 1 or left or not rows:
            return of(others[0])
        return _part_by_part(of, others[0], 0, [rows] * batches)

    def _product(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        """A product, in parts if its weight is cut."""
        names = _PRODUCTS[func.__name__]
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        name = self._names.get(id(given.get("weight")), "")
        if name not in self._cuts or len(given) > len(names):
            return func(*args, **kwargs)
        self._done.add(name)
        cut = self._cuts[name]
        if names[0] == "input":
            return _sum_of_parts(func, given, cut, 0)
        return _sum_of_parts(lambda x, weight, bias: func(bias, x, weight), given, cut, 1)


def _sum_of_parts(
    multiply: Callable[..., Any], given: Mapping[str, Any], cut: _Cut, axis: int
) -> Any:
    """A product with a weight in parts.

    Args:
        multiply: takes input, weight and bias.
        given: these.
        axis: the weight's axis of outputs; the other is that of inputs.
    """
    outputs, inputs = cut[axis], cut[1 - axis]
    # the input is split even into one part, so that this product's gradients are added up alone
    columns = [part.contiguous() for part in torch.split_with_sizes(given["input"], inputs, -1)]
    shares = _shares(given.get("bias"), outputs, len(inputs))

    def summed(output: tuple[torch.Tensor, list[Any]]) -> Any:
        weight, added = output
        held = [part.contiguous() for part in torch.split_with_sizes(weight, inputs, 1 - axis)]
        terms = _first_last(lambda own: multiply(*own), [*zip(columns, held, added, strict=True)])
        return sum(terms[1:], terms[0])

    parts = zip(torch.split_with_sizes(given["weight"], outputs, axis), shares, strict=True)
    return torch.cat(_first_last(summed, [*parts]), -1)


def _shares(bias: torch.Tensor | None, outputs: tuple[int, ...], ranks: int) -> list[list[Any]]:
    """What each rank adds to each part of the outputs: an equal share of the bias, as DTensors do.
    All ranks know the bias' whole gradient, so it comes from the first one's share alone."""
    if bias is None:
        return [[None] * ranks for _ in outputs]
    share = bias / ranks
    if ranks > 1 and share.requires_grad:
        share.register_hook(lambda gradient: gradient * ranks)  # type: ignore[no-untyped-call]
    others = torch.split_with_sizes(share.detach(), outputs)
    own = torch.split_with_sizes(share, outputs)
    return [[first, *[other] * (ranks - 1)] for first, other in zip(own, others, strict=True)]


def _part_by_part(
    compute: Callable[[torch.Tensor], torch.Tensor],
    rows: torch.Tensor,
    axis: int,
    lengths: Sequence[int],
) -> torch.Tensor:
    return torch.cat(_first_last(compute, torch.split_with_sizes(rows, lengths, axis)), axis)


def _first_last(compute: Callable[[Any], Any], parts: Any) -> list[Any]:
    """Compute each part, the first one last: a backward begins with what was computed last, so that
    gradients are added up in the parts' order."""
    return [compute(part) for part in reversed(parts)][::-1]


class _Forward(Unsaved):
    """A module's forward, computed in parts."""

    def __init__(self, module: nn.Module, mode: _Parts) -> None:
        functools.update_wrapper(self, module.forward)
        self._forward = module.forward
        self._mode = mode
        self._called = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._called = True
        with self._mode:
            return self._forward(*args, **kwargs)

    def left(self) -> set[str]:
        """The cut parameters that were not computed with in parts, biases aside."""
        return self._mode.left() if self._called else set()


@contextlib.contextmanager
def in_parts(
    modules: Modules, cuts: Mapping[str, _Cut], batches: int, rows: Mapping[str, _Rows]
) -> Iterator[set[str]]:
    """Compute in parts while the context lasts.

    Args:
        cuts: of parameters, by their qualified names.
        batches: among how many ranks rows are shared out.
        rows: of modules, by their qualified names, that ranks with one batch call with parts of it.

    Yields:
        The names of cut parameters that their modules were called with, and that were nevertheless
        computed with whole; at the end.
    """
    changed: list[tuple[nn.Module, _Forward, Any]] = []
    left = set[str]()
    for prefix, module in modules.named.items():
        own = {
            f"{prefix}.{name}".removeprefix("."): parameter
            for name, parameter in module._parameters.items()
            if parameter is not None
        }
        parts = {name: cuts[name] for name in own if name in cuts}
        if isinstance(module, torch.jit.ScriptModule):
            left |= parts.keys()
        elif own and (parts or batches > 1 or prefix in rows):
            # a product gathers what its weight's parts are multiplied with
            along = _NO_ROWS if parts else rows.get(prefix, _NO_ROWS)
            forward = _Forward(module, _Parts(own, parts, batches, along))
            changed.append((module, forward, vars(module).get("forward")))
            vars(module)["forward"] = forward
    try:
        yield left
    finally:
        for module, forward, before in changed:
            if vars(module).get("forward") is forward:
                del vars(module)["forward"]
                if before is not None:
                    vars(module)["forward"] = before
            left |= forward.left()
