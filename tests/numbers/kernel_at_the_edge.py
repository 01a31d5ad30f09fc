"""Calls a build of the kernel on every type and awkward length, on memory after which nothing may
be read: a program, not a test.

python kernel_at_the_edge.py PATH/_kernel.so malloc|guard

``malloc``: each buffer is an allocation of its own, for the address sanitizer to guard. ``guard``:
each ends where a page without access begins, so that the build in use, its vector versions
included, can be tried without a sanitizer."""

from __future__ import annotations

import ctypes
import importlib.util
import itertools
import mmap
import random
import sys
from typing import Any

WIDTHS = (8, 4, 2, 2, 1, 2, 4, 1, 2, 4)  # by the kernel's numbers of types
LENGTHS = (0, 1, 7, 8, 9, 511, 512, 513, 519, 520, 8191, 8192, 8193, 8711)
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.malloc.restype = LIBC.mmap.restype = ctypes.c_void_p
LIBC.malloc.argtypes = [ctypes.c_size_t]
LIBC.free.argtypes = [ctypes.c_void_p]
LIBC.mmap.argtypes = [
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_long,
]
LIBC.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Malloc:
    """Memory for one buffer, which begins ``shift`` bytes into an allocation and ends with it."""

    def __init__(self) -> None:
        self._taken: list[int] = []

    def hold(self, data: bytes, shift: int) -> Any:
        start = LIBC.malloc(len(data) + shift)
        self._taken.append(start)
        ctypes.memmove(start + shift, data, len(data))
        return (ctypes.c_char * len(data)).from_address(start + shift)

    def free(self) -> None:
        while self._taken:
            LIBC.free(self._taken.pop())


class Guard:
    """Memory that ends where a page without access begins, two pieces in turn; what ``shift`` does,
    the lengths do here.
    """

    def __init__(self) -> None:
        self._size = 32 * mmap.PAGESIZE
        self._turn = itertools.cycle([self._piece(), self._piece()])

    def _piece(self) -> int:
        start: int = LIBC.mmap(
            None,
            self._size + mmap.PAGESIZE,
            mmap.PROT_READ | mmap.PROT_WRITE,
            mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS,
            -1,
            0,
        )
        assert LIBC.mprotect(start + self._size, mmap.PAGESIZE, 0) == 0
        return start + self._size

    def hold(self, data: bytes, shift: int) -> Any:
        start = next(self._turn) - len(data)
        ctypes.memmove(start, data, len(data))
        return (ctypes.c_char * len(data)).from_address(start)

    def free(self) -> None:
        pass


def filled(count: int, width: int, how: str, seed: int) -> bytes:
    """Bits of elements: any, or NaN, infinities and zeros alone or mixed (meant for the floating
    types, allowed for all).
    """
    if how == "any":
        return random.Random(seed).randbytes(count * width)
    special = {
        8: ("000000000000f87f", "000000000000f07f", "000000000000f0ff", "ffffffffffffef7f"),
        4: ("0000c07f", "0000807f", "000080ff", "ffff7f7f"),
        2: ("007e", "007c", "00fc", "c07f"),
        1: ("ff", "7f", "80", "00"),
    }[width]
    choice = {"nan": special[:1], "inf": special[1:3], "mixed": special}[how]
    return b"".join(
        itertools.islice(itertools.cycle(map(bytes.fromhex, choice)), seed % 3, seed % 3 + count)
    )


def refused(call: Any, *arguments: Any) -> None:
    try:
        call(*arguments)
    except ValueError:
        return
    raise AssertionError(f"not refused: {arguments}")


def main(path: str, memory: Malloc | Guard) -> None:
    spec = importlib.util.spec_from_file_location("_kernel", path)
    assert spec is not None
    assert spec.loader is not None
    kernel = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kernel)
    seed = calls = 0
    for golden_type, candidate_type in itertools.product(range(10), repeat=2):
        alike = golden_type == candidate_type
        for count, how in itertools.product(
            LENGTHS if alike else LENGTHS[:10],
            ("any", "nan", "inf", "mixed") if alike else ("any", "mixed"),
        ):
            seed += 1
            chunk = (
                (8192, 512, 13, 8, 2**31 - 1)[seed % 5] if count > 9 else (1, 2, 8, 8192)[seed % 4]
            )
            golden = memory.hold(filled(count, WIDTHS[golden_type], how, seed), seed % 4)
            candidate = memory.hold(filled(count, WIDTHS[candidate_type], how, seed + 1), seed % 3)
            for rtol in (-1.0, 1e-3):
                found, sums = kernel.new_result(), bytearray(8 * 8 * -(-count // chunk))
                kernel.measure_block(
                    golden,
                    candidate,
                    golden_type,
                    candidate_type,
                    chunk,
                    1e-3,
                    rtol,
                    65504.0,
                    found,
                    sums,
                )
                compared, *_ = read = kernel.read_result(found)
                assert compared + max(read[13:17]) <= count <= compared + sum(read[13:17])
                if count:
                    types = (golden_type, candidate_type)
                    refused(
                        kernel.measure_block,
                        golden,
                        candidate,
                        *types,
                        chunk,
                        1e-3,
                        rtol,
                        65504.0,
                        kernel.new_result(),
                        sums[:-1],
                    )
            (squares,) = kernel.apart_block(
                golden, candidate, golden_type, candidate_type, chunk, 0.5, 0.25, 0.7, 0.9
            )
            assert len(squares) == -(-count // chunk)
            if alike:
                *_, sums = kernel.summarize_block(golden, golden_type, chunk)
                assert [len(each) for each in sums] == [-(-count // chunk)] * 2
            memory.free()
            calls += 1
    eight, nine, odd = bytearray(32), bytearray(36), bytearray(33)
    for wrong in (
        (eight, nine, 1, 1, 8),
        (eight, eight, 1, 2, 8),
        (odd, odd, 1, 1, 8),
        (eight, odd, 1, 1, 8),
    ):
        refused(kernel.measure_block, *wrong, 0.0, -1.0, 0.0, kernel.new_result(), bytearray(640))
        refused(kernel.apart_block, *wrong, 1.0, 1.0, 1.0, 1.0)
    for number in (-1, 10, 2**31):
        refused(
            kernel.measure_block,
            eight,
            eight,
            number,
            1,
            8,
            0.0,
            -1.0,
            0.0,
            kernel.new_result(),
            bytearray(640),
        )
        refused(
            kernel.measure_block,
            eight,
            eight,
            1,
            number,
            8,
            0.0,
            -1.0,
            0.0,
            kernel.new_result(),
            bytearray(640),
        )
        refused(kernel.summarize_block, eight, number, 8)
    for chunk in (0, -1, 2**31, -(2**31)):
        refused(
            kernel.measure_block,
            eight,
            eight,
            1,
            1,
            chunk,
            0.0,
            -1.0,
            0.0,
            kernel.new_result(),
            bytearray(640),
        )
        refused(kernel.summarize_block, eight, 1, chunk)
    refused(kernel.summarize_block, odd, 1, 8)
    refused(kernel.read_result, eight)
    refused(kernel.measure_block, eight, eight, 1, 1, 8, 0.0, -1.0, 0.0, eight, bytearray(640))
    for missing in (kernel.measure_block, kernel.summarize_block, kernel.apart_block):
        try:
            missing(eight)
        except TypeError:
            continue
        raise AssertionError("a call without its arguments went through")
    print("calls:", calls)


if __name__ == "__main__":
    main(sys.argv[1], {"malloc": Malloc, "guard": Guard}[sys.argv[2]]())
