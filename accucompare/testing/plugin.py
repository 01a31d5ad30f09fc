"""The pytest plugin: the fixture ``layers_regression``, and the option that writes its bundles.

Every run of pytest in an environment with accucompare imports this file, so it imports nothing that
pytest has not loaded already."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from accucompare.testing.regression import LayersRegression

#: The property by which a test's report, also from workers of xdist, names the bundle it wrote.
WRITTEN = "accucompare_written"


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("accucompare", "layer-wise accuracy of PyTorch models (accucompare)")
    group.addoption(
        "--accucompare-update",
        action="store_true",
        help="write the bundles that layers_regression compares with",
    )
    group.addoption(
        "--accucompare-reports",
        metavar="DIR",
        help="where failing tests write their Excel reports (default: each test's tmp_path)",
    )
    parser.addini(
        "accucompare_reports",
        "where failing tests write their Excel reports, from the root directory",
    )


@pytest.fixture
def layers_regression(request: pytest.FixtureRequest, tmp_path: Path) -> LayersRegression:
    """Compares each layer of a model with a bundle kept beside the test:
    ``layers_regression.check(model, inputs)``."""
    from accucompare.testing.regression import LayersRegression

    config = request.config
    reports: Any = config.getoption("--accucompare-reports")
    folder = None if reports is None else Path(config.invocation_params.dir, reports)
    if folder is None and (chosen := config.getini("accucompare_reports")):
        folder = Path(config.rootpath, chosen)
    file, _, test = request.node.nodeid.partition("::")
    if folder is not None:  # files of one name get directories of their own
        folder = folder.joinpath(
            *(part for part in Path(file).with_suffix("").parts if part not in ("..", "/"))
        )
    return LayersRegression(
        file=request.path,
        test=test,
        update=config.getoption("--accucompare-update"),
        scratch=tmp_path,
        reports=folder,
        note_written=lambda path: request.node.user_properties.append((WRITTEN, str(path))),
    )


def pytest_terminal_summary(terminalreporter: Any) -> None:
    for report in (each for reports in terminalreporter.stats.values() for each in reports):
        for name, path in (
            getattr(report, "user_properties", ()) if getattr(report, "when", "") == "call" else ()
        ):
            if name == WRITTEN:
                terminalreporter.write_line(f"accucompare: wrote {path}")
