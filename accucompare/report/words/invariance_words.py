"""What is said of samples in other batches."""

from __future__ import annotations

from accucompare.bundle.format import Role, display_name
from accucompare.compare.reruns import (
    Invariance,
    InvarianceAnswer,
    LayerChange,
    NotVariedWhy,
    Variant,
    VariantOutcome,
    Variation,
)
from accucompare.text import counted, printable

NOT_LOOKED_AT = {
    NotVariedWhy.NO_MASK: (
        "the inputs have no mask by name that tells padding (attention_mask, …key_padding_mask)"
    ),
    NotVariedWhy.NO_POSITIONS: (
        "the model takes no position_ids, so its positions may count padding on the left; give a"
        " batch that is padded so, if it should not"
    ),
    NotVariedWhy.OWN_POSITIONS: (
        "the model's positions are not the tokens' places; give position_ids in the case's inputs"
    ),
    NotVariedWhy.FIRST_TOKEN: (
        "the model does not generate, so it may take the first token for the sequence; give a"
        " batch that is padded so, if it should not"
    ),
    NotVariedWhy.NO_PADDING: "no sample of the batch is padded",
    NotVariedWhy.NOT_ON_CPU: "only a CPU has threads to choose",
    NotVariedWhy.TWO_SAMPLES: "a smaller batch of two samples is one alone",
}

_LOOK = {
    Variation.AGAIN: "the case does not repeat itself: accucompare repeat",
    Variation.LATER: "look for state that the module keeps from one call to the next",
    Variation.RIGHT: "look at what the module does with padded tokens: its mask, its sums",
    Variation.LEFT: "look at the module's mask, and at positions that count padding",
    Variation.UNPADDED: "look at the module's mask, and at positions that count padding",
    Variation.THREADS: "look for a race, or a kernel that depends on the number of threads",
}
_LOOK_AT_ROWS = (
    "look for what the module takes from other samples: sums, maxima, reshapes over them (if"
    " samples are not the first axis of the inputs: --batch-axis)"
)


def invariance_headline(found: Invariance) -> str:
    runs = counted(len(found.outcomes), "run")
    match found.answer:
        case InvarianceAnswer.BROKEN:
            first = found.failing[0]
            more = len(found.failing)
            return (
                f"more than rounding in {more} of {runs}; {variant_words(first.variant)}: begins at"
                f" {change_place(_shown(first))}"
            )
        case InvarianceAnswer.NOT_SURE:
            return (
                "not sure: no output of the model has its samples in one axis, in"
                f" {counted(len(found.unseen), 'run')} of {len(found.outcomes)}"
            )
        case InvarianceAnswer.ROUNDING:
            fails = "; --bitwise asks for equal bits" if found.bitwise else ""
            return f"rounding, in {len(found.changed)} of {runs}; the others have equal bits{fails}"
    return f"invariant: equal bits in {runs}"


def what_was_run(found: Invariance) -> str:
    """What was run, and by what it is judged."""
    dtype = f" in {found.dtype}" if found.dtype else ""
    by = (
        "rounding is measured by a run in float64"
        if found.baseline
        else "no run in float64 was possible, so the limits are those of the type"
    )
    return f"{found.samples} samples on {found.device}{dtype}; {by}"


def variant_words(variant: Variant) -> str:
    """``alone, sample 2``."""
    match variant.kind:
        case Variation.ALONE:
            return f"alone, sample {variant.rows[0]}"
        case Variation.UNPADDED:
            return f"without padding, sample {variant.rows[0]} alone"
        case Variation.THREADS:
            return f"on {counted(variant.threads, 'thread')}"
        case Variation.FEWER | Variation.MORE:
            return f"{variant.kind}, {counted(len(variant.rows), 'sample')}"
    return str(variant.kind)


def change_place(change: LayerChange) -> str:
    """``layers.3.self_attn (LlamaAttention) call 1, output 0``."""
    call = f" call {change.call}" if change.call else ""
    kind = f" ({printable(change.type)})" if change.type else ""
    role = "the code before it, input" if change.role == Role.INPUT else "output"
    path = f" {printable(change.path)}" if change.path else ""
    return f"{display_name(change.name)}{kind}{call}, {role}{path}"


def change_size(change: LayerChange) -> str:
    """``12 ULP, relative L2 3.1e-07, rounding 2e-07, 0.3 x limit``."""
    parts = [] if change.ulp is None else [f"{change.ulp} ULP"]
    parts.append(f"relative L2 {change.rel_l2:.2g}")
    if change.rounding is not None:
        parts.append(f"rounding {change.rounding:.2g}")
    return ", ".join([*parts, f"{change.over_limit:.2g} x limit"])


def what_changed(outcome: VariantOutcome) -> str:
    """Where a run's samples begin to change, and how far its outputs do."""
    if not outcome.outputs:
        return (
            f"no output of the model could be compared; {counted(outcome.looked, 'other tensor')}"
        )
    if outcome.first is None:
        return f"equal bits in {counted(outcome.looked, 'tensor')}{_left(outcome)}"
    shown = _shown(outcome)
    hidden = " in float64, where rounding hides less," if _is_hidden(outcome) else ""
    text = f"from{hidden} {change_place(shown)}: {change_size(shown)}"
    if outcome.fails and outcome.first not in (shown, None):
        text += f"; bits change from {change_place(outcome.first)} on"
    if outcome.more and not outcome.fails:
        text += (
            "; positions are counted from another token, which changes layers by more, but not the"
            " outputs"
        )
    at = outcome.at_outputs
    outputs = "its outputs have equal bits" if at is None else f"outputs: {change_size(at)}"
    return f"{text}; {outputs}{_left(outcome)}"


def invariance_cure(outcome: VariantOutcome) -> str:
    return _LOOK.get(outcome.variant.kind, _LOOK_AT_ROWS) if outcome.fails else ""


def _shown(outcome: VariantOutcome) -> LayerChange:
    """Where it begins: with more than rounding, if that fails."""
    if _is_hidden(outcome):
        assert outcome.exact is not None
        return _shown(outcome.exact)
    shown = outcome.first_more if outcome.fails else outcome.first
    assert shown is not None
    return shown


def _is_hidden(outcome: VariantOutcome) -> bool:
    """Whether it is more than rounding in float64 only."""
    return outcome.fails and not outcome.fails_itself


def _left(outcome: VariantOutcome) -> str:
    return f"; {outcome.left} more not row by row" if outcome.left else ""
