"""The options of a watch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from accucompare.bundle.format import display_name
from accucompare.errors import UsageError
from accucompare.selection import Level, OnFinding, Selection


@dataclass(frozen=True)
class WatchOptions:
    """The options of ``accucompare.watch``, which says what each means.

    Raises:
        UsageError: if one makes no sense.
    """

    optimizer: Any = None
    scaler: Any = None
    on_finding: str = OnFinding.RAISE
    frames: int = 21
    trace_steps: Iterable[int] = ()
    abort_after_step: int | None = None
    every: int = 1
    level: str = Level.MODULE
    allow: str | Iterable[str] = ()
    near: float = 4.0
    flag_per_module: bool = False
    kernel_dump: str | Path | None = None
    case: str | None = None
    quiet: bool = False
    agree: bool = False
    scheduler: Any = None
    checks_every: int = 10
    pause_after: int | None = None
    like: str | Path | None = None

    def __post_init__(self) -> None:
        object.__setattr__(
            self,
            "allow",
            (
                (self.allow,)
                if isinstance(self.allow, str)
                else self._all("allow", str, "globs of names")
            ),
        )
        object.__setattr__(
            self, "kernel_dump", None if self.kernel_dump is None else str(self.kernel_dump)
        )
        object.__setattr__(
            self, "trace_steps", frozenset(self._all("trace_steps", int, "numbers of steps"))
        )
        for name, kinds in (("on_finding", OnFinding), ("level", Level)):
            value, names = getattr(self, name), [each.value for each in kinds]
            if value not in names:
                raise UsageError(f"{name} must be one of {', '.join(names)}, but is {value!r}")
        for name, kind, least in (
            ("frames", int, 0),
            ("abort_after_step", int, 0),
            ("pause_after", int, 1),
            ("every", int, 1),
            ("checks_every", int, 0),
            ("near", float, 1),
        ):
            value = getattr(self, name)
            if value is None and name in ("abort_after_step", "pause_after"):
                continue
            if not isinstance(value, (int, kind)):
                raise UsageError(
                    f"{name} must be {'a whole number' if kind is int else 'a number'}, but is"
                    f" {value!r}"
                )
            if not value >= least:  # so that NaN is refused, too
                raise UsageError(f"{name} must be at least {least}, but is {value}")
        if self.pause_after is not None:
            for name, bad, cure in (
                (
                    "on_finding",
                    self.on_finding == OnFinding.RAISE,
                    "'snapshot' or 'warn', for 'raise' ends the run at the first finding",
                ),
                ("every", self.every != 1, "1, for in steps that are not watched no loss is seen"),
                (
                    "checks_every",
                    self.checks_every == 0,
                    "above 0, for without the checklist no loss is seen",
                ),
            ):
                if bad:
                    raise UsageError(f"pause_after: needs {name} to be {cure}")
        for name, needed, cure, values in (
            (
                "optimizer",
                "param_groups",
                "a torch.optim.Optimizer, or a list of them",
                self.optimizers,
            ),
            ("scaler", "get_scale", "a torch.amp.GradScaler", (self.scaler,)),
            (
                "scheduler",
                "step",
                "a scheduler of learning rates, or a list of them",
                self.schedulers,
            ),
        ):
            for value in values:
                if value is not None and not hasattr(value, needed):
                    raise UsageError(f"{name} must be {cure}, but is a {type(value).__name__}")

    def _all(self, name: str, kind: type, meant: str) -> tuple[Any, ...]:
        """What an option that holds several values holds."""
        value = getattr(self, name)
        values = (
            tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
        )
        if values is None or not all(isinstance(each, kind) for each in values):
            raise UsageError(f"{name} must hold {meant}, but is {value!r}")
        return values

    @property
    def optimizers(self) -> tuple[Any, ...]:
        """One, several or none."""
        several = isinstance(self.optimizer, Iterable) and not hasattr(
            self.optimizer, "param_groups"
        )
        return (
            tuple(self.optimizer)
            if several
            else ()
            if self.optimizer is None
            else (self.optimizer,)
        )

    @property
    def schedulers(self) -> tuple[Any, ...]:
        """One, several or none."""
        several = isinstance(self.scheduler, Iterable) and not hasattr(self.scheduler, "step")
        return (
            tuple(self.scheduler)
            if several
            else ()
            if self.scheduler is None
            else (self.scheduler,)
        )

    def allows(self, name: str) -> bool:
        """Whether the output of a module of this name, or of the name that is printed of it, may be
        infinite or NaN.
        """
        selection = Selection.of(self.allow, ())
        return bool(self.allow) and (selection.allows(name) or selection.allows(display_name(name)))

    def as_json(self) -> dict[str, Any]:
        """For the log."""
        left_out = ("optimizer", "scaler", "scheduler", "case", "quiet")
        values = {name: value for name, value in vars(self).items() if name not in left_out}
        return {
            **values,
            "on_finding": OnFinding(self.on_finding).value,
            "level": Level(self.level).value,
            "trace_steps": sorted(self.trace_steps),
            "allow": list(self.allow),
            "scaler": self.scaler is not None,
            "like": None if self.like is None else str(self.like),
        }
