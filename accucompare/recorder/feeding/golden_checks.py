"""Whether a golden bundle can feed a capture: its content, its model and its weights."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from accucompare.asked import try_maps
from accucompare.bundle.format import Manifest, Role
from accucompare.bundle.reading import Bundle
from accucompare.compare.pairing import Renaming, SharedNames, counterparts, propose, renamed_model
from accucompare.errors import UsageError
from accucompare.numbers import same_fingerprint
from accucompare.places import Place, place_of
from accucompare.selection import Mode, RoleGroup, Steps
from accucompare.text import with_article


def held_steps(manifest: Manifest) -> Steps | None:
    """The steps that a bundle holds, at least in its series; ``None`` if there are none."""
    return Steps.held(entry.step for entry in manifest.run_steps or manifest.series)


def check_golden(
    golden: Bundle, out: str | Place, steps: Steps | None = None, ranks: int | None = None
) -> None:
    """Refuse a golden that cannot feed a capture. Raises UsageError if the capture would overwrite
    golden, or golden holds no tensors or no inputs, or has other steps or ranks.

    Args:
        out: where the capture writes.
        steps: the capture's steps, if known.
        ranks: how many processes capture, if known.
    """
    own, target = golden.path.resolve(), place_of(out).resolve()
    finished = Steps.held(
        entry.step for manifest in golden.manifests.values() for entry in manifest.run_steps
    )
    if target in (own, *own.parents):
        raise UsageError(
            f"{out}: holds golden, which the fed capture would overwrite; choose another place"
            " (--out, out=)"
        )
    if (mode := golden.manifest.options.mode) in (Mode.SKETCH, Mode.STATS, Mode.DIGEST):
        raise UsageError(
            f"{golden.path}: holds no tensors (mode {mode}) to feed; capture it in mode tensors"
        )
    if not golden.manifest.options.holds(RoleGroup.FORWARD):
        raise UsageError(
            f"{golden.path}: holds no inputs and outputs to feed (--roles); capture it with forward"
            " among its roles (--roles)"
        )
    if finished is None:
        raise UsageError(f"{golden.path}: holds no finished step to feed; capture it again")
    wanted = () if steps is None else steps.numbers
    lacking = next((number for number in wanted if not finished.has(number)), None)
    if lacking is not None:
        held = f"no step {lacking} to feed, of {finished}"
        if finished.chosen is None:
            held = f"only {finished.count} step(s) to feed"
        raise UsageError(
            f"steps {steps} (--steps): {golden.path} holds {held}; give {finished}, or leave it out"
        )
    if ranks is not None and (golden.manifest.ranks != ranks or golden.missing_ranks):
        lost = f" and lacks rank {golden.missing_ranks[0]}" if golden.missing_ranks else ""
        raise UsageError(
            f"{golden.path}: was captured by {golden.manifest.ranks} rank(s){lost}, but this"
            f" capture has {ranks}; a rank is fed from the same rank"
        )


def check_model(
    golden: Bundle,
    rank: int,
    model: dict[str, Any],
    force: bool,
    renamings: Sequence[Renaming] = (),
    like: str | Place | None = None,
    step: int = 0,
    cut: bool = False,
) -> None:
    """Refuse a golden of another model or of other weights. Raises UsageError if golden is refused;
    BundleError if its first step is damaged.

    Args:
        rank: whose records will be fed.
        model: what the manifest will say of the model.
        force: accept another class or other weights.
        like: the bundle that the model's weights come from, if any.
        step: the step whose weights the model has.
        cut: the model is one rank's part of golden's.
    """
    described = golden.manifests[rank].model
    theirs = renamed_model(described, model, renamings)
    new = counterparts(described.get("modules") or (), model["modules"], renamings)
    named = [{name for name in table.get("modules", ()) if name} for table in (theirs, model)]
    if any(named) and not named[0] & named[1]:
        names = " and ".join(f"{min(each)!r}" if each else "nothing" for each in named)
        cure = try_maps(propose(described, model, renamings))
        raise UsageError(
            f"{golden.path}: is of another model: no module has the same name (golden and this"
            f" model have such as {names}){cure}"
        )
    entry = next(entry for number, entry in golden.steps() if number == rank)
    records = golden.step_records(rank, entry)
    if not any(
        new.get(record.name) is not None
        and (record.parent is not None or record.role is Role.OUTPUT)
        for record in records
    ):
        raise UsageError(
            f"{golden.path}: recorded no module that this model has (--only, --skip); capture it"
            " without them"
        )
    if force:
        return
    if step != (described_at := golden.manifests[rank].described_at):
        cure = "start as golden did (start=, --like)"
        if golden.manifest.state is not None:
            cure = f"start from it (start=, --like {golden.path})"
        raise UsageError(
            f"{golden.path}: begins with the weights of step {described_at}, and the model has"
            f" those of step {step}: {cure}"
        )
    # an imported bundle knows no class, and only weights of modules that ran
    imported = golden.manifests[rank].options.imported is not None
    classes = [str(table.get("class")).rpartition(".")[2] for table in (theirs, model)]
    if classes[0] != classes[1] and not imported:
        raise UsageError(
            f"{golden.path}: is of another model, {with_article(classes[0])}; this one is"
            f" {with_article(classes[1])}"
            " (force=True, --force, feeds it all the same)"
        )
    if cut and not _are_of_others(theirs, model):
        return
    shared_names = SharedNames(theirs, model)
    for kind, word in (("parameters", "parameter"), ("buffers", "buffer")):
        ours, of_golden = _tables(theirs, model, kind)
        for name in (*of_golden, *(name for name in ours if name not in of_golden)):
            cure = f"; {_cure(golden, like)}"
            if name not in ours or name not in of_golden:
                if imported or shared_names.same(name, name in of_golden):
                    continue
                if kind == "buffers" and _is_of_code(name, theirs, model):
                    continue
                sides = ("golden", "the model") if name in of_golden else ("the model", "golden")
                which = f"{sides[0]} has it, {sides[1]} lacks it"
                cure = try_maps(propose(described, model, renamings)) or cure
            elif cut and not _is_whole(of_golden[name], ours[name]):
                continue
            elif same_fingerprint(of_golden[name], ours[name]) is False:
                which = "it differs"
            else:
                continue
            raise UsageError(f"{golden.path}: is of other weights: {word} {name!r}: {which}{cure}")


def _is_of_code(name: str, theirs: dict[str, Any], model: dict[str, Any]) -> bool:
    """Whether a buffer is of a module that one of two ways to write the model does without."""
    module = name.rpartition(".")[0]
    return bool(theirs.get("rewritten")) and (
        (module in theirs["modules"]) is not (module in model["modules"])
    )


def _tables(
    theirs: dict[str, Any], model: dict[str, Any], kind: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The model's and golden's parameters or buffers, without those that are computed."""
    computed = {
        name
        for table in (model, theirs)
        for name, entry in table.get(kind, {}).items()
        if entry.get("computed")
    }
    ours, of_golden = (
        {name: entry for name, entry in table.get(kind, {}).items() if name not in computed}
        for table in (model, theirs)
    )
    return ours, of_golden


def _is_whole(golden: dict[str, Any], own: dict[str, Any]) -> bool:
    """Whether a rank holds all of a parameter of golden's."""
    return "shard" not in own and own.get("shape") == golden.get("shape")


def _are_of_others(golden: dict[str, Any], model: dict[str, Any]) -> bool:
    """Whether most of the weights that this rank holds whole are not golden's: one that differs may
    be the fault that is looked for."""
    ours, theirs = _tables(golden, model, "parameters")
    same = [
        same_fingerprint(theirs[name], own)
        for name, own in ours.items()
        if name in theirs and _is_whole(theirs[name], own)
    ]
    return same.count(False) * 2 > len(same)


def _cure(golden: Bundle, like: str | Place | None) -> str:
    if like is not None:
        return (
            f"although they were taken from {like}: the model sets them anew, or golden is of"
            " others (force=True, --force, feeds it all the same)"
        )
    rounded = golden.manifest.capture.get("round_weights")
    if rounded is not None:
        return f"golden's were rounded: give --round-weights {rounded} (or force=True, --force)"
    same = "use the same seed and checkpoint"
    if golden.manifest.state is not None:
        same = f"starting from it (start=, --like {golden.path}) takes them over"
    return f"{same} (force=True, --force, feeds it all the same)"
