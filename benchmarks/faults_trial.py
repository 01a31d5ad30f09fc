"""One model in one setup: its golden, its baselines, and what accucompare says of each fault and of
each fault-free pair.

Golden and baselines are made on the CPU. The candidate runs there in another order, or on a device,
which has an order of its own.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import accucompare as ac
from accucompare.api import Comparison
from accucompare.compare.rows.rows import Row, Status
from accucompare.report.words import culprit_place
from planted.faults_alone import RISES, calls_of, rise
from planted.faults_kinds import Fault, faults_in
from planted.faults_models import ARCHITECTURES, build
from planted.faults_orders import COARSER, ORDERS

#: The order of a candidate that runs on a device.
ITS_OWN = "the device's own"

_CPU = torch.device("cpu")

METHODS = ("first over tolerance", "free, baseline", "fed", "fed, baseline")


@dataclass(frozen=True)
class Setup:
    """In what golden, candidate and baseline compute; all three have the candidate's weights."""

    golden: torch.dtype
    candidate: torch.dtype
    baseline: torch.dtype
    emulate: str | None = None
    planted: bool = True


SETUPS = {
    "bfloat16": Setup(torch.float32, torch.bfloat16, torch.bfloat16),
    "float32": Setup(torch.float64, torch.float32, torch.float32),
    "float32 (float64 baseline)": Setup(torch.float32, torch.float32, torch.float64),
    "HF32": Setup(torch.float32, torch.float32, torch.float32, emulate="hf32", planted=False),
}


@dataclass
class Trial:
    """What became of one fault.

    Attributes:
        rank: by method, the place of the right culprit among those named, from 1; 0 if it is not
            among them.
        named: by method, what was named first.
        count: by method, how many were named.
        rise: see ``planted.faults_alone``.
        used: of the fed capture with baseline, the largest excess / limit among the right module's
            rows.
        second: of two faults at once, the second.
        error: what was raised, if something was.
    """

    architecture: str
    setup: str
    kind: str
    site: str
    fault: str
    order: str
    rise: float
    rank: dict[str, int] = field(default_factory=dict)
    named: dict[str, str] = field(default_factory=dict)
    count: dict[str, int] = field(default_factory=dict)
    used: float | None = None
    elements: int = 0
    second: str = ""
    error: str = ""


@dataclass
class FaultFree:
    """What is said of a candidate without fault, computed in another order.

    Attributes:
        alarms: by method, the rows over their limits.
        differ: how many rows are not bit for bit the baseline's.
        used: by method, of each row the number of elements, the excess and the excess / limit.
    """

    architecture: str
    setup: str
    order: str
    alarms: dict[str, list[str]] = field(default_factory=dict)
    used: dict[str, list[tuple[int, float, float, str]]] = field(default_factory=dict)
    error: str = ""


class Bench:
    """The bundles of one model in one setup."""

    def __init__(self, architecture: str, setup: str, folder: Path, device: str = "cpu") -> None:
        self.architecture = architecture
        self.setup = setup
        self.device = torch.device(device)
        self.how = SETUPS[setup]
        model, inputs = build(architecture)
        self.model = cast(model, self.how.candidate)
        self.inputs = {name: _rounded(value, self.how.candidate) for name, value in inputs.items()}
        self.folder = folder
        self.golden = self.capture(cast(self.model, self.how.golden), "golden")
        # a device rounds as its baseline emulates it
        emulate, device = self.how.emulate, self.device.type
        own = {"cuda": "tf32", "npu": "hf32"}.get(device)
        self.numerics = ac.Arithmetic(emulate=own or emulate if emulate else None)
        self.candidates = (
            ac.Arithmetic(
                tf32=bool(emulate) if device == "cuda" else None,
                hf32=bool(emulate) if device == "npu" else None,
            )
            if own
            else self.numerics
        )
        trusted = cast(self.model, self.how.baseline)
        self.baselines = {
            None: self.capture(trusted, "baseline", numerics=self.numerics),
            self.golden: self.capture(
                trusted, "baseline-fed", feed=self.golden, numerics=self.numerics
            ),
        }
        self.calls = calls_of(cast(self.model, torch.float64), _as(self.inputs, torch.float64))

    def faults(self, most: int, seed: int = 0) -> list[Fault]:
        draw = np.random.default_rng([seed, list(ARCHITECTURES).index(self.architecture)])
        dtype = str(self.how.candidate).removeprefix("torch.")
        return faults_in(
            self.model, {name: len(calls) for name, calls in self.calls.items()}, dtype, most, draw
        )

    def try_fault(self, fault: Fault, order: str, second: Fault | None = None) -> Trial:
        """Plant one fault, or two, and ask every method."""
        planted = [fault] if second is None else [fault, second]
        trial = Trial(
            self.architecture,
            self.setup,
            fault.kind,
            fault.site,
            str(fault),
            order,
            0.0,
            second=str(second or ""),
        )
        try:
            trial.rise = min(self.rise(each) for each in planted)
            if trial.rise < RISES:
                return trial
            for method, comparison in self._asked(planted, order):
                places = [rank(comparison, each) for each in planted]
                trial.rank[method] = 0 if 0 in places else max(places)
                trial.count[method] = len(comparison.culprits)
                trial.named[method] = (
                    culprit_place(comparison.culprits[0]) if comparison.culprits else ""
                )
                if method == METHODS[-1]:
                    rows = [
                        row
                        for row in comparison.rows
                        if _shows(row, fault) and row.verdict.over_limit is not None
                    ]
                    worst = max(rows, key=lambda row: row.verdict.over_limit or 0, default=None)
                    trial.used = worst.verdict.over_limit if worst else None
                    trial.elements = _elements(worst) if worst else 0
        except Exception as error:  # one trial must not cost the others; it is shown and counted
            trial.error = f"{type(error).__name__}: {error}"
        return trial

    def try_order(self, order: str) -> FaultFree:
        """No fault, another order."""
        pair = FaultFree(self.architecture, self.setup, order)
        try:
            for method, comparison in self._asked([], order):
                pair.alarms[method] = [
                    told(row) for row in comparison.rows if row.status is Status.FAIL
                ]
                pair.used[method] = [
                    (_elements(row), row.verdict.excess, row.verdict.over_limit or 0, row.place)
                    for row in comparison.rows
                    if row.verdict.excess is not None
                ]
        except Exception as error:
            pair.error = f"{type(error).__name__}: {error}"
        return pair

    def rise(self, fault: Fault) -> float:
        module = self.model.get_submodule(fault.name)
        return rise(
            module,
            self.calls[fault.name][fault.call],
            fault.plant,
            self.how.candidate,
            fault.call + 1,
        )

    def _asked(self, faults: list[Fault], order: str) -> Iterator[tuple[str, Comparison]]:
        """Capture a candidate free-running and fed, and compare each without and with its
        baseline."""
        model = copy.deepcopy(self.model).to(self.device)
        for fault in faults:
            fault.plant(model.get_submodule(fault.name))
        methods = iter(METHODS)
        computing = {**ORDERS, **COARSER, ITS_OWN: contextlib.nullcontext}[order]
        for feed in (None, self.golden):
            with computing():
                # forced: a fault in a weight is one of the device's here, and must be found without
                # looking at weights
                fed = ac.FedWith(feed, force=True) if feed else None
                candidate = self.capture(
                    model, "candidate", numerics=self.candidates, feed=fed, overwrite=True
                )
            for baseline in (None, self.baselines[feed]):
                yield (
                    next(methods),
                    ac.diff(self.golden, candidate, baseline=baseline, work=ac.Work(workers=1)),
                )

    def capture(self, model: nn.Module, name: str, **options: Any) -> Path:
        out = self.folder / name
        first = next(model.parameters())
        with torch.no_grad(), ac.capture(model, out, **options):
            model(**_as(self.inputs, first.dtype, first.device))
        return out


def run(
    architecture: str, setup: str, most: int, pairs: bool, device: str = "cpu"
) -> dict[str, list[dict[str, Any]]]:
    """Everything about one model in one setup: ``trials``, ``doubles`` and ``pairs``."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="accucompare-faults-") as folder:
        bench = Bench(architecture, setup, Path(folder), device)
        faults = bench.faults(most) if bench.how.planted else []
        # another number of threads changes nothing in models as small as these
        orders = list(ORDERS)[:-1] if device == "cpu" else [ITS_OWN]
        sound = (*ORDERS, *COARSER) if device == "cpu" else orders
        trials = [
            bench.try_fault(fault, orders[count % len(orders)])
            for count, fault in enumerate(faults)
        ]
        doubles = [
            bench.try_fault(fault, orders[count % len(orders)], second)
            for count, (fault, second) in enumerate(_behind(bench, trials, faults))
        ]
        free = [bench.try_order(order) for order in sound] if pairs else []
    return {
        "trials": [asdict(each) for each in trials],
        "doubles": [asdict(each) for each in doubles],
        "pairs": [asdict(each) for each in free],
    }


def _behind(
    bench: Bench, trials: list[Trial], faults: list[Fault]
) -> Iterator[tuple[Fault, Fault]]:
    """A fault and a second one behind it, in another module, each of which rises over rounding."""
    order = list(bench.calls)
    rising = [
        fault
        for fault, trial in zip(faults, trials, strict=True)
        if trial.rise >= RISES and fault.name
    ]
    rising.sort(key=lambda fault: order.index(fault.name))
    half = len(rising) // 2
    for first, second in list(zip(rising[:half], rising[half:], strict=False))[::5]:
        nested = f"{second.name}.".startswith(f"{first.name}.") or f"{first.name}.".startswith(
            f"{second.name}."
        )
        if not nested:
            yield first, second


def rank(comparison: Comparison, fault: Fault) -> int:
    for place, culprit in enumerate(comparison.culprits, 1):
        right_call = culprit.call >= fault.call  # a fault in the first call is in all of them
        if (culprit.name, culprit.site) == (fault.name, fault.site) and right_call:
            return place
    return 0


def _shows(row: Row, fault: Fault) -> bool:
    """Whether a row shows what the faulty call makes."""
    record = row.golden
    if record is None:
        return False
    if record.role.value == "output":
        return record.name == fault.name and record.call >= fault.call
    return (
        record.parent is not None
        and record.parent[0] == fault.name
        and record.parent[1] >= fault.call
    )


def _elements(row: Row) -> int:
    assert row.golden is not None
    return int(np.prod(row.golden.shape, dtype=np.int64))


def told(row: Row) -> str:
    excess = f", excess {row.verdict.excess:.3g}" if row.verdict.excess is not None else ""
    return (
        f"{row.place}: {row.reason.value}{excess} of {_elements(row) if row.golden else 0} elements"
    )


def cast(model: nn.Module, dtype: torch.dtype) -> nn.Module:
    return copy.deepcopy(model).to(dtype)


def _rounded(value: Any, dtype: torch.dtype) -> Any:
    return (
        value.to(dtype) if isinstance(value, torch.Tensor) and value.is_floating_point() else value
    )


def _as(inputs: dict[str, Any], dtype: torch.dtype, device: torch.device = _CPU) -> dict[str, Any]:
    return {
        name: rounded.to(device) if isinstance(rounded, torch.Tensor) else rounded
        for name, value in inputs.items()
        for rounded in [_rounded(value, dtype)]
    }
