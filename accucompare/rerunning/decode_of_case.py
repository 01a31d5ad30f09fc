"""``check_decode``: a case's sequence as a whole, and again with the model's cache."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from accucompare.compare.limits import DEFAULT_REL_L2, is_half
from accucompare.compare.reruns import Decoded, DecodeOutcome, DecodeWay, NotDecodedWhy
from accucompare.devices import DeviceName, open_device
from accucompare.errors import AccucompareError, CaptureError, CaseError, UsageError
from accucompare.live.operators import RandomState
from accucompare.live.values import dtype_name
from accucompare.places import local
from accucompare.recorder.session import Casting, build, moved, telling_exits
from accucompare.report.files import write_decode_json
from accucompare.report.words import decode_words
from accucompare.rerunning.batch_variants import float_type
from accucompare.rerunning.token_places import Columns
from accucompare.rerunning.token_runs import FedTokens, GoldenTokens, WholeRun
from accucompare.rerunning.token_sequence import GivenTokens, NoCacheError, TokenSequence
from accucompare.selection import FloatType, RoundedType


class DecodeCheck(Decoded):
    """A sequence, as a whole and with a cache. Made by ``accucompare.check_decode``."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.case}: {decode_words.decode_headline(self)}>"

    def to_json(self, path: str | Path) -> Path:
        """Write every run with what differs as JSON, and return its path.

        Raises:
            ReportError: if it cannot be written.
        """
        return write_decode_json(self, local(path))


@telling_exits()
def check_decode(
    case: str | None,
    device: str = "cpu",
    *,
    steps: int,
    dtype: str | None = None,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> DecodeCheck:
    """Compute a sequence as a whole, and again with the model's cache: is each token the same?

    The sequence is that of the case's first inputs. Golden is the whole, without a cache, in
    float64 on the CPU. Then the model is given all but the last ``steps`` tokens, and those one by
    one; and in other ways: the first part in chunks, with padding, as ``generate()`` does. Each
    module gets golden's values of its tokens, so its error is its own. A run of the whole in the
    same type says how large rounding is. Half types are run in float32, too, where rounding hides
    less.

    Args:
        case: as for ``accucompare.locate``. A model of transformers, or one with two functions,
            ``Case(…, prefill=…, decode=…)``.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:N"``, ``"npu"`` or ``"npu:N"``.
        steps: how many tokens come one by one.
        dtype: what to compute in, by default the case's own type.
        seed: of weights and inputs.
        progress: called with the runs done, and all.

    Raises:
        CaseError: if the case cannot be found or built; if the model has no cache, or draws random
            numbers.
        UsageError: if the sequence has no more tokens than ``steps``.
        DeviceError: if the device is not there.
        CaptureError: if the model raised on the whole sequence.

    Example:
        >>> check = check_decode("decode.py", steps=3)
        >>> check.answer.value, check.exit_code
        ('rounding', 0)
    """
    if type(steps) is not int or steps < 1:
        raise UsageError(f"steps (--decode): must be at least 1, but is {steps!r}")
    name = DeviceName.parse(device)
    runs = _DecodeRuns(case, open_device(name), float_type(dtype), seed, steps)
    return runs.compared(progress)


@dataclass
class _DecodeRuns:
    """The runs of one case, each built anew.

    A model may keep what a run leaves behind where no copy and no restored state reaches it: in a
    closure, or in a module of its own that a patched ``forward`` holds.
    """

    target: str | None
    device: torch.device
    dtype: FloatType | None
    seed: int
    steps: int

    def compared(self, progress: Callable[[int, int], None] | None) -> DecodeCheck:
        built = build(self.target, torch.device("cpu"), Casting(None, self.dtype), self.seed)
        sequence = TokenSequence(built.name, built.case, built.inputs[0], self.steps)
        own = _type_of(built.model)
        ways = sequence.ways(built.model)
        casting, golden = self._golden(sequence, own)
        del built
        precisions = [own]
        if own in DEFAULT_REL_L2 and is_half(own):
            precisions.append(FloatType.FLOAT32.value)
        planned = {way: each for way, each in ways.items() if isinstance(each, GivenTokens)}
        not_looked_at = {way: each for way, each in ways.items() if isinstance(each, NotDecodedWhy)}
        for way in [way for way, each in planned.items() if each.padded]:
            if (why := self._why_not(sequence, planned[way], golden, own)) is not None:
                not_looked_at[way] = why
                del planned[way]
        count, done = len(planned) * len(precisions), 0
        outcomes = []
        for precision in precisions:
            self._learn_rounding(sequence, golden, precision, own, casting)
            for way, arrangement in [*planned.items()]:
                try:
                    outcomes.append(self._outcome(sequence, golden, arrangement, precision, own))
                except NoCacheError:
                    if DecodeWay.GENERATE not in planned:
                        raise
                    not_looked_at[way] = NotDecodedWhy.NO_CACHE
                    del planned[way]
                done += 1
                if progress is not None:
                    progress(done, count)
        if outcomes and all(each.raised for each in outcomes):
            first = outcomes[0].raised
            raise CaptureError(f"{sequence.name}: with its cache the model raised {first}")
        return DecodeCheck(
            case=sequence.name,
            device=str(self.device),
            dtype=own,
            tokens=sequence.tokens,
            steps=self.steps,
            samples=sequence.samples,
            golden=casting.options["dtype"] or own,
            anticipates=golden.anticipates,
            outcomes=outcomes,
            not_looked_at=not_looked_at,
        )

    def _golden(self, sequence: TokenSequence, own: str) -> tuple[Casting, GoldenTokens]:
        """The whole sequence, and where its tokens lie."""
        for dtype in (FloatType.FLOAT64, FloatType.FLOAT32):
            casting = self._casting(dtype, own)
            try:
                golden = self._whole(sequence, casting, 0)
                golden.learn(self._whole(sequence, casting, self.steps))
                return casting, golden
            except AccucompareError:
                raise
            except Exception as error:
                if dtype is FloatType.FLOAT32:
                    raise CaptureError(
                        f"{sequence.name}: the model raised {_told(error)} on the whole sequence,"
                        " without a cache"
                    ) from error
        raise AssertionError

    def _casting(self, dtype: FloatType, own: str) -> Casting:
        rounded = RoundedType(own) if own in list(RoundedType) else None
        return Casting(rounded, dtype)

    def _whole(self, sequence: TokenSequence, casting: Casting, less: int) -> GoldenTokens:
        cpu = torch.device("cpu")
        model = build(self.target, cpu, casting, self.seed).model
        run = WholeRun(model, sequence.tokens - less, sequence.samples)
        args, kwargs = moved(sequence.without_last(less), cpu, casting)
        before = RandomState.now(cpu).devices["cpu"]
        with run.on():
            model(*args, **kwargs)
        if not torch.equal(before, RandomState.now(cpu).devices["cpu"]):
            raise CaseError(
                f"{sequence.name}: the model draws random numbers in its forward, so a token need"
                " not be the same twice; turn dropout and noise off (model.eval())"
            )
        return run.golden

    def _learn_rounding(
        self,
        sequence: TokenSequence,
        golden: GoldenTokens,
        precision: str,
        own: str,
        casting: Casting,
    ) -> None:
        """Let golden know what rounding makes of its values, unless it is of that type itself."""
        golden.errors.clear()
        if precision == casting.options["dtype"]:
            return
        model, casting = self._candidate(precision, own)
        run = FedTokens(model, golden, [golden.whole], sequence.real, keeps=True)
        args, kwargs = moved(sequence.without_last(0), self.device, casting)
        with run.on():
            model(*args, **kwargs)
        golden.errors.update(run.kept)

    def _candidate(self, precision: str, own: str) -> tuple[nn.Module, Casting]:
        asked = self.dtype if precision == own else FloatType(precision)
        casting = (
            Casting(None, asked) if precision == own else self._casting(FloatType(precision), own)
        )
        return build(self.target, self.device, casting, self.seed).model, casting

    def _outcome(
        self,
        sequence: TokenSequence,
        golden: GoldenTokens,
        arrangement: GivenTokens,
        precision: str,
        own: str,
    ) -> DecodeOutcome:
        model, casting = self._candidate(precision, own)
        run = FedTokens(model, golden, arrangement.calls, sequence.real)
        outcome = DecodeOutcome(
            arrangement.way, precision, [each.count for each in arrangement.calls]
        )
        raised = ""
        try:
            with run.on(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                sequence.drive(model, arrangement, lambda given: moved(given, self.device, casting))
        except AccucompareError:
            raise
        except Exception as error:
            inside = f" in {run.raised_in}" if run.raised_in else ""
            raised = f"{_told(error)}{inside}"
        wanted = {*range(sequence.tokens - self.steps, sequence.tokens)}
        if arrangement.padded:
            wanted = {*arrangement.tokens[:, arrangement.ends[0] :].ravel().tolist()}
        wanted &= {*range(sequence.tokens)}
        unseen = sorted(
            token for token in wanted - run.seen_outputs if sequence.real[:, token].any()
        )
        return replace(
            outcome,
            looked=run.looked,
            left=run.left,
            unseen=unseen,
            nearest=run.nearest,
            first=run.first,
            layers=run.layers,
            choices=run.choices,
            raised=raised,
        )

    def _why_not(
        self, sequence: TokenSequence, arrangement: GivenTokens, golden: GoldenTokens, own: str
    ) -> NotDecodedWhy | None:
        """Why such padding tells nothing of the cache: the whole sequence, padded so and computed
        without one, differs by design."""
        right = arrangement.way is DecodeWay.RIGHT
        if sequence.takes_positions and not right:
            return None
        cpu, casting = torch.device("cpu"), self._casting(FloatType.FLOAT32, own)
        model = build(self.target, cpu, casting, self.seed).model
        run = FedTokens(
            model, golden, [Columns(arrangement.tokens, True, arrangement.padded)], sequence.real
        )
        args, kwargs = moved(sequence.at_once(arrangement), cpu, casting)
        by_design = NotDecodedWhy.NO_GAPS if right else NotDecodedWhy.NO_POSITIONS
        try:
            with run.on():
                model(*args, **kwargs)
        except Exception:  # the model's own
            return by_design
        first = run.first
        if first is None:
            return None if run.seen_outputs else by_design
        # code that is given the right positions, and yet gives other values, is wrong
        is_own = first.keys is not None or (first.parent is not None and not first.argument)
        return None if is_own and not right else by_design


def _type_of(model: nn.Module) -> str:
    """The type of most of a model's weights."""
    sizes: dict[str, int] = {}
    for each in _floating(model):
        name = dtype_name(each.dtype)
        sizes[name] = sizes.get(name, 0) + each.numel()
    return max(sizes, key=lambda name: sizes[name], default="float32")


def _floating(model: nn.Module) -> Iterator[torch.Tensor]:
    for each in (*model.parameters(), *model.buffers()):
        if each.is_floating_point():
            yield each


def _told(error: Exception) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
