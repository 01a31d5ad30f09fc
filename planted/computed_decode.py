"""Faults that the use of a cache has: positions, masks, what is written and read.

As a case: ``planted.computed_decode:llama: positions one late``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import nn

from accucompare import Case
from accucompare.compare.reruns import DecodeWay
from planted.computed_decode_models import LENGTH, STEPS, clean

#: The first token that comes alone.
FIRST = LENGTH - STEPS

#: A call of a module: its arguments by name, and its forward.
_Change = Callable[[dict[str, Any], Callable[..., Any]], Any]


def _around(model: nn.Module, place: str, change: _Change) -> None:
    """Let ``change`` make the calls of a module."""
    module = model.get_submodule(place)
    forward = module.forward
    taken = inspect.signature(forward)

    @functools.wraps(forward)
    def changed(*args: Any, **kwargs: Any) -> Any:
        given = dict(taken.bind(*args, **kwargs).arguments)
        more = {name for name, each in taken.parameters.items() if each.kind is each.VAR_KEYWORD}
        for name in more:
            given.update(given.pop(name, {}))
        return change(given, forward)

    module.forward = changed


def _one(given: dict[str, Any]) -> bool:
    """Whether a call is of one token."""
    return next(v for v in given.values() if isinstance(v, torch.Tensor)).shape[1] == 1


def _argument(name: str, change: Callable[[Any], Any], always: bool = False) -> _Change:
    def changed(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
        if (always or _one(given)) and given.get(name) is not None:
            given[name] = change(given[name])
        return forward(**given)

    return changed


#: Keys and values as the cache gives them, and the new ones alone.
_Read = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def _cache(
    change: _Read, always: bool = False, values: bool = True, static: bool = False
) -> _Change:
    """Change what an attention reads from its cache, behind the first call.

    Args:
        change: is given what is read, what is new, and ``arange`` of its length.
        always: in the first call, too.
        values: whether values are changed as keys are.
        static: only of a static cache.
    """

    def changed(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
        cache = given.get("cache", given.get("layer_past"))
        holder = getattr(cache, "self_attention_cache", cache)
        if holder is None or (static and type(holder).__name__ != "StaticCache"):
            return forward(**given)
        update = holder.update

        def read(
            key: torch.Tensor, value: torch.Tensor, layer: int, *more: Any, **rest: Any
        ) -> Any:
            known = holder.get_seq_length(layer)
            keys, found = update(key, value, layer, *more, **rest)
            if not always and not int(known):
                return keys, found
            places = torch.arange(keys.shape[-2])
            return change(keys, key, places), change(found, value, places) if values else found

        holder.update = read
        try:
            return forward(**given)
        finally:
            del holder.update

    return changed


class _Previous:
    """Gives what it was given the last time."""

    def __init__(self) -> None:
        self._last: Any = None

    def __call__(self, value: Any) -> Any:
        given, self._last = self._last, value
        return value if given is None else given


def _replaced_last(read: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The new token is written over the one before."""
    return torch.cat([read[..., :-2, :], new, new], -2)


def _stale(read: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The new token is not written: the place holds the one before."""
    return torch.cat([read[..., :-1, :], read[..., -2:-1, :]], -2)


def _oldest_lost(read: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return torch.cat([read[..., 1:2, :], read[..., 1:, :]], -2)


def _rounded(dtype: torch.dtype) -> _Read:
    return lambda read, new, places: read.to(dtype).to(read.dtype)


def _rows_swapped(read: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return read.roll(1, 0)


def _heads_rolled(read: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return read.roll(1, 1)


def _reversed(read: torch.Tensor, new: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    return read.flip(-2)


def _scaled(factor: float) -> _Read:
    return lambda read, new, places: torch.cat([read[..., :-1, :] * factor, new], -2)


def _other_layer(own: int, other: int, cross: bool = False) -> _Change:
    """Read another layer's cache in calls of one token."""

    def changed(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
        module = forward.__self__  # type: ignore[attr-defined]
        module.layer_idx = other if _one(given) else own
        try:
            return forward(**given)
        finally:
            module.layer_idx = own

    return changed


def _cross_swapped(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
    """Keys and values of the cross attention are the other way round in calls of one token."""
    cache = given.get("cache")
    held = getattr(cache, "cross_attention_cache", None)
    layer = forward.__self__.layer_idx  # type: ignore[attr-defined]
    if held is None or not _one(given) or len(held.layers) <= layer:
        return forward(**given)
    own = held.layers[layer]
    own.keys, own.values = own.values, own.keys
    try:
        return forward(**given)
    finally:
        own.keys, own.values = own.values, own.keys


def _state(method: str, change: Callable[[torch.Tensor], torch.Tensor]) -> _Change:
    """Change a state in calls of one token."""

    def changed(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
        cache = given.get("cache")
        if cache is None or not _one(given):
            return forward(**given)
        get = getattr(cache, method)
        setattr(cache, method, lambda *args, **kwargs: change(get(*args, **kwargs)))
        try:
            return forward(**given)
        finally:
            delattr(cache, method)

    return changed


def _no_mask_behind_cache(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
    """Several tokens behind a cache get the mask of a sequence that begins with them."""
    mask = given.get("attention_mask")
    if mask is not None and mask.shape[-2] > 1 and mask.shape[-1] > mask.shape[-2]:
        new = torch.zeros_like(mask)
        size = mask.shape[-2]
        new[..., :size] = mask[..., -size:]
        given["attention_mask"] = new
    return forward(**given)


def _positions_of_places(model: Any) -> None:
    """``generate()`` counts padding as positions."""
    prepare = model.prepare_inputs_for_generation

    @functools.wraps(prepare)
    def prepared(ids: Any, *args: Any, **kwargs: Any) -> Any:
        made = prepare(ids, *args, **kwargs)
        size = made["input_ids"].shape[1]
        places = torch.arange(ids.shape[1])[-size:]
        made["position_ids"] = places.expand_as(made["input_ids"])
        return made

    model.prepare_inputs_for_generation = prepared


class DecodeFault(NamedTuple):
    """A fault of a cache.

    Attributes:
        model: its name.
        plant: changes the model.
        names: the layers either of which may be named.
        token: the first that is wrong in the first way that fails; ``None`` where that depends.
        argument: that is named, if one is.
        way: the first that fails; ``None`` where several may.
    """

    model: str
    plant: Callable[[nn.Module], Any]
    names: tuple[str, ...]
    token: int | None = FIRST
    argument: str = ""
    way: DecodeWay | None = DecodeWay.TOKENS


def _in(place: str, change: Callable[[], _Change] | _Change) -> Callable[[nn.Module], Any]:
    return lambda model: _around(model, place, change)  # type: ignore[arg-type]


def _attention(
    model: str, change: _Change, layer: int = 1, more: Iterable[str] = (), **rest: Any
) -> DecodeFault:
    place = _ATTENTION.get(model, "model.layers.{}.self_attn").format(layer)
    return DecodeFault(model, _in(place, change), (place, *more), **rest)


_ATTENTION = {
    "gpt2": "transformer.h.{}.attn",
    "bigcode": "transformer.h.{}.attn",
    "bloom": "transformer.h.{}.self_attention",
    "falcon": "transformer.h.{}.self_attention",
    "gptj": "transformer.h.{}.attn",
    "gptneo": "transformer.h.{}.attn.attention",
    "mpt": "transformer.blocks.{}.attn",
    "neox": "gpt_neox.layers.{}.attention",
    "opt": "model.decoder.layers.{}.self_attn",
    "biogpt": "biogpt.layers.{}.self_attn",
    "bart": "model.decoder.layers.{}.self_attn",
    "pegasus": "model.decoder.layers.{}.self_attn",
    "whisper": "model.decoder.layers.{}.self_attn",
    "t5": "decoder.block.{}.layer.0.SelfAttention",
}


def _positions(offset: int) -> _Change:
    """In calls of one token, positions are off."""

    def changed(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
        cache = given.get("cache")
        if cache is not None and _one(given) and given.get("position_ids") is None:
            known = int(cache.get_seq_length())
            tokens = given["input_ids"]
            given["position_ids"] = torch.full_like(tokens, known + offset)
        return forward(**given)

    return changed


def _learned_late(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
    output = forward(**given)
    return output.roll(1, -1) if output.shape[1] == 1 else output


def _without(name: str, one: bool) -> _Change:
    """Give a module no such argument; ``one``: in calls of one token only."""

    def changed(given: dict[str, Any], forward: Callable[..., Any]) -> Any:
        if _one(given) or not one:
            given[name] = None
        return forward(**given)

    return changed


def _t5_bias(model: nn.Module) -> None:
    attention: Any = model.get_submodule("decoder.block.0.layer.0.SelfAttention")
    compute = attention.compute_bias

    @functools.wraps(compute)
    def computed(query: int, key: int, device: Any = None, past_seen_tokens: int = 0) -> Any:
        return compute(query, key, device, max(0, past_seen_tokens - 1))

    attention.compute_bias = computed


def _conv_bug(model: nn.Module) -> None:
    """A state of the convolution is one step old."""
    _around(model, "model.layers.0.conv", _state("get_conv_state", lambda held: held.roll(1, -1)))


_ROTARY = "model.rotary_emb"
_CROSS = "decoder.block.1.layer.1.EncDecAttention"

DECODE_FAULTS = {
    # positions
    "llama: positions one late": DecodeFault(
        "llama", _in("model", _positions(1)), (_ROTARY,), argument="position_ids"
    ),
    "gpt2: positions one early": DecodeFault(
        "gpt2", _in("transformer", _positions(-1)), ("transformer",)
    ),
    "gptj: positions begin anew": DecodeFault(
        "gptj",
        _in("transformer", _positions(-FIRST)),
        ("transformer.rotary_emb",),
        argument="position_ids",
    ),
    "qwen3: rotary one late": DecodeFault(
        "qwen3", _in(_ROTARY, _argument("position_ids", lambda value: value + 1)), (_ROTARY,)
    ),
    "qwen2: rotary of the step before": _attention(
        "qwen2", _argument("position_embeddings", _Previous()), token=FIRST + 1
    ),
    "opt: learned positions one late": DecodeFault(
        "opt",
        _in("model.decoder.embed_positions", _learned_late),
        ("model.decoder.embed_positions",),
    ),
    "whisper: positions one late": DecodeFault(
        "whisper",
        _in("model.decoder.embed_positions", _argument("position_ids", lambda at: at + 1)),
        ("model.decoder.embed_positions",),
    ),
    "bart: positions begin anew": DecodeFault(
        "bart",
        _in("model.decoder.embed_positions", _argument("position_ids", lambda at: at - FIRST)),
        ("model.decoder.embed_positions",),
    ),
    "t5: bias of the token before": DecodeFault(
        "t5", _t5_bias, ("decoder.block.0.layer.0.SelfAttention",)
    ),
    "bloom: alibi shifted": _attention("bloom", _argument("alibi", lambda held: held.roll(1, -1))),
    "mpt: alibi reversed": _attention(
        "mpt", _argument("position_bias", lambda held: held.flip(-1))
    ),
    # what is written, and read
    "llama: written over the last": _attention("llama", _cache(_replaced_last)),
    "granite: not written": _attention("granite", _cache(_stale)),
    "olmo2: values not written": _attention(
        "olmo2", _cache(lambda read, new, at: read if read is None else _stale(read, new, at))
    ),
    "mistral: window one short": _attention(
        "mistral", _cache(lambda read, new, at: _oldest_lost(read, new, at))
    ),
    "gemma2: window one short": _attention("gemma2", _cache(_oldest_lost), layer=0),
    "qwen3: of another layer": DecodeFault(
        "qwen3", _in("model.layers.1.self_attn", _other_layer(1, 0)), ("model.layers.1.self_attn",)
    ),
    "cohere: rows of other samples": _attention("cohere", _cache(_rows_swapped)),
    "falcon: heads rolled": _attention("falcon", _cache(lambda read, new, at: read.flip(-1))),
    "stablelm: heads rolled": _attention("stablelm", _cache(_heads_rolled)),
    "mixtral: keys in reverse": _attention("mixtral", _cache(_reversed, values=False)),
    "neox: rounded to bfloat16": _attention("neox", _cache(_rounded(torch.bfloat16)), token=None),
    "phi: rounded to float16": _attention("phi", _cache(_rounded(torch.float16)), token=None),
    "gemma: rounded to float8": _attention(
        "gemma", _cache(_rounded(torch.float8_e4m3fn)), token=None
    ),
    "biogpt: old keys scaled": _attention("biogpt", _cache(_scaled(1.01), values=False)),
    "bigcode: old values scaled": _attention("bigcode", _cache(_scaled(0.99))),
    "starcoder2: one head lost": _attention(
        "starcoder2", _cache(lambda read, new, at: torch.cat([read[:, :1], read[:, 1:] * 0], 1))
    ),
    "gptneo: oldest key lost": _attention("gptneo", _cache(_oldest_lost), layer=0),
    "gemma3: rotary of the other kind": _attention(
        "gemma3",
        _argument("position_embeddings", lambda held: tuple(each.flip(-1) for each in held)),
    ),
    "qwen2 moe: written over the last": _attention("qwen2 moe", _cache(_replaced_last)),
    "llama: static cache one off": _attention(
        "llama", _cache(lambda read, new, at: read.roll(1, -2), static=True), way=DecodeWay.STATIC
    ),
    # cross attention
    "t5: cross attention of another layer": DecodeFault(
        "t5", _in(_CROSS, _other_layer(1, 0)), (_CROSS,)
    ),
    "t5: cross keys for values": DecodeFault("t5", _in(_CROSS, _cross_swapped), (_CROSS,)),
    "pegasus: cross attention of another layer": DecodeFault(
        "pegasus",
        _in("model.decoder.layers.1.encoder_attn", _other_layer(1, 0)),
        ("model.decoder.layers.1.encoder_attn",),
    ),
    "whisper: cross keys for values": DecodeFault(
        "whisper",
        _in("model.decoder.layers.0.encoder_attn", _cross_swapped),
        ("model.decoder.layers.0.encoder_attn",),
    ),
    # states
    "mamba2: state decays": DecodeFault(
        "mamba2",
        _in("backbone.layers.1.mixer", _state("get_recurrent_state", lambda held: held * 0.99)),
        ("backbone.layers.1.mixer",),
    ),
    "lfm2: state one step old": DecodeFault("lfm2", _conv_bug, ("model.layers.0.conv",)),
    # padding and chunks
    "llama: mask of padding ignored": _attention(
        "llama", _without("attention_mask", False), token=None, way=None
    ),
    "qwen2: mask of padding ignored by one token": _attention(
        "qwen2", _without("attention_mask", True), token=None, way=None
    ),
    "llama: mask of a chunk": _attention(
        "llama", _no_mask_behind_cache, token=None, way=DecodeWay.CHUNKED
    ),
    "qwen3: generate() counts padding": DecodeFault(
        "qwen3",
        _positions_of_places,
        (_ROTARY,),
        token=None,
        argument="position_ids",
        way=DecodeWay.GENERATE_UNEQUAL,
    ),
}


def faulty(name: str) -> Case:
    fault = DECODE_FAULTS[name]
    case = clean(fault.model)
    fault.plant(case.model)
    return case


def __getattr__(name: str) -> Callable[[], Case]:
    if name in DECODE_FAULTS:
        return functools.partial(faulty, name)
    raise AttributeError(name)
