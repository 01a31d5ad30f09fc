"""Host memory: how much is in use or kept, when it is used again, and who waits for it."""

from __future__ import annotations

import threading

import pytest

from accucompare.bundle.writing import memory as module
from accucompare.bundle.writing.memory import HostMemory, Lease


def block(nbytes: int) -> bytearray:
    return bytearray(nbytes)


def memory(limit: int) -> HostMemory:
    return HostMemory(limit, lambda: True)


def release(*leases: Lease) -> None:
    for lease in leases:
        lease.release()


def test_a_released_block_is_used_again_for_a_tensor_of_its_size() -> None:
    host = memory(100)
    first = host.take(10, block)
    release(first)
    assert host.take(10, block).block is first.block


def test_a_block_in_use_is_never_given_out_again() -> None:
    host = memory(100)
    blocks = [host.take(10, block).block for _ in range(3)]
    assert len({id(each) for each in blocks}) == 3


def test_blocks_of_another_kind_are_not_mixed_up() -> None:
    host = memory(100)
    release(host.take(10, bytearray))
    assert (host.take(10, block).block, host.idle) == (block(10), 10)


def test_sizes_that_grow_step_by_step_share_blocks() -> None:
    host = memory(1 << 30)
    for nbytes in range(1_000_000, 2_000_000, 1000):
        lease = host.take(nbytes, block)
        assert nbytes <= len(lease.block) <= nbytes * 9 / 8
        release(lease)
    assert host.idle < 16_000_000  # blocks of ten sizes; a thousand would take 1.5 GB


def test_what_is_in_use_and_what_is_kept_never_exceed_the_bound_together() -> None:
    host = memory(100)
    release(*[host.take(20, block) for _ in range(5)])
    assert (host.held, host.idle) == (0, 100)
    lease = host.take(30, block)
    assert (host.held, host.idle) == (30, 60)
    release(lease)
    assert host.held + host.idle <= 100


def test_a_tensor_larger_than_the_bound_is_alone_and_not_kept() -> None:
    host = memory(100)
    release(host.take(50, block))
    large = host.take(1000, block)
    assert (host.idle, len(large.block)) == (0, 1024)
    release(large)
    assert (host.held, host.idle) == (0, 0)


def test_memory_of_the_callers_own_is_counted_and_not_kept() -> None:
    host = memory(100)
    lease = host.take(77)
    assert (lease.block, host.held) == (None, 77)
    release(lease)
    assert (host.held, host.idle) == (0, 0)


def test_an_empty_tensor_gets_an_empty_block() -> None:
    assert memory(1).take(0, block).block == b""


def waiting(host: HostMemory) -> tuple[threading.Thread, list[Lease]]:
    """A thread that has begun to wait for 60 bytes, and what it gets."""
    begun = threading.Event()
    taken: list[Lease] = []
    plain = host._changed.wait

    def wait(timeout: float | None = None) -> bool:
        begun.set()
        return plain(timeout)

    host._changed.wait = wait  # type: ignore[method-assign]
    thread = threading.Thread(target=lambda: taken.append(host.take(60, block)), daemon=True)
    thread.start()
    assert begun.wait(3600)
    return thread, taken


def test_who_waits_goes_on_when_there_is_room() -> None:
    host = memory(100)
    lease = host.take(60, block)
    thread, taken = waiting(host)
    assert not taken
    release(lease)
    thread.join(3600)
    assert taken[0].block is lease.block


def test_who_waits_goes_on_when_it_is_closed() -> None:
    host = memory(100)
    lease = host.take(60, block)
    thread, taken = waiting(host)
    host.close()
    thread.join(3600)
    assert len(taken[0].block) == 60
    release(lease, taken[0])
    assert (host.held, host.idle) == (0, 0)


def test_nobody_waits_where_nobody_could_release_anything() -> None:
    host = HostMemory(100, lambda: False)
    host.take(60, block)
    assert len(host.take(60, block).block) == 60
    assert host.closed


def test_memory_that_cannot_be_had_is_not_counted() -> None:
    host = memory(100)

    def fails(nbytes: int) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        host.take(50, fails)
    assert host.held == 0


def test_the_next_capture_uses_the_blocks_of_the_last_one() -> None:
    host = memory(100)
    lease = host.take(10, block)
    release(lease)
    host.leave()
    assert memory(100).take(10, block).block is lease.block


def test_two_captures_at_a_time_share_no_blocks() -> None:
    host = memory(100)
    release(host.take(10, block))
    host.leave()
    first, second = memory(100), memory(100)
    assert (first.idle, second.idle) == (10, 0)


def test_a_capture_with_a_smaller_bound_keeps_no_more_than_that() -> None:
    host = memory(100)
    release(host.take(60, block), host.take(10, block))
    host.leave()
    assert memory(20).idle <= 20


def test_a_process_keeps_a_bounded_number_of_bytes_between_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 50)
    host = memory(1000)
    release(*[host.take(20, block) for _ in range(5)])
    host.leave()
    assert memory(1000).idle == 40
