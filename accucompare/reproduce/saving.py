"""Saving one module call's inputs and state as a bundle, beside a script that runs that module
alone.

The bundle's state holds the parameters, buffers, inputs, random states and output gradients. Its
one step lists the inputs for ``accucompare show``. ``reproducer`` puts all of it together again."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from accucompare.bundle.format import Layout, Manifest, Record, Role, StepEntry
from accucompare.bundle.writing import RecordFile
from accucompare.errors import CaptureError
from accucompare.findings.log import Finding
from accucompare.live.around import describe_classes, describe_environment, device_of
from accucompare.live.modules import Modules, arguments_of, name_modules, state_record, take_apart
from accucompare.live.values import (
    describe_value,
    dtype_name,
    layout_of,
    leaves,
    other_to_host,
    scalar_to_host,
    to_host,
)
from accucompare.numbers import DTYPES, Array
from accucompare.reproduce.class_import import CannotRebuildError, place_text
from accucompare.reproduce.recipe import Recipe, recipe
from accucompare.reproduce.reproducer_script import script_text
from accucompare.reproduce.snapshot import Autocast, Snapshot, SnapshotDescription
from accucompare.text import with_article

_Entry = tuple[Record, Callable[[], Array]]


class ReproducerScript(NamedTuple):
    """A reproducer's script, with a note for each thing that could not be saved or rebuilt."""

    path: Path
    notes: list[str]


def save_reproducer(
    stem: Path, finding: Finding, snapshot: Snapshot, case: str | None
) -> ReproducerScript:
    """Write the bundle ``stem`` and the script ``stem.py``, replacing an earlier run's. Raises
    CaptureError if it cannot be written; nothing is left of it then.

    Args:
        stem: such as ``watch/rank0-step7``.
        case: the case that the command line runs, if it does: the script takes the module from it.
    """
    script = stem.with_name(f"{stem.name}.py")
    if stem.exists() and not (stem / "manifest.json").is_file():
        raise CaptureError(
            f"{stem}: is there and holds no bundle, so it is not touched; the reproducer was not"
            " written"
        )
    parts = stem.with_name(f"{stem.name}.part"), script.with_name(f"{script.name}.part")
    with _numbers_as_they_were(snapshot):
        making = _making(snapshot, case, stem.parent)
    replacing = False
    try:
        _remove(*parts)
        lost = _write_bundle(parts[0], finding, snapshot, making, case)
        parts[1].write_text(script_text(script, finding, snapshot, making, lost), encoding="utf-8")
        replacing = True
        _remove(stem, script)
        os.replace(parts[0], stem)
        os.replace(parts[1], script)
    except BaseException as error:
        _remove(*parts, *([stem, script] if replacing else []))
        if isinstance(error, OSError):
            raise CaptureError(
                f"{stem}: the reproducer cannot be written ({error.strerror or error})"
            ) from None
        # a user's class may raise anything; the training goes on
        if isinstance(error, Exception):
            raise CaptureError(
                f"{stem}: the reproducer cannot be written ({type(error).__name__}: {error})"
            ) from error
        raise
    by_hand = (
        [f"the module has to be made by hand in {script.name}: {making}"]
        if isinstance(making, str)
        else []
    )
    return ReproducerScript(
        script,
        [*by_hand, *(f"{place} could not be saved ({what})" for place, what in lost.items())],
    )


@contextlib.contextmanager
def _numbers_as_they_were(snapshot: Snapshot) -> Iterator[None]:
    now = {
        module: {name: vars(module)[name] for name in numbers if name in vars(module)}
        for module, numbers in snapshot.numbers.items()
    }
    try:
        for module, numbers in snapshot.numbers.items():
            vars(module).update(numbers)
        yield
    finally:
        for module, numbers in now.items():
            vars(module).update(numbers)


def _remove(*paths: Path) -> None:
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        with contextlib.suppress(OSError):
            path.unlink()


def _making(snapshot: Snapshot, case: str | None, directory: Path) -> Recipe | str:
    """How to make the module, or why that is unknown; ``directory``: the script's."""
    if case is not None:
        source, colon, callable_name = case.partition(":")
        by_path = source.endswith(".py") or "/" in source
        own = f" + {colon + callable_name!r}" if colon else ""
        target = place_text(Path(source).resolve(), directory) + own if by_path else repr(case)
        paths = [] if by_path else [f"sys.path.insert(0, {place_text(Path.cwd(), directory)})"]
        return Recipe(
            [*paths, "from accucompare.reproduce import module_of_case"],
            f"module_of_case({target}, {snapshot.name!r})",
        )
    try:
        return recipe(snapshot.module, directory)
    except CannotRebuildError as error:
        return str(error)
    except Exception as error:  # a user's attribute may raise; the data is saved anyway
        return f"{type(error).__name__} while it was looked at: {str(error)[:200]}"


def _write_bundle(
    directory: Path, finding: Finding, snapshot: Snapshot, making: Recipe | str, case: str | None
) -> dict[str, str]:
    """Write everything; returns what could not be saved: its place, and what it is."""
    modules = name_modules(snapshot.module)
    state = _SavedState(snapshot, modules)
    device = _device(snapshot)
    model = {**describe_classes(modules), "not_called": []}
    saved = SnapshotDescription(
        found=finding,
        device=str(device),
        autocast={kind: Autocast(**table) for kind, table in snapshot.autocast.items()},
        grad_enabled=snapshot.grad_enabled,
        kind=model["class"],
        missing=making if isinstance(making, str) else None,
        training=model["training"],
        other_mode=model["other_mode"],
        aliases=modules.aliases,
        lost=state.lost,
        **state.tables,
    )
    manifest = Manifest(
        complete=True,
        capture={
            "mode": "tensors",
            "steps": 1,
            "inputs": [state.inputs],
            "reproducer": msgspec.to_builtins(saved),
        },
        environment=describe_environment(device, case),
        model=model,
        notes=[f"made by accucompare watch to run one module again: {finding.place}"],
    )
    count, digest = _write_records(directory / "rank0" / "state", state.records)
    manifest.state = {"records": count, "digest": digest}
    manifest.steps.append(
        StepEntry(
            finding.step,
            *_write_records(directory / "rank0" / f"step{finding.step}", _shown(finding, snapshot)),
        )
    )
    manifest.write(directory / "manifest.json")
    return state.lost


def _write_records(stem: Path, records: Any) -> tuple[int, str]:
    file = RecordFile(stem)
    try:
        for record, array in records:
            file.add(record, array() if callable(array) else array)
        return file.records, file.finish()
    except BaseException:
        file.discard()
        raise


def _shown(finding: Finding, snapshot: Snapshot) -> Iterator[tuple[Record, Array | None]]:
    """The inputs, as a capture records them."""
    for order, (path, value) in enumerate(arguments_of(snapshot.args, snapshot.kwargs)):
        if isinstance(value, torch.Tensor):
            host = other_to_host(value) if _problem(value) else to_host(value)
        else:
            host = scalar_to_host(value)
        yield (
            Record(
                rank=0,
                step=finding.step,
                name=snapshot.name,
                call=snapshot.call,
                role=Role.INPUT,
                path=path,
                order=order,
                type=type(snapshot.module).__name__,
                parent=None,
                shape=host.shape,
                dtype=host.dtype,
                layout=host.layout,
                digest=host.digest,
                detail=host.detail,
            ),
            host.array,
        )


class _SavedState:
    """The records of a reproducer's state.

    Attributes:
        records: each with the function that brings its data to the host.
        inputs: the structure of the inputs, as JSON.
        lost: what could not be saved: its place, and what it is.
        tables: which record is what, for the manifest.
    """

    def __init__(self, snapshot: Snapshot, modules: Modules) -> None:
        self.records: list[_Entry] = []
        self.lost: dict[str, str] = {}
        tensors: list[torch.Tensor] = []
        self.inputs = self._inputs(snapshot, tensors)
        self.tables: dict[str, Any] = {
            "strides": {},
            "inputs_with_grad": [
                str(index) for index, tensor in enumerate(tensors) if tensor.requires_grad
            ],
            "parameters_with_grad": [],
            "tied": {},
        }
        self.tables["random"] = self._add_all("random", snapshot.random.devices)
        self.tables["grads"] = self._add_all("grad", snapshot.grads)
        for index, tensor in enumerate(tensors):
            self._add(str(index), tensor)
        self._add_model(snapshot, modules)

    def _inputs(self, snapshot: Snapshot, tensors: list[torch.Tensor]) -> dict[str, Any]:
        def lost(value: Any, place: str) -> bool:
            reason = _problem(value) if isinstance(value, torch.Tensor) else describe_value(value)
            if reason is not None:
                self.lost[place] = reason
            return reason is not None

        args = [
            take_apart(value, tensors, f"argument {index}", lost)
            for index, value in enumerate(snapshot.args)
        ]
        kwargs = [
            [name, take_apart(value, tensors, name, lost)]
            for name, value in snapshot.kwargs.items()
        ]
        return {"list": [{"tuple": args}, {"dict": kwargs}]}

    def _add_model(self, snapshot: Snapshot, modules: Modules) -> None:
        names: dict[int, str] = {}
        for kind, name, live in modules.tensors():
            tensor = snapshot.buffers.get(name, live) if kind == "buffers" else live
            if id(live) in names:
                self.tables["tied"][name] = names[id(live)]
            names.setdefault(id(live), name)
            if live.requires_grad:
                self.tables["parameters_with_grad"].append(name)
            self._add(name, tensor, Role.PARAM if kind == "parameters" else Role.BUFFER)
        attributes = {
            f"{prefix}.{key}" if prefix else key: value
            for prefix, module in modules.named.items()
            for key, value in vars(module).items()
            if isinstance(value, torch.Tensor)
        }
        self.tables["attributes"] = self._add_all("attribute", attributes)

    def _add_all(self, what: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
        """Add tensors; returns the records of those that could be saved, by the same names."""
        return {
            name: f"{what}.{name}"
            for name, tensor in tensors.items()
            if self._add(f"{what}.{name}", tensor)
        }

    def _add(self, name: str, tensor: torch.Tensor, role: Role = Role.CASE_INPUT) -> bool:
        """Add a tensor if it can be saved; returns whether it can."""
        reason = _problem(tensor)
        if reason is not None:
            self.lost[name] = reason
            return False
        strides = _strides(tensor)
        if strides is not None:
            self.tables["strides"][f"{role.value} {name}"] = strides
        self.records.append(state_record(role, name, tensor))
        return True


def _problem(tensor: torch.Tensor) -> str | None:
    """Why a tensor's values cannot be saved, if so. Waits for no rank: others may have no
    finding."""
    try:
        if hasattr(tensor, "full_tensor"):
            return f"{with_article(type(tensor).__name__)}, of which this rank has a part"
        layout = layout_of(tensor)
        if layout is not Layout.STRIDED:
            return f"a {layout.value} tensor"
        if dtype_name(tensor.dtype) not in DTYPES:
            return f"a tensor of {dtype_name(tensor.dtype)}"
        if tensor.numel() and tensor.untyped_storage().size() == 0:
            return "a tensor whose memory was given back, as FSDP does between calls"
        if type(tensor) not in (torch.Tensor, nn.Parameter) and to_host(tensor).array is None:
            return with_article(type(tensor).__name__)
    except Exception as error:  # a tensor subclass may raise anything
        return f"{with_article(type(tensor).__name__)}, {type(error).__name__}"
    return None


def _strides(tensor: torch.Tensor) -> list[int] | None:
    """The strides of a dense tensor that is not row-major; kernels may depend on them."""
    if tensor.is_contiguous() or type(tensor) not in (torch.Tensor, nn.Parameter):
        return None
    alike = torch.empty_like(tensor, device="meta").stride() == tensor.stride()
    return list(tensor.stride()) if alike else None


def _device(snapshot: Snapshot) -> torch.device:
    device = device_of(snapshot.module)
    if device.type != "cpu":
        return device
    given = [
        value
        for _, value in leaves((snapshot.args, snapshot.kwargs))
        if isinstance(value, torch.Tensor) and not value.is_meta
    ]
    return given[0].device if given else device
