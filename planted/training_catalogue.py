"""Which faults of a backward, of the loss, of the loop and of the update a model can have, and a
draw of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from accucompare.bundle.format.records import Role
from planted.backward_faults import (
    of_checkpoint,
    of_embedding,
    of_norm,
    of_residual,
    of_softmax,
    of_tied,
    of_token,
)
from planted.buffer_faults import faults_in
from planted.training_faults import (
    CHANGES,
    UPDATE_FAULTS,
    TrainingFault,
    of_detached,
    of_forgotten,
    of_frozen,
    of_glue,
    of_halved,
    of_input,
    of_parameter,
)

#: Where a module's own code adds what it is given: by class, which argument, and the child that is
#: given the same.
_RESIDUALS = {
    "GPT2Block": (0, "ln_1"),
    "LlamaDecoderLayer": (0, "input_layernorm"),
    "MixtralDecoderLayer": (0, "input_layernorm"),
    "T5LayerSelfAttention": (0, "layer_norm"),
    "T5LayerFF": (0, "layer_norm"),
    "ViTLayer": (0, "layernorm_before"),
    "BertSelfOutput": (1, ""),
    "BertOutput": (1, ""),
    "_Block": (0, "conv1"),
    "_Mix": (0, "norm"),
}

#: What happens to the gradient of an input or a weight; of a weight that a token is missed in, see
#: ``of_token``.
_KINDS = ("x 1.01", "one channel x 1.5", "noise of 2 %")

_STATE = (Role.STATE_AFTER, Role.PARAM_UPDATE)
_LOSS = (Role.GRAD_OUTPUT, Role.LOSS)

#: Faults of the loop around the model, planted where micro-batches are accumulated, losses scaled
#: and gradients clipped.
OF_LOOP = [
    TrainingFault("", "loss", "accumulation not divided", roles=_LOSS, loop={"divided_by": 1}),
    TrainingFault(
        "", "loss", "last sample left out of the loss", roles=_LOSS, loop={"left_out": 1}
    ),
    TrainingFault(
        "", "update", "loss scale not undone", roles=(Role.PARAM_GRAD,), loop={"undone": 1.0}
    ),
    TrainingFault(
        "",
        "update",
        "clipped at 1.1 x the norm",
        roles=(*_STATE, Role.CLIPPED_NORM),
        loop={"clip": 0.11},
    ),
    TrainingFault(
        "", "loss", "0.5 added to the loss", roles=(Role.LOSS,), loop={"added": 0.5}, certain=True
    ),
    TrainingFault("", "update", "second update skipped", roles=_STATE, loop={"skipped": 1}),
]

#: Faults of the optimizer.
OF_UPDATE = [TrainingFault("", "update", kind, roles=_STATE, update=kind) for kind in UPDATE_FAULTS]


def draw_faults(model: nn.Module, most: int, draw: np.random.Generator) -> list[TrainingFault]:
    """So many faults of each kind at most, in modules drawn at random; then those of the loop and
    of the update.
    """
    found: list[TrainingFault] = []
    for faults in (faults_of(model), left_by(model)):
        kinds: dict[str, list[TrainingFault]] = {}
        for fault in faults:
            kinds.setdefault(fault.kind, []).append(fault)
        for fitting in kinds.values():
            found += [fitting[place] for place in draw.permutation(len(fitting))[:most]]
    return [*found, *OF_LOOP, *OF_UPDATE]


def faults_of(model: nn.Module) -> Iterator[TrainingFault]:
    """Faults that the backward of a model can have, of every kind and in every module."""
    for name, module in model.named_modules():
        kind = type(module).__name__
        children = dict(module.named_children())
        if kind in _RESIDUALS:
            yield of_residual(name, *_RESIDUALS[kind])
        if children:
            if "Attention" in kind and any(map(_is_linear, children.values())):
                yield of_softmax(name)
            first = next(
                (key for key, child in children.items() if _is_norm(child) or _is_linear(child)),
                None,
            )
            if first is not None:
                full = f"{name}.{first}" if name else first
                yield of_glue(name, full, "gradient behind a child x 0.9", 0.9)
                yield of_glue(name, full, "a use forgotten in a sum", 0.0)
            continue
        yield from _of_leaf(name, module)
    yield from _of_tied(model)


def left_by(model: nn.Module) -> Iterator[TrainingFault]:
    """Faults of what a step leaves behind: in buffers, between updates, and gradients and updates
    that are missing.
    """
    # tied ones by their first names
    trained = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    for name, module in model.named_modules():
        yield from faults_in(name, module)
        if _is_linear(module):
            yield of_detached(name)
            if f"{name}.weight" in trained:
                yield from (make(name, "weight") for make in (of_frozen, of_halved, of_forgotten))


def _of_leaf(name: str, module: nn.Module) -> Iterator[TrainingFault]:
    own = {
        key: tensor
        for key, tensor in module.named_parameters(recurse=False)
        if tensor.requires_grad
    }
    norm = _is_norm(module)
    if (
        _is_linear(module)
        or norm
        or isinstance(module, nn.RNNBase)
        or "Activation" in type(module).__name__
    ):
        yield from (of_input(name, kind) for kind in (*_KINDS, "a token missed"))
    for key, tensor in own.items():
        if key.startswith("weight") and tensor.dim() > 1:
            yield from (of_parameter(name, key, kind, CHANGES[kind]) for kind in _KINDS)
        if key.startswith("bias"):
            yield of_parameter(name, key, "zero", torch.zeros_like)
    if norm:
        yield of_norm(name)
    if isinstance(module, nn.Embedding) and own:
        yield of_embedding(name)
    if _is_linear(module):
        yield of_token(name)
        yield of_checkpoint(name)


def _of_tied(model: nn.Module) -> Iterator[TrainingFault]:
    owners: dict[int, str] = {}
    for name, module in model.named_modules():
        weight: Any = module._parameters.get("weight")
        if weight is not None and owners.setdefault(id(weight), name) != name:
            yield of_tied(owners[id(weight)], name)


def _is_linear(module: nn.Module) -> bool:
    return isinstance(module, (nn.Linear, nn.Conv2d)) or type(module).__name__ == "Conv1D"


def _is_norm(module: nn.Module) -> bool:
    return isinstance(module, (nn.LayerNorm, nn.BatchNorm2d)) or type(module).__name__.endswith(
        ("RMSNorm", "T5LayerNorm")
    )
