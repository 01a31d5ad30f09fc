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
    keep_errors,
    own_baseline,
    parse_precisions,
)
from accucompare.compare.limits.limits_in_force import (
    CEILING,
    COPIES,
    DEFAULT_REL_L2,
    LimitsInForce,
)
from accucompare.compare.limits.provenance import (
    OtherCode,
    Surrounding,
    other_code,
    other_configuration,
    other_optimizer,
    other_surroundings,
)
from accucompare.compare.limits.rules import Rule, read_rules
from accucompare.compare.limits.smallest_limit import SmallestLimit
from accucompare.compare.limits.suggested_baseline import (
    Suggestion,
    float_dtype,
    product_formats,
    suggest_baseline,
    suggested,
)
from accucompare.compare.limits.tolerance import COARSE, EXACT, Tolerance, with_ceiling

__all__ = [
    "BASELINE_ERRORS",
    "CEILING",
    "COARSE",
    "COPIES",
    "DEFAULT_REL_L2",
    "EXACT",
    "NORMAL",
    "PRECISIONS",
    "Expected",
    "LimitsInForce",
    "OtherCode",
    "Rule",
    "SmallestLimit",
    "Suggestion",
    "Surrounding",
    "Tolerance",
    "check_baseline",
    "check_beside",
    "check_dtypes",
    "check_feed",
    "differing",
    "excess",
    "excess_limit",
    "float_dtype",
    "floor",
    "is_half",
    "keep_errors",
    "other_code",
    "other_configuration",
    "other_optimizer",
    "other_surroundings",
    "own_baseline",
    "parse_precisions",
    "partners",
    "precision_of",
    "product_formats",
    "ratio_limit",
    "read_rules",
    "suggest_baseline",
    "suggested",
    "why_not",
    "with_ceiling",
]
