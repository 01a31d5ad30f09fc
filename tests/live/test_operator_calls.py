"""Where an operator was called."""

from __future__ import annotations

from pathlib import Path

import accucompare as ac
from accucompare.bundle.format.records import Role
from accucompare.devices import DeviceName
from accucompare.recorder.capture_options import CaptureOptions
from accucompare.recorder.session.case_capture import capture_case

CASE = """
import torch
import accucompare as ac

def case():
    return ac.Case(torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.GELU()), torch.ones(1, 2))
"""


def test_what_called_a_model_is_no_source_line_of_its_operators(tmp_path: Path) -> None:
    (tmp_path / "case.py").write_text(CASE)
    capture_case(
        str(tmp_path / "case.py"),
        tmp_path / "golden",
        DeviceName("cpu"),
        CaptureOptions(level="op", only="1"),
    )
    with ac.open_bundle(tmp_path / "golden") as bundle:
        lines = {record.source_line for record in bundle.records() if record.role is Role.OP_OUTPUT}
    assert lines == {""}
