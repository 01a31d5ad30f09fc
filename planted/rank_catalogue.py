"""All faults of training on several ranks."""

from planted.context_faults import CONTEXT_FAULTS
from planted.rank_faults import CATALOGUE

ALL_FAULTS = (*CATALOGUE, *CONTEXT_FAULTS)
