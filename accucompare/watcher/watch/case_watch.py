"""Running a case under a watch: what ``accucompare watch`` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from accucompare.asked import Arithmetic, Loop
from accucompare.case import Case
from accucompare.devices import DeviceName, backend, explain, open_device
from accucompare.errors import AccucompareError, CaptureError, NonFiniteError, WatchEndedError
from accucompare.findings.log import Finding, WatchRemark, remark
from accucompare.live.modules import arguments_of
from accucompare.live.numerics import Numerics
from accucompare.recorder.session import Casting, build, moved, telling_exits
from accucompare.recorder.state import run_step
from accucompare.selection import FloatType
from accucompare.watcher.watch.running_watch import Watch
from accucompare.watcher.watch.watch_context import watching
from accucompare.watcher.watch_options import WatchOptions


@telling_exits()
def watch_case(
    device: DeviceName,
    out: str | Path,
    options: WatchOptions,
    *,
    numerics: Arithmetic = Arithmetic(),
    dtype: FloatType | None = None,
    seed: int | None = None,
    steps: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> list[Finding]:
    """Build a case on the CPU under the seed, move it to the device, and watch its steps.

    Args:
        device: where to run.
        out: directory of the log and of the reproducer.
        options: as for ``accucompare.watch``; its case is the target of the case, see
            ``accucompare.case.load_case``, whose optimizer is taken.
        numerics: as for ``accucompare.capture``, without ``as_layout``.
        dtype: what to cast floating parameters, buffers and inputs to; as they are if not given.
        seed: of weights and random operations; 0 if not given.
        steps: how many, from the step of ``options.like`` on; by default one per input of the case.
            Fewer inputs are reused from the first.
        progress: called with the steps done and the steps to do.

    Raises:
        CaseError: if the case cannot be found or built, or lacks inputs.
        DeviceError: if the device is not there.
        CaptureError: if the model raised.
        KeyboardInterrupt: on Ctrl-C; its argument names the step once steps run.
    """
    place = open_device(device)
    in_force = Numerics(
        place,
        deterministic=numerics.deterministic,
        hf32=numerics.hf32,
        tf32=numerics.tf32,
        emulate=numerics.emulate,
    ).in_force()
    casting = Casting(None, dtype)
    # with the case's own inputs: those saved with a state may be the bad ones
    built = build(options.case, place, casting, seed or 0)
    case, count = built.case, steps if steps is not None else len(built.inputs)
    loop = Loop(case.optimizer, case.scheduler, case.scaler)
    options = replace(options, loop=loop, case=built.name)
    watch: Watch | None = None  # until it is set up
    with in_force:
        try:
            with watching(built.model, out, options, device=place) as watch:
                watch.is_given(built.inputs)
                for note in _notes(case, place.type, options):
                    watch.say(note)
                different = len(
                    {tuple(id(part) for _, part in arguments_of(*given)) for given in built.inputs}
                )
                if count > different:
                    watch.reuses(different)
                first = watch.step_number
                for step in range(first, first + count):
                    args, kwargs = moved(built.inputs[step % len(built.inputs)], place, casting)
                    watch.step(run_step(built.model, args, kwargs, case.loss, built.training))
                    if progress is not None:
                        progress(step - first + 1, count)
        except (NonFiniteError, WatchEndedError):
            pass
        except AccucompareError:
            raise
        # a sys.exit(0) in the user's code does not make the watch a success
        except (Exception, SystemExit) as error:
            if watch is None:
                raise CaptureError(
                    f"{built.name}: the model raised while it was set up:"
                    f" {explain(place.type, error)}"
                ) from error
            message = (
                f"{built.name}: the model raised in step {watch.step_number}:"
                f" {explain(place.type, error)}"
            )
            raise CaptureError(
                f"{message}\nWhat was watched until then: accucompare overflow {out}"
            ) from error
        except KeyboardInterrupt:
            if watch is None:
                raise
            message = (
                f"stopped in step {watch.step_number}; what was watched until then: accucompare"
                f" overflow {out}"
            )
            raise KeyboardInterrupt(message) from None
    return [] if watch is None else watch.findings


def _notes(case: Case, device: str, options: WatchOptions) -> Iterator[WatchRemark]:
    """What was asked for and is not possible here."""
    if case.loss is None:
        yield remark("forward-only")
    if options.flag_per_module and not backend(device).saturates():
        yield remark("no-flag-here")
