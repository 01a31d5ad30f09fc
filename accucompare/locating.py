"""``accucompare.locate``: is it rounding or a bug, and where is the bug? Fed captures, a baseline
and a comparison in one call.
"""

from __future__ import annotations

import glob
import logging
import os
import shlex
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from accucompare.api import Comparison, diff
from accucompare.bundle.format import CONDITIONED, PROOF, Manifest, display_name
from accucompare.bundle.reading import open_bundle
from accucompare.case import file_of, whole_target
from accucompare.compare.limits import (
    OtherCode,
    float_dtype,
    other_code,
    own_baseline,
    product_formats,
    suggested,
)
from accucompare.compare.origins import Stage
from accucompare.compare.pairing import read_maps
from accucompare.compare.rows import RefusedBaseline
from accucompare.devices import DeviceName, open_device
from accucompare.errors import CaptureError, CaseError, UsageError
from accucompare.places import Place, place_of, whole
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.feeding import held_steps
from accucompare.report.words import culprit_place, finding_words
from accucompare.selection import FloatType, Level, RoundedType, Steps
from accucompare.text import printable, without_credentials

_LOGGER = logging.getLogger(__name__)

#: Called with what is being done now, before it begins.
Announce = Callable[[str], None]


@dataclass(frozen=True)
class LocateOptions:
    """The options of ``accucompare.locate`` that most calls leave as they are.

    Attributes:
        golden_case: the case that golden was captured from, for the baseline; as golden's manifest
            has it, if not given. A golden that is made here is made from this case.
        golden_python: the Python interpreter of the environment that golden was captured in: it
            makes the baseline (and golden, if that is not given) in a process of its own, so that
            they run golden's code.
        map: ``OLD=NEW`` renamings of golden's layers, or ``"auto"``, as for ``accucompare.capture``
            and ``accucompare.diff``.
        seed, steps: as for ``accucompare.capture``.
        repeat: how often to run the candidate, and golden if that is made here, to see whether each
            agrees with itself.
        only, skip: globs of the layers to compare and to leave out.
        backward: judge the gradients and updates of a case with a loss, too; a golden that is given
            may have been captured without.
        hf32, tf32: let the device round the operands of float32 products. It is forbidden
            otherwise, since that rounding in every layer would hide small faults.
        deterministic, force: as for ``accucompare.capture``.
    """

    golden_case: str | None = None
    golden_python: str | Path | None = None
    map: str | Iterable[str] = ()
    seed: int | None = None
    steps: int | str | Iterable[int] | Steps | None = None
    repeat: int = 1
    only: str | Iterable[str] = ()
    skip: str | Iterable[str] = ()
    backward: bool = True
    hf32: bool = False
    tf32: bool = False
    deterministic: bool = False
    force: bool = False


@dataclass(frozen=True)
class LocateSetup:
    """All that ``locate`` was asked, for the case's modules and then for the operators of one.

    Attributes:
        case: the case, see ``accucompare.case.load_case``.
        device: the device under test.
        golden: the trusted bundle; without it, one is made on the CPU in float32, with weights and
            inputs rounded to ``dtype``.
        dtype: what the candidate computes in; its own type, if not given.
        out: directory for the bundles that are made: ``golden``, ``candidate`` and ``baseline``,
            and the same of operators in ``ops``.
        overwrite: replace the bundles of an earlier run.
        options: the rest.
        announce: called with each thing that is done, before it begins.
    """

    case: str | None
    device: DeviceName
    golden: str | Place | None = None
    dtype: FloatType | None = None
    out: Place = Path("locate")
    overwrite: bool = False
    options: LocateOptions = LocateOptions()
    announce: Announce = lambda doing: None


def locate(
    case: str | Path | None,
    device: str,
    *,
    golden: str | Place | None = None,
    dtype: str | None = None,
    out: str | Place = "locate",
    overwrite: bool = False,
    options: LocateOptions = LocateOptions(),
) -> Comparison:
    """Run a case on a device, each module on golden's inputs, and compare with what rounding alone
    does to it.

    The command ``accucompare locate`` does the same. What is done is logged, at level INFO.

    Args:
        case: ``file.py[:callable]`` or ``package.module[:callable]``; the callable, ``case`` if not
            named, returns an ``accucompare.Case``. ``None`` stands for the case that the nearest
            pyproject.toml names, or ``./case.py``.
        device: the device under test: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, ``"npu"`` or
            ``"npu:N"``.
        golden: the trusted bundle: its directory or URL; without it, one is made on the CPU in
            float32, with weights and inputs rounded to ``dtype``.
        dtype: what the candidate computes in: ``"float32"``, ``"bfloat16"`` or ``"float16"``; the
            case's own type, if not given.
        out: directory or URL for the bundles that are made: ``golden``, ``candidate`` and
            ``baseline``.
        overwrite: replace the bundles of an earlier run.
        options: what else the command has options for, as an ``accucompare.LocateOptions``.

    Returns:
        The fed comparison with its baseline; ``answer``, ``conclusion`` and ``culprits`` say what
        was found.

    Raises:
        CaseError: if the case cannot be found or built.
        DeviceError: if the device is not there.
        CaptureError: if the model raised, or a bundle cannot be written.
        BundleError: if golden is missing, damaged, or of a newer format.
        UsageError: if an argument makes no sense, or golden and the case do not belong together.

    Example:
        >>> comparison = locate("model.py:faulty", "cpu", golden="golden", out="located",
        ...                     options=LocateOptions(golden_case="model.py"))
        >>> comparison.answer.value, comparison.culprits[0].name
        ('bug', 'blocks.1.bn1')
    """
    setup = LocateSetup(
        case=None if case is None else str(case),
        device=DeviceName.parse(device),
        golden=golden,
        dtype=None if dtype is None else _candidate_type(dtype),
        out=place_of(out),
        overwrite=overwrite,
        options=options,
        announce=_LOGGER.info,
    )
    return locating(setup)


def _candidate_type(dtype: str) -> FloatType:
    known = [each for each in FloatType if each is not FloatType.FLOAT64]
    if dtype not in known:
        raise UsageError(
            f"dtype must be one of {', '.join(each.value for each in known)}, but is {dtype!r}"
        )
    return FloatType(dtype)


def locating(setup: LocateSetup) -> Comparison:
    """What ``locate`` does, with all that it was asked as one object."""
    options, golden = setup.options, setup.golden
    open_device(setup.device)  # before torch is imported, and before anything is written
    maps = [options.map] if isinstance(options.map, str) else list(options.map)
    read_maps(maps)
    if maps and golden is None:
        raise UsageError(
            "--map: needs --golden BUNDLE; without it golden is made from the same case and has the"
            " same names"
        )
    trusted = _Trusted(
        options.golden_python,
        options.golden_case if golden is not None else options.golden_case or setup.case,
    )
    trusted.check()
    made_here = golden is None
    if golden is not None:
        _check(
            place_of(golden), setup.out, {"--golden-case": options.golden_case, "CASE": setup.case}
        )
    else:
        setup.announce(f"golden: {trusted.case or 'the case'} on the CPU, in float32")
        same_device = setup.device.type == "cpu" and setup.dtype in (None, FloatType.FLOAT32)
        if same_device and options.golden_case is None and options.golden_python is None:
            setup.announce(
                "the candidate is the same case on the same device: that shows whether it repeats"
                " itself; --golden compares with another"
            )
        made = CaptureOptions(
            seed=options.seed,
            steps=options.steps,
            save_state=options.golden_python is not None,  # another release may draw other weights
            overwrite=setup.overwrite,
            backward=options.backward,
        )
        rounded = (
            RoundedType(setup.dtype.value)
            if setup.dtype in (FloatType.BFLOAT16, FloatType.FLOAT16)
            else None
        )
        golden = trusted.capture(
            trusted.case, setup.out / "golden", made, FloatType.FLOAT32, rounded, options.repeat
        )
    with open_bundle(golden) as bundle:
        made_with = bundle.manifest.options
    backward = options.backward and bool(made_with.backward)
    if options.backward and made_with.loss and not backward:
        setup.announce(
            f"{golden}: was captured without gradients, so only the forward is judged; capture it"
            " anew for the training"
        )
    of_golden = CaptureOptions(
        feed=golden,
        seed=options.seed,
        steps=options.steps,
        backward=backward,
        force=options.force,
        overwrite=setup.overwrite,
    )
    of_candidate = replace(of_golden, map=maps)
    comparison = _capture_and_compare(
        setup,
        trusted,
        setup.out,
        of_golden,
        of_candidate,
        options.repeat,
        made_here,
        only=options.only,
        skip=options.skip,
    )
    return replace(comparison, golden_made_here=made_here)


def locate_operators(setup: LocateSetup, comparison: Comparison) -> Comparison | None:
    """After ``locate``: which operator of the first culprit's module makes the error?

    Golden, candidate and baseline are captured again, with the operators of that one module.

    Args:
        setup: as it was for ``locate``.
        comparison: what that returned.

    Returns:
        The fed comparison of that module's operators, for a culprit in a backward with the nodes of
        that; ``None`` if there is no culprit, or its error is made in the backward of the loss or
        in an update, whose operators are not recorded.

    Raises:
        CaptureError: if golden cannot be made again here.
        CaseError, DeviceError, BundleError, UsageError: as for ``locate``.
    """
    if not comparison.culprits:
        return None
    stage = comparison.culprits[0].stage
    if stage not in (Stage.FORWARD, Stage.BACKWARD) or comparison.culprits[0].scaled is not None:
        setup.announce(
            "operators: only those of a module's forward and backward are recorded, and"
            f" {culprit_place(comparison.culprits[0])} is neither"
        )
        return None
    name, manifest = comparison.culprits[0].name, comparison.golden.manifest
    made, first, folder = manifest.capture, comparison.golden.path, setup.out / "ops"
    options = CaptureOptions(
        level=Level.OP,
        backward=stage is Stage.BACKWARD,
        seed=made.get("seed"),
        steps=held_steps(manifest),
        only=glob.escape(name),
        overwrite=setup.overwrite,
        like=first if manifest.state is not None else made.get("like"),
    )
    trusted = _Trusted(setup.options.golden_python, setup.options.golden_case)
    trusted.check()
    other = _other_versions(comparison.golden.manifest, comparison.candidate.manifest)
    if other and setup.options.golden_python is None:
        raise CaptureError(
            f"{first}: its operators cannot be captured here, since {other}; "
            "name the Python that has golden's versions (--golden-python PATH)"
        )
    of = "the backward of " if stage is Stage.BACKWARD else ""
    setup.announce(f"operators of {of}{display_name(name)}: golden on the CPU")
    dtype, rounded = made.get("dtype"), made.get("round_weights")
    golden = trusted.capture(
        trusted.case_of(manifest, setup.case) or setup.case,
        folder / "golden",
        replace(options, emulate=made.get("emulate")),
        dtype and FloatType(dtype),
        rounded and RoundedType(rounded),
    )
    again = diff(first, golden, only=options.only)
    if not again.passed:
        cure = "" if manifest.state is not None else "; capture it with --save-state"
        raise CaptureError(
            f"{first}: captured again here, {display_name(name)} gives other values than it"
            f" holds{cure}"
        )
    of_golden = replace(options, feed=golden, force=setup.options.force)
    pairs = ((row.golden, row.candidate) for row in comparison.rows)
    theirs = next(
        (
            theirs.name
            for ours, theirs in pairs
            if ours is not None and theirs is not None and ours.name == name
        ),
        name,
    )
    of_candidate = replace(of_golden, map=comparison.maps, only=glob.escape(theirs))
    return _capture_and_compare(setup, trusted, folder, of_golden, of_candidate, made_here=True)


def operators_by_hand(setup: LocateSetup, comparison: Comparison) -> tuple[str, str, str]:
    """What to type where ``locate_operators`` raised: the captures of golden, where that was made,
    and of the candidate, and their diff.

    Args:
        setup: as it was for ``locate``.
        comparison: what that returned, with a culprit.
    """
    golden = comparison.golden.manifest
    made, name = golden.options, comparison.culprits[0].name
    asked = {
        "--dtype": made.dtype,
        "--round-weights": made.round_weights,
        "--seed": made.seed,
        "--steps": held_steps(golden),
        "--like": comparison.golden.path if golden.state is not None else made.like,
    }
    ours = [
        "accucompare",
        "capture",
        setup.options.golden_case or golden.case or setup.case or "CASE",
        "--level",
        "op",
        "--only",
        glob.escape(name),
    ]
    ours += [part for option, value in asked.items() if value for part in (option, str(value))]
    theirs = [
        "accucompare",
        "capture",
        *([setup.case] if setup.case else []),
        "--device",
        str(setup.device),
        "--level",
        "op",
    ]
    theirs += ["--dtype", setup.dtype.value] if setup.dtype else []
    theirs += [part for each in comparison.maps for part in ("--map", each)]
    return (
        without_credentials(shlex.join([*ours, "--out", "golden-ops"])),
        shlex.join([*theirs, "--feed", "golden-ops", "--out", "candidate-ops"]),
        "accucompare diff golden-ops candidate-ops",
    )


@dataclass(frozen=True)
class _Trusted:
    """What runs golden's code.

    Attributes:
        python: the interpreter that has golden's versions; ``None`` for this one.
        case: the case that golden was captured from, if it was named.
    """

    python: str | Path | None
    case: str | None

    def check(self) -> None:
        """Raise UsageError if the other interpreter cannot capture."""
        if self.python is None:
            return
        try_it = (
            "import accucompare.cli, importlib.util; assert importlib.util.find_spec('torch'),"
            " 'there is no torch'"
        )
        try:
            done = subprocess.run(
                [self.python, "-c", try_it], capture_output=True, text=True, check=False
            )
        except OSError as error:
            raise UsageError(
                f"--golden-python {self.python}: cannot be run ({error.strerror})"
            ) from None
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["it does not run"])[-1]
            raise UsageError(
                f"--golden-python {self.python}: cannot capture ({reason}); install"
                " accucompare[torch] there"
            )

    def case_of(self, golden: Manifest, target: str | None) -> str | None:
        """The case that golden was captured from: the one that was named, or the candidate's own if
        golden's has its name; else ``None``.

        Golden may come from anybody: what it says its case is, is never run. The candidate's own
        may have the fault."""
        own = whole_target(target)
        return self.case or (own if golden.case and whole_target(golden.case) == own else None)

    def capture(
        self,
        case: str | None,
        out: Place,
        options: CaptureOptions,
        dtype: FloatType | None = None,
        round_weights: RoundedType | None = None,
        repeat: int = 1,
    ) -> Place:
        """Capture a case on the CPU, in this process, or by the other interpreter in one of its
        own; arguments as of ``capture_case``.
        """
        if self.python is None:
            from accucompare.recorder.session import capture_case

            return capture_case(
                case,
                out,
                DeviceName("cpu"),
                options,
                dtype=dtype,
                round_weights=round_weights,
                repeat=repeat,
            )
        command = [
            str(self.python),
            "-m",
            "accucompare",
            "capture",
            *([case] if case else []),
            "--device",
            "cpu",
        ]
        command += ["--out", whole(out), "-q"]
        given = {
            field.name: value
            for field in fields(options)
            if (value := getattr(options, field.name)) != field.default
        }
        for name, value in {
            **given,
            "dtype": dtype,
            "round_weights": round_weights,
            "repeat": repeat,
        }.items():
            option = f"--{name.replace('_', '-')}"
            if isinstance(value, (list, tuple)):
                command += [part for each in value for part in (option, whole(each))]
            elif value is True:
                command += [option]
            elif value is False:
                command += [f"--no-{name.replace('_', '-')}"]
            elif value is not None:
                command += [option, whole(value)]
        # variables of options were meant for what the user types, and this command has all of its
        # options
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("ACCUCOMPARE_CAPTURE_")
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            shown, why = (
                without_credentials(shlex.join(command)),
                done.stderr.strip() or f"exit code {done.returncode}",
            )
            raise CaptureError(f"--golden-python: {shown} failed: {why}")
        return out


def _capture_and_compare(
    setup: LocateSetup,
    trusted: _Trusted,
    folder: Place,
    of_golden: CaptureOptions,
    of_candidate: CaptureOptions,
    repeat: int = 1,
    made_here: bool = False,
    **compared: Any,
) -> Comparison:
    """Capture the candidate, fed with golden, find its baseline, prove that, and compare.

    Args:
        setup: the candidate's case, device and numerics.
        trusted: what runs golden's code.
        folder: for the bundles that are made.
        of_golden, of_candidate: options of the fed capture: with golden's layer names, for the
            baseline; with the candidate's.
        repeat: how often to run the candidate.
        made_here: whether golden was made by this process, too, so that a proof is due only where
            something is wrong.
        compared: of ``diff``.
    """
    from accucompare.recorder.session import capture_case

    golden = place_of(of_golden.feed or "")
    with open_bundle(golden) as bundle:
        manifest = bundle.manifest
    like = golden if manifest.state is not None else of_golden.like
    what = "operator" if manifest.capture.get("level") == "op" else "module"
    setup.announce(f"candidate: each {what} on golden's inputs, on {setup.device}")
    options = replace(
        of_candidate,
        like=like,
        hf32=setup.options.hf32,
        tf32=setup.options.tf32,
        deterministic=setup.options.deterministic,
    )
    made = capture_case(
        setup.case, folder / "candidate", setup.device, options, dtype=setup.dtype, repeat=repeat
    )
    with open_bundle(golden) as ours, open_bundle(made) as theirs:
        brought, candidate = own_baseline(ours, theirs), theirs.manifest
        cure = suggested(ours, theirs)
    maps = candidate.capture["map"]  # in which auto is resolved
    other = _other_versions(manifest, candidate)
    baseline, beside, refused = None, None, None
    if brought is not None:
        setup.announce(f"baseline: golden's own, {brought}")
    elif other and trusted.python is None:
        refused = RefusedBaseline(None, other, cure)
        setup.announce(
            f"no baseline: {finding_words.other_code_words(other)}; capture golden with --with-baseline, or name the Python that"
            " has them (--golden-python PATH)"
        )
    else:
        case = trusted.case_of(manifest, setup.case)
        of_baseline = replace(of_golden, like=like)
        if (
            case == setup.case and trusted.python is None
        ):  # else it is golden's own case, which has golden's names
            of_baseline = replace(of_baseline, map=maps, only=of_candidate.only)
        baseline = _baseline(
            case, trusted, manifest, candidate, folder / "baseline", of_baseline, setup.announce
        )
        if baseline is None and other:
            refused = RefusedBaseline(None, other, cure)
        if baseline is not None:
            beside = _Beside(case, trusted, manifest, baseline, of_baseline, setup.announce)
    if beside is not None and not made_here:
        beside.prove()

    def compare() -> Comparison:
        setup.announce("comparing")
        return diff(golden, made, baseline=baseline, map=maps, **compared)

    comparison = compare()
    if beside is not None and what == "module":
        if made_here and not comparison.passed and beside.prove():
            comparison = compare()
        if beside.look_again(comparison, candidate):
            comparison = compare()
        comparison = replace(comparison, not_proved=beside.failed or comparison.not_proved)
    return comparison if refused is None else replace(comparison, refused=refused)


@dataclass
class _Beside:
    """Golden's own case in golden's precision, run beside a baseline: ``compare.judging.proof``
    says what that tells.

    Attributes:
        case, trusted: what is run, and what runs it.
        golden: its manifest.
        baseline: its directory.
        options: of the baseline's capture.
        failed: why it could not be run; ``""`` if it could.
    """

    case: str | None
    trusted: _Trusted
    golden: Manifest
    baseline: Place
    options: CaptureOptions
    announce: Announce
    failed: str = ""

    def prove(self) -> bool:
        """Run it on golden's values; whether that worked."""
        self.announce(f"proof: does {self.case} give golden's own values here?")
        return self._capture(self.baseline / PROOF, self.options)

    def look_again(self, comparison: Comparison, candidate: Manifest) -> bool:
        """Run what a first comparison asks for: the proof again, or golden's code on rounded
        values; whether there is anything new.
        """
        again = conditioned = False
        if comparison.unproved:
            self.announce("proof: again, since golden's values were not reproduced everywhere")
            again = self._capture(self.baseline / PROOF / "repeat1", self.options)
        dtype = float_dtype(candidate)
        if any(row.verdict.beyond for row in comparison.rows) and dtype in list(RoundedType):
            self.announce(
                f"far beyond rounding: does golden's own code on values rounded to {dtype} do the"
                " same?"
            )
            conditioned = self._capture(
                self.baseline / CONDITIONED, replace(self.options, round_feed=dtype)
            )
        return again or conditioned

    def _capture(self, out: Place, options: CaptureOptions) -> bool:
        made = self.golden.options
        deterministic = self.golden.flags.get("deterministic_algorithms") is True
        options = replace(options, emulate=made.emulate, deterministic=deterministic)
        try:
            self.trusted.capture(
                self.case, out, options, FloatType(made.dtype) if made.dtype else None
            )
        except (CaptureError, UsageError) as error:
            self.failed = str(error)
            self.announce(f"that could not be run: {error}")
        return not self.failed


def _baseline(
    case: str | None,
    trusted: _Trusted,
    golden: Manifest,
    candidate: Manifest,
    out: Place,
    options: CaptureOptions,
    announce: Announce,
) -> Place | None:
    """Golden's case on the CPU in the candidate's precision; ``None``, announced, if that is not
    possible.
    """
    if case is None:
        announce(
            "no baseline: golden was captured from"
            f" {printable(golden.case) or 'a case without a name'}, and what a bundle names is not"
            " run; name that case with --golden-case, or the candidate's if only the device may be"
            " wrong"
        )
        return None
    precision, emulate = _of_baseline(golden, candidate)
    announce(
        f"baseline: {case} on the CPU, in"
        f" {precision}{f' with products in {emulate}' if emulate else ''}"
    )
    try:
        return trusted.capture(
            case,
            out,
            replace(options, emulate=emulate),
            FloatType(precision) if precision else None,
        )
    except (
        CaptureError,
        UsageError,
        # it does not run in that type on the CPU, or is not golden's model: fixed limits judge
    ) as error:
        announce(f"no baseline, since {error}")
        return None


def _other_versions(golden: Manifest, candidate: Manifest) -> OtherCode:
    """The packages whose code golden ran that are here in another version, so that nothing made
    here can be its baseline.
    """
    return OtherCode(versions=other_code(golden, candidate).versions)


def _check(golden: Place, folder: Place, cases: Mapping[str, str | None]) -> None:
    """Refuse a bundle that cannot be golden, a directory inside it, and a case inside it, for a
    bundle is data.
    """
    with open_bundle(golden) as bundle:
        if bundle.manifest.capture.get("feed"):
            raise UsageError(
                f"{golden}: is itself fed, so it is no golden; give the bundle that it was fed with"
            )
    if golden.resolve() in (folder.resolve(), *folder.resolve().parents):
        raise UsageError(f"--out {folder}: lies in golden {golden}; choose another directory")
    for option, case in cases.items():
        if (
            case is not None and file_of(case).suffix == ".py" and not file_of(case).is_file()
        ):  # a baseline that golden brings needs none
            raise CaseError(f"{option} {case}: there is no file {file_of(case)}")
        if case is not None and golden.resolve() in file_of(case).resolve().parents:
            raise UsageError(
                f"{option} {case}: lies in golden {golden}, and a bundle holds no code; copy it"
                " elsewhere if you trust it"
            )


def _of_baseline(golden: Manifest, candidate: Manifest) -> tuple[str, str | None]:
    """The type that the baseline computes in, and the precision of its products.

    In golden's own type the CPU would give golden itself; float64 then shows golden's rounding,
    which is the candidate's."""
    ours, theirs = float_dtype(golden), float_dtype(candidate)
    lowered = next(
        (each for each in product_formats(candidate) if each and theirs == "float32"), None
    )
    if lowered is not None:
        return theirs, lowered
    return ("float64" if theirs in (ours, "") else theirs), None
