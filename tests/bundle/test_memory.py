"""Host memory: how much is in use or kept, when it is used again, and who waits for it."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from accucompare.bundle.writing import memory as module
from accucompare.bundle.writing.memory import HostMemory, Lease
from accucompare.numbers import Array


def block(nbytes: int) -> Array:
    return np.zeros(nbytes, np.uint8)


def other(nbytes: int) -> Array:
    return np.zeros(nbytes, np.uint8)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of single bytes, slabs of a hundred; nothing is left of an earlier capture."""
    monkeypatch.setattr(module, "GRAIN", 1)
    monkeypatch.setattr(module, "SLAB", 100)
    monkeypatch.setattr(module, "_between", [])


def memory(limit: int) -> HostMemory:
    return HostMemory(limit, lambda: True)


def release(*leases: Lease) -> None:
    for lease in leases:
        lease.release()


def address(lease: Lease) -> int:
    assert lease.block is not None
    return lease.block.ctypes.data


def test_a_released_block_is_used_again_for_the_next_tensor() -> None:
    host = memory(100)
    first = host.take(10, block)
    release(first)
    assert address(host.take(7, block)) == address(first)


def test_blocks_in_use_never_overlap() -> None:
    host, rng, held = memory(1000), np.random.default_rng(0), dict[int, Lease]()
    for number in range(1, 200):
        if len(held) == 12:
            release(held.pop(int(rng.choice([*held]))))
        lease = held[number] = host.take(int(rng.integers(1, 60)), block)
        assert lease.block is not None
        lease.block[:] = number
        assert all((each.block == key).all() for key, each in held.items())


def test_released_neighbours_make_room_for_a_larger_tensor() -> None:
    host = memory(100)
    leases = [host.take(25, block) for _ in range(4)]
    release(leases[2], leases[0], leases[1])
    assert address(host.take(75, block)) == address(leases[0])


def test_blocks_of_another_kind_are_not_mixed_up() -> None:
    host = memory(200)
    first = host.take(10, block)
    release(first)
    assert address(host.take(10, other)) != address(first)


def test_what_is_in_use_and_what_is_kept_never_exceed_the_bound_together() -> None:
    host = memory(250)
    release(*[host.take(50, block) for _ in range(5)])
    for nbytes in (120, 50, 50):
        host.take(nbytes, block)
        assert host.held <= host.kept <= 250


def test_memory_of_the_callers_own_takes_the_room_of_what_is_kept() -> None:
    host = memory(100)
    release(host.take(10, block))
    lease = host.take(77)
    assert (lease.block, host.held, host.kept) == (None, 77, 0)
    release(lease)
    assert host.held == 0


def test_a_tensor_larger_than_the_bound_is_alone() -> None:
    host = memory(100)
    release(host.take(50, block))
    large = host.take(1000, block)
    assert (large.block is not None and large.block.size, host.kept) == (1000, 1000)
    release(large)
    host.take(1)
    assert host.kept == 0


def test_an_empty_tensor_gets_an_empty_block() -> None:
    lease = memory(1).take(0, block)
    assert lease.block is not None
    assert lease.block.size == 0


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
    assert address(taken[0]) == address(lease)


def test_who_finds_room_only_in_small_pieces_waits_for_their_neighbours() -> None:
    host = memory(100)
    leases = [host.take(25, block) for _ in range(4)]
    release(leases[0], leases[2])
    thread, taken = waiting(host)
    release(leases[1])
    thread.join(3600)
    assert address(taken[0]) == address(leases[0])


def test_who_waits_goes_on_when_it_is_closed() -> None:
    host = memory(100)
    lease = host.take(60, block)
    thread, taken = waiting(host)
    host.close()
    thread.join(3600)
    assert taken[0].block is not None
    assert taken[0].block.size == 60
    release(lease, taken[0])
    assert (host.held, host.kept) == (0, 0)


def test_nobody_waits_where_nobody_could_release_anything() -> None:
    host = HostMemory(100, lambda: False)
    host.take(60, block)
    assert host.take(60, block).block is not None
    assert host.closed


def test_memory_that_cannot_be_had_is_not_counted() -> None:
    host = memory(100)

    def fails(nbytes: int) -> None:
        raise MemoryError

    with pytest.raises(MemoryError):
        host.take(50, fails)
    assert (host.held, host.kept) == (0, 0)


def test_the_next_capture_uses_the_memory_of_the_last_one() -> None:
    host = memory(100)
    lease = host.take(10, block)
    release(lease)
    host.leave()
    assert address(memory(100).take(10, block)) == address(lease)


def test_memory_that_is_still_in_use_is_not_left_to_the_next_capture() -> None:
    host = memory(100)
    host.take(10, block)
    host.leave()
    assert memory(100).kept == 0


def test_two_captures_at_a_time_share_no_memory() -> None:
    host = memory(100)
    release(host.take(10, block))
    host.leave()
    first, second = memory(100), memory(100)
    assert (first.kept, second.kept) == (100, 0)


def test_a_capture_with_a_smaller_bound_keeps_no_more_than_that() -> None:
    host = memory(100)
    release(host.take(60, block), host.take(10, block))
    host.leave()
    assert memory(20).kept <= 20


def test_a_process_keeps_a_bounded_number_of_bytes_between_captures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "KEPT_BYTES", 250)
    host = memory(1000)
    release(*[host.take(60, block) for _ in range(5)])
    host.leave()
    assert memory(1000).kept == 200


def test_lent_memory_comes_on_top_of_the_bound_and_nobody_waits_for_it() -> None:
    host = memory(100)
    lent = [host.lend(80, block) for _ in range(3)]
    assert {each.size for each in lent} == {80}
    assert address(host.take(100, block))  # all of the bound is still there
    assert host.held == 100


def test_lent_memory_comes_back_with_the_last_reference_to_it() -> None:
    host = memory(100)
    lent = host.lend(60, block)
    where, view = lent.ctypes.data, torch.from_numpy(lent).view(torch.int32)
    del lent
    assert host.lend(60, block).ctypes.data != where
    del view
    assert address(host.take(60, block)) == where


def test_lent_blocks_never_overlap_others() -> None:
    host, rng, held = memory(1000), np.random.default_rng(1), dict[int, Array]()
    for number in range(1, 200):
        if len(held) == 12:
            held.pop(int(rng.choice([*held])))
        lent = held[number] = host.lend(int(rng.integers(1, 60)), block)
        lent[:] = number
        release(host.take(int(rng.integers(1, 60)), block))
        assert all((each == key).all() for key, each in held.items())


def test_of_what_was_lent_no_more_than_the_bound_is_kept() -> None:
    host = memory(100)
    lent = [host.lend(90, block) for _ in range(5)]
    assert host.kept >= 450
    del lent
    host.take_back()
    assert host.kept <= 100
