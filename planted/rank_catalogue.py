"""All faults of training on several ranks."""

from planted.context_faults import CONTEXT_FAULTS
from planted.expert_faults import EXPERT_FAULTS
from planted.megatron_faults import MEGATRON_FAULTS
from planted.megatron_spread_faults import MEGATRON_SPREAD_FAULTS
from planted.pipeline_faults import PIPELINE_FAULTS
from planted.rank_faults import CATALOGUE

ALL_FAULTS = (
    *CATALOGUE,
    *EXPERT_FAULTS,
    *PIPELINE_FAULTS,
    *CONTEXT_FAULTS,
    *MEGATRON_FAULTS,
    *MEGATRON_SPREAD_FAULTS,
)
