"""The models in which origins of NaN and Inf are planted, where in each, and one training step of
them.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from planted.faults_models import build

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Places:
    """Qualified names of what origins are planted in.

    Attributes:
        linear: a matrix product, or a convolution.
        leaf: an activation function between two layers, called once in a step.
        norm: a norm whose input can be made constant.
        block: a layer that takes hidden states first, to be checkpointed.
        parent: a module whose own code works on what its last child gives; ``last`` is that child.
        adder: a module whose own code adds what ``addends`` give, and passes the sum on where
            ``sums`` says.
        masked: the first module whose own code takes the softmax of scores and mask; ``attended``
            says where the result is first seen.
        passes_mask: a module that hands its ``attention_mask`` on to an attention; empty where
            there is none.
    """

    linear: str
    leaf: str
    norm: str
    block: str
    parent: str
    last: str
    adder: str
    addends: tuple[str, str]
    sums: tuple[str, ...]
    masked: str = ""
    attended: tuple[str, ...] = ()
    passes_mask: str = ""


_T5_FEED_FORWARD = "encoder.block.1.layer.1"

PLACES = {
    "gpt2": Places(
        linear="transformer.h.1.mlp.c_fc",
        leaf="transformer.h.1.mlp.act",
        norm="transformer.h.0.ln_1",
        block="transformer.h.1",
        parent="transformer.h.1",
        last="mlp",
        adder="transformer.h.1",
        addends=("transformer.h.1.attn", "transformer.h.1.mlp"),
        sums=("after mlp",),
        masked="transformer.h.0.attn",
        attended=("before c_proj", "after c_attn"),
        passes_mask="transformer.h.1",
    ),
    "t5": Places(
        linear=f"{_T5_FEED_FORWARD}.DenseReluDense.wi",
        leaf=f"{_T5_FEED_FORWARD}.DenseReluDense.act",
        norm="encoder.block.0.layer.0.layer_norm",
        block="encoder.block.1",
        parent=_T5_FEED_FORWARD,
        last="dropout",
        adder=_T5_FEED_FORWARD,
        addends=("encoder.block.1.layer.0.SelfAttention", f"{_T5_FEED_FORWARD}.DenseReluDense"),
        sums=("after dropout",),
        masked="encoder.block.0.layer.0.SelfAttention",
        attended=("before o", "after v", "after relative_attention_bias"),
        passes_mask="encoder.block.1.layer.0",
    ),
    "minilm": Places(
        linear="encoder.layer.2.intermediate.dense",
        leaf="encoder.layer.2.intermediate.intermediate_act_fn",
        norm="embeddings.LayerNorm",
        block="encoder.layer.2",
        parent="encoder.layer.2",
        last="output",
        adder="encoder.layer.2.output",
        addends=("encoder.layer.2.attention.output", "encoder.layer.2.output.dense"),
        sums=("before LayerNorm", "after dropout"),
        masked="encoder.layer.0.attention.self",
        attended=("after value",),
        passes_mask="encoder.layer.2.attention",
    ),
    "cnn": Places(
        linear="blocks.1.conv1",
        leaf="stem.2",
        norm="blocks.1.bn1",
        block="blocks.1",
        parent="blocks.1",
        last="relu call 1",
        adder="blocks.1",
        addends=("blocks.1.bn2", "blocks.1.shortcut"),
        sums=("before relu call 1", "after shortcut"),
    ),
}

#: Layers that come after everything that is planted; without them the hundreds of steps take half
#: as long.
_SHORTENED = {
    "gpt2": ("transformer.h", 2),
    "t5": ("decoder.block", 1),
    "minilm": ("encoder.layer", 3),
}

Loss = Callable[[Any], torch.Tensor]


def squares(output: Any) -> torch.Tensor:
    """The usual loss: in float32, so that only what is planted overflows."""
    return answer(output).float().square().mean()


def answer(output: Any) -> torch.Tensor:
    """The tensor that a model is called for."""
    found = (
        output if isinstance(output, torch.Tensor) else output[1] if "loss" in output else output[0]
    )
    assert isinstance(found, torch.Tensor)
    return found


@dataclass
class Subject:
    """A model in which an origin is planted, and how a step of it is run.

    Attributes:
        name, dtype: of the model, a key of ``PLACES``, and of its floating tensors.
        model: fresh, in eval mode; its parameters take gradients.
        args, kwargs: what it is called with.
        loss: ``None`` for a step without a backward.
        batches: how many forwards and backwards there are in a step.
        autocast: the type that the forward is cast to.
        inference: whether the step is run in inference mode.
        scaler, optimizer: if the step ends with an update.
        options: of an ``accucompare.LookAt``.
    """

    name: str
    dtype: torch.dtype
    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    loss: Loss | None = squares
    batches: int = 1
    autocast: torch.dtype | None = None
    inference: bool = False
    scaler: torch.amp.GradScaler | None = None
    optimizer: torch.optim.Optimizer | None = None
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def at(self) -> Places:
        return PLACES[self.name]

    @property
    def largest(self) -> float:
        """The largest number of the model's type."""
        return torch.finfo(self.dtype).max

    def module(self, name: str) -> nn.Module:
        return self.model.get_submodule(name)

    def put(self, name: str, module: nn.Module) -> None:
        """Put another module in a module's place."""
        parent, _, own = name.rpartition(".")
        setattr(
            self.model.get_submodule(parent), own, module.to(self.dtype).train(self.model.training)
        )

    def given(self, name: str) -> torch.Tensor:
        """The first argument of a module in a forward."""
        seen: list[torch.Tensor] = []
        handle = self.module(name).register_forward_pre_hook(
            lambda module, args: seen.append(args[0].detach().clone())
        )
        with torch.no_grad():
            self.model(*self.args, **self.kwargs)
        handle.remove()
        return seen[0]

    def step(self) -> Any:
        """Run the model, and the backward of its loss; gives what the last forward gave."""
        self.model.zero_grad()
        output: Any = None
        for _ in range(self.batches):
            with ExitStack() as stack:
                if self.autocast is not None:
                    stack.enter_context(torch.autocast("cpu", self.autocast))
                if self.inference:
                    stack.enter_context(torch.inference_mode())
                output = self.model(*self.args, **self.kwargs)
                loss = None if self.loss is None else self.loss(output)
            if loss is not None:
                scaled: Any = self.scaler.scale(loss) if self.scaler else loss
                scaled.backward()
        if self.scaler and self.optimizer:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return output


@functools.cache
def _built(name: str) -> tuple[nn.Module, dict[str, Any]]:
    if name == "cnn":
        from fixtures.cnn import Net

        torch.manual_seed(0)
        return Net().eval(), {"x": torch.randn(2, 3, 32, 32)}
    model, inputs = build(name)
    if name == "minilm":
        model.set_attn_implementation("eager")  # type: ignore[operator]
    layers, kept = _SHORTENED[name]
    parent, _, own = layers.rpartition(".")
    setattr(
        model.get_submodule(parent),
        own,
        nn.ModuleList(list(model.get_submodule(layers).children())[:kept]),
    )
    return model, dict(inputs)


def fresh(name: str, dtype: str) -> Subject:
    """A model with nothing planted; the same weights and inputs every time."""
    original, inputs = _built(name)
    model = copy.deepcopy(original).to(DTYPES[dtype])
    given = {key: _cast(value, DTYPES[dtype]) for key, value in inputs.items()}
    torch.manual_seed(0)
    if name == "cnn":
        return Subject(name, DTYPES[dtype], model, (given["x"],), {})
    return Subject(name, DTYPES[dtype], model, (), given)


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(dtype, copy=True) if value.is_floating_point() else value.clone()
