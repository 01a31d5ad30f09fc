"""A watch from beginning to end: ``with accucompare.watch(model, optimizer) as watch``."""

from __future__ import annotations

import contextlib
import datetime
import json
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.optim.optimizer import register_optimizer_step_pre_hook

from accucompare import devices
from accucompare.asked import LookAt, Loop, group
from accucompare.bundle.format import display_name
from accucompare.bundle.reading import open_bundle
from accucompare.errors import UsageError
from accucompare.findings.log import WatchStart
from accucompare.live.around import coordinates, describe_environment, device_of
from accucompare.live.autograd import stepped_by
from accucompare.live.modules import Modules, listens, name_modules
from accucompare.live.numerics import eager_stance
from accucompare.places import local
from accucompare.recorder.recording import Recorder
from accucompare.recorder.session import rank_and_ranks
from accucompare.recorder.state import Continuation, Training, restore_weights
from accucompare.selection import OnFinding
from accucompare.text import with_article
from accucompare.version import __version__
from accucompare.watcher.watch.pausing import Pausing
from accucompare.watcher.watch.running_watch import Watch
from accucompare.watcher.watch_options import WatchOptions

_watched: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def watch(
    model: nn.Module,
    loop: Any = None,
    *,
    out: str | Path = "watch",
    on_finding: str = OnFinding.RAISE,
    look: str | LookAt | None = None,
    abort_after_step: int | None = None,
    pause_after: int | None = None,
    start: str | Path | None = None,
    mesh: Any = None,
    agree: bool = False,
    quiet: bool = False,
) -> contextlib.AbstractContextManager[Watch]:
    """Find where NaN, Inf and overflow begin, forward and backward, while the user's loop runs.

    Everything is looked at on the device and read once a step: when the optimizer is about to
    update, or at ``step()``. The model's results do not change. When something is found, the step
    is run again to see which operator made it. Random generators, buffers, gradients and plain
    attributes of modules are then put back.

    Args:
        model: any module, on any device, wrapped or not.
        loop: the optimizer whose update ends a step's backward; by default any that updates the
            model's parameters. Or an ``accucompare.Loop``, which also has the ``GradScaler`` (an
            overflow that it handles is no finding, many in a row are) and the scheduler (the
            checklist looks at how often it is stepped, and whether its rates are applied).
        out: directory of the log, ``rank0.jsonl``, to which a run is added, and of reproducers.
        on_finding: ``"raise"`` saves a reproducer and raises ``NonFiniteError``, before parameters
            are updated; ``"snapshot"`` saves it, warns and goes on; ``"warn"`` warns and goes on.
        look: ``"op"`` looks at every operator that is called in a module's own code, too. After a
            finding, that is done anyway. Or an ``accucompare.LookAt``: how often, how closely,
            which infinities are meant.
        abort_after_step: end the loop after this step, by a ``WatchEndedError``.
        pause_after: after so many steps in a row with a NaN or Inf loss, end the loop by a
            ``WatchEndedError``. What the first of them started from is saved in ``out``, as by
            ``capture(save_state=True)``, with its batch, so that a run can go on from there. The
            copies take the memory of the model's buffers, the gradients kept between steps, and a
            batch. In one process only.
        start: go on from such a state: weights, ``loop`` and random generators are put back, and
            ``step_number`` begins with its step. The loop has to begin with that step's batch.
        mesh: the ``DeviceMesh`` that tells this rank's coordinates, if the parameters do not.
        agree: with several ranks and ``on_finding="raise"``, ask each other before each update
            whether one has found something, so that all raise. It costs one reduction of one
            number, for which each rank waits. Otherwise only ranks with bad gradients raise.
        quiet: print nothing, and warn of nothing; the log has it all.

    Yields:
        The watch; call its ``step()`` at the end of each step.

    Raises:
        NonFiniteError: if something was found, with ``on_finding="raise"``.
        WatchEndedError: after the step that ``abort_after_step`` names.
        UsageError: if an option makes no sense, the model is watched or captured already, or the
            log cannot be written.

    Example:
        >>> with watch(model, optimizer, quiet=True) as watching:
        ...     for batch in loader:
        ...         model(batch).sum().backward()
        ...         optimizer.step()
        ...         optimizer.zero_grad()
        ...         watching.step()
        >>> watching.findings
        []
    """
    if not isinstance(out, (str, Path)):
        raise UsageError(
            f"out must be the path of a directory, but is {with_article(type(out).__name__)}"
        )
    options = WatchOptions(
        **vars(group(LookAt, look, "look")),
        loop=group(Loop, loop, "loop"),
        on_finding=on_finding,
        abort_after_step=abort_after_step,
        pause_after=pause_after,
        like=start,
        agree=agree,
        quiet=quiet,
    )
    return watching(model, out, options, mesh)


@contextlib.contextmanager
def watching(
    model: nn.Module,
    out: str | Path,
    options: WatchOptions,
    mesh: Any = None,
    device: torch.device | None = None,
) -> Iterator[Watch]:
    """What ``watch`` does, with its options as one object."""
    if not isinstance(model, nn.Module):
        raise UsageError(
            f"model must be a torch.nn.Module, but is {with_article(type(model).__name__)}"
        )
    modules = name_modules(model)
    _refuse_second(modules)
    for each in options.optimizers:
        _refuse_other_optimizer(modules, each)
    device, rank, ranks = device or device_of(model), *rank_and_ranks()
    backend = devices.backend(device.type)
    folder = local(out)
    pausing, first = _state_of(modules, folder, options, device, rank, ranks)
    start = WatchStart(
        version=__version__,
        time=datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        rank=rank,
        ranks=ranks,
        model=type(modules.named[""]).__name__,
        parameters=sum(
            parameter.numel()
            for parameter in modules.named[""].parameters()
            if not is_lazy(parameter)
        ),
        device=str(device),
        coordinates=coordinates(modules, mesh),
        case=options.case,
        options=options.as_json(),
        environment=json.loads(json.dumps(describe_environment(device, options.case), default=str)),
        saturates=backend.saturates(),
    )
    with contextlib.ExitStack() as stack:
        running = Watch(modules, device, folder, start, options, pausing)
        running.begin_with(first)
        try:
            if options.kernel_dump is not None:
                folder = Path(options.kernel_dump) / (f"rank{rank}" if ranks > 1 else "")
                running.dump = stack.enter_context(_closing(backend.kernel_dump(folder)))
            # inner hooks of a compiled model stop firing after its first call
            if "torch._dynamo" in sys.modules:
                stack.enter_context(eager_stance())
            stack.callback(_watched.difference_update, list(modules.named.values()))
            _watched.update(modules.named.values())
            stack.callback(register_optimizer_step_pre_hook(running.before_update).remove)
            running.begin()
            yield running
            running.finish()
        except BaseException as error:
            running.fail(error)
            raise


def _state_of(
    modules: Modules, out: Path, options: WatchOptions, device: torch.device, rank: int, ranks: int
) -> tuple[Pausing | None, int]:
    """What saves the training's state, if asked for; and the first step, once ``like``'s is
    loaded."""
    training = Training.of(options.loop)
    pausing = None
    if options.pause_after is not None:
        if ranks > 1:
            raise UsageError(
                "pause_after: is for one process; with several ranks, save checkpoints in the loop,"
                " and watch from the last"
            )
        pausing = Pausing(modules, training, device, out, options.pause_after, options.case)
    if options.like is None:
        return pausing, 0
    with open_bundle(options.like) as bundle:
        continuation = Continuation.of(bundle, rank, training, modules, (), device)
        if continuation is None:
            raise UsageError(
                f"{options.like}: holds no state of a training; save one with save_state=True"
                " (--save-state), or with"
                " pause_after"
            )
        restore_weights(bundle, modules, changed=continuation.state.buffers)
        continuation.apply(None, bundle.manifest.capture.get("seed"))
        return pausing, continuation.step


@contextlib.contextmanager
def _closing(context: contextlib.AbstractContextManager[None]) -> Iterator[contextlib.ExitStack]:
    """Enter a context that can be left early."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(context)
        yield stack


def _refuse_second(modules: Modules) -> None:
    for name, module in modules.named.items():
        if module in _watched:
            raise UsageError(
                f"{display_name(name)} is being watched already; end the other watch first, or"
                " watch once, around both"
            )
        if listens(module, Recorder):
            raise UsageError(
                f"{display_name(name)} is being captured: watch it in a run of its own, or what is"
                " captured would cost more"
            )


def _refuse_other_optimizer(modules: Modules, optimizer: Any) -> None:
    ours = {id(tensor) for *_, tensor in modules.tensors()}
    if ours and not ours & stepped_by(optimizer).keys():
        raise UsageError(
            "optimizer updates no parameter of the model: give the one that does, or none"
        )
