"""``check_invariance``: a case's samples alone, and in other batches."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.utils import _pytree as pytree

from accucompare.bundle.format import display_name
from accucompare.bundle.reading import open_bundle
from accucompare.compare.limits import float_dtype, is_half
from accucompare.compare.reruns import (
    BatchAxes,
    Invariance,
    Variant,
    VariantOutcome,
    Variation,
    VariedRuns,
)
from accucompare.devices import DeviceName, open_device
from accucompare.errors import CaptureError, CaseError
from accucompare.live.modules import class_of, name_modules
from accucompare.live.operators import RandomState
from accucompare.numbers import DTYPES
from accucompare.places import local
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session import (
    Casting,
    Within,
    build,
    moved,
    naming_the_model,
    recording,
    telling_exits,
)
from accucompare.recorder.state import CallArguments
from accucompare.report.files import write_invariance_json
from accucompare.report.words import invariance_words
from accucompare.rerunning.batch_variants import BatchOfCase, float_type
from accucompare.selection import FloatType, RoundedType
from accucompare.text import first_few

_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


class InvarianceCheck(Invariance):
    """A case's samples in other batches. Made by ``accucompare.check_invariance``."""

    def __repr__(self) -> str:
        return (
            f"<{type(self).__name__} of {self.case}: {invariance_words.invariance_headline(self)}>"
        )

    def to_json(self, path: str | Path) -> Path:
        """Write every run with what changed as JSON, and return its path.

        Raises:
            ReportError: if it cannot be written.
        """
        return write_invariance_json(self, local(path))


@telling_exits()
def check_invariance(
    case: str | None,
    device: str = "cpu",
    *,
    dtype: str | None = None,
    seed: int = 0,
    batch_axis: int = 0,
    bitwise: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> InvarianceCheck:
    """Compute a case's samples alone, and in other batches: does a layer's result depend on them?

    The case's first inputs are run as they are; then each run has some of their samples: one alone,
    at other places, in smaller and larger batches, after another batch on the same model, with
    other padding if there is a mask, and on other numbers of threads. Each run builds the case anew
    under the seed. Only the forward is run. A run in float64 on the CPU says how large
    rounding is. Of a half type, runs whose bits change are made in float64, too, where rounding
    hides less.

    Args:
        case: as for ``accucompare.locate``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, ``"npu"`` or ``"npu:N"``.
        dtype: what to compute in, by default the case's own type.
        seed: of weights and inputs.
        batch_axis: the axis of the inputs along which their samples lie.
        bitwise: whether changed bits fail, too.
        progress: called with the runs done, and all.

    Raises:
        CaseError: if the case cannot be found or built; if it has one sample, or draws random
            numbers, or normalizes over the batch by design (dropout and BatchNorm in training).
        DeviceError: if the device is not there.
        CaptureError: if the model raised, or a run has other weights.

    Example:
        >>> check = check_invariance("batch.py", "cpu")
        >>> check.answer.value, check.exit_code
        ('invariant', 0)
    """
    name = DeviceName.parse(device)
    runs = _Runs(case, open_device(name), float_type(dtype), seed, batch_axis)
    with tempfile.TemporaryDirectory(prefix="accucompare-invariance-") as folder:
        return runs.compared(Path(folder), name, bitwise, progress)


@dataclass
class _Runs:
    """The runs of one case, each built anew."""

    target: str | None
    device: torch.device
    dtype: FloatType | None
    seed: int
    axis: int

    def compared(
        self,
        folder: Path,
        device: DeviceName,
        bitwise: bool,
        progress: Callable[[int, int], None] | None,
    ) -> InvarianceCheck:
        model, arguments, name = self._built()
        _refuse(name, model)
        batch = BatchOfCase(name, model, arguments, self.axis)
        known = self._positions_known(batch)
        on_cpu = self.device.type == "cpu"
        variants = list(batch.variants(torch.get_num_threads(), on_cpu, known))
        count = len(variants) + 2

        def note(done: int) -> None:
            if progress is not None:
                progress(done, count)

        golden = folder / "golden"
        self._run(golden, arguments)
        note(1)
        exact: Path | None = folder / "float64"
        try:
            self._run(folder / "float64", arguments, exact=True)
        except CaptureError:  # the limits of its type judge instead
            exact = None
        note(2)
        axes = BatchAxes(batch.samples, batch.tokens)
        outcomes = []
        with contextlib.ExitStack() as stack:
            whole = stack.enter_context(open_bundle(golden))
            baseline = None if exact is None else stack.enter_context(open_bundle(exact))
            runs = VariedRuns(whole, axes, baseline)
            for number, variant in enumerate(variants):
                outcomes.append(self._outcome(folder, runs, batch, variant, known))
                note(number + 3)
            dtype = float_dtype(whole.manifest)
            hides = dtype in DTYPES and is_half(dtype)
            if baseline is not None and hides and any(each.changed for each in outcomes):
                runs = VariedRuns(baseline, axes, None, FloatType.FLOAT32.value)
                outcomes = [
                    replace(
                        each, exact=self._outcome(folder, runs, batch, each.variant, known, True)
                    )
                    if each.variant.kind is Variation.ALONE or (each.changed and not each.fails)
                    else each
                    for each in outcomes
                ]
        why_not = batch.why_not(on_cpu, known)
        return InvarianceCheck(
            name, str(device), dtype, batch.samples, exact is not None, outcomes, why_not, bitwise
        )

    def _outcome(
        self,
        folder: Path,
        runs: VariedRuns,
        batch: BatchOfCase,
        variant: Variant,
        positions_known: bool,
        exact: bool = False,
    ) -> VariantOutcome:
        """Make one run, and hold it against the whole batch."""
        with tempfile.TemporaryDirectory(dir=folder) as own:
            out = Path(own) / "run"
            before = None
            if variant.kind is Variation.LATER:  # a batch of the last sample alone
                before = batch.of(Variant(variant.kind, variant.rows[-1:] * batch.samples))
            with _on_threads(variant.threads):
                self._run(out, batch.of(variant, positions_known), before, exact)
            with open_bundle(out) as bundle:
                if variant.kind is Variation.ALONE:
                    runs.learn(bundle, variant)
                return runs.compare(bundle, variant)

    def _built(self, exact: bool = False) -> tuple[nn.Module, CallArguments, str]:
        device = torch.device("cpu") if exact else self.device
        built = build(self.target, device, self._casting(exact), self.seed)
        return built.model, built.inputs[0], built.name

    def _casting(self, exact: bool) -> Casting:
        if not exact:
            return Casting(None, self.dtype)
        half = self.dtype in (FloatType.BFLOAT16, FloatType.FLOAT16)
        return Casting(RoundedType(str(self.dtype)) if half else None, FloatType.FLOAT64)

    def _run(
        self,
        out: Path,
        arguments: CallArguments,
        before: CallArguments | None = None,
        exact: bool = False,
    ) -> None:
        """Record the forward of a batch; ``before``: of another, which is run first."""
        model, _, name = self._built(exact)
        device, casting = (torch.device("cpu") if exact else self.device), self._casting(exact)
        options = CaptureOptions(seed=self.seed, backward=False)
        within = Within(name, made=casting.options)
        with torch.no_grad(), naming_the_model(name, out, device.type, model, True):
            if before is not None:
                args, kwargs = moved(before, device, casting)
                model(*args, **kwargs)
            args, kwargs = moved(arguments, device, casting)
            before_it = RandomState.now(device).devices
            with recording(model, out, options, device=device, within=within) as session:
                model(*args, **kwargs)
                session.step()
        drawn = RandomState.now(device).devices
        if not all(torch.equal(state, drawn[each]) for each, state in before_it.items()):
            raise CaseError(
                f"{name}: the model draws random numbers in its forward, so equal samples need not"
                " give equal results; turn dropout and noise off (model.eval())"
            )

    def _positions_known(self, batch: BatchOfCase) -> bool:
        """Whether the tokens' places as positions change nothing, so that padding may shift
        them."""
        if batch.tokens is None or not batch.takes_positions:
            return False
        outputs = []
        for arguments in (batch.arguments, batch.with_positions()):
            model, _, _ = self._built()
            args, kwargs = moved(arguments, self.device, self._casting(False))
            try:
                with torch.no_grad():
                    leaves = pytree.tree_leaves(model(*args, **kwargs))
            except Exception:  # the model's own, of an argument that the case does not give
                return False
            outputs.append([each for each in leaves if isinstance(each, torch.Tensor)])
        ours, theirs = outputs
        return len(ours) == len(theirs) > 0 and all(
            torch.equal(one, other) for one, other in zip(ours, theirs, strict=True)
        )


@contextlib.contextmanager
def _on_threads(number: int) -> Iterator[None]:
    usual = torch.get_num_threads()
    if number:
        torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(usual)


def _refuse(name: str, model: nn.Module) -> None:
    """CaseError if the model is not invariant by design."""
    named = name_modules(model).named
    norms = [
        each
        for each, module in named.items()
        if isinstance(module, _BATCH_NORM) and (module.training or module.running_mean is None)
    ]
    if norms:
        raise CaseError(
            f"{name}: BatchNorm in training mode takes its statistics from the batch, so it is not"
            f" invariant by design ({_named(norms)}); put the model in eval mode (model.eval())"
        )
    drops = [
        each
        for each, module in named.items()
        if module.training and "Dropout" in class_of(module).__name__ and getattr(module, "p", None)
    ]
    if drops:
        raise CaseError(
            f"{name}: dropout is on ({_named(drops)}), so equal samples need not give equal"
            " results; turn it off (model.eval())"
        )


def _named(modules: list[str]) -> str:
    return first_few([*map(display_name, modules)])
