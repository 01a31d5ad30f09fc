"""What a manifest says of how its bundle was captured, as far as a comparison decides by it:
options, code, and what was fed."""

from __future__ import annotations

from typing import Any

import msgspec

from accucompare.numbers import Count
from accucompare.selection import RoleGroup


class Unfed(msgspec.Struct, frozen=True):
    """A value of golden that a call of a fed capture was not given, or did not pass on, and why.

    ``hides``: whether the call computed something else for that alone, so that its rows prove
    nothing; not in older bundles."""

    step: Count
    name: str
    call: Count
    role: str
    path: str = ""
    why: str = ""
    hides: bool = False


class Feed(msgspec.Struct, frozen=True):
    """What a capture was fed with: ``identity`` and path of golden, and the values that were not
    fed."""

    identity: str
    not_fed: tuple[Unfed, ...]
    golden: str = ""


class Fallback(msgspec.Struct, frozen=True):
    """The modules of a float64 capture that do not run in float64, and ran in float32."""

    modules: tuple[str, ...] = ()


class SketchFacts(msgspec.Struct, frozen=True):
    """How sketches were made: the version of the construction, and how many numbers each has."""

    version: Count
    size: Count


class LeftOut(msgspec.Struct, frozen=True):
    """Something in a dump of another tool that has no counterpart in a bundle, and why."""

    what: str
    why: str


class Imported(msgspec.Struct, frozen=True):
    """Of a bundle that was made from the dump of another tool: what that tool can record.

    Attributes:
        format: the tool, as messages call it.
        roles: what it can record; that a bundle lacks records of other roles is no difference.
        root: whether it records the root module.
        named_gradients: whether it records the gradients of inputs that are passed by name.
        innermost_outputs: whether it records the outputs of modules without children only.
        pruned: lists of layers, by name, of which it has left some out.
        partial: whether it holds single values, and not all calls of all layers: what has no
            partner then is no difference.
        hashes: what it holds of each tensor in place of values (``norm``, ``hash_tensor``), by the
            ends of paths; none if it holds values.
        left_out: what was in the dump, and is not in the bundle.
    """

    format: str
    roles: tuple[str, ...]
    root: bool = True
    named_gradients: bool = True
    innermost_outputs: bool = False
    pruned: tuple[str, ...] = ()
    partial: bool = False
    hashes: tuple[str, ...] = ()
    left_out: tuple[LeftOut, ...] = ()


class Options(msgspec.Struct, frozen=True):
    """Of the options of a capture those that a comparison decides by; older bundles do not have
    them all.

    Attributes:
        mode: what it keeps of tensors: ``tensors``, ``sketch``, ``stats`` or ``digest``.
        sketch: how its sketches were made, if it holds some.
        level: ``op`` if it holds operators.
        seed, steps, only, skip: as given.
        case_steps: how many steps its case was to run, if those were not chosen one by one; not in
            older bundles.
        like: the bundle that it took weights and inputs from, if it did.
        emulate: the format that it rounded operands of products to, if it did.
        dtype: what it was cast to; ``None`` if it was not.
        round_weights: to which type golden's weights were rounded, if they were.
        written: whether it records what is written into buffers and arguments, as older versions do
            not.
        round_feed: to which type golden's values were rounded before they were fed, if they were.
        loss: whether its case has a loss.
        backward: whether it holds gradients.
        no_backward: whether it was asked to hold none.
        roles: the groups of records that it was asked to hold; ``None`` in older bundles, which
            hold all of what ``backward`` says.
        chosen_steps: the steps that it was asked to hold, of a longer run; ``None`` if all were.
        optimizer: the class of the case's optimizer, if it has one.
        fallback: which modules ran in another type than the capture's.
        imported: of which tool's dump it was made, if it was.
        replaced: the weights that held other values than golden's before those were copied into the
            model.
        script: whether an unedited script was captured, and no case.
        overruled: what else was not golden's before it was replaced: ``the mode of encoder.drop``,
            ``the gradient of 0.weight``.
    """

    mode: str | None = None
    sketch: SketchFacts | None = None
    level: str | None = None
    seed: Any = None
    steps: int | None = None
    case_steps: Count | None = None
    only: tuple[str, ...] | None = None
    skip: tuple[str, ...] | None = None
    like: str | None = None
    emulate: str | None = None
    dtype: str | None = None
    round_weights: str | None = None
    written: bool = False
    round_feed: str | None = None
    loss: bool | None = None
    backward: bool | None = None
    no_backward: bool | None = None
    roles: tuple[RoleGroup, ...] | None = None
    chosen_steps: tuple[Count, ...] | None = None
    optimizer: str | None = None
    fallback: Fallback | None = None
    imported: Imported | None = None
    replaced: tuple[str, ...] = ()
    overruled: tuple[str, ...] = ()
    script: bool = False

    def holds(self, group: RoleGroup) -> bool:
        """Whether it was asked to hold the records of a group, and there were such."""
        if group is not RoleGroup.FORWARD and not self.backward:
            return False
        return self.roles is None or group in self.roles


class Code(msgspec.Struct, frozen=True):
    """Which code ran, as ``model`` has it; ``None`` where an older bundle does not say.

    Attributes:
        sources: digests of the source files of Python modules, by the modules' names.
        functions_seen: whether the functions that ran are all among them.
        class_sources: the Python modules with the classes of the model's modules.
        configuration: the numbers and strings that each module keeps, by its name.
        classes: the Python modules with the classes of each name.
    """

    sources: dict[str, str] | None = None
    functions_seen: bool | None = True
    class_sources: tuple[str, ...] | None = None
    configuration: dict[str, dict[str, Any]] | None = None
    classes: dict[str, tuple[str, ...]] | None = None
