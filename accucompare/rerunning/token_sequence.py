"""A case's sequence of tokens, and the calls by which a model with a cache is given it."""

from __future__ import annotations

import copy
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from accucompare.case import Case
from accucompare.compare.reruns import DecodeWay, NotDecodedWhy
from accucompare.errors import CaseError, UsageError
from accucompare.recorder.state import CallArguments
from accucompare.rerunning.token_places import TOKENS_NAMES, Columns

#: Arguments by which models of transformers take a cache, and attributes by which they return it.
_CACHES = ("past_key_values", "cache", "cache_params", "state")
_ENCODED = "encoder_outputs"
#: The ways in which ``generate()`` makes the calls.
BY_GENERATE = (DecodeWay.GENERATE, DecodeWay.GENERATE_UNEQUAL)
#: How many tokens of padding are added.
_PADDING = 3
#: What makes no sense of a part of a sequence, or is the runs' own choice.
_LEFT_OUT = ("labels", "use_cache", "cache_position", *_CACHES)


class NoCacheError(CaseError):
    """The model gave no cache back."""


@dataclass(frozen=True)
class GivenTokens:
    """A sequence as one run gives it."""

    way: DecodeWay
    # by sample and column, which of golden's tokens it is; -1 for padding
    tokens: NDArray[np.int64]
    ends: tuple[int, ...]  # the column behind the last of each call

    @property
    def calls(self) -> list[Columns]:
        begins = (0, *self.ends[:-1])
        return [
            Columns(self.tokens[:, begin:end], not begin, self.padded)
            for begin, end in zip(begins, self.ends, strict=True)
        ]

    @property
    def padded(self) -> bool:
        return bool((self.tokens < 0).any())


class TokenSequence:
    """The sequence of a case's first inputs, of which the last tokens come one by one.

    Attributes:
        tokens, samples: how many.
        steps: how many tokens come one by one.
        real: by sample and token, whether it is no padding.
        own: the case's own functions, ``(prefill, decode)``; ``None`` for a model of transformers.
    """

    def __init__(self, name: str, case: Case, arguments: CallArguments, steps: int) -> None:
        """Raises: UsageError, CaseError."""
        self.name = name
        self.steps = steps
        model = case.model
        self.own = None if case.decode is None else (case.prefill, case.decode)
        if (case.prefill is None) != (case.decode is None):
            raise CaseError(f"{name}: give both Case(…, prefill=…, decode=…), or neither")
        taken = inspect.signature(model.forward)
        self._taken = taken.parameters
        self.arguments = self._whole(taken, arguments) if self.own is None else arguments
        self.tokens_name = self._named()
        tokens = self._tokens_tensor()
        self.samples, self.tokens = int(tokens.shape[0]), int(tokens.shape[1])
        if self.tokens <= steps:
            raise UsageError(
                f"{name}: the sequence has {self.tokens} tokens, of which --decode {steps} (steps=)"
                " leaves none for the first call; give a smaller number, or a longer sequence"
            )
        self.is_decoder = self.tokens_name.startswith("decoder_")
        before = "decoder_" if self.is_decoder else ""
        self._mask, self._positions = f"{before}attention_mask", f"{before}position_ids"
        if self.own is None and self.samples == 1 and self._may_grow():
            self._grow()
        self.real = self._real()

    @property
    def _first(self) -> int:
        return self.tokens - self.steps

    def _whole(self, taken: inspect.Signature, arguments: CallArguments) -> CallArguments:
        """The arguments by name, without labels and what the runs choose."""
        args, kwargs = arguments
        try:
            bound = taken.bind(*args, **kwargs)
        except TypeError as error:
            raise CaseError(
                f"{self.name}: the case's inputs do not fit the model: {error}"
            ) from None
        given = dict(bound.arguments)
        for each in taken.parameters.values():
            if each.kind is each.VAR_KEYWORD:
                given.update(given.pop(each.name, {}))
        if not any(each in self._taken for each in _CACHES):
            raise CaseError(
                f"{self.name}: the model's forward takes no cache ({', '.join(_CACHES)}); give two"
                " functions that run it with its own: Case(…, prefill=…, decode=…)"
            )
        return (), {name: value for name, value in given.items() if name not in _LEFT_OUT}

    def _named(self) -> str:
        kwargs = self.arguments[1]
        return next((each for each in TOKENS_NAMES if kwargs.get(each) is not None), "")

    def _tokens_tensor(self) -> torch.Tensor:
        args, kwargs = self.arguments
        given = [kwargs[self.tokens_name]] if self.tokens_name else [*args, *kwargs.values()]
        found = [each for each in given if isinstance(each, torch.Tensor) and each.dim() > 1]
        if not found:
            raise CaseError(
                f"{self.name}: the case's first inputs have no sequence of tokens (samples, tokens)"
            )
        return found[0]

    def _may_grow(self) -> bool:
        """Whether all inputs are of tokens, so that another sample can be made of them."""
        tensors = {k: v for k, v in self.arguments[1].items() if isinstance(v, torch.Tensor)}
        return not self.is_decoder and all(self._is_of_tokens(each) for each in tensors.values())

    def _grow(self) -> None:
        """Two samples: the other one has the tokens in another order, so that rows can be told."""
        _, kwargs = self.arguments
        self.samples = 2
        self.arguments = (
            (),
            {
                name: torch.cat([value, value.roll(1, 1) if name == self.tokens_name else value])
                if isinstance(value, torch.Tensor)
                else value
                for name, value in kwargs.items()
            },
        )

    def _is_of_tokens(self, value: Any) -> bool:
        shape = value.shape[:2] if isinstance(value, torch.Tensor) else ()
        return tuple(shape) == (self.samples, self.tokens)

    def _real(self) -> NDArray[np.bool_]:
        mask = self.arguments[1].get(self._mask)
        if isinstance(mask, torch.Tensor) and self._is_of_tokens(mask) and mask.dim() == 2:
            return mask.bool().cpu().numpy()
        return np.ones((self.samples, self.tokens), bool)

    def ways(self, model: nn.Module) -> dict[DecodeWay, GivenTokens | NotDecodedWhy]:
        """The runs to make, or why one is not."""
        first, every = (
            self._first,
            np.broadcast_to(np.arange(self.tokens), (self.samples, self.tokens)),
        )
        ends = tuple(range(first, self.tokens + 1))
        found: dict[DecodeWay, GivenTokens | NotDecodedWhy] = {
            DecodeWay.TOKENS: GivenTokens(DecodeWay.TOKENS, every, ends)
        }
        chunk = max(2, -(-first // 3))
        chunks = (*range(chunk, first, chunk), *ends)
        found[DecodeWay.CHUNKED] = (
            NotDecodedWhy.SHORT
            if len(chunks) == len(ends)
            else GivenTokens(DecodeWay.CHUNKED, every, chunks)
        )
        found[DecodeWay.STATIC] = GivenTokens(DecodeWay.STATIC, every, ends)
        padded = (DecodeWay.LEFT, DecodeWay.UNEQUAL, DecodeWay.RIGHT)
        why = self._why_not_padded(first)
        for way in padded:
            found[way] = self._padded(way) if why is None else why
        found[DecodeWay.GENERATE] = GivenTokens(DecodeWay.GENERATE, every, ends)
        unequal = DecodeWay.GENERATE_UNEQUAL
        found[unequal] = self._padded(unequal) if why is None else why
        if self.own is not None:
            return {
                way: each if way is DecodeWay.TOKENS else NotDecodedWhy.OWN_PROTOCOL
                for way, each in found.items()
            }
        if getattr(model, "_is_stateful", False):
            for way in padded:
                found[way] = why or NotDecodedWhy.STATE
        if self.is_decoder or not getattr(model, "_can_compile_fullgraph", False):
            found[DecodeWay.STATIC] = NotDecodedWhy.NO_STATIC
        says = getattr(model, "can_generate", None)
        settings = getattr(model, "generation_config", None)
        if says is None or not says() or not self.tokens_name.endswith("_ids"):
            found.update(dict.fromkeys(BY_GENERATE, NotDecodedWhy.NO_GENERATE))
        elif getattr(settings, "cache_implementation", None) == "quantized":
            found.update(dict.fromkeys(BY_GENERATE, NotDecodedWhy.QUANTIZED))
        return found

    def _why_not_padded(self, first: int) -> NotDecodedWhy | None:
        if self.is_decoder:
            return NotDecodedWhy.ENCODER_DECODER
        if self._mask not in self._taken:
            return NotDecodedWhy.NO_MASK
        return NotDecodedWhy.SHORT if first <= _PADDING else None

    def _padded(self, way: DecodeWay) -> GivenTokens:
        return GivenTokens(way, *self._columns(way))

    def _columns(self, way: DecodeWay) -> tuple[NDArray[np.int64], tuple[int, ...]]:
        """The columns with padding, and the calls' ends."""
        first, steps = self._first, self.steps
        if way is DecodeWay.LEFT:
            row = np.concatenate([np.full(_PADDING, -1), np.arange(self.tokens)])
            tokens = np.broadcast_to(row, (self.samples, len(row)))
            return tokens, tuple(range(first + _PADDING, len(row) + 1))
        rows = []
        for sample in range(self.samples):
            less = sample % 2 * _PADDING if self.samples > 1 else _PADDING
            none, prompt = np.full(less, -1), np.arange(first - less)
            parts = (none, prompt) if way is not DecodeWay.RIGHT else (prompt, none)
            rows.append(np.concatenate([*parts, np.arange(steps) + first - less]))
        return np.stack(rows), tuple(range(first, self.tokens + 1))

    @property
    def takes_positions(self) -> bool:
        return self._positions in self._taken

    def without_last(self, count: int) -> CallArguments:
        """The arguments of the whole sequence but its last tokens, without a cache."""
        if not self.tokens_name:
            return self._cut(0, self.tokens - count)
        every = np.broadcast_to(np.arange(self.tokens), (self.samples, self.tokens))
        arrangement = GivenTokens(DecodeWay.TOKENS, every, (self.tokens - count,))
        return (), {**self._of(arrangement, 0, self.tokens - count), **self._cache(False)}

    def at_once(self, arrangement: GivenTokens) -> CallArguments:
        """A padded sequence in one call, without a cache."""
        length = arrangement.tokens.shape[1]
        return (), {**self._of(arrangement, 0, length), **self._cache(False)}

    def _cache(self, used: bool) -> dict[str, Any]:
        return {"use_cache": used} if "use_cache" in self._taken else {}

    def _cut(self, begin: int, end: int) -> CallArguments:
        """For the case's own functions: tensors of tokens are cut."""

        def cut(value: Any) -> Any:
            return value[:, begin:end] if self._is_of_tokens(value) else value

        args, kwargs = self.arguments
        return tuple(cut(each) for each in args), {name: cut(v) for name, v in kwargs.items()}

    def _of(self, arrangement: GivenTokens, begin: int, end: int) -> dict[str, Any]:
        """The arguments of the columns from ``begin`` to ``end``."""
        columns = arrangement.tokens[:, begin:end]
        tokens = torch.from_numpy(np.maximum(columns, 0))
        rows = torch.arange(self.samples)[:, None]
        given: dict[str, Any] = {}
        for name, value in self.arguments[1].items():
            own = not self.is_decoder or name.startswith("decoder_")
            if name == self._mask:
                continue
            if own and self._is_of_tokens(value):
                given[name] = value[rows, tokens]
            elif not begin or not isinstance(value, torch.Tensor) or self.is_decoder:
                given[name] = value
        if arrangement.padded or self._mask in self.arguments[1]:
            before = arrangement.tokens[:, :end]
            seen = (before >= 0) & self.real[
                np.arange(self.samples)[:, None], np.maximum(before, 0)
            ]
            given[self._mask] = torch.from_numpy(seen.astype(np.int64))
        if arrangement.padded and self.takes_positions and self._positions not in given:
            given[self._positions] = tokens
        return given

    def drive(
        self, model: nn.Module, arrangement: GivenTokens, moved: Callable[[Any], Any]
    ) -> None:
        """Give a model the sequence. ``moved``: brings arguments to the model's device and type."""
        if arrangement.way in BY_GENERATE:
            self._generate(model, arrangement, moved)
            return
        if self.own is not None:
            self._by_own_functions(model, moved)
            return
        made = self._static(model, arrangement) if arrangement.way is DecodeWay.STATIC else None
        cache: dict[str, Any] = {} if made is None else made
        begin = 0
        encoded: dict[str, Any] = {}
        for end in arrangement.ends:
            given = self._of(arrangement, begin, end)
            if encoded:
                kept = {name: value for name, value in given.items() if name.startswith("decoder_")}
                if "attention_mask" in given:
                    kept["attention_mask"] = given["attention_mask"]
                given = kept
            _, kwargs = moved(((), given))
            output = model(**kwargs, **encoded, **cache, **self._cache(True))
            cache = self._cache_of(output)
            if (
                self.is_decoder
                and (last := getattr(output, "encoder_last_hidden_state", None)) is not None
            ):
                outputs = importlib.import_module("transformers.modeling_outputs")
                encoded = {_ENCODED: outputs.BaseModelOutput(last_hidden_state=last)}
            begin = end

    def _cache_of(self, output: Any) -> dict[str, Any]:
        """The argument that gives the model its cache back."""
        for name in _CACHES:
            value = output.get(name) if isinstance(output, Mapping) else getattr(output, name, None)
            if value is not None and name in self._taken:
                return {name: value}
        raise NoCacheError(
            f"{self.name}: the model returned no cache; give two functions that run it with its"
            " own: Case(…, prefill=…, decode=…)"
        )

    def _static(self, model: nn.Module, arrangement: GivenTokens) -> dict[str, Any]:
        kind = importlib.import_module("transformers").StaticCache
        taken = inspect.signature(kind.__init__).parameters
        weight = next(model.parameters())
        known = {
            "config": model.config,
            "max_cache_len": arrangement.tokens.shape[1] + 1,
            "max_batch_size": self.samples,
            "device": weight.device,
            "dtype": weight.dtype,
        }
        given = {name: value for name, value in known.items() if name in taken}
        name = next(each for each in _CACHES if each in self._taken)
        return {name: kind(**given)}

    def _by_own_functions(self, model: nn.Module, moved: Callable[[Any], Any]) -> None:
        assert self.own is not None
        prefill, decode = self.own
        assert prefill is not None
        args, kwargs = moved(self._cut(0, self._first))
        _, cache = _two(prefill(model, *args, **kwargs), self.name, "prefill")
        for token in range(self._first, self.tokens):
            args, kwargs = moved(self._cut(token, token + 1))
            _, cache = _two(decode(model, cache, *args, **kwargs), self.name, "decode")

    def _generate(self, model: Any, arrangement: GivenTokens, moved: Callable[[Any], Any]) -> None:
        """Let ``generate()`` make the calls, with these tokens in place of those it chooses."""
        first = arrangement.ends[0]
        _, prompt = moved(((), self._of(arrangement, 0, first)))
        prompt.pop(self._positions, None)  # it makes them of the mask
        ids = self.arguments[1][self.tokens_name]
        tokens = torch.from_numpy(np.maximum(arrangement.tokens, 0))
        chosen = ids[torch.arange(self.samples)[:, None], tokens]
        settings = copy.deepcopy(model.generation_config)
        settings.eos_token_id = None
        settings.pad_token_id = 0 if settings.pad_token_id is None else settings.pad_token_id
        settings.use_cache = True
        settings.do_sample, settings.num_beams, settings.max_length = False, 1, None
        settings.max_new_tokens = len(arrangement.ends)
        settings.decoder_start_token_id = int(ids[0, 0])  # else it may put one before
        made = 0

        def force(found: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            nonlocal made
            at, made = first + made, made + 1
            new = torch.full_like(scores, -torch.inf)
            token = chosen[:, at] if at < chosen.shape[1] else torch.zeros(len(scores)).long()
            return new.scatter(1, token[:, None].to(scores.device), 0.0)

        model.generate(**prompt, generation_config=settings, logits_processor=[force])


def _two(value: Any, name: str, function: str) -> tuple[Any, Any]:
    if not isinstance(value, tuple) or len(value) != 2:
        raise CaseError(f"{name}: {function}() must return (output, cache)")
    return value
