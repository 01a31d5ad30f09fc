"""Reading a bundle: what it holds, and what is said of one that is damaged."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import accucompare as ac
from accucompare.bundle.format.manifest import sealed
from accucompare.bundle.reading.reader import Bundle
from accucompare.errors import AccucompareError, BundleError, RecordError, UsageError
from accucompare.numbers.dtypes import DTYPES, DType, widen
from tests.compare.builder import edit_manifest, item, set_fields, set_lines, write


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return write(
        tmp_path / "b",
        [
            item("", [0.5], role="input", path="x", parent=None),
            item("fc", [1.0, 2.0]),
            item("fc", [3], path="1"),
            item("act", [4.0, 5.0]),
        ],
    )


def test_a_copy_has_the_same_identity_and_another_content_another(
    directory: Path, tmp_path: Path
) -> None:
    shutil.copytree(directory, tmp_path / "copy")
    other = write(tmp_path / "other", [item("fc", [1.0, 3.0])])
    with (
        ac.open_bundle(directory) as bundle,
        ac.open_bundle(tmp_path / "copy") as copied,
        ac.open_bundle(other) as changed,
    ):
        assert bundle.identity() == copied.identity() != changed.identity()
        assert len(bundle.identity()) == 32


def error_of(directory: Path, name: str = "act", **place: Any) -> str:
    """What is said when everything is listed and one record is loaded."""

    def read() -> None:
        with ac.open_bundle(directory) as bundle:
            list(bundle.records())
            bundle.load(name, **place)

    with pytest.raises(BundleError) as caught:
        read()
    return str(caught.value).replace(str(directory), "DIR")


# What it holds


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    shape=st.lists(st.integers(0, 4), max_size=4).map(tuple),
    seed=st.integers(0, 99),
    elements=st.integers(1, 9),
)
def test_every_dtype_and_shape_comes_back_bit_for_bit(
    tmp_path: Path, dtype: DType, shape: tuple[int, ...], seed: int, elements: int
) -> None:
    count = int(np.prod(shape))
    bits = np.random.default_rng(seed).bytes(count * dtype.storage.itemsize)
    raw = (
        np.frombuffer(bits, np.uint8) & 1
        if dtype.name == "bool"
        else np.frombuffer(bits, dtype.storage)
    )
    raw = raw.astype(dtype.storage).reshape(shape)
    shutil.rmtree(tmp_path / "b", ignore_errors=True)
    with ac.open_bundle(write(tmp_path / "b", [item("a", raw, dtype.name)])) as bundle:
        (record,) = bundle.records()
        assert (record.dtype, record.shape) == (dtype.name, shape)
        assert bundle.raw(record).tobytes() == raw.tobytes()
        values = bundle.load("a")
        assert (values.shape, values.dtype) == (shape, dtype.widened)
        assert values.tobytes() == widen(raw, dtype).tobytes()
        blocks = [block.copy() for block in bundle.stored(record).blocks(0, count, elements)]
        assert all(len(block) == elements for block in blocks[:-1])
        assert b"".join(block.tobytes() for block in blocks) == raw.tobytes()


def test_bfloat16_is_loaded_as_float32(tmp_path: Path) -> None:
    with ac.open_bundle(write(tmp_path / "b", [item("a", [1.5, 1e-3], "bfloat16")])) as bundle:
        values = bundle.load("a")
    assert (values.dtype, values.tolist()) == (np.float32, [1.5, 0.00099945068359375])


def test_records_come_by_rank_step_and_execution_order(tmp_path: Path) -> None:
    places = [(rank, step, order) for rank in (1, 0) for step in (0, 1) for order in (2, 0, 1)]
    items = [
        item(str(place), [1.0], rank=place[0], step=place[1], order=place[2]) for place in places
    ]
    with ac.open_bundle(write(tmp_path / "b", items, ranks=2)) as bundle:
        assert [record.name for record in bundle.records()] == [
            str(place) for place in sorted(places)
        ]


def test_a_record_is_found_by_its_place(directory: Path) -> None:
    with ac.open_bundle(directory) as bundle:
        assert bundle.load("act").tolist() == [4.0, 5.0]
        assert bundle.load("fc", path="").tolist() == [1.0, 2.0]
        assert bundle.load("fc", path="1").tolist() == [3]
        assert bundle.load("", role="input").tolist() == [0.5]


def test_a_bundle_can_be_used_after_it_was_closed(directory: Path) -> None:
    bundle = ac.open_bundle(directory)
    bundle.load("act")
    bundle.close()
    assert bundle.load("act").tolist() == [4.0, 5.0]
    bundle.close()


def test_finding_a_record_reads_its_own_step_only(tmp_path: Path) -> None:
    directory = write(tmp_path / "b", [item("a", [1.0]), item("a", [2.0], step=1)])
    (directory / "rank0/step0.jsonl").write_bytes(b"broken")
    with ac.open_bundle(directory) as bundle:
        assert bundle.load("a", step=1).tolist() == [2.0]


@pytest.mark.parametrize(
    "place", [{"call": 1}, {"role": "input"}, {"path": "7"}, {"step": 3}, {"rank": 1}]
)
def test_a_record_that_is_not_there_is_told_with_the_way_to_list_them(
    directory: Path, place: dict[str, Any]
) -> None:
    with ac.open_bundle(directory) as bundle, pytest.raises(RecordError) as caught:
        bundle.load("act", **place)
    assert "no such record; `accucompare show " in str(caught.value)


def test_several_records_in_one_place_ask_for_a_path(directory: Path) -> None:
    with (
        ac.open_bundle(directory) as bundle,
        pytest.raises(RecordError, match="has 2 records; name a path: '', '1'"),
    ):
        bundle.load("fc")


def test_a_role_that_does_not_exist_is_refused(directory: Path) -> None:
    with (
        ac.open_bundle(directory) as bundle,
        pytest.raises(UsageError, match=r"role must be one of input, .*, but is 'outputs'"),
    ):
        bundle.load("act", role="outputs")


def test_a_record_without_data_cannot_be_loaded(tmp_path: Path) -> None:
    directory = write(
        tmp_path / "b", [item("act", dtype="float32", layout="meta", shape=(10**9, 10**9))]
    )
    assert error_of(directory) == "DIR: act call 0 output (step 0, rank 0) has no data (meta)"


def test_a_bundle_without_saved_state_says_how_to_get_one(directory: Path) -> None:
    with (
        ac.open_bundle(directory) as bundle,
        pytest.raises(BundleError, match=r"holds no model state; capture it with save_state=True"),
    ):
        list(bundle.state())


# Ranks


def test_a_rank_without_manifest_is_missing(tmp_path: Path) -> None:
    directory = write(tmp_path / "b", [item("a", [1.0], rank=rank) for rank in range(3)], ranks=3)
    shutil.rmtree(directory / "rank2")
    with ac.open_bundle(directory) as bundle:
        assert (bundle.missing_ranks, bundle.complete) == ([2], False)
        assert [record.rank for record in bundle.records()] == [0, 1]


def test_a_damaged_manifest_of_another_rank_is_not_taken_for_a_missing_rank(tmp_path: Path) -> None:
    directory = write(tmp_path / "b", [item("a", [1.0], rank=rank) for rank in range(2)], ranks=2)
    (directory / "rank1/manifest.json").write_text("{")
    with pytest.raises(BundleError, match=r"rank1/manifest\.json: damaged; it is not valid JSON"):
        ac.open_bundle(directory)


# Damage


def test_a_flipped_bit_is_found_by_its_digest(directory: Path) -> None:
    content = bytearray((directory / "rank0/step0.npz").read_bytes())
    content[content.index(np.array([4.0, 5.0]).tobytes()) + 3] ^= 0x10
    (directory / "rank0/step0.npz").write_bytes(content)
    assert (
        error_of(directory)
        == "DIR/rank0/step0.npz: act call 0 output (step 0, rank 0) is corrupt (its digest does not"
        " match); capture it again"
    )
    with ac.open_bundle(directory) as bundle:
        assert bundle.load("fc", path="").tolist() == [1.0, 2.0]
        stored = bundle.stored(bundle.find("act"))
        list(stored.blocks(0, 2))
        with pytest.raises(RecordError, match="is corrupt"):
            stored.verify()


def test_a_record_that_names_anothers_member_is_found_by_its_digest(directory: Path) -> None:
    set_fields(directory, 3, member="000001.fc.output")
    assert "is corrupt (its digest does not match)" in error_of(directory)


@pytest.mark.parametrize("digest", ["0" * 32, "", None])
def test_a_record_that_lies_about_its_digest_is_corrupt(
    directory: Path, digest: str | None
) -> None:
    set_fields(directory, 3, digest=digest)
    assert "is corrupt (its digest does not match)" in error_of(directory)


@pytest.mark.parametrize(
    "fields",
    [
        {"shape": [2, 1]},
        {"shape": [3]},
        {"shape": []},
        {"shape": [10**9, 10**8]},
        {"dtype": "float32"},
        {"dtype": "int64"},
    ],
)
def test_a_record_that_disagrees_with_its_member_is_damage(
    directory: Path, fields: dict[str, Any]
) -> None:
    set_fields(directory, 3, **fields)
    assert "but its record act call 0 output (step 0, rank 0) says" in error_of(directory)


def test_a_member_that_is_not_there_is_named(directory: Path) -> None:
    set_fields(directory, 3, member="../../../etc/passwd")
    assert error_of(directory) == "DIR/rank0/step0.npz: has no member '../../../etc/passwd'"


def test_a_missing_npz_is_named(directory: Path) -> None:
    (directory / "rank0/step0.npz").unlink()
    assert error_of(directory) == "DIR/rank0/step0.npz: cannot be read (No such file or directory)"


def test_a_missing_list_of_records_is_named(directory: Path) -> None:
    (directory / "rank0/step0.jsonl").unlink()
    assert (
        error_of(directory)
        == "DIR/rank0/step0.jsonl: cannot be read (No such file or directory), but the manifest"
        " lists it"
    )


def test_a_truncated_list_of_records_is_damage(directory: Path) -> None:
    path = directory / "rank0/step0.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert error_of(directory).startswith("DIR/rank0/step0.jsonl, line 4: damaged (")


def test_a_list_that_lacks_a_line_is_damage(directory: Path) -> None:
    path = directory / "rank0/step0.jsonl"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert (
        error_of(directory)
        == "DIR/rank0/step0.jsonl: holds 3 records, but the manifest says 4; one is damaged"
    )


def test_a_changed_list_of_records_is_found_by_its_digest(directory: Path) -> None:
    path = directory / "rank0/step0.jsonl"
    path.write_bytes(path.read_bytes().replace(b'"Linear"', b'"Linaer"', 1))
    assert (
        error_of(directory)
        == "DIR/rank0/step0.jsonl: is corrupt (its digest does not match the manifest's); capture"
        " it again"
    )


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"[]\n", "Expected `object`, got `array`"),
        (b"{}\n", "a record is malformed (Object missing required field `name`)"),
        (b"{\n", "truncated"),
        (b"\xff\xff\n", "invalid character"),
        (b"[" * 100_000 + b"\n", "Expected `object`, got `array`"),
        (b'{"a": ' * 100_000 + b"\n", "recursion"),
        (b"x" * (1 << 21) + b"\n", "it is too long for a record"),
        (b"1" * 5000 + b"\n", "Number out of range"),
        (b"\n", "truncated"),
    ],
    ids=[
        "list",
        "empty",
        "half",
        "binary",
        "nested lists",
        "nested objects",
        "long",
        "number",
        "blank",
    ],
)
def test_a_line_that_is_no_record_is_damage(directory: Path, line: bytes, why: str) -> None:
    set_lines(directory, line)
    message = error_of(directory)
    assert message.startswith("DIR/rank0/step0.jsonl, line 1: damaged (")
    assert why in message
    assert len(message) < 300


def test_a_record_that_is_there_twice_is_damage(directory: Path) -> None:
    lines = (directory / "rank0/step0.jsonl").read_bytes()
    set_lines(directory, lines + lines.splitlines(keepends=True)[1])
    assert (
        error_of(directory)
        == "DIR/rank0/step0.jsonl, line 5: damaged (fc call 0 output (step 0, rank 0) is there"
        " twice)"
    )


def test_a_record_of_the_state_in_a_step_is_damage(directory: Path) -> None:
    set_fields(directory, 3, role="param")
    assert "line 4: damaged (act call 0 param (step 0, rank 0) does not belong there)" in error_of(
        directory
    )


def test_reading_stops_at_the_first_line_too_many(directory: Path) -> None:
    path = directory / "rank0/step0.jsonl"
    with path.open("ab") as file:
        file.write(json.dumps({"never": "read"}).encode() + b"\n")
    assert (
        error_of(directory)
        == "DIR/rank0/step0.jsonl: holds more records than the 4 of the manifest; one is damaged"
    )


def test_an_absurd_shape_takes_no_memory(directory: Path) -> None:
    set_fields(directory, 3, shape=[1 << 20, 1 << 20])
    record = list(Bundle(directory).records())[3]
    with pytest.raises(RecordError, match="says float64"):
        Bundle(directory).raw(record)


# Any damage


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    items = [
        item("", rng.normal(size=3), "float32", role="input", path="x", parent=None),
        item("a", rng.normal(size=(2, 3)), "bfloat16"),
        item("b", dtype="float32", layout="sparse", shape=(2,)),
        item("b", dtype="", layout="opaque", detail="str 'x'", digest="ab", path="1"),
        item("a", [1, 2], step=1, rank=1),
    ]
    entry = {"dtype": "float32", "shape": [3], "digests": {"float32": "ab"}}
    return write(
        tmp_path_factory.mktemp("sound") / "b",
        items,
        ranks=2,
        model={
            "modules": {"": "Net", "a": "Linear"},
            "not_called": ["a"],
            "parameters": {"w": entry},
            "training": False,
        },
        inputs={"0": {"x": entry}},
        environment={"flags": {"x": True}, "device": {"type": "cpu"}, "autocast": None},
        stopped={"step": 0, "module": "a", "error": "x"},
        complete=False,
        notes=["n"],
    )


def use(directory: Path, other: Path) -> None:
    """Everything that a user can do with a bundle; it may be refused, and nothing else may
    happen."""
    with contextlib.suppress(AccucompareError), ac.open_bundle(directory) as bundle:
        for record in bundle.records():
            if record.member is not None:
                bundle.values(record)
    for keep_going in (False, True):
        for golden, candidate in ((directory, other), (other, directory)):
            with contextlib.suppress(AccucompareError):
                ac.diff(golden, candidate, work=ac.Work(keep_going=keep_going))


FILES = [
    "manifest.json",
    "rank1/manifest.json",
    "rank0/step0.jsonl",
    "rank0/step0.npz",
    "rank1/step1.npz",
    "rank1/step1.jsonl",
]
EDITS = st.lists(
    st.tuples(
        st.floats(0, 1),
        st.sampled_from(["set", "cut", "insert", "swap digit"]),
        st.binary(min_size=1, max_size=8),
    ),
    min_size=1,
    max_size=3,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(FILES), EDITS)
def test_no_damage_raises_anything_but_our_errors(
    sound: Path, tmp_path: Path, name: str, edits: list[tuple[float, str, bytes]]
) -> None:
    directory = tmp_path / "damaged"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(sound, directory)
    content = bytearray((directory / name).read_bytes())
    for share, kind, data in edits:
        place = int(share * len(content))
        if kind == "set":
            content[place : place + len(data)] = data
        elif kind == "insert":
            content[place:place] = data
        elif kind == "cut":
            del content[place : place + 8 * len(data)]
        else:
            digits = [at for at, byte in enumerate(content) if 48 <= byte < 58]
            if digits:
                content[digits[int(share * (len(digits) - 1))]] = 48 + data[0] % 10
    if name.endswith("jsonl"):  # with the right digest, or nothing behind it would be reached
        (directory / name).write_bytes(content)
        entry = {
            "records": content.count(b"\n"),
            "digest": xxhash.xxh3_128_hexdigest(bytes(content)),
        }
        manifest = "manifest.json" if name.startswith("rank0") else "rank1/manifest.json"
        edit_manifest(
            directory, lambda fields: fields["steps"][int(name[-7])].update(entry), manifest
        )
    else:
        (directory / name).write_bytes(content)
    use(directory, sound)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [place for key, child in inner for place in [(*path, key), *places(child, (*path, key))]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data(), JSON)
def test_no_value_in_any_field_raises_anything_but_our_errors(
    sound: Path, tmp_path: Path, data: st.DataObject, value: Any
) -> None:
    directory = tmp_path / "damaged"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(sound, directory)
    if data.draw(st.booleans()):
        content = json.loads((directory / "manifest.json").read_text())
    else:
        content = [
            json.loads(line) for line in (directory / "rank0/step0.jsonl").read_bytes().splitlines()
        ]
    *way, last = data.draw(st.sampled_from(places(content)))
    target = content
    for key in way:
        target = target[key]
    target[last] = value
    if isinstance(content, dict):
        (directory / "manifest.json").write_bytes(sealed(content))
    else:
        set_lines(directory, b"".join(json.dumps(line).encode() + b"\n" for line in content))
    use(directory, sound)
