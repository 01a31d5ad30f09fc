"""The baselines in ``golden/baselines/<precision>/``, captured with golden's code.

So the machine under test needs neither golden's code nor the time for a baseline. Such a bundle is
a fed capture that keeps each record's distance from golden (``Record.error``) instead of the
tensor: a few kilobytes in all."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import isfinite

import msgspec

from accucompare.bundle.flags import FLAGS
from accucompare.bundle.format import BASELINES, GRADIENT_ROLES, Error, Key, Manifest, Record, Role
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.bundle.writing import BundleWriter
from accucompare.compare.limits.baseline import differing, is_half
from accucompare.compare.measuring import (
    Values,
    beyond_last_place,
    common_factor,
    may_hold_masks,
    measure_pair,
)
from accucompare.errors import CaptureError, UsageError
from accucompare.numbers import DTYPES
from accucompare.places import Place, is_file
from accucompare.selection import Mode, Steps

_SHORT = {"float64": "fp64", "float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}


def product_formats(manifest: Manifest) -> tuple[str, str]:
    """The ``bundle.flags`` formats of float32 matmuls and convolutions, or ``""``."""
    emulated = manifest.options.emulate or ""
    values = manifest.flags
    formats = [(flag.products, flag.rounds_to(values.get(flag.name))) for flag in _BY_DEVICE]
    matmul, conv = (
        emulated or next((to for products, to in formats if to and products == kind), "")
        for kind in ("matmul", "conv")
    )
    return matmul, conv


#: The flags of an accelerator before those of its host.
_BY_DEVICE = sorted(FLAGS, key=lambda flag: "cpu" in flag.types)


def float_dtype(manifest: Manifest) -> str:
    """The dtype of a capture's cast, or else of most parameters; ``""`` if unknown."""
    if cast := manifest.options.dtype:
        return cast
    parameters = (manifest.model.get("parameters") or {}).values()
    held = manifest.model.get("dtypes") or [entry["dtype"] for entry in parameters]
    dtypes = [each for each in held if each in _SHORT]
    return max(sorted(set(dtypes)), key=dtypes.count, default="")


def suggest_baseline(golden: str | Place, candidate: str | Place) -> str:
    """The command that captures the baseline for two bundles.

    Returns:
        A line such as ``accucompare capture model.py --device cpu --dtype bfloat16 --feed golden
        --out cpu-bf16-fed``. ``CASE`` stands for a case that golden's manifest does not name, as
        after a capture by the Python API; ``COMMAND`` for the one that runs golden's script, which
        has to compute in the candidate's precision on the CPU.

    Raises:
        BundleError: if one of the bundles is missing, damaged, or of a newer format.

    Example:
        >>> suggest_baseline("golden", "npu")
        'accucompare capture model.py --device cpu --dtype bfloat16 --out cpu-bf16'
    """
    with open_bundle(golden) as golden_bundle, open_bundle(candidate) as candidate_bundle:
        return suggested(golden_bundle, candidate_bundle).command


@dataclass(frozen=True)
class Suggestion:
    """A command that captures a baseline."""

    command: str  # the line; ``CASE`` or ``COMMAND`` stands for what no manifest names
    out: str  # the directory that it writes
    computes_in: str = ""  # the dtype for golden's script on the CPU; ``""`` for a case


def suggested(golden: Bundle, candidate: Bundle) -> Suggestion:
    """The command that captures the baseline: of golden's case, or of its script."""
    ours, theirs = golden.manifest, candidate.manifest
    made, case = ours.options, ours.case or theirs.case
    of_script = not case and (made.script or theirs.options.script)
    dtypes = float_dtype(ours), float_dtype(theirs)
    lowered = next(
        (each for each in product_formats(theirs) if each and dtypes[1] == "float32"), ""
    )
    # in golden's own dtype the CPU may give golden itself; float64 shows golden's rounding
    alike = dtypes[0] == dtypes[1] and not (lowered and of_script)
    dtype = dtypes[1] if dtypes[1] and not alike else "float64"
    name = lowered or _SHORT.get(dtype, dtype)
    command = ["accucompare", "capture"]
    if not of_script:  # a script chooses these itself
        command += [case or "CASE", "--device", "cpu"]
        command += ["--dtype", dtype]
    command += ["--emulate", lowered] if lowered else []
    command += ["--as-layout", str(candidate.path)] if theirs.ranks > ours.ranks == 1 else []
    command += _weights_from(golden, candidate, of_script)
    steps = made.steps if made.chosen_steps is None else Steps.held(made.chosen_steps)
    for option, number in (("--seed", made.seed), ("--steps", steps)):
        command += [option, str(number)] if number else []
    command += ["--level", "op"] if theirs.options.level == "op" else []
    for option, globs in (("--only", theirs.options.only), ("--skip", theirs.options.skip)):
        for glob in globs or ():
            command += [option, glob]
    out = f"cpu-{name}{'-fed' if theirs.fed else ''}"
    if out in (golden.path.resolve().name, candidate.path.resolve().name):
        out += "-baseline"
    command += ["--out", out]
    return Suggestion(
        shlex.join([*command, "--", "COMMAND"] if of_script else command),
        out,
        dtype if of_script else "",
    )


def _weights_from(golden: Bundle, candidate: Bundle, of_script: bool) -> list[str]:
    """The options for golden's weights, or values if fed; a script starts from its own weights."""
    made = golden.manifest.options
    if candidate.manifest.fed:  # then golden's rounding of weights is taken over
        options = ["--feed", str(golden.path)]
    else:
        options = (
            ["--round-weights", made.round_weights] if made.round_weights and not of_script else []
        )
    like = golden.path if golden.manifest.state is not None else made.like
    return [*options, "--like", str(like)] if like and not of_script else options


#: The precisions golden can bring a baseline for: floating type, and rounding of float32 products.
PRECISIONS = {
    "float64": ("float64", None),
    "float32": ("float32", None),
    "bfloat16": ("bfloat16", None),
    "float16": ("float16", None),
    "hf32": ("float32", "hf32"),
    "tf32": ("float32", "tf32"),
}

#: The mode of such a bundle.
BASELINE_ERRORS = "errors"


def parse_precisions(text: str) -> tuple[str, ...]:
    """Read ``float32,bfloat16``. Raises UsageError if one of them is unknown, or there is none."""
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    unknown = [name for name in names if name not in PRECISIONS]
    if unknown or not names:
        raise UsageError(
            f"--with-baseline {text}: must be of {', '.join(PRECISIONS)}, separated by commas;"
            " write CASE before the option"
        )
    return names


def precision_of_bundle(candidate: Manifest) -> str:
    """The name in ``PRECISIONS`` of a capture's precision; ``""`` if there is none."""
    dtype = float_dtype(candidate)
    lowered = (
        next((name for name in product_formats(candidate) if name), None)
        if dtype == "float32"
        else None
    )
    return next((name for name, computed in PRECISIONS.items() if computed == (dtype, lowered)), "")


def own_baseline(golden: Bundle, candidate: Bundle) -> Place | None:
    """Golden's own baseline for a fed candidate of this precision; ``None`` if there is none."""
    precision = precision_of_bundle(candidate.manifest)
    if not candidate.manifest.fed or not precision:
        return None
    path = golden.path / BASELINES / precision
    return path if is_file(path / "manifest.json") else None


def keep_errors(golden: Place, baseline: Place, out: Place) -> Place:
    """Write a baseline's distances from golden, record by record, as a bundle of a few kilobytes.
    Raises BundleError if one of the two is damaged; CaptureError if one of the two is incomplete,
    or the new one cannot be written.

    Args:
        baseline: a capture that was fed with ``golden``.
        out: the directory to write.
    """
    with open_bundle(golden) as trusted, open_bundle(baseline) as fed:
        for bundle in (trusted, fed):
            if not bundle.complete:
                raise CaptureError(
                    f"{bundle.path}: is incomplete, so there is no baseline by it; capture it again"
                )
        partners = {record.key: record for record in trusted.records()}
        for rank, manifest in fed.manifests.items():
            steps = [entry for number, entry in fed.steps() if number == rank]
            kept = replace(
                manifest, steps=[], inputs={}, capture={**manifest.capture, "mode": BASELINE_ERRORS}
            )
            with BundleWriter(out, kept, rank, mode=Mode.STATS) as writer:
                for entry in steps:
                    for record in _with_errors(
                        trusted, fed, list(fed.step_records(rank, entry)), partners
                    ):
                        writer.add(record, None)
                    writer.end_step(entry.step, entry.partial)
    return out


def _with_errors(
    golden: Bundle, baseline: Bundle, records: Sequence[Record], partners: dict[Key, Record]
) -> Iterator[Record]:
    own = {record.key: record for record in records if record.role is Role.PARAM_BEFORE}
    for record in records:
        partner = partners.get(record.key)
        error = None if partner is None else _error(golden, partner, baseline, record)
        if error is not None and partner is not None and record.role is Role.PARAM_UPDATE:
            key = record.key._replace(role=Role.PARAM_BEFORE)
            error = msgspec.structs.replace(
                error,
                beyond=_beyond(golden, partner, partners.get(key), baseline, record, own.get(key)),
            )
        yield msgspec.structs.replace(record, member=None, statistics=None, error=error)


def _error(golden: Bundle, ours: Record, baseline: Bundle, theirs: Record) -> Error | None:
    """The distance between two records; ``None`` if they cannot be compared."""
    if (
        ours.member is None
        or theirs.member is None
        or (ours.shape, ours.components) != (theirs.shape, theirs.components)
    ):
        return None
    dtypes = DTYPES[ours.dtype], DTYPES[theirs.dtype]
    if dtypes[0].kind is not dtypes[1].kind:
        return None
    stored = golden.stored(ours), baseline.stored(theirs)
    # 0 makes integers and booleans that differ count
    exact = 0.0 if not dtypes[0].digits else None
    masks = may_hold_masks(dtypes[0], ours.statistics) and may_hold_masks(
        dtypes[1], theirs.statistics
    )
    metrics = measure_pair(
        stored[0].blocks, stored[1].blocks, dtypes, ours.shape, atol=exact, masks=masks
    )
    for each in stored:
        each.verify()
    if metrics.nonfinite_mismatch or not isfinite(metrics.rmse):
        return None
    gradient = ours.role in (*GRADIENT_ROLES, Role.PARAM_GRAD)
    factor = (
        common_factor(metrics.one_minus_cosine, ours.statistics, theirs.statistics)
        if gradient
        else None
    )
    return Error(
        metrics.rel_l2 if isfinite(metrics.rel_l2) else None,
        metrics.rmse,
        differing(metrics),
        factor,
    )


def _beyond(
    golden: Bundle,
    ours: Record,
    before: Record | None,
    baseline: Bundle,
    theirs: Record,
    own: Record | None,
) -> int | None:
    """How many elements of an update are off by more than rounding.

    Args:
        ours, theirs: the update in golden and in the baseline.
        before, own: the parameter before it, likewise.
    """
    if (
        before is None
        or own is None
        or before.member is None
        or before.shape != ours.shape
        or not is_half(own.dtype)
    ):
        return None
    parameter = Values.of(golden, before)
    return beyond_last_place(
        Values.of(golden, ours), Values.of(baseline, theirs), parameter, DTYPES[own.dtype].digits
    )
