"""Every byte of a bundle is looked at."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.format.records import Role
from accucompare.bundle.reading.reader import open_bundle
from accucompare.bundle.reading.verification import verify
from accucompare.bundle.writing.writer import BundleWriter
from tests.compare.builder import item, write


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """Two ranks of two steps, with values of their own, and a saved state."""
    items = [
        item("fc", np.arange(4.0) + 10 * step + 100 * rank, step=step, rank=rank)
        for rank in range(2)
        for step in range(2)
    ]
    return write(tmp_path / "b", [*items, item("again", np.arange(4.0))], ranks=2)


def test_a_sound_bundle_is_all_read_and_what_is_shared_once(bundle: Path) -> None:
    done: list[tuple[int, int]] = []
    with open_bundle(bundle) as opened:
        found = verify(opened, lambda read, total: done.append((read, total)))
    assert (found.records, found.nbytes, found.damage) == (5, 4 * 32, [])
    assert done[-1] == (128, 128)


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("step", [0, 1])
def test_a_flipped_bit_anywhere_is_found_and_named(bundle: Path, rank: int, step: int) -> None:
    path = bundle / f"rank{rank}" / f"step{step}.npz"
    values = (np.arange(4.0) + 10 * step + 100 * rank).tobytes()
    content = bytearray(path.read_bytes())
    content[content.index(values) + 30] ^= 1
    path.write_bytes(content)
    with open_bundle(bundle) as opened:
        (damage,) = verify(opened).damage
    assert damage.startswith(f"{path}: fc call 0 output (step {step}, rank {rank}) is corrupt")


@pytest.mark.parametrize("name", ["rank0/step1.npz", "rank0/step1.jsonl", "rank1/step0.npz"])
@pytest.mark.parametrize("how", ["gone", "cut"])
def test_a_file_that_is_gone_or_cut_is_named_and_the_others_are_read(
    bundle: Path, name: str, how: str
) -> None:
    if how == "gone":
        (bundle / name).unlink()
    else:
        (bundle / name).write_bytes((bundle / name).read_bytes()[:-30])
    with open_bundle(bundle) as opened:
        found = verify(opened)
    assert [damage.partition(":")[0].partition(",")[0] for damage in found.damage] == [
        str(bundle / name)
    ]
    assert found.records >= 4
    assert found.nbytes < 4 * 32  # what was read


def test_the_saved_state_is_read_too(tmp_path: Path) -> None:
    writer = BundleWriter(tmp_path / "b", Manifest(complete=True))
    weight = item("fc.weight", np.arange(4.0), role=Role.PARAM.value)
    writer.write_state([(weight.record, lambda: np.arange(4.0))])
    writer.end_step(0)
    writer.close()
    with open_bundle(tmp_path / "b") as opened:
        assert (verify(opened).records, verify(opened).nbytes) == (1, 32)
    path = tmp_path / "b" / "rank0" / "state.npz"
    path.write_bytes(path.read_bytes().replace(np.float64(3).tobytes(), np.float64(2).tobytes()))
    with open_bundle(tmp_path / "b") as opened:
        assert len(verify(opened).damage) == 1
