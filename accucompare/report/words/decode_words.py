"""What is said of a sequence that was computed with a cache."""

from __future__ import annotations

from accucompare.bundle.format import Role, display_name
from accucompare.compare.reruns import (
    DecodeAnswer,
    Decoded,
    DecodeOutcome,
    DecodeWay,
    NotDecodedWhy,
    TokenDifference,
)
from accucompare.text import counted, printable

NOT_DECODED = {
    NotDecodedWhy.NO_MASK: "the model takes no attention_mask",
    NotDecodedWhy.NO_POSITIONS: (
        "the model takes no position_ids, and padding on the left changes its results even without"
        " a cache"
    ),
    NotDecodedWhy.NO_GAPS: (
        "even without a cache, padding between tokens changes the model's results: it counts"
        " distances by place"
    ),
    NotDecodedWhy.OWN_PROTOCOL: "the case's own functions take one token after the other",
    NotDecodedWhy.ENCODER_DECODER: "a decoder's sequence begins with its first token",
    NotDecodedWhy.STATE: (
        "a state takes the mask of new tokens only; generate() is run with padding in its place"
    ),
    NotDecodedWhy.NO_CACHE: "the model gives no cache back; generate() gives it one of its own",
    NotDecodedWhy.NO_STATIC: "the model does not say that it takes a static cache",
    NotDecodedWhy.SHORT: "the sequence is too short; give a longer one, or a smaller --decode",
    NotDecodedWhy.NO_GENERATE: "the model does not generate from tokens",
    NotDecodedWhy.QUANTIZED: (
        "generate() has a quantized cache (cache_implementation), which rounds on purpose"
    ),
}

_LOOK = {
    DecodeWay.TOKENS: (
        "look at what the module takes from the cache: positions, masks, the order and number of"
        " its keys and values"
    ),
    DecodeWay.CHUNKED: "look at what the module does with several tokens after a cache: its mask",
    DecodeWay.STATIC: "look at the places that the module writes to and reads in the cache",
    DecodeWay.LEFT: "look at the module's mask, and at positions that count padding",
    DecodeWay.UNEQUAL: "look at the module's mask, and at positions that count padding",
    DecodeWay.RIGHT: "look at the module's mask, and at positions that count padding",
    DecodeWay.GENERATE_UNEQUAL: (
        "look at prepare_inputs_for_generation(), and at what the module does with padding"
    ),
    DecodeWay.GENERATE: "look at prepare_inputs_for_generation(): positions and masks",
}


def decode_headline(found: Decoded) -> str:
    runs = counted(len(found.outcomes), "run")
    match found.answer:
        case DecodeAnswer.BROKEN:
            first = found.failing[0]
            assert first.first is not None
            return (
                f"more than rounding in {len(found.failing)} of {runs}; {way_words(first, found)}:"
                f" begins at {token_place_words(first.first)}"
            )
        case DecodeAnswer.NOT_SURE:
            if found.anticipates is not None:
                where = f", from {display_name(found.anticipates)} on" if found.anticipates else ""
                return (
                    f"not sure: the model's outputs change with later tokens{where}, so no cache"
                    " can give them"
                )
            return f"not sure: {what_differs(found.unsure[0])}, {found.unsure[0].way}"
    return (
        f"rounding: {counted(found.steps, 'token')} with the cache are those of the whole sequence"
    )


def how_decoded(found: Decoded) -> str:
    """What was run, and by what it is judged."""
    dtype = f" in {found.dtype}" if found.dtype else ""
    by = (
        f"golden is the whole sequence in {found.golden}; rounding is measured by the whole in the"
        " same type"
        if found.golden != found.dtype
        else f"golden is the whole sequence in {found.golden}, so the limits are those of the type"
    )
    return (
        f"{counted(found.tokens, 'token')} of {counted(found.samples, 'sample')} on"
        f" {found.device}{dtype}, the last {found.steps} one by one; {by}"
    )


def way_words(outcome: DecodeOutcome, of: Decoded) -> str:
    """``padded left, in float32``."""
    dtype = "" if outcome.dtype == of.dtype else f", in {outcome.dtype}"
    return f"{outcome.way}{dtype}"


def token_place_words(found: TokenDifference) -> str:
    """``token 17, in layers.3.self_attn (LlamaAttention): position_ids``."""
    sample = f" of sample {found.sample}" if found.sample else ""
    call = f" call {found.call}" if found.call else ""
    at = f"token {found.token}{sample}, in "
    of_child = f"{display_name(found.name)}{call} ({printable(found.type)})"
    if found.role == Role.INPUT and not found.argument:
        parent = display_name(found.parent or "")
        return f"{at}{parent}: its own code before {of_child}"
    if found.argument:
        keys = ""
        if found.keys is not None:
            here, golden = found.keys
            keys = f" (sees {counted(here, 'key')}, golden {golden})"
        return f"{at}{of_child}: {printable(found.argument)}{keys}"
    path = f" {printable(found.path)}" if found.path else ""
    return f"{at}{of_child}: output{path}"


def token_size(found: TokenDifference) -> str:
    """``relative L2 0.3, rounding 2e-07, 1e+05 x limit``."""
    if found.keys is not None:
        return "other keys"
    parts = [f"relative L2 {found.rel_l2:.2g}"]
    if found.rounding is not None:
        parts.append(f"rounding {found.rounding:.2g}")
    return ", ".join([*parts, f"{found.over_limit:.2g} x limit"])


def what_differs(outcome: DecodeOutcome) -> str:
    """Where a run begins to differ, or what of it was seen."""
    raised = f"the model raised {printable(outcome.raised)}" if outcome.raised else ""
    if outcome.first is not None:
        text = f"from {token_place_words(outcome.first)}: {token_size(outcome.first)}"
        return f"{text}; {raised}" if raised else text
    if raised:
        return raised
    if outcome.unseen:
        return (
            f"the model's outputs of {counted(len(outcome.unseen), 'token')} could not be compared"
        )
    choices = ""
    if outcome.choices:
        choices = f"; {counted(outcome.choices, 'choice')} of nearly equal values differ"
    left = f"; {outcome.left} more not by token" if outcome.left else ""
    return (
        f"{counted(outcome.looked, 'value')} of each token's, the largest error"
        f" {outcome.nearest:.2g} x limit{choices}{left}"
    )


def decode_cure(outcome: DecodeOutcome) -> str:
    return _LOOK[outcome.way] if outcome.fails else ""
