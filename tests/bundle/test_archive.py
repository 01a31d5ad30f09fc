"""The .npz of a step: what others make of it, what is read of theirs, and what is refused."""

from __future__ import annotations

import errno
import io
import itertools
import math
import os
import re
import shutil
import struct
import subprocess
import tracemalloc
import zipfile
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accucompare.bundle.reading.archive import Archive, Member
from accucompare.bundle.writing import archive_writer
from accucompare.bundle.writing.archive_writer import ArchiveWriter, member_name
from accucompare.errors import BundleError, RecordError
from accucompare.numbers.dtypes import DTYPES

STORAGES = sorted({dtype.storage.str for dtype in DTYPES.values()})
# each example writes a name of its own
in_its_own_folder = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def archive_of(path: Path, *arrays: np.ndarray) -> Path:
    """An archive of these arrays, named 000000.a, 000001.a, …"""
    writer = ArchiveWriter(path)
    for number, array in enumerate(arrays):
        writer.add(member_name(number, "a", "", ""), array)
    writer.finish()
    return path


def archive_with(
    path: Path, data: bytes, name: str = "a", compression: int = zipfile.ZIP_STORED
) -> Archive:
    """An archive whose only member holds these bytes, written by zipfile."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{name}.npy", data)
    return Archive(path)


@contextmanager
def opened(path: Path) -> Iterator[Archive]:
    archive = Archive(path)
    try:
        yield archive
    finally:
        archive.close()


def values(archive: Archive, name: str) -> np.ndarray:
    """A member's values, as Bundle reads them."""
    member = archive.member(name)
    array = np.empty(member.shape, member.dtype)
    archive.read_into(memoryview(array.reshape(-1).view("u1")), member.offset)
    return array


def check(found: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit for bit; NaN too."""
    assert (found.dtype, found.shape, found.tobytes()) == (
        expected.dtype,
        expected.shape,
        expected.tobytes(),
    )


def patch(path: Path, signature: bytes, place: int, fields: str, *values: int) -> Path:
    """Overwrite fields of the last record of that signature."""
    content = bytearray(path.read_bytes())
    struct.pack_into(fields, content, content.rindex(signature) + place, *values)
    path.write_bytes(content)
    return path


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(text: str, length: int | None = None, version: bytes = b"\x01\x00") -> bytes:
    encoded = text.encode() + b"\n"
    return (
        b"\x93NUMPY"
        + version
        + struct.pack("<H", len(encoded) if length is None else length)
        + encoded
    )


def data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where an array's first byte lies, by the ZIP and NPY specifications."""
    content = path.read_bytes()
    name, extra = struct.unpack_from("<HH", content, info.header_offset + 26)
    start = info.header_offset + 30 + name + extra
    (length,) = struct.unpack_from("<H", content, start + 8)
    return start + 10 + length


def counted(monkeypatch: pytest.MonkeyPatch, name: str) -> list[object]:
    """The calls of a function of ``os`` from now on."""
    calls: list[object] = []
    real = getattr(os, name)
    monkeypatch.setattr(os, name, lambda *arguments: (calls.append(arguments), real(*arguments))[1])
    return calls


def disk_of(monkeypatch: pytest.MonkeyPatch, room: int, at_once: int = 1 << 30) -> None:
    """Make ``os.writev`` take that many bytes, a few at once, and then fail."""
    real = os.writev

    def writev(file: int, buffers: list[memoryview]) -> int:
        nonlocal room
        piece = b"".join(buffers)[: min(room, at_once)]
        if not piece:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        room -= len(piece)
        return real(file, [piece])

    monkeypatch.setattr(os, "writev", writev)


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    dtype = np.dtype(draw(st.sampled_from(STORAGES)))
    shape = draw(st.lists(st.integers(0, 5), max_size=4))
    data = draw(st.binary(min_size=(count := math.prod(shape) * dtype.itemsize), max_size=count))
    return np.frombuffer(data, np.uint8).view(dtype).reshape(shape)


# Written


@in_its_own_folder
@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40),
        arrays(),
        max_size=8,
    )
)
def test_numpy_zipfile_and_we_read_what_was_written(
    tmp_path: Path, members: dict[str, np.ndarray]
) -> None:
    writer = ArchiveWriter(tmp_path / "a.npz")
    for name, array in members.items():
        writer.add(name, array)
    writer.finish()
    with zipfile.ZipFile(tmp_path / "a.npz") as directory:
        assert directory.testzip() is None
        assert directory.namelist() == [f"{name}.npy" for name in members]
    with (
        np.load(tmp_path / "a.npz", allow_pickle=False) as loaded,
        opened(tmp_path / "a.npz") as archive,
    ):
        for name, array in members.items():
            check(loaded[name], array)
            check(values(archive, name), array)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_every_storage_type_makes_the_bytes_that_numpy_saves(tmp_path: Path, dtype: object) -> None:
    array = np.arange(6, dtype=np.uint8).astype(dtype.storage).reshape(2, 3)  # type: ignore[attr-defined]
    with zipfile.ZipFile(archive_of(tmp_path / "a.npz", array)) as directory:
        assert directory.read("000000.a.npy") == npy(array)


def test_members_are_stored_plain_and_aligned_to_64_bytes(tmp_path: Path) -> None:
    arrays = [np.full(size, 7, np.uint8) for size in (0, 1, 3, 63, 64, 65, 1000)]
    path = archive_of(tmp_path / "a.npz", *arrays)
    with zipfile.ZipFile(path) as directory, opened(path) as archive:
        for info, array in zip(directory.infolist(), arrays, strict=True):
            assert info.compress_type == zipfile.ZIP_STORED
            assert data_offset(path, info) % 64 == 0
            assert archive.member(info.filename.removesuffix(".npy")).offset == data_offset(
                path, info
            )
            assert path.read_bytes()[data_offset(path, info) :][: array.nbytes] == array.tobytes()


def test_the_crc_in_both_headers_is_that_of_the_content(tmp_path: Path) -> None:
    array = np.arange(100_000.0)
    path = archive_of(tmp_path / "a.npz", array)
    with zipfile.ZipFile(path) as directory:
        (info,) = directory.infolist()
    assert zlib.crc32(npy(array)) == info.CRC
    assert struct.unpack_from("<L", path.read_bytes(), 14) == (zlib.crc32(npy(array)),)


def test_equal_arrays_make_equal_files(tmp_path: Path) -> None:
    one, two = (
        archive_of(tmp_path / name, np.ones(3), np.ones(4)) for name in ("one.npz", "two.npz")
    )
    assert one.read_bytes() == two.read_bytes()


def test_small_members_are_written_with_the_next_large_one_in_one_system_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = counted(monkeypatch, "writev")
    archive_of(tmp_path / "a.npz", np.ones(3), np.ones(100_000))
    assert len(calls) == 2  # both members, and the directory


def test_a_file_that_takes_a_few_bytes_at_a_time_gets_them_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrays = np.arange(100.0), np.arange(7), np.ones(0)
    whole = archive_of(tmp_path / "whole.npz", *arrays)
    monkeypatch.setattr(archive_writer, "_WRITE_LIMIT", 50)
    disk_of(monkeypatch, 1 << 30, at_once=37)
    assert archive_of(tmp_path / "pieces.npz", *arrays).read_bytes() == whole.read_bytes()


@pytest.mark.parametrize(
    "room", [0, 10, 200, 1000, 1250]
)  # in the first header, in its data, and in the directory
def test_a_full_disk_is_an_os_error_and_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    disk_of(monkeypatch, room)
    writer = ArchiveWriter(tmp_path / "a.npz")
    with pytest.raises(OSError, match="No space left") as caught:  # noqa: PT012
        writer.add("a", np.arange(128.0))
        writer.finish()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, str(tmp_path / "a.npz"))
    writer.discard()
    assert not list(tmp_path.iterdir())


def test_discarding_never_raises(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    writer = ArchiveWriter(tmp_path / "folder/a.npz")
    shutil.rmtree(tmp_path / "folder")
    writer.discard()
    writer.discard()


def test_a_directory_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ArchiveWriter(tmp_path / "none/a.npz")


# Large


@pytest.mark.parametrize("limit", [0, 1, 200, 1000, 4000])
def test_zip64_where_it_is_needed_is_read_by_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(archive_writer, "_ZIP64_LIMIT", limit)
    arrays = [np.arange(500.0), np.arange(3.0), np.ones((2, 0)), np.arange(40)]
    path = archive_of(tmp_path / "a.npz", *arrays)
    with np.load(path) as loaded, zipfile.ZipFile(path) as directory, opened(path) as archive:
        assert directory.testzip() is None
        assert all(data_offset(path, info) % 64 == 0 for info in directory.infolist())
        for number, array in enumerate(arrays):
            check(loaded[f"{number:06d}.a"], array)
            check(values(archive, f"{number:06d}.a"), array)
    if shutil.which("unzip"):
        assert (
            "No errors detected"
            in subprocess.run(["unzip", "-t", path], capture_output=True, text=True).stdout
        )


def test_members_beyond_4_gib_are_read_by_everyone(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    writer = ArchiveWriter(path)
    writer.add("near", np.arange(3))
    writer._write(b"")
    # a hole: the file takes a few KB on the disk
    writer._end = os.lseek(writer._file.fileno(), (5 << 30) + 3, os.SEEK_SET)
    writer.add("far", np.arange(5.0))
    writer.finish()
    with np.load(path) as loaded, zipfile.ZipFile(path) as directory, opened(path) as archive:
        assert directory.testzip() is None
        assert archive.member("far").offset > 5 << 30
        assert archive.member("far").offset % 64 == 0
        for name, array in (("near", np.arange(3)), ("far", np.arange(5.0))):
            check(loaded[name], array)
            check(values(archive, name), array)


def test_a_member_of_more_than_4_gib_is_read_by_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (1 << 32) + 100
    (tmp_path / "data").write_bytes(b"")
    os.truncate(tmp_path / "data", size)
    with (tmp_path / "data").open("r+b") as data:
        data.seek(-4, os.SEEK_END)
        data.write(b"last")
    real = os.writev

    def writev(file: int, buffers: list[memoryview]) -> int:
        """Leaves a hole for what is large."""
        if sum(map(len, buffers)) <= 1 << 20:
            return real(file, buffers)
        written = real(file, buffers[:1])
        os.lseek(file, len(buffers[1]), os.SEEK_CUR)
        return written + len(buffers[1])

    monkeypatch.setattr(os, "writev", writev)
    monkeypatch.setattr(archive_writer.Rates, "prefer_past", lambda self: False)
    monkeypatch.setattr(archive_writer, "crc32", lambda data, crc=0: 0)
    path = archive_of(tmp_path / "a.npz", np.memmap(tmp_path / "data", np.uint8, "r"), np.arange(3))
    with zipfile.ZipFile(path) as directory, opened(path) as archive:
        assert [info.file_size for info in directory.infolist()] == [size + 128, 24 + 128]
        with directory.open("000000.a.npy") as content:
            np.lib.format.read_magic(content)
            assert np.lib.format.read_array_header_1_0(content) == ((size,), False, np.dtype("u1"))
        member = archive.member("000000.a")
        assert member == Member(member.offset, size, np.dtype("u1"), (size,))
        last = bytearray(4)
        archive.read_into(memoryview(last), member.offset + size - 4)
        assert last == b"last"
        check(values(archive, "000001.a"), np.arange(3))


@pytest.mark.parametrize(("count", "limit"), [(65_536, 0xFFFF), (65_535, 0x10000)])
def test_more_members_than_16_bits_can_count_are_read_by_everyone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int, limit: int
) -> None:
    # zipfile does without ZIP64 up to 65,535
    monkeypatch.setattr(archive_writer, "_COUNT_LIMIT", limit)
    array = np.ones(1)
    path = archive_of(tmp_path / "a.npz", *[array] * count)
    with zipfile.ZipFile(path) as directory, opened(path) as archive:
        assert len(directory.infolist()) == count
        assert directory.read(f"{count - 1:06d}.a.npy") == npy(array)
        check(values(archive, f"{count - 1:06d}.a"), array)


# Named


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("encoder.layers.0.fc1", "000007.encoder.layers.0.fc1.output.0"),
        ("", "000007.output.0"),
        ("=1+1", "000007._1_1.output.0"),
        ("层1", "000007._1.output.0"),
        ("a/b", "000007.a_b.output.0"),
        ("../../etc/passwd", "000007..._.._etc_passwd.output.0"),
        ("a b:c\\d@e\n", "000007.a_b_c_d_e_.output.0"),
    ],
)
def test_member_names_are_numbered_readable_and_safe(name: str, expected: str) -> None:
    assert member_name(7, name, "output", "0") == expected


def test_long_names_are_cut() -> None:
    assert len(member_name(7, "x" * 300, "output", "")) < 150


@given(st.text(), st.text())
def test_no_name_makes_an_unsafe_member(name: str, path: str) -> None:
    found = member_name(3, name, "output", path)
    assert found.startswith("000003.")
    assert set(found) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-")


# Read


def test_what_numpy_saves_is_read(tmp_path: Path) -> None:
    arrays = {
        "a": np.arange(6.0).reshape(2, 3),
        "b": np.array(True),
        "层 1": np.ones((0, 3), "u2"),
        "l" * 600: np.arange(3),
    }
    np.savez(tmp_path / "a.npz", **arrays)
    with opened(tmp_path / "a.npz") as archive:
        for name, array in arrays.items():
            check(values(archive, name), array)


def test_an_archive_without_members_is_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "numpy.npz")
    with (
        opened(tmp_path / "numpy.npz") as archive,
        pytest.raises(RecordError, match="has no member 'a'"),
    ):
        archive.member("a")


def test_what_numpy_saves_to_a_pipe_is_read(tmp_path: Path) -> None:
    """It has its sizes and CRCs in data descriptors, after the data."""

    class Pipe(io.FileIO):
        def seekable(self) -> bool:
            return False

        def tell(self) -> int:
            raise OSError

        def seek(self, *_: int) -> int:
            raise OSError

    with Pipe(str(tmp_path / "a.npz"), "w") as pipe:
        np.savez(pipe, a=np.arange(3), b=np.arange(5.0))
    with zipfile.ZipFile(tmp_path / "a.npz") as directory:
        assert all(info.flag_bits & 8 for info in directory.infolist())
    with opened(tmp_path / "a.npz") as archive:
        check(values(archive, "a"), np.arange(3))
        check(values(archive, "b"), np.arange(5.0))


@pytest.mark.parametrize("limit", [0, 100, 1000])
def test_what_zipfile_writes_as_zip64_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 1)
    np.savez(tmp_path / "a.npz", a=np.arange(500), b=np.arange(5.0))
    with opened(tmp_path / "a.npz") as archive:
        check(values(archive, "a"), np.arange(500))
        check(values(archive, "b"), np.arange(5.0))


@pytest.mark.parametrize("comment", [b"a comment", b"PK\x05\x06" * 1000, bytes(65535)])
def test_a_comment_at_the_end_is_passed_over(tmp_path: Path, comment: bytes) -> None:
    path = archive_of(tmp_path / "a.npz", np.arange(3))
    with zipfile.ZipFile(path, "a") as directory:
        directory.comment = comment
    with opened(path) as archive:
        check(values(archive, "000000.a"), np.arange(3))


def test_a_header_that_an_older_numpy_padded_otherwise_is_read(tmp_path: Path) -> None:
    data = (
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }    ")
        + np.arange(3.0).tobytes()
    )
    check(values(archive_with(tmp_path / "a.npz", data), "a"), np.arange(3.0))


def test_looking_at_a_member_takes_one_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = ArchiveWriter(tmp_path / "a.npz")
    for number, name in enumerate(("a", "x" * 300)):
        writer.add(member_name(number, name, "output", "0"), np.ones((1, 2, 3, 4)))
    writer.finish()
    with opened(tmp_path / "a.npz") as archive:
        calls = counted(monkeypatch, "pread")
        archive.member(member_name(0, "a", "output", "0"))
        archive.member(member_name(1, "x" * 300, "output", "0"))
        assert len(calls) == 2


def test_opening_takes_two_reads_however_many_members_there_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(tmp_path / "a.npz", *[np.ones(3)] * 200)
    calls = counted(monkeypatch, "pread")
    with opened(path):
        assert len(calls) == 2


def test_threads_read_at_once(tmp_path: Path) -> None:
    arrays = [np.full(number % 50, number) for number in range(400)]
    with (
        opened(archive_of(tmp_path / "a.npz", *arrays)) as archive,
        ThreadPoolExecutor(4) as threads,
    ):
        names = [f"{number:06d}.a" for number in range(len(arrays))]
        for found, array in zip(
            threads.map(lambda name: values(archive, name), names), arrays, strict=True
        ):
            check(found, array)


# Changed


def grow(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"x")


def touch(path: Path) -> None:
    os.utime(path, ns=(0, path.stat().st_mtime_ns + 1000))


def replace(path: Path) -> None:
    """By a file of the same content, size and time."""
    shutil.copy2(path, path.with_name("other"))
    os.replace(path.with_name("other"), path)


def test_a_file_that_was_only_read_has_not_changed(tmp_path: Path) -> None:
    with opened(archive_of(tmp_path / "a.npz", np.ones(3))) as archive:
        values(archive, "000000.a")
        assert not archive.changed()


@pytest.mark.parametrize("change", [grow, touch, replace, os.unlink])
def test_a_file_that_was_written_to_or_replaced_has_changed(tmp_path: Path, change: object) -> None:
    with opened(archive_of(tmp_path / "a.npz", np.ones(3))) as archive:
        change(tmp_path / "a.npz")  # type: ignore[operator]
        assert archive.changed()


# Refused


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"a\.npz: cannot be read \(No such file or directory\)"):
        Archive(tmp_path / "a.npz")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"not a zip",
        b"PK\x05\x06" + bytes(10),
        b"PK\x05\x06" + b"\xff" * 18,
        b"PK\x06\x07PK\x05\x06" + b"\xff" * 16 + bytes(2),
    ],
)
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(BundleError, match=r"a\.npz: not a readable \.npz, truncated or damaged"):
        Archive(tmp_path / "a.npz")


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"a\.npz: has no member '\.\./a'"):
        archive_with(tmp_path / "a.npz", npy(np.ones(3))).member("../a")


def test_a_compressed_member_is_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="member 'a' is compressed or encrypted"):
        archive_with(
            tmp_path / "a.npz", npy(np.zeros(10**6)), compression=zipfile.ZIP_DEFLATED
        ).member("a")


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        RecordError, match="member 'a' holds pickled Python objects; refused, nothing was executed"
    ):
        archive_with(tmp_path / "a.npz", npy(np.array([{}], object))).member("a")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", length=60000),
        b"\x93NUMPY\x02\x00"
        + struct.pack("<I", 2**31)
        + b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n",
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3L,), }"),
        header("{'descr': '<f8', 'fortran_order': __import__('os'), 'shape': (3,), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999, 99999999999), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (0, 9223372036854775808), }"),
        header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {(1,) * 65}, }}"),
        header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': ({'9' * 5000},), }}"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (1 2, 3), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (03,), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }" + " " * 60000),
        header(
            "{'descr': '<\x1b[31m\n8', 'fortran_order': False, 'shape': (3,), }"
        ),  # a message says what type it is
        header("[" * 3000),
        header("('" + "a" * 3000),
        header(""),
    ],
)
def test_a_member_without_plain_header_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(RecordError, match=r"member 'a' has no valid \.npy header"):
        archive_with(tmp_path / "a.npz", data + bytes(24)).member("a")


@pytest.mark.parametrize(
    "described", ["'<U10'", "'<M8[s]'", "[('x', '<f8')]", "'>f8'", "'nonsense'"]
)
def test_a_type_that_we_never_write_is_refused(tmp_path: Path, described: str) -> None:
    data = header(f"{{'descr': {described}, 'fortran_order': False, 'shape': (3,), }}") + bytes(24)
    with pytest.raises(RecordError, match="member 'a' has the unknown type "):
        archive_with(tmp_path / "a.npz", data).member("a")


def test_an_array_in_fortran_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="member 'a' is not a plain C-ordered array"):
        archive_with(tmp_path / "a.npz", npy(np.asfortranarray(np.ones((2, 3))))).member("a")


@pytest.mark.parametrize(
    "shape",
    ["(4,)", "(2,)", "()", "(1000000000000,)", "(99999999, 99999999)", "(3, 0)", "(1, 3, 2)"],
)
def test_a_shape_that_its_length_does_not_bear_out_is_refused(tmp_path: Path, shape: str) -> None:
    data = header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}") + bytes(24)
    with pytest.raises(
        RecordError, match=r"member 'a' is damaged \(its header and its length disagree\)"
    ):
        archive_with(tmp_path / "a.npz", data).member("a")


def test_two_members_of_one_name_are_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", b"1")
        with pytest.warns(UserWarning, match="Duplicate name"):
            archive.writestr("a.npy", b"2")
    with pytest.raises(BundleError, match="1 of its members have the name of another"):
        Archive(tmp_path / "a.npz")


@pytest.mark.parametrize("offset", [1, 100_000, 2**31, 2**32 - 2])
def test_a_directory_that_points_elsewhere_is_refused(tmp_path: Path, offset: int) -> None:
    path = archive_of(tmp_path / "a.npz", np.ones(3))
    content = bytearray(path.read_bytes())
    entry = content.rindex(b"PK\x01\x02")
    content[entry + 42 : entry + 46] = struct.pack("<I", offset)
    path.write_bytes(content)
    with pytest.raises(
        BundleError,
        match=r"a\.npz: (member '000000\.a' is damaged \(no local header\)|not a readable)",
    ):
        Archive(path).member("000000.a")


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "a.npz", np.ones(10_000))  # a small member is read at once
    archive = Archive(path)
    member = archive.member("000000.a")
    path.write_bytes(path.read_bytes()[: member.offset + 10])
    with pytest.raises(BundleError, match="ends early; it was truncated while being read"):
        archive.read_into(memoryview(bytearray(member.nbytes)), member.offset)


def test_a_small_member_is_read_at_once_with_its_headers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(
        archive_of(tmp_path / "a.npz", np.arange(100.0), np.arange(100.0) + 7.0)
    ) as archive:
        calls, array = counted(monkeypatch, "preadv"), np.empty(100)
        second, first = archive.member("000001.a"), archive.member("000000.a")
        archive.read_into(memoryview(array.view("u1")), first.offset)
        assert not calls
        np.testing.assert_array_equal(array, np.arange(100.0))
        archive.read_into(memoryview(array.view("u1")), second.offset)  # which was not the last one
        assert len(calls) == 1
        np.testing.assert_array_equal(array, np.arange(100.0) + 7.0)


def test_a_name_that_is_no_unicode_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"has no member '\\ud800'"):
        Archive(archive_of(tmp_path / "a.npz", np.ones(3))).member("\ud800")


def test_an_entry_that_points_to_another_member_is_refused(tmp_path: Path) -> None:
    path = patch(archive_of(tmp_path / "a.npz", np.ones(3), np.ones(3)), b"PK\x01\x02", 42, "<L", 0)
    with pytest.raises(
        RecordError, match=r"member '000001\.a' is damaged \(its local header has another name\)"
    ):
        Archive(path).member("000001.a")


def test_a_member_that_is_longer_than_the_file_is_refused(tmp_path: Path) -> None:
    data = header("{'descr': '<f8', 'fortran_order': False, 'shape': (1000,), }")
    archive_with(tmp_path / "a.npz", data).close()
    patch(tmp_path / "a.npz", b"PK\x01\x02", 20, "<2L", len(data) + 8000, len(data) + 8000)
    with pytest.raises(
        RecordError, match=r"member 'a' is damaged \(its header and its length disagree\)"
    ):
        Archive(tmp_path / "a.npz").member("a")


def test_an_entry_without_the_zip64_field_that_it_refers_to_is_refused(tmp_path: Path) -> None:
    path = patch(archive_of(tmp_path / "a.npz", np.ones(3)), b"PK\x01\x02", 42, "<L", 0xFFFFFFFF)
    with pytest.raises(
        RecordError,
        match=r"member '000000\.a' is damaged \(its entry in the directory contradicts itself\)",
    ):
        Archive(path).member("000000.a")


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (b"PK\x03\x04", "is damaged (no local header)"),
        (
            struct.pack("<4s5H3L2H", b"PK\x03\x04", *[0] * 8, 12, 0)
            + b"000000.a.npy"
            + header("{'descr': '<f8', 'fortran_order': False, 'shape': (0,), }", length=90),
            "has no valid .npy header",
        ),
    ],
    ids=["local header", "npy header"],
)
def test_a_header_that_the_end_of_the_file_cuts_is_refused(
    tmp_path: Path, end: bytes, why: str
) -> None:
    path = archive_of(tmp_path / "a.npz", np.ones(3))
    with zipfile.ZipFile(path, "a") as directory:
        directory.comment = end
    size = max(0, len(end) - 42)  # of what is there of the .npy header
    patch(path, b"PK\x01\x02", 20, "<2L", size, size)
    patch(path, b"PK\x01\x02", 42, "<L", path.stat().st_size - len(end))
    with pytest.raises(RecordError, match=re.escape(why)):
        Archive(path).member("000000.a")


@pytest.mark.parametrize(
    ("signature", "place", "fields", "value", "why"),
    [
        (b"PK\x01\x02", 0, "<L", 0, "an entry of its directory is damaged"),
        (b"PK\x05\x06", 10, "<H", 1, "its directory is not that of 1 members"),
        (b"PK\x05\x06", 10, "<H", 3, "its directory ends early"),
        (b"PK\x05\x06", 12, "<L", 1 << 27, "its directory is out of bounds"),
        (b"PK\x05\x06", 20, "<H", 1, "no end record"),
    ],
)
def test_a_directory_that_is_damaged_is_refused(
    tmp_path: Path, signature: bytes, place: int, fields: str, value: int, why: str
) -> None:
    path = patch(
        archive_of(tmp_path / "a.npz", np.ones(3), np.ones(3)), signature, place, fields, value
    )
    with pytest.raises(
        BundleError, match=rf"a\.npz: not a readable \.npz, truncated or damaged \({why}\)"
    ):
        Archive(path)


@pytest.mark.parametrize("place", ["start", "end", "beyond"])
def test_a_zip64_end_record_that_is_elsewhere_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setattr(archive_writer, "_ZIP64_LIMIT", 0)
    path = archive_of(tmp_path / "a.npz", np.ones(3))
    with path.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\x04\x00PK\x06\x06")  # a comment that looks like one
    size = path.stat().st_size
    patch(path, b"PK\x06\x07", 8, "<Q", {"start": 0, "end": size - 4, "beyond": 1 << 63}[place])
    with pytest.raises(BundleError, match="no ZIP64 end record"):
        Archive(path)


def test_a_directory_of_gigabytes_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    size = 7 << 30
    with path.open("wb") as file:
        file.truncate(size)  # a hole
        file.seek(size)
        file.write(
            struct.pack(
                "<4sQ2H2L4Q", b"PK\x06\x06", 44, 45, 45, 0, 0, size // 46, size // 46, size, 0
            )
        )
        file.write(struct.pack("<4sLQL", b"PK\x06\x07", 0, size, 1))
        file.write(
            struct.pack("<4s4H2LH", b"PK\x05\x06", 0, 0, 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF, 0)
        )
    with (
        little_memory(),
        pytest.raises(
            BundleError, match=r"truncated or damaged \(its directory is out of bounds\)"
        ),
    ):
        Archive(path)


# Fuzzed


@contextmanager
def little_memory() -> Iterator[None]:
    """Fails if more than a megabyte is allocated."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


ARRAYS = (np.arange(6.0).reshape(2, 3), np.arange(3, dtype="u1"), np.ones((), "<f4"))
NAMES = [f"{number:06d}.a" for number in range(len(ARRAYS))]


def sound_files(folder: Path) -> dict[str, bytes]:
    """Small valid files of the same members: ours, ours with everything in ZIP64 fields, and
    NumPy's.
    """
    with pytest.MonkeyPatch.context() as patch:
        plain = archive_of(folder / "plain", *ARRAYS).read_bytes()
        np.savez(folder / "numpy.npz", **dict(zip(NAMES, ARRAYS, strict=True)))
        patch.setattr(archive_writer, "_ZIP64_LIMIT", 0)
        return {
            "plain": plain,
            "zip64": archive_of(folder / "zip64", *ARRAYS).read_bytes(),
            "numpy": (folder / "numpy.npz").read_bytes(),
        }


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    return sound_files(tmp_path_factory.mktemp("sound"))


def refused_or_right(path: Path, content: bytes) -> None:
    """Whatever a file holds: an error of one line that names it, or places within it, with the
    values that zipfile finds by the CRC.
    """
    path.unlink(missing_ok=True)  # faster on some file systems than to empty it
    path.write_bytes(content)
    try:
        with opened(path) as archive:
            for name in NAMES:
                member_refused_or_right(archive, name, len(content))
    except BundleError as error:
        one_line(error, path)


def one_line(error: Exception, path: Path) -> None:
    assert str(error).startswith(f"{path}: ")
    assert "\n" not in str(error)


def member_refused_or_right(archive: Archive, name: str, size: int) -> None:
    try:
        member = archive.member(name)
    except RecordError as error:
        one_line(error, archive.path)
        return
    assert member.nbytes == math.prod(member.shape) * member.dtype.itemsize
    assert member.offset + member.nbytes <= size
    found = values(archive, name)
    try:
        with zipfile.ZipFile(archive.path) as directory:
            content = directory.read(f"{name}.npy")
    except Exception:
        return  # zipfile finds it damaged; so does Bundle, by the digest
    check(found, np.load(io.BytesIO(content), allow_pickle=False))


KINDS = st.sampled_from(["plain", "zip64", "numpy"])
EXTREMES = (
    0,
    1,
    45,
    46,
    0x7F,
    0xFF,
    0x7FFF,
    0xFFFE,
    0xFFFF,
    1 << 27,
    1 << 31,
    (1 << 32) - 2,
    (1 << 32) - 1,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
)


@in_its_own_folder
@given(kind=KINDS, data=st.data())
def test_any_few_bytes_changed_are_refused_or_right(
    tmp_path: Path, sound: dict[str, bytes], kind: str, data: st.DataObject
) -> None:
    content = bytearray(sound[kind])
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    refused_or_right(tmp_path / "a.npz", content)


@in_its_own_folder
@given(kind=KINDS, data=st.data())
def test_any_bytes_taken_out_or_put_in_are_refused_or_right(
    tmp_path: Path, sound: dict[str, bytes], kind: str, data: st.DataObject
) -> None:
    content = sound[kind]
    start = data.draw(st.integers(0, len(content)))
    end = data.draw(st.integers(start, len(content)))
    refused_or_right(
        tmp_path / "a.npz", content[:start] + data.draw(st.binary(max_size=80)) + content[end:]
    )


@in_its_own_folder
@given(content=st.binary(max_size=300), kind=KINDS)
def test_any_bytes_before_a_sound_end_are_refused_or_right(
    tmp_path: Path, sound: dict[str, bytes], content: bytes, kind: str
) -> None:
    refused_or_right(tmp_path / "a.npz", content + sound[kind][-98:])


@pytest.mark.parametrize("kind", ["plain", "zip64", "numpy"])
def test_a_file_cut_anywhere_is_refused(tmp_path: Path, sound: dict[str, bytes], kind: str) -> None:
    (tmp_path / "a.npz").write_bytes(sound[kind])
    for length in reversed(range(len(sound[kind]))):
        os.truncate(tmp_path / "a.npz", length)
        with pytest.raises(BundleError, match="truncated or damaged"):
            Archive(tmp_path / "a.npz")


@pytest.mark.parametrize("kind", ["plain", "zip64", "numpy"])
@pytest.mark.parametrize(
    ("signature", "fields"),
    [
        (b"PK\x03\x04", "L5H3L2H"),
        (b"PK\x01\x02", "L6H3L5H2L"),
        (b"PK\x05\x06", "L4H2LH"),
        (b"PK\x06\x06", "LQ2H2L4Q"),
        (b"PK\x06\x07", "LLQL"),
        (b"\x01\x00\x18\x00", "2H3Q"),  # a ZIP64 field in the directory
    ],
    ids=["local header", "entry", "end", "ZIP64 end", "ZIP64 locator", "ZIP64 field"],
)
def test_a_field_of_any_extreme_value_is_refused_or_right_with_little_memory(
    tmp_path: Path, sound: dict[str, bytes], kind: str, signature: bytes, fields: str
) -> None:
    fields = re.sub(r"(\d)(\w)", lambda repeated: int(repeated[1]) * repeated[2], fields)
    places = [
        place for place in range(len(sound[kind])) if sound[kind].startswith(signature, place)
    ]
    with little_memory():  # of several members the first and the last
        for place, (number, field), value in itertools.product(
            {*places[:1], *places[-1:]}, enumerate(fields), EXTREMES
        ):
            if value < 1 << 8 * struct.calcsize(f"<{field}"):
                content = bytearray(sound[kind])
                struct.pack_into(
                    f"<{field}", content, place + struct.calcsize(f"<{fields[:number]}"), value
                )
                refused_or_right(tmp_path / "a.npz", content)


@in_its_own_folder
@given(data=st.data(), array=arrays())
def test_any_npy_header_that_is_taken_is_one_that_numpy_reads_alike(
    tmp_path: Path, data: st.DataObject, array: np.ndarray
) -> None:
    content = bytearray(npy(array))
    for _ in range(data.draw(st.integers(0, 3))):
        place = data.draw(st.integers(0, 79))
        content[place : place + data.draw(st.integers(0, 2))] = data.draw(
            st.one_of(
                st.binary(max_size=2),
                st.sampled_from(
                    [b"9", b",", b"0, ", b"<i8", b"True", b"|O", b"999999999999", b")", b" ", b"\n"]
                ),
            )
        )
    archive = archive_with(tmp_path / "a.npz", bytes(content))
    try:
        found = values(archive, "a")
    except RecordError:
        return
    finally:
        archive.close()
    check(found, np.load(io.BytesIO(content), allow_pickle=False))
