"""Tokens that travel to experts: rows are paired by identity, and routing is judged."""

from accucompare.compare.tokens.inner_choices import Scores
from accucompare.compare.tokens.paired_sides import PairedSides, call_of_pair
from accucompare.compare.tokens.routing import Routing
from accucompare.compare.tokens.row_labels import HeldRows, RowLabels, paired_rows, row_digests
from accucompare.compare.tokens.token_pairs import PairedTokens, pairs_by_token, with_tokens

__all__ = [
    "HeldRows",
    "PairedSides",
    "PairedTokens",
    "Routing",
    "RowLabels",
    "Scores",
    "call_of_pair",
    "paired_rows",
    "pairs_by_token",
    "row_digests",
    "with_tokens",
]
