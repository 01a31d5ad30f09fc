"""How large an error may be: by tolerances, or by what a baseline shows of rounding.

The numbers themselves are in ``compare.constants``."""

from accucompare.compare.limits.baseline import (
    NORMAL,
    Expected,
    check_baseline,
    check_beside,
    check_dtypes,
    check_feed,
    differing,
    excess,
    excess_limit,
    floor,
    is_half,
    partners,
    precision_of,
    ratio_limit,
    why_not,
)
from accucompare.compare.limits.golden_baselines import (
    BASELINE_ERRORS,
    PRECISIONS,
    Suggestion,
    float_dtype,
    keep_errors,
    own_baseline,
    parse_precisions,
    product_formats,
    suggest_baseline,
    suggested,
)
from accucompare.compare.limits.limits_in_force import (
    CEILING,
    COPIES,
    DEFAULT_REL_L2,
    LimitsInForce,
    Rule,
    read_rules,
)
from accucompare.compare.limits.provenance import (
    OtherCode,
    Surrounding,
    other_code,
    other_configuration,
    other_optimizer,
    other_surroundings,
)
from accucompare.compare.limits.tolerance import (
    COARSE,
    EXACT,
    SmallestLimit,
    Tolerance,
    with_ceiling,
)
