"""Element types, sums, statistics, digests and the compiled kernel. NumPy only, never torch."""

from accucompare.numbers import digests, kernel, sums
from accucompare.numbers.digests import digest, digest_of_segments, fingerprint, same_fingerprint
from accucompare.numbers.dtypes import DTYPES, Array, DType, Kind, round_to, widen
from accucompare.numbers.row_hashes import RowHashes, merged, read_rows
from accucompare.numbers.sketch import (
    GROUPS,
    ROWS,
    SKETCH_BLOCK,
    SKETCH_VERSION,
    TABLES,
    Products,
    block_places,
    deviation,
    distance,
    power_near,
    products,
    random_numbers,
    sign_tables,
    sketch_of,
    sketch_values,
)
from accucompare.numbers.statistics import AnyNumber, Count, Statistics, summarize
from accucompare.numbers.sums import (
    BLOCK,
    CHUNK,
    Float64,
    as_reals,
    chunk_dots,
    chunk_sums,
    power_of_two_near,
)
