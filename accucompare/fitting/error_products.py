"""Each module's own error, times the sensitivity of the outputs to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from accucompare.bundle.format import Record, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.fits import ENTERING, LEAVING, LOW, CalledTree, ErrorTerms, FitOutput
from accucompare.devices import explain
from accucompare.errors import AccucompareError
from accucompare.fitting.fit_runs import FitRuns, norm_of_finite
from accucompare.fitting.sensitivities import GoldenForward, ValuePlace
from accucompare.live.operators import matched_randomness
from accucompare.recorder.session import Casting, moved
from accucompare.selection import FloatType

#: Directions of all outputs together. The size of a sum of many errors is known from few.
DIRECTIONS = 8
#: An output with no more elements is known element by element.
SMALL_OUTPUT = 16
#: Errors that are kept in memory for the next backward; beyond that they are read anew.
_BYTES_HELD = 1 << 30

_AS_IT_IS = Casting(None, FloatType.FLOAT32)
_Key = tuple[int, str, int, Role, str]


@dataclass
class OwnErrors:
    """Each module's own errors, out of golden, the fed capture in the lower type, and golden's code
    fed with values that are rounded to that type.

    The difference of the last two is what computing in the lower type adds: a value is rounded
    once, by the module that returns it.
    """

    golden: Bundle
    low: Bundle
    rounded: Bundle
    dtype: torch.dtype
    device: torch.device
    _records: list[dict[_Key, Record]] = field(default_factory=list)
    _held: dict[tuple[ValuePlace, int, int], torch.Tensor | None] = field(default_factory=dict)
    _bytes: int = 0

    def __post_init__(self) -> None:
        for bundle in (self.golden, self.low, self.rounded):
            self._records.append(
                {
                    (record.step, record.name, record.call, record.role, record.path): record
                    for record in bundle.records()
                    if record.role in (Role.INPUT, Role.OUTPUT) and record.member is not None
                }
            )

    def term(self, place: ValuePlace, step: int, kind: int) -> torch.Tensor | None:
        """An error of what a call was given or returned; ``None`` if it is not known."""
        key = place, step, kind
        if key in self._held:
            return self._held[key]
        made = self._made(place, step, kind)
        size = 0 if made is None else made.nbytes
        if self._bytes + size <= _BYTES_HELD:
            self._bytes += size
            self._held[key] = made
        return made

    def forget(self) -> None:
        """Give back what is held of a step."""
        self._held.clear()
        self._bytes = 0

    def _made(self, place: ValuePlace, step: int, kind: int) -> torch.Tensor | None:
        role = Role.INPUT if place.entering else Role.OUTPUT
        key = step, place.name, place.call, role, place.path
        if kind == LOW:
            low, rounded = self._values(1, key), self._values(2, key)
            return None if low is None or rounded is None else _difference(low, rounded)
        golden = self._values(0, key)
        if golden is None:
            return None
        return _difference(golden.to(self.dtype).to(torch.float32), golden)

    def _values(self, which: int, key: _Key) -> torch.Tensor | None:
        record = self._records[which].get(key)
        if record is None:
            return None
        bundle = (self.golden, self.low, self.rounded)[which]
        values = np.ascontiguousarray(bundle.values(record), np.float32)
        return torch.from_numpy(values).to(self.device)


def _difference(values: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """The same infinity or NaN on both sides is no difference."""
    same = (values == exact) | (values.isnan() & exact.isnan())
    return (values - exact).masked_fill(same, 0)


class MeasuredTerms(NamedTuple):
    """What backwards of golden's code tell."""

    terms: ErrorTerms | None  # ``None`` if there are none
    counts: Mapping[str, int]  # operations of each module's own code
    backwards: int  # how many there were
    why_none: str = ""  # why there are no terms


def measured_terms(
    runs: FitRuns, errors: OwnErrors, tree: CalledTree, outputs: Sequence[FitOutput]
) -> MeasuredTerms:
    """Run golden's code in float32, and go back from each output along some directions."""
    try:
        return _terms_of_backwards(runs, errors, tree, outputs)
    except AccucompareError:
        raise
    except Exception as error:  # code for inference: in place, through NumPy, too large
        why = explain(runs.device.type, error).partition("\n")[0]
    errors.forget()
    return MeasuredTerms(None, counted_operations(runs, tree), 0, why)


def _terms_of_backwards(
    runs: FitRuns, errors: OwnErrors, tree: CalledTree, outputs: Sequence[FitOutput]
) -> MeasuredTerms:
    numbers, own = tree.numbers, {*tree.names}
    found: list[NDArray[np.float64]] = []
    exact: list[bool] = []
    counts: dict[str, int] = {}
    for step in dict.fromkeys(output.step for output in outputs):
        built = runs.built()
        model, inputs = runs.on_device(built.model), built.inputs
        args, kwargs = moved(inputs[step % len(inputs)], runs.device, _AS_IT_IS)
        forward = GoldenForward([*numbers], [each for each in outputs if each.step == step])
        with matched_randomness(runs.seed):
            forward.run(model, args, kwargs)
        counts = counts or dict(forward.counts)
        reached = [output for output in outputs if output in forward.outputs]
        for output in reached:
            value = forward.outputs[output]
            norm = norm_of_finite(runs.golden[output].astype(np.float64)) or 1.0
            directions = list(_directions(value, runs.seed, max(2, DIRECTIONS // len(outputs))))
            products = np.zeros((3, len(tree), len(directions)))
            for number, direction in enumerate(directions):
                again = output is not reached[-1] or number + 1 < len(directions)
                for place, gradient in forward.gradients(output, direction, again):
                    for kind in _kinds(place, place.name in own):
                        error = errors.term(place, step, kind)
                        if error is not None and error.shape == gradient.shape:
                            product = torch.dot(gradient.reshape(-1), error.reshape(-1))
                            products[kind, numbers[place.name], number] += float(product) / norm
            found.append(products)
            exact.append(value.numel() <= SMALL_OUTPUT)
        errors.forget()
        del model, built, forward
    if not any(each.any() for each in found):
        return MeasuredTerms(None, counts, 0, "no gradient reaches a layer from the outputs")
    sizes = np.array([each.shape[-1] for each in found])
    together = np.zeros((len(found), 3, len(tree), int(sizes.max())))
    for number, each in enumerate(found):
        together[number, ..., : each.shape[-1]] = each
    terms = ErrorTerms(tree, together, sizes, np.array(exact))
    return MeasuredTerms(terms, counts, int(sizes.sum()))


def counted_operations(runs: FitRuns, tree: CalledTree) -> Mapping[str, int]:
    """The operations of each module's own code in the forward of step 0."""
    built = runs.built()
    args, kwargs = moved(built.inputs[0], runs.device, _AS_IT_IS)
    forward = GoldenForward([*tree.numbers], [])
    with matched_randomness(runs.seed):
        forward.run(runs.on_device(built.model), args, kwargs, derivatives=runs.trains or runs.grad)
    return forward.counts


def _kinds(place: ValuePlace, has_doors: bool) -> tuple[int, ...]:
    """The kinds of errors of a value."""
    if place.entering:
        return (ENTERING,) if has_doors else ()
    return (LOW, LEAVING) if has_doors else (LOW,)


def _directions(value: torch.Tensor, seed: int, count: int) -> Iterator[torch.Tensor]:
    """Random signs; of a small output, its elements."""
    if value.numel() <= SMALL_OUTPUT:
        for row in torch.eye(value.numel()):
            yield row.reshape(value.shape).to(value.device, value.dtype)
        return
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        signs = torch.randint(0, 2, value.shape, generator=generator) * 2 - 1
        yield signs.to(value.device, value.dtype)
