"""What a diff finds, as data: rows, verdicts, and the tasks they come from."""

from accucompare.compare.rows.one_sided import explained, never_called
from accucompare.compare.rows.operator_rows import (
    OperatorHint,
    OperatorKey,
    OperatorPlace,
    blame,
    is_operator,
    is_option,
    operator_of,
    options_differ,
    with_options,
    without_partner,
)
from accucompare.compare.rows.outcomes import (
    PairOutcome,
    Proof,
    Task,
    because,
    nbytes,
    row_of,
    same_bits,
    with_baseline,
    with_parameters,
)
from accucompare.compare.rows.rows import (
    STATUS_OF,
    UNMATCHED,
    Difference,
    Option,
    Reason,
    Row,
    Status,
    Verdict,
)
from accucompare.compare.rows.same_model import less_than_half, other_model
from accucompare.compare.rows.written_values import (
    buffer_of,
    is_buffer,
    is_wrong,
    one_sided_writes,
    owner_of,
)
