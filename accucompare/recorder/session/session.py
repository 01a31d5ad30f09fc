"""A capture from beginning to end: ``with accucompare.capture(model, "golden") as session``; the
session itself is in ``running.py``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from accucompare.bundle.format import Manifest
from accucompare.bundle.writing import (
    QUEUE_BYTES,
    BundleWriter,
    forget_previous,
    locked,
    prepare_directory,
    restore_previous,
)
from accucompare.errors import CaptureError, UsageError
from accucompare.live.around import describe_environment, device_of, notes_on
from accucompare.live.modules import name_modules
from accucompare.live.numerics import Numerics, describe_autocast
from accucompare.live.operators import matched_randomness
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.recording import Recorder
from accucompare.recorder.session.running import Session
from accucompare.recorder.session.start import ALONE, Start, Within
from accucompare.recorder.state import (
    NOTHING,
    CallArguments,
    StateSaver,
    Training,
    UnknownOptimizers,
)
from accucompare.selection import SKETCH_SIZE, Level, Mode


def capture(
    model: nn.Module,
    out: str | Place,
    *,
    mode: str = Mode.TENSORS,
    sketch_size: int = SKETCH_SIZE,
    level: str = Level.MODULE,
    seed: int | None = None,
    steps: int | str | Iterable[int] | None = None,
    roles: str | Iterable[str] | None = None,
    only: str | Iterable[str] = (),
    skip: str | Iterable[str] = (),
    overwrite: bool = False,
    save_state: bool = False,
    optimizer: Any = None,
    scheduler: Any = None,
    scaler: Any = None,
    like: str | Place | None = None,
    feed: str | Place | None = None,
    round_feed: str | None = None,
    map: str | Iterable[str] = (),
    force: bool = False,
    backward: bool = True,
    deterministic: bool = False,
    hf32: bool | None = None,
    tf32: bool | None = None,
    emulate: str | None = None,
    queue_bytes: int = QUEUE_BYTES,
    device: torch.device | None = None,
    case: str | None = None,
    inputs: list[CallArguments] | None = None,
    made: Mapping[str, Any] | None = None,
    notes: Iterable[str] = (),
) -> contextlib.AbstractContextManager[Session]:
    """Record the inputs and outputs of every module call while the context lasts.

    Random operations draw from a CPU generator under ``seed``, so that dropout agrees on every
    device; the global generators, the model, its mode, its hooks and its parameters are left as a
    plain run would leave them. Where activation checkpointing runs a forward again, let the
    backward run inside the context too, so that dropout finds its numbers again.

    Args:
        model: any module, on any device, wrapped or not.
        out: directory, or URL such as ``s3://bucket/golden``, to write the bundle to.
        mode: ``"tensors"`` keeps every distinct tensor; ``"sketch"`` its digest, statistics and a
            sketch of 2 KiB, by which two tensors' distance is known to some percent; ``"stats"``
            only digest and statistics; ``"digest"`` only the digest, for two runs that should be
            equal bit for bit.
        sketch_size: how many numbers a sketch has, from 16 to 65,536; an estimate's relative
            standard deviation is 1 / sqrt(2 of it).
        level: ``"op"`` records the operators called in the code of the modules that ``only``
            selects, too, with their source lines, the calls that these modules make, and the nodes
            of their backward. With ``feed``, operators are fed as well; golden must be of this
            level then.
        seed: of the random operations; 0 if not given, or that of ``like``.
        steps: record this many steps and no more; without it, all. Or the numbers of the steps to
            record, a list of them or text such as ``"0,10,100-102"`` (``"10-10"`` is step 10
            alone): the others run as if there were no capture. A run that ends before the last of
            them leaves an incomplete bundle.
        roles: what to record, of ``"forward"``, ``"backward"`` (gradients at every layer),
            ``"grads"`` (of parameters) and ``"update"``, as a list or as text with commas; instead
            of ``backward``. ``"series"`` alone makes no record: of training, each step's losses,
            learning rates, gradient norm and digests are in the manifest in any case, kilobytes for
            1,000 steps.
        only, skip: globs of qualified names to record and to leave out; those of ``like`` if
            neither is given. The outermost call's inputs are always recorded.
        overwrite: replace an earlier bundle in ``out``.
        save_state: save parameters, buffers and ``inputs`` too, for ``like``, and what else a
            training step starts from: ``optimizer``, ``scheduler``, ``scaler``, the states of
                random generators, gradients and the step's number. What cannot be saved is listed
            in the manifest. The state is that before the first step that is recorded.
        optimizer, scheduler, scaler: those of the loop, for ``save_state`` and ``like``; one, or a
            list of them. What is recorded of updates is recorded without them, too; an optimizer
            that holds none of the model's parameters is an error.
        like: a bundle captured with ``save_state``: its weights and buffers are copied into the
            model before it runs, its train or eval mode is set, and its seed and selection are
            taken over. The capture begins with the step of the state (``session.step_number``),
            with the optimizer, scheduler, scaler and random generators as they were then.
        feed: a golden bundle: every module call is given golden's inputs in place of those that
            arrive, and its caller golden's outputs in place of those computed (fresh copies in the
            same dtype and on the same device), after what arrived and what was computed is
            recorded. So each record shows the error of one module, or of the code of one parent
            before it. Of a golden without gradients, or without ``backward``, gradients are off,
            unless its forward itself asked for some (``autograd.grad``): leave out backward and
                optimizer then. Golden's seed, number of steps
            and selection are taken over where not given. What golden lacks, and objects that cannot
            be looked into, are passed on as they come and listed in the manifest.
        round_feed: ``"bfloat16"`` or ``"float16"``: round golden's floating values to this type
            before they are given; they keep their own. Golden's own code shows so how far an error
            of that size in what goes into a layer drives what comes out.
        map: ``OLD=NEW`` renamings of the layers of ``like`` and ``feed``, see
            ``accucompare.compare.pairing.align.Renaming``: what is saved for, or recorded of, the
            layer OLD goes to the model's NEW. ``"auto"`` finds them, and notes what it took.
        backward: record gradients and updates, too, where there are such; and with ``feed``, feed
            golden's, if it has them.
        force: feed from a golden of other weights, or of another class of model, too.
        deterministic: use deterministic algorithms where there are such.
        hf32, tf32: whether an NPU or a GPU may round the operands of float32 matrix products and
            convolutions to HF32 or TF32; ``None`` leaves that as it is. As with ``deterministic``,
            all is as before afterwards.
        emulate: ``"hf32"``, ``"tf32"``, ``"bf16"`` or ``"fp16"``: on the CPU, round the operands of
            matrix products and convolutions to that format, to see the size of error that it is
            expected to make.
        queue_bytes: how many bytes of tensors may wait to be written; the model waits when there
            are more.
        device: where the model computes; where its first parameter or buffer is, if not given.
        case: how the manifest shall call what is run.
        inputs: the inputs to save with ``save_state``, one entry of positional and keyword
            arguments a step.
        made: options by which the model was made, for the manifest: dtype, round_weights.
        notes: sentences more for the manifest.

    Yields:
        The session; call its ``step()`` at the end of each step, if there are several.

    Raises:
        CaptureError: if the bundle cannot be written; what was finished stays readable. In a fed
            capture also if a call cannot be
            fed: a damaged record of golden, a hook of the user's that replaces what a module
                returns.
        UsageError: if an option makes no sense, or ``feed`` is of another model, of other weights,
            or holds nothing to feed; if a renaming matches nothing, leads to no layer of the model,
            or makes two layers one.

    Example:
        >>> with capture(model, "captured", seed=0) as session:
        ...     for batch in loader:
        ...         output = model(batch)
        ...         session.step()
    """
    options = CaptureOptions(
        mode=mode,
        sketch_size=sketch_size,
        level=level,
        seed=seed,
        steps=steps,
        roles=roles,
        only=only,
        skip=skip,
        overwrite=overwrite,
        save_state=save_state,
        like=like,
        feed=feed,
        round_feed=round_feed,
        map=map,
        force=force,
        backward=backward,
        deterministic=deterministic,
        hf32=hf32,
        tf32=tf32,
        emulate=emulate,
        queue_bytes=queue_bytes,
    )
    training = Training.of(optimizer, scheduler, scaler)
    return recording(
        model,
        out,
        options,
        device=device,
        case=case,
        inputs=inputs,
        made=made,
        notes=notes,
        training=training,
    )


@contextlib.contextmanager
def recording(
    model: nn.Module,
    out: str | Place,
    options: CaptureOptions,
    *,
    device: torch.device | None = None,
    case: str | None = None,
    inputs: list[CallArguments] | None = None,
    made: Mapping[str, Any] | None = None,
    notes: Iterable[str] = (),
    training: Training = NOTHING,
    within: Within = ALONE,
) -> Iterator[Session]:
    """What ``capture`` does, with its options as one object."""
    if options.like is not None and place_of(options.like).resolve() == place_of(out).resolve():
        raise UsageError(
            f"{out}: cannot be both what the capture starts from and what it writes; choose another"
            " --out"
        )
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, but is a {type(model).__name__}")
    modules = name_modules(model)
    training.check(modules)
    device, rank, ranks = device or device_of(model), *rank_and_ranks()
    notes_on_it = notes_on(modules)  # before it is given the weights and the mode of another
    numerics = Numerics(
        device,
        deterministic=options.deterministic,
        hf32=options.hf32,
        tf32=options.tf32,
        emulate=options.emulate,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(numerics.in_force())
        saver = StateSaver(modules, training, device, inputs) if options.save_state else None
        start = Start.of(
            model, modules, out, options, (rank, ranks), stack, training, device, within
        )
        start.notes[:0] = [*notes_on_it, *notes]
        directory = place_of(out)
        if not within.prepared:
            stack.enter_context(_prepared(directory, options.overwrite, rank, ranks))
        manifest = start.manifest(options, ranks)
        manifest.capture.update({**(made or {}), **numerics.options})
        manifest.environment.update(
            {**describe_environment(device, case), "autocast": None, "random": None}
        )
        writer = BundleWriter(
            directory, manifest, rank, options.queue_bytes, Mode(options.mode), options.sketch_size
        )
        try:
            draws = (
                stack.enter_context(matched_randomness(start.seed or 0)) if within.matched else None
            )
            start.restore_training(manifest, draws)
            if saver is not None and start.first_recorded == start.step:
                saver.write(writer, start.step, draws)
            if draws is None and within.matched:
                manifest.notes.append(
                    "this version of torch does not let random operations be matched across devices"
                )
            on_first_call = _on_first_call(manifest, model, device)
            level = options.level == Level.OP
            recorder = Recorder(
                modules,
                start.selection,
                writer,
                on_first_call,
                start.feed,
                level,
                start.groups,
                training,
            )
            stack.callback(recorder.remove)
            recorder.step = start.step
            unknown = None
            if options.save_state or options.like is not None:
                unknown = UnknownOptimizers(modules, training)
                stack.callback(unknown.remove)
            session = Session(
                directory,
                recorder,
                writer,
                draws,
                start.steps,
                numerics,
                modules,
                start,
                saver,
                unknown,
            )
            stack.callback(session.rest)
            session.wake()
        except BaseException as error:
            with contextlib.suppress(CaptureError):
                writer.close({"error": f"{type(error).__name__}: {error}"})
            raise
        try:
            with numerics.emulation():
                yield session
            session.check_end(start.feed, options.feed)
        except BaseException as error:
            recorder.remove()
            with contextlib.suppress(CaptureError, Warning):  # the model's own error matters more
                session.end(error)
            if start.without_gradients and recorder.backwards and isinstance(error, RuntimeError):
                raise CaptureError(
                    f"{options.feed}: was captured without gradients, so that none are computed"
                    " here, and the backward failed; capture golden with a backward, or leave out"
                    " the backward and the update here"
                ) from error
            raise
        recorder.remove()
        session.end(None)
        if rank == 0 and not within.prepared:
            forget_previous(directory)


def _on_first_call(
    manifest: Manifest, model: nn.Module, device: torch.device
) -> Callable[[], None]:
    """What to do when the model is called: note the autocast in force, whether gradients are on,
    and that it is no longer where it was.
    """
    moved: list[torch.device] = []

    def note() -> None:
        if manifest.capture["grad"] is None:
            manifest.capture["grad"] = torch.is_grad_enabled()
        manifest.environment["autocast"] = manifest.environment["autocast"] or describe_autocast(
            device
        )
        now = device_of(model)
        if not moved and now.type not in (device.type, "cpu"):
            moved.append(now)
            manifest.notes.append(
                f"the model was called on {now.type}, and was on {device.type} when the capture"
                " began: move it before"
            )

    return note


@contextlib.contextmanager
def _prepared(directory: Place, overwrite: bool, rank: int, ranks: int) -> Iterator[None]:
    """Let rank 0 lock and clear the directory, and all ranks wait for it, or fail with it."""
    problem: list[str | None] = [None]
    with contextlib.ExitStack() as stack:
        if rank == 0:
            try:
                stack.enter_context(locked(directory))
                stack.callback(_put_back, directory)
                prepare_directory(directory, overwrite)
            except CaptureError as error:
                problem = [str(error)]
        if ranks > 1:
            torch.distributed.broadcast_object_list(problem, src=0)
        if problem[0] is not None:
            raise CaptureError(problem[0])
        yield


def _put_back(directory: Place) -> None:
    """Restore the bundle that was moved aside by a capture that did not get as far as to begin its
    own.
    """
    with contextlib.suppress(OSError):
        restore_previous(directory)


def rank_and_ranks() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) unless torch.distributed is in use."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
