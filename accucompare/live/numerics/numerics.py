"""How a capture computes (determinism, reduced precision), and what the device did otherwise."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from accucompare import devices
from accucompare.errors import UsageError
from accucompare.live.numerics.emulation import RoundedResults, emulated
from accucompare.live.operators import noting_fallbacks
from accucompare.selection import Precision


class Numerics:
    """The numerics that were asked for (``options``), and what the device did otherwise."""

    def __init__(
        self,
        device: torch.device,
        *,
        deterministic: bool = False,
        hf32: bool | None = None,
        tf32: bool | None = None,
        emulate: str | None,
        wide: bool = False,
        round_results: str | None = None,
    ) -> None:
        """Raises UsageError if the device does not have what is asked."""
        self._device = device
        self._backend = devices.backend(device.type)
        self._deterministic = deterministic
        self._reduced: bool | None = None
        for name, allow in (("hf32", hf32), ("tf32", tf32)):
            if allow is None:
                continue
            if name == self._backend.REDUCED:
                self._reduced = allow
            # forbidding what does not exist is harmless: the same options serve every device
            elif allow:
                other = (
                    f"--{self._backend.REDUCED} is its"
                    if self._backend.REDUCED
                    else f"--emulate {name} shows the error to expect"
                )
                raise UsageError(f"--{name}: {device.type} has no {name.upper()}; {other}")
        if emulate is not None and emulate not in list(Precision):
            raise UsageError(
                f"emulate must be one of {', '.join(each.value for each in Precision)}, but is"
                f" {emulate!r}"
            )
        if emulate is not None and device.type != "cpu":
            raise UsageError(
                f"emulate {emulate} (--emulate): only on the CPU; {device.type} computes as it does"
            )
        self._emulate = None if emulate is None else Precision(emulate)
        # whether the model was cast to float64, so that products in it are emulated, too
        self._wide = wide
        self._round_results = round_results
        self.options: dict[str, Any] = {
            "deterministic": deterministic,
            "emulate": self._emulate and self._emulate.value,
        }
        self._notes: dict[str, None] = {}  # each once, in order

    @contextlib.contextmanager
    def in_force(self) -> Iterator[None]:
        """Set them before the first operator; afterwards everything is as before."""
        with (
            self._backend.numerics(self._deterministic, self._reduced),
            noting_fallbacks(self._device.type, self._backend.unsupported(), self._note_fallback),
            self._noting_warnings(),
        ):
            self._backend.overflowed(self._device)  # earlier overflows are not ours
            yield

    @contextlib.contextmanager
    def emulation(self) -> Iterator[None]:
        """Round what goes into matrix products and convolutions, or all results, if asked."""
        if self._round_results is not None:
            with RoundedResults(self._round_results):
                yield
            return
        if self._emulate is None:
            yield
            return
        self._note(
            "matrix products and convolutions were computed with operands rounded to"
            f" {self._emulate.value}, on the CPU: the size of a layer's error is what to expect of"
            " such hardware, its values are not"
        )
        with emulated(self._emulate, wide=self._wide) as emulation:
            try:
                yield
            finally:
                for operator in sorted(emulation.untouched):
                    self._note(
                        f"what goes into {operator} was not rounded to {self._emulate.value}"
                    )

    def end_step(self, step: int) -> None:
        """Wait for the device, so that a step's errors are raised in it; read the overflow flag."""
        self._backend.synchronize(self._device)
        if self._backend.overflowed(self._device):
            self._note(
                f"the device's overflow flag is up after step {step}: it saturates at a type's"
                " largest value instead of giving Inf"
            )

    def notes(self) -> list[str]:
        return list(self._notes)

    def _note_fallback(self, operator: str) -> None:
        self._note(f"{operator} is not supported by the device and was run on the CPU")

    def _note(self, sentence: str) -> None:
        self._notes[sentence] = None

    @contextlib.contextmanager
    def _noting_warnings(self) -> Iterator[None]:
        """Note the warnings that bear on numbers. Whether they are shown does not change."""
        show = warnings.showwarning

        def note(message: Warning | str, *details: Any, **options: Any) -> None:
            if match := re.match(
                r"(\S+) does not have a deterministic implementation", str(message)
            ):
                self._note(f"{match[1]} has no deterministic implementation")
            show(message, *details, **options)

        warnings.showwarning = note
        try:
            yield
        finally:
            if warnings.showwarning is note:
                warnings.showwarning = show
