"""Whether a baseline ran golden's code. Else its distance may be the candidate's bug."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from accucompare.bundle.format import Left, Manifest
from accucompare.compare.pairing import Renaming, rename
from accucompare.launched import is_of_launcher


@dataclass(frozen=True)
class OtherCode:
    """What shows that two captures ran different code, or that this is unknown."""

    # packages of another version: name, golden's version, the other's
    versions: tuple[tuple[str, str, str], ...] = ()
    edited: tuple[str, ...] = ()  # Python modules with different source files
    # Python modules with golden's module classes that the other did not load
    absent: tuple[str, ...] = ()
    # module attributes that differ: module, attribute, golden's value, the other's
    configured: tuple[tuple[str, str, Any, Any], ...] = ()
    # whether a manifest lacks some of what ran, as another profiler was active
    unrecorded: bool = False

    def __bool__(self) -> bool:
        return any((self.versions, self.edited, self.absent, self.configured, self.unrecorded))


def other_code(golden: Manifest, other: Manifest) -> OtherCode:
    """The differences between the code that two captures ran; false if there are none.

    Compared are the packages of golden's functions and module classes, by public version: builds of
    torch for different devices (``2.13.0+cpu``) are one version. A file that the other capture did
    not run counts only if it holds the class of one of golden's modules."""
    codes = golden.code, other.code
    ours, theirs = (code.sources for code in codes)
    if ours is None or theirs is None or not all(code.functions_seen for code in codes):
        return OtherCode(unrecorded=True)
    files = set(theirs.values())  # a file may have been moved
    return OtherCode(
        versions=tuple(_versions(golden, other, {name.partition(".")[0] for name in ours})),
        edited=tuple(name for name in ours if theirs.get(name, ours[name]) != ours[name]),
        absent=tuple(
            name
            for name in codes[0].class_sources or ()
            if name in ours and not (name in theirs or ours[name] in files)
        ),
        configured=tuple(other_configuration(golden, other)),
    )


def other_optimizer(golden: Manifest, other: Manifest) -> OtherCode:
    """The same for the case's optimizer: its class, file, and package version if that is not torch.

    Another release of torch is not another optimizer, just as it is not another layer."""
    classes = [manifest.options.optimizer or "" for manifest in (golden, other)]
    names = {name.rpartition(".")[0].partition(" of ")[0] for name in classes}
    code = other_code(golden, other)
    packages = {name.partition(".")[0] for name in names} - {"", "torch"}
    ours, theirs = (name.rpartition(".")[2] for name in classes)
    return OtherCode(
        versions=tuple(entry for entry in code.versions if entry[0] in packages),
        edited=tuple(
            name for name in code.edited if name in names and not name.startswith("torch.")
        ),
        configured=(
            (("optimizer", "class", ours, theirs),) if ours and theirs and ours != theirs else ()
        ),
    )


@dataclass(frozen=True)
class Surrounding:
    """An environment variable or shared library that may change what the code computes."""

    name: str
    # golden, other: the variable's two values; ``None`` if not set, not read, or a library
    golden: str | None = None
    other: str | None = None
    library: bool = False  # whether it is a library, loaded in two different builds


def other_surroundings(golden: Manifest, other: Manifest) -> list[Surrounding]:
    """Environment variables and libraries that differ; none if a capture does not tell."""
    ours, theirs = golden.variables, other.variables
    if ours is None or theirs is None:
        return []
    variables = [
        Surrounding(name, ours.get(name), theirs.get(name))
        for name in sorted(ours.keys() | theirs.keys())
        if not is_of_launcher(name)
    ]
    libraries = ((name, each, other.libraries.get(name)) for name, each in golden.libraries.items())
    built = [
        Surrounding(name, library=True)
        for name, each, built in libraries
        if built is not None and built != each
    ]
    return [each for each in variables if each.golden != each.other] + built


def other_configuration(
    golden: Manifest, other: Manifest, renamings: Sequence[Renaming] = ()
) -> Iterable[tuple[str, str, Any, Any]]:
    """Attributes that differ in two captures: module, attribute, golden's and the other's value."""
    ours, theirs = ((manifest.code.configuration or {}) for manifest in (golden, other))
    sizes = _other_sizes(golden, other)
    for name, values in ours.items():
        others = theirs.get(rename(name, renamings) or name, {})
        yield from (
            (name, key, value, others[key])
            for key, value in values.items()
            if key in others
            and repr(others[key]) != repr(value)
            and not key.startswith(_OF_INPUT)
            and not (sizes and (key in _OF_LAYOUT or _is_share(value, others[key], sizes)))
        )


def left_otherwise(
    golden: Manifest, other: Manifest, renamings: Sequence[Renaming] = (), limit: float = 0.0
) -> Iterable[tuple[str, str, Any, Any]]:
    """The same of attributes that the steps have changed, as they are at the end. Ranks count their
    own micro-batches, so nothing is said of them.

    Two that began otherwise, as in a model that has run before, differ if their changes do.
    ``limit``: of the relative error of fractions.
    """
    pair = _both_left(golden, other)
    if pair is None or _other_sizes(golden, other):
        return
    ours, theirs = pair
    classes = [(manifest.model.get("modules") or {}) for manifest in (golden, other)]
    for name in classes[0]:
        partner = rename(name, renamings) or name
        if classes[0][name] != classes[1].get(partner):
            continue
        for key in dict.fromkeys([*ours.numbers.get(name, ()), *theirs.numbers.get(partner, ())]):
            one, two = _begun_and_left(golden, name, key), _begun_and_left(other, partner, key)
            if None not in (one[1], two[1]) and not _agree(one, two, limit):
                yield name, key, one[1], two[1]


def held_otherwise(
    golden: Manifest, other: Manifest, renamings: Sequence[Renaming] = ()
) -> Iterable[tuple[str, bool]]:
    """The places in which both have kept a tensor, and only one still holds it; whether golden."""
    pair = _both_left(golden, other)
    for name in (golden.options.kept or ()) if pair is not None else ():
        partner = rename(name, renamings) or name
        if pair is not None and partner in (other.options.kept or ()):
            ours, theirs = name in pair[0].dropped, partner in pair[1].dropped
            if ours is not theirs:
                yield name, not ours


def _both_left(golden: Manifest, other: Manifest) -> tuple[Left, Left] | None:
    """What each side left in attributes after the same step; ``None`` if that is not known."""
    ours, theirs = golden.options, other.options
    if ours.left is None or theirs.left is None or ours.closing is None:
        return None
    return (ours.left, theirs.left) if ours.closing == theirs.closing else None


def _begun_and_left(manifest: Manifest, name: str, key: str) -> tuple[Any, Any]:
    """An attribute's value before and after the steps; ``None`` where it is not known."""
    left = manifest.options.left
    if left is not None and key in left.numbers.get(name, {}):
        return left.numbers[name][key]
    if key == "training":
        trains = manifest.model.get(key) is not (name in (manifest.model.get("other_mode") or ()))
        return trains, trains
    held = {} if left is None else left.unchanged.get(name, {})
    value = held.get(key, (manifest.code.configuration or {}).get(name, {}).get(key))
    return value, value


def _agree(golden: tuple[Any, Any], other: tuple[Any, Any], limit: float) -> bool:
    kinds = {type(golden[1]), type(other[1])}
    if float in kinds and kinds <= {float, int}:
        alike = math.isclose(golden[1], other[1], rel_tol=limit)
    else:
        alike = repr(golden[1]) == repr(other[1])
    if alike or repr(golden[0]) == repr(other[0]):
        return alike
    if kinds != {int}:
        return True  # it began otherwise
    ours, theirs = (after - (before or 0) for before, after in (golden, other))
    return bool(ours == theirs)


def _other_sizes(golden: Manifest, other: Manifest) -> set[int]:
    """The sizes of the meshes of two captures, if they are not the same."""
    sizes = {size for manifest in (golden, other) for _, size in (manifest.mesh or {}).values()}
    return set() if golden.mesh == other.mesh else sizes - {1}


#: Attributes that say of what type a module's input is.
_OF_INPUT = "input_in_"
#: Attributes of Megatron's that say how a layer talks to other ranks.
_OF_LAYOUT = (
    "allreduce_dgrad",
    "expert_parallel",
    "explicit_expert_comm",
    "reduce_scatter_embeddings",
    "sequence_parallel",
)


def _is_share(ours: Any, theirs: Any, sizes: Iterable[int]) -> bool:
    """Whether of two counts one is a rank's share of the other, or the number of ranks."""
    low, high = sorted(map(abs, (ours, theirs))) if type(ours) is type(theirs) is int else (0, 0)
    return any(low and high % low == 0 and size % (high // low) == 0 for size in sizes)


def _versions(
    golden: Manifest, other: Manifest, packages: Iterable[str]
) -> Iterable[tuple[str, str, str]]:
    public = (
        {name: str(version).partition("+")[0] for name, version in manifest.versions.items()}
        for manifest in (golden, other)
    )
    ours, theirs = public
    for package in sorted(packages):
        if package in ours and package in theirs and ours[package] != theirs[package]:
            yield package, ours[package], theirs[package]
