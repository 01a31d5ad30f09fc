"""The options of a capture. Needs no torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from accucompare.asked import (
    Arithmetic,
    AskedOfCapture,
    FedWith,
    Recorded,
    StartFrom,
    checked_seed,
    group,
)
from accucompare.bundle.writing import QUEUE_BYTES
from accucompare.compare.pairing import read_maps
from accucompare.errors import UsageError
from accucompare.places import is_url, place_of
from accucompare.selection import (
    LEAST_SKETCH_SIZE,
    MOST_SKETCH_SIZE,
    SKETCH_SIZE,
    Level,
    Mode,
    RoleGroup,
    RoundedFeed,
    Selection,
    Steps,
    listed,
)


@dataclass(frozen=True)
class CaptureOptions(AskedOfCapture):
    """The options of ``accucompare.capture``, which says what each means.

    Attributes:
        queue_bytes: how many bytes of tensors may wait to be written.

    Raises:
        UsageError: if an option makes no sense.
    """

    queue_bytes: int = QUEUE_BYTES

    def __post_init__(self) -> None:
        for name in ("only", "skip", "map", "regions"):
            object.__setattr__(self, name, listed(getattr(self, name)))
        for name in ("like", "feed", "as_layout", "layout_of"):
            # a URL may hold credentials; a place shows itself without them
            if is_url(getattr(self, name)):
                object.__setattr__(self, name, place_of(getattr(self, name)))
        checked_seed(self.seed, "seed")
        if self.steps is not None and not isinstance(self.steps, Steps):
            object.__setattr__(self, "steps", _checked(Steps.of, "steps", self.steps))
        if self.roles is not None:
            object.__setattr__(self, "roles", _checked(RoleGroup.parse, "roles", self.roles))
            if self.level == Level.OP and RoleGroup.FORWARD not in self.groups:
                raise UsageError(
                    "roles (--roles): level op records operators of the forward; add forward"
                )
        if self.queue_bytes < 1:
            raise UsageError(f"queue_bytes must be at least 1, but is {self.queue_bytes}")
        if self.mode not in list(Mode):
            raise UsageError(
                f"mode must be one of {', '.join(map(repr, map(str, Mode)))}, but is {self.mode!r}"
            )
        size = self.sketch_size
        if not (isinstance(size, int) and LEAST_SKETCH_SIZE <= size <= MOST_SKETCH_SIZE):
            raise UsageError(
                f"sketch_size must be a number from {LEAST_SKETCH_SIZE} to {MOST_SKETCH_SIZE}, but"
                f" is {size!r}"
            )
        if self.sketch_size != SKETCH_SIZE and self.mode != Mode.SKETCH:
            raise UsageError(
                f"sketch_size (--sketch-size): mode {Mode(self.mode)} makes no sketches; give mode"
                " sketch, too"
            )
        if self.level not in list(Level):
            raise UsageError(f"level must be 'module' or 'op', but is {self.level!r}")
        if self.round_feed is not None and self.round_feed not in list(RoundedFeed):
            raise UsageError(
                f"round_feed must be one of {', '.join(map(repr, map(str, RoundedFeed)))}, but is"
                f" {self.round_feed!r}"
            )
        self._check_feed()
        self._check_compile()
        renamings, auto = read_maps(self.map)
        if (renamings or auto) and self.like is None and self.feed is None:
            raise UsageError(
                "--map: renames the layers of the bundle that --like or --feed names; give one of"
                " them, or --map to diff"
            )

    def _check_feed(self) -> None:
        if self.round_feed is not None and self.feed is None:
            raise UsageError(
                "--round-feed: rounds golden's values before layers are given them; name golden"
                " (--feed)"
            )
        if self.round_results and self.round_feed is None:
            raise UsageError(
                "--round-results: rounds to the type of golden's values; name it (--round-feed)"
            )
        if self.layout_of is not None and self.feed is None:
            raise UsageError(
                "--layout-of: tells which part of golden each rank is fed; name golden (--feed)"
            )

    def _check_compile(self) -> None:
        if self.compile is None and not self.regions:
            return
        asked = "compile (--compile)" if self.compile is not None else "regions (--regions)"
        for name, given in (
            ("--level op", self.level == Level.OP),
            ("--emulate", self.emulate is not None),
            ("--as-layout", self.as_layout is not None),
        ):
            if given:
                raise UsageError(
                    f"{asked}: nothing inside of a region is seen or changed, as {name} needs;"
                    " leave one of them out"
                )

    @classmethod
    def of(cls, record: Any, start: Any, feed: Any, numerics: Any, **others: Any) -> CaptureOptions:
        """Options from groups, each whole or as its first field. UsageError if one is wrong."""
        recorded = group(Recorded, record, "record")
        began, fed = group(StartFrom, start, "start"), group(FedWith, feed, "feed")
        maps = dict.fromkeys([*listed(began.map), *listed(fed.map)])
        given = (
            vars(recorded) | vars(began) | vars(fed) | vars(group(Arithmetic, numerics, "numerics"))
        )
        return cls(**{**given, "map": maps, **others})

    @property
    def asked(self) -> Steps | None:
        """The steps to record; ``None`` for all."""
        return self.steps if isinstance(self.steps, Steps) else None

    @property
    def groups(self) -> tuple[RoleGroup, ...]:
        if self.roles is not None:
            return RoleGroup.parse(self.roles)
        return tuple(RoleGroup) if self.backward else (RoleGroup.FORWARD, RoleGroup.SERIES)

    @property
    def trains(self) -> bool:
        """Whether anything of a backward or an update is to be recorded."""
        return bool({RoleGroup.BACKWARD, RoleGroup.GRADS, RoleGroup.UPDATE} & {*self.groups})

    @property
    def selection(self) -> Selection:
        return Selection.of(self.only, self.skip)


def _checked(read: Callable[[Any], Any], name: str, given: Any) -> Any:
    """Read an option; an error names it."""
    try:
        return read(given)
    except (TypeError, ValueError) as error:
        between = " " if str(error).startswith("must") else ": "
        raise UsageError(f"{name}{between}{error}") from None


DEFAULTS = CaptureOptions()
