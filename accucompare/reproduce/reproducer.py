"""Running one module again, alone, on its saved inputs: what a reproducer's script calls."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from accucompare.bundle.format import Record, Role, display_name
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.case import load_case
from accucompare.devices import DeviceName, explain, open_device
from accucompare.errors import (
    AccucompareError,
    BundleError,
    CaptureError,
    CaseError,
    DeviceError,
    UsageError,
)
from accucompare.findings.log import Direction, Site
from accucompare.live.modules import Modules, arguments_of, name_modules, put_together, unwrapped
from accucompare.live.numerics import autocast_then
from accucompare.live.operators import RandomState, calls_models
from accucompare.live.values import from_bits, leaves
from accucompare.reproduce.module_outcome import (
    RunOutcome,
    TableRow,
    cells,
    counts,
    is_bad,
    looking_inside,
)
from accucompare.reproduce.snapshot import SnapshotDescription, always
from accucompare.text import with_article

calls_models(__file__)

SHOWS, FINITE, TROUBLE = 1, 0, 2


def module_of_case(target: str, name: str) -> nn.Module:
    """Build a case and take the module of that qualified name. Raises CaseError if the case cannot
    be built, or has no such module."""
    model = load_case(target)[0].model
    found = name_modules(model).named.get(name) if isinstance(model, nn.Module) else None
    if found is None:
        raise CaseError(f"{target}: its model has no module {display_name(name)!r} (any more)")
    return found


class Reproducer:
    """A bundle that a watch wrote of one module call.

    Attributes:
        bundle: it.
        found: what the watch found.

    Example:
        >>> reproducer = Reproducer.open("watch/rank0-step7.py")        # doctest: +SKIP
        >>> module = reproducer.restore(nn.Linear(64, 256))             # doctest: +SKIP
        >>> reproducer.show(reproducer.run(module))                     # doctest: +SKIP
        1
    """

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle
        table = bundle.manifest.capture.get("reproducer")
        if table is None:
            raise BundleError(
                f"{bundle.path}: is a bundle, but no reproducer, which a watch writes"
            )
        try:
            self._saved = msgspec.convert(table, SnapshotDescription)
        except msgspec.ValidationError as error:
            raise BundleError(
                f"{bundle.path}: damaged; what it says of the module is malformed ({error})"
            ) from None
        self.found = self._saved.found
        self._device = torch.device("cpu")
        self._records = {(record.role, record.name): record for record in bundle.state()}

    @classmethod
    def open(cls, script: str | Path) -> Reproducer:
        """Open the bundle beside a script.

        Scripts call this where nothing catches errors, so it prints a line and exits instead of
        raising."""
        try:
            return cls(open_bundle(Path(script).resolve().with_suffix("")))
        except AccucompareError as error:
            print(f"Error: {error}", file=sys.stderr)
            raise SystemExit(TROUBLE) from None

    def main(
        self, build: Callable[[], Any], arguments: list[str], given: Mapping[str, Any] | None = None
    ) -> int:
        """Build, restore, run and show. Returns the exit code: 1 if the value shows again, 0 if
        everything is finite, 2 if that is not known.

        Args:
            build: makes the module, with any values in its tensors.
            arguments: of the command line: a device; by default the training's.
            given: values for inputs that could not be saved.
        """
        try:
            if len(arguments) > 1:
                raise UsageError(f"takes one device at most, but was given {' '.join(arguments)}")
            device = self.device(arguments[0] if arguments else None)
            return self.show(self.run(self.restore(self._built(build), device), given))
        except AccucompareError as error:
            print(f"Error: {error}", file=sys.stderr)
        except Exception as error:
            print(f"Error: the module raised {explain(self._device.type, error)}", file=sys.stderr)
        finally:
            self.bundle.close()
        return TROUBLE

    def device(self, name: str | None) -> torch.device:
        """The device of that name; by default the training's, or the CPU if that is not there.
        Raises DeviceError if it is not there; UsageError if it is no name of a device."""
        if name is not None:
            return open_device(DeviceName.parse(name))
        try:
            return open_device(DeviceName.parse(self._saved.device))
        except (DeviceError, UsageError):
            print(f"it was found on {self._saved.device}, which is not here; this is the CPU")
            return torch.device("cpu")

    def _built(self, build: Callable[[], Any]) -> nn.Module:
        try:
            module = build()
        except AccucompareError:
            raise
        except (Exception, SystemExit) as error:
            raise CaptureError(
                f"the module cannot be built here: {type(error).__name__}: {error}; see build() in"
                " the script"
            ) from error
        if not isinstance(module, nn.Module):
            missing = self._saved.missing
            reason = f" ({missing})" if missing else ""
            raise CaptureError(
                f"build() in {self.bundle.path.name}.py must make the module:"
                f" {with_article(self._saved.kind)};"
                f" how that is done could not be told{reason}"
            )
        return module

    def restore(self, module: nn.Module, device: torch.device | str = "cpu") -> nn.Module:
        """Move a module to a device and put the saved parameters, buffers, dtypes, modes and tensor
        attributes into it. Returns the module, out of its wrappers. Raises CaptureError if its
        parameters or buffers differ from the saved ones, or not all were saved."""
        module = unwrapped(module).to(device)
        self._device = torch.device(device)
        for alias, name in self._saved.aliases.items():
            with contextlib.suppress(KeyError, AttributeError):
                owner, leaf = _owner(module, alias)
                owner._modules[leaf] = module.get_submodule(name)
        modules = name_modules(module)
        tensors = {name: (kind, tensor) for kind, name, tensor in modules.tensors()}
        self._check(modules, tensors)
        for name, (kind, tensor) in tensors.items():
            # a parameter's saved values may be integers, which have no gradients
            tensor.requires_grad_(False)
            tensor.data = self._load(
                Role.PARAM if kind == "parameters" else Role.BUFFER, name, device
            )
        self._tie(modules)
        for name, (kind, tensor) in tensors.items():
            if kind == "parameters":
                tensor.requires_grad_(name in self._saved.parameters_with_grad)
        for place, record in self._saved.attributes.items():
            owner, leaf = _owner(modules, place)
            owner.__dict__[leaf] = self._load(Role.CASE_INPUT, record, device)
        for name, part in modules.named.items():
            part.training = self._saved.training != (name in self._saved.other_mode)
            for key, value in vars(part).items():
                if isinstance(value, torch.device):
                    part.__dict__[key] = torch.device(device)
        return module

    def _check(self, modules: Modules, tensors: Mapping[str, tuple[str, torch.Tensor]]) -> None:
        """Raise CaptureError unless the module has the saved parameters and buffers, in shape."""
        for name, what in self._saved.lost.items():
            if name in tensors:
                raise CaptureError(
                    f"{self.bundle.path}: {name!r} of the module could not be saved ({what}), and"
                    " without it there is no rerun"
                )
        kind = type(modules.named[""]).__name__
        saved = {
            record.name: record
            for (role, _), record in self._records.items()
            if role is not Role.CASE_INPUT
        }
        for names, words in (
            (saved.keys() - tensors.keys(), "lacks"),
            (tensors.keys() - saved.keys(), "has, but the saved one had not,"),
        ):
            if names:
                raise CaptureError(
                    f"build() made {with_article(kind)} that {words} {min(names)!r}"
                    f" ({len(names)} such in all)"
                )
        for name, record in saved.items():
            if tensors[name][0] == "parameters" and tuple(tensors[name][1].shape) != record.shape:
                raise CaptureError(
                    f"build() made {with_article(kind)} whose {name!r} is"
                    f" {list(tensors[name][1].shape)} and"
                    f" not {list(record.shape)}"
                )

    def _tie(self, modules: Modules) -> None:
        """Tie weights again that were one tensor."""
        for name, first in self._saved.tied.items():
            (owner, leaf), (other, other_leaf) = _owner(modules, name), _owner(modules, first)
            for table, source in (
                (owner._parameters, other._parameters),
                (owner._buffers, other._buffers),
            ):
                if leaf in table and other_leaf in source:
                    table[leaf] = source[other_leaf]  # type: ignore[assignment]

    def _load(self, role: Role, name: str, device: torch.device | str) -> torch.Tensor:
        """A fresh tensor with a record's values and strides, on a device. Raises BundleError if
        there is no such record, or it is damaged."""
        record = self._records.get((role, name))
        if record is None:
            raise BundleError(f"{self.bundle.path}: damaged; it holds no {role.value} {name!r}")
        tensor = from_bits(self.bundle.raw(record), record.dtype).to(device)
        strides = self._saved.strides.get(f"{role.value} {name}")
        if strides is not None:
            tensor = torch.empty_strided(
                tensor.shape, strides, dtype=tensor.dtype, device=device
            ).copy_(tensor)
        return tensor

    def run(self, module: nn.Module, given: Mapping[str, Any] | None = None) -> RunOutcome:
        """Run a restored module on the saved inputs, in the saved mode, autocast and random state;
        and backward if the finding was there. Raises CaptureError if gradients were saved, and the
        output has none. ``given``: values for inputs that could not be saved."""
        device = self._device
        outcome = RunOutcome(device)
        backward = self.found.direction is Direction.BACKWARD and bool(self._saved.grads)
        (args, kwargs), sources = self._inputs(device, given or {}, outcome)
        outcome.inputs = [
            ("input", path, _copy(value)) for path, value in arguments_of(args, kwargs)
        ]
        self._set_random(device)
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(backward or bool(self._saved.grad_enabled)))
            stack.enter_context(autocast_then(self._autocast_on(device)))
            stack.enter_context(looking_inside(module, outcome))
            output = module(*args, **kwargs)
        outcome.outputs = [("output", path, value) for path, value in leaves(output)]
        if backward:
            self._run_backward(module, dict(leaves(output)), sources, outcome)
        return outcome

    def _inputs(
        self, device: torch.device, given: Mapping[str, Any], outcome: RunOutcome
    ) -> tuple[Any, dict[str, torch.Tensor]]:
        """The arguments, and their leaves that require grad."""
        loaded: dict[str, torch.Tensor] = {}
        sources: dict[str, torch.Tensor] = {}

        def load(number: str) -> torch.Tensor:
            if number not in loaded:
                tensor = self._load(Role.CASE_INPUT, number, device)
                if number in self._saved.inputs_with_grad:
                    sources[number] = tensor.requires_grad_()
                    # no leaf, since the module may write into it
                    tensor = torch.empty_like(tensor).copy_(tensor)
                loaded[number] = tensor
            return loaded[number]

        def lost(place: str) -> Any:
            value = given.get(place)
            if value is None:
                outcome.stand_ins.append(place)
            return value

        try:
            return put_together(self.bundle.manifest.capture["inputs"][0], load, lost), sources
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise BundleError(
                f"{self.bundle.path}: damaged; its inputs are malformed ({type(error).__name__})"
            ) from None

    def _autocast_on(self, device: torch.device) -> dict[str, Any]:
        """The autocast that was in force; the training device's becomes this device's."""
        others = {
            kind: table
            for kind, table in self._saved.autocast.items()
            if table.enabled and kind != _type(self._saved.device)
        }
        own = self._saved.autocast.get(_type(self._saved.device))
        return msgspec.to_builtins({**others, **({device.type: own} if own is not None else {})})  # type: ignore[no-any-return]

    def _set_random(self, device: torch.device) -> None:
        own = {
            name: record
            for name, record in self._saved.random.items()
            if _type(name) == device.type
        }
        records = {"cpu": self._saved.random["cpu"]} if "cpu" in self._saved.random else {}
        if device.type != "cpu" and own:
            records[str(device)] = own.get(self._saved.device) or next(iter(own.values()))
        RandomState(
            {name: self._load(Role.CASE_INPUT, record, "cpu") for name, record in records.items()}
        ).restore()
        if device.type != _type(self._saved.device):
            print(f"random numbers, if it draws any, are others here than on {self._saved.device}")

    def _run_backward(
        self,
        module: nn.Module,
        outputs: Mapping[str, Any],
        sources: Mapping[str, torch.Tensor],
        outcome: RunOutcome,
    ) -> None:
        tensors, grads = [], []
        for path, record in self._saved.grads.items():
            output = outputs.get(path)
            if not isinstance(output, torch.Tensor) or not output.requires_grad:
                raise CaptureError(
                    f"the output {path or 'of the module'} has no gradient here, but one was saved"
                )
            grad = self._load(Role.CASE_INPUT, record, outcome.device)
            outcome.inputs.append(("output's gradient", path, grad))
            tensors.append(output)
            grads.append(grad.to(output.dtype))
            output.register_hook(always(grads[-1]))  # type: ignore[no-untyped-call]
        module.zero_grad()
        torch.autograd.backward(tensors, grads)
        paths = {tensor: path for path, tensor in self._numbers().items()}
        outcome.gradients = [
            *(
                ("input's gradient", paths.get(number, number), tensor.grad)
                for number, tensor in sources.items()
            ),
            *(
                ("parameter's gradient", name, parameter.grad)
                for name, parameter in module.named_parameters()
            ),
        ]
        outcome.gradients = [row for row in outcome.gradients if row[2] is not None]

    def _numbers(self) -> dict[str, str]:
        """The paths of the inputs, each with the number of its tensor."""
        args, kwargs = put_together(
            self.bundle.manifest.capture["inputs"][0], _Number, lambda place: None
        )
        return {
            path: value for path, value in arguments_of(args, kwargs) if isinstance(value, _Number)
        }

    def show(self, outcome: RunOutcome) -> int:
        """Print inputs and outcome, and whether the value shows again; returns ``main``'s exit
        code."""
        rows = [*outcome.inputs, *outcome.outputs, *outcome.gradients]
        print(f"{self.found.place} ({self.found.type}) on {outcome.device}")
        lines = [cells(*row) for row in rows]
        widths = [max(len(line[column]) for line in lines) for column in range(4)] if lines else []
        for line in lines:
            print(
                "  "
                + "  ".join(
                    [
                        *(cell.ljust(width) for cell, width in zip(line, widths, strict=False)),
                        *line[4:],
                    ]
                ).rstrip()
            )
        shown = next(
            (
                row
                for row in self._judged(outcome)
                if is_bad(row[2], "saturated" in self.found.kinds)
            ),
            None,
        )
        if shown is not None:
            print(f"It shows again: {counts(shown[2])} in the {' '.join(shown[:2]).rstrip()}")
            return SHOWS
        if outcome.inside is not None:
            print(
                f"Inside, {' '.join(outcome.inside[:2])} holds {counts(outcome.inside[2])}, but not"
                " what comes out."
            )
        if self.found.direction is Direction.BACKWARD and not self._saved.grads:
            print(
                "What comes out is finite here. It was found in the backward, but no gradient of"
                " the module's output was saved."
            )
            return TROUBLE
        if outcome.stand_ins:
            print(
                "Everything is finite here, but None was passed for"
                f" {', '.join(outcome.stand_ins)}, which could not be saved."
            )
            return TROUBLE
        print(f"It does not show: everything is finite on {outcome.device}.")
        return FINITE

    def _judged(self, outcome: RunOutcome) -> list[TableRow]:
        """The tensors among which the value is looked for."""
        site = self.found.site
        if self.found.direction is Direction.BACKWARD:
            given = [row for row in outcome.inputs if row[0] == "output's gradient"]
            if site is Site.LOSS:
                return given
            return [*outcome.gradients, *(given if site is Site.SUM else [])]
        if site is Site.INPUT:
            return outcome.inputs
        bad = {
            seen.path for seen in self.found.tensors if seen.role == "output" and not seen.finite
        }
        outputs = [row for row in outcome.outputs if row[1] in bad] or outcome.outputs
        inside = (
            [outcome.inside]
            if outcome.inside is not None and site in (Site.GLUE, Site.POINT)
            else []
        )
        weights = [
            ("weight", record.name, self._load(*key, "cpu"))
            for key, record in self._weights()
            if site is Site.WEIGHTS
        ]
        return [*outputs, *inside, *weights]

    def _weights(self) -> Iterable[tuple[tuple[Role, str], Record]]:
        return (
            (key, record) for key, record in self._records.items() if key[0] is not Role.CASE_INPUT
        )


class _Number(str):
    """A tensor's number, in its place."""


def _owner(root: nn.Module | Modules, name: str) -> tuple[nn.Module, str]:
    """The module that holds an attribute, and the attribute's name there."""
    prefix, _, leaf = name.rpartition(".")
    return (root.named[prefix] if isinstance(root, Modules) else root.get_submodule(prefix)), leaf


def _copy(value: Any) -> Any:
    """The present value; the module may write into it later."""
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def _type(device: str) -> str:
    """The type of a device, even one that this torch does not know."""
    return device.partition(":")[0]
