"""Nine small models to be trained in which faults of the backward and of the update are planted,
and the loop that trains them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from planted.faults_models import ARCHITECTURES, Architecture, Inputs, build, made

#: Of each model: the steps of a run, and the most micro-batches in one.
STEPS = 2
_MICRO_BATCHES = 3


@dataclass(frozen=True)
class Training:
    """A model to be trained.

    Attributes:
        model: in float32 and train mode.
        batches: by step and micro-batch, the inputs and the targets.
        loss: of an output and the target: a tensor of one element, in float32 at least.
    """

    model: nn.Module
    batches: list[list[tuple[Inputs, torch.Tensor]]]
    loss: Callable[[Any, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Loop:
    """How a model is trained. A fault of the loop is another value of one of these.

    Attributes:
        micro_batches: so many forwards and backwards before each update.
        divided_by: what each micro-batch's loss is divided by.
        scale, undone: what losses are multiplied by, and gradients divided by before the update.
        clip: the largest norm of all gradients together; not clipped if ``None``.
        from_the_last: the backwards of the micro-batches run from the last to the first.
        left_out: samples at the end of each micro-batch that the loss leaves out.
        added: a number that is added to each micro-batch's loss.
        skipped: the step without an update.
        halved: a parameter that is halved after each update.
        forgotten: a parameter whose first moment is set to zero between two steps.
        optimizer: options of ``torch.optim.AdamW``.
    """

    micro_batches: int = 1
    divided_by: int = 1
    scale: float = 1.0
    undone: float = 1.0
    clip: float | None = None
    from_the_last: bool = False
    left_out: int = 0
    added: float = 0.0
    skipped: int | None = None
    halved: str = ""
    forgotten: str = ""
    optimizer: dict[str, Any] = field(default_factory=lambda: {"foreach": False, "fused": False})


#: One batch a step; and three micro-batches a step, whose loss is scaled, and whose gradients are
#: clipped.
PLAIN = Loop()
ACCUMULATED = Loop(
    micro_batches=_MICRO_BATCHES, divided_by=_MICRO_BATCHES, scale=4.0, undone=4.0, clip=0.1
)


def train(
    training: Training, model: nn.Module, loop: Loop, end_step: Callable[[], None] = lambda: None
) -> list[float]:
    """Train a model for all steps, and call ``end_step`` at the end of each.

    Args:
        training: the data and the loss.
        model: the model of ``training`` or a copy of it, in whatever type.
        loop: how.

    Returns:
        Each step's loss, the mean of its micro-batches'.
    """
    like = next(model.parameters())
    optimizer = torch.optim.AdamW(_groups(model), lr=1e-3, **loop.optimizer)
    losses = []
    for number, step in enumerate(training.batches):
        pending = []
        for inputs, target in step[: loop.micro_batches]:
            output = model(**{name: _as(value, like) for name, value in inputs.items()})
            kept = len(target) - loop.left_out
            value = training.loss(_first(output)[:kept], target[:kept].to(like.device))
            if loop.added:
                value = value + loop.added
            pending.append(value)
            if not loop.from_the_last:
                _backward(value, loop)
        if loop.from_the_last:
            for value in reversed(pending):
                _backward(value, loop)
        _update(model, optimizer, loop, number == loop.skipped)
        losses.append(sum(value.item() for value in pending) / len(pending))
        if loop.halved:
            model.get_parameter(loop.halved).data.mul_(0.5)
        end_step()
        if loop.forgotten:
            optimizer.state[model.get_parameter(loop.forgotten)]["exp_avg"].zero_()
    return losses


def _backward(value: torch.Tensor, loop: Loop) -> None:
    (value * (loop.scale / loop.divided_by)).backward()  # type: ignore[no-untyped-call]


def _update(model: nn.Module, optimizer: torch.optim.Optimizer, loop: Loop, skipped: bool) -> None:
    if loop.undone != 1.0:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= loop.undone
    if loop.clip is not None:
        nn.utils.clip_grad_norm_(model.parameters(), loop.clip)
    if not skipped:
        optimizer.step()
    optimizer.zero_grad()


def _groups(model: nn.Module) -> list[dict[str, Any]]:
    """As language models are trained: matrices are decayed, biases and norms are not."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    matrices = [parameter for parameter in trained if parameter.dim() > 1]
    return [
        {"params": matrices, "weight_decay": 0.1},
        {
            "params": [parameter for parameter in trained if parameter.dim() < 2],
            "weight_decay": 0.0,
        },
    ]


def _as(value: Any, like: torch.Tensor) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.to(like.device, like.dtype if value.is_floating_point() else value.dtype)


def _first(output: Any) -> torch.Tensor:
    """The logits, or the last hidden state; of a plain tensor, itself."""
    found = output if isinstance(output, torch.Tensor) else output[0]
    assert isinstance(found, torch.Tensor)
    return found


def _wide(output: torch.Tensor) -> torch.Tensor:
    return output.to(torch.promote_types(output.dtype, torch.float32))


def _cross_entropy(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return functional.cross_entropy(_wide(output).flatten(0, -2), target.flatten())


def _distance(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return (_wide(output) - target.to(_wide(output).dtype)).square().mean()


class _Block(nn.Module):
    """Two convolutions with batch norm, and a residual."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn1, self.relu = nn.BatchNorm2d(channels), nn.ReLU()
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1)
        self.bn2 = nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        residual = x
        x = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        result: torch.Tensor = self.relu(residual + x)
        return result


class Convolutions(nn.Module):
    """A residual network of images."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, 2, 1)
        self.norm = nn.BatchNorm2d(16)
        self.blocks = nn.Sequential(_Block(16), _Block(16))
        self.pool, self.head = nn.AdaptiveAvgPool2d(2), nn.Linear(64, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(
            self.pool(self.blocks(self.norm(self.stem(images)))).flatten(1)
        )
        return found


class Recurrent(nn.Module):
    """A language model of two layers of LSTM, with a residual around a feed-forward, and its
    embedding used again as its head.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(97, 32)
        self.lstm = nn.LSTM(32, 32, 2, batch_first=True)
        self.mix = _Mix(32)
        self.head = nn.Linear(32, 97, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.head(self.mix(self.lstm(self.embed(ids))[0]))
        return found


class Codebook(nn.Module):
    """A codebook that learns no gradient: a moving average of what was given to it, weighted by how
    near each code is.
    """

    embed: torch.Tensor
    sums: torch.Tensor
    counts: torch.Tensor

    def __init__(self, codes: int, width: int) -> None:
        super().__init__()
        self.register_buffer("embed", torch.randn(codes, width))
        self.register_buffer("sums", self.embed.clone())
        self.register_buffer("counts", torch.ones(codes))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        codes = self.embed.clone()  # the buffer is written before the backward
        near = torch.softmax(-(x[..., None, :] - codes).square().sum(-1), -1)
        found = near @ codes
        if self.training:
            with torch.no_grad():
                shares = near.flatten(0, -2)
                self.sums.lerp_(shares.T @ x.flatten(0, -2), 0.1)
                self.counts.lerp_(shares.sum(0), 0.1)
                self.embed.copy_(self.sums / self.counts[:, None])
        return found


class Quantized(nn.Module):
    """An autoencoder with a codebook in its middle."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.codebook, self.norm = (
            nn.Linear(24, 16),
            Codebook(12, 16),
            nn.LayerNorm(16),
        )
        self.decoder = nn.Linear(16, 10)

    def forward(self, data: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.decoder(self.norm(self.codebook(self.encoder(data)))).mean(1)
        return found


class _Mix(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 2 * width),
            nn.Linear(2 * width, width),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = x + self.down(functional.gelu(self.up(self.norm(x))))
        return result


def _smaller(name: str, **config: Any) -> Architecture:
    known = ARCHITECTURES[name]
    return replace(known, config={**known.config, **config}, attention="eager")


#: Those from transformers: with fewer layers than where faults of a forward are planted, for a
#: training step records much more.
_TRANSFORMERS = {
    "gpt2": _smaller("gpt2", n_layer=2, n_embd=48, n_head=3),
    "llama": _smaller("llama", num_hidden_layers=1, tie_word_embeddings=True),
    "t5": _smaller("t5", num_layers=1, num_decoder_layers=1),
    "mixtral": _smaller("mixtral", num_hidden_layers=1),
    "vit": replace(
        _smaller("vit", num_hidden_layers=1, num_labels=10),
        classes=("ViTForImageClassification", "ViTConfig"),
    ),
}


def _language(name: str) -> Training:
    architecture = _TRANSFORMERS[name]
    model = made(architecture, name)

    def batch() -> tuple[Inputs, torch.Tensor]:
        inputs = architecture.inputs()
        ids = inputs.get("decoder_input_ids", inputs["input_ids"])
        assert isinstance(ids, torch.Tensor)
        return inputs, ids.roll(-1, 1)

    return Training(model, _batches(batch), _cross_entropy)


def _of_images(model: nn.Module, name: str, size: int) -> Training:
    def batch() -> tuple[Inputs, torch.Tensor]:
        return {name: torch.randn(4, 3, size, size)}, torch.randint(10, (4,))

    return Training(model, _batches(batch), _cross_entropy)


def _recurrent() -> Training:
    torch.manual_seed(11)
    model = Recurrent()
    with torch.no_grad():
        for parameter in model.mix.norm.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)

    def batch() -> tuple[Inputs, torch.Tensor]:
        ids = torch.randint(97, (2, 12))
        return {"ids": ids}, ids.roll(-1, 1)

    return Training(model, _batches(batch), _cross_entropy)


def _convolutions() -> Training:
    torch.manual_seed(12)
    model = Convolutions()
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.weight.add_(torch.randn_like(module.weight), alpha=0.1)
                module.bias.normal_(std=0.1)
    return _of_images(model, "images", 16)


def _codebook() -> Training:
    torch.manual_seed(14)
    model = Quantized()

    def batch() -> tuple[Inputs, torch.Tensor]:
        return {"data": torch.randn(4, 6, 24)}, torch.randint(10, (4,))

    return Training(model, _batches(batch), _cross_entropy)


def _minilm() -> Training:
    """The first layer of MiniLM with its real weights, and the words of its sentences; the other
    words' embeddings would only take time.
    """
    found, inputs = build("minilm")
    model: Any = found
    model.set_attn_implementation("eager")
    model.encoder.layer = model.encoder.layer[:1]
    ids: Any = inputs["input_ids"]
    words, used = ids.unique(return_inverse=True)
    for name, rows in (
        ("word_embeddings", words),
        ("position_embeddings", torch.arange(ids.shape[1])),
    ):
        kept: Any = nn.Embedding(len(rows), model.config.hidden_size)
        kept.weight.data = getattr(model.embeddings, name).weight.data[rows]
        setattr(model.embeddings, name, kept)
    model.pooler = None
    torch.manual_seed(13)

    def batch() -> tuple[Inputs, torch.Tensor]:
        order = torch.randperm(ids.shape[1] - 2) + 1  # other sentences of the same words
        shuffled = torch.cat([used[:, :1], used[:, order], used[:, -1:]], 1)
        return {**inputs, "input_ids": shuffled}, torch.randn(*ids.shape, model.config.hidden_size)

    return Training(model, _batches(batch), _distance)


def _batches(
    batch: Callable[[], tuple[Inputs, torch.Tensor]],
) -> list[list[tuple[Inputs, torch.Tensor]]]:
    return [[batch() for _ in range(_MICRO_BATCHES)] for _ in range(STEPS)]


#: By name.
TRAININGS: dict[str, Callable[[], Training]] = {
    **{name: functools.partial(_language, name) for name in ("gpt2", "llama", "t5", "mixtral")},
    "minilm": _minilm,
    "convolutions": _convolutions,
    "recurrent": _recurrent,
    "vit": lambda: _of_images(made(_TRANSFORMERS["vit"], "vit"), "pixel_values", 32),
    "codebook": _codebook,  # the last: what is drawn in the others is as it was
}


def build_training(name: str) -> Training:
    """The same in every process, in train mode."""
    training = TRAININGS[name]()
    training.model.train()
    return training
