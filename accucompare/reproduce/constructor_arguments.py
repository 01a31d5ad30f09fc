"""A module's constructor arguments, guessed from what the module keeps."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn

from accucompare.reproduce.class_import import CannotRebuildError
from accucompare.reproduce.likeness import same

MISSING = object()

#: Constructors' parameters for place and type, which come from the saved tensors.
_RESTORED = {"device", "dtype"}


def constructor_parameters(kind: type[nn.Module]) -> Iterator[inspect.Parameter]:
    """What a constructor takes. Raises CannotRebuildError if it takes any number of arguments."""
    if kind.__init__ is nn.Module.__init__:
        return
    # their own constructors take *args: use RNNBase's parameters, without the mode
    own = nn.modules.rnn.RNNBase if kind in (nn.RNN, nn.LSTM, nn.GRU) else kind
    for name, parameter in list(inspect.signature(own.__init__).parameters.items())[1:]:
        if parameter.kind is parameter.VAR_POSITIONAL:
            raise CannotRebuildError("its constructor takes any number of arguments")
        if (
            parameter.kind is not parameter.VAR_KEYWORD
            and name not in _RESTORED
            and not (own is not kind and name == "mode")
        ):
            yield parameter
    if kind is nn.RNN:
        yield inspect.Parameter("nonlinearity", inspect.Parameter.KEYWORD_ONLY, default="tanh")


def is_default(value: Any, default: Any) -> bool:
    """Whether an argument was the default; a stride of (1, 1) was 1."""
    return same(value, default) or (
        type(value) is tuple and value != () and value == (default,) * len(value)
    )


def guessed(live: nn.Module, parameter: inspect.Parameter, searched: bool) -> Any:
    """A constructor's argument: an attribute of that name, of the module or of a child."""
    name = parameter.name
    default = parameter.default
    required = parameter.default is inspect.Parameter.empty
    other = _OTHER_NAMES.get(type(live), {}).get(name)
    if other is not None:
        return other(live)
    asks_whether = (
        isinstance(default, bool) or parameter.annotation in (bool, "bool") or name == "bias"
    )
    for attribute in (name, f"_{name}"):
        value = getattr(live, attribute, MISSING)
        if value is MISSING or inspect.ismethod(value):
            continue
        if isinstance(value, torch.Tensor) or (value is None and asks_whether):
            return value is not None if asks_whether else MISSING
        if isinstance(value, nn.modules.dropout._DropoutNd) and (
            required or isinstance(default, (int, float))
        ):
            return value.p
        if isinstance(value, nn.Module) and isinstance(default, (int, float, str)):
            continue
        return value
    if searched or required:
        for child in live.modules():
            value = vars(child).get(name, MISSING)
            if value is not MISSING and not isinstance(value, (torch.Tensor, nn.Module)):
                return value
    return MISSING


#: Parameters that torch's own classes keep under another name.
_TRANSFORMER: dict[str, Callable[[Any], Any]] = {
    "d_model": lambda live: live.self_attn.embed_dim,
    "nhead": lambda live: live.self_attn.num_heads,
    "dim_feedforward": lambda live: live.linear1.out_features,
    "layer_norm_eps": lambda live: live.norm1.eps,
    "batch_first": lambda live: live.self_attn.batch_first,
    "bias": lambda live: live.linear1.bias is not None,
}

_OTHER_NAMES: dict[type[nn.Module], dict[str, Callable[[Any], Any]]] = {
    nn.MultiheadAttention: {
        "bias": lambda live: live.in_proj_bias is not None,
        "add_bias_kv": lambda live: live.bias_k is not None,
        "kdim": lambda live: None if live._qkv_same_embed_dim else live.kdim,
        "vdim": lambda live: None if live._qkv_same_embed_dim else live.vdim,
    },
    nn.TransformerEncoderLayer: _TRANSFORMER,
    nn.TransformerDecoderLayer: _TRANSFORMER,
}
