"""Whether the backward of a custom autograd Function is the derivative of its forward.

A Function is called again in float64 with the arguments that a run gave it. For random directions v
of an argument and u of an output, <u, f(x + hv) - f(x - hv)> / 2h is compared with <backward(u),
v>. The error is relative to that derivative, argument by argument, so that neither a large module
nor a small gradient hides it. ``torch.autograd.gradcheck`` has an absolute tolerance: its fast mode
passes a backward of the wrong sign where derivatives are small, and its slow mode takes time square
in the size."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd import Function

from accucompare.findings.checklist import CheckOutcome, failed, not_looked_at, passed, warned
from accucompare.findings.log import WatchRemark, remark
from accucompare.live.modules import has_setup
from accucompare.live.values import leaves, replaced

#: Random directions of each argument, time permitting, and at least. Fewer may miss a fault in a
#: small part of a tensor.
_DIRECTIONS, _FEWEST = 8, 2
#: Seconds for one form of a Function.
SECONDS = 20.0
#: Steps h in units of the argument's median, in the order tried. In float64 the first has 1e-8 of
#: truncation and 1e-12 of rounding. A forward that computes in float32 needs a larger step, one
#: with kinks a smaller one.
_STEPS = (1e-4, 1e-2, 1e-6, 1e-8)
#: The largest relative error that passes. In float64 a right backward has 1e-7 (measured), a factor
#: of 1.001 has 1e-3.
_TOLERANCE = 1e-5
#: An error may also be so many times the change from halving the step: finite differences are no
#: more exact.
_NOISE = 10.0
#: If more would have to be allowed, finite differences are too coarse. A wrong sign has 2, a factor
#: of 1.02 has 0.02.
_COARSEST = 1e-2
#: Distance of the second look, in units of the argument's median: beside a kink, a function has a
#: derivative.
_BESIDE = 1e-3
#: Allowed difference of two calls with the same arguments, from sums by several threads.
_REPEATS = 1e-9
#: An output that changes by fewer roundings than this has not changed.
_ROUNDINGS = 16.0


@dataclass
class AppliedFunction:
    """A form of a custom Function, as the run applied it first; ``calls``: how often."""

    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    modules: list[str] = field(default_factory=list)
    calls: int = 0


@dataclass(frozen=True)
class _Error:
    """How far a gradient is from finite differences."""

    argument: str
    # relative to the derivative: 0 if right, 2 with the wrong sign; NaN where differences are not
    # finite
    error: float
    allowed: float  # by tolerance, and by how exact the differences are
    # gradient over derivative, if they differ by a factor only; else ``None``
    factor: float | None = None
    missing: bool = False  # whether the backward gives none
    seen: bool = True  # whether the output changes by more than its rounding

    @property
    def coarse(self) -> bool:
        return not self.allowed <= _COARSEST

    @property
    def wrong(self) -> bool:
        return not self.coarse and self.error > self.allowed

    @property
    def measured(self) -> WatchRemark:
        if not self.seen:
            return remark("independent", argument=self.argument)
        if self.missing:
            return remark("no-gradient-of", argument=self.argument)
        if self.factor is not None:
            digits = math.ceil(-math.log10(self.allowed))
            factor = round(self.factor, digits)
            return remark("times-derivative", argument=self.argument, factor=factor)
        return remark("off-by", argument=self.argument, error=float(f"{self.error:.1e}"))


class _UnfitError(Exception):
    """A Function that cannot be checked, and why."""

    def __init__(self, fact: str, /, **values: Any) -> None:
        super().__init__(fact)
        self.why = remark(fact, **values)


def check_function(
    applied: AppliedFunction, seed: int = 0, seconds: float = SECONDS
) -> CheckOutcome:
    """Check one form of a custom Function in float64, or in its own types if it refuses float64."""
    try:
        return _checked(_Call(applied, torch.float64, seed), seconds)
    except _UnfitError as error:
        return not_looked_at(error.why)
    except Exception as error:  # a Function may refuse other types in any way
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    try:
        outcome = _checked(_Call(applied, None, seed), seconds)
    except _UnfitError as error:
        return not_looked_at(remark("not-in-float64", measured=error.why, why=why))
    except Exception:
        return not_looked_at(remark("not-again-in-float64", why=why))
    measured = remark("in-given-types", measured=outcome.measured, why=why)
    return CheckOutcome(outcome.status, measured)


def _checked(call: _Call, seconds: float) -> CheckOutcome:
    """Compare at the recorded inputs; if they disagree, also beside them, away from kinks."""
    begun = time.monotonic()
    errors, notes = _errors(call, seconds)
    if not errors:
        raise _UnfitError("several", parts=notes or [remark("no-output-with-gradient")])
    if not any(each.coarse or each.wrong for each in errors):
        allowed = max(each.allowed for each in errors)
        return passed(remark("derivative", allowed=allowed, notes=notes))
    beside, _ = _errors(call.beside(), max(seconds - (time.monotonic() - begun), seconds / 4))
    wrong, wrong_beside = ([each for each in some if each.wrong] for some in (errors, beside))
    if beside and not any(each.coarse or each.wrong for each in beside):
        how = wrong[0].measured if wrong else remark("differences-tell-nothing")
        return warned(remark("derivative-beside", how=how))
    if wrong or wrong_beside:
        parts = [each.measured for each in wrong or wrong_beside]
        once = [part for number, part in enumerate(parts) if part not in parts[:number]]
        return failed(remark("several", parts=once))
    coarse = next(each for each in errors if each.coarse)
    raise _UnfitError("too-coarse", argument=coarse.argument)


def _errors(call: _Call, seconds: float) -> tuple[list[_Error], list[WatchRemark]]:
    """The errors of each argument and output; and what was left out."""
    begun = time.monotonic()
    outputs = call.forward()
    taken = time.monotonic() - begun
    again = call.forward()
    if any(_distance(one, other) > _REPEATS for one, other in zip(outputs, again, strict=True)):
        raise _UnfitError("not-repeatable")
    names, together = list(call.floating), call.joint()
    count = int(seconds / max(4 * taken * len(names), 1e-9))
    if count < _FEWEST:
        raise _UnfitError("too-slow", seconds=taken, calls=4 * _FEWEST * len(names))
    notes: list[WatchRemark] = []
    found: list[_Error] = []
    looks = [_Look(call, together, outputs, number) for number in range(min(count, _DIRECTIONS))]
    if not looks[0].differentiable:
        return [], [remark("no-output-has-gradient")]
    for name in names:
        gradients = [look.gradients.get(name) for look in looks]
        gone = name not in together or all(
            part is None for each in gradients if each is not None for part in each
        )
        if gone and name not in call.asked:
            notes.append(remark("gradient-not-asked", argument=call.argument(name)))
            continue
        found += _of_argument(call, name, looks)
    for name in call.asked if len(call.asked) > 1 else ():
        found += _alone(call, name, looks[0], notes)
    return found, notes


class _Call:
    """A Function with its arguments: floating ones in float64, or unchanged if ``dtype`` is
    ``None``."""

    def __init__(
        self, applied: AppliedFunction, dtype: torch.dtype | None, seed: int, moved_by: float = 0.0
    ) -> None:
        self._applied, self._dtype, self._seed, self._moved_by = applied, dtype, seed, moved_by
        generator = torch.Generator().manual_seed(seed)
        #: Floating tensors that are arguments themselves, by path: autograd sees no others.
        self.floating: dict[str, torch.Tensor] = {}
        self._others: dict[str, torch.Tensor] = {}
        self.asked: list[str] = []
        for path, value in leaves((applied.args, applied.kwargs)):
            if not isinstance(value, torch.Tensor) or not (
                value.is_floating_point() or value.is_complex()
            ):
                continue
            if value.layout is not torch.strided:
                layout = str(value.layout).removeprefix("torch.")
                raise _UnfitError("given-layout", layout=layout)
            wide = value.detach()
            if dtype is not None:
                wide = wide.to(torch.complex128 if value.is_complex() else dtype)
            if path.count(".") > 1 or not value.numel():
                self._others[path] = wide
                continue
            if moved_by:
                wide = wide + moved_by * _direction(wide, generator).to(wide.dtype)
            self.floating[path] = wide
            if value.requires_grad:
                self.asked.append(path)
        if not self.floating:
            raise _UnfitError("no-floating-tensor")

    def beside(self) -> _Call:
        """The same call a little beside the recorded inputs."""
        return _Call(self._applied, self._dtype, self._seed, _BESIDE)

    def forward(
        self, point: dict[str, torch.Tensor] | None = None, wanted: Sequence[str] = ()
    ) -> list[torch.Tensor]:
        """Its floating outputs at ``point`` or its own arguments, with a graph for the wanted
        ones."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self._seed)
            return self._forward({**self.floating, **(point or {})}, wanted)

    def _forward(self, point: dict[str, torch.Tensor], wanted: Sequence[str]) -> list[torch.Tensor]:
        self.given = {
            name: value.detach().clone().requires_grad_(name in wanted)
            for name, value in point.items()
        }
        # it may write into its arguments, which autograd forbids for leaves
        copies = {name: value.clone() for name, value in {**self.given, **self._others}.items()}
        plain = {
            path: value.detach().clone()
            for path, value in leaves((self._applied.args, self._applied.kwargs))
            if isinstance(value, torch.Tensor) and path not in copies
        }
        args, kwargs = replaced((self._applied.args, self._applied.kwargs), {**plain, **copies})
        with torch.enable_grad():
            apply = Function.apply.__func__  # type: ignore[attr-defined]
            result = apply(self._applied.function, *args, **kwargs)
        found = [value for _, value in leaves(result) if isinstance(value, torch.Tensor)]
        return [value for value in found if value.is_floating_point() or value.is_complex()]

    def backward(
        self, along: Sequence[torch.Tensor], wanted: Sequence[str]
    ) -> dict[str, torch.Tensor | None]:
        """The gradients of the wanted arguments for these gradients of its outputs."""
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(self._seed)
            outputs = self._forward(self.floating, wanted)
            pairs = [
                (one, u.to(one.dtype))
                for one, u in zip(outputs, along, strict=True)
                if one.requires_grad
            ]
            if not pairs:
                return dict.fromkeys(wanted)
            given = [self.given[name] for name in wanted]
            gradients = torch.autograd.grad(
                [one for one, _ in pairs], given, [u.clone() for _, u in pairs], allow_unused=True
            )
        return dict(zip(wanted, gradients, strict=True))

    def joint(self) -> list[str]:
        """The arguments to ask for together: all floating ones, or the run's if the backward
        refuses."""
        names = list(self.floating)
        if self.asked and names != self.asked:
            try:
                self.backward([torch.ones_like(each) for each in self.forward()], names)
            except Exception:
                return self.asked
        return names

    def argument(self, path: str) -> str:
        """``argument 1 (b)``."""
        which, _, index = path.partition(".")
        if which == "1":
            return f"argument {index}"
        forward = self._applied.function.forward
        try:
            names = [
                each.name
                for each in inspect.signature(forward).parameters.values()
                if each.kind is not each.VAR_POSITIONAL
            ]
        except (TypeError, ValueError):
            names = []
        names = names if has_setup(self._applied.function) else names[1:]
        return f"argument {index}" + (f" ({names[int(index)]})" if int(index) < len(names) else "")


class _Look:
    """Random directions of the outputs, and the gradients along each output alone."""

    def __init__(
        self, call: _Call, names: Sequence[str], outputs: Sequence[torch.Tensor], number: int
    ) -> None:
        self.generator = torch.Generator().manual_seed(number)
        self.along = [_direction(each, self.generator, scaled=False) for each in outputs]
        self.differentiable = [
            at for at, each in enumerate(call.forward(wanted=names)) if each.requires_grad
        ]
        self.gradients: dict[str, list[torch.Tensor | None]] = {name: [] for name in names}
        for at in self.differentiable:
            for name, gradient in call.backward(self.only(at), names).items():
                self.gradients[name].append(gradient)

    def only(self, at: int) -> list[torch.Tensor]:
        return [
            each if number == at else torch.zeros_like(each)
            for number, each in enumerate(self.along)
        ]


def _of_argument(call: _Call, name: str, looks: Sequence[_Look]) -> list[_Error]:
    """The errors of an argument's gradient along each output, by the most exact step."""
    value, outputs = call.floating[name], range(len(looks[0].differentiable))
    directions = [_direction(value, look.generator) for look in looks]
    found: dict[int, list[_Error]] = {at: [] for at in outputs}
    for step in _STEPS:
        pairs = [
            (_differences(call, name, v, step, look), _differences(call, name, v, step / 2, look))
            for v, look in zip(directions, looks, strict=True)
        ]
        for at in outputs:
            missing = all(look.gradients[name][at] is None for look in looks)
            found[at].append(
                _compare(
                    [(whole[at], half[at]) for whole, half in pairs], call.argument(name), missing
                )
            )
        if all(each[-1].seen and each[-1].allowed <= _TOLERANCE for each in found.values()):
            break
    # a step may lose a change in rounding: only all steps together show that nothing changes
    return [min(each, key=lambda error: (not error.seen, error.allowed)) for each in found.values()]


#: One output's slope along one direction: by finite differences, by the backward, and the rounding
#: share of the former.
_Slopes = tuple[float, float, float]


def _differences(
    call: _Call, name: str, direction: torch.Tensor, step: float, look: _Look
) -> list[_Slopes]:
    value = call.floating[name]
    above, below = (value + (sign * step * direction).to(value.dtype) for sign in (1, -1))
    apart = _wide(above) - _wide(below)  # the step as it was rounded
    if not torch.isfinite(apart).all():  # elements that are infinite themselves
        apart = torch.where(torch.isfinite(apart), apart, torch.zeros_like(apart))
    ahead, behind = call.forward({name: above}), call.forward({name: below})
    slopes = []
    for place, at in enumerate(look.differentiable):
        u, gradient = look.along[at], look.gradients[name][place]
        change = _wide(ahead[at]) - _wide(behind[at])
        change = torch.where(u == 0, torch.zeros_like(change), change)  # where it is not finite
        rounding = torch.finfo(ahead[at].dtype).eps * float(
            torch.linalg.vector_norm(torch.nan_to_num(u * _wide(ahead[at])))
        )
        predicted = 0.0 if gradient is None else _dot(_wide(gradient), apart)
        slopes.append((_dot(u, change) / (2 * step), predicted / (2 * step), rounding / (2 * step)))
    return slopes


def _compare(pairs: Sequence[tuple[_Slopes, _Slopes]], argument: str, missing: bool) -> _Error:
    """The error over all directions. Halving the step shows how exact the differences are."""
    by_differences, by_backward = ([whole[which] for whole, _ in pairs] for which in (0, 1))
    changes, predicted = _rms(by_differences), _rms(by_backward)
    if not math.isfinite(changes + predicted):
        return _Error(argument, math.nan, math.inf)
    rounding = _ROUNDINGS * max(whole[2] for whole, _ in pairs)
    if changes <= rounding:
        return _Error(
            argument, 0.0 if predicted <= rounding else 1.0, _TOLERANCE, None, missing, seen=False
        )
    size = max(changes, predicted)
    noise = _rms([whole[0] - half[0] for whole, half in pairs]) / size
    error = _rms([whole[0] - whole[1] for whole, _ in pairs]) / size
    allowed = max(_TOLERANCE, _NOISE * noise)
    factor = None
    if squares := math.fsum(each * each for each in by_differences):
        fitted = (
            math.fsum(a * b for a, b in zip(by_differences, by_backward, strict=True)) / squares
        )
        left = (
            _rms([b - fitted * a for a, b in zip(by_differences, by_backward, strict=True)]) / size
        )
        factor = fitted if left <= allowed else None
    return _Error(argument, error, allowed, factor, missing)


def _alone(call: _Call, name: str, look: _Look, notes: list[WatchRemark]) -> list[_Error]:
    """Whether the gradient is the same when no other is asked for."""
    where = f"{call.argument(name)} [asked for alone]"
    found: list[_Error] = []
    for place, at in enumerate(look.differentiable):
        together = look.gradients[name][place]
        try:
            alone = call.backward(look.only(at), [name])[name]
        except Exception as error:  # a raised error is not silent
            raised = type(error).__name__
            notes.append(remark("alone-raises", argument=call.argument(name), error=raised))
            return found
        if together is not None and (alone is None or _distance(alone, together) > _TOLERANCE):
            found.append(
                _Error(
                    where,
                    1.0 if alone is None else _distance(alone, together),
                    _TOLERANCE,
                    None,
                    alone is None,
                )
            )
    return found


def _direction(
    value: torch.Tensor, generator: torch.Generator, scaled: bool = True
) -> torch.Tensor:
    """Random numbers shaped like a tensor, as large as its median, or as its elements where these
    are smaller; zero where it is not finite. So positive values stay positive."""
    dtype = torch.complex128 if value.is_complex() else torch.float64
    random = torch.randn(value.shape, generator=generator, dtype=dtype)
    random = torch.where(torch.isfinite(value), random, torch.zeros_like(random))
    if not scaled:
        return random
    sizes = value.detach().abs().double()
    there = torch.isfinite(sizes) & (sizes > 0)
    median = float(sizes[there].median()) if there.any() else 1.0
    return random * torch.where(there, sizes.clamp(max=median), torch.full_like(sizes, median))


def _wide(value: torch.Tensor) -> torch.Tensor:
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


def _dot(one: torch.Tensor, other: torch.Tensor) -> float:
    """The real inner product."""
    return float(torch.vdot(one.reshape(-1), other.reshape(-1)).real)


def _distance(one: torch.Tensor, other: torch.Tensor) -> float:
    """Relative L2 distance; elements that are not finite must be equal."""
    one, other = _wide(one), _wide(other)
    if one.shape != other.shape or not torch.equal(torch.isfinite(one), torch.isfinite(other)):
        return math.inf
    finite = torch.isfinite(one)
    apart, size = float((one[finite] - other[finite]).norm()), float(other[finite].norm())
    return apart / size if size else (math.inf if apart else 0.0)


def _rms(values: Sequence[float]) -> float:
    if all(map(math.isfinite, values)):
        return math.sqrt(math.fsum(each * each for each in values) / len(values))
    return math.inf
