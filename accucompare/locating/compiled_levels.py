"""Compiled, eager and float64: the case's regions, level by level, and inside of a culprit."""

from __future__ import annotations

import contextlib
import glob
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from accucompare.api import Comparison, diff
from accucompare.bundle.format import Compiled, RegionFacts, display_name
from accucompare.bundle.reading import open_bundle
from accucompare.compare.compiled_facts import BlamedOperator, CompiledFound, CompiledLevel, Nearer
from accucompare.compare.limits import DEFAULT_REL_L2, excess_limit, floor
from accucompare.compare.origins import Stage
from accucompare.devices import DeviceName, open_device
from accucompare.errors import CaptureError, UsageError
from accucompare.live.modules import name_modules
from accucompare.live.numerics import (
    OWN,
    CompiledRegions,
    ModuleTree,
    OperatorTrial,
    ProbedGraph,
    backwards_at_once,
    generated_code,
    kernel_of,
    probing,
    registered_again,
    try_backwards,
    try_prefixes,
    try_values,
)
from accucompare.locating.locate_setup import LocateSetup
from accucompare.places import Place
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import Casting, build, capture_case
from accucompare.selection import FloatType, RoundedType, listed
from accucompare.text import counted

#: The folders of the levels' bundles.
_FOLDERS = ("layers", "blocks", "whole")
_BUNDLES = ("golden", "eager", "compiled")


def locate_compiled(setup: LocateSetup) -> Comparison:
    """Is what a backend of ``torch.compile`` makes of a case right?

    Each region is compiled alone and given golden's inputs. Golden is the case in float64, run
    eagerly; the baseline is the case in the candidate's type, run eagerly on the same device. The
    finest regions come first, then larger ones, then the whole model. Where a region is wrong, its
    children follow, and then the operators of its graph. Returns the comparison of the smallest
    region that is wrong, or the finest, with ``compiled``."""
    options = setup.options
    if setup.golden is not None:
        backend = "" if options.compile == "inductor" else f" {options.compile}"
        raise UsageError(
            "compile (--compile): compares a case with itself, run eagerly, so leave out golden"
            f" (--golden); for that bundle: accucompare capture {setup.case or ''} --device"
            f" {setup.device} --feed {setup.golden} --compile{backend} --out compiled, then"
            f" accucompare diff {setup.golden} compiled"
        )
    for name, given in (
        ("golden_case (--golden-case)", options.golden_case is not None),
        ("golden_python (--golden-python)", options.golden_python is not None),
        ("map (--map)", bool(options.map)),
        ("repeat (--repeat)", options.repeat > 1),
        ("several ranks", setup.group is not None),
    ):
        if given:
            raise UsageError(
                f"compile (--compile): compares a case with itself, run eagerly; leave out {name}"
            )
    open_device(setup.device)
    with registered_again(), contextlib.ExitStack() as stack:
        return _Levels(setup, stack).located()


@dataclass
class _Levels:
    """The levels that were compared, in order."""

    setup: LocateSetup
    stack: contextlib.ExitStack
    found: list[CompiledLevel] = field(default_factory=list)
    sound: set[str] = field(default_factory=set)  # regions without a failing row
    exact: FloatType = FloatType.FLOAT64  # golden's type; float32 for a model not of float64
    at_once: bool = False  # backwards are compiled with their forwards

    @property
    def rounded(self) -> RoundedType | None:
        """The candidate's type, if golden's weights are rounded to it."""
        half = self.setup.dtype in (FloatType.BFLOAT16, FloatType.FLOAT16)
        return RoundedType(str(self.setup.dtype)) if half else None

    def located(self) -> Comparison:
        setup, options = self.setup, self.setup.options
        built = build(setup.case, torch.device("cpu"), Casting(None, None), options.seed or 0)
        modules = name_modules(built.model)
        regions = CompiledRegions(modules, options.compile, listed(options.regions)).names
        outline = ModuleTree(modules)
        del built
        asked = bool(options.regions) or options.compile == OWN
        levels = [regions] if asked else [*outline.levels()]
        folders = ["regions"] if asked else _FOLDERS[-len(levels) :]
        setup.refuse_taken(*(f"{folder}/{each}" for folder in folders for each in _BUNDLES))
        comparisons, seen = [], set[str]()
        for cut, folder in zip(levels, folders, strict=True):
            level = tuple(name for name in cut if name not in seen)
            seen.update(level)
            comparison = self._compare(level, setup.out / folder)
            comparisons.append((level, comparison))
            if comparison.exit_code == 1:
                break
        _, first = comparisons[0]
        whole = ("",) in levels
        level, answer = next(
            (each for code in (1, 2) for each in comparisons if each[1].exit_code == code),
            comparisons[0],
        )
        operator, why = None, ""
        if answer.exit_code == 1 and answer.culprits:
            level, answer = self._followed(level, answer, outline)
            operator, why = self._operator(level, answer)
        found = CompiledFound(
            str(options.compile), tuple(self.found), whole, Nearer.of(first.rows), operator, why
        )
        return replace(answer, compiled=found)

    def _compare(
        self, regions: tuple[str, ...], folder: Place, inside: str | None = None
    ) -> Comparison:
        """Compare one cut of the model; ``inside``: of one module alone."""
        where = "" if inside is None else f" of {display_name(inside)}"
        self.setup.announce(
            f"{folder.name}: {counted(len(regions), 'region')}{where}, each compiled alone by"
            f" {self.setup.options.compile}"
        )
        options, eager = self._options(regions, inside), dict[str, str]()
        took = dict[str, RegionFacts]()  # code that is compiled once runs again in a second pass
        golden, baseline, candidate = (folder / each for each in _BUNDLES)
        while True:
            self._golden(golden, options)
            fed = replace(options, feed=golden, steps=None, seed=None)
            self._run(baseline, fed)
            self._run(candidate, replace(fed, compile=self.setup.options.compile))
            compiled = _compiled_of(candidate)
            eager |= compiled.eager
            took = {
                name: max(took.get(name, each), each, key=lambda facts: facts.seconds)
                for name, each in compiled.regions.items()
            }
            if {*compiled.regions} == {*regions} or not compiled.regions:
                break
            # some could not be compiled, and their children are regions now
            regions = tuple(compiled.regions)
            options = replace(options, regions=_exactly(regions), overwrite=True)
        compiled = Compiled(compiled.backend, took, eager)
        asked = self.setup.options
        # a golden in the candidate's own type is what the baseline computes, too
        judge = baseline if self.exact is FloatType.FLOAT64 or self.rounded else None
        found = diff(golden, candidate, baseline=judge, only=asked.only, skip=asked.skip)
        comparison = _with(found, compiled)
        self.found.append(CompiledLevel(compiled, comparison.passed))
        wrong = {culprit.name for culprit in comparison.culprits}
        self.sound |= {name for name in compiled.regions if name not in wrong}
        return comparison

    def _options(self, regions: tuple[str, ...], inside: str | None) -> CaptureOptions:
        asked = self.setup.options
        only = () if inside is None else (glob.escape(inside), f"{glob.escape(inside)}.*")
        return CaptureOptions(
            seed=asked.seed,
            steps=asked.steps,
            backward=asked.backward,
            overwrite=self.setup.overwrite or inside is not None,
            regions=_exactly(regions),
            only=only if inside else (),
            force=asked.force,
        )

    def _golden(self, out: Place, options: CaptureOptions) -> None:
        case, cpu = self.setup.case, DeviceName("cpu")
        rounded = self.rounded
        try:
            capture_case(case, out, cpu, options, dtype=self.exact, round_weights=rounded)
        except CaptureError as error:
            if self.exact is FloatType.FLOAT32 or isinstance(error.__cause__, OSError):
                raise
            self.setup.announce(f"golden in float32, as it does not run in float64: {error}")
            self.exact = FloatType.FLOAT32
            options = replace(options, overwrite=True)
            capture_case(case, out, cpu, options, dtype=self.exact, round_weights=rounded)

    def _run(self, out: Place, options: CaptureOptions) -> None:
        setup = self.setup
        numerics = {
            name: getattr(setup.options, name) for name in ("hf32", "tf32", "deterministic")
        }
        options = replace(options, **numerics)
        try:
            capture_case(setup.case, out, setup.device, options, dtype=setup.dtype)
        except CaptureError as error:
            retried = None if options.compile is None or self.at_once else backwards_at_once()
            if retried is None or isinstance(error.__cause__, OSError):
                raise
            why = str(error).partition("\n")[0]
            self.setup.announce(f"again, with backwards compiled beside their forwards: {why}")
            self.stack.enter_context(retried)
            self.at_once, options = True, replace(options, overwrite=True)
            capture_case(setup.case, out, setup.device, options, dtype=setup.dtype)

    def _followed(
        self, level: tuple[str, ...], comparison: Comparison, outline: ModuleTree
    ) -> tuple[tuple[str, ...], Comparison]:
        """Go on to the children of the first culprit's region, as long as one of them is wrong."""
        for depth in range(1, 100):
            name = _region_of(comparison.culprits[0].name, level)
            children = () if name is None else outline.children(name)
            if name is None or not children or self.sound.issuperset(children):
                break
            folder = self.setup.out / f"inside-{depth}"
            try:
                inner = self._compare(children, folder, name)
            except CaptureError as error:
                self.setup.announce(f"the children of {display_name(name)}: {error}")
                break
            if inner.exit_code != 1 or not inner.culprits:
                break
            level, comparison = children, inner
        return level, comparison

    def _operator(
        self, level: tuple[str, ...], comparison: Comparison
    ) -> tuple[BlamedOperator | None, str]:
        """Which operator of the culprit's graph is wrong; else why that is unknown."""
        culprit = comparison.culprits[0]
        name = _region_of(culprit.name, level)
        if name is None or culprit.stage not in (Stage.FORWARD, Stage.BACKWARD):
            return None, "its error is not made in a region"
        backend = str(self.setup.options.compile)
        self.setup.announce(f"operators of {display_name(name)}, as {backend} compiles them")
        options = self._options((name,), None)
        folder = self.setup.out / "operators"
        only = replace(options, only=(glob.escape(name) or "(root)",), overwrite=True)
        with probing() as probe:
            self._golden(folder / "golden", only)
            self._run(folder / "compiled", replace(only, feed=folder / "golden", compile=backend))
        graphs = [each for each in probe.graphs if each.inputs is not None]
        for graph in graphs:
            found = self._wrong(graph, culprit.stage is Stage.BACKWARD)
            if found is not None:
                return self._blamed(name, found, graph), ""
        if not graphs:
            return None, "its graph could not be had"
        return None, "each of its operators is right where its value is given to the outside"

    def _wrong(self, graph: ProbedGraph, backward: bool) -> OperatorTrial | None:
        try:
            if backward:
                return next(filter(_is_wrong, try_backwards(graph)), None)
            at_once = next(filter(_is_wrong, try_values(graph)), None)
            return at_once or next(filter(_is_wrong, try_prefixes(graph)), None)
        except Exception as error:  # the answer stands without it
            self.setup.announce(f"operators: {type(error).__name__}: {error}")
            return None

    def _blamed(self, region: str, found: OperatorTrial, graph: ProbedGraph) -> BlamedOperator:
        kernel, file = "", ""
        if code := generated_code(graph):
            kernel = kernel_of(code, found)
            place = self.setup.out / "operators" / "generated.py"
            if isinstance(place, Path):
                place.write_text(code)
                file = str(place)
        return BlamedOperator(
            region,
            found.operator,
            found.line,
            found.compiled,
            found.eager,
            found.backward,
            found.alone,
            kernel,
            file,
        )


def _is_wrong(trial: OperatorTrial) -> bool:
    """Whether its error is beyond the limit that rows have."""
    if trial.dtype not in DEFAULT_REL_L2:  # exact where eager is
        return trial.compiled > 0 == trial.eager
    if trial.dtype == "float64":
        return trial.compiled > floor("float64") * excess_limit(trial.elements, "float32")
    limit = excess_limit(trial.elements, trial.dtype)
    return trial.compiled > limit * max(trial.eager, floor(trial.dtype))


def _with(comparison: Comparison, compiled: Compiled) -> Comparison:
    """A level's comparison, which knows what ran eagerly."""
    level = CompiledLevel(compiled, comparison.passed)
    return replace(comparison, compiled=CompiledFound(str(compiled.backend), (level,), whole=True))


def _compiled_of(bundle: Place) -> Compiled:
    with open_bundle(bundle) as opened:
        return opened.manifest.options.compiled or Compiled()


def _exactly(regions: Sequence[str]) -> tuple[str, ...]:
    return tuple(glob.escape(name) or "(root)" for name in regions)


def _region_of(name: str, regions: Sequence[str]) -> str | None:
    """The region that a module is, or is inside of."""
    while name not in regions:
        if not name:
            return None
        name = name.rpartition(".")[0]
    return name
