"""The options of a watch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from accucompare.asked import AskedOfWatch, Loop
from accucompare.bundle.format import display_name
from accucompare.errors import UsageError
from accucompare.selection import Level, OnFinding, Selection
from accucompare.text import with_article


@dataclass(frozen=True)
class WatchOptions(AskedOfWatch):
    """The options of ``accucompare.watch``, which explains each. Raises UsageError if one makes no
    sense."""

    loop: Loop = Loop()
    quiet: bool = False
    case: str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.allow, str):
            object.__setattr__(self, "allow", (self.allow,))
        object.__setattr__(self, "allow", self._all("allow", str, "globs of names"))
        object.__setattr__(
            self, "kernel_dump", None if self.kernel_dump is None else str(self.kernel_dump)
        )
        object.__setattr__(
            self, "trace_steps", frozenset(self._all("trace_steps", int, "numbers of steps"))
        )
        for each in fields(AskedOfWatch):
            name, value = each.name, getattr(self, each.name)
            if each.metadata["one_of"] is not None:
                names = [one.value for one in each.metadata["one_of"]]
                if value not in names:
                    raise UsageError(f"{name} must be one of {', '.join(names)}, but is {value!r}")
            limits = each.metadata["between"]
            if limits is None or (value is None and each.default is None):
                continue
            kind = type(each.default or 0)
            if not isinstance(value, (int, kind)):
                raise UsageError(
                    f"{name} must be {'a whole number' if kind is int else 'a number'}, but is"
                    f" {value!r}"
                )
            if not value >= limits[0]:  # written so that NaN is refused, too
                raise UsageError(f"{name} must be at least {limits[0]}, but is {value}")
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
            ("scaler", "get_scale", "a torch.amp.GradScaler", (self.loop.scaler,)),
            (
                "scheduler",
                "step",
                "a scheduler of learning rates, or a list of them",
                self.schedulers,
            ),
        ):
            for value in values:
                if value is not None and not hasattr(value, needed):
                    raise UsageError(
                        f"{name} must be {cure}, but is {with_article(type(value).__name__)}"
                    )

    def _all(self, name: str, kind: type, meant: str) -> tuple[Any, ...]:
        """The values of an option that may hold several."""
        value = getattr(self, name)
        values = (
            tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else None
        )
        if values is None or not all(isinstance(each, kind) for each in values):
            raise UsageError(f"{name} must hold {meant}, but is {value!r}")
        return values

    @property
    def optimizers(self) -> tuple[Any, ...]:
        """One, several or none, as a tuple."""
        return _several(self.loop.optimizer, "param_groups")

    @property
    def schedulers(self) -> tuple[Any, ...]:
        return _several(self.loop.scheduler, "step")

    def allows(self, name: str) -> bool:
        """Whether the output of the module of this (printed) name may be infinite or NaN."""
        selection = Selection.of(self.allow, ())
        return bool(self.allow) and (selection.allows(name) or selection.allows(display_name(name)))

    def as_json(self) -> dict[str, Any]:
        left_out = ("loop", "case", "quiet")
        values = {name: value for name, value in vars(self).items() if name not in left_out}
        return {
            **values,
            "on_finding": OnFinding(self.on_finding).value,
            "level": Level(self.level).value,
            "trace_steps": sorted(self.trace_steps),
            "allow": list(self.allow),
            "scaler": self.loop.scaler is not None,
            "like": None if self.like is None else str(self.like),
        }


def _several(value: Any, needed: str) -> tuple[Any, ...]:
    """One, several or no object with the needed attribute, as a tuple."""
    if isinstance(value, Iterable) and not hasattr(value, needed):
        return tuple(value)
    return () if value is None else (value,)
