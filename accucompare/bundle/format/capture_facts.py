"""What a manifest says of its capture that comparisons need: options, code, and feeding."""

from __future__ import annotations

from typing import Any

import msgspec

from accucompare.numbers import Count
from accucompare.selection import RoleGroup


class Unfed(msgspec.Struct, frozen=True):
    """A golden value that a call of a fed capture was not given, or did not pass on, and why.

    ``hides``: whether the call computed something else for that reason alone, so that its rows
    prove nothing."""

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
    """What a tool can record that wrote a dump."""

    roles: tuple[str, ...]  # the roles that it can record; lacking others is no difference
    root: bool = True  # whether it records the root module
    # whether it records the gradients of inputs that are passed by name
    named_gradients: bool = True
    innermost_outputs: bool = False  # whether it records only outputs of modules without children
    pruned: tuple[str, ...] = ()  # names of lists of layers from which it left some out
    # whether it holds single values instead of all calls of all layers: a value without a partner
    # is then no difference
    partial: bool = False
    # what it holds in place of values (``norm``, ``hash_tensor``), by the ends of paths; empty if
    # it holds values
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
    """What compiling one region took. Regions that share compiled code say it once, the first."""

    graphs: Count = 0  # how many graphs were compiled; 0 if there was nothing to compile
    breaks: tuple[str, ...] = ()  # why the graph broke: what lies there ran eagerly
    recompiled: tuple[str, ...] = ()  # why it was compiled again
    guards: Count = 0  # how many conditions its compiled code holds under
    seconds: float = 0.0  # how long compiling took


class Compiled(msgspec.Struct, frozen=True):
    """Regions: modules that ran as one, so that no call inside was seen."""

    backend: str | None = None  # of torch.compile; ``None`` if they ran eagerly
    regions: dict[str, RegionFacts] = {}  # by name
    # modules whose own code ran eagerly since they could not be compiled, and why
    eager: dict[str, str] = {}

    def hides(self, name: str) -> bool:
        """Whether a module is inside of a region."""
        while name:
            name = name.rpartition(".")[0]
            if name in self.regions:
                return True
        return False


#: A number or a text among a module's attributes.
PlainValue = bool | int | float | str


class Left(msgspec.Struct, frozen=True):
    """What the steps have left in the attributes of modules, beside records of tensors."""

    # numbers and texts that are not what they were, by module and place in it: before (None if not
    # there) and after
    numbers: dict[str, dict[str, tuple[PlainValue | None, PlainValue | None]]] = {}
    unchanged: dict[str, dict[str, PlainValue]] = {}  # private numbers, and those in containers
    held: dict[str, str] = {}  # by attributes that are no buffers, at the start: types and digests
    dropped: tuple[str, ...] = ()  # those of ``Options.kept`` that hold no tensor any more
    beyond: tuple[str, ...] = ()  # containers with more items than were looked at


class Options(msgspec.Struct, frozen=True):
    """The options of a capture that a comparison decides by; a dump's bundle lacks some."""

    # what it keeps of tensors: ``tensors``, ``sketch``, ``stats`` or ``digest``
    mode: str | None = None
    sketch: SketchFacts | None = None  # how its sketches were made, if it holds some
    level: str | None = None  # ``op`` if it holds operators
    seed: Any = None
    steps: int | None = None
    # how many steps its case was to run, unless they were chosen one by one
    case_steps: Count | None = None
    only: tuple[str, ...] | None = None
    skip: tuple[str, ...] | None = None
    like: str | None = None  # the bundle that it took weights and inputs from
    emulate: str | None = None  # the format that it rounded operands of products to
    as_layout: AsLayout | None = None  # the ranks whose sums it made on one device
    dtype: str | None = None
    round_weights: str | None = None  # the type that golden's weights were rounded to
    written: bool = False  # whether it records what is written into buffers and arguments
    # the plain attributes in which modules kept tensors; ``None`` if none were looked at
    kept: tuple[str, ...] | None = None
    left: Left | None = None  # what else its steps left in attributes
    left_grads: bool = False  # whether it holds gradients that no update took; not of several ranks
    # whether it holds what single calls add to parameters' gradients, if any
    call_grads: bool = True
    # the type that golden's values were rounded to before they were fed
    round_feed: str | None = None
    round_results: bool = False  # whether each operator's result was rounded to it, too
    loss: bool | None = None
    backward: bool | None = None  # whether it holds gradients
    no_backward: bool | None = None  # whether it was asked to hold none
    # the groups of records that it was asked to hold; ``None``: all that ``backward`` implies
    roles: tuple[RoleGroup, ...] | None = None
    # the steps that it was asked to hold, of a longer run; ``None`` if all
    chosen_steps: tuple[Count, ...] | None = None
    optimizer: str | None = None
    fallback: Fallback | None = None  # the modules that ran in another type than the capture's
    imported: Imported | None = None  # the tool whose dump it was made from
    # the weights that differed from golden's before golden's were copied in
    replaced: tuple[str, ...] = ()
    eager: bool = False  # whether the model's own compiled code ran eagerly
    # what else differed from golden's before it was replaced: ``the mode of encoder.drop``, ``the
    # gradient of 0.weight``
    overruled: tuple[str, ...] = ()
    # the number after its last step, if it looked at what that left behind. A step of this number
    # holds what changed since then. ``None`` if the model ran on without being recorded.
    closing: Count | None = None
    # on several ranks, how many random draws were for tensors whose layout is not known: each rank
    # drew as if it held the whole.
    unplaced_draws: Count = 0
    script: bool = False  # whether an unedited script was captured instead of a case
    # the script's models that might have been captured, too; none if it was told
    other_models: tuple[str, ...] = ()
    # what all ranks of one run have in common, and no other run; ``""`` for one rank
    run: str = ""
    compiled: Compiled | None = None  # the regions that it ran as one

    def holds(self, group: RoleGroup) -> bool:
        """Whether it was asked to hold a group's records, and there were some."""
        if group is not RoleGroup.FORWARD and not self.backward:
            return False
        return self.roles is None or group in self.roles


class Code(msgspec.Struct, frozen=True):
    """Which code ran, as the manifest's ``model`` says; ``None`` where a dump does not."""

    # digests of the source files of Python modules, by the modules' names
    sources: dict[str, str] | None = None
    functions_seen: bool | None = True  # whether all functions that ran are among them
    # the Python modules that define the classes of the model's modules
    class_sources: tuple[str, ...] | None = None
    # the numbers and strings that each module keeps, by its name
    configuration: dict[str, dict[str, Any]] | None = None
    # the Python modules that define the classes of each name
    classes: dict[str, tuple[str, ...]] | None = None
