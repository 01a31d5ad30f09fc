"""What an origin is, what is right to say of it, and the origins of the forward."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import (
    CheckpointImpl,
    checkpoint_wrapper,
)

from accucompare.bundle.format.records import display_name
from accucompare.findings.log.events import Direction, Site
from planted import origins_modules as planted
from planted.origins_models import DTYPES, PLACES, Subject

NAN, UP, DOWN = ("NaN",), ("+Inf",), ("-Inf",)


@dataclass(frozen=True)
class Right:
    """What is right to say of a planted origin.

    Attributes:
        name: the qualified name; ``""`` for the whole model, and where the site is the loss.
        kinds: what may be among the values; at least one of them is.
        near: what may be said of where in a module's own code it is, one of these.
        path: the input of the model that it is in.
        parameter: one whose gradient is not finite, by its qualified name.
    """

    name: str
    kinds: tuple[str, ...]
    site: Site = Site.MODULE
    direction: Direction = Direction.FORWARD
    call: int = 0
    near: tuple[str, ...] = ()
    path: str = ""
    parameter: str = ""

    def __str__(self) -> str:
        if self.site is Site.LOSS:
            return "the loss, backward"
        call = f" call {self.call}" if self.call else ""
        site = (
            ""
            if self.site is Site.MODULE
            else f" ({self.site}{', ' if self.near else ''}{' or '.join(self.near)})"
        )
        backward = ", backward" if self.direction is Direction.BACKWARD else ""
        return f"{display_name(self.name)}{call}{site}{backward}"


Plant = Callable[[Subject], Right | None]


@dataclass(frozen=True)
class Origin:
    """A planted origin.

    Attributes:
        name: in a table.
        plant: puts it into a fresh model; gives what is right to say, or ``None`` if it is legal.
        legal: whether nothing must be said.
        only: keys of ``PLACES`` and of ``DTYPES`` that it is for; empty for all.
        why: it is for no others.
    """

    name: str
    plant: Plant
    legal: bool
    only: tuple[str, ...] = ()
    why: str = ""

    def skipped(self, model: str, dtype: str) -> str:
        """Why it is not planted there; ``""`` if it is."""
        models, dtypes = (
            [name for name in self.only if name in PLACES],
            [name for name in self.only if name in DTYPES],
        )
        return (
            self.why if (models and model not in models) or (dtypes and dtype not in dtypes) else ""
        )


ORIGINS: dict[str, Origin] = {}

_TEXT = ("gpt2", "t5", "minilm")
NO_MASK = "no attention"


def origin(name: str, *only: str, why: str = "", legal: bool = False) -> Callable[[Plant], Plant]:
    """Add an origin to the catalogue."""

    def add(plant: Plant) -> Plant:
        ORIGINS[name] = Origin(name, plant, legal, only, why)
        return plant

    return add


def instead(subject: Subject, name: str, change: Callable[[Any], Any]) -> None:
    """Let what a module gives go through ``change``, in its own forward."""
    module = subject.module(name)
    forward = module.forward

    def changed(*args: Any, **kwargs: Any) -> Any:
        return change(forward(*args, **kwargs))

    module.forward = changed


def first(output: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Change the first tensor of an output."""
    return (
        change(output)
        if isinstance(output, torch.Tensor)
        else (first(output[0], change), *output[1:])
    )


def checkpointed(subject: Subject, reentrant: bool) -> None:
    """Let the block be computed again in the backward."""
    how = CheckpointImpl.REENTRANT if reentrant else CheckpointImpl.NO_REENTRANT
    parent, _, own = subject.at.block.rpartition(".")
    setattr(
        subject.module(parent),
        own,
        checkpoint_wrapper(subject.module(subject.at.block), checkpoint_impl=how),
    )


def compiled(subject: Subject) -> None:
    subject.model = torch.compile(subject.model, backend="eager")  # type: ignore[assignment]


def into_leaf(module: Callable[[], nn.Module], *kinds: str, inner: str = "", **right: Any) -> Plant:
    """Put a module in the leaf's place; the origin is in it, or in its child ``inner``."""

    def plant(subject: Subject) -> Right:
        subject.put(subject.at.leaf, module())
        return Right(f"{subject.at.leaf}.{inner}" if inner else subject.at.leaf, kinds, **right)

    return plant


origin("log of 0")(into_leaf(planted.LogOfZero, *DOWN))
origin("log in place, of what came in")(into_leaf(planted.LogInPlace, *NAN, *DOWN))
origin("0/0 in a keyword argument")(
    into_leaf(planted.ByKeyword, *NAN, site=Site.GLUE, near=("before add",))
)
origin("NaN in a dict")(into_leaf(partial(planted.Unpack, "dict"), *NAN, inner="inner"))
origin("NaN in a ModelOutput")(
    into_leaf(partial(planted.Unpack, "ModelOutput"), *NAN, inner="inner")
)
origin("NaN in nested tuples")(into_leaf(partial(planted.Unpack, "nested"), *NAN, inner="inner"))
origin("NaN at a point of one's own")(
    into_leaf(planted.CheckedLog, *DOWN, site=Site.POINT, near=("after log",))
)


@origin("overflow in a matmul")
def _matmul(subject: Subject) -> Right:
    _enlarge(subject, 0.9 * subject.largest)
    return Right(subject.at.linear, (*UP, *DOWN))


@origin("overflow under autocast(float16)", "float32", why="autocast is tried on float32")
def _autocast_half(subject: Subject) -> Right:
    _enlarge(subject, 1e5)
    subject.autocast = torch.float16
    # the weight alone is Inf in float16, and times 0 that is NaN
    return Right(subject.at.linear, (*UP, *DOWN, *NAN))


@origin("overflow under autocast(bfloat16)", "float32", why="autocast is tried on float32")
def _autocast_bfloat16(subject: Subject) -> Right:
    _enlarge(subject, 0.9 * subject.largest)
    subject.autocast = torch.bfloat16
    return Right(subject.at.linear, (*UP, *DOWN))


def _enlarge(subject: Subject, size: float) -> None:
    """Make one weight huge: that of the feature that is largest where it comes in."""
    linear = subject.module(subject.at.linear)
    given, weight = subject.given(subject.at.linear).float().abs(), linear.weight
    assert isinstance(weight, torch.Tensor)
    with torch.no_grad():
        if isinstance(linear, nn.Conv2d):
            weight[0, given.amax((0, 2, 3)).argmax(), 1, 1] = size
        else:
            feature = given.flatten(0, -2).amax(0).argmax()
            weight[(0, feature) if isinstance(linear, nn.Linear) else (feature, 0)] = (
                size  # else GPT-2's, which is transposed
            )


@origin("second call of a shared module overflows")
def _second_call(subject: Subject) -> Right:
    subject.put(subject.at.leaf, planted.Twice(subject.largest**0.6))
    return Right(f"{subject.at.leaf}.scale", (*UP, *DOWN), call=1)


@origin("0/0 in a norm")
def _norm(subject: Subject) -> Right:
    norm = subject.module(subject.at.norm)
    for own in ("eps", "variance_epsilon"):
        if hasattr(norm, own):
            setattr(norm, own, 0.0)
    with torch.no_grad():
        if subject.name == "cnn":
            subject.module(subject.at.linear).get_parameter("weight")[0] = 0  # a constant channel
            norm.get_buffer("running_var")[0] = 0
            return Right(subject.at.norm, NAN)
        token = subject.kwargs["input_ids"][0, 0]
        tables = {"gpt2": ("transformer.wte", "transformer.wpe"), "t5": ("shared",)}
        for name in tables.get(
            subject.name,
            [f"embeddings.{kind}_embeddings" for kind in ("word", "position", "token_type")],
        ):
            table = subject.module(name)
            assert isinstance(table, nn.Embedding)
            table.weight[token if table.num_embeddings > 100 and "position" not in name else 0] = (
                0  # a constant row
            )
    return Right(subject.at.norm, NAN)


def _residual(sign: float) -> Plant:
    """Both addends are 0.6 times the largest number, in one channel."""

    def large(tensor: torch.Tensor, size: float) -> torch.Tensor:
        channel = torch.zeros_like(tensor)
        channel[(slice(None), 0) if tensor.ndim == 4 else (..., 0)] = size
        return torch.where(channel == 0, tensor, channel)

    def plant(subject: Subject) -> Right:
        for name in subject.at.addends:
            size = sign * 0.6 * subject.largest
            instead(subject, name, partial(first, change=partial(large, size=size)))
        if subject.name == "gpt2":  # the norm between them would overflow in its own squares
            norm = subject.module("transformer.h.1.ln_2")
            norm.forward = partial(_clamped, norm.forward)
        return Right(subject.at.adder, UP if sign > 0 else DOWN, Site.GLUE, near=subject.at.sums)

    return plant


def _clamped(forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    return forward(x.clamp(-100, 100))


origin("exploding residual")(_residual(1))
origin("residual overflows to -Inf", *_TEXT, why="the ReLU after it makes it 0")(_residual(-1))


@origin("division by 0 after the last child")
def _division(subject: Subject) -> Right:
    instead(
        subject,
        subject.at.parent,
        partial(first, change=lambda tensor: tensor / torch.zeros_like(tensor)),
    )
    return Right(
        subject.at.parent, (*UP, *DOWN, *NAN), Site.GLUE, near=(f"after {subject.at.last}",)
    )


@origin("NaN weight")
def _weight(subject: Subject) -> Right:
    with torch.no_grad():
        subject.module(subject.at.linear).get_parameter("weight").view(-1)[0] = torch.nan
    return Right(subject.at.linear, NAN, Site.WEIGHTS)


@origin("NaN buffer", "cnn", why="no buffer of floating numbers")
def _buffer(subject: Subject) -> Right:
    with torch.no_grad():
        subject.model.get_buffer("stem.1.running_var")[0] = torch.nan
    return Right("stem.1", NAN, Site.WEIGHTS)


def _given(value: float, kinds: tuple[str, ...]) -> Plant:
    """One number of the input; a model of text is given embeddings."""

    def plant(subject: Subject) -> Right:
        if subject.name == "cnn":
            subject.args[0][0, 0, 0, 0] = value
            return Right("", kinds, Site.INPUT, path="0")
        embedding = subject.model.get_input_embeddings()  # type: ignore[operator]
        embedded = embedding(subject.kwargs.pop("input_ids")).detach()
        embedded[0, 1, 2] = value
        subject.kwargs["inputs_embeds"] = embedded
        return Right("", kinds, Site.INPUT, path="inputs_embeds")

    return plant


origin("NaN input")(_given(torch.nan, NAN))
origin("+Inf input")(_given(torch.inf, UP))


@origin("a row that is masked altogether", *_TEXT, why=NO_MASK)
def _whole_row(subject: Subject) -> Right:
    mask = masked(subject)
    mask[0, :, -1] = -torch.inf
    subject.kwargs["attention_mask"] = mask
    return Right(subject.at.masked, NAN, Site.GLUE, near=subject.at.attended)


def masked(subject: Subject) -> torch.Tensor:
    """A mask of 0 and -Inf, as an attention adds it to its scores: over what comes later, or over
    the end of a sentence.
    """
    batch, length = subject.kwargs["input_ids"].shape
    if subject.name == "gpt2":
        return (
            torch.full((length, length), -torch.inf, dtype=subject.dtype)
            .triu(1)
            .repeat(batch, 1, 1, 1)
        )
    # T5 takes it for the decoder's attention to the encoder, too
    mask = torch.zeros(batch, 1, 1, length, dtype=subject.dtype)
    mask[1, ..., -5:] = -torch.inf
    return mask


@origin("labels all ignored, in the model", "gpt2", "t5", why="it has no loss of its own")
def _ignored(subject: Subject) -> Right:
    ids = subject.kwargs["input_ids" if subject.name == "gpt2" else "decoder_input_ids"]
    subject.kwargs["labels"] = torch.full_like(ids, -100)
    subject.loss = lambda output: output.loss
    return Right("", NAN, Site.GLUE, near=("after lm_head",))


def _checkpointed(reentrant: bool) -> Plant:
    def plant(subject: Subject) -> Right:
        subject.put(inside(subject), planted.LogOfNegative())
        checkpointed(subject, reentrant)
        return Right(inside(subject), (*NAN, *DOWN))

    return plant


origin("log of a negative, checkpointed")(_checkpointed(reentrant=False))
origin("log of a negative, checkpointed, reentrant")(_checkpointed(reentrant=True))


def inside(subject: Subject) -> str:
    """A leaf in the block that is checkpointed."""
    return "blocks.1.bn2" if subject.name == "cnn" else subject.at.leaf


@origin("log of 0, compiled")
def _compiled(subject: Subject) -> Right:
    right = ORIGINS["log of 0"].plant(subject)
    compiled(subject)
    assert right is not None
    return right


@origin("log of 0, in inference mode")
def _inference(subject: Subject) -> Right | None:
    subject.loss, subject.inference = None, True
    return ORIGINS["log of 0"].plant(subject)
