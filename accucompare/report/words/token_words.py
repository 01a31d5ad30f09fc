"""What is said of tokens that went to other experts."""

from __future__ import annotations

from accucompare.compare import remarks
from accucompare.compare.remarks import PairRemark
from accucompare.report.words.layout_words import ranks_in_words


def token_words(remark: PairRemark) -> str:
    """How tokens were paired and routed; ``""`` for any other remark."""
    match remark:
        case remarks.TokensElsewhere(0, 0):
            return "no token came here"
        case remarks.TokensElsewhere(golden, candidate, of, by_rounding, ranks):
            on = f" on {ranks_in_words(ranks)}" if ranks else ""
            came = f"; {candidate:,} came from elsewhere{on}" if candidate else ""
            why = ", by the router's rounding" if by_rounding else ""
            return f"{golden:,} of {of:,} tokens went elsewhere{came}{why}"
        case remarks.RowsAlike(rows, of):
            return f"{rows:,} of {of:,} rows are of nearly equal tokens, and cannot be told apart"
        case remarks.UsedToChoose(same=True):
            return "it leads to the same choice as in golden"
        case remarks.UsedToChoose(number):
            return f"it is compared with {number:g}, beside which its error is small"
        case remarks.RoutedOtherwise():
            return _routed(remark)
        case remarks.AfterRouting(tokens, of, router, own=True):
            return (
                f"rounding in {router} routed {tokens:,} of {of:,} tokens otherwise, and its"
                " backward goes through its own choices"
            )
        case remarks.AfterRouting(tokens, of, module, of_operator=name) if name:
            return (
                f"rounding in {module or '(root)'} made {name} choose otherwise in {tokens:,} of"
                f" {of:,} places, and this came after that; a fed capture (--feed) judges it"
            )
        case remarks.AfterRouting(tokens, of, router):
            return (
                f"rounding in {router} routed {tokens:,} of {of:,} tokens otherwise, and this was"
                " computed after that; a fed capture (--feed) judges it"
            )
    return ""


def _routed(remark: remarks.RoutedOtherwise) -> str:
    if not remark.tokens:
        return "the same experts in another order"
    told = f"{remark.tokens:,} of {remark.of:,} tokens routed otherwise"
    if remark.of_operator:
        told = f"chosen otherwise in {remark.tokens:,} of {remark.of:,} places"
    if remark.margin is None or remark.apart is None:
        return f"{told}; the scores that decided are not known"
    why = "rounding" if remark.by_rounding else "more than rounding"
    return (
        f"{told}; the largest margin {remark.margin:.1g}, where the scores are {remark.apart:.1g}"
        f" apart: {why}"
    )
