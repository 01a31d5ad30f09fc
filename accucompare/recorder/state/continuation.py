"""Starting a training from the state that another capture saved: ``--like``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from accucompare.bundle.format import (
    Component,
    Missing,
    Record,
    Role,
    SavedObject,
    Started,
    TrainingState,
)
from accucompare.bundle.reading import Bundle
from accucompare.compare.pairing import Renaming, counterparts, rename_parameter
from accucompare.errors import BundleError, CaptureError
from accucompare.live.autograd import parameters_of
from accucompare.live.modules import Modules, put_together
from accucompare.live.operators import Draws, RandomState
from accucompare.live.values import dtype_name, from_bits
from accucompare.recorder.state.training_loop import Training, TrainingPart
from accucompare.recorder.state.training_state import OF_NO_PARAMETER, Frozen, names_of
from accucompare.text import with_article

#: What ``put_together`` and the loaders raise on malformed JSON of a state.
_DAMAGE = (
    KeyError,
    TypeError,
    ValueError,
    AttributeError,
    IndexError,
    OverflowError,
    RecursionError,
)


class _NotSavedError(Exception):
    """A part of a value was left out when it was saved."""


@dataclass
class Continuation:
    """A saved state, and the training that goes on from it.

    Attributes:
        missing: parts of the state that the training does not get.
        notes: sentences for the manifest.
        overruled: what the state of the first step changed here.
        own_rank: whether the state is this rank's; else it is rank 0's, for lack of this rank.
    """

    bundle: Bundle
    state: TrainingState
    training: Training
    modules: Modules
    renamings: Sequence[Renaming]
    device: torch.device
    missing: list[Missing] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    overruled: list[str] = field(default_factory=list)
    own_rank: bool = True
    _records: dict[str, Record] = field(default_factory=dict)
    _dtypes: dict[str, str] = field(default_factory=dict)  # of the saved parameters

    @property
    def step(self) -> int:
        return self.state.step

    @property
    def started(self) -> Started:
        return Started(self.step, tuple(self.missing))

    @classmethod
    def of(
        cls,
        bundle: Bundle,
        rank: int,
        training: Training,
        modules: Modules,
        renamings: Sequence[Renaming],
        device: torch.device,
    ) -> Continuation | None:
        """Check that a training can go on from a bundle's state; nothing is changed yet.

        Returns:
            ``None`` for an older version's bundle, if weights and inputs are enough (no optimizer).

        Raises:
            CaptureError: if the state has another optimizer class, other groups, or an older
                version.
            BundleError: if it is damaged.
        """
        own = rank if rank in bundle.manifests else 0
        manifest = bundle.manifests[own]
        state = manifest.training.training_state
        if state is None:
            if manifest.state is not None and training.optimizers:
                raise CaptureError(
                    f"start (--like): {bundle.path} was written by an older accucompare, which"
                    " saved"
                    " weights and inputs, but not the state of the optimizer; capture it again"
                    " with --save-state"
                )
            return None
        found = cls(
            bundle,
            state,
            training,
            modules,
            renamings,
            device,
            list(state.missing),
            own_rank=own == rank,
        )
        for record in bundle.state(own):
            if record.role is Role.TRAINING_STATE:
                found._records[record.name] = record
            elif record.role is Role.PARAM:
                found._dtypes[record.name] = record.dtype
        for part, saved in found._pairs():
            if part.component is not Component.SCALER and saved.kind != part.kind:
                raise CaptureError(
                    f"start (--like): {part.place} is {with_article(part.kind)} here, but"
                    f" {with_article(saved.kind)} in"
                    f" {bundle.path}"
                )
            if part.component is Component.OPTIMIZER:
                found._check_groups(part, saved)
        return found

    def apply(self, draws: Draws | None, seed: int | None) -> None:
        """Put the state into the training.

        Args:
            draws, seed: of the capture; random numbers go on only if the state's seed is equal.

        Raises:
            BundleError: if the state is damaged.
            CaptureError: if an optimizer or a scheduler refuses it.
        """
        for part, saved in self._pairs():
            if part.component is Component.OPTIMIZER:
                self._guarded(self._put_optimizer_state, part, saved)
            self._guarded(self._put_options, part, saved)
        self._put_gradients()
        self._put_attributes()
        same_seed = (seed or 0) == (self.bundle.manifest.capture.get("seed") or 0)
        if same_seed and self.own_rank:
            self._put_random(draws)
        elif self.step:
            reason = (
                "the state has none of this rank"
                if same_seed
                else f"seed {seed} was given in place of the state's"
            )
            self._miss(Component.RANDOM, reason)

    def _pairs(self) -> Iterator[tuple[TrainingPart, SavedObject]]:
        """The parts of the training, each with its saved state. Notes what one side lacks."""
        saved = {
            Component.OPTIMIZER: self.state.optimizers,
            Component.SCHEDULER: self.state.schedulers,
            Component.SCALER: () if self.state.scaler is None else (self.state.scaler,),
        }
        for component, objects in saved.items():
            parts = [part for part in self.training.parts if part.component is component]
            if objects and not parts:
                self._miss(
                    component,
                    f"{self.bundle.path} has {with_article(objects[0].kind.rpartition('.')[2])},"
                    " this capture"
                    " has none",
                )
            elif objects and len(parts) != len(objects):
                raise CaptureError(
                    f"start (--like): there are {len(parts)} {component}s here, but"
                    f" {len(objects)} in"
                    f" {self.bundle.path}"
                )
            yield from zip(parts, objects, strict=False)

    def _miss(self, component: Component, reason: str) -> None:
        missing = Missing(component, reason)
        if missing not in self.missing:
            self.missing.append(missing)

    def _parameter_names(self, names: Iterable[str]) -> dict[str, str]:
        """The model's name of each saved parameter."""
        names = list(names)
        own = set(names_of(self.modules).values())
        new = counterparts(dict.fromkeys(names), own, self.renamings, rename_parameter)
        return {name: new.get(name, name) for name in names}

    def _check_groups(self, part: TrainingPart, saved: SavedObject) -> None:
        own_names = names_of(self.modules)
        own = [{own_names.get(id(tensor), "") for tensor in group} for group in part.parameters()]
        theirs = [set(self._parameter_names(group).values()) for group in saved.groups]
        if len(own) != len(theirs):
            raise CaptureError(
                f"start (--like): {part.place} has {len(own)} parameter group(s) here, but"
                f" {len(theirs)} in"
                f" {self.bundle.path}"
            )
        for number, (ours, golden) in enumerate(zip(own, theirs, strict=True)):
            if ours != golden:
                name = min(ours ^ golden)
                where = "here only" if name in ours else f"in {self.bundle.path} only"
                raise CaptureError(
                    f"start (--like): {part.place}: other parameter groups:"
                    f" {name or 'a parameter'!r} is in"
                    f" group {number} {where}"
                )

    def _load(self, component: Component, place: str, structure: Any) -> Any:
        """A value that was taken apart.

        Raises:
            _NotSavedError: if a part of it was not saved.
            BundleError: if it is damaged.
        """

        def load(number: str) -> torch.Tensor:
            record = self._records[f"{place} {number}"]
            return from_bits(self.bundle.raw(record), record.dtype)

        def lost(where: str) -> Any:
            raise _NotSavedError(where)

        try:
            return put_together(structure, load, lost)
        except _DAMAGE as error:
            what = f"{type(error).__name__}: {error}"
            if isinstance(error, KeyError):
                what = f"it has no record {error}"
            raise self._damaged(f"in {component}, {place} ({what[:200]})") from None

    def _damaged(self, where: str) -> BundleError:
        return BundleError(f"{self.bundle.path}: the saved state is damaged {where}")

    def _guarded(
        self,
        put: Callable[[TrainingPart, SavedObject], None],
        part: TrainingPart,
        saved: SavedObject,
    ) -> None:
        try:
            put(part, saved)
        except (BundleError, CaptureError):
            raise
        except Exception as error:  # a user's class may refuse in any way
            reason = f"{type(error).__name__}: {str(error)[:200]}"
            raise CaptureError(
                f"start (--like): the state of {part.place} in {self.bundle.path} does not fit"
                f" {with_article(part.kind)} ({reason})"
            ) from error

    def _put_optimizer_state(self, part: TrainingPart, saved: SavedObject) -> None:
        own = names_of(self.modules)
        tensors = {
            own[id(tensor)]: tensor
            for group in part.parameters()
            for tensor in group
            if id(tensor) in own
        }
        numbers = {
            name: number
            for number, name in enumerate(
                own.get(id(each), "") for group in part.parameters() for each in group
            )
        }
        state: dict[Any, Any] = {}
        kept_wide: list[tuple[torch.Tensor, str, torch.Tensor]] = []
        of_parameters = [name for name in saved.state if name != OF_NO_PARAMETER]
        for old, name in self._parameter_names(of_parameters).items():
            try:
                values = self._load(part.component, f"{part.place} {old}", saved.state[old])
            except _NotSavedError:
                continue  # listed as missing already
            if not isinstance(values, dict) or name not in numbers:
                raise self._damaged(f"in {part.place}, {old}")
            state[numbers[name]] = values
            for key, value in values.items():
                other = (
                    isinstance(value, torch.Tensor) and value.is_floating_point() and key != "step"
                )
                if other and dtype_name(value.dtype) != self._dtypes.get(old):
                    kept_wide.append((tensors[name], key, value))
        if (others := saved.state.get(OF_NO_PARAMETER)) is not None:
            with contextlib.suppress(_NotSavedError):
                place = f"{part.place} {OF_NO_PARAMETER}"
                state.update(self._load(part.component, place, others))
        if not state and not part.live.state:
            return
        before = Frozen.of(part.live.state_dict().get("state"))
        part.live.load_state_dict({**part.live.state_dict(), "state": state})
        # load_state_dict casts to the parameter's type what was kept in another
        for tensor, key, value in kept_wide:
            part.live.state[tensor][key] = value.to(tensor.device)
        after = Frozen.of(part.live.state_dict().get("state"))
        if not self.step and not before.same(after):  # at a later step they may differ
            self.overruled.append(f"the state of {part.place}")

    def _put_options(self, part: TrainingPart, saved: SavedObject) -> None:
        """Take the options that earlier steps have changed; note where the others differ."""
        own, taken = part.options(), {}
        for name, structure in saved.options.items():
            try:
                value = self._load(part.component, f"{part.place} {name}", structure)
            except _NotSavedError:
                continue
            if name in saved.changed:
                taken[name] = value
            elif name in own and not Frozen.of(own[name]).same(Frozen.of(value)):
                values = f"{_shown(own[name])} here, {_shown(value)} in the state"
                self.notes.append(
                    f"start (--like): {part.place} has {name} {values}; it keeps its own"
                )
        if part.component is not Component.OPTIMIZER:
            if taken:
                part.live.load_state_dict({**part.live.state_dict(), **taken})
            return
        for name, value in taken.items():
            number, _, key = name.partition(".")
            group = part.live.param_groups[int(number)]
            if isinstance(group.get(key), torch.Tensor):  # in place, for whoever else holds it
                group[key].fill_(value)
            else:
                group[key] = value

    def _put_gradients(self) -> None:
        parameters = {each.name: each.tensor for each in parameters_of(self.modules)}
        gradients: Any = {}
        try:
            if self.state.gradients:
                gradients = self._load(Component.GRADIENTS, "gradients", self.state.gradients)
        except _NotSavedError:
            return
        if not isinstance(gradients, dict):
            raise self._damaged(f"in {Component.GRADIENTS}")
        names = self._parameter_names(gradients)
        for name in sorted(parameters.keys() - names.values()):
            if parameters[name].grad is not None and not self.step:
                self.overruled.append(f"the gradient of {name}")
            parameters[name].grad = None
        for old, name in names.items():
            gradient, parameter = gradients[old], parameters.get(name)
            if (
                parameter is None
                or not isinstance(gradient, torch.Tensor)
                or gradient.shape != parameter.shape
            ):
                raise self._damaged(f"in {Component.GRADIENTS}: that of {old!r} fits no parameter")
            gradient = gradient.to(parameter.device, parameter.dtype)
            if not self.step and (
                parameter.grad is None or not Frozen.of(parameter.grad).same(Frozen.of(gradient))
            ):
                self.overruled.append(f"the gradient of {name}")
            parameter.grad = gradient

    def _put_attributes(self) -> None:
        """Set numbers and strings of modules; nothing else of theirs is replaced."""
        for old, new in counterparts(
            self.state.attributes, self.modules.named.keys(), self.renamings
        ).items():
            module = self.modules.named[new]
            for name, value in self.state.attributes[old].items():
                now = vars(module).get(name, getattr(type(module), name, 0))
                if now is not None and not isinstance(now, (int, float, str)):
                    raise self._damaged(f"in {Component.ATTRIBUTES}: {name!r} of {new!r}")
                vars(module)[name] = value

    def _put_random(self, draws: Draws | None) -> None:
        state = self.state
        other_device = self.device.type != state.device
        if state.draws is not None and draws is not None:
            if other_device and state.draws.repeated:
                self._miss(
                    Component.RANDOM,
                    f"the model seeds them again in each step, which only a {state.device} can"
                    " continue",
                )
            try:
                draws.restore(state.draws)
            except ValueError as error:
                raise self._damaged(f"in draws ({error})") from None
        elif self.step and state.draws is not None:
            self._miss(
                Component.RANDOM, "this version of torch does not let random operations be matched"
            )
        elif draws is not None and not any(
            entry.component is Component.RANDOM for entry in state.missing
        ):
            self._miss(
                Component.RANDOM,
                "the state is of a watch, which lets the model draw as it does; a capture draws on"
                " the CPU",
            )
        try:
            table = self._load(Component.RANDOM, "random", state.random)
            version, numbers, gauss = table["python"]
            kind, keys, *position = table.get("numpy", ("", None))
            RandomState(
                {
                    "cpu" if name == "cpu" else str(self.device): value
                    for name, value in table["devices"].items()
                    if name.partition(":")[0] in ("cpu", self.device.type)
                },
                (version, tuple(numbers.tolist()), gauss),
                None if keys is None else (kind, np.array(keys.tolist(), np.uint32), *position),
            ).restore()
        except _NotSavedError:
            return
        except (*_DAMAGE, RuntimeError) as error:
            raise self._damaged(f"in {Component.RANDOM} ({str(error)[:200]})") from None


def _shown(value: Any) -> str:
    few = isinstance(value, torch.Tensor) and value.numel() < 5
    return str(value.tolist() if few else value)[:80]
