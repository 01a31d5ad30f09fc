"""What came of a script: what its processes saw, and what is wrong with that. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accucompare.scripts.handshake import Seen, SeenModel
from accucompare.scripts.plan import Plan
from accucompare.text import counted, printable

#: Longest command line shown, in characters.
_SHOWN = 80


def troubles(plan: Plan, seen: Sequence[Seen], unheard: str | None = None) -> list[str]:
    """Why the request was not fulfilled, one sentence each; ``unheard``: as in ``Ended``."""
    found = [f"{_process(each)}: {each.error}" for each in seen if each.error is not None]
    with_torch = [each for each in seen if each.torch]
    models = [model for each in seen for model in each.models]
    chosen = [each for each in seen if any(model.chosen for model in each.models)]
    if unheard is not None:
        return [*found, unheard]
    if not seen:
        return [
            "no process of the command imported torch, as far as could be seen. `python -I` and"
            " `-E` do not read PYTHONPATH, by which accucompare gets in, and some containers and"
            " launchers do not pass on the environment (docs/scripts.md says what to do)"
        ]
    if not found and not models:
        found.append(
            f"no model was called in {len(with_torch)}"
            f" process{'' if len(with_torch) == 1 else 'es'} that imported torch"
        )
    elif not found and not chosen:
        names = ", ".join(dict.fromkeys(model.name for model in models))
        found.append(
            f"--model {plan.model}: no such model was called; there were {names}"
            if plan.model
            else f"none of {names} was chosen"
        )
    for each in chosen:
        if not each.recorded and each.error is None and not each.notes:
            when = (
                "before the file of --arm appeared"
                if plan.arm
                else f"after {counted(each.steps, 'step')}"
            )
            missing = f"; none of --steps {plan.steps} was among them" if plan.steps else ""
            found.append(f"{_process(each)}: ended {when}{missing}")
        elif not each.ended and (
            plan.chosen is None or len(each.recorded) < sum(1 for _ in plan.chosen.numbers)
        ):
            found.append(
                f"{_process(each)}: was killed after {counted(each.steps, 'step')}, or is still"
                " running"
            )
    return found


def others(seen: Sequence[Seen]) -> list[str]:
    """Other news for a reader: other trained models, evaluations that were left out, notes."""
    found: dict[str, None] = {}
    for each in seen:
        for model in each.models:
            if (
                model.trained_by
                and not (model.chosen or model.part)
                and any(other.chosen for other in each.models)
            ):
                found[
                    f"{model.name} was trained, too ({', '.join(model.trained_by)}); --model"
                    f" {model.name} chooses it"
                ] = None
        if each.evaluations:
            found["calls without gradients, between steps of training, are not recorded"] = None
        found.update(dict.fromkeys(each.notes))
    return list(found)


def listing(seen: Sequence[Seen]) -> Iterator[str]:
    for each in seen:
        rank = "" if each.rank is None else f", rank {each.rank}"
        yield f"{_process(each)}{rank}: torch {each.torch or 'not reached'}"
        if each.error is not None:
            yield f"  {each.error}"
        if not each.models:
            yield "  called no model"
        for model in each.models:
            yield f"  {model.name}: {_described(model)}"


def _described(model: SeenModel) -> str:
    parts = [f"{model.parameters:,} parameters" if model.parameters else "no parameters"]
    if model.trained_by:
        steps = f" in {model.steps} steps" if model.steps else ""
        parts.append(f"trained by {', '.join(model.trained_by)}{steps}")
    else:
        parts.append("trained by no optimizer of torch.optim")
    parts.append(f"called {model.calls} times" if model.calls else "only its parts are called")
    return ", ".join(parts)


def _process(seen: Seen) -> str:
    command = printable(" ".join(seen.argv)) or "python"
    return f"process {seen.pid} ({command[:_SHOWN]}{'…' if len(command) > _SHOWN else ''})"
