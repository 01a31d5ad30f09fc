"""Host memory that tensors are copied into."""

from __future__ import annotations

import re
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


@pytest.mark.skipif(
    not _SETTING.exists() or "[never]" in _SETTING.read_text(),
    reason="this system has no huge pages",
)
def test_a_large_block_asks_for_huge_pages_so_that_writing_it_first_takes_few_page_faults() -> None:
    block = devices.backend("cpu").host_memory(128 << 20)
    maps = Path("/proc/self/smaps").read_text()
    (flags,) = (
        area.partition("VmFlags:")[2].split()
        for area in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", maps, flags=re.MULTILINE)[1:]
        if int(area.partition("-")[0], 16)
        <= block.data_ptr()
        < int(area.partition("-")[2].split()[0], 16)
    )
    # asked for; whether there are some is the system's business, and no test's
    assert "hg" in flags
