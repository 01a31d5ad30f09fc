"""Running a case under capture: what ``accucompare capture`` does."""

from __future__ import annotations

import functools
import random
from collections import OrderedDict
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from accucompare.asked import checked_seed
from accucompare.bundle.reading import open_bundle
from accucompare.case import Case, load_case, steps_of
from accucompare.devices import DeviceName, explain, open_device
from accucompare.errors import CaseError, DeviceError, UsageError
from accucompare.live.modules import name_modules
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import DEFAULTS, CaptureOptions
from accucompare.recorder.feeding import check_golden, held_steps
from accucompare.recorder.session.capture_context import recording
from accucompare.recorder.session.failures import (
    ModuleFailedError,
    WantedGradientsError,
    name_of,
    naming_the_model,
    telling_exits,
)
from accucompare.recorder.session.start import Within, starting
from accucompare.recorder.state import NOTHING, CallArguments, Training, run_step, saved_inputs
from accucompare.selection import FloatType, RoleGroup, RoundedType, Steps
from accucompare.text import with_article


class Casting:
    """Rounds and casts a model's and its inputs' floating tensors on the CPU, if ``needed``."""

    def __init__(self, rounded: RoundedType | None, final: FloatType | None) -> None:
        self.options = {"round_weights": rounded and rounded.value, "dtype": final and final.value}
        self.needed = rounded is not None or final is not None
        self._rounded: torch.dtype | None = (
            None if rounded is None else getattr(torch, rounded.value)
        )
        self._final: torch.dtype | None = None if final is None else getattr(torch, final.value)

    def __call__(self, tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point():
            return tensor
        exact = tensor if self._rounded is None else tensor.to(self._rounded).to(tensor.dtype)
        return exact.to(self._final)


def repeat_of(directory: Place, run: int) -> Place:
    """The directory of a ``--repeat`` run: ``directory`` for run 0, then its ``repeat1``, …"""
    return directory / f"repeat{run}" if run else directory


@telling_exits()
def capture_case(
    target: str | None,
    out: str | Place,
    device: DeviceName,
    options: CaptureOptions = DEFAULTS,
    *,
    dtype: FloatType | None = None,
    round_weights: RoundedType | None = None,
    repeat: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Place:
    """Build a case on the CPU under the seed, move it to the device, and capture its steps.

    Args:
        target: the case, see ``accucompare.case.load_case``.
        out: directory to write the bundle to.
        options: as for ``accucompare.capture``, except:
            steps: by default those of ``like`` or ``feed``, else one for each input. If there are
                fewer inputs than steps, the inputs are used again from the first.
            feed: with ``dtype`` float64, modules that do not run in float64 compute in float32, and
                the manifest lists them (``fallback``). Loss and optimizer are left out if golden
                has no gradients. If golden has no updates, only step 0 of a case with an optimizer
                is run: golden's later steps had other weights.
        dtype: what to cast floating parameters, buffers and inputs to.
        round_weights: what to round floating parameters, buffers and inputs to before the cast;
            rounding keeps their types.
        repeat: how many times to run the case from scratch; later runs go to ``repeat1``, … inside
            the first's directory.
        progress: called with the steps done and the steps to do.

    Raises:
        CaseError: if the case cannot be found or built, or lacks inputs.
        DeviceError: if the device is not there.
        CaptureError: if the model raised, or the bundle cannot be written.
        UsageError: as for ``accucompare.capture``.
    """
    if options.emulate is not None and dtype in (FloatType.BFLOAT16, FloatType.FLOAT16):
        raise UsageError(
            f"--emulate {options.emulate}: rounds what goes into float32 products; with --dtype"
            f" {dtype} there are none"
        )
    place = open_device(device)
    options, round_weights = _taken_over(options, out, round_weights)
    casting = Casting(round_weights, dtype)
    again = options
    for run in range(repeat):

        def note_step(done: int, count: int, run: int = run) -> None:
            if progress is not None:
                progress(run * count + done, repeat * count)

        narrowed: set[str] = set()
        grad = False
        while True:
            try:
                _capture_once(
                    target,
                    repeat_of(place_of(out), run),
                    place,
                    casting,
                    again,
                    note_step,
                    narrowed,
                    grad,
                )
                break
            except WantedGradientsError:
                grad = True
                again = replace(again, overwrite=True)  # what the failed attempt recorded
            except ModuleFailedError as error:
                no_kernel = (
                    isinstance(error.__cause__, RuntimeError)
                    and options.feed is not None
                    and dtype is FloatType.FLOAT64
                )
                if not no_kernel or error.module in narrowed:
                    raise
                narrowed.add(error.module)
                again = replace(again, overwrite=True)  # what the failed attempt recorded
    return place_of(out)


def _taken_over(
    options: CaptureOptions, out: str | Place, round_weights: RoundedType | None
) -> tuple[CaptureOptions, RoundedType | None]:
    """The options, with missing seed, steps and rounding taken from ``like`` and ``feed``."""
    seed, steps = options.seed, starting(options.asked, _first_step(options.like), options.like)
    for source in (options.like, options.feed):
        if source is None:
            continue
        with open_bundle(source) as bundle:
            if source is options.feed:
                check_golden(bundle, out, steps)  # before the model is built
            made = bundle.manifest.capture
            seed = made.get("seed") if seed is None else seed
            # golden may hold fewer
            asked = None if bundle.complete or options.feed is not None else bundle.manifest.asked
            steps = (
                steps
                or starting(asked, _first_step(options.like), options.like)
                or held_steps(bundle.manifest)
            )
            rounded = made.get("round_weights")
            if source is options.like and round_weights not in (None, rounded):
                raise UsageError(
                    f"--round-weights {round_weights}: the weights are those of --like {source};"
                    " round them where that is captured"
                )
            round_weights = round_weights or (rounded and RoundedType(rounded))
    return replace(options, seed=seed, steps=steps), round_weights


def _capture_once(
    target: str | None,
    out: Place,
    place: torch.device,
    casting: Casting,
    options: CaptureOptions,
    progress: Callable[[int, int], None],
    narrowed: Collection[str] = (),
    grad: bool = False,
) -> None:
    """Build the case and capture it.

    Args:
        narrowed: qualified class names of the modules that compute in float32, whatever the model's
            type.
        grad: turn gradients on in a case without a loss; a fed one has them also where golden's
            forward asked for some.
    """
    built = build(target, place, casting, options.seed or 0, options.like)
    case, name, inputs = built.case, built.name, built.inputs
    if case.loss is None and options.feed is None and RoleGroup.FORWARD not in options.groups:
        raise CaseError(
            f"{name}: --roles {','.join(options.groups)} records what follows from a loss, and the"
            " case has none; give Case(…, loss=…), or record the forward, too (--roles"
            f" forward,{','.join(options.groups)})"
        )
    first, trains, notes = _first_step(options.like), options.trains, list[str]()
    steps = starting(options.asked or Steps(len(inputs)), first, options.like)
    fed = options.feed is not None
    if options.feed is not None:
        steps, trains = _fed_steps(options.feed, built.training, steps, first, trains, notes)
    model = built.model
    made: dict[str, Any] = {
        **casting.options,
        "loss": case.loss is not None,
        "optimizer": (
            name_of(type(built.training.optimizers[0])) if built.training.optimizers else None
        ),
        "case_steps": steps.count - first if steps.chosen is None else None,
    }
    named = name_modules(model).named
    narrow = [name for name, module in named.items() if name_of(type(module)) in narrowed]
    if narrow:
        for name in narrow:
            _compute_in_float32(named[name])
        made["fallback"] = {"dtype": "float32", "modules": narrow}
        notes.append(
            f"{len(narrow)} module(s) do not run in float64 and ran in float32:"
            f" {', '.join(narrow[:3])}"
        )
    saved = inputs if options.save_state else None
    # the steps that run here
    recorded = replace(options, steps=steps if steps.chosen is not None else None)
    training, loss = (built.training, case.loss) if trains or not fed else (NOTHING, None)
    with (
        naming_the_model(name, out, place.type, model, without_gradients=loss is None and not grad),
        recording(
            model, out, recorded, training, device=place, within=Within(name, saved, made, notes)
        ) as session,
    ):
        for step in range(first, steps.count):
            args, kwargs = moved(inputs[step % len(inputs)], place, casting)
            run_step(model, args, kwargs, loss, training, grad or (fed and torch.is_grad_enabled()))
            session.step()
            progress(step - first + 1, steps.count - first)


def _first_step(like: str | Place | None) -> int:
    """The step that begins with the state of ``like``."""
    if like is None:
        return 0
    with open_bundle(like) as bundle:
        state = bundle.manifest.training.training_state
        return 0 if state is None else state.step


def _fed_steps(
    golden: str | Place,
    training: Training,
    steps: Steps,
    first: int,
    trains: bool,
    notes: list[str],
) -> tuple[Steps, bool]:
    """The steps of a fed capture, and whether it trains, as golden did. Notes what differs. Raises
    UsageError if golden lacks what the steps start from."""
    with open_bundle(golden) as bundle:
        held = bundle.manifest.options
    trains = trains and held.holds(RoleGroup.BACKWARD)
    if not training.optimizers:
        return steps, trains
    count = steps.count - first
    if count > 1 and not (trains and held.holds(RoleGroup.UPDATE)):
        if not steps.has(first):
            raise UsageError(
                f"{golden}: lacks the weights that golden's optimizer had made for step"
                f" {next(iter(steps.numbers))}; capture golden with its updates (update among"
                " --roles)"
            )
        notes.append(
            f"fed: only step {first} of {count} was run, since golden's later steps had the weights"
            " that its optimizer made"
        )
        steps = Steps(first + 1, first=first)
    own = name_of(type(training.optimizers[0]))
    if trains and held.optimizer not in (None, own):
        notes.append(
            f"fed: the optimizer is {own}, golden's {held.optimizer}: what only one of them keeps"
            " for a parameter is not fed"
        )
    return steps, trains


@dataclass(frozen=True)
class Built:
    """A case that is ready to run."""

    case: Case  # as its callable returned it
    name: str  # the target that it was found under
    model: nn.Module  # cast, and on the device
    inputs: list[CallArguments]  # positional and keyword arguments of each step, on the CPU
    training: Training  # what it has beside the model


def build(
    target: str | None,
    place: torch.device,
    casting: Casting,
    seed: int,
    like: str | Place | None = None,
) -> Built:
    """Build a case on the CPU under a seed, cast its model, and move it to the device. Raises
    CaseError if the case cannot be found or built, or lacks inputs; DeviceError if the model cannot
    be moved."""
    _seed_everything(seed)
    case, name = load_case(target)
    model = case.model
    if not isinstance(model, nn.Module):
        raise CaseError(
            f"{name}: the case's model must be a torch.nn.Module, but is"
            f" {with_article(type(model).__name__)}"
        )
    training = _training(case, name)
    inputs = _inputs(case.inputs, like, name)
    named = dict(model.named_parameters())
    # model.to(dtype) would also cast complex tensors, and drop their imaginary parts
    if casting.needed:
        model._apply(casting)  # type: ignore[no-untyped-call]
    try:  # the cast is done: no operator runs on the device before its flags are set
        model = model.to(device=place)
    except RuntimeError as error:
        raise DeviceError(
            f"{name}: the model cannot be moved to {place}: {explain(place.type, error)}"
        ) from error
    moved = dict(model.named_parameters())
    for optimizer in training.optimizers:
        _hold_again(optimizer, named, moved)
    _hook_again(named, moved)
    return Built(case, name, model, inputs, training)


def _training(case: Case, name: str) -> Training:
    """What a case has beside its model; CaseError if the parts do not go together."""
    if case.optimizer is not None and case.loss is None:
        raise CaseError(
            f"{name}: the case has an optimizer but no loss to send backward; give Case(…, loss=…)"
        )
    for word, value in (("scheduler", case.scheduler), ("scaler", case.scaler)):
        if value is not None and case.optimizer is None:
            raise CaseError(
                f"{name}: the case has a {word} but no optimizer; give Case(…, optimizer=…)"
            )
    try:
        return Training.of(case)
    except UsageError as error:
        raise CaseError(f"{name}: the case's {error}") from None


def _hook_again(before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]) -> None:
    """Let hooks run of parameters that were made anew, and of DTensors, whose hooks are listed
    after a move, but not called. They may reduce gradients."""
    for name, parameter in before.items():
        new = after.get(name, parameter)
        if new is parameter and not is_traceable_wrapper_subclass(parameter):
            continue
        for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
            if hooks := getattr(parameter, kind, None):
                setattr(new, kind, None)
                setattr(new, kind, OrderedDict(hooks))


def _hold_again(
    optimizer: Any, before: dict[str, nn.Parameter], after: dict[str, nn.Parameter]
) -> None:
    """Make an optimizer hold the model's current parameters: some devices replace them."""
    new = {
        parameter: after[name]
        for name, parameter in before.items()
        if after.get(name, parameter) is not parameter
    }
    if new:
        for group in optimizer.param_groups:
            group["params"] = [new.get(parameter, parameter) for parameter in group["params"]]
        for parameter in [parameter for parameter in optimizer.state if parameter in new]:
            optimizer.state[new[parameter]] = optimizer.state.pop(parameter)


def _inputs(inputs: Any, like: str | Place | None, name: str) -> list[CallArguments]:
    saved = None
    if like is not None:
        with open_bundle(like) as source:
            saved = saved_inputs(source)
    if saved is None and inputs is None:
        raise CaseError(
            f"{name}: the case has no inputs; give Case(model, inputs), or start from a bundle that"
            " has (--like)"
        )
    steps = saved if saved is not None else steps_of(inputs)
    if not steps:
        raise CaseError(f"{name}: the case's list of inputs is empty")
    return steps


def moved(arguments: CallArguments, device: torch.device, casting: Casting) -> CallArguments:
    """Fresh copies on the device, cast before the move. The model may write into its inputs."""

    def move(tensor: torch.Tensor) -> torch.Tensor:
        return casting(tensor).clone().to(device)

    copies: CallArguments = pytree.tree_map_only(torch.Tensor, move, arguments)
    return copies


def _seed_everything(seed: int) -> None:
    checked_seed(seed, "seed")
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _compute_in_float32(module: nn.Module) -> None:
    """Make a module of a float64 model compute in float32, and cast its inputs and outputs."""
    forward = module.forward

    def cast(value: Any, source: torch.dtype, target: torch.dtype) -> Any:
        return pytree.tree_map_only(
            torch.Tensor,
            lambda tensor: tensor.to(target) if tensor.dtype == source else tensor,
            value,
        )

    @functools.wraps(forward)
    def computed(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = cast((args, kwargs), torch.float64, torch.float32)
        return cast(forward(*args, **kwargs), torch.float32, torch.float64)

    module._apply(lambda tensor: tensor.float() if tensor.dtype == torch.float64 else tensor)  # type: ignore[no-untyped-call]
    module.forward = computed
