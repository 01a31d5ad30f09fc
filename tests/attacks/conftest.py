"""The command line in this process, for the attacks that need none of their own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from accucompare.cli import main


class Done(NamedTuple):
    code: int
    out: str
    err: str


Command = Callable[..., Done]


@pytest.fixture
def command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Command:
    """``command("diff", "golden", "npu")`` runs in the test's own directory and gives exit code,
    standard output and error.
    """
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str | Path) -> Done:
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err
        assert "internal error" not in printed.err
        return Done(int(ended.value.code or 0), printed.out, printed.err)

    return run
