"""What a manifest says of its capture that comparisons need: options, code, and feeding."""

from __future__ import annotations

from typing import Any

import msgspec

from accucompare.numbers import Count
from accucompare.selection import RoleGroup


class Unfed(msgspec.Struct, frozen=True):
    """A golden value that a call of a fed capture was not given, or did not pass on, and why.

    ``hides``: whether the call computed something else for that reason alone, so that its rows
    prove nothing; not in older bundles."""

    step: Count
    name: str
    call: Count
    role: str
    path: str = ""
    why: str = ""
    hides: bool = False


class Feed(msgspec.Struct, frozen=True):
    """What a capture was fed with: golden's ``identity`` and path, and the values not fed."""

    identity: str
    not_fed: tuple[Unfed, ...]
    golden: str = ""


class Fallback(msgspec.Struct, frozen=True):
    """The modules of a float64 capture that cannot run in float64, and ran in float32."""

    modules: tuple[str, ...] = ()


class SketchFacts(msgspec.Struct, frozen=True):
    """How sketches were made: the version of the construction, and how many numbers each has."""

    version: Count
    size: Count


class LeftOut(msgspec.Struct, frozen=True):
    """Something in another tool's dump that has no counterpart in a bundle, and why."""

    what: str
    why: str


class DumpFacts(msgspec.Struct, frozen=True):
    """What a tool can record that wrote a dump.

    Attributes:
        roles: the roles that it can record; lacking others is no difference.
        root: whether it records the root module.
        named_gradients: whether it records the gradients of inputs that are passed by name.
        innermost_outputs: whether it records only outputs of modules without children.
        pruned: names of lists of layers from which it left some out.
        partial: whether it holds single values instead of all calls of all layers: a value without
            a partner is then no difference.
        hashes: what it holds in place of values (``norm``, ``hash_tensor``), by the ends of paths;
            empty if it holds values.
    """

    roles: tuple[str, ...]
    root: bool = True
    named_gradients: bool = True
    innermost_outputs: bool = False
    pruned: tuple[str, ...] = ()
    partial: bool = False
    hashes: tuple[str, ...] = ()


class Imported(DumpFacts, frozen=True, kw_only=True):
    """Of what dump a bundle was made; ``left_out``: what that has and the bundle lacks."""

    format: str
    left_out: tuple[LeftOut, ...] = ()


class AsLayout(msgspec.Struct, frozen=True):
    """The layout that one device computed in: the bundle's path, how many ranks it has, and how
    many lie along each dimension of parallelism."""

    bundle: str
    ranks: Count
    mesh: dict[str, Count]


class RegionFacts(msgspec.Struct, frozen=True):
    """What compiling one region took. Regions that share compiled code say it once, the first.

    Attributes:
        graphs: how many graphs were compiled; 0 if there was nothing to compile.
        breaks: why the graph broke: what lies there ran eagerly.
        recompiled: why it was compiled again.
        guards: how many conditions its compiled code holds under.
        seconds: how long compiling took.
    """

    graphs: Count = 0
    breaks: tuple[str, ...] = ()
    recompiled: tuple[str, ...] = ()
    guards: Count = 0
    seconds: float = 0.0


class Compiled(msgspec.Struct, frozen=True):
    """Regions: modules that ran as one, so that no call inside was seen.

    Attributes:
        backend: of torch.compile; ``None`` if they ran eagerly.
        regions: by name.
        eager: modules whose own code ran eagerly since they could not be compiled, and why.
    """

    backend: str | None = None
    regions: dict[str, RegionFacts] = {}
    eager: dict[str, str] = {}

    def hides(self, name: str) -> bool:
        """Whether a module is inside of a region."""
        while name:
            name = name.rpartition(".")[0]
            if name in self.regions:
                return True
        return False


class Left(msgspec.Struct, frozen=True):
    """What the steps have left in the attributes of modules, beside records of tensors.

    Attributes:
        numbers: numbers and texts that are not what they were, by module and place in it.
        dropped: those of ``Options.kept`` that hold no tensor any more.
        beyond: containers with more items than were looked at.
    """

    numbers: dict[str, dict[str, bool | int | float | str]] = {}
    dropped: tuple[str, ...] = ()
    beyond: tuple[str, ...] = ()


class Options(msgspec.Struct, frozen=True):
    """The options of a capture that a comparison decides by. Older bundles lack some.

    Attributes:
        mode: what it keeps of tensors: ``tensors``, ``sketch``, ``stats`` or ``digest``.
        sketch: how its sketches were made, if it holds some.
        level: ``op`` if it holds operators.
        case_steps: how many steps its case was to run, unless they were chosen one by one; not in
            older bundles.
        like: the bundle that it took weights and inputs from.
        emulate: the format that it rounded operands of products to.
        as_layout: the ranks whose sums it made on one device; not in older bundles.
        round_weights: the type that golden's weights were rounded to.
        written: whether it records what is written into buffers and arguments; older versions do
            not.
        kept: the plain attributes in which modules kept tensors; ``None`` in older bundles, which
            do not record those that held nothing at the start.
        left: what else its steps left in attributes; not in older bundles.
        left_grads: whether it holds gradients that no update took; of several ranks, and in older
            bundles, it does not.
        call_grads: whether it holds what single calls add to parameters' gradients, if any.
        round_feed: the type that golden's values were rounded to before they were fed.
        round_results: whether each operator's result was rounded to it, too.
        backward: whether it holds gradients.
        no_backward: whether it was asked to hold none.
        roles: the groups of records that it was asked to hold; ``None`` in older bundles, which
            hold all that ``backward`` implies.
        chosen_steps: the steps that it was asked to hold, of a longer run; ``None`` if all.
        fallback: the modules that ran in another type than the capture's.
        imported: the tool whose dump it was made from.
        replaced: the weights that differed from golden's before golden's were copied in.
        closing: the number after its last step, if it looked at what that left behind. A step of
            this number holds what changed since then. ``None`` if it did not look: in older
            bundles, or because the model ran on without being recorded.
        unplaced_draws: on several ranks, how many random draws were for tensors whose layout is not
            known: each rank drew as if it held the whole. 0 in older bundles.
        script: whether an unedited script was captured instead of a case.
        other_models: the script's models that might have been captured, too; none if it was told.
        run: what all ranks of one run have in common, and no other run; ``""`` for one rank, and in
            older bundles.
        compiled: the regions that it ran as one; not in older bundles.
        eager: whether the model's own compiled code ran eagerly.
        overruled: what else differed from golden's before it was replaced: ``the mode of
            encoder.drop``, ``the gradient of 0.weight``.
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
    as_layout: AsLayout | None = None
    dtype: str | None = None
    round_weights: str | None = None
    written: bool = False
    kept: tuple[str, ...] | None = None
    left: Left | None = None
    left_grads: bool = False
    call_grads: bool = True
    round_feed: str | None = None
    round_results: bool = False
    loss: bool | None = None
    backward: bool | None = None
    no_backward: bool | None = None
    roles: tuple[RoleGroup, ...] | None = None
    chosen_steps: tuple[Count, ...] | None = None
    optimizer: str | None = None
    fallback: Fallback | None = None
    imported: Imported | None = None
    replaced: tuple[str, ...] = ()
    eager: bool = False
    overruled: tuple[str, ...] = ()
    closing: Count | None = None
    unplaced_draws: Count = 0
    script: bool = False
    other_models: tuple[str, ...] = ()
    run: str = ""
    compiled: Compiled | None = None

    def holds(self, group: RoleGroup) -> bool:
        """Whether it was asked to hold a group's records, and there were some."""
        if group is not RoleGroup.FORWARD and not self.backward:
            return False
        return self.roles is None or group in self.roles


class Code(msgspec.Struct, frozen=True):
    """Which code ran, as the manifest's ``model`` says; ``None`` where an older bundle does not
    say.

    Attributes:
        sources: digests of the source files of Python modules, by the modules' names.
        functions_seen: whether all functions that ran are among them.
        class_sources: the Python modules that define the classes of the model's modules.
        configuration: the numbers and strings that each module keeps, by its name.
        classes: the Python modules that define the classes of each name.
    """

    sources: dict[str, str] | None = None
    functions_seen: bool | None = True
    class_sources: tuple[str, ...] | None = None
    configuration: dict[str, dict[str, Any]] | None = None
    classes: dict[str, tuple[str, ...]] | None = None
