"""A bundle as a notebook shows it: what was captured, where, and how far."""

from __future__ import annotations

from collections.abc import Sequence

from accucompare.bundle.format import Manifest, StepEntry
from accucompare.markup import line, table
from accucompare.places import Place
from accucompare.text import counted

_STEPS_SHOWN = 10
_NOTES_SHOWN = 5
#: The facts shown from the manifest: title, part, name.
_FACTS = (
    ("model", "model", "class"),
    ("case", "environment", "case"),
    ("device", "environment", "device"),
    ("torch", "environment", "torch"),
)


def bundle_html(path: Place, manifest: Manifest, steps: Sequence[StepEntry], complete: bool) -> str:
    """HTML without scripts, every name escaped; ``steps`` are the finished steps of all ranks."""
    what = (
        f"{counted(len(steps), 'step')}, {counted(sum(step.records for step in steps), 'record')}"
    )
    ranks = f" of {manifest.ranks} ranks" if manifest.ranks > 1 else ""
    parts = [line(f"{what}{ranks}{'' if complete else '; incomplete'}", strong=str(path))]
    facts = [(title, _named(getattr(manifest, part).get(name))) for title, part, name in _FACTS]
    parts.append(table(("", ""), [fact for fact in facts if fact[1]]))
    parts.append(
        table(
            ("step", "records"),
            [(step.step, step.records) for step in steps[:_STEPS_SHOWN]] if len(steps) > 1 else [],
        )
    )
    parts += (
        [line(f"… and {len(steps) - _STEPS_SHOWN} more steps")] if len(steps) > _STEPS_SHOWN else []
    )
    parts += [line(note, strong="note:") for note in manifest.notes[:_NOTES_SHOWN]]
    return f"<div>{''.join(parts)}</div>"


def _named(value: object) -> object:
    """A device, given as several words, by its name or else its type."""
    return value.get("name") or value.get("type") if isinstance(value, dict) else value
