"""What a user can ask of a capture, a watch and ``locate``: options with help and range, from which
most of the command line is made (the rest: ``cli.options``). Needs no torch."""

from __future__ import annotations

import os
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any, TypeVar

from accucompare.errors import UsageError
from accucompare.places import Place
from accucompare.selection import (
    LEAST_SKETCH_SIZE,
    MOST_SKETCH_SIZE,
    SKETCH_SIZE,
    CostKind,
    Level,
    Mode,
    OnFinding,
    Precision,
    RoundedFeed,
    Steps,
)
from accucompare.text import with_article

G = TypeVar("G")


def told(
    default: Any,
    help: str,
    *,
    one_of: type[Enum] | None = None,
    between: tuple[float, float | None] | None = None,
    shown: str | None = None,
    alone: str | None = None,
) -> Any:
    """A field with its help and its range.

    Args:
        one_of: its values.
        between: the least and the most; ``None`` for no most.
        shown: what help shows as the value.
        alone: the value, where a command gives the option without one.
    """
    about = {"help": help, "one_of": one_of, "between": between, "shown": shown, "alone": alone}
    return field(default=default, metadata=about)


def _documented(kind: type[G]) -> type[G]:
    """Append the fields with their help to the docstring."""
    listed = (f"    {each.name}: {each.metadata['help']}" for each in fields(kind))  # type: ignore[arg-type]
    kind.__doc__ = "\n".join([f"{kind.__doc__}\n\nAttributes:", *listed])
    return kind


def group(kind: type[G], given: Any, name: str) -> G:
    """A group as a user gives it: whole, its first field alone, or ``None``. UsageError if it is
    something else."""
    if given is None:
        return kind()
    if isinstance(given, kind) or not _may_be_first(kind, given):
        return whole_group(kind, given, name)
    return kind(given)  # type: ignore[call-arg]


def whole_group(kind: type[G], given: Any, name: str) -> G:
    """A group that only stands as itself; UsageError that names its class if it is another."""
    if not isinstance(given, kind):
        found = "None" if given is None else with_article(type(given).__name__)
        raise UsageError(
            f"{name} must be an accucompare.{kind.__name__}, such as"
            f" {kind.__name__}({_EXAMPLES[kind.__name__]}), but is {found}"
        )
    return given


def _may_be_first(kind: type, given: Any) -> bool:
    """Whether a value may be the first field of a group that a user may give alone."""
    if kind is Loop:
        several = isinstance(given, Collection) and not isinstance(given, (str, Mapping))
        optimizers = given if several else [given]
        return all(hasattr(each, "param_groups") for each in optimizers)
    if kind in (StartFrom, FedWith):
        return isinstance(given, (str, os.PathLike, Place))
    return kind in (Recorded, LookAt) and isinstance(given, str)


#: What a message shows of a class as an example of its use.
_EXAMPLES = {
    "Arithmetic": "deterministic=True",
    "FitOptions": 'on="logits"',
    "FedWith": '"golden", force=True',
    "LocateOptions": 'only="encoder.*"',
    "LookAt": '"op", every=10',
    "Loop": "optimizer, scaler=scaler",
    "Recorded": '"sketch", only="encoder.*"',
    "StartFrom": '"golden", map="auto"',
    "Tolerance": "rel_l2=1e-3",
    "Work": "verify=True",
}

SEEDS = 1 << 32  # numpy's generator takes no larger seed


def checked_seed(seed: Any, name: str) -> Any:
    """A seed, or ``None``. UsageError if it is not a whole number that every generator takes."""
    if seed is not None and (type(seed) is not int or not 0 <= seed < SEEDS):
        raise UsageError(f"{name} must be a whole number from 0 to 2**32 - 1, but is {seed!r}")
    return seed


_ONLY = "only the layers that match. Can be given several times."
_SEED = "Seed of weights and random operations.  [default: "
_STEPS = (
    "Steps to run; or a list of those to record, as 0,10,100-102: the run goes on to the last."
    "  [default: "
)
_REPEATED = " Can be given several times."


@_documented
@dataclass(frozen=True)
class Recorded:
    """What a capture records: ``Recorded("sketch", only="encoder.*")``."""

    mode: str = told(
        Mode.TENSORS,
        "What to keep of a tensor: all of it; a sketch of 2 KiB, for an estimate of the error;"
        " statistics; or the digest alone.",
        one_of=Mode,
    )
    level: str = told(
        Level.MODULE,
        "op: also record every operator in the code of the layers chosen by --only, with its source"
        " line.",
        one_of=Level,
    )
    roles: str | Iterable[str] | None = told(  # ``RoleGroup``s after the check
        None,
        "What to record, of forward, backward, grads (of parameters) and update; series alone keeps"
        " only each step's loss and norms, kilobytes for 1,000 steps.  [default: all that the case"
        " has]",
        shown="LIST",
    )
    only: str | Iterable[str] = told((), f"Record {_ONLY}", shown="GLOB")
    skip: str | Iterable[str] = told(
        (), f"Leave out the layers that match.{_REPEATED}", shown="GLOB"
    )
    sketch_size: int = told(
        SKETCH_SIZE,
        "Numbers in a sketch: with 4 times as many, the estimate is twice as exact.",
        between=(LEAST_SKETCH_SIZE, MOST_SKETCH_SIZE),
    )


_BACKEND = (
    "inductor if none is named; own: only what the model itself compiles, by its own backends"
)
_MAP = (
    "Golden's layer OLD is NEW in the candidate; globs, or re:REGEX=NEW. auto finds the names."
    f"{_REPEATED}"
)


@_documented
@dataclass(frozen=True)
class StartFrom:
    """The saved state that a capture starts from: ``StartFrom("golden", map="auto")``."""

    like: str | Place | None = told(
        None,
        "Start from what capture --save-state, or watch --pause-after, has saved: its weights,"
        " inputs, seed, selection and train or eval mode; of a training its step, optimizer,"
        " scheduler, gradient scaler and random numbers, too.",
        shown="BUNDLE",
    )
    map: str | Iterable[str] = told((), _MAP, shown="OLD=NEW")


@_documented
@dataclass(frozen=True)
class FedWith:
    """What every layer is given in place of what arrives: ``FedWith("golden", force=True)``."""

    feed: str | Place | None = told(
        None,
        "Give every layer golden's inputs, and its caller golden's outputs. The records then show"
        " each layer's own error.",
        shown="GOLDEN",
    )
    layout_of: str | Place | None = told(
        None,
        "With --feed, on several ranks and a golden of one device: a free-running capture of the"
        " same ranks. It tells which part of golden's tensors each rank is given.",
        shown="BUNDLE",
    )
    map: str | Iterable[str] = told((), _MAP, shown="OLD=NEW")
    force: bool = told(
        False, "Feed even from a golden with other weights, or of another model class."
    )
    round_feed: str | None = told(
        None,
        "With --feed: first round golden's values to this type, to see how far that alone drives"
        " each layer's result. float29 is float32 without its last three bits.",
        one_of=RoundedFeed,
    )
    round_results: bool = told(
        False,
        "With --round-feed: round the result of each operator to this type, too, as code that"
        " computes in it does.",
    )


@_documented
@dataclass(frozen=True)
class Arithmetic:
    """How the device computes while a capture lasts: ``Arithmetic(deterministic=True)``."""

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
    as_layout: str | Place | None = told(
        None,
        "Compute as the ranks of this bundle do: products in their parts, each rounded, and sums in"
        " the ranks' order. For the baseline of many ranks.",
        shown="BUNDLE",
    )
    compile: str | None = told(
        None,
        "Run regions (the layers of repeated blocks, or those of --regions), each compiled alone by"
        f" this backend of torch.compile, {_BACKEND}.",
        shown="[BACKEND]",
        alone="inductor",
    )
    regions: str | Iterable[str] = told(
        (),
        "Layers that are run and recorded as one: what is inside is not seen. With --compile they"
        f" are what is compiled.{_REPEATED}",
        shown="GLOB",
    )


@_documented
@dataclass(frozen=True)
class Loop:
    """What a training loop has beside its model: ``Loop(optimizer, scaler=scaler)``."""

    optimizer: Any = told(None, "The optimizer, or a list of them.")
    scheduler: Any = told(None, "The scheduler of learning rates, or a list of them.")
    scaler: Any = told(None, "The GradScaler.")


@dataclass(frozen=True)
class AskedOfCapture(Recorded, StartFrom, FedWith, Arithmetic):
    """All that is asked of a capture."""

    seed: int | None = told(None, f"{_SEED}0]", between=(0, SEEDS - 1))
    steps: int | str | Iterable[int] | Steps | None = told(  # ``Steps`` after the check
        None, f"{_STEPS}one for each of the case's inputs]", shown="N|LIST"
    )
    save_state: bool = told(
        False,
        "Save weights, inputs, and what else a training step starts from, for --like; as they are"
        " before the first recorded step.",
    )
    backward: bool = told(True, "Record gradients and updates, too, if the case has a loss.")
    overwrite: bool = told(
        False,
        "Replace an earlier bundle in the directory; one at a URL is removed when the capture"
        " begins.",
    )


def _as(kind: Any, name: str, default: Any = None, help: str | None = None) -> Any:
    """A field as in another group, with its own default or help."""
    theirs: Field[Any] = next(each for each in fields(kind) if each.name == name)
    about = {**theirs.metadata, **({} if help is None else {"help": help})}
    return field(default=theirs.default if default is None else default, metadata=about)


@_documented
@dataclass(frozen=True)
class LocateOptions:
    """The options of ``accucompare.locate`` that most calls leave as they are."""

    golden_case: str | None = told(
        None,
        "The case that golden is captured from, and its baseline.  [default: CASE, if golden was"
        " captured from it]",
        shown="CASE",
    )
    golden_python: str | Path | None = told(
        None,
        "Python interpreter of golden's environment: it captures the baseline, and golden's"
        " operators.",
        shown="PATH",
    )
    map: str | Iterable[str] = _as(FedWith, "map")
    seed: int | None = _as(AskedOfCapture, "seed", help=f"{_SEED}golden's, or 0]")
    steps: int | str | Iterable[int] | Steps | None = _as(
        AskedOfCapture, "steps", help=f"{_STEPS}golden's, or one for each of the case's inputs]"
    )
    repeat: int = told(
        1,
        "Number of runs of the candidate, and of golden if it is made here: does each agree with"
        " itself?",
        between=(1, 9),
    )
    only: str | Iterable[str] = _as(Recorded, "only", help=f"Compare {_ONLY}")
    skip: str | Iterable[str] = _as(Recorded, "skip")
    backward: bool = _as(AskedOfCapture, "backward")
    hf32: bool = _as(
        Arithmetic,
        "hf32",
        False,
        "Let an NPU round the operands of float32 products; without this it is forbidden here.",
    )
    tf32: bool = _as(Arithmetic, "tf32", False, "The same for a GPU.")
    deterministic: bool = _as(Arithmetic, "deterministic")
    force: bool = _as(FedWith, "force", help="Go on even if golden has other weights.")
    compile: str | None = _as(
        Arithmetic,
        "compile",
        help="Is the compiled model right? Each region is compiled alone by this backend of"
        f" torch.compile ({_BACKEND}), and compared with eager and with float64.",
    )
    regions: str | Iterable[str] = _as(
        Arithmetic, "regions", help=f"With --compile: what is compiled alone.{_REPEATED}"
    )


@_documented
@dataclass(frozen=True)
class FitOptions:
    """The options of ``accucompare.fit`` that most calls leave as they are."""

    on: str | Iterable[str] = told(
        (),
        "The output that is to be right: a path in the model's output, such as logits, or a layer."
        " Can be given several times. Or update: all gradients of the first update of a training."
        "  [default: all outputs of the model]",
        shown="OUTPUT",
    )
    by: str = told(
        CostKind.FLOPS, "What the share in float32 is of: operations, or weights.", one_of=CostKind
    )
    seed: int | None = _as(LocateOptions, "seed")
    steps: int | str | Iterable[int] | Steps | None = _as(LocateOptions, "steps")
    hf32: bool = _as(LocateOptions, "hf32")
    tf32: bool = _as(LocateOptions, "tf32")
    force: bool = _as(LocateOptions, "force")


@_documented
@dataclass(frozen=True)
class LookAt:
    """What a watch looks at, and how closely: ``LookAt("op", every=10)``."""

    level: str = told(
        Level.MODULE, "op: look at every operator, wherever it is called.", one_of=Level
    )
    every: int = told(1, "Watch only every Nth step; the others cost nothing.", between=(1, None))
    frames: int = told(21, "How many of the last calls to show with a finding.", between=(0, None))
    trace_steps: Iterable[int] = told((), f"Show every call of this step.{_REPEATED}")
    allow: str | Iterable[str] = told(
        (), f"Layers whose output may be infinite.{_REPEATED}", shown="GLOB"
    )
    near: float = told(
        4.0,
        "Warn of values within this factor of the largest number of their dtype.",
        between=(1, None),
    )
    flag_per_module: bool = told(
        False, "Read a saturating NPU's overflow flag after each module; slow."
    )
    checks_every: int = told(
        10,
        "Look closely at every Nth step for the checklist (norms, optimizer state, units); 0 leaves"
        " the checklist out.",
        between=(0, None),
    )
    kernel_dump: str | Path | None = told(
        None,
        "Let an NPU write the inputs and outputs of all kernels of the first step into this"
        " directory.",
        shown="DIR",
    )


@dataclass(frozen=True)
class AskedOfWatch(LookAt):
    """All that is asked of a watch."""

    on_finding: str = told(
        OnFinding.RAISE,
        "Stop at the first finding; print it and go on; or save its reproducer and go on.",
        one_of=OnFinding,
    )
    abort_after_step: int | None = told(
        None, "Stop after this step, with or without a finding.", between=(0, None)
    )
    pause_after: int | None = told(
        None,
        "When the loss was NaN or Inf in N steps running, stop, and save what the first of them"
        " started from, for --like.",
        between=(1, None),
        shown="N",
    )
    like: str | Path | None = _as(StartFrom, "like")
    agree: bool = told(False, "Let ranks agree before each update, so that all stop at a finding.")


def maps_taken(maps: Sequence[str]) -> str:
    """What ``--map auto`` did."""
    return f"--map auto {f'took {_options(maps)}' if maps else 'found nothing to rename'}"


def _options(maps: Sequence[str]) -> str:
    """Maps as options of the command line."""
    return " ".join(f"--map {shlex.quote(text)}" for text in maps)


def try_maps(maps: Sequence[str]) -> str:
    """The end of an error that suggests maps; ``""`` if there are none."""
    return f"; try {_options(maps)}, or --map auto" if maps else ""
