"""What a capture starts from: the options, and what ``like`` and ``feed`` add to them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import msgspec
import torch
from torch import nn

from accucompare.bundle.format import Manifest, Started, display_name
from accucompare.bundle.reading import Bundle, open_bundle
from accucompare.compare.fusions import Fusions
from accucompare.compare.layouts import GoldenParts, check_layout
from accucompare.compare.pairing import Renaming, counterparts
from accucompare.compare.tokens import pairs_by_token
from accucompare.errors import UsageError
from accucompare.live.around import ShardOf, describe_model, device_of
from accucompare.live.layouts import Layouts
from accucompare.live.modules import Modules, name_modules
from accucompare.live.operators import Draws
from accucompare.numbers import SKETCH_VERSION
from accucompare.places import Place
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.feeding import Feeding, check_golden, check_model, held_steps
from accucompare.recorder.session.renaming import maps_in_force, selection_of
from accucompare.recorder.state import CallArguments, Continuation, Training, restore_weights
from accucompare.selection import Level, Mode, RoleGroup, Selection, Steps
from accucompare.text import first_few, with_article


@dataclass(frozen=True)
class Within:
    """What a capture is part of: a case, or a script that runs anyway."""

    case: str | None = None  # the manifest's name for what is run
    # saved with the state: positional and keyword arguments of each step
    inputs: list[CallArguments] | None = None
    # options by which the model was made, for the manifest
    made: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()  # more sentences for the manifest
    begun: int = 0  # the number of the first step, if the capture starts from no state
    # whether random operations draw from the CPU under the seed; else they draw as without a
    # capture
    matched: bool = True
    # the directory is ready for all ranks, so they need not wait for each other
    prepared: bool = False


ALONE = Within()


@dataclass(frozen=True)
class Subject:
    """The model that is captured, as it was given, and this process among the ranks.

    ``layouts``: of the model's tensors, if there are several ranks.
    """

    model: nn.Module
    modules: Modules
    training: Training
    device: torch.device
    rank: int = 0
    ranks: int = 1
    layouts: Layouts | None = None

    @classmethod
    def of(cls, model: nn.Module, training: Training, device: torch.device | None) -> Subject:
        """Look at a model; ``device`` defaults to that of its first parameter or buffer. Raises
        UsageError if it is not a module, or an optimizer holds none of its parameters."""
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"model must be a torch.nn.Module, but is {with_article(type(model).__name__)}"
            )
        modules = name_modules(model)
        training.check(modules)
        device = device or device_of(model)
        return cls(model, modules, training, device, *rank_and_ranks(), Layouts.of_model(modules))

    @property
    def shard_of(self) -> ShardOf | None:
        """What gives the layout of a parameter or buffer, if there are several ranks."""
        return None if self.layouts is None else self.layouts.of_weight

    @property
    def notes(self) -> list[str]:
        """Sentences for the manifest, on layouts that cannot be known."""
        return [] if self.layouts is None else self.layouts.notes

    @property
    def mesh(self) -> dict[str, tuple[int, int]]:
        """The manifest's mesh, as far as it is known now."""
        return {} if self.layouts is None else self.layouts.dimensions.places


def rank_and_ranks() -> tuple[int, int]:
    """This process's rank and the number of ranks; (0, 1) unless torch.distributed is in use."""
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


@dataclass
class Start:
    """What a capture starts from: what was asked, and what ``like`` and ``feed`` add to it."""

    # seed, steps, selection, groups: in force
    seed: int | None
    steps: Steps | None
    selection: Selection
    groups: tuple[RoleGroup, ...]
    renamings: list[Renaming]  # of the layers of ``like`` and ``feed``
    notes: list[str]  # sentences for the manifest
    replaced: list[str] = field(default_factory=list)  # the weights that ``like`` changed
    # what else ``like`` changed: ``the mode of encoder.drop``
    overruled: list[str] = field(default_factory=list)
    model: dict[str, Any] = field(default_factory=dict)  # described, with its current weights
    # golden, feed: set in a fed capture
    golden: Bundle | None = None
    feed: Feeding | None = None
    without_gradients: bool = False  # gradients are off because golden has none
    continuation: Continuation | None = None  # the training state of ``like``, if it has one
    begun: int = 0  # the number of the first step, without such a state

    @classmethod
    def of(
        cls,
        subject: Subject,
        out: str | Place,
        options: CaptureOptions,
        stack: contextlib.ExitStack,
        within: Within = ALONE,
    ) -> Start:
        """Restore the weights of ``like`` and open the golden of ``feed``, which the stack closes.
        Raises UsageError if one of them does not fit the model or the options."""
        modules = subject.modules
        renamings, notes = maps_in_force(options, modules) if options.map else ([], [])
        start = cls(
            options.seed,
            options.asked,
            options.selection,
            options.groups,
            renamings,
            notes,
            begun=within.begun,
        )
        if options.like is not None:
            start._take_state(stack.enter_context(open_bundle(options.like)), options, subject)
        start.model = describe_model(modules, subject.shard_of)
        if options.feed is not None:
            start.golden = stack.enter_context(open_bundle(options.feed))
            layout = _layout_of(options, start.golden, subject, stack)
            check_golden(start.golden, out, start.steps, subject.ranks if layout is None else None)
            start.feed = start._fed_by(start.golden, options, subject, layout)
            if not start.feed.backward:
                stack.enter_context(torch.set_grad_enabled(not start.without_gradients))
        if options.level == Level.OP and not start.selection.only:
            raise UsageError(
                "level op (--level): name the modules whose operators are to be recorded (only=,"
                " --only NAME); those of all would be too many"
            )
        start.seed = (start.seed or 0) if within.matched else None
        _check_selection(start.selection, modules)
        return start

    def _take_state(self, source: Bundle, options: CaptureOptions, subject: Subject) -> None:
        """Take over what ``like`` has saved: weights, modes, the training's state."""
        modules = subject.modules
        self.continuation = Continuation.of(
            source, subject.rank, subject.training, modules, self.renamings, subject.device
        )
        self.steps = starting(options.asked, self.step, options.like)
        self._take_weights(source, modules)
        self.overruled += [
            f"the mode of {display_name(name)}"
            for name in _set_mode(subject.model, modules, source.manifest.model, self.renamings)
        ]
        self._take_over(source.manifest, modules)

    def _fed_by(
        self, golden: Bundle, options: CaptureOptions, subject: Subject, layout: Bundle | None
    ) -> Feeding:
        """What golden feeds, out of what it holds. Its seed, steps, selection are the defaults."""
        rank, modules = 0 if layout is not None else subject.rank, subject.modules
        parts = (
            None
            if layout is None
            else GoldenParts(golden, layout, subject.rank, self.renamings, pairs_by_token)
        )
        fusions = None
        if parts is None and golden.manifest.ranks == 1:
            fusions = Fusions(golden.manifest.model, self.model, self.renamings)
        fed_from = fusions.golden_like(golden, self.model) if fusions else golden
        if parts is None or not parts.are_under_other_names:
            check_model(
                fed_from,
                rank,
                self.model,
                options.force,
                self.renamings,
                options.like,
                self.step,
                layout is not None,
            )
        self._take_over(golden.manifest, modules)
        self.steps = self.steps or held_steps(golden.manifests[rank])
        feed = Feeding(fed_from, rank, modules, self.renamings, options.round_feed, parts)
        if fusions:
            feed.rewritten = functools.partial(
                fusions.golden_records, golden=golden.manifest.model, own=self.model
            )
        feed.backward = feed.backward and options.trains
        feed.updates = feed.updates and feed.backward
        held = golden.manifest.options
        if options.roles is None and held.roles is not None:
            self.groups = tuple(group for group in self.groups if group in held.roles)
        if not feed.backward:
            if held.backward and options.trains:
                self.notes.append(
                    "nothing of the backward and the update was run: golden holds no gradients"
                    " of layers to feed (--roles)"
                )
                forward = (RoleGroup.FORWARD, RoleGroup.SERIES)
                self.groups = tuple(group for group in self.groups if group in forward)
            self.without_gradients = not _differentiates(golden)
        if options.level == Level.OP and golden.manifest.capture.get("level") != Level.OP:
            chosen = f"--only {' --only '.join(self.selection.only) or 'NAME'}"
            raise UsageError(
                f"{options.feed}: holds no operators; capture it with --level op {chosen}"
            )
        return feed

    def _take_weights(self, source: Bundle, modules: Modules) -> None:
        """Copy the weights of ``like``, and note which held other values."""
        changed = () if self.continuation is None else self.continuation.state.buffers
        notes, replaced = restore_weights(source, modules, self.renamings, changed)
        self.notes += notes
        if replaced and not self.step:  # at a later step, the model's own are those of step 0
            self.replaced = replaced
            self.notes.append(
                f"start (--like): {len(replaced)} of the model's weights held other values before:"
                f" {first_few(replaced)}"
            )

    def _take_over(self, manifest: Manifest, modules: Modules) -> None:
        """Take the seed and selection of a bundle, where none was given."""
        self.seed = manifest.capture.get("seed") if self.seed is None else self.seed
        if not (self.selection.only or self.selection.skip):
            self.selection = selection_of(manifest, modules, self.renamings)

    def restore_training(self, manifest: Manifest, draws: Draws | None) -> None:
        """Restore the training state of ``like``; note gaps. Raises as ``Continuation.apply``."""
        if manifest.capture["like"] is None:
            return
        if self.continuation is not None:
            self.continuation.apply(draws, self.seed)
            self.notes += self.continuation.notes
            manifest.capture["overruled"] = self.overruled = [
                *self.overruled,
                *self.continuation.overruled,
            ]
        if self.overruled:
            self.notes.append(
                f"start (--like): {len(self.overruled)} of the case's own were not golden's before:"
                f" {', '.join(self.overruled[:3])}"
            )
        manifest.capture["started"] = msgspec.to_builtins(
            Started(0) if self.continuation is None else self.continuation.started
        )

    @property
    def first_recorded(self) -> int:
        """The first step that is recorded. The state is saved before it."""
        return self.step if self.steps is None else next(iter(self.steps.numbers))

    @property
    def step(self) -> int:
        """The first step: that of the state, or 0."""
        return self.begun if self.continuation is None else self.continuation.step

    @property
    def sources(self) -> Iterable[str]:
        """Python modules that golden ran. Cached functions do not run again."""
        return () if self.golden is None else self.golden.manifest.model.get("sources") or ()

    def manifest(self, options: CaptureOptions, ranks: int) -> Manifest:
        """The manifest when the capture begins."""
        fed = None
        if self.golden is not None and self.feed is not None:
            fed = {"golden": str(options.feed), "identity": self.golden.identity(), "not_fed": []}
        return Manifest(
            ranks=ranks,
            capture={
                "mode": Mode(options.mode).value,
                **(
                    {"sketch": {"version": SKETCH_VERSION, "size": options.sketch_size}}
                    if options.mode == Mode.SKETCH
                    else {}
                ),
                "level": Level(options.level).value,
                "seed": self.seed,
                "steps": (
                    None
                    if self.steps is None or self.steps.chosen is not None
                    else self.steps.count - self.steps.first
                ),
                "chosen_steps": (
                    None
                    if self.steps is None or self.steps.chosen is None
                    else list(self.steps.chosen)
                ),
                "roles": [group.value for group in self.groups],
                "only": list(self.selection.only),
                "skip": list(self.selection.skip),
                "like": options.like and str(options.like),
                "replaced": self.replaced,
                "overruled": self.overruled,
                "started": None,
                "training_state": None,
                "map": [renaming.text for renaming in self.renamings],
                "inputs": None,
                "feed": fed,
                "round_feed": options.round_feed and str(options.round_feed),
                "round_results": options.round_results,
                "grad": None,
                "backward": False,
                "no_backward": not options.trains,
                "written": True,
                "left_grads": ranks == 1,
                "dtype": None,
                "round_weights": None,
                **({"begun": self.begun} if self.begun else {}),
            },
            model={**self.model, "not_called": [], "functions_seen": True, "differentiates": False},
            notes=self.notes,
        )


def _layout_of(
    options: CaptureOptions, golden: Bundle, subject: Subject, stack: contextlib.ExitStack
) -> Bundle | None:
    """The bundle that tells how the ranks of this capture share golden, which is of one device.
    Raises UsageError if it cannot tell, or is needed and was not named."""
    if golden.manifest.ranks > 1 or subject.ranks == 1:
        if options.layout_of is not None:
            raise UsageError(
                f"--layout-of: golden {golden.path} is of {golden.manifest.ranks} rank(s), and this"
                f" capture has {subject.ranks}; it is for a golden of one device and a capture of"
                " several ranks: leave it out"
            )
        return None
    if options.layout_of is None:
        raise UsageError(
            f"{golden.path}: was captured by 1 rank, but this capture has {subject.ranks}; name a"
            " free-running capture of these ranks, which tells each one's part (--layout-of BUNDLE)"
        )
    if options.level == Level.OP:
        raise UsageError(
            "--layout-of: operators of several ranks cannot be fed from one device; leave --level"
            " op out"
        )
    layout = stack.enter_context(open_bundle(options.layout_of))
    check_layout(golden, layout, subject.ranks)
    return layout


@overload
def starting(steps: Steps, first: int, like: str | Place | None) -> Steps: ...


@overload
def starting(steps: Steps | None, first: int, like: str | Place | None) -> Steps | None: ...


def starting(steps: Steps | None, first: int, like: str | Place | None) -> Steps | None:
    """The steps of a run that begins with the state of ``like``: a count from there, or a list.
    Raises UsageError if the list has an earlier step."""
    if steps is None or not first:
        return steps
    if steps.chosen is None:
        return steps if steps.first else Steps(first + steps.count, first=first)
    if steps.chosen[0] < first:
        raise UsageError(
            f"steps {steps} (--steps): the state of {like} is that before step {first}; choose"
            " steps from"
            f" {first} on"
        )
    return steps


def _differentiates(golden: Bundle) -> bool:
    """Whether golden's forward asked for gradients that it did not turn on: force fields, PINNs."""
    return bool(golden.manifest.capture.get("grad") and golden.manifest.model.get("differentiates"))


def _check_selection(selection: Selection, modules: Modules) -> None:
    if not any(selection.allows(name) for name in modules.named):
        options = {"--only": selection.only, "--skip": selection.skip}
        globs = " ".join(f"{name} {glob}" for name, globs in options.items() for glob in globs)
        names = [name for name in modules.named if name] or [display_name("")]
        more = f", … ({len(names)} in all)" if len(names) > 5 else ""
        raise UsageError(
            f"the selection ({globs}) leaves no module to record; the model has"
            f" {', '.join(names[:5])}{more}"
        )


def _set_mode(
    model: nn.Module, modules: Modules, saved: dict[str, Any], renamings: Sequence[Renaming]
) -> list[str]:
    """Set each module's train or eval mode as saved. Returns the names of those that changed."""
    before = {name: getattr(module, "training", None) for name, module in modules.named.items()}
    model.train(bool(saved.get("training")))
    for name in counterparts(
        saved.get("other_mode") or (), modules.named.keys(), renamings
    ).values():
        modules.named[name].training = not saved.get("training")
    return [
        name
        for name, module in modules.named.items()
        if getattr(module, "training", None) is not before[name]
    ]
