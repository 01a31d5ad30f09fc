"""``check_repeat``: a case, run several times: does it agree with itself?"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from accucompare.bundle.reading import open_bundle
from accucompare.case import whole_target
from accucompare.compare.reruns import Disagreement, NotReplayedWhy, Repeated, RepeatedRuns, Replays
from accucompare.devices import DeviceName
from accucompare.errors import CaptureError, UsageError
from accucompare.places import Place, local
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import capture_case, telling_exits
from accucompare.report.files import write_repeat_json
from accucompare.report.words import repeat_words
from accucompare.rerunning.batch_variants import float_type
from accucompare.selection import Mode, Steps

#: Makes a run's bundle in a directory.
MakeRun = Callable[[Path], Place]


class RepeatCheck(Repeated):
    """A program that was run several times. Made by ``accucompare.check_repeat``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.what}: {repeat_words.repeat_headline(self)}>"

    def to_json(self, path: str | Path) -> Path:
        """Write what disagrees, and the replays, as JSON, and return its path.

        Raises:
            ReportError: if it cannot be written.
        """
        return write_repeat_json(self, local(path))


@telling_exits()
def check_repeat(
    case: str | None,
    device: str = "cpu",
    *,
    times: int = 10,
    dtype: str | None = None,
    seed: int = 0,
    steps: int | str | Steps | None = None,
    deterministic: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> RepeatCheck:
    """Run a case several times: does each value have the same bits every time?

    Each run builds the case anew under the seed, and keeps digests only. If values disagree, the
    first step with one is replayed from its saved state and inputs until it disagrees with itself,
    at most as often.

    Args:
        case, device, dtype: as for ``accucompare.locate``.
        times: how many runs; at least 2.
        seed: of weights and random operations.
        steps: how many, or a list of those to compare; by default one for each of the case's
            inputs.
        deterministic: use deterministic algorithms where the device has them.
        progress: called with the runs done, and all.

    Raises:
        CaseError, DeviceError, CaptureError: as for ``accucompare.locate``.

    Example:
        >>> check = check_repeat("model.py", "cpu", times=3)
        >>> check.answer.value, check.found.runs
        ('agrees', 3)
    """
    name = DeviceName.parse(device)
    kind = float_type(dtype)
    options = CaptureOptions(mode=Mode.DIGEST, seed=seed, steps=steps, deterministic=deterministic)

    def run(out: Path) -> Place:
        return capture_case(case, out, name, options, dtype=kind)

    def replays(first: Disagreement, folder: Path) -> Replays | NotReplayedWhy:
        if first.step is None:
            return NotReplayedWhy.WEIGHTS
        only = Steps.of(f"{first.step}-{first.step}")
        saved = CaptureOptions(
            mode=Mode.DIGEST, seed=seed, steps=only, deterministic=deterministic, save_state=True
        )
        state = capture_case(case, folder / "state", name, saved, dtype=kind)
        again = CaptureOptions(mode=Mode.DIGEST, like=state, deterministic=deterministic)
        found = RepeatedRuns()
        for number in range(times):
            out = folder / f"replay{number}"
            _add(found, capture_case(case, out, name, again, dtype=kind))
            if found.found().first is not None:
                break
        return Replays(first.step, found.found())

    return repeat_runs(whole_target(case), run, times, replays, progress)


def repeat_runs(
    what: str,
    run: MakeRun,
    times: int,
    replays: Callable[[Disagreement, Path], Replays | NotReplayedWhy] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RepeatCheck:
    """Make runs, and hold them against each other. Raises UsageError if there are fewer than two
    runs; CaptureError if a run is not complete.

    Args:
        what: their name.
        run: makes one.
        replays: replays the step of a disagreement; ``None`` for a script.
        progress: called with the runs done, and all.
    """
    if times < 2:
        raise UsageError(f"times (--times): must be at least 2, but is {times}")
    found = RepeatedRuns()
    try:
        with tempfile.TemporaryDirectory(prefix="accucompare-repeat-") as folder:
            for number in range(times):
                _add(found, run(Path(folder) / f"run{number}"))
                if progress is not None:
                    progress(number + 1, times)
            first = found.found().first
            if first is None:
                told: Replays | NotReplayedWhy = NotReplayedWhy.AGREED
            elif replays is None:
                told = NotReplayedWhy.OF_SCRIPT
            else:
                told = replays(first, Path(folder))
    except KeyboardInterrupt:  # what it would name goes with the folder
        raise KeyboardInterrupt("nothing of the runs is kept") from None
    return RepeatCheck(what, found.found(), told)


def _add(found: RepeatedRuns, path: Place) -> None:
    with open_bundle(path) as bundle:
        if not bundle.complete:
            raise CaptureError(f"{path}: is incomplete, so it cannot be compared")
        found.add(bundle)
