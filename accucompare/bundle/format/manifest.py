"""``manifest.json``: what a bundle is, how it was made, and which steps it holds.

Rank 0 writes it in the bundle's directory, rank r > 0 in ``rank<r>/``."""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import xxhash

from accucompare.bundle.format.capture_facts import Code, Feed, Options
from accucompare.bundle.format.saved_training import SavedAndStarted
from accucompare.errors import BundleError
from accucompare.files import is_stream, replace_whole
from accucompare.numbers import Count
from accucompare.places import Place, ServerAnswer, Url, is_file
from accucompare.selection import RoleGroup, Steps
from accucompare.text import first_few
from accucompare.version import __version__

FORMAT = "accucompare bundle"
#: The format that this version writes and reads. Older ones lack what an all-clear rests on, such
#: as what calls write into buffers.
FORMAT_VERSION = 5
_SIZE_LIMIT = 64 << 20  # a manifest has a few lines per parameter; a longer file is no manifest
_MOST_RANKS = 100_000
_AT_ONCE = 32  # manifests requested together
#: The subdirectory where a bundle waits that is being overwritten.
PREVIOUS = ".previous"

#: The subdirectory of a golden bundle that holds its baselines, one bundle per precision.
BASELINES = "baselines"
#: The subdirectories of a baseline's bundle with the runs of golden's own code in golden's
#: precision, fed with golden's values, and with those values rounded to the candidate's type.
PROOF, ROUNDED_RUN = "proof", "conditioned"


def holds_bundle(directory: Place) -> bool:
    """Whether ``manifest.json`` is accucompare's, of any version; False if it cannot be read."""
    try:
        content = json.loads(_bytes_of(directory / "manifest.json"))
    except (BundleError, OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and content.get("format") == FORMAT


def bundle_around(path: Path, made: Iterable[Place] = ()) -> Path | None:
    """The bundle that a file lies in, or would: one of those that are ``made``, or any that is
    there. A stream lies in none."""
    if is_stream(path):
        return None
    reserved = {Path(os.path.realpath(bundle)) for bundle in made if isinstance(bundle, Path)}
    folders = Path(os.path.realpath(path)).parents
    return next((each for each in folders if each in reserved or holds_bundle(each)), None)


def sealed(content: dict[str, Any]) -> bytes:
    """A manifest's bytes: the last line is a digest of all before, and ``sealed`` announces it."""
    fields = {
        "sealed": True,
        **{name: value for name, value in content.items() if name != "digest"},
        "digest": "",
    }
    body = _indented(fields)[: -len(_seal(""))]
    return body + _seal(xxhash.xxh3_128_hexdigest(body)).encode()


def _indented(content: dict[str, Any]) -> bytes:
    """JSON with a line per entry; lone surrogates (file names have them) become JSON's ``\\udc80``.

    The standard library indents without its compiled encoder, and takes 20 times as long."""
    text = json.dumps(content, ensure_ascii=False, default=str, separators=(",", ":"))
    try:
        return msgspec.json.format(text.encode(), indent=1)
    except (UnicodeEncodeError, msgspec.DecodeError):  # a lone surrogate, NaN
        text = json.dumps(content, indent=1, ensure_ascii=False, default=str)
        return text.encode("utf-8", "backslashreplace")


def _seal(digest: str) -> str:
    """The end of a manifest."""
    return f'"digest": "{digest}"\n}}'


def _is_as_written(raw: bytes, content: dict[str, Any]) -> bool:
    """Whether the digest matches the manifest's bytes. Older manifests have no digest, and pass."""
    if "sealed" not in content and "digest" not in content:
        return True
    body = raw[: -len(_seal("0" * 32))]
    return raw == body + _seal(xxhash.xxh3_128_hexdigest(body)).encode()


def manifests_of(path: Place, ranks: int) -> dict[int, Manifest]:
    """The manifests that later ranks have written, requested together. Errors as ``read``."""
    places = {rank: path / f"rank{rank}" / "manifest.json" for rank in range(1, ranks)}
    if isinstance(path, Path):
        return {rank: Manifest.read(place) for rank, place in places.items() if is_file(place)}
    found = {}
    for first in range(1, ranks, _AT_ONCE):
        some = [
            (rank, place)
            for rank in range(first, min(first + _AT_ONCE, ranks))
            if isinstance(place := places[rank], Url)
        ]
        for rank, place, asked in [
            (rank, place, place.begin_read(_SIZE_LIMIT)) for rank, place in some
        ]:
            with contextlib.suppress(_MissingError):
                found[rank] = Manifest.read(place, asked)
    return found


class _MissingError(BundleError):
    """There is no manifest."""


def _bytes_of(path: Place, asked: Future[ServerAnswer] | None = None) -> bytes:
    if isinstance(path, Url):
        return path.read(_SIZE_LIMIT) if asked is None else path.content_of(asked, _SIZE_LIMIT)
    status = path.stat()
    if not stat.S_ISREG(status.st_mode):  # opening a FIFO would wait for its writer
        raise BundleError(f"{path}: is not a regular file; refused")
    if status.st_size > _SIZE_LIMIT:
        raise BundleError(f"{path}: too large for a manifest; refused")
    return path.read_bytes()


class StepEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One finished step of one rank."""

    step: Count
    records: Count  # how many lines ``stepN.jsonl`` has
    digest: str  # of ``stepN.jsonl``'s bytes
    partial: bool = False  # whether the capture was stopped inside it


class StepSeries(msgspec.Struct, frozen=True, omit_defaults=True):
    """One training step in a few numbers."""

    step: Count
    # the scalar roots of the step's backwards, in order, without the loss scale of a ``GradScaler``
    losses: tuple[float, ...] = ()
    # learning rates, by the optimizer's class and the number of the parameter group: ``AdamW.0``;
    # of a second optimizer of that class ``AdamW#2.0``
    lr: dict[str, float] = msgspec.field(default_factory=dict)
    # L2 norm, in float64, of all gradients that the step's updates are given, unscaled and before
    # clipping; ``None`` if there was no update, or a gradient cannot be read
    grad_norm: float | None = None
    # the same of the gradients that the updates used; ``None`` if none was clipped
    clipped_norm: float | None = None
    # whether these norms are of what this rank has of gradients that lie on several ranks: parts,
    # or terms of a sum
    of_parts: bool = False
    loss_scale: float | None = None  # by which a ``GradScaler`` multiplied the losses
    # whether a ``GradScaler`` skipped an update because of gradients that were not finite
    skipped: bool = False
    updates: Count = 0  # how many updates were made
    batch: str | None = None  # a digest of the digests of the tensors that the model is called with
    # a digest of the digests of all parameters when the step's first update begins; ``None`` if
    # updates are not recorded
    weights: str | None = None
    # the same of a model whose optimizer steps copies or parts of its parameters
    own_weights: str | None = None


class _Fed(msgspec.Struct, frozen=True):
    feed: Feed | None = None


class _Settings(msgspec.Struct, frozen=True):
    case: str | None = None
    flags: dict[str, Any] | None = None
    versions: dict[str, Any] | None = None
    variables: dict[str, str] | None = None
    libraries: dict[str, str] | None = None


class _Value(msgspec.Struct):
    dtype: str
    shape: list[Any]
    digests: dict[str, Any]


class _Model(msgspec.Struct, frozen=True):
    parameters: dict[str, _Value] = {}
    buffers: dict[str, _Value] = {}
    modules: dict[str, str] = {}
    not_called: list[str] = []
    signatures: dict[str, list[str]] = {}


class _Fields(msgspec.Struct):
    """The fields of a manifest as far as readers rely on their types."""

    complete: bool = False
    stopped: dict[str, Any] | None = None
    ranks: Annotated[int, msgspec.Meta(ge=1, le=_MOST_RANKS)] = 1
    steps: list[StepEntry] = []
    series: list[StepSeries] = []
    state: dict[str, Any] | None = None
    capture: dict[str, Any] = {}
    environment: dict[str, Any] = {}
    model: _Model = _Model()
    inputs: dict[str, dict[str, _Value]] = {}
    mesh: dict[str, tuple[Count, Count]] = {}
    notes: list[str] = []


@dataclass
class Manifest:
    """What ``manifest.json`` holds.

    Attributes:
        format_version: of the bundle.
        complete: whether the capture ran to its end and recorded all that it set out to. Only
            ``BundleWriter.close`` sets it.
        stopped: where and why it ended early: ``{"step", "module", "error"}``.
        ranks: how many processes captured together.
        series: this rank's training steps in numbers, in order.
        state: digest and number of records of the state that ``--like`` starts from; ``None`` if
            not saved.
        capture: options of the capture: seed, only, skip, steps.
        environment: where it ran: device, versions, flags, command line, git commit, time.
        model: class, mode, modules, modules never called, parameters and buffers with their
            digests.
        inputs: per step, the root module's inputs with their digests.
        mesh: this rank's index along each dimension of parallelism, and how many ranks lie along
            it: ``{"dp": (1, 2), "tp": (0, 2)}``; empty where nothing told.
        notes: what went differently than a reader would assume, one sentence each.
    """

    format_version: int = FORMAT_VERSION
    complete: bool = False
    stopped: dict[str, Any] | None = None
    ranks: int = 1
    steps: list[StepEntry] = field(default_factory=list)
    series: list[StepSeries] = field(default_factory=list)
    state: dict[str, Any] | None = None
    capture: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    model: dict[str, Any] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    mesh: dict[str, tuple[int, int]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    @property
    def fed(self) -> bool:
        """Whether each module call was given golden's values."""
        return bool(self.capture.get("feed"))

    @property
    def created(self) -> str:
        """When the capture began, in ISO 8601; ``""`` if it does not say."""
        told = self.environment.get("created")
        return told if isinstance(told, str) else ""

    @property
    def feed(self) -> Feed | None:
        """What it was fed with; ``None`` if it was not. Errors as ``check``."""
        return _typed(self.capture, _Fed).feed

    @property
    def options(self) -> Options:
        """The options of the capture. Errors as ``check``."""
        return _typed(self.capture, Options)

    @property
    def training(self) -> SavedAndStarted:
        """The training state that it saved, and that it started from. Errors as ``check``."""
        return _typed(self.capture, SavedAndStarted)

    @property
    def described_at(self) -> int:
        """The step before which the model was described: of its saved state, or of its start.
        Errors as ``check``."""
        state, started = self.training.training_state, self.training.started
        if self.state is not None and state is not None:
            return state.step
        return self.training.begun if started is None else started.step

    @property
    def code(self) -> Code:
        """Which code ran. Errors as ``check``."""
        return _typed(self.model, Code)

    @property
    def flags(self) -> dict[str, Any]:
        """Flags that change numbers, by name. Errors as ``check``."""
        return _typed(self.environment, _Settings).flags or {}

    @property
    def case(self) -> str:
        """The case that ran; ``""`` if none is named (Python API). Errors as ``check``."""
        return _typed(self.environment, _Settings).case or ""

    @property
    def versions(self) -> dict[str, Any]:
        """Versions of packages and drivers, by name. Errors as ``check``."""
        return _typed(self.environment, _Settings).versions or {}

    @property
    def variables(self) -> dict[str, str] | None:
        """Environment variables that may change numbers; ``None`` in dumps.
        Errors as ``check``."""
        return _typed(self.environment, _Settings).variables

    @property
    def libraries(self) -> dict[str, str]:
        """Digests of shared libraries that were loaded, by name. Errors as ``check``."""
        return _typed(self.environment, _Settings).libraries or {}

    @property
    def asked(self) -> Steps | None:
        """The steps that it set out to record, from ``--steps`` or the case; ``None`` if all that
        would come. Errors as ``check``."""
        options = self.options
        if options.chosen_steps and not options.case_steps:
            return Steps.of(options.chosen_steps)
        count = options.case_steps or options.steps
        return Steps(count) if count else None

    @property
    def run_steps(self) -> list[StepEntry]:
        """The steps without the one that only holds what changed after the last. Errors as
        ``check``."""
        return [entry for entry in self.steps if entry.step != self.options.closing]

    @property
    def lacking(self) -> str:
        """The steps that it set out to record and lacks, in words. Errors as ``check``."""
        if partial := [entry.step for entry in self.steps if entry.partial]:
            return f"the run ended inside of step {partial[0]}"
        asked = self.asked
        if asked is None:
            return ""
        entries = self.series if self.options.roles == (RoleGroup.SERIES,) else self.run_steps
        held = {entry.step for entry in entries}
        if asked.chosen is None:
            if len(held) < asked.count:
                return f"the run ended after {len(held)} of {asked.count} step(s)"
            return ""
        late = [number for number in asked.chosen if number not in held]
        missed = late[0] if len(late) == 1 else Steps.of(late or asked.chosen)
        return (
            f"the run ended before step(s) {missed} of --steps {asked}, which are not recorded"
            if late
            else ""
        )

    def copy(self) -> Manifest:
        """A copy that stays as it is when entries of this one's tables are replaced or added."""
        tables = {name: {**getattr(self, name)} for name in ("capture", "environment", "model")}
        return replace(self, **tables, notes=[*self.notes])  # type: ignore[arg-type]

    def write(self, path: Path) -> None:
        """Replace the file whole, so that a reader never sees half of it. OSError if that fails."""
        content = {
            "format": FORMAT,
            "format_version": self.format_version,
            "accucompare": __version__,
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "steps": msgspec.to_builtins(self.steps),
            "series": msgspec.to_builtins(self.series),
        }
        replace_whole(
            path,
            path.with_name(path.name + ".part"),
            lambda temporary: temporary.write_bytes(sealed(content)),
        )

    @classmethod
    def read(cls, path: Place, asked: Future[ServerAnswer] | None = None) -> Manifest:
        """Read and check a manifest.

        Args:
            asked: the pending answer, if a URL was requested before.

        Raises:
            BundleError: if it is missing, no manifest, damaged, or of a newer format.
        """
        try:
            raw = _bytes_of(path, asked)
            content = json.loads(raw)
        except (FileNotFoundError, NotADirectoryError) as error:
            if isinstance(path, Url):
                raise _MissingError(
                    f"{path.parent}: not a bundle (its {path.name}: {error.strerror})"
                ) from None
            raise BundleError(f"{path.parent}: {_no_bundle(path)}") from None
        except OSError as error:
            raise BundleError(f"{path}: cannot be read ({error.strerror})") from None
        except (ValueError, RecursionError) as error:
            raise BundleError(f"{path}: damaged; it is not valid JSON ({error})") from None
        if not isinstance(content, dict) or content.get("format") != FORMAT:
            raise BundleError(f"{path}: not the manifest of an accucompare bundle")
        version = content.get("format_version")
        if type(version) is not int or version != FORMAT_VERSION:
            writer = str(content.get("accucompare", "unknown"))[:20]
            raise BundleError(
                f"{path}: bundle format version {str(version)[:20]}, but this accucompare"
                f" {__version__} reads version {FORMAT_VERSION}; install the accucompare that wrote"
                f" it ({writer}) or a newer one, or capture again"
            )
        if not _is_as_written(raw, content):
            raise BundleError(f"{path}: is corrupt (its digest does not match); capture it again")
        known = {name: content[name] for name in cls.__dataclass_fields__ if name in content}
        try:
            typed = _typed(known, _Fields)
            known |= {"steps": typed.steps, "series": typed.series, "mesh": typed.mesh}
            manifest = cls(**known)
            manifest.check()
            # older versions wrote ``complete`` before the last step was there
            if manifest.complete and (lacking := manifest.lacking):
                manifest.complete, manifest.stopped = False, {"error": lacking}
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise BundleError(
                f"{path}: damaged; a field is malformed ({str(error)[:200]})"
            ) from None
        return manifest

    def check(self) -> None:
        """Raise TypeError or ValueError if fields do not go together, or are not of their types."""
        if self.complete and self.stopped is not None:
            raise ValueError("it says both that the capture ran to its end and why it did not")
        for name, (index, size) in self.mesh.items():
            if not index < size <= self.ranks:
                raise ValueError(f"index {index} of {size} along {name[:40]!r} of the mesh")
        if len({entry.step for entry in self.steps}) < len(self.steps):
            raise ValueError("steps holds one step twice")
        numbers = [entry.step for entry in self.series]
        if numbers != sorted(set(numbers)):
            raise ValueError("the steps of series are not in order")
        if self.state is not None:
            _typed({"step": 0, **self.state}, StepEntry)
        # each property checks what it reads
        _ = (self.feed, self.options, self.training, self.code, self.flags)


_T = TypeVar("_T")


def _no_bundle(path: Path) -> str:
    """Why a directory without this manifest is no bundle, and what may be meant instead."""
    folder = path.parent
    if not folder.is_dir():
        why = "a file; a bundle is a directory" if folder.exists() else "there is no such directory"
        return f"not a bundle ({why})"
    why = f"it has no {path.name}"
    inside = sorted(each.parent.name for each in folder.glob(f"[!.]*/{path.name}"))
    if ranks := [name for name in inside if name.startswith("rank")]:
        why += f", which rank 0 writes; {ranks[0]} has its own: put what all ranks wrote into one"
        why += " directory"
    elif inside:
        why += f"; bundles in it: {first_few(inside)}"
    elif (folder / "rank0.jsonl").exists():
        why += "; it is the log of a watch: accucompare overflow, accucompare health"
    kept = folder / PREVIOUS
    if holds_bundle(kept):
        return (
            f"not a bundle ({why}); the one that was to be overwritten is in {kept}, and the next"
            " capture puts it back"
        )
    return f"not a bundle ({why})"


def _typed(table: Any, kind: type[_T]) -> _T:
    """Part of some JSON as a struct; TypeError if a value is missing or of the wrong type."""
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise TypeError(str(error)) from None
