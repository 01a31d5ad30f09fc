"""Which code ran, as the manifest proves it; and what a model computes itself."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import sys
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import xxhash
from openpyxl import load_workbook
from torch import nn

import accucompare as ac
from accucompare.bundle.format.manifest import Manifest
from accucompare.bundle.reading.reader import open_bundle
from accucompare.compare.limits.provenance import other_code
from accucompare.compare.rows.rows import Option
from accucompare.live.around import loaded_libraries
from accucompare.live.around.sources import (
    FunctionsRun,
    digests_of,
    modules_in,
    source_configuration,
)
from accucompare.report.terminal.terminal import print_comparison
from tests.asked import grouped

LIBRARY = """
import torch
{helper}

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.eps, self.mode, self._hidden, self.device = 1e-5, "tanh", 3, "cpu"
        self.register_buffer("table", torch.arange(4.0), persistent=False)
    def forward(self, x):
        return twice(x) + self.table
"""
HELPER = "__version__ = '1.5'\n\ndef twice(x):\n    return x * 2\n\ndef never(x):\n    return x\n"


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], ModuleType]:
    """Imports ``net.py``, whose forward calls a function of ``helper.py``."""
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "net_of_test.py").write_text(
        LIBRARY.format(helper="from helper_of_test import twice")
    )
    (tmp_path / "helper_of_test.py").write_text(HELPER)

    def load() -> ModuleType:
        for name in ("net_of_test", "helper_of_test"):
            sys.modules.pop(name, None)
        return __import__("net_of_test")

    yield load
    for name in ("net_of_test", "helper_of_test"):
        sys.modules.pop(name, None)


def captured(model: nn.Module, out: Path, **options: Any) -> Manifest:
    with torch.no_grad(), ac.capture(model, out, **grouped(**options)):
        model(torch.ones(4))
    with open_bundle(out) as bundle:
        return bundle.manifest


def test_the_manifest_names_the_files_of_classes_and_of_functions_that_ran(
    library: Callable[[], ModuleType], tmp_path: Path
) -> None:
    manifest = captured(library().Net(), tmp_path / "golden")
    sources = manifest.model["sources"]
    for name in ("net_of_test", "helper_of_test"):
        assert sources[name] == xxhash.xxh3_128_hexdigest((tmp_path / f"{name}.py").read_bytes())
    assert "torch.nn.modules.module" in sources
    assert not [name for name in sources if name.startswith(("accucompare", "threading"))]
    assert manifest.model["class_sources"] == ["net_of_test"]
    assert manifest.environment["versions"]["helper_of_test"] == "1.5"


@pytest.mark.parametrize(("file", "edit"), [("net_of_test", "x) + 1"), ("helper_of_test", "x * 3")])
def test_code_that_was_edited_is_other_code_also_where_only_a_function_was(
    library: Callable[[], ModuleType], tmp_path: Path, file: str, edit: str
) -> None:
    golden = captured(library().Net(), tmp_path / "golden")
    path = tmp_path / f"{file}.py"
    path.write_text(path.read_text().replace("x * 2", edit).replace("x) +", f"{edit} +"))
    assert other_code(golden, captured(library().Net(), tmp_path / "other")).edited == (file,)


def test_the_same_code_is_no_other_code(library: Callable[[], ModuleType], tmp_path: Path) -> None:
    golden, again = (captured(library().Net(), tmp_path / name) for name in ("golden", "again"))
    assert not other_code(golden, again)


def test_another_version_is_other_code_but_another_build_is_not() -> None:
    def made(version: str) -> Manifest:
        return Manifest(
            model={"sources": {"lib.net": "0"}},
            environment={"versions": {"lib": version, "unused": version}},
        )

    assert other_code(made("2.7.0+cu126"), made("2.7.0+cpu")) == other_code(made("1"), made("1"))
    assert other_code(made("4.52.1"), made("4.51.3")).versions == (("lib", "4.52.1", "4.51.3"),)


def test_a_manifest_that_does_not_say_what_ran_proves_nothing() -> None:
    assert other_code(Manifest(), Manifest(model={"sources": {}})).unrecorded


def test_numbers_that_modules_keep_are_recorded_and_compared(
    library: Callable[[], ModuleType], tmp_path: Path
) -> None:
    net = library().Net()
    assert source_configuration({"": net}) == {"": {"eps": 1e-5, "mode": "tanh"}}
    golden = captured(net, tmp_path / "golden")
    net.eps = 1e-6
    assert other_code(golden, captured(net, tmp_path / "other")).configured == (
        ("", "eps", 1e-5, 1e-6),
    )
    (finding,) = [
        each
        for each in ac.diff(tmp_path / "golden", tmp_path / "other").preflight
        if each.topic == "configuration"
    ]
    assert finding.message == "(root).eps: golden 1e-05, candidate 1e-06"


def test_a_configuration_that_differs_is_said_beside_the_culprit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """GELU by its approximation, whose error alone looks like noise of a lower precision; under
    another name, too.
    """
    for name, fed, layer, approximate in (
        ("golden", None, "act", "none"),
        ("tanh", tmp_path / "golden", "gelu", "tanh"),
    ):
        torch.manual_seed(0)
        net = nn.Sequential(
            OrderedDict(
                [
                    ("fc", nn.Linear(8, 64)),
                    (layer, nn.GELU(approximate)),
                    ("norm", nn.LayerNorm(64)),
                ]
            )
        )
        with ac.capture(net, tmp_path / name, feed=ac.FedWith(fed, map="act=gelu" if fed else ())):
            net(torch.randn(4, 8))
    comparison = ac.diff(tmp_path / "golden", tmp_path / "tanh", map="act=gelu")
    (culprit,) = comparison.culprits
    assert (culprit.place, culprit.configured) == (
        "act",
        (Option("approximate", "'none'", "'tanh'"),),
    )
    told = "configured otherwise: approximate is 'none' in golden, 'tanh' in the candidate"
    print_comparison(comparison, [tmp_path / "x.xlsx"], quiet=False)
    assert told in capsys.readouterr().out
    summary = load_workbook(comparison.to_excel(tmp_path / "x.xlsx"))["Summary"]
    assert told in [cell.value for line in summary for cell in line]
    (found,) = json.loads(comparison.to_json(tmp_path / "x.json").read_text())["culprits"]
    assert found["configured"] == [
        {"name": "approximate", "golden": "'none'", "candidate": "'tanh'"}
    ]


def test_what_another_module_is_configured_is_not_said_beside_the_culprit(tmp_path: Path) -> None:
    for name, fed in (("golden", None), ("other", tmp_path / "golden")):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)).eval()
        if fed:
            net[1].p = 0.2
            net[0].weight.data *= 1.5
        with ac.capture(net, tmp_path / name, feed=ac.FedWith(fed, force=fed is not None)):
            net(torch.randn(4, 8))
    (culprit,) = ac.diff(tmp_path / "golden", tmp_path / "other").culprits
    assert (culprit.place, culprit.configured) == ("0", ())


def test_a_profiler_of_the_users_is_left_alone() -> None:
    def own(*arguments: Any) -> None:
        pass

    sys.setprofile(own)
    try:
        functions = FunctionsRun()
        functions.start()
        functions.stop()
        assert sys.getprofile() is own
    finally:
        sys.setprofile(None)
    assert functions.files == {}


def test_nothing_is_left_behind_by_a_model_that_raises(tmp_path: Path) -> None:
    class Net(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        captured(Net(), tmp_path / "golden")
    assert sys.getprofile() is None


def test_a_file_that_is_written_twice_within_its_clocks_unit_has_two_digests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = ModuleType("edited_of_test")
    module.__file__ = str(tmp_path / "edited.py")
    monkeypatch.setitem(sys.modules, "edited_of_test", module)
    digests = []
    for text in ("a", "b"):
        (tmp_path / "edited.py").write_text(text)
        os.utime(tmp_path / "edited.py", (1e9, 1e9))
        digests.append(digests_of(["edited_of_test"]))
    assert digests[0] != digests[1]


def test_code_that_ran_with_another_modules_names_is_of_its_file() -> None:
    files = {json.__file__: "sys", np.__file__: np.__name__, torch.__file__: "of no module"}
    assert modules_in(files) == {"numpy", "torch"}  # Python's own are not listed


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="the system lists none")
def test_a_library_that_is_loaded_later_is_found(tmp_path: Path) -> None:
    before = loaded_libraries()
    ctypes.CDLL(shutil.copy(msgspec._core.__file__, tmp_path / "later_of_test.so"))
    assert [*loaded_libraries().keys() - before.keys()] == ["later_of_test.so"]
    (tmp_path / "new").write_bytes(b"another build")
    (tmp_path / "new").replace(tmp_path / "later_of_test.so")
    assert "later_of_test.so" not in loaded_libraries()  # which is not what was loaded


def test_of_two_files_of_one_name_that_of_the_second_case_counts(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "twin.py").write_text(folder)
        module = ModuleType("twin")
        module.__file__ = str(tmp_path / folder / "twin.py")
        sys.modules["twin" if folder == "a" else f"twin of {tmp_path / folder}"] = module
    try:
        assert digests_of(["twin", f"twin of {tmp_path / 'b'}"]) == {
            "twin": xxhash.xxh3_128_hexdigest(b"b")
        }
    finally:
        del sys.modules["twin"], sys.modules[f"twin of {tmp_path / 'b'}"]


class Rotary(nn.Module):
    def __init__(self, base: float) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("inv_freq", base ** -torch.arange(0, 1, 0.25), persistent=False)
        self.register_buffer("seen", torch.full((4,), base))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(x) * self.inv_freq + self.seen


def test_like_leaves_a_buffer_that_the_model_computes_its_own_and_it_is_compared(
    tmp_path: Path,
) -> None:
    captured(Rotary(500000.0), tmp_path / "golden", save_state=True)
    other = Rotary(10000.0)
    captured(other, tmp_path / "other", like=tmp_path / "golden", feed=tmp_path / "golden")
    assert other.seen.tolist() == [500000.0] * 4  # a checkpoint brings that one
    assert torch.equal(other.inv_freq, Rotary(10000.0).inv_freq)
    with open_bundle(tmp_path / "other") as bundle:
        assert np.array_equal(bundle.load("", role="computed_buffer"), other.inv_freq.numpy())
    comparison = ac.diff(tmp_path / "golden", tmp_path / "other")
    ratio = 50.0**0.75 - 1  # of the last of the frequencies
    assert (
        comparison.conclusion
        == f"bug: the model computes another inv_freq: max rel diff {ratio:.3g}"
    )
    assert comparison.culprits[0].place == "inv_freq (computed buffer)"


def test_the_same_computed_buffer_is_no_finding(tmp_path: Path) -> None:
    captured(Rotary(500000.0), tmp_path / "golden", save_state=True)
    captured(Rotary(500000.0), tmp_path / "other", like=tmp_path / "golden")
    assert ac.diff(tmp_path / "golden", tmp_path / "other").conclusion.startswith(
        "identical; 2 of the case's own weights"
    )
