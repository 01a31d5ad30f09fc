"""A capture's options in groups: each field has its help and its range, and the command line is
made of them. Needs no torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import Any

from accucompare.places import Place
from accucompare.selection import (
    LEAST_SKETCH_SIZE,
    MOST_SKETCH_SIZE,
    SKETCH_SIZE,
    Level,
    Mode,
    Precision,
    RoundedType,
    Steps,
)


def told(
    default: Any,
    help: str,
    *,
    one_of: type[Enum] | None = None,
    between: tuple[int, int] | None = None,
) -> Any:
    """A field with the help that the command line shows, and its range: the values of an Enum, or
    the least and the most.
    """
    return field(default=default, metadata={"help": help, "one_of": one_of, "between": between})


@dataclass(frozen=True)
class Recorded:
    """What is recorded."""

    mode: str = told(
        Mode.TENSORS,
        "What to keep of a tensor: all of it; a sketch of 2 KiB, for an estimate of the error;"
        " statistics; or the digest alone.",
        one_of=Mode,
    )
    sketch_size: int = told(
        SKETCH_SIZE,
        "Numbers in a sketch: with 4 times as many, the estimate is twice as exact.",
        between=(LEAST_SKETCH_SIZE, MOST_SKETCH_SIZE),
    )
    level: str = told(
        Level.MODULE,
        "op: also record every operator in the code of the layers chosen by --only, with its source"
        " line.",
        one_of=Level,
    )
    steps: int | str | Iterable[int] | Steps | None = None  # ``Steps`` when it is checked
    roles: str | Iterable[str] | None = told(  # ``RoleGroup``s when they are checked
        None,
        "What to record, of forward, backward, grads (of parameters) and update; series alone keeps"
        " only each step's loss and norms, kilobytes for 1,000 steps.  [default: all that the case"
        " has]",
    )
    backward: bool = told(True, "Record gradients and updates, too, if the case has a loss.")
    only: str | Iterable[str] = ()
    skip: str | Iterable[str] = told(
        (), "Leave out the layers that match. Can be given several times."
    )
    save_state: bool = told(
        False,
        "Save weights, inputs, and what else a training step starts from, for --like; as they are"
        " before the first recorded step.",
    )


@dataclass(frozen=True)
class StartFrom:
    """What the model and its random operations start from."""

    seed: int | None = None
    like: str | Place | None = told(
        None,
        "Start from what capture --save-state, or watch --pause-after, has saved: its weights,"
        " inputs, seed, selection and train or eval mode; of a training its step, optimizer,"
        " scheduler, gradient scaler and random numbers, too.",
    )
    map: str | Iterable[str] = told(
        (),
        "Golden's layer OLD is NEW in the candidate; globs, or re:REGEX=NEW. auto finds the names."
        " Can be given several times.",
    )


@dataclass(frozen=True)
class FedWith:
    """What every layer is given in place of what arrives."""

    feed: str | Place | None = told(
        None,
        "Give every layer golden's inputs, and its caller golden's outputs. The records then show"
        " each layer's own error.",
    )
    round_feed: str | None = told(
        None,
        "With --feed: first round golden's values to this type, to see how far that alone drives"
        " each layer's result.",
        one_of=RoundedType,
    )
    force: bool = told(
        False, "Feed even from a golden with other weights, or of another model class."
    )


@dataclass(frozen=True)
class Arithmetic:
    """How the device computes."""

    deterministic: bool = told(False, "Use deterministic algorithms where the device has them.")
    hf32: bool | None = told(
        None,
        "Let an NPU round the operands of float32 products to HF32.  [default: its own setting]",
    )
    tf32: bool | None = told(None, "The same for TF32 on a GPU.  [default: its own setting]")
    emulate: str | None = told(
        None,
        "On the CPU: round the operands of products to this format, to see how large an error it"
        " makes.",
        one_of=Precision,
    )


@dataclass(frozen=True)
class Asked(Recorded, StartFrom, FedWith, Arithmetic):
    """All groups together."""


#: By the name of an option: its default, its help and its range.
ASKED = {each.name: each for each in fields(Asked)}
