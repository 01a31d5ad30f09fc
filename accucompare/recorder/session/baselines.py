"""The baselines that golden brings (``--with-baseline``): fed runs of its case on its machine."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from accucompare.bundle.format import BASELINES, Manifest
from accucompare.bundle.reading import open_bundle
from accucompare.bundle.writing import discard_unfinished
from accucompare.compare.limits import PRECISIONS, float_dtype, keep_errors
from accucompare.devices import DeviceName
from accucompare.errors import CaptureError, UsageError
from accucompare.places import Place, place_of
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case
from accucompare.selection import FloatType, Level


def capture_baselines(
    target: str | None,
    golden: str | Place,
    device: DeviceName,
    precisions: Iterable[str],
    *,
    tensors: bool = False,
    announce: Callable[[str], None] = lambda doing: None,
) -> list[Place]:
    """Capture golden's case, fed, once for each precision, and keep the errors beside golden.
    Raises UsageError if golden was captured by several processes; CaseError, DeviceError,
    CaptureError, BundleError as ``capture_case``.

    Args:
        target: golden's case.
        golden: its bundle's directory; the baselines go to ``baselines/<precision>`` in it.
        device: golden's own, which is trusted. Products are rounded to HF32 or TF32 on the CPU.
        precisions: names of ``compare.limits.golden_baselines.PRECISIONS``.
        tensors: also keep what each module computed; each baseline is then as large as golden.
        announce: called before each task with its description.
    """
    golden = place_of(golden)
    with open_bundle(golden) as bundle:
        trusted = bundle.manifest
    if trusted.ranks > 1:
        raise UsageError(
            "--with-baseline: golden is of several ranks; capture its baselines by hand (--feed)"
        )
    made = []
    for precision in precisions:
        dtype, emulate = baseline_dtype(trusted, precision)
        announce(
            f"baseline for {precision}: {dtype}{f' with products in {emulate}' if emulate else ''}"
        )
        out = golden / BASELINES / precision
        options = CaptureOptions(
            emulate=emulate,
            feed=golden,
            like=golden if trusted.state is not None else trusted.capture.get("like"),
            level=trusted.capture.get("level") or Level.MODULE,
            overwrite=True,
            backward=bool(trusted.options.backward),
        )
        place = DeviceName("cpu") if emulate else device
        with _whole_or_not_at_all(golden, out, precision):
            if tensors:
                made.append(capture_case(target, out, place, options, dtype=FloatType(dtype)))
                continue
            with tempfile.TemporaryDirectory(
                prefix=".baseline-", dir=golden if isinstance(golden, Path) else None
            ) as folder:
                fed = capture_case(
                    target, Path(folder) / precision, place, options, dtype=FloatType(dtype)
                )
                made.append(keep_errors(golden, fed, out))
    return made


@contextlib.contextmanager
def _whole_or_not_at_all(golden: Place, out: Place, precision: str) -> Iterator[None]:
    """Remove a baseline that does not finish: golden is complete without it."""
    try:
        yield
    except (CaptureError, KeyboardInterrupt) as error:
        discard_unfinished(out)
        if isinstance(error, KeyboardInterrupt):
            raise KeyboardInterrupt(
                f"{golden} is complete, without its baseline for {precision}"
            ) from None
        what = str(error).splitlines()[0]  # the rest points to its records, which are removed
        cure = f"leave {precision} out of --with-baseline, or see --debug"
        raise CaptureError(
            f"baseline for {precision}: {what}\n{golden} is complete, without this baseline; {cure}"
        ) from error


def baseline_dtype(golden: Manifest, precision: str) -> tuple[str, str | None]:
    """The floating type that a precision's baseline computes in, and its products' format.

    In golden's own type a device would give golden itself, but for products. There the baseline is
    float64, which shows golden's rounding: the candidate's own.
    """
    dtype, emulate = PRECISIONS[precision]
    return ("float64" if dtype == float_dtype(golden) else dtype), emulate
