"""What ``locate --compile`` found beside its rows."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

import msgspec

from accucompare.bundle.format import Compiled, RegionFacts, Role
from accucompare.compare.rows import Row


class BlamedOperator(msgspec.Struct, frozen=True):
    """The operator of a compiled graph whose value is wrong."""

    region: str  # the module whose graph it is in
    # operator, line: what is called, and where in the user's code
    operator: str
    line: str
    # compiled, eager: relative L2 errors against float64
    compiled: float
    eager: float
    backward: bool = False  # whether its gradient is wrong
    alone: bool = False  # whether it is wrong when compiled alone, too; else with all before it
    # kernel, code: of generated code: the function, and the file that has it
    kernel: str = ""
    code: str = ""


class Nearer(msgspec.Struct, frozen=True):
    """How compiled and eager values lie to those in float64."""

    values: int  # how many outputs and gradients have other bits than eager's, or than float64
    nearer: int  # in how many compiled is at least as near as eager
    middle: float  # the median of compiled's error as a multiple of eager's

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Nearer | None:
        ratios = [
            row.metrics.rel_l2 / row.baseline_error
            for row in rows
            if row.metrics is not None
            and row.baseline_error
            and row.golden is not None
            and row.golden.role in (Role.OUTPUT, Role.GRAD_INPUT, Role.PARAM_GRAD)
        ]
        if not ratios:
            return None
        return cls(len(ratios), sum(each <= 1.0 for each in ratios), statistics.median(ratios))


class CompiledLevel(msgspec.Struct, frozen=True):
    """One way in which the model was cut into regions."""

    compiled: Compiled  # its regions, and what ran eagerly
    passed: bool  # whether all that was compared passed


class CompiledFound(msgspec.Struct, frozen=True):
    """What was compiled, and what that shows."""

    backend: str
    levels: tuple[CompiledLevel, ...]  # the finest first; those inside of a culprit last
    whole: bool  # whether the model was compiled as one, too, so that no code was left out
    nearer: Nearer | None = None  # ``None`` if no value tells
    # in which the first culprit's error is made; ``None`` if that is unknown
    operator: BlamedOperator | None = None
    no_operator: str = ""  # why that is unknown

    @property
    def eager(self) -> dict[str, str]:
        """Modules whose own code ran eagerly, as it could not be compiled, and why."""
        return {name: why for level in self.levels for name, why in level.compiled.eager.items()}

    @property
    def breaks(self) -> dict[str, tuple[str, ...]]:
        """Where graphs broke, by region."""
        return {name: each.breaks for name, each in self._regions if each.breaks}

    @property
    def recompiled(self) -> dict[str, tuple[str, ...]]:
        """Why regions were compiled again, by region."""
        return {name: each.recompiled for name, each in self._regions if each.recompiled}

    @property
    def _regions(self) -> Iterator[tuple[str, RegionFacts]]:
        return (entry for level in self.levels for entry in level.compiled.regions.items())
