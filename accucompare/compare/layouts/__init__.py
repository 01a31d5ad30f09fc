"""How the ranks' records make up the tensors of the global model."""

from accucompare.compare.layouts.arrange import IncompleteError
from accucompare.compare.layouts.as_one import as_one, own_clipping, without_parts
from accucompare.compare.layouts.batch_rows import rows_of_ranks
from accucompare.compare.layouts.finding_names import names_of_ranks
from accucompare.compare.layouts.given_layouts import GivenLayout, read_layouts
from accucompare.compare.layouts.golden_parts import GoldenParts
from accucompare.compare.layouts.layout_checks import check_layout
from accucompare.compare.layouts.mesh import SAME_BATCH, UNKNOWN, Mesh
from accucompare.compare.layouts.microbatches import given_to_none, of_first_stages
from accucompare.compare.layouts.padding import padded_like
from accucompare.compare.layouts.put_back import UnderGoldenNames
from accucompare.compare.layouts.put_together import (
    global_tensors,
    interleaved,
    reordered,
    scaled,
    with_replicas,
    with_sums,
)
from accucompare.compare.layouts.rank_names import NameEvidence, RankNames, StageOf
from accucompare.compare.layouts.rank_parts import RankParts, rank_parts
from accucompare.compare.layouts.rank_records import RankRecords
from accucompare.compare.layouts.shares import size_of_terms, sizes_of_fed_sums
from accucompare.compare.layouts.unify import Unified, unify

__all__ = [
    "SAME_BATCH",
    "UNKNOWN",
    "GivenLayout",
    "GoldenParts",
    "IncompleteError",
    "Mesh",
    "NameEvidence",
    "RankNames",
    "RankParts",
    "RankRecords",
    "StageOf",
    "UnderGoldenNames",
    "Unified",
    "as_one",
    "check_layout",
    "given_to_none",
    "global_tensors",
    "interleaved",
    "names_of_ranks",
    "of_first_stages",
    "own_clipping",
    "padded_like",
    "rank_parts",
    "read_layouts",
    "reordered",
    "rows_of_ranks",
    "scaled",
    "size_of_terms",
    "sizes_of_fed_sums",
    "unify",
    "with_replicas",
    "with_sums",
    "without_parts",
]
