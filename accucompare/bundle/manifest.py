"""``manifest.json``: what a bundle is, how it was made, and which steps it holds.

Rank 0 writes ``manifest.json`` in the bundle's directory; rank r > 0 of a distributed capture writes ``rank<r>/manifest.json``.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import accucompare
from accucompare.errors import BundleError

FORMAT = "accucompare bundle"
FORMAT_VERSION = 1
_SIZE_LIMIT = 256 << 20  # a manifest lists a few lines per parameter; more than this is no manifest


@dataclass(frozen=True)
class StepEntry:
    """One finished step of one rank.

    Attributes:
        step: its number, from 0.
        records: how many lines ``stepN.jsonl`` has.
        digest: of ``stepN.jsonl``'s bytes.
        partial: whether the capture was stopped inside it.
    """

    step: int
    records: int
    digest: str
    partial: bool = False


@dataclass
class Manifest:
    """What ``manifest.json`` holds.

    Attributes:
        complete: whether the capture ran to its end and every record could be kept.
        stopped: where and why it ended early: ``{"step", "module", "error"}``; ``None`` if it did not.
        ranks: how many processes captured together.
        steps: this rank's finished steps.
        state: digest and number of records of the state that ``--like`` starts from; ``None`` if not saved.
        capture: options of the capture: seed, only, skip, steps.
        environment: where it ran: device, versions, flags, command line, git commit, time.
        model: class, mode, modules, modules never called, parameters and buffers with their digests.
        inputs: per step, the root module's inputs with their digests.
        notes: what went differently than a reader would assume, one sentence each.
    """

    complete: bool = False
    stopped: dict[str, Any] | None = None
    ranks: int = 1
    steps: list[StepEntry] = field(default_factory=list)
    state: dict[str, Any] | None = None
    capture: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Replace the file whole, so that a reader never sees half of it."""
        content = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "accucompare": accucompare.__version__,
            **asdict(self),
        }
        temporary = path.with_name(path.name + ".part")
        temporary.write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str), encoding="utf-8")
        os.replace(temporary, path)

    @classmethod
    def read(cls, path: Path) -> Manifest:
        """Read and check a manifest.

        Raises:
            BundleError: if it is missing, no manifest, damaged, or of a newer format.
        """
        try:
            if path.stat().st_size > _SIZE_LIMIT:
                raise BundleError(f"{path}: too large for a manifest; refused")
            content = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise BundleError(f"{path.parent}: not a bundle (it has no {path.name})") from None
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{path}: damaged; it is not valid JSON ({error})") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise BundleError(f"{path}: not the manifest of an accucompare bundle")
        version = content.get("format_version")
        if version != FORMAT_VERSION:
            raise BundleError(
                f"{path}: bundle format version {version!r}, but this accucompare {accucompare.__version__} reads version "
                f"{FORMAT_VERSION}; install the accucompare that wrote it ({content.get('accucompare', 'unknown')}) or a newer one"
            )
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        try:
            known["steps"] = [StepEntry(**entry) for entry in known.get("steps", [])]
            manifest = cls(**known)
            manifest.check()
        except (TypeError, ValueError) as error:
            raise BundleError(f"{path}: damaged; a field is malformed ({error})") from None
        return manifest

    def check(self) -> None:
        """Raise TypeError or ValueError if a field that readers rely on is of the wrong type."""
        for name, kind in (("complete", bool), ("ranks", int), ("notes", list)):
            if not isinstance(getattr(self, name), kind):
                raise TypeError(f"{name} is {getattr(self, name)!r}")
        for name in ("capture", "environment", "model", "inputs"):
            if not isinstance(getattr(self, name), dict):
                raise TypeError(f"{name} is {getattr(self, name)!r}")
        if not 1 <= self.ranks <= 1_000_000:
            raise ValueError(f"ranks is {self.ranks}")
        for entry in self.steps:
            if type(entry.step) is not int or type(entry.records) is not int or entry.step < 0:
                raise TypeError(f"steps holds {entry!r}")
