"""Warnings before anything is wrong: near the limit, underflow, an unexplained overflow flag."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping

from accucompare.findings.log import (
    MINUS,
    OUTSIDE,
    Alert,
    AlertKind,
    Finding,
    Log,
    ModuleCall,
    WatchRemark,
    What,
    near_the_limit,
    number,
    remark,
)
from accucompare.report.watch_words import said
from accucompare.watcher.looking import Extrema, Note

_LOGGER = logging.getLogger("accucompare.watch")

#: The share of subnormal gradients that warrants a warning; sound runs have a few.
_UNDERFLOW = 0.1
#: Types in which subnormals matter: with eight bits of exponent they are negligible.
_NARROW = ("float16", "float8")


class EarlyWarnings:
    """Warns once per module and kind, in the log and by ``logging``."""

    def __init__(self, log: Log, near: float, allow: Callable[[str], bool], quiet: bool) -> None:
        self._log = log
        self._near = near
        self._allow = allow
        self._quiet = quiet
        self._warned: set[tuple[AlertKind, str]] = set()

    def look(self, notes: Iterable[Note], step: int, scaled: bool) -> None:
        """Warn of outputs and gradients near their type's limit, and of gradients that underflow.

        Underflow gets one warning for all modules, which names the worst. ``scaled``: a loss scaler
        drives gradients near the limit on purpose."""
        sinking: dict[str, tuple[Note, Extrema]] = {}
        for each in notes:
            if each.what is What.ENDED and not self._allow(each.place.name):
                self._look_at_size(each, "values-near", step)
            elif each.what is What.GRADIENT and not scaled:
                self._look_at_size(each, "gradients-near", step)
                self._look_at_underflow(each, sinking)
        self._warn_of_underflow(sinking, step)

    def _look_at_size(self, note: Note, fact: str, step: int) -> None:
        for *_, extrema in note.parts:
            if near_the_limit(extrema.dtype, extrema.low, extrema.high, self._near):
                largest = max(abs(extrema.low), abs(extrema.high))
                text = remark(fact, largest=largest, dtype=extrema.dtype)
                self.warn(AlertKind.NEAR, text, step, note.place, largest, extrema.dtype)

    def _look_at_underflow(self, note: Note, sinking: dict[str, tuple[Note, Extrema]]) -> None:
        """Keep each module's gradient with the largest share of subnormals."""
        for *_, extrema in note.parts:
            if (
                extrema.zero is None
                or not extrema.dtype.startswith(_NARROW)
                or (extrema.subnormal or 0.0) < _UNDERFLOW
            ):
                continue
            known = sinking.get(note.place.name)
            if known is None or (extrema.subnormal or 0.0) > (known[1].subnormal or 0.0):
                sinking[note.place.name] = note, extrema

    def _warn_of_underflow(self, sinking: dict[str, tuple[Note, Extrema]], step: int) -> None:
        new = {
            name: pair
            for name, pair in sinking.items()
            if (AlertKind.UNDERFLOW, name) not in self._warned
        }
        if not new:
            return
        note, extrema = max(new.values(), key=lambda pair: pair[1].subnormal or 0.0)
        subnormal, zero = extrema.subnormal or 0.0, extrema.zero or 0.0
        text = remark(
            "gradients-subnormal",
            subnormal=subnormal,
            dtype=extrema.dtype,
            zero=zero,
            more=len(new) - 1,
            least=_UNDERFLOW,
        )
        self.warn(AlertKind.UNDERFLOW, text, step, note.place, subnormal + zero, extrema.dtype)
        self._warned |= {(AlertKind.UNDERFLOW, name) for name in new}

    def look_at_harmless(self, masked: Finding | None, harmless: Iterable[Finding]) -> None:
        """Warn of what is no finding since nothing came of it.

        Args:
            masked: what a gradient had, and no parameter's gradient has.
            harmless: what values had, and nothing that they lead to has.
        """
        texts = []
        if masked is not None:
            operator = masked.operator or "backward"
            texts.append((masked, remark("masked-gradient", operator=operator, kinds=masked.kinds)))
        for each in harmless:
            if each.kinds != [MINUS]:  # the log of a probability of 0 gives -Inf
                texts.append((each, remark("came-to-nothing", kinds=each.kinds)))
        for each, text in texts:
            place = ModuleCall(each.name, each.call, each.type, None)
            self.warn(AlertKind.NOTE, text, each.step, place)

    def look_at_sums(self, norms: Mapping[str, Extrema], step: int) -> bool:
        """Warn of gradients that the sum over ranks made not finite; whether there are any."""
        spoilt = [name for name, norm in norms.items() if not norm.finite]
        if spoilt:
            fact = "sums-spoilt" if len(spoilt) > 1 else "sum-spoilt"
            text = remark(fact, count=len(spoilt), name=spoilt[0])
            self.warn(AlertKind.NOTE, text, step, once="sums")
        return bool(spoilt)

    def warn(
        self,
        kind: AlertKind,
        text: WatchRemark,
        step: int,
        place: ModuleCall | None = None,
        value: float | None = None,
        dtype: str = "",
        once: str = "",
    ) -> None:
        """Warn once per kind and module; without a module, once per ``once``."""
        key = (kind, place.name if place is not None else once or text.fact)
        if key in self._warned:
            return
        self._warned.add(key)
        if place is not None:
            text = remark("about", module=place.name, type=place.type, text=text)
        name, call, type_, _ = place or OUTSIDE
        self._log.write(
            Alert(
                kind, text, step, name, call, type_, None if value is None else number(value), dtype
            )
        )
        self.log(step, text)

    def log(self, step: int, text: WatchRemark | str) -> None:
        """Warn by ``logging`` alone."""
        if not self._quiet:
            _LOGGER.warning("step %d: %s", step, said(text))
