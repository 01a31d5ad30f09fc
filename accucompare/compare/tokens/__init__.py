"""Tokens that travel to experts: rows are paired by identity, and routing is judged."""

from accucompare.compare.tokens.inner_choices import Scores as Scores
from accucompare.compare.tokens.paired_sides import PairedSides as PairedSides
from accucompare.compare.tokens.paired_sides import call_of_pair as call_of_pair
from accucompare.compare.tokens.routing import Routing as Routing
from accucompare.compare.tokens.routing import routings as routings
from accucompare.compare.tokens.row_labels import HeldRows as HeldRows
from accucompare.compare.tokens.row_labels import RowLabels as RowLabels
from accucompare.compare.tokens.row_labels import paired_rows as paired_rows
from accucompare.compare.tokens.row_labels import row_digests as row_digests
from accucompare.compare.tokens.token_pairs import PairedTokens as PairedTokens
from accucompare.compare.tokens.token_pairs import pairs_by_token as pairs_by_token
from accucompare.compare.tokens.token_pairs import with_tokens as with_tokens
