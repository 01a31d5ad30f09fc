"""Host memory that tensors are copied into."""

from __future__ import annotations

import resource
from pathlib import Path

import pytest
import torch

from accucompare import devices

_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def test_a_large_block_is_as_long_as_was_asked_for_and_holds_what_is_written() -> None:
    nbytes = (65 << 20) + 12
    block = devices.backend("cpu").host_memory(nbytes)
    values = torch.arange(nbytes // 4, dtype=torch.int32)
    block.view(torch.int32).copy_(values)
    assert block.numel() == nbytes
    assert torch.equal(block.view(torch.int32), values)


@pytest.mark.skipif(not _SETTING.exists() or "[never]" in _SETTING.read_text(), reason="this system has no huge pages")
def test_writing_a_large_block_for_the_first_time_takes_few_page_faults() -> None:
    nbytes = 128 << 20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    devices.backend("cpu").host_memory(nbytes).fill_(1)
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    assert faults < nbytes // 4096 // 2  # half of the pages, for the system may be short of huge ones
