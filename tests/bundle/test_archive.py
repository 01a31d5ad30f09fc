"""The .npz of a step: what plain NumPy makes of it, and what of it is refused."""

from __future__ import annotations

import io
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accucompare.bundle.archive import Archive, member_name, write_member
from accucompare.bundle.dtypes import DTYPES
from accucompare.errors import BundleError, RecordError


def archive_of(path: Path, *arrays: np.ndarray) -> Path:
    """An archive of these arrays, named 000000.a, 000001.a, …"""
    with zipfile.ZipFile(path, "w") as archive:
        for number, array in enumerate(arrays):
            write_member(archive, member_name(number, "a", "", ""), array)
    return path


def archive_with(path: Path, data: bytes, name: str = "a", compression: int = zipfile.ZIP_STORED) -> Archive:
    """An archive whose only member holds these bytes."""
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr(f"{name}.npy", data)
    return Archive(path)


def npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def header(text: str, length: int | None = None, version: bytes = b"\x01\x00") -> bytes:
    encoded = text.encode() + b"\n"
    return b"\x93NUMPY" + version + struct.pack("<H", len(encoded) if length is None else length) + encoded


def data_offset(path: Path, info: zipfile.ZipInfo) -> int:
    """Where an array's first byte lies, by the ZIP and NPY specifications."""
    content = path.read_bytes()
    name, extra = struct.unpack_from("<HH", content, info.header_offset + 26)
    start = info.header_offset + 30 + name + extra
    (length,) = struct.unpack_from("<H", content, start + 8)
    return start + 10 + length


# Written


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=st.lists(st.integers(0, 4), max_size=4))
def test_plain_numpy_loads_what_was_written(tmp_path: Path, dtype: object, shape: list[int]) -> None:
    storage = dtype.storage  # type: ignore[attr-defined]
    array = np.arange(np.prod(shape, dtype=int), dtype=np.uint8).astype(storage).reshape(shape)
    path = archive_of(tmp_path / "a.npz", array)
    with np.load(path, allow_pickle=False) as loaded:
        (name,) = loaded.files
        assert (loaded[name].dtype, loaded[name].shape) == (storage, tuple(shape))
        assert loaded[name].tobytes() == array.tobytes()
    archive = Archive(path)
    member = archive.member("000000.a")
    buffer = bytearray(member.nbytes)
    archive.read_into(memoryview(buffer), member.offset)
    archive.close()
    assert (member.dtype, member.shape, bytes(buffer)) == (storage, tuple(shape), array.tobytes())


def test_members_are_stored_plain_and_aligned_to_64_bytes(tmp_path: Path) -> None:
    arrays = [np.full(size, 7, np.uint8) for size in (0, 1, 3, 63, 64, 65, 1000)]
    path = archive_of(tmp_path / "a.npz", *arrays)
    archive = Archive(path)
    with zipfile.ZipFile(path) as directory:
        assert directory.testzip() is None
        for info, array in zip(directory.infolist(), arrays, strict=True):
            assert info.compress_type == zipfile.ZIP_STORED
            assert data_offset(path, info) % 64 == 0
            assert archive.member(info.filename.removesuffix(".npy")).offset == data_offset(path, info)
            assert path.read_bytes()[data_offset(path, info) :][: array.nbytes] == array.tobytes()
    archive.close()


def test_a_member_that_needs_zip64_is_aligned_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", 1000)
    path = archive_of(tmp_path / "a.npz", np.arange(500.0), np.arange(3.0))
    with np.load(path) as loaded, zipfile.ZipFile(path) as directory:
        assert loaded["000000.a"].tolist() == list(range(500))
        assert all(data_offset(path, info) % 64 == 0 for info in directory.infolist())


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


# Refused


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"a\.npz: cannot be read \(No such file or directory\)"):
        Archive(tmp_path / "a.npz")


@pytest.mark.parametrize("content", [b"", b"not a zip", b"PK\x05\x06" + bytes(10), b"PK\x05\x06" + b"\xff" * 18])
def test_what_is_no_zip_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    with pytest.raises(BundleError, match=r"a\.npz: not a readable \.npz, truncated or damaged"):
        Archive(tmp_path / "a.npz")


def test_a_member_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"a\.npz: has no member '\.\./a'"):
        archive_with(tmp_path / "a.npz", npy(np.ones(3))).member("../a")


def test_a_compressed_member_is_refused_unread(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="member 'a' is compressed or encrypted"):
        archive_with(tmp_path / "a.npz", npy(np.zeros(10**6)), compression=zipfile.ZIP_DEFLATED).member("a")


def test_pickled_objects_are_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="member 'a' holds pickled Python objects; refused, nothing was executed"):
        archive_with(tmp_path / "a.npz", npy(np.array([{}], object))).member("a")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }", length=60000),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + b"{'descr': '<f8', 'fortran_order': False, 'shape': (3,), }\n",
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (-1,), }"),
        header("{'descr': '<f8', 'fortran_order': False, 'shape': (3L,), }"),
        header("{'descr': '<f8', 'fortran_order': __import__('os'), 'shape': (3,), }"),
        header("[" * 3000),
        header("('" + "a" * 3000),
        header(""),
    ],
)
def test_a_member_without_plain_header_is_refused(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(RecordError, match=r"member 'a' has no valid \.npy header"):
        archive_with(tmp_path / "a.npz", data + bytes(24)).member("a")


@pytest.mark.parametrize("described", ["'<U10'", "'<M8[s]'", "[('x', '<f8')]", "'>f8'", "'nonsense'"])
def test_a_type_that_we_never_write_is_refused(tmp_path: Path, described: str) -> None:
    data = header(f"{{'descr': {described}, 'fortran_order': False, 'shape': (3,), }}") + bytes(24)
    with pytest.raises(RecordError, match="member 'a' has the unknown type "):
        archive_with(tmp_path / "a.npz", data).member("a")


def test_an_array_in_fortran_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="member 'a' is not a plain C-ordered array"):
        archive_with(tmp_path / "a.npz", npy(np.asfortranarray(np.ones((2, 3))))).member("a")


@pytest.mark.parametrize("shape", ["(4,)", "(2,)", "()", "(1000000000000,)", "(99999999999999999999999, 99999999)", "(3, 0)"])
def test_a_shape_that_its_length_does_not_bear_out_is_refused(tmp_path: Path, shape: str) -> None:
    data = header(f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}") + bytes(24)
    with pytest.raises(RecordError, match=r"member 'a' is damaged \(its header and its length disagree\)"):
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
    with pytest.raises(BundleError, match=r"a\.npz: (member '000000\.a' is damaged \(no local header\)|not a readable)"):
        Archive(path).member("000000.a")


def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = archive_of(tmp_path / "a.npz", np.ones(3))
    archive = Archive(path)
    member = archive.member("000000.a")
    path.write_bytes(path.read_bytes()[: member.offset + 10])
    with pytest.raises(BundleError, match="ends early; it was truncated while being read"):
        archive.read_into(memoryview(bytearray(member.nbytes)), member.offset)
