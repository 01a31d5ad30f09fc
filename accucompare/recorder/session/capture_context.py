"""A capture from beginning to end: ``with accucompare.capture(model, "golden") as session``."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import msgspec
import torch
from torch import nn

from accucompare.asked import Arithmetic, FedWith, Loop, Recorded, StartFrom, group
from accucompare.bundle.format import AsLayout, Manifest
from accucompare.bundle.writing import (
    BundleWriter,
    forget_previous,
    locked,
    prepare_directory,
    restore_previous,
)
from accucompare.errors import CaptureError, UsageError
from accucompare.live.around import describe_environment, device_of, notes_on
from accucompare.live.numerics import CompiledRegions, Numerics, describe_autocast
from accucompare.live.operators import matched_randomness
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.recording import Recorder, RecordMaker
from accucompare.recorder.session.as_layout import computed_in_parts, rank_layout
from accucompare.recorder.session.session import Session
from accucompare.recorder.session.start import ALONE, Start, Subject, Within
from accucompare.recorder.state import NOTHING, StateSaver, Training, UnknownOptimizers
from accucompare.selection import Level, Mode, listed


def capture(
    model: nn.Module,
    out: str | Place,
    *,
    record: str | Recorded = Mode.TENSORS,
    steps: int | str | Iterable[int] | None = None,
    seed: int | None = None,
    start: str | Place | StartFrom | None = None,
    feed: str | Place | FedWith | None = None,
    loop: Any = None,
    numerics: Arithmetic | None = None,
    save_state: bool = False,
    overwrite: bool = False,
) -> contextlib.AbstractContextManager[Session]:
    """Record the inputs and outputs of every module call while the context lasts.

    Random operations draw from a CPU generator under ``seed``, so dropout agrees on every device.
    The global generators, the model, its mode, its hooks and its parameters are left as a plain run
    would leave them. With activation checkpointing, run the backward inside the context, too: the
    forward that runs again then finds its random numbers.

    Args:
        model: any module, on any device, wrapped or not.
        out: directory, or URL such as ``s3://bucket/golden``, to write the bundle to.
        record: how much to keep of each tensor: ``"tensors"``; ``"sketch"`` (digest, statistics and
            2 KiB, from which the distance of two tensors is estimated to some percent);
            ``"stats"``; ``"digest"``, for two runs that should be equal bit for bit. Or an
            ``accucompare.Recorded``, which also chooses layers, roles and operators. Without
            ``only`` and ``skip``, the layers are those of ``start`` or ``feed``. The outermost
            call's inputs are always recorded.
        steps: record this many steps and no more; by default all. Or the numbers of the steps to
            record, as a list or as text such as ``"0,10,100-102"`` (``"10-10"`` is step 10 alone):
            the others run as if there were no capture. A run that ends before the last of them
            leaves an incomplete bundle.
        seed: of the random operations; by default that of ``start`` or ``feed``, or 0.
        start: a bundle captured with ``save_state``: its weights and buffers are copied into the
            model before it runs, its train or eval mode is set, and its seed and selection are
            taken over. The capture begins with the step of the state (``session.step_number``),
            with the ``loop`` and the random generators as they were then. Or an
            ``accucompare.StartFrom``.
        feed: a golden bundle: every module call gets golden's inputs, and its caller golden's
            outputs (fresh copies in the same dtype and on the same device), after what arrived and
            what was computed is recorded. So each record shows the error of one module, or of the
            code of one parent before it. Gradients and updates are fed likewise, if golden has
            them. If golden has no gradients, they are off unless its forward itself asked for some
            (``autograd.grad``): leave out backward and optimizer then. Golden's seed, steps and
            selection are the defaults. What golden lacks, and objects that cannot be looked into,
            are passed on unchanged and listed in the manifest. Or an ``accucompare.FedWith``.
        loop: the optimizer, or an ``accucompare.Loop`` with the scheduler and the scaler, for
            ``save_state`` and ``start``. Updates are recorded without it, too. An optimizer that
            holds none of the model's parameters is an error.
        numerics: an ``accucompare.Arithmetic``: deterministic algorithms, HF32, TF32. Afterwards
            all is as before.
        save_state: save, for ``start``, the parameters, the buffers, and what else a training step
            starts from (``loop``, random generators, gradients, the step's number), as they are
            before the first recorded step. What cannot be saved is listed in the manifest.
        overwrite: replace an earlier bundle in ``out``.

    Yields:
        The session; call its ``step()`` at the end of each step, if there are several.

    Raises:
        CaptureError: if the bundle cannot be written; what was finished stays readable. In a fed
            capture also if a call cannot be fed: a damaged record of golden, a user's hook that
            replaces what a module returns.
        UsageError: if an option makes no sense; if ``feed`` is of another model or other weights,
            or holds nothing to feed; if a renaming matches nothing, leads to no layer of the model,
            or makes two layers one.

    Example:
        >>> with capture(model, "captured", seed=0, record=Recorded(roles="forward")) as session:
        ...     for batch in loader:
        ...         output = model(batch)
        ...         session.step()
    """
    options = CaptureOptions.of(
        record,
        start,
        feed,
        numerics,
        steps=steps,
        seed=seed,
        save_state=save_state,
        overwrite=overwrite,
    )
    return recording(model, out, options, Training.of(group(Loop, loop, "loop")))


@contextlib.contextmanager
def recording(
    model: nn.Module,
    out: str | Place,
    options: CaptureOptions,
    training: Training = NOTHING,
    *,
    device: torch.device | None = None,
    within: Within = ALONE,
) -> Iterator[Session]:
    """``capture`` with its options as one object."""
    if options.like is not None and place_of(options.like).resolve() == place_of(out).resolve():
        raise UsageError(
            f"{out}: cannot be both what the capture starts from and what it writes; choose another"
            " place (--out, out=)"
        )
    subject = Subject.of(model, training, device)
    layout = None if options.as_layout is None else rank_layout(options.as_layout, out, subject)
    regions = None
    if options.compile is not None or options.regions:
        regions = CompiledRegions(subject.modules, options.compile, listed(options.regions))
    notes = notes_on(subject.modules)  # before the model gets the weights and the mode of another
    numerics = Numerics(
        subject.device,
        deterministic=options.deterministic,
        hf32=options.hf32,
        tf32=options.tf32,
        emulate=options.emulate,
        wide=within.made.get("dtype") == "float64",
        round_results=options.round_feed if options.round_results else None,
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(numerics.in_force())
        saver = (
            StateSaver(
                subject.modules, training, subject.device, within.inputs, shard_of=subject.shard_of
            )
            if options.save_state
            else None
        )
        start = Start.of(subject, out, options, stack, within)
        start.notes[:0] = [*subject.notes, *notes, *within.notes]
        directory = place_of(out)
        run = ""
        if not within.prepared:
            run = stack.enter_context(_prepared(directory, options.overwrite, subject))
        manifest = start.manifest(options, subject.ranks)
        manifest.mesh = subject.mesh
        manifest.capture.update({**within.made, **numerics.options, "as_layout": None})
        if run:
            manifest.capture["run"] = run
        if layout is not None:
            made_as = AsLayout(str(options.as_layout), layout.ranks, {**layout.mesh})
            manifest.capture["as_layout"] = msgspec.to_builtins(made_as)
        manifest.environment.update(
            {**describe_environment(subject.device, within.case), "autocast": None, "random": None}
        )
        writer = BundleWriter(
            directory,
            manifest,
            subject.rank,
            options.queue_bytes,
            Mode(options.mode),
            options.sketch_size,
        )
        try:
            draws = (
                stack.enter_context(matched_randomness(start.seed or 0)) if within.matched else None
            )
            if draws is not None and subject.layouts is not None:
                draws.shard_of = subject.layouts.of
            start.restore_training(manifest, draws)
            if saver is not None and start.first_recorded == start.step:
                saver.write(writer, start.step, draws)
            if draws is None and within.matched:
                manifest.notes.append(
                    "this version of torch does not let random operations be matched across devices"
                )
            recorder = Recorder(
                subject.modules,
                start.selection,
                RecordMaker(writer, subject.layouts),
                _on_first_call(manifest, subject),
                start.feed,
                options.level == Level.OP,
                start.groups,
                training,
            )
            stack.callback(recorder.remove)
            stack.enter_context(recorder.seeing_choices())
            recorder.step = start.step
            unknown = None
            if options.save_state or options.like is not None:
                unknown = UnknownOptimizers(subject.modules, training)
                stack.callback(unknown.remove)
            session = Session(subject, start, recorder, writer, numerics, draws, saver, unknown)
            if regions is not None:
                session.regions = regions
                stack.callback(regions.remove)
                regions.install(recorder.aside, recorder.see)
            stack.callback(session.rest)
            session.wake()
        except BaseException as error:
            with contextlib.suppress(CaptureError):
                writer.close({"error": f"{type(error).__name__}: {error}"})
            raise
        try:
            with numerics.emulation(), computed_in_parts(layout, subject, manifest.notes):
                yield session
            session.check_end(options.feed)
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
        if subject.rank == 0 and not within.prepared:
            forget_previous(directory)


def _on_first_call(manifest: Manifest, subject: Subject) -> Callable[[], None]:
    """Returns what the first call notes: autocast, gradients on or off, a moved model."""
    device = subject.device
    moved: list[torch.device] = []

    def note() -> None:
        if manifest.capture["grad"] is None:
            manifest.capture["grad"] = torch.is_grad_enabled()
        manifest.environment["autocast"] = manifest.environment["autocast"] or describe_autocast(
            device, subject.model
        )
        now = device_of(subject.model)
        if not moved and now.type not in (device.type, "cpu"):
            moved.append(now)
            manifest.notes.append(
                f"the model was called on {now.type}, and was on {device.type} when the capture"
                " began: move it before"
            )

    return note


@contextlib.contextmanager
def _prepared(directory: Place, overwrite: bool, subject: Subject) -> Iterator[str]:
    """Rank 0 locks and clears the directory; all ranks wait for it, or fail with it. Gives several
    ranks a name of their run."""
    problem, run = "", secrets.token_hex(8)
    with contextlib.ExitStack() as stack:
        if subject.rank == 0:
            try:
                stack.enter_context(locked(directory))
                stack.callback(_put_back, directory)
                prepare_directory(directory, overwrite)
            except CaptureError as error:
                problem = str(error)
        told = [problem, run]
        if subject.ranks > 1:
            torch.distributed.broadcast_object_list(told, src=0)
        problem, run = told
        if problem:
            raise CaptureError(problem)
        yield run if subject.ranks > 1 else ""


def _put_back(directory: Place) -> None:
    """Restore the bundle that was moved aside, if the capture did not begin its own."""
    with contextlib.suppress(OSError):
        restore_previous(directory)
