"""The kinds of fault: where each can be planted, and what it does to a module."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils import _pytree as pytree

#: Changes a module in place, by so much. The number of its calls in one forward tells the second
#: from the first.
Plant = Callable[[nn.Module, float, int], None]
Change = Callable[[torch.Tensor, float], torch.Tensor]


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        applies: whether a module, called so often in a forward, can have it.
        plant: puts it into a module.
        sizes: how much, for bfloat16 and for float32; the second is what a slip of that kind costs
            in practice, or near rounding.
        second: whether only the module's second call has it.
    """

    applies: Callable[[nn.Module, int], bool]
    plant: Plant
    sizes: tuple[tuple[float, ...], tuple[float, ...]]
    second: bool = False


@dataclass(frozen=True)
class Fault:
    """A fault in one module of one model.

    Attributes:
        kind: of ``KINDS``.
        name, call: the module's qualified name, and the first of its calls that is wrong.
        calls: how often the module is called in a forward.
        site: ``"module"``, or ``"glue"`` if the module has children.
        size: as its kind takes it.
    """

    kind: str
    name: str
    call: int
    calls: int
    site: str
    size: float

    def plant(self, module: nn.Module) -> None:
        with torch.no_grad():
            KINDS[self.kind].plant(module, self.size, self.calls)

    def __str__(self) -> str:
        call = f" call {self.call}" if self.call else ""
        return (
            f"{self.kind} {self.size:g} in"
            f" {self.name or '(root)'}{call}{' (glue)' if self.site == 'glue' else ''}"
        )


def faults_in(
    model: nn.Module, calls: dict[str, int], dtype: str, most: int, draw: np.random.Generator
) -> list[Fault]:
    """So many faults of each kind at most, in modules drawn at random; ``calls``: how often a
    forward calls each module.
    """
    found = []
    for kind, how in KINDS.items():
        sizes = how.sizes[dtype != "bfloat16"]
        fitting = [
            (name, module)
            for name, module in model.named_modules()
            if calls.get(name) and how.applies(module, calls[name])
        ]
        for count, place in enumerate(draw.permutation(len(fitting))[:most]):
            name, module = fitting[place]
            site = "glue" if any(True for _ in module.children()) else "module"
            found.append(
                Fault(kind, name, int(how.second), calls[name], site, sizes[count % len(sizes)])
            )
    return found


# what a faulty module does to a tensor


def _in_float(change: Change) -> Change:
    """Computed in float64 and rounded once: the fault is none of rounding."""
    return lambda tensor, size: change(tensor.double(), size).to(tensor.dtype)


@_in_float
def _scaled(tensor: torch.Tensor, size: float) -> torch.Tensor:
    return tensor * (1 + size)


@_in_float
def _one_channel(tensor: torch.Tensor, size: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[..., tensor.shape[-1] // 3] += size * tensor.square().mean().sqrt()
    return changed


@_in_float
def _noisy(tensor: torch.Tensor, size: float) -> torch.Tensor:
    noise = np.random.default_rng(0).standard_normal(tensor.shape)
    return tensor * (1 + size * torch.from_numpy(noise).to(tensor.device))


def _two_swapped(tensor: torch.Tensor, size: float) -> torch.Tensor:
    order = torch.arange(tensor.shape[-2])
    order[:2] = order[:2].flip(0)
    return tensor[..., order, :]


def _coarse(tensor: torch.Tensor, size: float) -> torch.Tensor:
    """Rounded to so many levels of the largest value."""
    step = tensor.abs().max().double() / size
    return ((tensor.double() / step).round() * step).to(tensor.dtype)


# ways into a module


def _first(value: Any, change: Change, size: float) -> Any:
    """A module's output with its first floating tensor changed."""
    done = False

    def once(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal done
        if done or not tensor.is_floating_point():
            return tensor
        done = True
        return change(tensor, size)

    return pytree.tree_map_only(torch.Tensor, once, value)


def _at_the_end(change: Change, only_second: bool = False) -> Plant:
    def plant(module: nn.Module, size: float, calls: int) -> None:
        right, count = module.forward, 0

        def forward(*args: Any, **kwargs: Any) -> Any:
            nonlocal count
            count += 1
            output = right(*args, **kwargs)
            return (
                output
                if only_second and count % calls != 2 % calls
                else _first(output, change, size)
            )

        module.forward = forward

    return plant


def _before_a_child(change: Change) -> Plant:
    """What the module's own code hands to its last child that computes, before any hook of that
    child sees it.
    """

    def plant(module: nn.Module, size: float, calls: int) -> None:
        child = _fed_children(module)[-1]
        kind = type(child)

        def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
            return kind.__call__(self, *_first(args, change, size), **kwargs)

        child.__class__ = type(
            kind.__name__, (kind,), {"__call__": call, "__module__": kind.__module__}
        )

    return plant


def _fed_children(module: nn.Module) -> list[nn.Module]:
    kinds = (nn.Linear, nn.LayerNorm, nn.Conv1d)
    return [
        child
        for child in module.children()
        if isinstance(child, kinds) or type(child).__name__ in ("Conv1D", "SiLUActivation")
    ]


def _in_weight(change: Change) -> Plant:
    def plant(module: nn.Module, size: float, calls: int) -> None:
        weight = module.weight
        assert isinstance(weight, torch.Tensor)
        # a tied one stays right elsewhere
        module.weight = nn.Parameter(change(weight, size), requires_grad=False)

    return plant


def _zero_row(tensor: torch.Tensor, size: float) -> torch.Tensor:
    changed = tensor.clone()
    changed[tensor.shape[0] // 2] = 0
    return changed


def _swapped_rows(tensor: torch.Tensor, size: float) -> torch.Tensor:
    order = torch.arange(tensor.shape[0])
    order[:2] = order[:2].flip(0)
    return tensor[order]


def _without_bias(module: nn.Module, size: float, calls: int) -> None:
    assert isinstance(module.bias, torch.Tensor)
    module.bias = nn.Parameter(torch.zeros_like(module.bias), requires_grad=False)


def _in_own_parameter(module: nn.Module, size: float, calls: int) -> None:
    name, tensor = next(
        (name, tensor) for name, tensor in module._parameters.items() if tensor is not None
    )
    flat = tensor.detach().clone().flatten()
    flat[: max(1, int(size * flat.numel()))] *= 0.5
    setattr(module, name, nn.Parameter(flat.view_as(tensor), requires_grad=False))


def _eps(module: nn.Module, size: float, calls: int) -> None:
    setattr(module, "eps" if hasattr(module, "eps") else "variance_epsilon", size)


def _attention_scale(module: nn.Module, size: float, calls: int) -> None:
    scaling: Any = module.scaling
    module.scaling = scaling * (1 + size)


_ACTIVATIONS = {
    "gelu": ("GELUActivation", "NewGELUActivation"),
    "relu": ("ReLU",),
    "silu": ("SiLUActivation",),
    "tanh": ("Tanh",),
}


def _activation(module: nn.Module, size: float, calls: int) -> None:
    """Another activation; at size 0 one that is only approximated otherwise."""
    kind = type(module).__name__
    exact = "none" if kind == "NewGELUActivation" else "tanh"
    near: dict[str, Callable[..., torch.Tensor]] = {
        "gelu": lambda data: functional.gelu(data, approximate=exact),
        "relu": functional.leaky_relu,
        "silu": lambda data: data * torch.sigmoid(1.002 * data),
        "tanh": lambda data: torch.tanh(data * 1.001),
    }
    far: dict[str, Callable[..., torch.Tensor]] = {
        "gelu": functional.relu,
        "relu": functional.gelu,
        "silu": functional.gelu,
        "tanh": functional.hardtanh,
    }
    family = next(family for family, names in _ACTIVATIONS.items() if kind in names)
    module.forward = (far if size else near)[family]


@contextlib.contextmanager
def _replaced(owner: Any, name: str, function: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, function)
    try:
        yield
    finally:
        setattr(owner, name, before)


def _around(module: nn.Module, owner: Any, name: str, function: Any) -> None:
    """While the module's forward runs, and only then, a function that it uses is another one."""
    right = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        with _replaced(owner, name, function):
            return right(*args, **kwargs)

    module.forward = forward


def _softmax(module: nn.Module, size: float, calls: int) -> None:
    """The softmax's temperature is wrong."""
    right = functional.softmax
    _around(
        module,
        functional,
        "softmax",
        lambda data, *args, **kwargs: right(data * (1 + size), *args, **kwargs),
    )


def _rotary(module: nn.Module, size: float, calls: int) -> None:
    """Angles are off: cosines and sines are those of other angles."""
    owner = sys.modules[type(module).__module__]
    right = owner.apply_rotary_pos_emb
    _around(
        module,
        owner,
        "apply_rotary_pos_emb",
        lambda q, k, cos, sin, *args: right(q, k, cos, _scaled(sin, size), *args),
    )


# where each can be

Applies = Callable[[nn.Module, int], bool]


def _is(*types: str) -> Applies:
    return lambda module, calls: type(module).__name__ in types


def _has(*attributes: str) -> Applies:
    return lambda module, calls: any(
        getattr(module, attribute, None) is not None for attribute in attributes
    )


def _linear(module: nn.Module, calls: int) -> bool:
    return (
        isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d)) or type(module).__name__ == "Conv1D"
    )


def _leaf(module: nn.Module, calls: int) -> bool:
    return not any(True for _ in module.children())


def _composite(module: nn.Module, calls: int) -> bool:
    return not _leaf(module, calls)


def _rows(module: nn.Module, calls: int) -> bool:
    return isinstance(module, (nn.Linear, nn.LayerNorm, nn.Embedding)) or type(module).__name__ in (
        "Conv1D",
        "GELUActivation",
    )


def _biased(module: nn.Module, calls: int) -> bool:
    return _leaf(module, calls) and getattr(module, "bias", None) is not None


def _twice(module: nn.Module, calls: int) -> bool:
    return calls >= 2


def _eager_attention(module: nn.Module, calls: int) -> bool:
    return (
        hasattr(module, "scaling")
        and getattr(getattr(module, "config", None), "_attn_implementation", "") == "eager"
    )


def _rotates(module: nn.Module, calls: int) -> bool:
    return hasattr(module, "scaling") and hasattr(
        sys.modules[type(module).__module__], "apply_rotary_pos_emb"
    )


def _owns_parameters(module: nn.Module, calls: int) -> bool:
    return _composite(module, calls) and any(
        tensor is not None for tensor in module._parameters.values()
    )


def _feeds(module: nn.Module, calls: int) -> bool:
    return bool(_fed_children(module))


def _feeds_tokens(module: nn.Module, calls: int) -> bool:
    return (
        _feeds(module, calls)
        and isinstance(_fed_children(module)[-1], nn.Linear)
        and not hasattr(module, "pooler")
    )


_NONE = ((0.0,), (0.0,))  # a fault that comes in one size
_ANY = ((0.03, 0.1, 0.3), (2e-6, 1e-5, 1e-3))

KINDS: dict[str, Kind] = {
    "wrong eps": Kind(_has("eps", "variance_epsilon"), _eps, ((0.05, 0.5), (1e-5, 1e-3))),
    "scaled output": Kind(_leaf, _at_the_end(_scaled), ((0.02, 0.05, 0.3), (1e-6, 1e-5, 1e-3))),
    "one channel": Kind(_leaf, _at_the_end(_one_channel), ((0.3, 1.0, 3.0), (1e-5, 1e-4, 1e-2))),
    "zeroed weight row": Kind(_linear, _in_weight(_zero_row), _NONE),
    "coarse weight": Kind(_linear, _in_weight(_coarse), ((15, 31, 7), (2047, 32767, 127))),
    "noise": Kind(_leaf, _at_the_end(_noisy), _ANY),
    "swapped weight rows": Kind(_linear, _in_weight(_swapped_rows), _NONE),
    "swapped tokens": Kind(_rows, _at_the_end(_two_swapped), _NONE),
    "missing bias": Kind(_biased, _without_bias, _NONE),
    "wrong activation": Kind(
        _is(*(name for names in _ACTIVATIONS.values() for name in names)),
        _activation,
        ((1.0,), (1.0, 0.0)),
    ),
    "second of two calls": Kind(_twice, _at_the_end(_scaled, only_second=True), _ANY, second=True),
    "attention scale": Kind(
        _has("scaling"), _attention_scale, ((0.1, 0.5, 1.0), (1e-5, 1e-3, 0.1))
    ),
    "softmax": Kind(_eager_attention, _softmax, ((0.2, 0.5), (1e-5, 1e-3))),
    "rotary angles": Kind(_rotates, _rotary, ((0.5, -2.0), (1e-4, -2.0))),
    "own parameter": Kind(_owns_parameters, _in_own_parameter, ((0.3, 1.0), (0.1, 1.0))),
    "glue: scaled at its end": Kind(_composite, _at_the_end(_scaled), _ANY),
    "glue: noise at its end": Kind(_composite, _at_the_end(_noisy), _ANY),
    "glue: channel before a child": Kind(
        _feeds, _before_a_child(_one_channel), ((0.3, 1.0, 3.0), (1e-5, 1e-4, 1e-2))
    ),
    "glue: tokens before a child": Kind(_feeds_tokens, _before_a_child(_two_swapped), _NONE),
}
