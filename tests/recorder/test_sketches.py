"""What a capture keeps of each tensor, by its mode: beside a capture of the same training that
keeps all.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import accucompare as ac
from accucompare.bundle.reading.reader import Bundle
from accucompare.errors import UsageError
from accucompare.numbers.dtypes import DTYPES
from accucompare.numbers.sketch import sketch_of
from accucompare.selection import Mode
from tests.recorder.trained import train


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Mode, Bundle]]:
    folder = tmp_path_factory.mktemp("modes")
    for mode in (Mode.TENSORS, Mode.SKETCH, Mode.DIGEST):
        train("tied", folder / mode.value, 2, mode=mode.value)
    bundles = {
        mode: ac.open_bundle(folder / mode.value)
        for mode in (Mode.TENSORS, Mode.SKETCH, Mode.DIGEST)
    }
    yield bundles
    for bundle in bundles.values():
        bundle.close()


def test_each_large_tensor_of_a_training_step_has_its_sketch_and_statistics(
    kept: dict[Mode, Bundle],
) -> None:
    sketched = 0
    for whole, part in zip(kept[Mode.TENSORS].records(), kept[Mode.SKETCH].records(), strict=True):
        assert (part.key, part.digest, part.statistics) == (
            whole.key,
            whole.digest,
            whole.statistics,
        )
        if part.sketch is None:
            assert (part.member is None) == (whole.member is None)
            continue
        assert whole.statistics is not None
        expected = sketch_of(
            kept[Mode.TENSORS].raw(whole), DTYPES[whole.dtype], whole.statistics, 256
        )
        assert expected is not None
        assert np.array_equal(kept[Mode.SKETCH].sketch(part), expected)
        sketched += 1
    assert sketched > 20


def test_digests_are_those_of_the_tensors_and_all_that_is_kept(kept: dict[Mode, Bundle]) -> None:
    for whole, part in zip(kept[Mode.TENSORS].records(), kept[Mode.DIGEST].records(), strict=True):
        assert (part.key, part.digest, part.member, part.sketch, part.statistics) == (
            whole.key,
            whole.digest,
            None,
            None,
            None,
        )


@pytest.mark.parametrize("mode", [Mode.SKETCH, Mode.DIGEST])
def test_a_second_run_is_identical_to_one_with_tensors(
    kept: dict[Mode, Bundle], mode: Mode
) -> None:
    comparison = ac.diff(kept[Mode.TENSORS].path, kept[mode].path)
    assert comparison.passed
    assert (
        comparison.conclusion
        == "identical; by digests alone, no values were read but losses and gradient norms of 2"
        " steps"
    )


@pytest.mark.parametrize("mode", [Mode.SKETCH, Mode.DIGEST])
def test_nothing_is_fed_from_a_golden_without_tensors(
    kept: dict[Mode, Bundle], mode: Mode, tmp_path: Path
) -> None:
    with pytest.raises(
        UsageError, match=rf"holds no tensors \(mode {mode}\) to feed; capture it in mode tensors"
    ):
        train("tied", tmp_path / "fed", 2, feed=kept[mode].path)


def test_a_mode_or_a_size_that_there_is_not_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match="mode must be one of 'tensors', 'sketch', 'stats', 'digest', but is 'all'"
    ):
        train("tied", tmp_path / "x", 1, mode="all")
    with pytest.raises(UsageError, match="sketch_size must be a number from 16 to 65536, but is 8"):
        train("tied", tmp_path / "x", 1, mode="sketch", sketch_size=8)
    with pytest.raises(
        UsageError, match=r"sketch_size \(--sketch-size\): mode stats makes no sketches; give"
    ):
        train("tied", tmp_path / "x", 1, mode="stats", sketch_size=512)
