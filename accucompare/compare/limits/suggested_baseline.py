"""The command that captures a suitable baseline, and the formats that products were rounded to."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from accucompare.bundle.flags import FLAGS
from accucompare.bundle.format import Manifest
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.places import Place
from accucompare.selection import Steps

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
    dtypes = [
        entry["dtype"]
        for entry in (manifest.model.get("parameters") or {}).values()
        if entry["dtype"] in _SHORT
    ]
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
    """A command that captures a baseline.

    Attributes:
        command: the line; ``CASE`` or ``COMMAND`` stands for what no manifest names.
        out: the directory that it writes.
        computes_in: the dtype for golden's script on the CPU; ``""`` for a case.
    """

    command: str
    out: str
    computes_in: str = ""


def suggested(golden: Bundle, candidate: Bundle) -> Suggestion:
    """The command that captures the baseline: of golden's case, or of its script."""
    ours, theirs = golden.manifest, candidate.manifest
    made, case = ours.options, ours.case or theirs.case
    of_script = not case and (made.script or theirs.options.script)
    dtypes = float_dtype(ours), float_dtype(theirs)
    lowered = next(
        (each for each in product_formats(theirs) if each and dtypes[1] == "float32"), ""
    )
    if lowered:
        name, dtype = lowered, dtypes[1]
    else:  # in golden's own dtype the CPU may give golden itself; float64 shows golden's rounding
        dtype = dtypes[1] if dtypes[0] != dtypes[1] and dtypes[1] else "float64"
        name = _SHORT.get(dtype, dtype)
    command = ["accucompare", "capture"]
    if not of_script:  # a script chooses these itself
        command += [case or "CASE", "--device", "cpu"]
        command += ["--dtype", dtype] if dtype != dtypes[0] or not lowered else []
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
