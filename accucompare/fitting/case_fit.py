"""``accucompare.fit``: which modules to keep in float32, proven by a run."""

from __future__ import annotations

import logging
import math
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from accucompare.asked import FitOptions, whole_group
from accucompare.bundle.format import Role, display_name
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.fits import (
    CalledTree,
    Choice,
    CurvePoint,
    ErrorTerms,
    FitAnswer,
    FitGoal,
    FitOutput,
    FitRun,
    KeepingSearch,
    KeptPlaces,
    Mask,
    PlaceShare,
)
from accucompare.devices import DeviceName, open_device
from accucompare.errors import CaptureError, UsageError
from accucompare.fitting.error_products import OwnErrors, counted_operations, measured_terms
from accucompare.fitting.fit_result import FitResult
from accucompare.fitting.fit_runs import FitRuns, gradients_of, is_golden_output
from accucompare.fitting.switches import Switch, switches_of
from accucompare.live.around import describe_model
from accucompare.live.modules import name_modules
from accucompare.numbers import DTYPES, Kind
from accucompare.places import Place, local
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.feeding import check_golden, check_model, held_steps
from accucompare.recorder.session import capture_case, telling_exits
from accucompare.selection import FloatType, RoundedType, Steps, listed
from accucompare.text import first_few

_LOGGER = logging.getLogger(__name__)

#: Outputs of golden that sensitivities are measured of. Runs are held against all.
MOST_OUTPUTS = 4
#: Runs that look for a cheaper choice of single modules; of whole blocks.
MODULE_RUNS, BLOCK_RUNS = 7, 6
#: Runs that look for the best choice within a budget.
BUDGET_RUNS = 4
#: A switch is left in force if it lowers the error to this or less.
WORTH_SWITCHING = 0.9
#: What a choice of single modules must save over one of whole blocks, which is simpler.
SIMPLER_UNLESS = 0.8
_ALL = KeptPlaces(("*",))
#: Asks for the gradients that the first update is given.
_UPDATE = "update"


@dataclass(frozen=True)
class FitSetup:
    """All that ``fit`` was asked."""

    case: str | None
    golden: str | Place
    device: DeviceName
    dtype: FloatType
    goal: FitGoal
    out: Path = Path("fit")
    options: FitOptions = FitOptions()
    announce: Callable[[str], None] = lambda doing: None


def fit(
    case: str | Path | None,
    golden: str | Place,
    device: str = "cpu",
    *,
    dtype: str,
    rel_l2: float | None = None,
    budget: float | None = None,
    out: str | Path = "fit",
    options: FitOptions = FitOptions(),
) -> FitResult:
    """Find the fewest modules to keep in float32 so that the outputs are within a tolerance.

    The command ``accucompare fit`` does the same. Progress is logged at level INFO.

    Args:
        case: as for ``accucompare.locate``.
        golden: directory or URL of the trusted bundle of the same case, in float32.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, ``"npu"`` or ``"npu:N"``.
        dtype: what everything else computes in: ``"bfloat16"``, ``"float16"``, or ``"float32"`` for
            a device that rounds operands (HF32, TF32).
        rel_l2: largest relative L2 error of an output.
        budget: in place of a tolerance: the largest share that may be kept, such as 0.1.
        out: directory for what is recorded on the way; it is removed in the end.
        options: the command's other options, as an ``accucompare.FitOptions``.

    Raises:
        CaseError: if the case cannot be found or built.
        DeviceError: if the device is not there.
        CaptureError: if the model raised, or a bundle cannot be written.
        BundleError: if golden is missing, damaged, or of a newer format.
        UsageError: if an argument makes no sense, or golden and the case do not belong together.

    Example:
        >>> found = fit("model.py", "golden", dtype="bfloat16", rel_l2=1e-2)
        >>> found.exit_code, found.proof.error <= 1e-2
        (0, True)
    """
    known = [FloatType.FLOAT32.value, *(each.value for each in RoundedType)]
    if dtype not in known:
        raise UsageError(f"dtype must be one of {', '.join(known)}, but is {dtype!r}")
    checked = whole_group(FitOptions, options, "options")
    return fit_case(
        FitSetup(
            case=None if case is None else str(case),
            golden=golden,
            device=DeviceName.parse(device),
            dtype=FloatType(dtype),
            goal=FitGoal(rel_l2, budget, str(checked.by)),
            out=local(out),
            options=checked,
            announce=_LOGGER.info,
        )
    )


@telling_exits()
def fit_case(setup: FitSetup) -> FitResult:
    """``fit`` with all that it was asked as one object."""
    _check_goal(setup.goal, setup.dtype)
    place = open_device(setup.device)
    with open_bundle(setup.golden) as golden, _scratch(setup.out) as folder:
        return _Fitting(setup, golden, place, folder).found()


@contextmanager
def _scratch(out: Path) -> Iterator[Path]:
    """A folder for bundles of all layers: where the user has room, and made before any run."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        folder = tempfile.TemporaryDirectory(prefix="recorded-", dir=out)
    except OSError as error:
        raise CaptureError(
            f"{out}: cannot be written ({error.strerror or error}); choose another place (--out,"
            " out=)"
        ) from None
    try:
        with folder as name:
            yield Path(name)
    finally:
        with suppress(OSError):
            out.rmdir()  # if it is empty


def _check_goal(goal: FitGoal, dtype: FloatType) -> None:
    if (goal.rel_l2 is None) == (goal.budget is None):
        raise UsageError(
            "say what is asked: a tolerance of the outputs (--rel-l2 1e-3), or a share that may be"
            " kept in float32 (--budget 10%)"
        )
    if goal.rel_l2 is not None and not 0 < goal.rel_l2 < math.inf:
        raise UsageError(f"rel_l2 (--rel-l2): must be over 0, but is {goal.rel_l2}")
    if goal.budget is not None and dtype is FloatType.FLOAT32:
        raise UsageError("--budget: with --dtype float32 all is in float32; give --rel-l2")
    if goal.budget is not None and not 0 < goal.budget <= 1:
        raise UsageError(
            f"budget (--budget): must be a share over 0 and up to 1 (100%), but is {goal.budget:g}"
        )


class _Fitting:
    """One fit: what is known before any run, and the runs."""

    def __init__(self, setup: FitSetup, golden: Bundle, place: torch.device, folder: Path) -> None:
        self._setup, self._golden, self._folder = setup, golden, folder
        made, options = golden.manifest.options, setup.options
        asked = CaptureOptions(steps=options.steps).asked
        check_golden(golden, folder, asked, 1)
        steps = asked or held_steps(golden.manifest) or Steps(1)
        # an optimizer gives later steps other weights
        count = steps.count if made.optimizer is None else 1
        self._seed = options.seed if options.seed is not None else made.seed or 0
        self._records = [
            record
            for record in golden.records()
            if record.role is Role.OUTPUT and record.step < count
        ]
        self._outputs = _outputs(golden, self._records, listed(options.on))
        trains = self._outputs[0].update
        if trains:
            count = 1
        model = golden.manifest.model
        tied = model.get("tied", {})
        self._tree = CalledTree.of(
            dict.fromkeys(record.name for record in self._records),
            model["modules"],
            [*model["parameters"], *model["buffers"]],
            {name: first for name, first in tied.items() if name in model["parameters"]},
        )
        owners = self._tree.owners
        self._held = _bytes(self._tree, model)
        self._tied = [
            [owners.get(name.rpartition(".")[0], 0) for name in pair]
            for pair in (model.get("tied") or {}).items()
        ]
        # of float32 itself: as the device does without being told
        hf32, tf32 = (
            (None, None) if setup.dtype is FloatType.FLOAT32 else (options.hf32, options.tf32)
        )
        names = dict.fromkeys(output.name or display_name("") for output in self._outputs)
        values = {output: self._value(output) for output in self._outputs}
        self._runs = FitRuns(
            setup.case,
            place,
            setup.dtype,
            self._seed,
            RoundedType(made.round_weights) if made.round_weights else None,
            Steps(count),
            values,
            CaptureOptions(
                seed=self._seed,
                only=[] if trains else [*names],
                roles="grads" if trains else "forward",
                hf32=hf32,
                tf32=tf32,
            ),
            self._check,
            trains,
        )
        self._flops = np.ones(len(self._tree))
        self._backwards = 0

    def _check(self, model: nn.Module) -> None:
        """Refuse a golden of another model, or of other weights."""
        described = describe_model(name_modules(model))
        check_model(self._golden, 0, described, self._setup.options.force)

    def found(self) -> FitResult:
        goal, announce = self._setup.goal, self._setup.announce
        announce(f"nothing in float32: {self._setup.dtype} on {self._setup.device}")
        least = self._runs.run(KeptPlaces(), 0, 0)
        if goal.rel_l2 is not None and least.error <= goal.rel_l2:
            return self._fit(FitAnswer.NOTHING_TO_KEEP, least)
        for switch in switches_of(self._runs.device, self._setup.dtype):
            best = self._try(switch, least)
            if goal.rel_l2 is not None and best.error <= goal.rel_l2:
                return self._fit(FitAnswer.FITS, best)
            least = best
        if self._setup.dtype is FloatType.FLOAT32:
            return self._fit(FitAnswer.UNREACHABLE, least)
        announce("everything in float32: the best that can be had")
        most = self._runs.run(_ALL, 1, 1)
        if most.failed or (goal.rel_l2 is not None and most.error > goal.rel_l2):
            return self._fit(FitAnswer.UNREACHABLE, most)
        terms = self._terms()
        search = KeepingSearch(self._tree, terms, self._cost)
        search.saw(np.zeros(len(self._tree), np.bool_), least.error)
        if goal.rel_l2 is None:
            proof = self._best_within(search, goal.budget or 0, least)
            finite = math.isfinite(proof.error)
            answer = FitAnswer.BEST_FOR_BUDGET if finite else FitAnswer.UNREACHABLE
            return self._fit(answer, proof, terms, search)
        proof = self._smallest(search, goal.rel_l2, most)
        return self._fit(FitAnswer.FITS, proof, terms, search)

    @property
    def _cost(self) -> NDArray[np.float64]:
        return self._held + 1 if self._setup.goal.by == "bytes" else self._flops

    def _try(self, switch: Switch, least: FitRun) -> FitRun:
        """Run with a switch, and leave it in force if that helps."""
        before = self._runs.switches
        self._setup.announce(f"nothing in float32, {switch.what}")
        self._runs.switches = [*before, switch]
        run = self._runs.run(KeptPlaces(), 0, 0)
        if run.error <= max(least.error * WORTH_SWITCHING, self._setup.goal.rel_l2 or 0):
            return run
        self._runs.switches = before
        return least

    def _smallest(self, search: KeepingSearch, limit: float, most: FitRun) -> FitRun:
        """Try choices of single modules while one may be smaller; then of whole blocks, that cost
        little more."""
        best, below = most, 1.0
        for propose, runs in (
            (search.module_choice, MODULE_RUNS),
            (search.block_choice, BLOCK_RUNS),
        ):
            for _ in range(runs):
                choice = propose(limit, below)
                if choice is None:
                    break
                run = self._run(search, choice)
                if run.error <= limit:
                    best, below = run, choice.share
            below = min(1.0, below / SIMPLER_UNLESS)
        return best

    def _best_within(self, search: KeepingSearch, budget: float, least: FitRun) -> FitRun:
        best = least
        for _ in range(BUDGET_RUNS):
            choice = search.best_within(budget, best.error)
            if choice is None:
                break
            best = min(best, self._run(search, choice), key=lambda run: run.error)
        return best

    def _run(self, search: KeepingSearch, choice: Choice) -> FitRun:
        places = self._tree.places(choice.kept)
        self._setup.announce(
            f"run {len(self._runs.made) + 1}: {choice.share:.1%} in float32, expected"
            f" {choice.expected:.2e}"
        )
        run = self._runs.run(places, *self._shares(choice.kept), choice.expected)
        search.saw(choice.kept, run.error)
        return run

    def _shares(self, kept: Mask) -> tuple[float, float]:
        """Of operations and of weights; modules that share a weight are kept together."""
        together = kept.copy()
        for pair in self._tied:
            together[pair] = kept[pair].any()
        flops, held = (
            float(cost[together].sum() / (cost.sum() or 1.0)) for cost in (self._flops, self._held)
        )
        return flops, held

    def _terms(self) -> ErrorTerms:
        """How far each module's error moves the outputs."""
        if self._runs.trains:
            self._count(counted_operations(self._runs, self._tree))
            return self._terms_by_runs()
        setup, golden = self._setup, self._setup.golden
        asked = CaptureOptions(
            feed=golden,
            seed=self._seed,
            steps=setup.options.steps,
            backward=False,
            force=setup.options.force,
            hf32=setup.options.hf32,
            tf32=setup.options.tf32,
        )
        setup.announce(f"each layer on golden's inputs, in {setup.dtype}")
        low, rounded = self._folder / "low", self._folder / "rounded"
        with self._runs.switched():
            capture_case(setup.case, low, setup.device, asked, dtype=setup.dtype)
        setup.announce(f"the same in float32, on inputs rounded to {setup.dtype}")
        exact = replace(asked, round_feed=setup.dtype.value, hf32=False, tf32=False)
        capture_case(setup.case, rounded, setup.device, exact, dtype=FloatType.FLOAT32)
        with ExitStack() as stack:
            errors = OwnErrors(
                self._golden,
                stack.enter_context(open_bundle(low)),
                stack.enter_context(open_bundle(rounded)),
                getattr(torch, setup.dtype.value),
                self._runs.device,
            )
            setup.announce("backwards of golden's code: how much each error moves the outputs")
            found = measured_terms(self._runs, errors, self._tree, self._measured_outputs())
        self._backwards = found.backwards
        self._count(found.counts)
        return self._terms_by_runs(found.why_none) if found.terms is None else found.terms

    def _count(self, operations: Mapping[str, int]) -> None:
        for name, count in operations.items():
            self._flops[self._tree.numbers[name]] += count

    def _measured_outputs(self) -> list[FitOutput]:
        places = np.linspace(0, len(self._outputs) - 1, min(len(self._outputs), MOST_OUTPUTS))
        return [self._outputs[int(place)] for place in dict.fromkeys(places.round())]

    def _terms_by_runs(self, why: str = "") -> ErrorTerms:
        """Without derivatives: a run for each part of the model, and for each kind of modules, with
        all else in float32. A module's error is what both tell."""
        told = f"; no derivatives: {why}" if why else ""
        self._setup.announce(
            f"parts of the model, and kinds of layers, alone in the lower type, all else in"
            f" float32{told}"
        )
        tree = self._tree
        groupings = tree.parts(self._cost), tree.kinds
        known: dict[bytes, float] = {}
        errors: list[list[float]] = []
        for groups in groupings:
            errors.append([])
            for group in groups:
                kept = ~tree.with_tied(tree.mask([], group))
                if kept.tobytes() not in known:
                    run = self._runs.run(tree.places(kept), *self._shares(kept))
                    known[kept.tobytes()] = run.error
                errors[-1].append(known[kept.tobytes()])
        return ErrorTerms.of_runs(tree, groupings, errors)

    def _value(self, output: FitOutput) -> Any:
        if output.update:
            return gradients_of(self._golden)
        for record in self._records:
            if is_golden_output(record, output):
                return self._golden.values(record)
        raise AssertionError(output)

    def _fit(
        self,
        answer: FitAnswer,
        proof: FitRun,
        terms: ErrorTerms | None = None,
        search: KeepingSearch | None = None,
    ) -> FitResult:
        runs = self._runs.made
        places: list[PlaceShare] = []
        curve: list[CurvePoint] = []
        if terms is not None and search is not None:
            tree = self._tree
            inside = [tree.inside(block) for block in search.blocks]
            inside.append([*{*range(len(tree))}.difference(*inside)])
            numbers = [*search.blocks, 0]
            for number, group, share in zip(numbers, inside, terms.shares(inside), strict=True):
                kept = np.zeros(len(tree), np.bool_)
                kept[group] = True
                places.append(
                    PlaceShare(tree.names[number], tree.classes[number], share, *self._shares(kept))
                )
            places.sort(key=lambda place: -place.share)
            curve = [
                CurvePoint(*self._shares(each.kept), each.expected)
                for each in reversed(search.path())
            ]
        return FitResult(
            self._runs.name,
            str(self._golden.path),
            str(self._setup.device),
            self._setup.dtype.value,
            self._setup.goal,
            self._outputs,
            answer,
            runs,
            proof,
            places,
            curve,
            self._backwards,
            search is not None and search.misled,
        )


def _bytes(tree: CalledTree, model: Any) -> NDArray[np.float64]:
    """The bytes of each module's own parameters in float32, each shared one once."""
    held = np.zeros(len(tree))
    for name, about in model["parameters"].items():
        if name not in model.get("tied", {}):
            held[tree.owners.get(name.rpartition(".")[0], 0)] += 4 * math.prod(about["shape"])
    return held


def _outputs(golden: Bundle, records: Sequence[Any], asked: Sequence[str]) -> list[FitOutput]:
    """The outputs that are judged. UsageError, with a list, if one is not there."""
    known: dict[str, list[FitOutput]] = {}
    for record in records:
        if record.member is None or record.dtype not in DTYPES:
            continue
        if DTYPES[record.dtype].kind is not Kind.FLOAT:
            continue
        label = ".".join(filter(None, (record.name, record.path))) or display_name("")
        output = FitOutput(record.name, record.call, record.path, record.step, label)
        known.setdefault(label, []).append(output)
    of_model = [label for label, found in known.items() if not found[0].name]
    wanted = [*asked] or of_model
    if _UPDATE in wanted and _UPDATE not in known:
        if len(wanted) > 1 or golden.manifest.options.optimizer is None:
            raise UsageError(
                f"on (--on) {_UPDATE}: stands alone, and needs a golden of a training: with loss,"
                " optimizer and gradients"
            )
        return [FitOutput("", 0, "", 0, _UPDATE, True)]
    for each in wanted:
        if each not in known:
            layers = [label for label in known if label not in of_model]
            raise UsageError(
                f"on (--on) {each}: golden has no such output; it has"
                f" {', '.join(of_model) or 'none of the model itself'}, and those of layers, such"
                f" as {first_few(layers)}"
            )
    if not wanted:
        raise UsageError(
            f"{golden.path}: holds no floating output of the model itself; name another that is to"
            " be right (--on LAYER), or capture golden without --only"
        )
    return [output for each in wanted for output in known[each]]
